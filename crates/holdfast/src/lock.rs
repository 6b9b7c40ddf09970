//! A lock that ends with the process that holds it, however it ends.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The lock, for as long as this lives: a child that has not run its program yet still has the open
/// file, and would hold the lock with it.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _as_it_ends_anyway = self.0.unlock();
    }
}

impl Lock {
    /// Whether what is locked is the file at `path`.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        is_at(&self.0, path)
    }
}

/// Locks `path`, a file of its own that stays where it is: a removed file could
/// be locked twice. `None` if another process holds the lock.
///
/// # Errors
/// As `open` and `flock`.
pub fn exclusive(path: &Path) -> io::Result<Option<Lock>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    // A pipe that somebody has put there waits for no reader: it is refused. So is a link, since
    // the folder may be one in which others make files (`/tmp`).
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Device and number of a file.
#[must_use]
pub fn place(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Whether the open file is the one at `path`.
#[must_use]
pub fn is_at(file: &File, path: &Path) -> bool {
    let both = file.metadata().and_then(|own| Ok((own, std::fs::metadata(path)?)));
    both.is_ok_and(|(own, found)| place(&own) == place(&found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_pipe_in_its_place_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("hf-lock-{}", std::process::id()));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let refused = exclusive(&path);
        std::fs::remove_file(&path).expect("it is there");
        assert!(refused.is_err());
        let _ = exclusive(&path).expect("a file").expect("nobody else's");
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_child_that_has_the_open_file_too_holds_no_lock() {
        let path = std::env::temp_dir().join(format!("hf-lock-child-{}", std::process::id()));
        let lock = exclusive(&path).expect("a file").expect("nobody else's");
        let a_childs = lock.0.try_clone().expect("descriptors are there");
        assert!(exclusive(&path).expect("a file").is_none());
        drop(lock);
        assert!(exclusive(&path).expect("a file").is_some());
        drop(a_childs);
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let path = std::env::temp_dir().join(format!("hf-lock-link-{}", std::process::id()));
        let target = path.with_extension("target");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        let refused = exclusive(&path);
        std::fs::remove_file(&path).expect("it is there");
        assert!(refused.is_err() && !target.exists(), "{refused:?}");
    }
}
