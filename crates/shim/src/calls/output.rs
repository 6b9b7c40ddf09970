//! Output: the record of a write before it is made (its intent), output commit, and the replica's
//! side of a write.

use crate::base::commit;
use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, header, mode, threaded};
use crate::base::sys::{self, libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{conns, defer, park, quiet, report, robust, token};
use crate::calls::{children, family, inherited, signals};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use holdfast_wire::hash::{hash, hash_pieces};
use holdfast_wire::log::{LAZY, NO_CONN, Op};

/// Most bytes of one `sendfile`: its content is read into memory to be hashed.
const SENDFILE_MAX: usize = 512 << 10;
/// Most pieces of one vectored write; the kernel takes no more.
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

/// Makes a write; every write passes here. `raw` is the system call. A `plain` write consists of
/// nothing but bytes, and may be deferred.
fn output(fd: i32, parts: &[Iov], plain: bool, raw: impl Fn() -> isize) -> isize {
    quiet::call(|call| match mode() {
        Mode::Pass => {
            children::touch(fd);
            family::touch(fd, "write");
            Some(raw())
        }
        Mode::Record => record(call, fd, parts, plain, &raw),
        Mode::Replay => replay(fd, parts, &raw),
    })
}

/// A write on the primary. Its intent is in the log before its effect (decision 8). It waits for
/// every event that the output could depend on; the intent itself need not be confirmed.
fn record(
    call: &quiet::Call,
    fd: i32,
    parts: &[Iov],
    plain: bool,
    raw: impl Fn() -> isize,
) -> Option<isize> {
    signals::deliver();
    let (len, conn) = (total(parts), conns::of_fd(fd));
    let _writing = hold_stream(call, conn)?;
    let write = Write { fd, conn, len };
    let intent = write.intend(|| hash_of(parts));
    if plain && conn != NO_CONN && defer::try_keep(fd, parts, len) {
        write.written(len as isize);
        return Some(len as isize);
    }
    if fds::kind(fd) != Kind::Local {
        defer::flush_fd(fd);
        commit::commit();
    }
    let r = match inherited::outside_reset(fd) {
        Some(r) => r,
        None => loop {
            // An intent that is in the log already is not logged again.
            let r = token::apart_if(token::may_block(fd), || match intent {
                0 => call.sleep(&raw),
                _ => Some(token::lend(&raw)),
            })?;
            if r != -(libc::EINTR as isize) || !signals::deliver_and_restart() {
                break r;
            }
        },
    };
    // If a log has begun meanwhile, it has no intent of this write yet.
    if log::which() != intent {
        write.intend(|| hash_of(parts));
    }
    write.written(r);
    Some(r)
}

/// Locks a stream to which several threads may write: the writes must reach the client in the
/// log's order. `None`: the server's call starts over.
fn hold_stream(call: &quiet::Call, conn: u32) -> Option<Writing> {
    if state::is_family() && conn != NO_CONN && threaded() {
        let word = &conns::entry(conn).writer;
        if !robust::try_lock(word) {
            // The lock's holder may be waiting for the token.
            token::apart(|| robust::lock(word));
        }
        return Some(Writing::Family(word));
    }
    if conn == NO_CONN || !threaded() {
        return Some(Writing::Free);
    }
    let word = conns::writing(conn);
    call.lock(word)?;
    Some(Writing::Process(word))
}

/// A stream's lock, shared by this process's threads, or by all threads of a family.
enum Writing {
    /// No lock is needed: no other thread writes.
    Free,
    Process(&'static AtomicU32),
    Family(&'static AtomicU32),
}

impl Drop for Writing {
    fn drop(&mut self) {
        match self {
            Self::Free => {}
            Self::Process(word) => sys::unlock(word),
            Self::Family(word) => robust::unlock(word),
        }
    }
}

/// A write and its two records.
struct Write {
    fd: i32,
    conn: u32,
    len: usize,
}

impl Write {
    /// Logs the intent; returns the number of the log.
    fn intend(&self, hash: impl FnOnce() -> u64) -> u32 {
        let which = log::which();
        if which != 0 {
            let (fd, conn, ret, hash) = (self.fd, self.conn, self.len as i64, hash());
            log::append(Entry { op: Op::Intent, flags: LAZY, fd, conn, ret, hash }, &[]);
        }
        which
    }

    fn written(&self, r: isize) {
        let Self { fd, conn, len } = *self;
        let entry = Entry { op: Op::Written, flags: 0, fd, conn, ret: r as i64, hash: 0 };
        let runs_on = matches!(fds::kind(fd), Kind::Conn | Kind::Local);
        log::append(entry.lazy_if(runs_on && r == len as isize), &[]);
        if conn != NO_CONN && r > 0 {
            conns::wrote(conn, r as u64);
        }
    }
}

fn replay(fd: i32, parts: &[Iov], raw: impl Fn() -> isize) -> Option<isize> {
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
        None if is_made => len as isize,
        None => {
            let r = at_end(fd, len)?;
            accept(r);
            r
        }
    };
    if fds::kind(fd) == Kind::Local && !is_made {
        raw();
    }
    Some(accepted)
}

/// Makes the replica's write to a pipe at its intent, if it cannot block. On the primary another
/// thread may have read the bytes before the write's result was logged, but never before its
/// intent. The log does not advance meanwhile.
fn make_early(fd: i32, len: usize, raw: &impl Fn() -> isize) -> bool {
    threaded() && fds::kind(fd) == Kind::Local && has_room(fd, len) && raw() >= 0
}

/// Whether a pipe accepts a write at once.
fn has_room(fd: i32, len: usize) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    len <= libc::PIPE_BUF
        // SAFETY: memory of ours, of the sizes that are said.
        && unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) } == 1
}

