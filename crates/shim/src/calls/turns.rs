//! `sched_yield` and the raw `futex`, by which threads let each other run or wait for a word in
//! memory, and `fsync`, which waits for a disk. Where threads run one at a time these calls are in
//! the log (decision 34); else they go to the kernel as they are.

use crate::base::log::{self, Entry};
use crate::base::state::{Mode, inside, mode, threaded};
use crate::base::sys::{self, libc_result, sys};
use crate::base::table::Call;
use crate::base::{defer, park, quiet, ring, token};
use crate::calls::{clocks, signals};
use holdfast_wire::log::Op;

/// Mask of a futex call's operation, without its flags.
const OPERATION: i32 = 127;

fn are_ordered() -> bool {
    token::is_chosen() && threaded() && mode() != Mode::Pass && !inside()
}

/// `sched_yield`: another thread may run here.
pub fn yield_turn() -> isize {
    if are_ordered() {
        token::apart(|| sys!(SYS_sched_yield));
        park::go_on();
        return 0;
    }
    sys!(SYS_sched_yield)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sched_yield() -> i32 {
    libc_result(yield_turn()) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_yield() {
    yield_turn();
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fsync(fd: i32) -> i32 {
    libc_result(sync(fd, || sys!(SYS_fsync, fd))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fdatasync(fd: i32) -> i32 {
    libc_result(sync(fd, || sys!(SYS_fdatasync, fd))) as i32
}

/// Waits for a disk while other threads run. Each member waits for its own.
pub fn sync(fd: i32, raw: impl Fn() -> isize) -> isize {
    if !are_ordered() {
        return raw();
    }
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            defer::flush();
            ring::before_block();
            let r = token::apart(|| this.sleep(&raw))?;
            log::append(Entry::new(Op::Result, Call::fsync, fd, r), &[]);
            Some(r)
        }
        Mode::Replay => {
            // The threads run meanwhile that did so on the primary.
            token::give();
            raw();
            match log::take(Op::Result, Call::fsync, fd) {
                Some(taken) => {
                    let r = taken.ret();
                    taken.done();
                    Some(r)
                }
                None => park::start_over(),
            }
        }
    })
}

/// How a futex call goes into the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The replica does not wait: the outcome is in the log.
    Waits,
    /// The same, with a point in time as limit.
    WaitsUntil,
    /// It may change memory: the replica makes it, too.
    Wakes,
}

fn kind(operation: i32) -> Option<Kind> {
    match operation & OPERATION {
        libc::FUTEX_WAIT => Some(Kind::Waits),
        libc::FUTEX_WAIT_BITSET => Some(Kind::WaitsUntil),
        libc::FUTEX_WAKE
        | libc::FUTEX_WAKE_BITSET
        | libc::FUTEX_WAKE_OP
        | libc::FUTEX_REQUEUE
        | libc::FUTEX_CMP_REQUEUE => Some(Kind::Wakes),
        _ => None,
    }
}

/// The raw futex call: `None` if it goes to the kernel as it is.
pub fn futex(arguments: [usize; 6]) -> Option<isize> {
    let operation = arguments[1] as i32;
    defer::flush();
    let kind = kind(operation).filter(|_| are_ordered())?;
    let raw = || {
        let clock = if operation & libc::FUTEX_CLOCK_REALTIME == 0 {
            libc::CLOCK_MONOTONIC
        } else {
            libc::CLOCK_REALTIME
        };
        let mut own = arguments;
        let until =
            (kind == Kind::WaitsUntil).then(|| clocks::until(Some(clock), own[3])).flatten();
        if until.is_some() {
            own[3] = clocks::address(&until);
        }
        // SAFETY: the server's own call, with its own arguments or a time of ours.
        unsafe { sys::syscall6(libc::SYS_futex, own[0], own[1], own[2], own[3], own[4], own[5]) }
    };
    Some(libc_result(quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            ring::before_block();
            let r = token::apart_if(kind != Kind::Wakes, || this.sleep(raw))?;
            log::append(Entry::new(Op::Lock, Call::futex, operation & OPERATION, r), &[]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Lock, Call::futex, operation & OPERATION) {
            Some(taken) => {
                if kind == Kind::Wakes {
                    raw();
                }
                let r = taken.ret();
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })))
}
