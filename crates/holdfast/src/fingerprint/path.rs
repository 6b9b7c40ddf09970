//! The server's `PATH`, of which members that differ in it are told more than a hash: it is no
//! secret, and two shells on two hosts seldom have the same one. A hello carries it in parts that
//! are not compared.

use super::{Kind, Part};

/// Its name.
pub(super) const PATH: &str = "PATH";
/// Before a folder in the name of a part; the name of no variable has a `=`.
const BEGIN: &str = "PATH=";
/// Most folders that are told, and most bytes of each.
const FOLDERS_MAX: usize = 64;
const FOLDER_BYTES_MAX: usize = 200;

/// The folders, in order, as parts.
pub(super) fn explaining(path: &str) -> Vec<Part> {
    let part = |(at, folder): (usize, &str)| {
        let folder = &folder[..folder.floor_char_boundary(FOLDER_BYTES_MAX)];
        Part { kind: Kind::Variable, name: format!("{BEGIN}{at:02}={folder}"), hash: 0 }
    };
    path.split(':').take(FOLDERS_MAX).enumerate().map(part).collect()
}

/// Whether a part only explains.
pub(super) fn explains(part: &Part) -> bool {
    part.kind == Kind::Variable && part.name.starts_with(BEGIN)
}

/// How the two differ, behind the variable's name. What the other member (`them`) has is known from
/// the second time on.
pub(super) fn difference(ours: &[Part], theirs: &[Part], us: &str, them: &str) -> String {
    let (ours, theirs) = (folders(ours), folders(theirs));
    if theirs.is_empty() {
        return format!("{PATH} ({us} has {})", ours.join(":"));
    }
    let only = |of: &[String], other: &[String], who: &str| {
        let missing = of.iter().filter(|folder| !other.contains(folder)).map(String::as_str);
        let missing: Vec<&str> = missing.collect();
        (!missing.is_empty()).then(|| format!("only on {who}: {}", missing.join(":")))
    };
    let both = [only(&ours, &theirs, us), only(&theirs, &ours, them)];
    let mut told: Vec<String> = both.into_iter().flatten().collect();
    if told.is_empty() {
        let (ours, theirs) = (ours.join(":"), theirs.join(":"));
        told.push(format!("in another order: {us} has {ours}, {them} has {theirs}"));
    }
    format!("{PATH} ({})", told.join("; "))
}

fn folders(parts: &[Part]) -> Vec<String> {
    let mut names: Vec<&str> =
        parts.iter().filter(|part| explains(part)).map(|part| part.name.as_str()).collect();
    names.sort_unstable();
    let folder = |name: &str| name.split('=').skip(2).collect::<Vec<_>>().join("=");
    names.into_iter().map(folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ours: &str, theirs: &str) -> String {
        difference(&explaining(ours), &explaining(theirs), "a", "b")
    }

    #[test]
    fn both_paths_are_told_by_what_they_do_not_share() {
        assert_eq!(
            told("/bin:/usr/bin", "/bin:/opt/x=y"),
            "PATH (only on a: /usr/bin; only on b: /opt/x=y)"
        );
        assert_eq!(told("/bin:/usr/games", "/bin"), "PATH (only on a: /usr/games)");
        assert_eq!(
            told("/bin:/sbin", "/sbin:/bin"),
            "PATH (in another order: a has /bin:/sbin, b has /sbin:/bin)"
        );
        let unknown = difference(&explaining("/bin:/sbin"), &[], "a", "b");
        assert_eq!(unknown, "PATH (a has /bin:/sbin)");
        let long = "x".repeat(300);
        let parts = explaining(&vec![long.as_str(); 99].join(":"));
        assert_eq!(parts.len(), FOLDERS_MAX);
        assert!(parts.iter().all(|part| part.name.len() < 256), "L6");
    }
}
