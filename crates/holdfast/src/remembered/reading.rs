//! The kept events, read again. Whatever else is in the files is read over.

use super::store::{check_plain, old_of};
use crate::admin::Event;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Most that is read of one file, in bytes: of a longer one, the end.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Longest line that is read, in bytes; a longer one is read over.
const LINE_BYTES_MAX: usize = 64 << 10;

/// An event, and in which of the daemon's lives it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    pub life: String,
    #[serde(flatten)]
    pub event: Event,
}

/// What the files of a daemon hold.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order in which they were written.
    pub events: Vec<Remembered>,
    /// Number of lines that were read over: they are no events.
    pub unread: u64,
}

/// Reads the events that are kept in `path` and in the older file beside it. A file that does not
/// exist has none.
///
/// # Errors
/// As open(2) and read(2), with the path.
pub fn read(path: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for file in [&old_of(path), path] {
        match read_file(file, &mut found) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", file.display())));
            }
            Ok(()) => {}
        }
    }
    Ok(found)
}

fn read_file(path: &Path, into: &mut Found) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_plain(&file)?;
    let length = file.metadata()?.len();
    let is_cut = length > FILE_BYTES_MAX;
    if is_cut {
        file.seek(SeekFrom::Start(length - FILE_BYTES_MAX))?;
    }
    let mut lines = BufReader::new(file.take(FILE_BYTES_MAX));
    if is_cut {
        next_line(&mut lines)?;
    }
    while let Some(line) = next_line(&mut lines)? {
        match serde_json::from_slice(&line) {
            Ok(event) => into.events.push(event),
            Err(_) => into.unread += u64::from(!line.is_empty()),
        }
    }
    Ok(())
}

/// The next line without its newline; a line that is too long, or not ended, is cut, and then no
/// event.
fn next_line(from: &mut BufReader<io::Take<File>>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_none() {
        from.skip_until(b'\n')?;
        // It may be whole without its end, and still be half of a longer one.
        line.truncate(1);
    }
    Ok(Some(line))
}
