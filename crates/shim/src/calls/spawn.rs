//! Programs that the server starts through libc (`posix_spawn`, `system`, `popen`). They run only
//! on the primary's host; the replica learns their process ids and results from the log.

use crate::base::commit;
use crate::base::real::{self, Real, real, real6};
use crate::base::report::refused;
use crate::base::state::{Mode, mode};
use crate::base::table::Call;
use crate::base::{alarm, defer, quiet, sys, token};
use crate::calls::shapes::{simple, with_data};
use crate::calls::{adopted, births, children, processors};

/// Called before a program starts: its effects cannot be taken back, so the backup must first hold
/// what led to them.
fn before_effect() {
    children::leave();
    if mode() == Mode::Record {
        defer::flush();
        commit::commit();
    }
}

/// Runs a libc function that makes system calls past the shim: it counts as one call, and the
/// server is not copied meanwhile.
fn inside_libc(f: impl Fn() -> isize) -> isize {
    quiet::call(|_| Some(f()))
}

/// Runs `f`, which starts a program, so that the program may read the time stamp counter and run
/// on all processors.
pub fn elsewhere<T>(f: impl FnOnce() -> T) -> T {
    alarm::with_tsc(|| processors::freed(f))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn system(command: *const u8) -> i32 {
    before_effect();
    let run = || elsewhere(|| real(Real::System)(command as usize, 0, 0, 0) as isize);
    let raw = || token::apart(run);
    inside_libc(|| simple(Call::spawn, -1, false, raw)) as i32
}

fn spawn(which: Real, pid: *mut i32, rest: [usize; 5]) -> i32 {
    before_effect();
    let [path, actions, attributes, arguments, environment] = rest;
    let raw = || {
        let all = [pid as usize, path, actions, attributes, arguments, environment];
        elsewhere(|| real6(which, all) as i32 as isize)
    };
    let r = inside_libc(|| with_data(Call::spawn, -1, &[(pid.cast(), 4)], raw)) as i32;
    if r == 0 && !pid.is_null() {
        // SAFETY: the caller's, which has just been filled.
        adopted::made(unsafe { pid.read() });
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut i32,
    path: usize,
    actions: usize,
    attributes: usize,
    arguments: usize,
    environment: usize,
) -> i32 {
    spawn(Real::PosixSpawn, pid, [path, actions, attributes, arguments, environment])
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut i32,
    path: usize,
    actions: usize,
    attributes: usize,
    arguments: usize,
    environment: usize,
) -> i32 {
    spawn(Real::PosixSpawnp, pid, [path, actions, attributes, arguments, environment])
}

/// `popen`: libc itself would read the pipe, past the shim.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn popen(command: usize, how: usize) -> usize {
    children::leave();
    if mode() == Mode::Pass {
        return real6(Real::Popen, [command, how, 0, 0, 0, 0]);
    }
    refused("popen", "use pipe, fork and read");
    sys::set_errno(libc::ENOSYS);
    0
}

/// Called before the process ends: deferred writes would be lost with it.
fn before_leaving() {
    if mode() == Mode::Record {
        defer::flush();
    }
}

/// Ends the process without the handlers that `exit` runs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(code: i32) -> ! {
    before_leaving();
    births::leave();
    sys::die(code)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _Exit(code: i32) -> ! {
    // SAFETY: another name of the same call.
    unsafe { _exit(code) }
}

/// Where `clone` jumps to: libc's function, or null if the child would share the shim's memory and
/// write into the log at the same time as the server.
extern "C" fn clone_target() -> usize {
    if mode() == Mode::Pass {
        return real::address(Real::Clone);
    }
    refused("clone", "use fork or pthread_create");
    sys::set_errno(libc::ENOSYS);
    0
}

/// Passes on all arguments, even those on the stack.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn clone(function: usize, stack: usize, flags: i32, arg: usize) -> i32 {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {f}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: mov eax, -1",
        "ret",
        f = sym clone_target
    )
}
