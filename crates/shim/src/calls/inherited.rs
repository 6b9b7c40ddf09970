//! What a promoted server inherits from the dead primary: connections that waited in its accept
//! queue, and its connections to other hosts, which are dead.

use crate::base::fds::{self, Kind};
use crate::base::handed;
use crate::base::log;
use crate::base::state::{self, CONTROL_FD};
use crate::base::sys::{sys, syscall};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};

/// Most connections taken over from the accept queue.
const QUEUE_MAX: usize = 4096;
/// Value of `backlog` that marks a socket whose peer was connected to the dead primary.
const DEAD: i32 = -2;

/// (listener, connection) pairs that `accept` returns first: written while the replica becomes the
/// server, and never again.
static QUEUE: [(AtomicI32, AtomicI32); QUEUE_MAX] =
    [const { (AtomicI32::new(-1), AtomicI32::new(-1)) }; QUEUE_MAX];
/// Whether the family's queue may hold connections.
static MAY_WAIT: AtomicBool = AtomicBool::new(false);
static QUEUE_HEAD: AtomicUsize = AtomicUsize::new(0);
static QUEUE_TAIL: AtomicUsize = AtomicUsize::new(0);

/// Empties the queue of what an earlier promotion has left: those connections were the dead
/// survivor's.
pub fn forget() {
    QUEUE_TAIL.store(0, Relaxed);
    QUEUE_HEAD.store(0, Relaxed);
    MAY_WAIT.store(state::is_family(), Relaxed);
}

/// In a family the queue is the socket to the daemon, which all processes share. Returns the
/// listener of its next connection; `None` if it is empty, and will stay so.
fn next_of_family() -> Option<i32> {
    if !MAY_WAIT.load(Relaxed) {
        return None;
    }
    let mut listener = 0i32;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let (control, at) = (CONTROL_FD.load(Relaxed), &raw mut listener);
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_recvfrom, control, at, 4, flags, 0usize, 0usize) };
    MAY_WAIT.store(r == 4, Relaxed);
    (r == 4).then_some(listener)
}

/// Whether the queue has room for another connection.
pub fn has_room() -> bool {
    QUEUE_TAIL.load(Relaxed) < QUEUE_MAX
}

/// Adds a connection that waited for `listener`. Only at promotion, by the one
/// thread that promotes.
pub fn add(listener: i32, fd: i32) {
    let tail = QUEUE_TAIL.load(Relaxed);
    let Some(place) = QUEUE.get(tail) else { return };
    place.0.store(listener, Relaxed);
    place.1.store(fd, Relaxed);
    QUEUE_TAIL.store(tail + 1, Relaxed);
}

/// A listener for which connections wait in the queue.
pub fn queued_listener() -> Option<i32> {
    if state::is_family() {
        return next_of_family();
    }
    let head = QUEUE_HEAD.load(Relaxed);
    if head == QUEUE_TAIL.load(Relaxed) {
        return None;
    }
    Some(QUEUE[head].0.load(Relaxed))
}

/// Takes the next connection from the queue if it is `listener`'s. Each goes to one thread.
fn take_queued(listener: i32) -> Option<i32> {
    if state::is_family() {
        // Another process may look for the same connection.
        let _held = MAY_WAIT.load(Relaxed).then(log::hold)?;
        next_of_family().filter(|of| *of == listener)?;
        return handed::receive().map(|(_, fd)| fd);
    }
    loop {
        let head = QUEUE_HEAD.load(Relaxed);
        if head == QUEUE_TAIL.load(Relaxed) {
            return None;
        }
        let (of, fd) = &QUEUE[head];
        if of.load(Relaxed) != listener {
            return None;
        }
        if QUEUE_HEAD.compare_exchange(head, head + 1, Relaxed, Relaxed).is_ok() {
            return Some(fd.load(Relaxed));
        }
    }
}

/// The kernel's `accept4`, after the connections in the queue.
pub fn accept(fd: i32, flags: i32, addr: &mut [u8; 128], len: &mut u32) -> isize {
    *len = addr.len() as u32;
    let Some(high) = take_queued(fd) else {
        let at = (addr.as_mut_ptr(), core::ptr::from_mut(len));
        // SAFETY: the caller's buffer and its size.
        return unsafe { syscall!(SYS_accept4, fd, at.0, at.1, flags) };
    };
    let command =
        if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let r = sys!(SYS_fcntl, high, command, 0);
    sys!(SYS_close, high);
    if r >= 0 {
        sys!(SYS_fcntl, r, libc::F_SETFL, flags & libc::SOCK_NONBLOCK);
        // SAFETY: the caller's buffer and its size.
        unsafe { syscall!(SYS_getpeername, r, addr.as_mut_ptr(), core::ptr::from_mut(len)) };
    }
    r
}

/// Ends a connection that the dead primary had to another host. However the server waits for it,
/// the end must be reported, else the server waits forever. The replica's socket was never
/// connected; once it is shut down in both directions, the kernel reports it as readable and hung
/// up. Datagram sockets have no such end, and nothing arrives at them.
pub fn bury(fd: i32, f: &fds::Fd) {
    f.backlog.store(DEAD, Relaxed);
    if fds::socket_option(fd, libc::SO_TYPE) == libc::SOCK_STREAM {
        sys!(SYS_shutdown, fd, libc::SHUT_RDWR);
    }
}

/// Whether the dead primary was connected to another host by `fd`.
pub fn is_dead(fd: i32) -> bool {
    fds::get(fd).is_some_and(|f| f.kind() == Kind::Outside && f.backlog.load(Relaxed) == DEAD)
}

/// Marks a duplicate of a dead connection as dead.
pub fn duplicated(from: i32, to: i32) {
    if let (true, Some(f)) = (is_dead(from), fds::get(to)) {
        f.backlog.store(DEAD, Relaxed);
    }
}

/// Called when the server connects the socket of a dead connection again.
pub fn connect_again(fd: i32) {
    if let (true, Some(f)) = (is_dead(fd), fds::get(fd)) {
        // Connecting to AF_UNSPEC makes the socket forget that it was shut down.
        let nobody = [0u8; 16];
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_connect, fd, nobody.as_ptr(), nobody.len()) };
        f.backlog.store(-1, Relaxed);
    }
}

/// The result of a read or write on a connection of the dead primary: `-ECONNRESET` (decision 5).
pub fn outside_reset(fd: i32) -> Option<isize> {
    is_dead(fd).then_some(-(libc::ECONNRESET as isize))
}
