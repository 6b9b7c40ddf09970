//! Output: intents, output commit, and the replica's side of a write.

use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{Mode, header, mode, threaded};
use crate::base::sys::{self, libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{conns, defer, park, report};
use crate::calls::{children, family, inherited, signals};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use holdfast_wire::hash::{hash, hash_pieces};
use holdfast_wire::log::{LAZY, NO_CONN, Op};

/// One `sendfile` is cut to this, because its content is read to be hashed.
const SENDFILE_MAX: usize = 512 << 10;
/// Pieces of one vectored write that are looked at; more are left to the caller.
const IOV_MAX: usize = 1024;

/// Flags of a send that do not change what is sent.
const PLAIN: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

type Iov = libc::iovec;

fn total(parts: &[Iov]) -> usize {
    parts.iter().map(|p| p.iov_len).sum()
}

fn hash_of(parts: &[Iov]) -> u64 {
    let pieces = parts.iter().filter(|p| p.iov_len > 0).map(|part| {
        // SAFETY: the caller handed these buffers to a write call.
        unsafe { core::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) }
    });
    hash_pieces(&header().hash_key, pieces)
}

/// Every write comes through here: `raw` performs it on the kernel. A `plain`
/// one says nothing but bytes, and may be made later.
fn output(fd: i32, parts: &[Iov], plain: bool, raw: impl Fn() -> isize) -> isize {
    match mode() {
        Mode::Pass => {
            children::touch(fd);
            family::touch(fd, "write");
            raw()
        }
        Mode::Live => inherited::outside_reset(fd).unwrap_or_else(raw),
        Mode::Record => record(fd, parts, plain, raw),
        Mode::Replay => replay(fd, parts, raw),
    }
}

/// Decision 8: the intent is in the log before the effect. The wait is for
/// every event the output could depend on; an intent depends only on those.
fn record(fd: i32, parts: &[Iov], plain: bool, raw: impl Fn() -> isize) -> isize {
    signals::deliver();
    let (len, conn) = (total(parts), conns::of_fd(fd));
    let _writing = hold_stream(fd, conn);
    intend(fd, conn, len, hash_of(parts));
    if plain && conn != NO_CONN && defer::try_keep(fd, parts, len) {
        written(fd, conn, len, len as isize);
        return len as isize;
    }
    if fds::kind(fd) != Kind::Local {
        defer::flush_fd(fd);
        log::commit();
    }
    let r = loop {
        let r = raw();
        if r != -(libc::EINTR as isize) || !signals::deliver_and_restart() {
            break r;
        }
    };
    written(fd, conn, len, r);
    r
}

/// Several threads may write to one client: what the log has in one order must
/// not reach the client in another.
fn hold_stream(fd: i32, conn: u32) -> Option<Writing> {
    if conn == NO_CONN || !threaded() {
        return None;
    }
    let word = &fds::get(fd)?.writing;
    sys::lock(word);
    Some(Writing(word))
}

struct Writing(&'static AtomicU32);

impl Drop for Writing {
    fn drop(&mut self) {
        sys::unlock(self.0);
    }
}

fn intend(fd: i32, conn: u32, len: usize, hash: u64) {
    log::append(Entry { op: Op::Intent, flags: LAZY, fd, conn, ret: len as i64, hash }, &[]);
}

fn written(fd: i32, conn: u32, len: usize, r: isize) {
    let entry = Entry { op: Op::Written, flags: 0, fd, conn, ret: r as i64, hash: 0 };
    log::append(entry.lazy_if(r == len as isize), &[]);
    if conn != NO_CONN && r > 0 {
        conns::wrote(conn, r as u64);
    }
}

fn replay(fd: i32, parts: &[Iov], raw: impl Fn() -> isize) -> isize {
    let (len, conn) = (total(parts), conns::of_fd(fd));
    let mut is_made = false;
    let intended = || is_made = make_early(fd, len, &raw);
    let accept = |accepted: isize| {
        if conn != NO_CONN {
            keep(conn, parts, accepted);
        }
    };
    let accepted = match replay_result(fd, len, || hash_of(parts), intended, accept) {
        Some(r) => r,
        None => match at_end(fd, len) {
            Some(r) => {
                accept(r);
                r
            }
            None => return inherited::outside_reset(fd).unwrap_or_else(raw),
        },
    };
    if fds::kind(fd) == Kind::Local && !is_made {
        raw();
    }
    accepted
}

/// Another thread may read from a pipe before the primary has logged that the
/// write was made; its intent is always earlier. So the replica makes a write
/// then, if it cannot block: the log stands still meanwhile.
fn make_early(fd: i32, len: usize, raw: &impl Fn() -> isize) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    threaded()
        && fds::kind(fd) == Kind::Local
        && len <= libc::PIPE_BUF
        // SAFETY: memory of ours, of the sizes that are said.
        && unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) } == 1
        && raw() >= 0
}

