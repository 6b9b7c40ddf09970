//! `fork`, `wait` and their like. In a family all processes are in one log (see `births`);
//! otherwise children run outside protection (see `family`), and the replica learns from the log
//! what became of them; its own children are their shadows (see `children`).

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, Mode, inside, mode};
use crate::base::sys::{libc_result, syscall};
use crate::base::table::Call;
use crate::base::{defer, park, quiet, token};
use crate::calls::shapes::with_data;
use crate::calls::{adopted, births, children};
use holdfast_wire::log::Op;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fork() -> i32 {
    if state::is_family() && !inside() {
        return births::fork();
    }
    quiet::call(|_| match mode() {
        Mode::Pass => Some(real(Real::Fork)(0, 0, 0, 0)),
        Mode::Record => {
            defer::flush();
            let pid = real(Real::Fork)(0, 0, 0, 0);
            // In the child the mode is another one by now (see `family::born`).
            if pid == 0 {
                children::none();
            } else {
                log::append(Entry::new(Op::Fork, Call::fork, -1, pid as isize), &[]);
            }
            Some(pid)
        }
        Mode::Replay => match log::take(Op::Fork, Call::fork, -1) {
            Some(taken) => {
                let pid = taken.ret() as i32;
                if pid > 0 && children::make(pid) {
                    return Some(0);
                }
                taken.done();
                Some(pid)
            }
            None => park::start_over(),
        },
    })
}

/// `vfork`: a wrapper cannot return twice on one stack, so it is fork here.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vfork() -> i32 {
    // SAFETY: no arguments.
    unsafe { fork() }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wait4(pid: i32, status: *mut u8, options: i32, usage: *mut u8) -> i32 {
    if inside() {
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_wait4, pid, status, options, usage) }) as i32;
    }
    let mut word = 0i32;
    let at = &raw mut word;
    let may_block = options & libc::WNOHANG == 0;
    let raw = || loop {
        let r = token::apart_if(may_block, || children::wait4(pid, at, options, usage));
        // SAFETY: the kernel has filled it.
        if r <= 0 || !children::has_ended(unsafe { *at }) {
            break r;
        }
        births::ended(r as i32);
        if !adopted::is_adopted(r as i32) {
            break r;
        }
    };
    if mode() == Mode::Record {
        defer::flush();
    }
    let from_log = mode() == Mode::Replay;
    let outs = [(at.cast(), size_of::<i32>()), (usage, size_of::<libc::rusage>())];
    let r = with_data(Call::wait, -1, &outs, raw);
    if from_log && mode() == Mode::Replay && r > 0 && children::has_ended(word) {
        children::ended(r as i32, libc::WIFSIGNALED(word));
        births::reap(r as i32);
        adopted::reap();
    }
    if r > 0 && children::has_ended(word) {
        adopted::gone(r as i32);
    }
    if r > 0 && !status.is_null() {
        // SAFETY: the caller's status.
        unsafe { status.cast::<i32>().write_unaligned(word) };
    }
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn waitpid(pid: i32, status: *mut u8, options: i32) -> i32 {
    // SAFETY: the same call without usage.
    unsafe { wait4(pid, status, options, core::ptr::null_mut()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wait3(status: *mut u8, options: i32, usage: *mut u8) -> i32 {
    // SAFETY: the same call for any child.
    unsafe { wait4(-1, status, options, usage) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn waitid(kind: i32, id: u32, info: *mut u8, options: i32) -> i32 {
    let may_block = options & libc::WNOHANG == 0;
    let raw = || loop {
        let r = token::apart_if(may_block, || children::waitid(kind, id, info, options));
        let Some(pid) = children::end_told(info).filter(|_| r == 0) else { break r };
        births::ended(pid);
        if options & libc::WNOWAIT != 0 || !adopted::is_adopted(pid) {
            break r;
        }
    };
    if mode() == Mode::Record {
        defer::flush();
    }
    let from_log = mode() == Mode::Replay;
    let r = with_data(Call::wait, kind, &[(info, size_of::<libc::siginfo_t>())], raw);
    if from_log && mode() == Mode::Replay && r == 0 && options & libc::WNOWAIT == 0 {
        children::ended_by(info);
        children::end_told(info).into_iter().for_each(births::reap);
        adopted::reap();
    }
    if let Some(pid) = children::end_told(info).filter(|_| r == 0 && options & libc::WNOWAIT == 0) {
        adopted::gone(pid);
    }
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wait(status: *mut u8) -> i32 {
    // SAFETY: the same call for any child.
    unsafe { wait4(-1, status, 0, core::ptr::null_mut()) }
}
