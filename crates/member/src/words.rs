//! Words that daemons and programs have in common.

/// A number of things that are called `one` each: `1 connection`, `2 connections`.
#[must_use]
pub fn counted(n: u64, one: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {one}{s}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_no_plural() {
        let all = [0, 1, 2].map(|n| counted(n, "connection"));
        assert_eq!(all, ["0 connections", "1 connection", "2 connections"]);
    }
}
