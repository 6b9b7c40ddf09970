//! The content of files that influence what the server computes: its configuration with everything
//! that it includes, scripts, data, modules. Each member has its own copy, and the copies must be
//! equal (decision 25): the primary logs a keyed hash, and the replica compares it with its own.

use crate::base::state::{Mode, header, mode};
use crate::base::sys::{self, syscall};
use crate::base::{conns, report};
use core::ffi::CStr;
use core::ops::Range;
use holdfast_wire::hash::{Secrets, StreamHash};

/// Most bytes of a file that are compared; of a longer file only these first bytes and its length
/// are.
const FILE_BYTES_MAX: u64 = 64 << 20;
const CHUNK_BYTES: usize = 64 << 10;

/// Paths whose content differs between machines by nature, so that it is not compared.
const OF_THE_MACHINE: [&[u8]; 9] = [
    b"/etc/hostname",
    b"/etc/hosts",
    b"/etc/localtime",
    b"/etc/machine-id",
    b"/etc/resolv.conf",
    b"/etc/timezone",
    b"/run/utmp",
    b"/var/lib/dbus/machine-id",
    b"/var/run/utmp",
];
const FOLDERS_OF_THE_MACHINE: [&[u8]; 3] = [b"/dev/", b"/run/systemd/", b"/var/run/systemd/"];
/// Endings of files that are not compared: those that a server writes for others and may read when
/// it starts, and Python's compiled modules, which contain their source's modification time.
const WRITTEN: [&[u8]; 3] = [b".log", b".pid", b".pyc"];

/// A file's hash as a record carries it; `None` if the file is not compared.
pub type Content = Option<[u8; 8]>;

/// A [`Content`] as the payload of a record.
pub fn payload(content: &Content) -> &[u8] {
    content.as_ref().map_or(&[], |hash| hash)
}

/// Whether the members compare a file that is opened now and in this way: only while the server is
/// starting and reads its own files. What it reads after its first client has come may be large
/// and many: documents, and data that it has written itself.
pub fn is_compared(path: *const u8, flags: i32) -> bool {
    const NOT_READ: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_DIRECTORY | libc::O_PATH;
    matches!(mode(), Mode::Record | Mode::Replay)
        && !conns::any()
        && flags & NOT_READ == 0
        && !is_of_the_machine(path)
}

fn is_of_the_machine(path: *const u8) -> bool {
    // SAFETY: the server's path string.
    let path = unsafe { CStr::from_ptr(path.cast()) }.to_bytes();
    OF_THE_MACHINE.contains(&path)
        || FOLDERS_OF_THE_MACHINE.iter().any(|folder| path.starts_with(folder))
        || WRITTEN.iter().any(|end| path.ends_with(end))
}

/// Hash of an open file's content; `None` if it is no regular file. The
/// position in the file stays. A failed read is part of the hash.
pub fn of(fd: i32) -> Content {
    let stat = sys::stat(fd).filter(sys::is_regular)?;
    let secrets = Secrets::new(&header().hash_key);
    let mut hash = StreamHash::new(&secrets);
    let end = feed(fd, 0..FILE_BYTES_MAX.min(stat.st_size as u64), |bytes| hash.update(bytes));
    hash.update(&stat.st_size.to_le_bytes());
    hash.update(&(end as i64).to_le_bytes());
    Some(hash.finish().to_le_bytes())
}

/// Passes the bytes of a file in `range`, as far as there are any, to `take`. Returns 0, or `-errno` of
/// a failed read.
pub(super) fn feed(fd: i32, range: Range<u64>, mut take: impl FnMut(&[u8])) -> isize {
    let chunk = sys::map_anonymous(CHUNK_BYTES);
    if chunk.is_null() {
        return -(libc::ENOMEM as isize);
    }
    let Range { start: mut at, end: last } = range;
    let end = loop {
        if at >= last {
            break 0;
        }
        // SAFETY: a mapping of this size.
        let r = unsafe { syscall!(SYS_pread64, fd, chunk, CHUNK_BYTES, at) };
        if r == -(libc::EINTR as isize) {
            continue;
        }
        if r <= 0 {
            break r;
        }
        let n = (r as u64).min(last - at);
        // SAFETY: pread has filled at least `n` bytes of the mapping.
        take(unsafe { core::slice::from_raw_parts(chunk, n as usize) });
        at += n;
    };
    sys::unmap(chunk, CHUNK_BYTES);
    end
}

/// On the replica: checks that the file's content is what the primary's record says. `what` names
/// the kind of file in the report.
pub fn compare(what: &str, path: *const u8, here: &Content, there: &[u8]) {
    if payload(here) == there {
        return;
    }
    let how = match (here, there.len()) {
        (Some(_), 0) => "is a regular file on the backup only: make it equal",
        (None, 8) => "is a regular file on the primary only: make it equal",
        (Some(_), 8) => "differs between the members: make it equal",
        _ => "was logged by another release: run the same one on both members",
    };
    report::diverged_file(what, path, how)
}
