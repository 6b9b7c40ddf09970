//! `[server] state_dirs`: folders whose whole content a joining member replaces. Nobody
//! shall lose a folder of the system by a typing mistake.

use super::super::error::Findings;
use holdfast_wire::snapshot::STATE_FOLDERS_MAX;
use std::path::{Component, Path, PathBuf};
use toml::Spanned;

/// Folders in which nothing is a server's own.
const SYSTEM: [&str; 11] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"];
/// Folders that contain those of many programs.
const SHARED: [&str; 9] = [
    "/var/lib",
    "/var/log",
    "/var/cache",
    "/var/spool",
    "/var/tmp",
    "/var/run",
    "/run/lock",
    "/run/user",
    "/root/.ssh",
];
const EXAMPLE: &str = "name folders of this server alone, such as \"/var/lib/redis\"";

/// A path that must not be replaced, with what it is.
pub(super) struct Kept<'a> {
    pub path: &'a Path,
    pub what: &'static str,
}

pub(super) fn check(
    findings: &mut Findings,
    raw: Option<Spanned<Vec<Spanned<PathBuf>>>>,
    kept: &[Kept<'_>],
) -> Vec<PathBuf> {
    let Some(raw) = raw else { return Vec::new() };
    let (span, folders) = (raw.span(), raw.into_inner());
    if folders.len() > STATE_FOLDERS_MAX {
        let found = format!("state_dirs has {} folders", folders.len());
        findings.add(span, found, format!("at most {STATE_FOLDERS_MAX}"));
    }
    let mut checked: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let (span, written) = (folder.span(), folder.into_inner());
        // The path without a slash at its end.
        let path: PathBuf = written.components().collect();
        match wrong(&path, &checked, kept) {
            Some((what, remedy)) => {
                findings.add(span, format!("state_dirs: {} {what}", written.display()), remedy);
            }
            None => checked.push(path),
        }
    }
    checked
}

/// What is wrong with a folder, and the remedy.
fn wrong(path: &Path, others: &[PathBuf], kept: &[Kept<'_>]) -> Option<(String, String)> {
    let said = |what: &str, remedy: &str| Some((what.to_owned(), remedy.to_owned()));
    let mut parts = path.components();
    let is_plain = parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return said("is not an absolute path", "start it with a slash, and leave out `..`");
    }
    let is_systems = path.components().count() < 3
        || SYSTEM.iter().any(|folder| path.starts_with(folder))
        || SHARED.iter().any(|folder| path == Path::new(folder));
    if is_systems {
        return said("is not one server's own", EXAMPLE);
    }
    if let Some(other) = others.iter().find(|it| it.starts_with(path) || path.starts_with(it)) {
        return Some((format!("overlaps {}", other.display()), "name the outer one".to_owned()));
    }
    let inside = kept.iter().find(|it| it.path.starts_with(path))?;
    let what = format!("has {} in it ({})", inside.what, inside.path.display());
    Some((what, format!("a member that joins replaces all that is in it: {EXAMPLE}")))
}
