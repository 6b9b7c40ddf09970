//! A lock that ends with the process that holds it, however it ends.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Locks `path`, a file of its own that stays where it is: one that was removed
/// could be locked twice. `None` if another process holds it.
///
/// # Errors
/// As `open` and `flock`.
pub fn exclusive(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Which file it is: device and number.
#[must_use]
pub fn place(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Whether the open file is the one that stands at `path`.
#[must_use]
pub fn is_at(file: &File, path: &Path) -> bool {
    let both = file.metadata().and_then(|own| Ok((own, std::fs::metadata(path)?)));
    both.is_ok_and(|(own, found)| place(&own) == place(&found))
}