/// The answer of the primary's kernel, after what was to be written has been compared. `intended`
/// and `accept` run while the log stands at the intent and at the result. `None`: the log ended
/// before the result.
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

/// Called when the log ended before the result of this write. On a connection the replica runs on
/// and retains its output, until its first call that needs an answer from the world; also on a
/// pipe that has room. Any other write is such a call. `None`: this write starts over.
fn at_end(fd: i32, len: usize) -> Option<isize> {
    let runs_on = match fds::kind(fd) {
        Kind::Conn => park::draining(),
        Kind::Local => park::draining() && has_room(fd, len),
        _ => false,
    };
    if runs_on { Some(len as isize) } else { park::start_over() }
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
    let raw = || unsafe { syscall!(SYS_sendto, fd, buffer, len, at_once(fd, flags), to, to_len) };
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
    let raw = || unsafe { syscall!(SYS_sendmsg, fd, message, at_once(fd, flags)) };
    if !fds::is_virtual(fd) {
        return libc_result(raw());
    }
    if is_urgent(fd, flags) {
        return libc_result(refuse_urgent());
    }
    // SAFETY: the caller's message and its vector.
    let (parts, control) = unsafe {
        let parts = vector((*message).msg_iov, (*message).msg_iovlen.min(IOV_MAX));
        (parts, (*message).msg_controllen > 0)
    };
    if control && mode() == Mode::Record {
        // Whoever gets a descriptor by it may write there at once.
        defer::flush();
    }
    libc_result(output(fd, parts, PLAIN & flags == flags && !control, raw))
}

/// The flags of a send. On the replica a send to another process of the family must not block
/// until that one reads, since reading needs the log to advance.
fn at_once(fd: i32, flags: i32) -> i32 {
    let waits_not = mode() == Mode::Replay && fds::kind(fd) == Kind::Local;
    if waits_not { flags | libc::MSG_DONTWAIT } else { flags }
}

/// Whether urgent data is sent to a client: it is refused, since a survivor could not resend it.
fn is_urgent(fd: i32, flags: i32) -> bool {
    flags & libc::MSG_OOB != 0 && fds::kind(fd) == Kind::Conn && mode() != Mode::Pass
}

fn refuse_urgent() -> isize {
    report::refused("send with MSG_OOB", "send without urgent data");
    -(libc::EOPNOTSUPP as isize)
}

