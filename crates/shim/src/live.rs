//! The end of the log: draining, parking, and going live on real sockets. Also
//! what promotion must know of listeners, and how divergence is reported.

use crate::calls::Call;
use crate::fds::{self, Kind};
use crate::state::{self, CONTROL_FD, MAIN_AWAY, Mode, Own, THREADS, header, mode, tid};
use crate::sys::{self, decimal, sys};
use crate::{clocks, input, log, ready, sockets};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use holdfast_wire::log::{Header, Op};
use holdfast_wire::shm::{self, mode as shared_mode};

/// Sockets whose address is remembered; listeners among them are few.
const BINDS_MAX: usize = 64;
/// Connections taken over out of the accept queue.
const QUEUE_MAX: usize = 4096;
/// Marks a socket whose peer the dead primary was talking to.
const DEAD: i32 = -2;
/// How long the main thread waits for the others to reach the log's end.
const OTHERS_WAIT_MS: u32 = 3;
/// How often the others look whether one of them must promote in its stead.
const LEADER_WAIT_NS: u64 = 5_000_000;

#[derive(Clone, Copy)]
struct Bind {
    fd: i32,
    len: u32,
    backlog: i32,
    addr: [u8; 32],
}

static BINDS: Own<[Bind; BINDS_MAX]> =
    Own::new([Bind { fd: -1, len: 0, backlog: -1, addr: [0; 32] }; BINDS_MAX]);
static BINDS_LOCK: AtomicU32 = AtomicU32::new(0);
/// (listener, connection) pairs that `accept` hands out first.
static QUEUE: Own<[(i32, i32); QUEUE_MAX]> = Own::new([(-1, -1); QUEUE_MAX]);
static QUEUE_HEAD: AtomicUsize = AtomicUsize::new(0);
static QUEUE_TAIL: AtomicUsize = AtomicUsize::new(0);
static AT_END: AtomicU32 = AtomicU32::new(0);
static LIVE: AtomicU32 = AtomicU32::new(0);
/// Whether a thread has taken it on itself to promote.
static LED: AtomicBool = AtomicBool::new(false);

/// Runs `f` on the remembered addresses, one thread at a time. It must not come
/// here again.
fn with_binds<T>(f: impl FnOnce(&mut [Bind; BINDS_MAX]) -> T) -> T {
    sys::lock(&BINDS_LOCK);
    // SAFETY: the lock is held, and `f` hands out nothing of it.
    let result = f(unsafe { BINDS.get() });
    sys::unlock(&BINDS_LOCK);
    result
}

fn bind_of(fd: i32) -> Option<Bind> {
    with_binds(|binds| binds.iter().find(|b| b.fd == fd).copied())
}

pub fn remember_bind(fd: i32, addr: *const u8, len: u32) {
    if mode() == Mode::Pass || addr.is_null() || len as usize > 32 {
        return;
    }
    let mut bind = Bind { fd, len, backlog: -1, addr: [0; 32] };
    // SAFETY: the caller's address of `len` <= 32 bytes.
    unsafe { core::ptr::copy_nonoverlapping(addr, bind.addr.as_mut_ptr(), len as usize) };
    with_binds(|binds| {
        let known = binds.iter().position(|b| b.fd == fd);
        if let Some(at) = known.or_else(|| binds.iter().position(|b| !is_bound(b))) {
            binds[at] = bind;
        }
    });
}

fn is_bound(b: &Bind) -> bool {
    b.fd >= 0 && fds::is_virtual(b.fd)
}

pub fn remember_listen(fd: i32, backlog: i32) {
    with_binds(|binds| {
        if let Some(b) = binds.iter_mut().find(|b| b.fd == fd) {
            b.backlog = backlog;
        }
    });
}

/// Port that `fd` was bound to, in host order; 0 if none.
pub fn bound_port(fd: i32) -> u16 {
    bind_of(fd).map_or(0, |b| endpoint(&b.addr).1)
}

/// Address family that `fd` was bound with.
pub fn bound_family(fd: i32) -> i32 {
    bind_of(fd).map_or(libc::AF_INET, |b| i32::from(u16::from_ne_bytes([b.addr[0], b.addr[1]])))
}

/// Address (IPv4 mapped into IPv6) and port of a `sockaddr`.
pub fn endpoint(addr: &[u8]) -> ([u8; 16], u16) {
    let mut ip = [0u8; 16];
    if addr.len() < 24 {
        return (ip, 0);
    }
    let port = u16::from_be_bytes([addr[2], addr[3]]);
    match i32::from(u16::from_ne_bytes([addr[0], addr[1]])) {
        libc::AF_INET => {
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&addr[4..8]);
        }
        libc::AF_INET6 => ip.copy_from_slice(&addr[8..24]),
        _ => return (ip, 0),
    }
    (ip, port)
}