/// What the primary's kernel answered, after comparing what was to be written.
/// `intended` and `accept` run while the log stands at the intent and at the
/// result. `None`: the log ended before the result.
fn replay_result(
    fd: i32,
    len: usize,
    hash: impl FnOnce() -> u64,
    intended: impl FnOnce(),
    accept: impl FnOnce(isize),
) -> Option<isize> {
    let intent = log::take(Op::Intent, Call::none, fd)?;
    if intent.header.ret != len as i64 || intent.header.hash != hash() {
        report::diverged_write(fd, &intent.header, len);
    }
    intended();
    intent.done();
    let result = log::take(Op::Written, Call::none, fd)?;
    let r = result.ret();
    accept(r);
    result.done();
    Some(r)
}

/// The log ended before the result of this write. On a connection the replica
/// runs on, keeping its output, up to its first call that needs a live answer;
/// any other write is such a call. `None`: this write is live.
fn at_end(fd: i32, len: usize) -> Option<isize> {
    match fds::kind(fd) {
        Kind::Conn | Kind::Local if mode() == Mode::Replay && park::draining() => {
            Some(len as isize)
        }
        _ => {
            park::park();
            None
        }
    }
}

fn keep(conn: u32, parts: &[Iov], accepted: isize) {
    let mut left = accepted.max(0) as usize;
    for part in parts {
        let n = part.iov_len.min(left);
        if n > 0 {
            // SAFETY: as in hash_of.
            conns::keep(conn, unsafe { core::slice::from_raw_parts(part.iov_base.cast(), n) });
        }
        left -= n;
    }
}

fn one(buffer: *const u8, len: usize) -> [Iov; 1] {
    [Iov { iov_base: buffer as *mut _, iov_len: len }]
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: i32, buffer: *const u8, len: usize) -> isize {
    libc_result(write_raw(fd, buffer, len))
}

pub fn write_raw(fd: i32, buffer: *const u8, len: usize) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_write, fd, buffer, len) };
    if !fds::is_virtual(fd) { raw() } else { output(fd, &one(buffer, len), true, raw) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn writev(fd: i32, parts: *const Iov, count: i32) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_writev, fd, parts, count) };
    if !fds::is_virtual(fd) || count < 0 || count as usize > IOV_MAX {
        return libc_result(raw());
    }
    // SAFETY: the caller's vector of `count` buffers.
    let slice = unsafe { vector(parts, count as usize) };
    libc_result(output(fd, slice, true, raw))
}

