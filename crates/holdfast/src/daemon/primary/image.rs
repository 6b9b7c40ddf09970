//! The image of a server that speaks alone, for the member that joins it.

use holdfast_linux::process;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::snapshot::{Options, Preparation};
use holdfast_linux::spawn::Server;
use holdfast_member::primary::{Book, Image};
use holdfast_wire::hash::HashKey;
use holdfast_wire::message::clip;
use holdfast_wire::snapshot::{Books, Description, FileKind, Limits, OpenFile};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, io};

/// How long a server may stand still for its image; its clients wait.
const FREEZE_MAX: Duration = Duration::from_millis(100);
/// Rounds in which what has changed is copied while it runs, and how few pages end them.
const ROUNDS_MAX: usize = 6;
const FEW_PAGES: u64 = 256;
/// Of the memory that is free, the part that an image may take: it is held twice for a
/// moment.
const FREE_PART: u64 = 3;

/// An image on its way.
pub struct Outgoing {
    pub bytes: Vec<u8>,
    books: Books,
}

/// Takes it: the server's log begins there.
///
/// # Errors
/// In words; the server runs on as before.
pub fn take(server: &Server, key: HashKey) -> Result<Outgoing, String> {
    let said = |error: holdfast_linux::snapshot::SnapshotError| error.to_string();
    let external = server.external().map_err(said)?;
    refuse_written(&written_now(server.pid()).map_err(|error| error.to_string())?)?;
    let free = process::memory_available().map_err(|error| error.to_string())?;
    let limits = Limits { memory_bytes: free / FREE_PART, ..Limits::default() };
    let options = Options { key, limits, freeze_max: FREEZE_MAX, external };
    let begin = || Preparation::begin(server.pid(), &options);
    let mut preparation = process::at_leisure(begin).map_err(said)?;
    // All but the freeze is done at leisure: meanwhile the server serves.
    process::at_leisure(|| {
        for _ in 0..ROUNDS_MAX {
            if preparation.round().map_err(said)?.is_none_or(|pages| pages < FEW_PAGES) {
                break;
            }
        }
        Ok::<(), String>(())
    })?;
    let snapshot = preparation.freeze(&mut server.stand_still()).map_err(said)?;
    let begun = || {
        refuse_written(&written(snapshot.description()))?;
        let books = snapshot.description().books.clone();
        let books = books.ok_or("the server's memory says nothing of its connections")?;
        let write = || snapshot.write(Vec::new(), &options);
        let bytes = process::at_leisure(write).map_err(said)?;
        Ok(Outgoing { bytes, books })
    };
    // Nobody follows the log.
    begun().inspect_err(|_: &String| server.memory.go_solo())
}

/// What a server writes into files is not the other host's: that has its own, as they were
/// when its member was last a backup. Logs that are only appended to may differ.
fn refuse_written(files: &BTreeSet<PathBuf>) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "the server has files open that it writes, which do not go over: {}; switch its \
         persistence to files that it closes again, or restart both members at a quiet moment",
        clip(&names.join(", "))
    ))
}

/// Standard input, output and error, which the copy's daemon sees to.
const STANDARD: std::ops::Range<u32> = 0..3;

/// Regular files that a process has open for writing.
fn written_now(pid: u32) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number| !STANDARD.contains(number)) else { continue };
        // One that has just been closed is none.
        let Ok(path) = fs::read_link(entry.path()) else { continue };
        // One without a name goes over with the image.
        let is_named = |found: &fs::Metadata| found.is_file() && found.nlink() > 0;
        let is_file = || fs::metadata(entry.path()).is_ok_and(|found| is_named(&found));
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
        let flags = info.ok().and_then(|info| flags(&info));
        if path.is_absolute() && is_file() && flags.is_some_and(|flags| is_state(&path, flags)) {
            files.insert(path);
        }
    }
    Ok(files)
}

/// A descriptor's flags, as `/proc` has them.
fn flags(info: &str) -> Option<u32> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
}

/// Whether a file that is open so holds what the server may read again.
fn is_state(path: &Path, flags: u32) -> bool {
    let writes = flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned();
    let appends = flags & libc::O_APPEND.cast_unsigned() != 0;
    let is_log = path.starts_with("/var/log") || path.extension().is_some_and(|it| it == "log");
    writes && !(appends && is_log)
}

/// The same, of an image; devices are none.
fn written(of: &Description) -> BTreeSet<PathBuf> {
    let standard = |file: usize| {
        let of_file = of.descriptors.iter().filter(|it| it.file as usize == file);
        of_file.clone().count() > 0 && of_file.clone().all(|it| STANDARD.contains(&it.number))
    };
    let path = |(number, file): (usize, &OpenFile)| match &file.kind {
        FileKind::Path { path, .. } if !standard(number) => {
            let path = PathBuf::from(OsStr::from_bytes(path));
            let is_file = || path.metadata().is_ok_and(|found| found.is_file());
            (is_state(&path, file.flags) && is_file()).then_some(path)
        }
        _ => None,
    };
    of.files.iter().enumerate().filter_map(path).collect()
}

impl Outgoing {
    pub fn image(&self) -> Image {
        Image { log_from: self.books.log_from, bytes: self.bytes.len() as u64 }
    }

    pub fn books(&self, memory: &SharedMemory) -> Vec<Book> {
        let book = |it: &holdfast_wire::snapshot::Connection| {
            let entry = memory.entry(it.conn);
            let socket = entry.socket.load(Relaxed);
            // Its place may have got another connection since, and with it its name.
            (entry.conn.load(Relaxed) == it.conn).then_some(Book {
                accept: it.conn,
                socket,
                in_bytes: it.in_bytes,
                out_bytes: it.out_bytes,
                eof: it.eof != 0,
                shut: it.shut & 1 != 0,
                closed: it.state != holdfast_wire::shm::conn_state::OPEN,
            })
        };
        self.books.connections.iter().filter_map(book).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_that_are_appended_to_may_differ() {
        let (write, append) = (libc::O_WRONLY as u32, (libc::O_WRONLY | libc::O_APPEND) as u32);
        for (path, flags, expected) in [
            ("/etc/mime.types", libc::O_RDONLY as u32, false),
            ("/srv/error.log", append, false),
            ("/var/log/nginx/access", append, false),
            ("/srv/error.log", write, true),
            ("/srv/appendonly.aof", append, true),
            ("/srv/db", libc::O_RDWR as u32, true),
        ] {
            assert_eq!(is_state(Path::new(path), flags), expected, "{path}");
        }
    }

    #[test]
    fn what_this_process_writes_is_found() {
        let path = std::env::temp_dir().join(format!("holdfast-state-{}", std::process::id()));
        let file = fs::File::create(&path).expect("a file");
        assert!(written_now(std::process::id()).expect("a list").contains(&path));
        drop(file);
        assert!(!written_now(std::process::id()).expect("a list").contains(&path));
        fs::remove_file(&path).expect("it was there");
        assert_eq!(flags("pos:\t0\nflags:\t02100001\nmnt_id:\t1\n"), Some(0o2_100_001));
        assert_eq!((flags("pos:\t0\n"), flags("flags: x")), (None, None));
    }
}
