//! A group's file and key on this host: first as hidden files beside their places, then both at
//! once under their names, or neither.

use super::meeting::Lack;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Where a group's files go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    folder: PathBuf,
    pub file: PathBuf,
    pub key: PathBuf,
    /// Whether files that are there are replaced.
    force: bool,
}

/// Files that are written and have no names yet. They go when this does.
pub struct Staged {
    places: Places,
}

impl Places {
    /// The files of the group `name`, which must be a valid name, in `folder`.
    #[must_use]
    pub fn new(folder: &Path, name: &str, force: bool) -> Self {
        let of = |ending: &str| folder.join(format!("{name}.{ending}"));
        Self { folder: folder.to_owned(), file: of("toml"), key: of("key"), force }
    }

    /// Where both are, and the files of other groups.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is there already and is not to be replaced.
    #[must_use]
    pub fn occupied(&self) -> Option<Lack> {
        let there = [&self.file, &self.key].into_iter().find(|it| it.symlink_metadata().is_ok());
        there.filter(|_| !self.force).map(|path| {
            Lack::new(
                format!("{} is there already", path.display()),
                "choose another name for the group, or say --force to replace it and its key",
            )
        })
    }

    /// Writes both beside their places, down to the disk.
    ///
    /// # Errors
    /// What is in the way.
    pub fn stage(&self, text: &str, key: &str) -> Result<Staged, Lack> {
        if let Some(lack) = self.occupied() {
            return Err(lack);
        }
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.folder);
        let staged = Staged { places: self.clone() };
        made.and_then(|()| write(&hidden(&self.file), text, 0o644))
            .and_then(|()| write(&hidden(&self.key), key, 0o600))
            .map_err(|error| {
                let folder = self.folder.display();
                Lack::new(
                    format!("no file can be written in {folder}: {error}"),
                    "look at its mode and its file system, or choose another folder (--directory)",
                )
            })?;
        Ok(staged)
    }
}

impl Staged {
    /// Gives both their names.
    ///
    /// # Errors
    /// As link(2) and rename(2): neither has appeared, and what was there is there again, unless the
    /// error says otherwise. As fsync(2), when both have.
    pub fn commit(self) -> io::Result<()> {
        let Places { file, key, folder, force } = &self.places;
        let earlier = if *force { set_aside(key)? } else { None };
        let name = |to: &Path| match force {
            true => fs::rename(hidden(to), to),
            // Unlike a rename, this replaces nothing that has appeared meanwhile.
            false => fs::hard_link(hidden(to), to),
        };
        if let Err(error) = name(key) {
            let _the_key_itself_stays = earlier.map(fs::remove_file);
            return Err(error);
        }
        if let Err(error) = name(file) {
            return Err(withdraw(key, earlier.as_deref(), error));
        }
        // Where it stays, the next attempt removes it.
        let _worth_nothing = earlier.map(fs::remove_file);
        File::open(folder)?.sync_all()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for path in [&self.places.file, &self.places.key] {
            // After a commit by renaming they are gone.
            let _ = fs::remove_file(hidden(path));
        }
    }
}

fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

/// Gives what is there a second name, from which it can come back.
fn set_aside(path: &Path) -> io::Result<Option<PathBuf>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.old"));
    // Of an attempt that was ended in between.
    remove(&aside)?;
    match fs::hard_link(path, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes a key back that has its name already, and says so if that cannot be.
fn withdraw(key: &Path, earlier: Option<&Path>, why: io::Error) -> io::Error {
    let undone = match earlier {
        Some(earlier) => fs::rename(earlier, key),
        None => fs::remove_file(key),
    };
    let Err(error) = undone else { return why };
    let earlier = earlier.map(|it| format!("; the earlier one is {}", it.display()));
    io::Error::new(
        why.kind(),
        format!(
            "{why}; {} is a new key already, and stays so ({error}){}",
            key.display(),
            earlier.unwrap_or_default()
        ),
    )
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    remove(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let own = format!("holdfast-files-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(own).join("etc"))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
            let mut all: Vec<String> =
                entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
            all.sort();
            all
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.parent().unwrap_or(&self.0));
        }
    }

    #[test]
    fn both_appear_or_neither() {
        let folder = Folder::new("both");
        let places = Places::new(&folder.0, "demo", false);
        drop(places.stage("text", "key").expect("a folder"));
        assert_eq!(folder.names(), Vec::<String>::new(), "nobody has said commit");
        places.stage("text", "key").expect("a folder").commit().expect("names");
        assert_eq!(folder.names(), ["demo.key", "demo.toml"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&places.key), mode(&places.file)), (0o600, 0o644));
    }

    #[test]
    fn what_is_there_is_replaced_only_by_force() {
        let folder = Folder::new("force");
        let places = Places::new(&folder.0, "demo", false);
        let staged = places.stage("new", "new").expect("a folder");
        fs::write(&places.file, "old").unwrap();
        assert!(staged.commit().is_err(), "it has appeared meanwhile");
        assert_eq!(folder.names(), ["demo.toml"], "the key is gone with it");
        assert!(places.occupied().is_some_and(|it| it.remedy.contains("--force")));
        assert!(places.stage("new", "new").is_err());
        let forced = Places::new(&folder.0, "demo", true);
        forced.stage("new", "key").expect("a folder").commit().expect("names");
        assert_eq!(fs::read_to_string(&places.file).unwrap(), "new");
        assert_eq!(folder.names(), ["demo.key", "demo.toml"]);
    }

    /// A folder cannot be replaced by a file: the key is named, and its file is not.
    #[test]
    fn a_key_whose_file_is_not_named_goes_back() {
        let folder = Folder::new("back");
        let places = Places::new(&folder.0, "demo", true);
        fs::create_dir_all(&places.file).unwrap();
        for earlier in [None, Some("old")] {
            if let Some(text) = earlier {
                fs::write(&places.key, text).unwrap();
            }
            assert!(places.stage("new", "new").expect("a folder").commit().is_err());
            assert_eq!(fs::read_to_string(&places.key).ok().as_deref(), earlier);
            let names = folder.names();
            assert_eq!(names.last().map(String::as_str), Some("demo.toml"));
            assert_eq!(names.len(), 1 + usize::from(earlier.is_some()), "{names:?}");
        }
        fs::remove_dir(&places.file).unwrap();
        places.stage("new", "new").expect("a folder").commit().expect("names");
        assert_eq!(fs::read_to_string(&places.key).unwrap(), "new");
        assert_eq!(folder.names(), ["demo.key", "demo.toml"]);
    }

    /// Whoever reads the error knows which key is which.
    #[test]
    fn a_key_that_cannot_go_back_is_named() {
        let gone = Path::new("/nonexistent/.demo.key.old");
        let why = io::Error::other("no room");
        let told = withdraw(Path::new("/nonexistent/demo.key"), Some(gone), why).to_string();
        assert!(told.starts_with("no room; /nonexistent/demo.key is a new key"), "{told}");
        assert!(told.ends_with("the earlier one is /nonexistent/.demo.key.old"), "{told}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said() {
        let places = Places::new(Path::new("/proc/holdfast"), "demo", false);
        let lack = places.stage("text", "key").err().expect("nobody writes there");
        assert!(lack.what.contains("/proc/holdfast") && lack.remedy.contains("--directory"));
    }
}
