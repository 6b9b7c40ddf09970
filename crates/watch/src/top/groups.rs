//! Which daemons are watched: one for each file of a group that has a role on this host.

use super::clean;
use anyhow::{Result, bail};
use holdfast::config::{FOLDER, GroupFile, files_in};
use std::path::{Path, PathBuf};

/// Most groups that are watched at once.
pub const GROUPS_MAX: usize = 64;

/// A daemon of this host, or a file that does not lead to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the group; of a file that cannot be read, its own.
    pub name: String,
    /// The daemon's admin socket, or what is wrong with the file, in the file's own words.
    pub socket: Result<PathBuf, String>,
}

impl Place {
    fn of(path: &Path, role: Option<&str>) -> Self {
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        let wrong = |error: String| Self { name: clean::text(&stem), socket: Err(error) };
        let file = match GroupFile::load(path) {
            Ok(file) => file,
            Err(errors) => return wrong(errors.to_string()),
        };
        match file.role_of_daemon(role) {
            Ok(role) => {
                Self { name: clean::text(file.name()), socket: Ok(file.admin_socket(&role)) }
            }
            Err(error) => wrong(format!("{}: {error}", path.display())),
        }
    }
}

/// The daemons of the files that were asked for, or of all files of this host.
///
/// # Errors
/// If there is nothing to watch, with what to do about it.
pub fn find(asked: &[PathBuf], role: Option<&str>) -> Result<Vec<Place>> {
    if asked.len() > GROUPS_MAX {
        bail!("{} files\n  remedy: watch {GROUPS_MAX} groups at most", asked.len());
    }
    if !asked.is_empty() {
        return Ok(asked.iter().map(|path| Place::of(path, role)).collect());
    }
    let mut here = of_host(Path::new(FOLDER));
    here.truncate(GROUPS_MAX);
    if here.is_empty() {
        bail!(
            "no file in {FOLDER} names this host\n  remedy: say which group: holdfast top --config FILE \
             (on a host that has lost its address, with --role NAME)"
        );
    }
    Ok(here)
}

/// All files in `folder` that give this host a role, and those that cannot be read: a mistake in
/// one is not passed over.
fn of_host(folder: &Path) -> Vec<Place> {
    let is_of_others =
        |path: &PathBuf| GroupFile::load(path).is_ok_and(|file| file.role_of_daemon(None).is_err());
    let files = files_in(folder);
    files.iter().filter(|path| !is_of_others(path)).map(|path| Place::of(path, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/example.toml");

    #[test]
    fn files_of_other_hosts_are_left_out_and_broken_ones_are_not() {
        let folder = std::env::temp_dir().join(format!("holdfast-top-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("others.toml"), EXAMPLE).unwrap();
        std::fs::write(folder.join("broken.toml"), "[grup]\n").unwrap();
        std::fs::write(folder.join("notes.txt"), "no file of a group").unwrap();
        let found = of_host(&folder);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].name, "broken");
        assert!(found[0].socket.as_ref().unwrap_err().contains("broken.toml"));
        let asked = find(&[folder.join("others.toml")], Some("a")).unwrap();
        assert_eq!(asked[0].name, "demo");
        assert!(asked[0].socket.as_ref().is_ok_and(|it| it.ends_with("a.sock")));
        let strange = find(&[folder.join("others.toml")], Some("z")).unwrap();
        assert!(strange[0].socket.as_ref().unwrap_err().contains("there is no role `z`"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
