//! The priority of the calling thread among others that want its processor.

use crate::sockopt::checked;
use std::io;

/// Gives the calling thread the real-time policy `SCHED_RR`; `priority` is 1
/// (lowest) to 99. Threads and processes it starts later do not inherit it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, `EINVAL` for another priority.
pub fn set_realtime(priority: i32) -> io::Result<()> {
    set_policy(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, priority)
}

/// Gives another thread, and those that it starts, the calling thread's real-time priority, if that
/// has one.
///
/// # Errors
/// As [`set_realtime`].
pub fn share_realtime(tid: u32) -> io::Result<()> {
    realtime().map_or(Ok(()), |priority| set_policy(tid.cast_signed(), libc::SCHED_RR, priority))
}

/// Thread 0 is the calling one.
fn set_policy(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel only reads `parameters`.
    checked(unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) }).map(drop)
}

/// The calling thread's real-time priority, if it has one.
#[must_use]
pub fn realtime() -> Option<i32> {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel writes `parameters`; 0 is the calling thread.
    unsafe { libc::sched_getparam(0, &raw mut parameters) };
    Some(parameters.sched_priority).filter(|priority| *priority > 0)
}

/// Does `work` with a real-time priority that the calling thread otherwise does not have.
pub fn urgently<T>(priority: Option<i32>, work: impl FnOnce() -> T) -> T {
    let is_urgent = priority.is_some_and(|priority| set_realtime(priority).is_ok());
    let done = work();
    if is_urgent {
        give_up_realtime();
    }
    done
}

/// Does `work`; threads that it starts inherit the calling thread's real-time priority, if that has
/// one. So who waits for them waits for nobody else.
pub fn inherited<T>(work: impl FnOnce() -> T) -> T {
    let own = realtime();
    if let Some(priority) = own {
        let _ = set_policy(0, libc::SCHED_RR, priority);
    }
    let done = work();
    if let Some(priority) = own {
        let _ = set_realtime(priority);
    }
    done
}

/// Gives the calling thread a smaller share of its processor, as nice(2) does.
pub fn give_way(nice: i32) {
    // SAFETY: no pointers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

fn give_up_realtime() {
    // Without the flag the kernel would demand a right that is not needed.
    let _ = set_policy(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0);
}
