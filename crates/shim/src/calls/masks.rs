//! Signal masks, waiting for signals, and sending them. The mask itself is real
//! on both members; the outcome of a wait is in the log.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, Mode, mode};
use crate::base::sys::{self, libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{alarm, defer, handlers, park, processes, quiet, ring, token};
use crate::calls::shapes::{simple, with_data};
use crate::calls::{children, signals};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::Op;

/// Size of the kernel's signal set, in bytes.
const SET_BYTES: usize = 8;
/// Mask of signals 32 and 33, which belong to libc.
const LIBC_SIGNALS: u64 = 3 << 31;
const SIGINFO_BYTES: usize = 128;

fn change_mask(how: i32, set: *const u64, old: *mut u64) -> isize {
    if set.is_null() {
        // SAFETY: the server's own call, with its own arguments.
        return unsafe { syscall!(SYS_rt_sigprocmask, how, set, old, SET_BYTES) };
    }
    // SAFETY: the caller's set; the kernel knows its first word only.
    let mut wanted = unsafe { *set } & !LIBC_SIGNALS;
    if how != libc::SIG_UNBLOCK {
        alarm::unblockable(&mut wanted);
    }
    let mut before = 0u64;
    // SAFETY: sets of ours.
    let r =
        unsafe { syscall!(SYS_rt_sigprocmask, how, &raw const wanted, &raw mut before, SET_BYTES) };
    if r == 0 {
        handlers::note_mask(match how {
            libc::SIG_BLOCK => before | wanted,
            libc::SIG_UNBLOCK => before & !wanted,
            _ => wanted,
        });
        if !old.is_null() {
            // SAFETY: the caller's set.
            unsafe { *old = before };
        }
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigprocmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
    libc_result(change_mask(how, set, old)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_sigmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
    // This one returns the error instead of setting errno.
    -change_mask(how, set, old) as i32
}

/// Called before the server waits: sends what it has written.
fn about_to_wait() {
    defer::flush();
    ring::kick();
}

/// A call during which signals may come: their handlers run before its own record, so that on both
/// members they run before it returns. If the call waits for a handler (blocking the signals
/// `waits`), and one has run just before, it does not wait.
fn with_handlers(call: Call, fd: i32, waits: Option<u64>, raw: impl Fn() -> isize) -> isize {
    with_handlers_noting(call, fd, waits, raw, |_| {})
}

/// Like [`with_handlers`]; on the replica `noted` gets the outcome while the log stands.
fn with_handlers_noting(
    call: Call,
    fd: i32,
    waits: Option<u64>,
    raw: impl Fn() -> isize,
    noted: impl Fn(isize),
) -> isize {
    let deliver = || signals::deliver_within(waits.unwrap_or(u64::MAX));
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            about_to_wait();
            deliver();
            let has_run = waits.is_some() && signals::take_delivered();
            let r = if has_run {
                -(libc::EINTR as isize)
            } else {
                token::apart_if(waits.is_some(), || this.sleep(&raw))?
            };
            deliver();
            log::append(Entry::new(Op::Result, call, fd, r), &[]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Result, call, fd) {
            Some(taken) => {
                let r = taken.ret();
                noted(r);
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// Waits for a handler to run. The handler of a signal that came earlier may run only now, after
/// the server has looked for its effect; then the call must not sleep.
/// While it waits it blocks `mask` in place of its own.
fn wait_for_handler(mask: u64, raw: impl Fn() -> isize) -> isize {
    signals::take_delivered();
    with_handlers(Call::sigsuspend, -1, Some(mask), raw)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigsuspend(mask: *const u64) -> i32 {
    // SAFETY: the caller's set.
    let mut mask = unsafe { *mask };
    alarm::unblockable(&mut mask);
    // SAFETY: memory of ours, of the sizes that are said.
    libc_result(wait_for_handler(mask, || unsafe {
        syscall!(SYS_rt_sigsuspend, &raw const mask, SET_BYTES)
    })) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pause() -> i32 {
    libc_result(wait_for_handler(u64::MAX, || sys!(SYS_pause))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigwait(set: *const u64, signal: *mut i32) -> i32 {
    let none = core::ptr::null::<u8>();
    // SAFETY: the server's own set, and nothing to fill in.
    let raw =
        || token::apart(|| unsafe { syscall!(SYS_rt_sigtimedwait, set, none, none, SET_BYTES) });
    if mode() == Mode::Record {
        about_to_wait();
    }
    let wait = || told(|| simple(Call::sigwait, -1, false, raw));
    let mut r = wait();
    while r == -(libc::EINTR as isize) {
        r = wait();
    }
    match r {
        r if r > 0 => {
            // SAFETY: the caller's out-parameter.
            unsafe { *signal = r as i32 };
            0
        }
        r => -r as i32,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigtimedwait(
    set: *const u64,
    info: *mut u8,
    time: *const libc::timespec,
) -> i32 {
    if mode() == Mode::Record {
        about_to_wait();
    }
    // SAFETY: the server's own call, with its own arguments.
    let raw =
        || token::apart(|| unsafe { syscall!(SYS_rt_sigtimedwait, set, info, time, SET_BYTES) });
    libc_result(told(|| with_data(Call::sigwait, -1, &[(info, SIGINFO_BYTES)], raw))) as i32
}

/// A wait whose outcome is a signal, which the log may have told.
fn told(wait: impl FnOnce() -> isize) -> isize {
    let from_log = mode() == Mode::Replay;
    let signal = wait();
    if from_log && mode() == Mode::Replay && signal > 0 {
        handlers::has_been_told(signal as i32);
    }
    signal
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigwaitinfo(set: *const u64, info: *mut u8) -> i32 {
    // SAFETY: the same call without a limit.
    unsafe { sigtimedwait(set, info, core::ptr::null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigpending(set: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_rt_sigpending, set, SET_BYTES) };
    libc_result(with_data(Call::sigwait, -1, &[(set, SET_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn kill(pid: i32, signal: i32) -> i32 {
    let from_log = mode() == Mode::Replay;
    let noted = |r: isize| {
        if r == 0 && state::is_family() && pid != state::process().pid.load(Relaxed) {
            processes::sent(pid, signal);
        }
    };
    let raw = || children::kill(pid, signal);
    let r = with_handlers_noting(Call::kill, signal, None, raw, noted);
    if from_log && mode() == Mode::Replay && r == 0 {
        children::signalled(pid, signal);
    }
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn killpg(group: i32, signal: i32) -> i32 {
    // SAFETY: no pointers.
    unsafe { kill(if group == 0 { 0 } else { -group }, signal) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn raise(signal: i32) -> i32 {
    libc_result(with_handlers(Call::kill, signal, None, || sys::signal_self(signal))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_kill(thread: usize, signal: i32) -> i32 {
    let raw = || -(real(Real::PthreadKill)(thread, signal as usize, 0, 0) as isize);
    -with_handlers(Call::kill, signal, None, raw) as i32
}
