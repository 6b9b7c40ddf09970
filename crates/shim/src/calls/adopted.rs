//! Adopted processes. In a family the server is process 1 of its pid namespace, to which the
//! kernel gives processes whose parents have ended. Without Holdfast they would go to another
//! process, and servers do not expect them (vsftpd looks up every child that ends). So the
//! server's own children are remembered, and the others are waited for here.

use crate::base::state;
use crate::base::sys::syscall;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use holdfast_wire::group::PROCESSES_MAX;

/// Most children that are remembered. Beyond that every process counts as the server's own.
const CHILDREN_MAX: usize = 4 * PROCESSES_MAX;
/// Offset of the process's number in `siginfo_t`.
const SI_PID: usize = 16;

static CHILDREN: [AtomicI32; CHILDREN_MAX] = [const { AtomicI32::new(0) }; CHILDREN_MAX];
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Whether the kernel gives orphaned processes to this one.
fn adopts() -> bool {
    state::is_family() && state::place() == 0
}

/// Remembers a child that this process has made.
pub fn made(pid: i32) {
    if pid <= 0 || !adopts() {
        return;
    }
    let take = |it: &&AtomicI32| it.compare_exchange(0, pid, AcqRel, Relaxed).is_ok();
    if CHILDREN.iter().find(take).is_none() {
        IS_FULL.store(true, Relaxed);
    }
}

/// Forgets all children, in a forked child.
pub fn forget() {
    CHILDREN.iter().for_each(|it| it.store(0, Relaxed));
    IS_FULL.store(false, Relaxed);
}

/// Forgets a child that has ended and was waited for.
pub fn gone(pid: i32) {
    if let Some(child) = CHILDREN.iter().find(|it| pid > 0 && it.load(Relaxed) == pid) {
        child.store(0, Release);
    }
}

/// Whether an ended process was adopted, not the server's own child.
pub fn is_adopted(pid: i32) -> bool {
    let is_own = || CHILDREN.iter().any(|it| it.load(Acquire) == pid);
    adopts() && !IS_FULL.load(Relaxed) && !is_own()
}

/// Calls `f` for every child, for the next program to know.
pub fn for_each(mut f: impl FnMut(i32)) {
    let all = CHILDREN.iter().map(|it| it.load(Relaxed));
    all.filter(|pid| *pid != 0).for_each(&mut f);
}

/// On the replica, which waits for its own children only when the log says so: waits for adopted
/// ones that have ended, so that their process ids become free.
pub fn reap() {
    while adopts() {
        let mut info = [0u64; 16];
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let at = info.as_mut_ptr().cast::<u8>();
        // SAFETY: memory of ours, as large as a siginfo.
        let r = unsafe { syscall!(SYS_waitid, libc::P_ALL, 0, at, how, 0) };
        // SAFETY: within it.
        let pid = unsafe { at.add(SI_PID).cast::<i32>().read_unaligned() };
        if r != 0 || pid <= 0 || !is_adopted(pid) {
            return;
        }
        // SAFETY: no status is asked for.
        unsafe { syscall!(SYS_wait4, pid, 0, libc::WNOHANG, 0) };
    }
}
