//! Children on the replica. A child that only works on files (redis' BGSAVE, a rewritten log) must
//! leave its files on both members, so the replica forks too. Its child is a shadow: it runs as
//! the primary's child does, and has that child's process id in the server's eyes, until it would
//! touch anything but files and pipes. Then it ends, because the primary's child does that, and it
//! must not be done twice. The server learns from the log what became of a child; before it looks
//! at files it waits for the shadow's end. After promotion shadows are ordinary children of the
//! server.

use crate::base::real::{Real, real};
use crate::base::state::{
    self, CONTROL_FD, DIRECT_FD, FAULT_FD, MEMORY_FD, Mode, WAKE_FD, header, uninterrupted,
};
use crate::base::sys::{self, sys, syscall};
use crate::base::{alarm, handlers};
use crate::calls::processors;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use holdfast_wire::shm::mode as shared_mode;

/// Most children at a time; the replica makes no more.
const CHILDREN_MAX: usize = 256;
/// Longest time in ns that the server, before it looks at files, waits for the shadow of a child
/// that has ended on the primary: less than the second after which a replica counts as hung.
const END_WAIT_NS: u64 = 900_000_000;
/// Time between two looks meanwhile, in ns.
const LOOK_NS: i64 = 500_000;
/// Offsets of a child's id and status in `siginfo_t`, in bytes.
const SI_PID: usize = 16;
const SI_CODE: usize = 8;

/// A child of the server: its id on the primary (`there`), by which the server knows it, and its
/// id on this host (`own`).
struct Child {
    there: AtomicI32,
    own: AtomicI32,
    /// One of [`told`].
    told: AtomicU32,
}

/// Values that say whether the server knows that a child has ended.
mod told {
    pub const NO: u32 = 0;
    /// The server knows, and has not looked at files since.
    pub const OWED: u32 = 1;
    /// The server has waited for its shadow for too long, and does not wait again.
    pub const GIVEN_UP: u32 = 2;
}

static CHILDREN: [Child; CHILDREN_MAX] = [const {
    Child { there: AtomicI32::new(0), own: AtomicI32::new(0), told: AtomicU32::new(told::NO) }
}; CHILDREN_MAX];
static LOCK: AtomicU32 = AtomicU32::new(0);
/// Number of children in the state [`told::OWED`].
static OWED: AtomicU32 = AtomicU32::new(0);
/// In a shadow, the id of the primary's child; else 0.
static SHADOW: AtomicI32 = AtomicI32::new(0);

fn locked<T>(f: impl FnOnce() -> T) -> T {
    sys::lock(&LOCK);
    let result = f();
    sys::unlock(&LOCK);
    result
}

/// Makes the replica's child when the primary made the child `there`. True in
/// the child.
pub fn make(there: i32) -> bool {
    sweep();
    let Some(child) = CHILDREN.iter().find(|c| c.own.load(Relaxed) == 0) else { return false };
    match uninterrupted(|| real(Real::Fork)(0, 0, 0, 0)) {
        0 => {
            become_shadow(there);
            true
        }
        own => {
            if own > 0 {
                child.there.store(there, Relaxed);
                child.told.store(told::NO, Relaxed);
                child.own.store(own, Release);
            }
            false
        }
    }
}

fn become_shadow(there: i32) {
    SHADOW.store(there, Relaxed);
    if state::tid() == 0 {
        // A shadow is of no use without the replica.
        // SAFETY: numbers only.
        unsafe { syscall!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    }
    processors::free_thread();
    state::set_mode(Mode::Pass);
    handlers::restore();
    alarm::allow_tsc();
    none();
    for place in [&CONTROL_FD, &MEMORY_FD, &WAKE_FD, &FAULT_FD, &DIRECT_FD] {
        sys!(SYS_close, place.load(Relaxed));
    }
}

/// Forgets all children, in a forked child: they are its parent's.
pub fn none() {
    CHILDREN.iter().for_each(|child| child.own.store(0, Relaxed));
    OWED.store(0, Relaxed);
}

/// The id that a shadow has in its own eyes; 0 in every other process.
pub fn shadow() -> i32 {
    SHADOW.load(Relaxed)
}

/// Called before a call with an effect outside the family: a shadow ends here, unless its server
/// has been promoted.
#[inline]
pub fn leave() {
    if shadow() != 0 && !shared_mode::is_alone(header().mode.0.load(SeqCst)) {
        sys::die(0);
    }
}

/// Like [`leave`], for a call on a descriptor, unless both its ends are in the
/// family.
#[inline]
pub fn touch(fd: i32) {
    if shadow() != 0 && is_outside(fd) {
        leave();
    }
}

/// Whether `fd` is a socket but none of a socketpair. The replica's other sockets are not
/// connected.
fn is_outside(fd: i32) -> bool {
    let (mut name, mut len) = ([0u8; 128], 128u32);
    // SAFETY: memory of ours, of the sizes that are said.
    match unsafe { syscall!(SYS_getpeername, fd, name.as_mut_ptr(), &raw mut len) } {
        0 => i32::from(u16::from_ne_bytes([name[0], name[1]])) != libc::AF_UNIX,
        r => r == -(libc::ENOTCONN as isize),
    }
}

fn find(there: i32) -> Option<&'static Child> {
    let known = |c: &&Child| c.own.load(Acquire) != 0 && c.there.load(Relaxed) == there;
    if there > 0 { CHILDREN.iter().find(known) } else { None }
}

/// The number here of a child that the server knows by the primary's number.
fn own_number(there: i32) -> i32 {
    find(there).map_or(there, |c| c.own.load(Relaxed))
}

