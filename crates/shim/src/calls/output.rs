//! Output: the record of a write before it is made (its intent), output commit, and the replica's
//! side of a write.

use crate::base::commit;
use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, header, mode, threaded};
use crate::base::sys::{self, libc_result, syscall};
use crate::base::table::Call;
use crate::base::{conns, defer, park, quiet, report, robust, token};
use crate::calls::{children, family, inherited, signals};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::{Header, LATER, LAZY, NO_CONN, Op};

/// Most pieces of one vectored write; the kernel takes no more.
const IOV_MAX: usize = 1024;

/// Bytes from which on a write is compared by what the kernel has taken of it. A server that has
/// megabytes to send offers all of it again and again.
const LATER_BYTES: usize = 64 << 10;

/// Flags of a send that do not change what is sent.
const PLAIN: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

pub(super) type Iov = libc::iovec;

fn total(parts: &[Iov]) -> usize {
    parts.iter().map(|p| p.iov_len).sum()
}

/// Hash of the first `len` bytes.
fn hash_of(parts: &[Iov], len: usize) -> u64 {
    let mut left = len;
    let pieces = parts.iter().map(|part| {
        let n = part.iov_len.min(left);
        left -= n;
        // SAFETY: the caller handed these buffers to a write call; an empty one may have no address.
        if n == 0 { &[] } else { unsafe { core::slice::from_raw_parts(part.iov_base.cast(), n) } }
    });
    hash_pieces(&header().hash_key, pieces)
}

/// Whether the replica understands intents without a hash of all bytes.
pub(super) fn spares_hashes() -> bool {
    header().spares_hashes.load(Relaxed) != 0
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
    let mut write = Write { fd, conn, len, is_later: false };
    let intent = write.intend(parts);
    if plain && conn != NO_CONN && defer::try_keep(fd, parts, len) {
        write.written(len as isize, 0);
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
        write.intend(parts);
    }
    let hash = if write.is_later && r > 0 { hash_of(parts, r as usize) } else { 0 };
    write.written(r, hash);
    Some(r)
}

/// Locks a stream to which several threads may write: the writes must reach the client in the
/// log's order. `None`: the server's call starts over.
pub(super) fn hold_stream(call: &quiet::Call, conn: u32) -> Option<Writing> {
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
pub(super) enum Writing {
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
pub(super) struct Write {
    pub fd: i32,
    pub conn: u32,
    pub len: usize,
    /// Whether the hash is in the result's record.
    pub is_later: bool,
}

impl Write {
    /// Logs the intent; returns the number of the log.
    fn intend(&mut self, parts: &[Iov]) -> u32 {
        let which = log::which();
        if which != 0 {
            self.is_later = self.conn != NO_CONN && self.len > LATER_BYTES && spares_hashes();
            match self.is_later {
                true => self.intent(LATER, 0, &[]),
                false => self.intent(0, hash_of(parts, self.len), &[]),
            }
        }
        which
    }

    /// The intent's record, with what says which hash it is.
    pub fn intent(&self, flags: u8, hash: u64, payload: &[u8]) {
        let (fd, conn, ret, flags) = (self.fd, self.conn, self.len as i64, LAZY | flags);
        let entry = Entry { op: Op::Intent, flags, fd, conn, ret, hash };
        log::append(entry, &[(payload.as_ptr(), payload.len())]);
    }

    /// Logs the result, with the hash of what the kernel has taken if the intent has none.
    pub fn written(&self, r: isize, hash: u64) {
        let Self { fd, conn, len, .. } = *self;
        let entry = Entry { op: Op::Written, flags: 0, fd, conn, ret: r as i64, hash };
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
    let compared = |intent: &Header, _: &[u8]| match intent.flags & LATER {
        0 => hash_of(parts, len),
        _ => intent.hash,
    };
    let resulted = |intent: &Header, result: &Header| {
        let is_later = intent.flags & LATER != 0 && result.ret > 0;
        if is_later && result.hash != hash_of(parts, result.ret as usize) {
            report::diverged_write(fd, intent, len);
        }
        accept(result.ret as isize);
    };
    let accepted = match replay_result(fd, len, compared, intended, resulted) {
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

/// The answer of the primary's kernel, after what was to be written has been compared: `hash` gets
/// the intent, with its payload. `intended` and `resulted` run while the log stands at the intent and
/// at the result; `resulted` gets both. `None`: the log ended before the result.
pub(super) fn replay_result(
    fd: i32,
    len: usize,
    hash: impl FnOnce(&Header, &[u8]) -> u64,
    intended: impl FnOnce(),
    resulted: impl FnOnce(&Header, &Header),
) -> Option<isize> {
    let intent = log::take(Op::Intent, Call::none, fd)?;
    let said = intent.header;
    if said.ret != len as i64 || said.hash != hash(&said, intent.payload()) {
        report::diverged_write(fd, &said, len);
    }
    intended();
    intent.done();
    let result = log::take(Op::Written, Call::none, fd)?;
    let r = result.ret();
    resulted(&said, &result.header);
    result.done();
    Some(r)
}

/// Called when the log ended before the result of this write. On a connection the replica runs on
/// and retains its output, until its first call that needs an answer from the world; also on a
/// pipe that has room. Any other write is such a call. `None`: this write starts over.
pub(super) fn at_end(fd: i32, len: usize) -> Option<isize> {
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

pub(super) fn one(buffer: *const u8, len: usize) -> [Iov; 1] {
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
