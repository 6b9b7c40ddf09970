//! System calls by number (libc's `syscall`).

use crate::base::report::refused;
use crate::base::state::{self, Mode, inside, mode};
use crate::base::sys::{self, libc_result, sys};
use crate::calls::{clocks, identity, masks, processes, ready, routes, signals, spawn, turns};

/// `syscall`: calls that the shim intercepts go to their functions.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> isize {
    // The sixth argument lies on the stack, and nothing of ours above it: put
    // the return address where the seventh parameter is expected.
    core::arch::naked_asm!(
        "mov rax, [rsp + 8]",
        "mov r11, [rsp]",
        // The stack is a multiple of 16 at every call.
        "sub rsp, 8",
        "push r11",
        "push rax",
        "call {f}",
        "add rsp, 24",
        "ret",
        f = sym syscall_from
    )
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn syscall_from(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    caller: usize,
) -> isize {
    if mode() != Mode::Pass && !inside() && !state::excluded(caller) {
        // SAFETY: the arguments of the very calls, by number.
        if let Some(r) = unsafe { by_number(n, [a, b, c, d, e, f]) } {
            return r;
        }
    }
    // SAFETY: the caller's own system call.
    libc_result(unsafe { sys::syscall6(n, a, b, c, d, e, f) })
}

/// Calls the function that stands for a call by number; `None`: the call goes
/// to the kernel.
unsafe fn by_number(n: i64, x: [usize; 6]) -> Option<isize> {
    // SAFETY: by the caller's promise.
    unsafe { special(n, x).or_else(|| routes::route(n, x)) }
}

/// Like [`by_number`], for calls whose function differs from them.
unsafe fn special(n: i64, x: [usize; 6]) -> Option<isize> {
    let [a, b, c, d, e, f] = x;
    let myself = || sys!(SYS_gettid) as i32;
    // SAFETY: by the caller's promise.
    let r = unsafe {
        match n {
            libc::SYS_clock_gettime => {
                clocks::clock_gettime_from(a as i32, b as *mut _, 0) as isize
            }
            // libc's function returns the error.
            libc::SYS_clock_nanosleep => {
                let r = clocks::clock_nanosleep(a as i32, b as i32, c as *const _, d as *mut _);
                libc_result(-(r as isize))
            }
            libc::SYS_sched_getaffinity => {
                libc_result(identity::affinity(a as i32, b, c as *mut u8))
            }
            libc::SYS_pselect6 => {
                let sets = [b, c, d].map(|set| set as *mut u8);
                let mask = (f as *const *const u8).as_ref().copied().unwrap_or_default();
                ready::pselect(a as i32, sets[0], sets[1], sets[2], e as *const _, mask) as isize
            }
            libc::SYS_rt_sigaction => rt_sigaction(a as i32, b as *const _, c as *mut _) as isize,
            libc::SYS_tgkill if b as i32 == myself() => masks::raise(c as i32) as isize,
            libc::SYS_tkill if a as i32 == myself() => masks::raise(b as i32) as isize,
            // A child on a copy of this stack is a fork. Any other is a thread, or is in a
            // namespace of its own, and the shim would not know it.
            libc::SYS_clone if b == 0 && a as i32 & !0xff & !CLONE_IDS == 0 => {
                processes::fork() as isize
            }
            // The error of a kernel without namespaces: servers that would like some (vsftpd)
            // then fork without, and go on serving.
            libc::SYS_clone if a as i32 & CLONE_NAMESPACES != 0 => {
                refused("clone", "with namespaces; a fork without is replicated");
                libc_result(-(libc::EINVAL as isize))
            }
            libc::SYS_clone | libc::SYS_clone3 => {
                no_such_call("clone", "use fork or pthread_create")
            }
            // The kernel's call also tells what the child has used.
            libc::SYS_waitid if e == 0 => {
                processes::waitid(a as i32, b as u32, c as *mut u8, d as i32) as isize
            }
            libc::SYS_waitid => no_such_call("waitid with usage", "use wait4"),
            libc::SYS_exit_group => spawn::_exit(a as i32),
            libc::SYS_seccomp if identity::refuses_filters() => {
                libc_result(-(libc::EINVAL as isize))
            }
            libc::SYS_futex => return turns::futex(x),
            libc::SYS_sched_yield => libc_result(turns::yield_turn()),
            libc::SYS_io_uring_setup => {
                no_such_call("io_uring", "start the server without io_uring")
            }
            _ => return None,
        }
    };
    Some(r)
}

/// The kernel's `struct sigaction`.
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// `rt_sigaction`, by libc's function. Its action has the same in another order, and begins its
/// mask with the kernel's.
unsafe fn rt_sigaction(signal: i32, new: *const Action, old: *mut Action) -> i32 {
    // SAFETY: all-zero is a valid action; the pointers are null or the caller's.
    unsafe {
        let (mut wanted, mut before): (libc::sigaction, libc::sigaction) = core::mem::zeroed();
        let at = new.as_ref().map_or(core::ptr::null(), |new| {
            wanted.sa_sigaction = new.handler;
            wanted.sa_flags = new.flags as i32;
            (&raw mut wanted.sa_mask).cast::<u64>().write(new.mask);
            &raw const wanted
        });
        let r = signals::sigaction(signal, at, &raw mut before);
        if r == 0 && !old.is_null() {
            old.write(Action {
                handler: before.sa_sigaction,
                flags: before.sa_flags as u64,
                restorer: before.sa_restorer.map_or(0, |f| f as usize),
                mask: (&raw const before.sa_mask).cast::<u64>().read(),
            });
        }
        r
    }
}

/// Flags of `clone` that only store the child's number, which libc's fork does.
const CLONE_IDS: i32 =
    libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID;

/// Flags of `clone` that give the child namespaces of its own.
const CLONE_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

fn no_such_call(name: &str, remedy: &str) -> isize {
    refused(name, remedy);
    libc_result(-(libc::ENOSYS as isize))
}