/// Whether the log has ended and the replica still runs on alone: its output is
/// kept, and its first call that needs a live answer parks it (decision 8).
pub fn draining() -> bool {
    let h = header();
    mode() == Mode::Replay
        && h.mode.0.load(Acquire) == shared_mode::DRAIN
        && h.head.0.load(Acquire) >= h.end.0.load(Acquire)
}

/// Stops here until the sockets are real. The main thread leads; another one
/// does while the main thread waits for it to end, or has ended.
pub fn park() {
    if mode() != Mode::Replay {
        return;
    }
    AT_END.fetch_add(1, SeqCst);
    if tid() != 0 {
        log::wake(0);
    }
    while LIVE.load(Acquire) == 0 {
        let may_lead = tid() == 0 || MAIN_AWAY.load(SeqCst);
        if may_lead && !LED.swap(true, SeqCst) {
            lead();
        } else {
            sys::futex_wait(&LIVE, 0, false, LEADER_WAIT_NS);
        }
    }
    AT_END.fetch_sub(1, SeqCst);
    crate::leash::slip();
}

fn lead() {
    log::wake_turns();
    wait_for_others();
    publish();
    let h = header();
    if h.mode.0.compare_exchange(shared_mode::DRAIN, shared_mode::PARKED, SeqCst, SeqCst).is_ok() {
        h.daemon_waiting.0.store(1, SeqCst);
        log::kick();
    }
    loop {
        match h.mode.0.load(Acquire) {
            shared_mode::LIVE => break,
            other => sys::futex_wait(&h.mode.0, other, true, 0),
        }
    }
    go_live();
}

/// Runs a call that waits for other threads and that the log knows nothing of:
/// its outcome is theirs.
pub fn outside<T>(f: impl FnOnce() -> T) -> T {
    match mode() {
        Mode::Record => {
            crate::defer::flush();
            log::before_block();
        }
        Mode::Replay => log::leave(),
        _ => return f(),
    }
    let main = tid() == 0;
    AT_END.fetch_add(1, SeqCst);
    MAIN_AWAY.fetch_or(main, SeqCst);
    let result = f();
    if main {
        MAIN_AWAY.store(false, SeqCst);
    }
    AT_END.fetch_sub(1, SeqCst);
    result
}

