//! Which programs can be in the log when a process of a family becomes one (decision 33). The
//! loader must load the shim into them, so they must be dynamically linked and gain no privileges
//! by being run.

use crate::base::sys::{self, sys, syscall};

/// Longest chain of interpreters that is followed: a script's interpreter may be a script itself.
const INTERPRETERS_MAX: u32 = 4;
/// Longest path in bytes, with the terminating null.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Bytes of a file that are read: the kernel reads no more of a script's first line.
const HEAD_BYTES: usize = 256;
/// Offsets in an ELF header of its class, its machine, and place and number of program headers.
const CLASS_AT: usize = 4;
const MACHINE_AT: usize = 18;
const HEADERS_AT: usize = 32;
const HEADERS_LEN_AT: usize = 56;
const CLASS_64: u8 = 2;
const MACHINE_X86_64: u16 = 62;
/// Size of a program header, in bytes.
const HEADER_BYTES: usize = 56;
/// Most program headers that are read.
const HEADERS_MAX: usize = 64;
/// Folders in which programs are searched if `PATH` is not set.
const USUAL_PLACES: &[u8] = b"/bin:/usr/bin";

/// What happens to a process that is to become a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: there is no such program.
    Nothing,
    /// It stays in the log.
    Followed,
    /// It leaves the log.
    Apart,
}

/// A path, which ends with a null.
type Path = [u8; PATH_BYTES];

fn path_of(parts: &[&[u8]]) -> Option<Path> {
    let mut path = [0; PATH_BYTES];
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let bytes = parts.iter().flat_map(|part| part.iter());
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    (len < PATH_BYTES).then_some(path)
}

/// What happens to a process that runs the program of this name, searched in `places` if those are
/// given, with the library `shim` loaded into it.
pub fn look(name: &[u8], places: Option<&[u8]>, shim: &[u8]) -> Next {
    let gains = || {
        // If real and effective ids differ, the loader ignores `LD_PRELOAD`.
        let ids = ids();
        ids[0] != ids[1] || ids[2] != ids[3]
    };
    let found = match places.filter(|_| !name.contains(&b'/')) {
        None => path_of(&[name]).map_or(Next::Nothing, |path| look_at(&path, INTERPRETERS_MAX)),
        Some(places) => {
            let mut all = places.split(|c| *c == b':').filter_map(|place| {
                let between: &[u8] = if place.is_empty() { b"" } else { b"/" };
                path_of(&[place, between, name])
            });
            all.find_map(|path| {
                let next = look_at(&path, INTERPRETERS_MAX);
                (next != Next::Nothing).then_some(next)
            })
            .unwrap_or(Next::Nothing)
        }
    };
    let is_reachable = || path_of(&[shim]).is_some_and(|path| is_executable(&path, libc::R_OK));
    match found {
        Next::Followed if gains() || !is_reachable() => Next::Apart,
        next => next,
    }
}

/// The places in which a program is looked for, by the variable's value.
pub fn places(value: Option<&'static [u8]>) -> &'static [u8] {
    value.unwrap_or(USUAL_PLACES)
}

/// Real and effective user, and group.
fn ids() -> [u32; 4] {
    let mut ids = [0u32; 6];
    let at = ids.as_mut_ptr();
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe {
        syscall!(SYS_getresuid, at, at.add(1), at.add(2));
        syscall!(SYS_getresgid, at.add(3), at.add(4), at.add(5));
    }
    [ids[0], ids[1], ids[3], ids[4]]
}

fn is_executable(path: &Path, rights: i32) -> bool {
    let at = (libc::AT_FDCWD, path.as_ptr());
    // SAFETY: a string of ours.
    unsafe { syscall!(SYS_faccessat2, at.0, at.1, rights, libc::AT_EACCESS) == 0 }
}

fn look_at(path: &Path, interpreters: u32) -> Next {
    if !is_executable(path, libc::X_OK) || interpreters == 0 {
        return Next::Nothing;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a string of ours.
    let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        // It may be executed but not read.
        return Next::Apart;
    }
    let next = look_into(fd as i32, interpreters);
    sys!(SYS_close, fd);
    next
}

fn look_into(fd: i32, interpreters: u32) -> Next {
    let mut head = [0u8; HEAD_BYTES];
    let n = read_at(fd, &mut head, 0);
    let head = &head[..n];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|c| *c == b'\n').next().unwrap_or_default();
        let mut words = line.split(|c| *c == b' ' || *c == b'\t').filter(|word| !word.is_empty());
        let interpreter = words.next().and_then(|word| path_of(&[word]));
        return interpreter.map_or(Next::Nothing, |path| look_at(&path, interpreters - 1));
    }
    if !head.starts_with(b"\x7fELF") {
        // A folder or an empty file; or a text that only a shell would run as a script.
        return if n == 0 { Next::Nothing } else { Next::Apart };
    }
    if is_dynamic(fd, head) && !gains_rights(fd) { Next::Followed } else { Next::Apart }
}

fn read_at(fd: i32, into: &mut [u8], at: u64) -> usize {
    // SAFETY: memory of ours, of the sizes that are said.
    let n = unsafe { syscall!(SYS_pread64, fd, into.as_mut_ptr(), into.len(), at) };
    n.max(0) as usize
}

/// Whether this is an ELF file for this machine that the dynamic loader runs.
fn is_dynamic(fd: i32, head: &[u8]) -> bool {
    let word = |at: usize| head.get(at..)?.first_chunk().copied().map(u16::from_le_bytes);
    let long = |at: usize| head.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
    let is_own = head.get(CLASS_AT) == Some(&CLASS_64) && word(MACHINE_AT) == Some(MACHINE_X86_64);
    let (Some(at), Some(count), true) = (long(HEADERS_AT), word(HEADERS_LEN_AT), is_own) else {
        return false;
    };
    let mut headers = [0u8; HEADERS_MAX * HEADER_BYTES];
    let n = read_at(fd, &mut headers, at);
    let kind = |header: &[u8]| header.first_chunk().copied().map(u32::from_le_bytes);
    let all = headers[..n].chunks_exact(HEADER_BYTES).take(usize::from(count));
    all.filter_map(kind).any(|kind| kind == libc::PT_INTERP)
}

/// Whether running the file gives another user's rights, or capabilities.
fn gains_rights(fd: i32) -> bool {
    let gives = |found: libc::stat| found.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    let name = c"security.capability".as_ptr();
    // SAFETY: a string of ours, and no room to fill.
    let capabilities = unsafe { syscall!(SYS_fgetxattr, fd, name, 0usize, 0usize) };
    sys::stat(fd).is_none_or(gives) || capabilities >= 0
}

#[cfg(all(test, not(miri)))]
mod tests;
