//! The identity of process and machine: numbers and names that differ between
//! machines.

use crate::base::state::{self, Mode, header, mode};
use crate::base::sys::{self, libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{real, report};
use crate::calls::shapes::{simple, with_data};
use crate::calls::{children, processors};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The process's id on the primary, once it is known.
static PID: AtomicI32 = AtomicI32::new(0);

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpid() -> i32 {
    if mode() == Mode::Pass {
        return match children::shadow() {
            0 => sys!(SYS_getpid) as i32,
            shadow => shadow,
        };
    }
    match PID.load(Relaxed) {
        0 => {
            let pid = simple(Call::getpid, -1, false, || sys!(SYS_getpid)) as i32;
            PID.store(pid, Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Forgets the id, in a forked child, which has its own.
pub fn forget() {
    PID.store(0, Relaxed);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getppid() -> i32 {
    if children::shadow() != 0 {
        // A child of the server is told the server's id on the primary.
        let parent = sys!(SYS_getppid) as i32;
        let server = PID.load(Relaxed);
        let is_server = parent == header().pid.load(Relaxed) && server != 0;
        return if is_server { server } else { parent };
    }
    simple(Call::getppid, -1, false, || sys!(SYS_getppid)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gettid() -> i32 {
    simple(Call::gettid, -1, false, || sys!(SYS_gettid)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpgrp() -> i32 {
    simple(Call::getpgrp, -1, false, || sys!(SYS_getpgrp)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpgid(pid: i32) -> i32 {
    libc_result(simple(Call::getpgrp, -1, false, || sys!(SYS_getpgid, pid))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsid(pid: i32) -> i32 {
    libc_result(simple(Call::getpgrp, -1, false, || sys!(SYS_getsid, pid))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsid() -> i32 {
    libc_result(simple(Call::getpgrp, -1, true, || sys!(SYS_setsid))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn uname(out: *mut libc::utsname) -> i32 {
    libc_result(with_data(Call::uname, -1, &[(out.cast(), size_of::<libc::utsname>())], || {
        // SAFETY: the server's own call, with its own arguments.
        unsafe { syscall!(SYS_uname, out) }
    })) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gethostname(out: *mut u8, len: usize) -> i32 {
    // SAFETY: all-zero is a valid utsname.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: a valid buffer.
    unsafe { uname(&raw mut name) };
    let n = name.nodename.iter().position(|c| *c == 0).unwrap_or(name.nodename.len() - 1);
    if n >= len {
        sys::set_errno(libc::ENAMETOOLONG);
        return -1;
    }
    // SAFETY: n + 1 <= len bytes of the caller's buffer.
    unsafe { core::ptr::copy_nonoverlapping(name.nodename.as_ptr().cast(), out, n + 1) };
    0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sysinfo(out: *mut u8) -> i32 {
    libc_result(with_data(Call::sysinfo, 0, &[(out, size_of::<libc::sysinfo>())], || {
        // SAFETY: the server's own call, with its own arguments.
        unsafe { syscall!(SYS_sysinfo, out) }
    })) as i32
}

/// `sched_getaffinity` as the kernel answers it: with the number of bytes.
pub fn affinity(pid: i32, len: usize, out: *mut u8) -> isize {
    let raw = || processors::affinity(pid, len, out);
    with_data(Call::sysinfo, -2, &[(out, len.min(1024))], raw)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sched_getaffinity(pid: i32, len: usize, out: *mut u8) -> i32 {
    let r = affinity(pid, len, out);
    if r > 0 && (r as usize) < len {
        // SAFETY: the kernel fills `r` bytes; libc clears the rest.
        unsafe { core::ptr::write_bytes(out.add(r as usize), 0, len - r as usize) };
    }
    libc_result(r).min(0) as i32
}

/// Values of `sysconf` that depend on the machine.
const MACHINE: [i32; 4] = [
    libc::_SC_NPROCESSORS_CONF,
    libc::_SC_NPROCESSORS_ONLN,
    libc::_SC_PHYS_PAGES,
    libc::_SC_AVPHYS_PAGES,
];

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sysconf(name: i32) -> i64 {
    let raw = || state::uninterrupted(|| real::sysconf(name) as isize);
    if !MACHINE.contains(&name) || state::inside() {
        return raw() as i64;
    }
    simple(Call::sysinfo, name, false, raw) as i64
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn alarm(seconds: u32) -> u32 {
    simple(Call::alarm, seconds as i32, false, || sys!(SYS_alarm, seconds)) as u32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setitimer(which: i32, new: *const u8, old: *mut u8) -> i32 {
    let room = size_of::<libc::itimerval>();
    libc_result(with_data(Call::alarm, which, &[(old, room)], || {
        // SAFETY: the server's own call, with its own arguments.
        unsafe { syscall!(SYS_setitimer, which, new, old) }
    })) as i32
}

/// Whether seccomp filters are refused: in a family the shim makes system calls of its own, for
/// which a server's filter would kill the process.
pub fn refuses_filters() -> bool {
    let refuses = state::is_family() && mode() != Mode::Pass && !state::inside();
    if refuses {
        report::refused("a filter of system calls (seccomp)", "the process runs without");
    }
    refuses
}

/// `prctl`: what a process sets for itself is real on both members. A seccomp filter is refused
/// with `EINVAL`, as by a kernel without them.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: i32, b: usize, c: usize, d: usize, e: usize) -> i32 {
    if option == libc::PR_SET_SECCOMP && refuses_filters() {
        return libc_result(-(libc::EINVAL as isize)) as i32;
    }
    // SAFETY: the server's own call, with its own arguments.
    libc_result(unsafe { syscall!(SYS_prctl, option, b, c, d, e) }) as i32
}