fn wait_for_others() {
    for _ in 0..OTHERS_WAIT_MS * 20 {
        if AT_END.load(SeqCst) >= THREADS.load(SeqCst) {
            return;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        sys!(SYS_nanosleep, &raw const pause, 0usize);
    }
}

/// Tells the daemon which listeners to bring up.
fn publish() {
    let h = state::shared().header;
    let mut n = 0;
    with_binds(|binds| {
        for b in binds.iter().filter(|b| is_bound(b) && b.backlog >= 0) {
            // SAFETY: this field is ours while the mode is not PARKED.
            unsafe {
                if n < (*h).listeners.len() {
                    (*h).listeners[n] = shm::Listener {
                        fd: b.fd,
                        backlog: b.backlog,
                        addr_len: b.len,
                        addr: b.addr,
                    };
                    n += 1;
                }
            }
        }
    });
    header().listeners_len.store(n as u32, Release);
}

fn go_live() {
    clocks::continue_from_log();
    fds::for_each(|fd, f| match f.kind() {
        Kind::Outside => bury(fd, f),
        // Bound already; TCP's listeners are the daemon's work.
        Kind::PlainListener if sockets::is_unix(fd) => {
            sys!(SYS_listen, fd, f.backlog.load(Relaxed));
        }
        _ => {}
    });
    take_queue();
    ready::rearm();
    state::set_mode(Mode::Live);
    LIVE.store(1, Release);
    sys::futex_wake(&LIVE, false);
    log::wake_turns();
}

/// Connections of the dead primary's accept queue come from the daemon, each in
/// a message with its listener's number.
fn take_queue() {
    // SAFETY: only the main thread, while the others wait.
    let queue = unsafe { QUEUE.get() };
    while QUEUE_TAIL.load(Relaxed) < QUEUE_MAX {
        let Some((listener, fd)) = receive_fd() else { return };
        queue[QUEUE_TAIL.fetch_add(1, Relaxed)] = (listener, fd);
    }
}

fn receive_fd() -> Option<(i32, i32)> {
    let mut listener = 0i32;
    let mut control = [0u64; 4];
    let mut iov = libc::iovec { iov_base: (&raw mut listener).cast(), iov_len: 4 };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let r = sys!(SYS_recvmsg, CONTROL_FD.load(Relaxed), &raw mut message, flags);
    if r != 4 || message.msg_controllen < 20 {
        return None;
    }
    // One SCM_RIGHTS message: cmsghdr of 16 bytes, then the descriptor.
    Some((listener, control[2] as u32 as i32))
}

/// A listener with connections that wait to be accepted.
pub fn queued_listener() -> Option<i32> {
    let head = QUEUE_HEAD.load(Relaxed);
    if mode() != Mode::Live || head == QUEUE_TAIL.load(Relaxed) {
        return None;
    }
    // SAFETY: written before the mode became Live, and never again.
    Some(unsafe { QUEUE.read() }[head].0)
}

/// The next connection of the queue, if it is `listener`'s: each goes to one thread.
fn take_queued(listener: i32) -> Option<i32> {
    while mode() == Mode::Live {
        let head = QUEUE_HEAD.load(Relaxed);
        if head == QUEUE_TAIL.load(Relaxed) {
            return None;
        }
        // SAFETY: as in queued_listener.
        let (of, fd) = unsafe { QUEUE.read() }[head];
        if of != listener {
            return None;
        }
        if QUEUE_HEAD.compare_exchange(head, head + 1, Relaxed, Relaxed).is_ok() {
            return Some(fd);
        }
    }
    None
}

/// `accept` after promotion.
pub fn accept(fd: i32, flags: i32, addr: &mut [u8; 128], len: &mut u32) -> isize {
    *len = addr.len() as u32;
    let kind = if fds::kind(fd) == Kind::Listener { Kind::Conn } else { Kind::Outside };
    if let Some(high) = take_queued(fd) {
        let command =
            if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let r = sys!(SYS_fcntl, high, command, 0);
        sys!(SYS_close, high);
        if r >= 0 {
            sys!(SYS_fcntl, r, libc::F_SETFL, flags & libc::SOCK_NONBLOCK);
            sys!(SYS_getpeername, r, addr.as_mut_ptr(), core::ptr::from_mut(len));
            fds::opened(r as i32, kind);
        }
        return r;
    }
    let r = sys!(SYS_accept4, fd, addr.as_mut_ptr(), core::ptr::from_mut(len), flags);
    if r >= 0 {
        fds::opened(r as i32, kind);
    }
    r
}

/// Ends a connection that the dead primary had to somebody: whatever the server
/// waits by must tell it, or it waits for ever. The replica's socket was never
/// connected; ended in both directions, the kernel calls it readable and hung up.
/// Sockets of messages have no end, and nothing arrives at them.
fn bury(fd: i32, f: &fds::Fd) {
    f.backlog.store(DEAD, Relaxed);
    if input::socket_option(fd, libc::SO_TYPE) == libc::SOCK_STREAM {
        sys!(SYS_shutdown, fd, libc::SHUT_RDWR);
    }
}

/// Whether the dead primary was talking to somebody by `fd`.
pub fn is_dead(fd: i32) -> bool {
    fds::get(fd).is_some_and(|f| f.kind() == Kind::Outside && f.backlog.load(Relaxed) == DEAD)
}

/// A duplicate of a dead connection is dead.
pub fn duplicated(from: i32, to: i32) {
    if let (true, Some(f)) = (is_dead(from), fds::get(to)) {
        f.backlog.store(DEAD, Relaxed);
    }
}

/// The server uses a socket of a dead connection for another one.
pub fn connect_again(fd: i32) {
    if let (true, Some(f)) = (is_dead(fd), fds::get(fd)) {
        // It forgets that it was ended.
        let nobody = [0u8; 16];
        sys!(SYS_connect, fd, nobody.as_ptr(), nobody.len());
        f.backlog.store(-1, Relaxed);
    }
}

/// Connections that the dead primary had to others are reset (decision 5).
pub fn outside_reset(fd: i32) -> Option<isize> {
    is_dead(fd).then_some(-(libc::ECONNRESET as isize))
}

/// The replica differs from the primary: it says why and stands still for ever.
pub fn diverged(reason: &str) -> ! {
    report(&[reason])
}

/// Another call than the primary's at this place of the log.
pub fn diverged_at(record: &Header, op: Op, call: Call, fd: i32) -> ! {
    let mut n = [[0u8; 24]; 4];
    let [a, b, c, d] = &mut n;
    let there = Op::from_u8(record.op);
    let (space, name) = match there {
        Some(op) if has_call(op) => called(record.hash as usize),
        _ => called(0),
    };
    let (own_space, own_name) = called(call as usize);
    report(&[
        "the primary did ",
        there.map_or("?", Op::name),
        space,
        name,
        there.map_or(" on ", place_of),
        decimal(i64::from(record.fd), a),
        " (result ",
        decimal(record.ret, b),
        "), the replica does ",
        op.name(),
        own_space,
        own_name,
        place_of(op),
        decimal(i64::from(fd), c),
        " (thread ",
        decimal(i64::from(tid()), d),
        "): ",
        hint(there, op),
    ])
}

/// Whether records of `op` carry the number of a call.
fn has_call(op: Op) -> bool {
    matches!(
        op,
        Op::NewFd
            | Op::NewPair
            | Op::Result
            | Op::Data
            | Op::Clock
            | Op::Lock
            | Op::Thread
            | Op::Fork
            | Op::Exit
    )
}

/// A call's name and what stands before it; nothing for none.
fn called(number: usize) -> (&'static str, &'static str) {
    match crate::calls::TABLE.get(number) {
        Some((name, call)) if *call != Call::none => (" ", name),
        _ => ("", ""),
    }
}

/// What the number in records of `op` means.
fn place_of(op: Op) -> &'static str {
    match op {
        Op::Lock => " from place ",
        Op::Clock => " of clock ",
        Op::Thread | Op::Fork | Op::Exit => " with number ",
        _ => " on descriptor ",
    }
}