/// Notes that, by the log, a child has ended, and whether by a signal.
pub fn ended(there: i32, killed: bool) {
    let Some(child) = find(there) else { return sweep() };
    if child.told.compare_exchange(told::NO, told::OWED, SeqCst, Relaxed).is_ok() {
        OWED.fetch_add(1, SeqCst);
    }
    sweep();
    // The shadow still runs, else its entry would be free by now.
    if killed && child.there.load(Relaxed) == there && child.told.load(SeqCst) == told::OWED {
        sys!(SYS_kill, child.own.load(Relaxed), libc::SIGKILL);
    }
}

/// Frees entries of children that have ended both here and there.
fn sweep() {
    locked(|| {
        for child in CHILDREN.iter().filter(|c| c.told.load(Relaxed) != told::NO) {
            let own = child.own.load(Relaxed);
            // SAFETY: no status is asked for.
            let r =
                if own == 0 { 0 } else { unsafe { syscall!(SYS_wait4, own, 0, libc::WNOHANG, 0) } };
            if r != 0 {
                forget(child);
            }
        }
    });
}

fn forget(child: &Child) {
    if child.told.swap(told::NO, SeqCst) == told::OWED {
        OWED.fetch_sub(1, SeqCst);
    }
    child.own.store(0, Release);
}

/// Called before the server looks at files: what ended children have written must be there.
#[inline]
pub fn settle() {
    if OWED.load(Relaxed) != 0 {
        wait_for_owed();
    }
}

fn wait_for_owed() {
    let all_ended = || {
        sweep();
        OWED.load(SeqCst) == 0
    };
    if sys::look_until(END_WAIT_NS, LOOK_NS, all_ended) {
        return;
    }
    for child in &CHILDREN {
        let late = child.told.compare_exchange(told::OWED, told::GIVEN_UP, SeqCst, Relaxed);
        if late.is_ok() {
            OWED.fetch_sub(1, SeqCst);
        }
    }
}

/// The kernel's `wait4`, in the numbers that the server knows.
pub fn wait4(pid: i32, status: *mut i32, options: i32, usage: *mut u8) -> isize {
    loop {
        // SAFETY: the caller's own pointers.
        let r = unsafe { syscall!(SYS_wait4, own_number(pid), status, options, usage) };
        // SAFETY: the kernel has filled it.
        let stands = r > 0 && !has_ended(unsafe { *status });
        match given(r as i32, stands) {
            Some(there) => return there as isize,
            None => continue,
        }
    }
}

/// The kernel's `waitid`, in the numbers that the server knows.
pub fn waitid(kind: i32, id: u32, info: *mut u8, options: i32) -> isize {
    // SAFETY: the caller's own pointers.
    let raw = |id: u32| unsafe { syscall!(SYS_waitid, kind, id, info, options, 0) };
    let own = if kind == libc::P_PID as i32 { own_number(id as i32) as u32 } else { id };
    loop {
        let r = raw(own);
        let Some((pid, code)) = child_of(info).filter(|it| r == 0 && it.0 > 0) else { return r };
        let stays = options & libc::WNOWAIT != 0 || !ends(code);
        if let Some(there) = given(pid, stays) {
            // SAFETY: the caller's siginfo.
            unsafe { info.add(SI_PID).cast::<i32>().write_unaligned(there) };
            return r;
        }
    }
}

/// The number by which the server knows its child `own`; forgotten unless it
/// `stays`. `None`: the server has been told of its end already.
fn given(own: i32, stays: bool) -> Option<i32> {
    let known = |c: &&Child| own > 0 && c.own.load(Acquire) == own;
    let Some(child) = CHILDREN.iter().find(known) else { return Some(own) };
    let (there, new) = (child.there.load(Relaxed), child.told.load(SeqCst) == told::NO);
    if !stays {
        locked(|| forget(child));
    }
    new.then_some(there)
}

/// Whether a status of `wait` says that the child is no more.
pub fn has_ended(status: i32) -> bool {
    libc::WIFEXITED(status) || libc::WIFSIGNALED(status)
}

fn ends(code: i32) -> bool {
    matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
}

/// Number of the child that a siginfo speaks of, and what became of it.
fn child_of(info: *const u8) -> Option<(i32, i32)> {
    if info.is_null() {
        return None;
    }
    // SAFETY: a siginfo_t of SIGCHLD.
    let at = |place: usize| unsafe { info.add(place).cast::<i32>().read_unaligned() };
    Some((at(SI_PID), at(SI_CODE)))
}

/// The child of whose end a siginfo tells.
pub fn end_told(info: *const u8) -> Option<i32> {
    child_of(info).filter(|it| ends(it.1) && it.0 > 0).map(|it| it.0)
}

/// Notes that the log has answered `waitid` with this.
pub fn ended_by(info: *const u8) {
    if let Some((pid, code)) = child_of(info).filter(|it| ends(it.1)) {
        ended(pid, code != libc::CLD_EXITED);
    }
}

/// The kernel's `kill`, in the numbers that the server knows. A shadow signals
/// nobody but itself.
pub fn kill(pid: i32, signal: i32) -> isize {
    match shadow() {
        0 => sys!(SYS_kill, own_number(pid), signal),
        own if pid == own => sys::signal_self(signal),
        _ => 0,
    }
}

/// Sends a signal, which the primary's server has sent to its child, to the shadow, too.
pub fn signalled(pid: i32, signal: i32) {
    if let Some(child) = find(pid) {
        sys!(SYS_kill, child.own.load(Relaxed), signal);
    }
}
