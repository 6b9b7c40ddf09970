//! Properties of the machine: interfaces, load, file systems, links in `/proc`, random names. On
//! the backup they come from the log.

use crate::base::fds::{self, Kind};
use crate::base::log;
use crate::base::real::{Real, real, real6};
use crate::base::state::{inside, uninterrupted};
use crate::base::sys::{errno, libc_result, sys, syscall};
use crate::base::table::Call;

use crate::calls::files::{is_device, open_raw};
use crate::calls::random::getrandom_raw;
use crate::calls::shapes::{new_fd, simple, with_data};
use crate::calls::{clocks, input, output};
use core::ffi::CStr;

/// Sizes of libc's struct statvfs, and of a timer's two intervals, in bytes.
const STATVFS_BYTES: usize = size_of::<libc::statvfs>();
const INTERVALS_BYTES: usize = size_of::<libc::itimerspec>();
/// Most random names that are tried.
const NAMES_MAX: usize = 1000;

/// Runs a libc function with interception off; failure (`bad`) becomes `-errno`.
fn quietly(bad: i32, f: impl Fn() -> i32) -> isize {
    match uninterrupted(&f) {
        r if r == bad => -(errno() as isize),
        r => r as isize,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn if_nametoindex(name: usize) -> u32 {
    let raw = || quietly(0, || real(Real::Nametoindex)(name, 0, 0, 0));
    libc_result(simple(Call::interfaces, -1, false, raw)).max(0) as u32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn if_indextoname(index: u32, name: *mut u8) -> *mut u8 {
    let raw = || {
        let f = || real6(Real::Indextoname, [index as usize, name as usize, 0, 0, 0, 0]);
        if uninterrupted(f) == 0 { -(errno() as isize) } else { 0 }
    };
    match libc_result(with_data(Call::interfaces, index as i32, &[(name, 16)], raw)) {
        0 => name,
        _ => core::ptr::null_mut(),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getloadavg(out: *mut u8, count: i32) -> i32 {
    let raw = || quietly(-1, || real(Real::Getloadavg)(out as usize, count as usize, 0, 0));
    libc_result(with_data(Call::sysinfo, -3, &[(out, count.clamp(0, 3) as usize * 8)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getcpu(cpu: *mut u8, node: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_getcpu, cpu, node, 0) };
    libc_result(with_data(Call::getcpu, -1, &[(cpu, 4), (node, 4)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sched_getcpu() -> i32 {
    let mut cpu = 0u32;
    // SAFETY: room for the number.
    if unsafe { getcpu((&raw mut cpu).cast(), core::ptr::null_mut()) } < 0 {
        return -1;
    }
    cpu as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_getres(clock: i32, out: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_clock_getres, clock, out) };
    if inside() {
        return libc_result(raw()) as i32;
    }
    let number = clocks::in_log(clock);
    libc_result(with_data(Call::clock_getres, number, &[(out, 16)], raw)) as i32
}

/// `clock_getcpuclockid`: libc would ask the kernel about a process that has another id here.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_getcpuclockid(pid: i32, out: *mut i32) -> i32 {
    let raw = || real(Real::ClockGetcpuclockid)(pid as usize, out as usize, 0, 0) as isize;
    with_data(Call::clock_getres, pid, &[(out.cast(), 4)], raw) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timespec_get(out: *mut libc::timespec, base: i32) -> i32 {
    const TIME_UTC: i32 = 1;
    if base != TIME_UTC {
        return 0;
    }
    // SAFETY: the caller's timespec; 0 is nobody's return address.
    unsafe { clocks::clock_gettime_from(libc::CLOCK_REALTIME, out, 0) };
    base
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statfs(path: *const u8, out: *mut u8) -> i32 {
    let room = size_of::<libc::statfs>();
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_statfs, path, out) };
    libc_result(with_data(Call::fstatfs, -1, &[(out, room)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statfs64(path: *const u8, out: *mut u8) -> i32 {
    // SAFETY: the same call on a 64-bit system.
    unsafe { statfs(path, out) }
}

fn statvfs_call(which: Real, what: usize, out: *mut u8) -> i32 {
    let raw = || quietly(-1, || real(which)(what, out as usize, 0, 0));
    libc_result(with_data(Call::fstatfs, -2, &[(out, STATVFS_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statvfs(path: usize, out: *mut u8) -> i32 {
    statvfs_call(Real::Statvfs, path, out)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statvfs64(path: usize, out: *mut u8) -> i32 {
    statvfs_call(Real::Statvfs, path, out)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fstatvfs(fd: i32, out: *mut u8) -> i32 {
    statvfs_call(Real::Fstatvfs, fd as usize, out)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fstatvfs64(fd: i32, out: *mut u8) -> i32 {
    statvfs_call(Real::Fstatvfs, fd as usize, out)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readlink(path: *const u8, out: *mut u8, len: usize) -> isize {
    // SAFETY: the same call, relative to the working directory.
    unsafe { readlinkat(libc::AT_FDCWD, path, out, len) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readlinkat(dir: i32, path: *const u8, out: *mut u8, len: usize) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_readlinkat, dir, path, out, len) };
    if path.is_null() || inside() || !is_device(path) {
        return libc_result(raw());
    }
    libc_result(with_data(Call::readlink, -1, &[(out, len.min(libc::PATH_MAX as usize))], raw))
}

/// Replaces the six X in the name by logged random letters, and tries that name.
fn with_name(template: *mut u8, suffix: i32, attempt: impl Fn() -> isize) -> isize {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    // SAFETY: the caller's writable, terminated template.
    let len = unsafe { CStr::from_ptr(template.cast()) }.to_bytes().len();
    let Some(at) = usize::try_from(suffix).ok().and_then(|s| len.checked_sub(s + 6)) else {
        return -(libc::EINVAL as isize);
    };
    // SAFETY: six bytes inside the template.
    let name = unsafe { core::slice::from_raw_parts_mut(template.add(at), 6) };
    if name != b"XXXXXX" {
        return -(libc::EINVAL as isize);
    }
    for _ in 0..NAMES_MAX {
        let mut random = [0u8; 6];
        getrandom_raw(random.as_mut_ptr(), random.len(), 0);
        for (to, from) in name.iter_mut().zip(random) {
            *to = LETTERS[from as usize % LETTERS.len()];
        }
        let r = attempt();
        if r != -(libc::EEXIST as isize) {
            return r;
        }
    }
    name.copy_from_slice(b"XXXXXX");
    -(libc::EEXIST as isize)
}

fn temporary(template: *mut u8, suffix: i32, flags: i32) -> i32 {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let open = || open_raw(libc::AT_FDCWD, template, flags, 0o600);
    libc_result(with_name(template, suffix, open)) as i32
}

macro_rules! temporaries {
    ($($name:ident ($($arg:ident),*), $suffix:expr, $flags:expr;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(template: *mut u8 $(, $arg: i32)*) -> i32 {
            temporary(template, $suffix, $flags)
        }
    )+ };
}

temporaries! {
    mkstemp(), 0, 0;
    mkstemp64(), 0, 0;
    mkostemp(flags), 0, flags;
    mkostemp64(flags), 0, flags;
    mkstemps(suffix), suffix, 0;
    mkstemps64(suffix), suffix, 0;
    mkostemps(suffix, flags), suffix, flags;
    mkostemps64(suffix, flags), suffix, flags;
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mkdtemp(template: *mut u8) -> *mut u8 {
    // SAFETY: the server's own call, with its own arguments.
    match libc_result(with_name(template, 0, || unsafe { syscall!(SYS_mkdir, template, 0o700) })) {
        0 => template,
        _ => core::ptr::null_mut(),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn eventfd_read(fd: i32, value: *mut u8) -> i32 {
    if libc_result(input::read_raw(fd, value, 8)) == 8 { 0 } else { -1 }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn eventfd_write(fd: i32, value: u64) -> i32 {
    let at = (&raw const value).cast();
    if libc_result(output::write_raw(fd, at, 8)) == 8 { 0 } else { -1 }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_gettime(fd: i32, out: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_timerfd_gettime, fd, out) };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    libc_result(with_data(Call::timerfd, fd, &[(out, INTERVALS_BYTES)], raw)) as i32
}

/// At promotion: empties an inotify queue. The replica's kernel has put all events of its watches
/// there, and the server has had them from the log.
pub fn empty_inotify(fd: i32) {
    // Only for an inotify queue does the kernel come as far as to miss the path.
    // SAFETY: a string of ours.
    let r = unsafe { syscall!(SYS_inotify_add_watch, fd, c"".as_ptr(), libc::IN_ACCESS) };
    if r != -(libc::ENOENT as isize) {
        return;
    }
    // Another process of a family may have the same queue, and empty it, too.
    let _held = log::hold();
    let mut sink = [0u8; 4096];
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: memory of ours, of the sizes that are said.
    while unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) } == 1
        // SAFETY: as above; something is there, so it does not block.
        && unsafe { syscall!(SYS_read, fd, sink.as_mut_ptr(), sink.len()) } > 0
    {}
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_add_watch(fd: i32, path: *const u8, mask: u32) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_inotify_add_watch, fd, path, mask) };
    libc_result(simple(Call::inotify, fd, true, raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_rm_watch(fd: i32, watch: i32) -> i32 {
    let raw = || sys!(SYS_inotify_rm_watch, fd, watch);
    libc_result(simple(Call::inotify, fd, true, raw)) as i32
}

/// `signalfd`: real on both members, so that it goes on after promotion; what is read
/// there comes from the log.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signalfd(fd: i32, mask: *const u64, flags: i32) -> i32 {
    const SET_BYTES: usize = 8;
    // SAFETY: the server's own call, with its own arguments.
    let make = || unsafe { syscall!(SYS_signalfd4, fd, mask, SET_BYTES, flags) };
    if fd >= 0 {
        return libc_result(simple(Call::signalfd, fd, true, make)) as i32;
    }
    let cloexec = flags & libc::SFD_CLOEXEC != 0;
    libc_result(new_fd(Call::signalfd, -1, Kind::Local, cloexec, make, make)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getitimer(which: i32, out: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_getitimer, which, out) };
    libc_result(with_data(Call::alarm, which, &[(out, INTERVALS_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timer_settime(timer: usize, flags: i32, new: usize, old: *mut u8) -> i32 {
    let raw = || {
        let is_moment = flags & libc::TIMER_ABSTIME != 0;
        let own = clocks::timer(new as *const libc::itimerspec, is_moment);
        let at = own.as_ref().map_or(new, |own| core::ptr::from_ref(own) as usize);
        quietly(-1, || real(Real::TimerSettime)(timer, flags as usize, at, old as usize))
    };
    libc_result(with_data(Call::alarm, -1, &[(old, INTERVALS_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timer_gettime(timer: usize, out: *mut u8) -> i32 {
    let raw = || quietly(-1, || real(Real::TimerGettime)(timer, out as usize, 0, 0));
    libc_result(with_data(Call::alarm, -1, &[(out, INTERVALS_BYTES)], raw)) as i32
}