/// What a person can do about it: where two members come apart says why they
/// may have.
fn hint(there: Option<Op>, here: Op) -> &'static str {
    let either = |op: Op| here == op || there == Some(op);
    if either(Op::Fork) {
        "only one of them forks: start the server in the foreground, as one process"
    } else if either(Op::Lock) {
        "threads race outside pthread locks, as by atomics: use fewer threads or workers"
    } else if state::threaded() {
        "threads that race outside pthread locks, or other data before: use fewer threads or \
         workers, and the same files and settings on both members"
    } else {
        "what they know differs: make files and settings alike, and keep addresses from \
         being randomised on both members"
    }
}

/// Other bytes than the primary's were written.
pub fn diverged_write(fd: i32, intent: &Header, len: usize) -> ! {
    let mut n = [[0u8; 24]; 3];
    let [a, b, c] = &mut n;
    report(&[
        "the replica writes other bytes than the primary: descriptor ",
        decimal(i64::from(fd), a),
        ", primary ",
        decimal(intent.ret, b),
        " bytes, replica ",
        decimal(len as i64, c),
        " bytes: ",
        if intent.ret == len as i64 {
            "random bytes or addresses that differ: is address randomisation off on both members?"
        } else if state::threaded() {
            "threads that race outside pthread locks, or files that differ"
        } else {
            "files or settings that differ"
        },
    ])
}

/// A number that the primary gave out is in use here: libc, or a thread that did
/// not ask us, has opened or closed something at another time.
pub fn diverged_fd(fd: i32) -> ! {
    let mut n = [0u8; 24];
    let number = decimal(i64::from(fd), &mut n);
    let mut path = [0u8; 32];
    let prefix = b"/proc/self/fd/";
    path[..prefix.len()].copy_from_slice(prefix);
    path[prefix.len()..][..number.len()].copy_from_slice(number.as_bytes());
    let mut name = [0u8; 128];
    let len = sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), name.as_mut_ptr(), name.len());
    let name = core::str::from_utf8(&name[..len.max(0) as usize]).unwrap_or("?");
    report(&["descriptor ", number, " is free on the primary, and ", name, " on the replica"])
}

/// Bytes of a path that a reason has room for.
const PATH_SHOWN_BYTES: usize = 300;

/// The end of a path that may be long, and what stands for its beginning.
fn shown(path: *const u8) -> (&'static str, &'static str) {
    // SAFETY: the server's path string, which lasts for the call that reports it.
    let path = unsafe { core::ffi::CStr::from_ptr(path.cast()) }.to_str().unwrap_or("?");
    let mut from = path.len().saturating_sub(PATH_SHOWN_BYTES);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    (if from == 0 { "" } else { "..." }, &path[from..])
}

/// A file is not what it is on the primary: `how` ends with the remedy.
pub fn diverged_file(what: &str, path: *const u8, how: &str) -> ! {
    let (cut, path) = shown(path);
    report(&["the ", what, " ", cut, path, " ", how])
}

/// A file could be opened on one member only.
pub fn diverged_open(path: *const u8, here: isize, there: isize) -> ! {
    let (cut, path) = shown(path);
    let mut n = [[0u8; 24]; 2];
    let [a, b] = &mut n;
    report(&[
        "opening ",
        cut,
        path,
        " gave ",
        decimal(there as i64, a),
        " on the primary and ",
        decimal(here as i64, b),
        " here",
    ])
}

fn report(parts: &[&str]) -> ! {
    sys::say(parts);
    let h = state::shared().header;
    let mut n = 0;
    for byte in parts.iter().flat_map(|p| p.bytes()) {
        // SAFETY: the reason is ours until its length is published.
        unsafe {
            if n < (*h).reason.len() {
                (*h).reason[n] = byte;
                n += 1;
            }
        }
    }
    let h = header();
    h.reason_len.store(n as u32, Release);
    h.mode.0.store(shared_mode::DIVERGED, SeqCst);
    h.daemon_waiting.0.store(1, SeqCst);
    log::kick();
    loop {
        sys!(SYS_pause);
    }
}
