//! Which group a verb is about, and which daemon of this host: the file that is named, or the only one
//! in /etc/holdfast that gives this host a role.

use super::Failure;
use super::args::GroupArgs;
use crate::config::{FOLDER, GroupFile, files_in};
use std::path::{Path, PathBuf};

/// A daemon of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    /// Where it answers.
    pub socket: PathBuf,
    /// The file that it is started with.
    pub file: PathBuf,
}

impl Daemon {
    pub(super) fn of(file: &GroupFile, role: &str) -> Self {
        Self { socket: file.admin_socket(role), file: file.path().to_owned() }
    }
}

/// The group's file.
pub(super) fn file(group: &GroupArgs) -> Result<GroupFile, Failure> {
    let path = match &group.config {
        Some(path) => path.clone(),
        None => only_one(Path::new(FOLDER), group.role.as_deref()).map_err(Failure::usage)?,
    };
    Ok(GroupFile::load(&path)?)
}

/// The group's file and the role that was asked for, or that this host has.
pub(super) fn load(group: &GroupArgs) -> Result<(GroupFile, String), Failure> {
    let file = file(group)?;
    let role = file.role(group.role.as_deref()).map_err(Failure::usage)?;
    Ok((file, role))
}

/// As a verb that only starts something does, for one that asks the daemon: a host that has lost its
/// address still has the role whose daemon's socket is there.
///
/// # Errors
/// What is wrong with the file, or that nobody knows which group or role is meant.
pub fn load_of_daemon(group: &GroupArgs) -> Result<(GroupFile, String), Failure> {
    let file = file(group)?;
    let role = file.role_of_daemon(group.role.as_deref()).map_err(Failure::usage)?;
    Ok((file, role))
}

/// The only file that gives this host a role; `None` if there is none, or are several.
pub(super) fn only_here() -> Option<PathBuf> {
    only_one(Path::new(FOLDER), None).ok()
}

/// The only file in `folder` that gives this host a role, or has the one that was asked for. One that
/// cannot be read is taken where there is no other: whoever loads it is told what is wrong with it.
fn only_one(folder: &Path, role: Option<&str>) -> Result<PathBuf, String> {
    let all = files_in(folder);
    let loaded = |path: &PathBuf| GroupFile::load(path).ok();
    let is_here = |path: &&PathBuf| loaded(path).is_some_and(|it| it.role_of_daemon(role).is_ok());
    let here: Vec<&PathBuf> = all.iter().filter(is_here).collect();
    let broken: Vec<&PathBuf> = all.iter().filter(|it| loaded(it).is_none()).collect();
    let listed = |paths: &[&PathBuf]| {
        paths.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    let folder = folder.display();
    match (&here[..], &broken[..], &all[..]) {
        ([only], ..) | ([], [only], _) => Ok((*only).clone()),
        ([], _, []) => Err(format!(
            "no group is named, and {folder} has no file of one\n  remedy: --config FILE, the group's file"
        )),
        ([], ..) => Err(format!(
            "no group is named, and no file in {folder} gives this host a role\n  remedy: --config with one \
             of: {} (on a host that has lost its address, with --role NAME)",
            listed(&all.iter().collect::<Vec<_>>())
        )),
        (several, ..) => Err(format!(
            "no group is named, and this host has a role in several\n  remedy: --config with one of: {}",
            listed(several)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_only_file_of_this_host_is_the_one_that_is_meant() {
        let folder = std::env::temp_dir().join(format!("holdfast-only-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let told = |role: Option<&str>| only_one(&folder, role);
        assert!(told(None).unwrap_err().contains("has no file of one"));
        let example = include_str!("../../../../docs/example.toml");
        let own = |name: &str| {
            let text = example.replace("[group]", &format!("[group]\nrun_dir = {folder:?}"));
            fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        fs::write(folder.join("others.toml"), example).unwrap();
        let none = told(None).unwrap_err();
        assert!(none.contains("gives this host a role") && none.contains("others.toml"), "{none}");
        fs::write(folder.join("broken.toml"), "[grup]").unwrap();
        assert_eq!(told(None), Ok(folder.join("broken.toml")), "it is told what is wrong there");
        let demo = own("demo.toml");
        // By the socket of its daemon this host knows who it is.
        fs::write(folder.join("a.sock"), "").unwrap();
        assert_eq!(told(None), Ok(demo.clone()));
        own("web.toml");
        let several = told(None).unwrap_err();
        assert!(several.contains("demo.toml, ") && several.contains("web.toml"), "{several}");
        assert!(!several.contains("others.toml"), "{several}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
