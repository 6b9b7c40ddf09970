//! The two files, as the thread that writes them sees them.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How the names of the files end; that of the older one also has [`OLD`] behind it.
pub const FILE_KIND: &str = "events";
const OLD: &str = "old";
/// Most lines that wait for a disk that fails; older ones are dropped, and counted.
pub(super) const PENDING_MAX: usize = 1024;

/// Opens a file for appending.
type Open = fn(&Path) -> io::Result<File>;

/// Lines, and the files into which they go.
pub(super) struct Store {
    path: PathBuf,
    bytes_max: u64,
    open: Open,
    /// The newer file, and its length.
    file: Option<(File, u64)>,
    pending: VecDeque<Vec<u8>>,
    dropped: u64,
    /// When it is tried again, while it fails.
    again_at: Option<Instant>,
}

impl Store {
    pub fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self::with(path, bytes_max, open)
    }

    /// As [`Self::new`], with a way of its own to open a file.
    pub fn with(path: PathBuf, bytes_max: u64, open: Open) -> Self {
        let (file, pending) = (None, VecDeque::new());
        Self { path, bytes_max, open, file, pending, dropped: 0, again_at: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether nothing waits to be written.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn take(&mut self, line: Vec<u8>) {
        if self.pending.len() == PENDING_MAX && self.again_at.is_some() {
            self.pending.pop_front();
            self.dropped += 1;
        }
        self.pending.push_back(line);
    }

    /// Number of lines that were given up since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Writes what waits; after a failure only `retry` later.
    ///
    /// # Errors
    /// Why something still waits.
    pub fn write(&mut self, now: Instant, retry: Duration) -> io::Result<()> {
        if self.again_at.is_some_and(|at| now < at) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = self.write_all();
        self.again_at = written.is_err().then(|| now + retry);
        if written.is_err() {
            // What was written of a line is ended when the file is opened again.
            self.file = None;
        }
        written
    }

    fn write_all(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // Somebody may have removed it, or put another one in its place.
        let is_there = |file: &File| file.metadata().is_ok_and(|it| it.nlink() == 1);
        self.file.take_if(|(file, _)| !is_there(file));
        while let Some(line) = self.pending.front() {
            let bytes = line.len() as u64;
            let half = self.bytes_max / 2;
            if self.file.as_ref().is_some_and(|(_, length)| *length > 0 && length + bytes > half) {
                self.file = None;
                std::fs::rename(&self.path, old_of(&self.path))?;
            }
            let (file, length) = match &mut self.file {
                Some(known) => known,
                None => {
                    let file = (self.open)(&self.path)?;
                    let length = file.metadata()?.len();
                    let known = self.file.insert((file, length));
                    if known.1 > 0 && known.1 + bytes > half {
                        // What an earlier life has left is full.
                        continue;
                    }
                    known
                }
            };
            file.write_all(line)?;
            *length += bytes;
            self.pending.pop_front();
        }
        self.file.as_ref().map_or(Ok(()), |(file, _)| file.sync_data())
    }
}

/// The file that has the older events.
pub(super) fn old_of(path: &Path) -> PathBuf {
    path.with_extension(format!("{FILE_KIND}.{OLD}"))
}

/// Opens a file of events for appending, and makes it, and its folder, if there is none. A last line
/// that was not written to its end is ended.
fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut how = OpenOptions::new();
    let how = how.read(true).append(true).create(true).mode(0o640).custom_flags(flags);
    let mut file = how.open(path)?;
    check_plain(&file)?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Refuses what is no file of its own: a device, a pipe, or another name of some file.
pub(super) fn check_plain(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let why = match (found.is_file(), found.nlink()) {
        (false, _) => "it is not a regular file",
        (true, 2..) => "it has a second name (a hard link)",
        _ => return Ok(()),
    };
    Err(io::Error::other(why))
}