unsafe fn vector<'a>(parts: *const Iov, count: usize) -> &'a [Iov] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { core::slice::from_raw_parts(parts, count) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendto(
    fd: i32,
    buffer: *const u8,
    len: usize,
    flags: i32,
    to: *const u8,
    to_len: u32,
) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_sendto, fd, buffer, len, flags, to, to_len) };
    libc_result(if !fds::is_virtual(fd) {
        raw()
    } else if is_urgent(fd, flags) {
        refuse_urgent()
    } else {
        output(fd, &one(buffer, len), PLAIN & flags == flags, raw)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn send(fd: i32, buffer: *const u8, len: usize, flags: i32) -> isize {
    // SAFETY: same contract with no address.
    unsafe { sendto(fd, buffer, len, flags, core::ptr::null(), 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_sendmsg, fd, message, flags) };
    if !fds::is_virtual(fd) {
        return libc_result(raw());
    }
    if is_urgent(fd, flags) {
        return libc_result(refuse_urgent());
    }
    // SAFETY: the caller's message and its vector.
    let parts = unsafe { vector((*message).msg_iov, (*message).msg_iovlen.min(IOV_MAX)) };
    libc_result(output(fd, parts, PLAIN & flags == flags, raw))
}

/// Whether a client is sent urgent data: a survivor could not say so again.
fn is_urgent(fd: i32, flags: i32) -> bool {
    flags & libc::MSG_OOB != 0
        && fds::kind(fd) == Kind::Conn
        && matches!(mode(), Mode::Record | Mode::Replay)
}

fn refuse_urgent() -> isize {
    report::refused("send with MSG_OOB", "send without urgent data");
    -(libc::EOPNOTSUPP as isize)
}

/// A file's bytes, read for hashing (primary) or keeping (replica). The buffer
/// is reused: mapping half a megabyte for each call would cost more than reading it.
struct Chunk {
    at: *mut u8,
    len: usize,
}

static SPARE: AtomicUsize = AtomicUsize::new(0);

impl Chunk {
    /// Up to `n` bytes of `file` at `offset` (or its own position).
    fn read(file: i32, offset: *const i64, n: usize) -> Result<Self, isize> {
        let at = match SPARE.swap(0, Relaxed) {
            0 => sys::map_anonymous(SENDFILE_MAX),
            spare => spare as *mut u8,
        };
        if at.is_null() {
            return Err(-(libc::ENOMEM as isize));
        }
        // SAFETY: a non-null offset points to the caller's off_t.
        let from = if offset.is_null() {
            sys!(SYS_lseek, file, 0, libc::SEEK_CUR) as i64
        } else {
            unsafe { *offset }
        };
        // SAFETY: a mapping of at least this size.
        let r = unsafe { syscall!(SYS_pread64, file, at, n.min(SENDFILE_MAX), from) };
        let chunk = Self { at, len: r.max(0) as usize };
        if r < 0 { Err(r) } else { Ok(chunk) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping were filled by pread.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let other = SPARE.swap(self.at as usize, Relaxed);
        if other != 0 {
            sys::unmap(other as *mut u8, SENDFILE_MAX);
        }
    }
}

fn advance(file: i32, offset: *mut i64, n: isize) {
    if n <= 0 {
        return;
    }
    if offset.is_null() {
        sys!(SYS_lseek, file, n, libc::SEEK_CUR);
    } else {
        // SAFETY: the caller's off_t.
        unsafe { *offset += n as i64 };
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = |n: usize| unsafe { syscall!(SYS_sendfile, out, file, offset, n) };
    if !fds::is_virtual(out) || matches!(mode(), Mode::Pass) {
        children::touch(out);
        family::touch(out, "sendfile");
        return libc_result(raw(count));
    }
    libc_result(match mode() {
        Mode::Record | Mode::Replay => match Chunk::read(file, offset, count) {
            Ok(chunk) if mode() == Mode::Record => sendfile_record(out, file, offset, &chunk, raw),
            Ok(chunk) => sendfile_replay(out, file, offset, &chunk, raw),
            Err(errno) => errno,
        },
        _ => inherited::outside_reset(out).unwrap_or_else(|| raw(count)),
    })
}

fn sendfile_record(
    out: i32,
    file: i32,
    offset: *mut i64,
    chunk: &Chunk,
    raw: impl Fn(usize) -> isize,
) -> isize {
    signals::deliver();
    let (conn, len) = (conns::of_fd(out), chunk.len);
    let _writing = hold_stream(out, conn);
    intend(out, conn, len, hash(&header().hash_key, chunk.bytes()));
    if conn != NO_CONN && defer::try_keep(out, &one(chunk.at, len), len) {
        advance(file, offset, len as isize);
        written(out, conn, len, len as isize);
        return len as isize;
    }
    defer::flush_fd(out);
    log::commit();
    let r = raw(len);
    written(out, conn, len, r);
    r
}

fn sendfile_replay(
    out: i32,
    file: i32,
    offset: *mut i64,
    chunk: &Chunk,
    raw: impl Fn(usize) -> isize,
) -> isize {
    let key = &header().hash_key;
    let accept = |r: isize| {
        if conns::of_fd(out) != NO_CONN && r > 0 {
            conns::keep(conns::of_fd(out), &chunk.bytes()[..r as usize]);
        }
    };
    let r = match replay_result(out, chunk.len, || hash(key, chunk.bytes()), || {}, accept) {
        Some(r) => r,
        None => match at_end(out, chunk.len) {
            Some(r) => {
                accept(r);
                r
            }
            None => return inherited::outside_reset(out).unwrap_or_else(|| raw(chunk.len)),
        },
    };
    advance(file, offset, r);
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile64(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the same call on a 64-bit system.
    unsafe { sendfile(out, file, offset, count) }
}
