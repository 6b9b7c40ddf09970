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
/// Most folders in a list of a reason.
const LISTED_MAX: usize = 12;

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
        return format!("{PATH} ({us} has {})", listed(&ours));
    }
    let only = |of: &[String], other: &[String], who: &str| {
        let missing = of.iter().filter(|folder| !other.contains(folder)).cloned();
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| format!("only on {who}: {}", listed(&missing)))
    };
    let both = [only(&ours, &theirs, us), only(&theirs, &ours, them)];
    let mut told: Vec<String> = both.into_iter().flatten().collect();
    if told.is_empty() && ours == theirs {
        told.push("beyond the folders that members tell each other".to_owned());
    } else if told.is_empty() {
        let (ours, theirs) = (listed(&ours), listed(&theirs));
        told.push(format!("in another order, or twice: {us} has {ours}, {them} has {theirs}"));
    }
    format!("{PATH} ({})", told.join("; "))
}

fn listed(folders: &[String]) -> String {
    let more = folders.len().saturating_sub(LISTED_MAX);
    let first = folders[..folders.len() - more].join(":");
    if more == 0 { first } else { format!("{first}, and {more} more") }
}

/// The folders that parts tell, which may be anybody's words.
fn folders(parts: &[Part]) -> Vec<String> {
    let mut names: Vec<&str> =
        parts.iter().filter(|part| explains(part)).map(|part| part.name.as_str()).collect();
    names.sort_unstable();
    let folder = |name: &str| name.split('=').skip(2).collect::<Vec<_>>().join("=");
    let plain = |name: &str| folder(name).replace(char::is_control, "?");
    names.into_iter().take(FOLDERS_MAX).map(plain).collect()
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
            "PATH (in another order, or twice: a has /bin:/sbin, b has /sbin:/bin)"
        );
        let unknown = difference(&explaining("/bin:/sbin"), &[], "a", "b");
        assert_eq!(unknown, "PATH (a has /bin:/sbin)");
        let many: Vec<String> = (0..99).map(|at| format!("/{at}")).collect();
        let both = told(&many.join(":"), &(many.join(":") + "0"));
        assert_eq!(both, "PATH (beyond the folders that members tell each other)");
        let lies: Vec<Part> = (0..999)
            .map(|at| Part {
                kind: Kind::Variable,
                name: format!("PATH={at}=\x1b[2J{at}"),
                hash: 0,
            })
            .collect();
        let said = difference(&explaining("/bin"), &lies, "a", "b");
        assert!(said.ends_with(", and 52 more)") && !said.contains('\x1b'), "{said}");
        let long = "x".repeat(300);
        let parts = explaining(&vec![long.as_str(); 99].join(":"));
        assert_eq!(parts.len(), FOLDERS_MAX);
        assert!(parts.iter().all(|part| part.name.len() < 256), "L6");
    }
}
