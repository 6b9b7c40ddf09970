//! Records of groups on a disk, one file each: what a witness has granted, and the newest that a
//! member has seen.

use anyhow::{Context as _, Result, anyhow};
use holdfast_cluster::arbiter::stored::{GROUP_BYTES_MAX, GroupState};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The record in a file; `None` if there is no such file.
///
/// # Errors
/// When it cannot be read, or is none; `remedy` helps there.
pub fn read(path: &Path, remedy: &str) -> Result<Option<GroupState>> {
    let shown = || path.display().to_string();
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(shown)?,
    };
    let mut bytes = Vec::new();
    file.take(GROUP_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(shown)?;
    let state = GroupState::parse(&bytes);
    state
        .map(Some)
        .map_err(|error| anyhow!("{} is damaged: {error}; remedy: {remedy}", path.display()))
}

/// Puts `bytes` in the place of the file at once, and waits until the disk has them. Returns the
/// file itself, because a moment later another one may be at `path`.
///
/// # Errors
/// As the file system says.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let fresh = beside(path, ".new");
    let mut options = File::options();
    // What is there is an unfinished one, or a link or file that somebody else has put there.
    let _absent = fs::remove_file(&fresh);
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(folder)?.sync_all()?;
    Ok(file)
}

/// The file whose name is that of `path` and this ending: it is no other file's, whatever endings
/// these have.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
