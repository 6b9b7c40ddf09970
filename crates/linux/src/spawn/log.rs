//! The file of a server's standard output and error.

use crate::process;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Opens the server's log with the daemon's rights, in a folder where the server's
/// user may have put something else in its place: the server's output must not end
/// up in somebody else's file, nor the daemon wait for a reader of a pipe.
pub(super) fn open_log(path: &Path) -> io::Result<File> {
    open_at(path, path)
}

/// Opens the log that is called `path` at another place.
fn open_at(place: &Path, path: &Path) -> io::Result<File> {
    let named = |error: io::Error| {
        let remedy = match error.raw_os_error() {
            Some(libc::ELOOP) => "; name the place itself, without symbolic links on its way",
            _ => "",
        };
        io::Error::new(
            error.kind(),
            format!("the server's log {}: {error}{remedy}", path.display()),
        )
    };
    let file = process::open_without_links(place).map_err(named)?;
    let found = file.metadata().map_err(named)?;
    let is_pipe = found.file_type().is_fifo() || found.file_type().is_socket();
    if is_pipe || found.is_file() && found.nlink() > 1 {
        let what = if is_pipe { "it is a pipe" } else { "the file has other names, too" };
        return Err(named(io::Error::new(io::ErrorKind::InvalidInput, what)));
    }
    Ok(file)
}

/// Whether a server's log can be opened. One that is not there is tried under another name: under
/// its own it may be made by a server that starts meanwhile, and must not be removed then.
///
/// # Errors
/// Those that a start would end with.
pub fn try_log(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return open_log(path).map(drop);
    }
    let place = path.with_file_name(format!(".holdfast-{}.log", std::process::id()));
    open_at(&place, path)?;
    std::fs::remove_file(place)
}