/// A part of a file, read to be hashed (primary) or retained (replica). The buffer is reused:
/// mapping half a megabyte for each call would cost more than reading it.
struct Chunk {
    at: *mut u8,
    len: usize,
}

static SPARE: AtomicUsize = AtomicUsize::new(0);

impl Chunk {
    /// Reads up to `n` bytes of `file` from an offset on.
    fn read(file: i32, from: i64, n: usize) -> Result<Self, isize> {
        let at = match SPARE.swap(0, Relaxed) {
            0 => sys::map_anonymous(SENDFILE_MAX),
            spare => spare as *mut u8,
        };
        if at.is_null() {
            return Err(-(libc::ENOMEM as isize));
        }
        // SAFETY: a mapping of at least this size.
        let r = unsafe { syscall!(SYS_pread64, file, at, n.min(SENDFILE_MAX), from) };
        let chunk = Self { at, len: r.max(0) as usize };
        if r < 0 { Err(r) } else { Ok(chunk) }
    }

    fn hash(&self) -> u64 {
        hash(&header().hash_key, self.bytes())
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

/// Where a `sendfile` begins: at `offset`, or at the file's own position.
fn place(file: i32, offset: *const i64) -> i64 {
    // SAFETY: the caller's off_t, or null.
    unsafe { offset.as_ref() }
        .copied()
        .unwrap_or_else(|| sys!(SYS_lseek, file, 0, libc::SEEK_CUR) as i64)
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
    libc_result(quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(count)),
        Mode::Record => sendfile_record(call, (out, file, offset), count, raw),
        Mode::Replay => match Chunk::read(file, place(file, offset), count) {
            Ok(chunk) => sendfile_replay(out, file, offset, &chunk),
            Err(errno) => Some(errno),
        },
    }))
}

/// `sendfile` on the primary. Without a log the file's content is not read.
fn sendfile_record(
    call: &quiet::Call,
    (out, file, offset): (i32, i32, *mut i64),
    count: usize,
    raw: impl Fn(usize) -> isize,
) -> Option<isize> {
    signals::deliver();
    let conn = conns::of_fd(out);
    let _writing = hold_stream(call, conn)?;
    let from = place(file, offset);
    let mut write = Write { fd: out, conn, len: count.min(SENDFILE_MAX) };
    let mut intent = 0;
    if log::is_on() {
        let chunk = match Chunk::read(file, from, count) {
            Ok(chunk) => chunk,
            Err(errno) => return Some(errno),
        };
        write.len = chunk.len;
        intent = write.intend(|| chunk.hash());
        if conn != NO_CONN && defer::try_keep(out, &one(chunk.at, chunk.len), chunk.len) {
            advance(file, offset, chunk.len as isize);
            write.written(chunk.len as isize);
            return Some(chunk.len as isize);
        }
    }
    defer::flush_fd(out);
    commit::commit();
    let r = match inherited::outside_reset(out) {
        Some(r) => r,
        None => token::apart_if(token::may_block(out), || match intent {
            0 => call.sleep(|| raw(write.len)),
            _ => Some(token::lend(|| raw(write.len))),
        })?,
    };
    if log::which() != intent
        && let Ok(chunk) = Chunk::read(file, from, count)
    {
        write.len = chunk.len;
        write.intend(|| chunk.hash());
    }
    write.written(r);
    Some(r)
}

fn sendfile_replay(out: i32, file: i32, offset: *mut i64, chunk: &Chunk) -> Option<isize> {
    let accept = |r: isize| {
        if conns::of_fd(out) != NO_CONN && r > 0 {
            conns::keep(conns::of_fd(out), &chunk.bytes()[..r as usize]);
        }
    };
    let r = match replay_result(out, chunk.len, || chunk.hash(), || {}, accept) {
        Some(r) => r,
        None => {
            let r = at_end(out, chunk.len)?;
            accept(r);
            r
        }
    };
    advance(file, offset, r);
    Some(r)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile64(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the same call on a 64-bit system.
    unsafe { sendfile(out, file, offset, count) }
}
