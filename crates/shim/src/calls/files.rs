//! Files: each member has its own; they are opened on both members and compared. What differs
//! between machines by nature (devices, /proc, inode numbers, modification times) comes from the
//! log.

use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{Mode, inside, mode};
use crate::base::sys::{libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{quiet, report};
use crate::calls::shapes::{new_fd, refuse_high, simple, with_data};
use crate::calls::{children, content, signals};
use core::ffi::CStr;
use holdfast_wire::log::Op;

const DEVICES: [&[u8]; 4] = [b"/dev/urandom", b"/dev/random", b"/proc/", b"/sys/"];

/// Whether a path's content belongs to the machine, not to the server.
pub fn is_device(path: *const u8) -> bool {
    DEVICES.iter().any(|d| {
        d.iter().enumerate().all(|(i, c)| {
            // SAFETY: stops at the first difference, so never beyond the terminator.
            unsafe { *path.add(i) == *c }
        })
    })
}

/// The open descriptor that a path stands for, as `/dev/stdin` and `/proc/self/fd/0` do.
fn descriptor_of(path: *const u8) -> Option<i32> {
    const STANDARD: [(&[u8], i32); 3] =
        [(b"/dev/stdin", 0), (b"/dev/stdout", 1), (b"/dev/stderr", 2)];
    const FOLDERS: [&[u8]; 3] = [b"/dev/fd/", b"/proc/self/fd/", b"/proc/thread-self/fd/"];
    // SAFETY: the server's path string.
    let path = unsafe { CStr::from_ptr(path.cast()) }.to_bytes();
    let standard = STANDARD.iter().find(|(name, _)| *name == path).map(|(_, fd)| *fd);
    standard.or_else(|| {
        let rest = FOLDERS.iter().find_map(|folder| path.strip_prefix(*folder))?;
        let number = rest.split(|c| *c == b'/').next()?;
        core::str::from_utf8(number).ok()?.parse().ok()
    })
}

/// The kind of what a path opens: content of the machine, a pipe that both members have, or each
/// member's own file.
pub fn kind_behind(path: *const u8) -> Kind {
    match descriptor_of(path).map(fds::kind) {
        Some(kind @ (Kind::Own | Kind::Local)) => kind,
        Some(_) => Kind::Device,
        None if is_device(path) => Kind::Device,
        None => Kind::Own,
    }
}

pub fn open_raw(dir: i32, path: *const u8, flags: i32, mode_bits: u32) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_openat, dir, path, flags, mode_bits) };
    if mode() == Mode::Pass || inside() || path.is_null() {
        return raw();
    }
    children::settle();
    let kind = kind_behind(path);
    if kind == Kind::Local {
        let cloexec = flags & libc::O_CLOEXEC != 0;
        return new_fd(Call::open, -1, kind, cloexec, raw, raw);
    }
    if kind == Kind::Device {
        let cloexec = flags & libc::O_CLOEXEC != 0;
        // The replica does not read from it before it is the server, and then it must be the
        // machine's. What this machine does not have stays empty.
        let stand_in = || match raw() {
            fd if fd >= 0 => fd,
            // SAFETY: a path of ours.
            _ => unsafe {
                syscall!(
                    SYS_openat,
                    libc::AT_FDCWD,
                    c"/dev/null".as_ptr(),
                    libc::O_RDWR | (flags & libc::O_CLOEXEC)
                )
            },
        };
        return new_fd(Call::open_device, -1, Kind::Device, cloexec, raw, stand_in);
    }
    open_own(path, flags, raw)
}

/// Opens a file of which each member has its own; `flags` are those of `raw`.
pub fn open_own(path: *const u8, flags: i32, raw: impl Fn() -> isize) -> isize {
    // Called with the log held: whether a client has come is then known in the log's order.
    let look = |fd: isize| {
        let told = mode() == Mode::Replay || log::is_on();
        let compared = fd >= 0 && told && content::is_compared(path, flags);
        if compared { content::of(fd as i32) } else { None }
    };
    quiet::call(|_| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            let held = log::hold();
            let r = refuse_high(raw());
            let content = look(r);
            let payload = content::payload(&content);
            let entry = Entry::new(Op::NewFd, Call::open, -1, r).lazy_if(content.is_none());
            log::append_held(&held, entry, &[(payload.as_ptr(), payload.len())]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::NewFd, Call::open, -1) {
            Some(taken) => {
                let (here, there) = (raw(), taken.ret());
                if (here < 0) != (there < 0) {
                    report::diverged_open(path, here, there);
                }
                content::compare("file", path, &look(here), taken.payload());
                fds::renumber(here, there, flags & libc::O_CLOEXEC != 0);
                taken.done();
                Some(there)
            }
            None => Some(raw()),
        },
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open(path: *const u8, flags: i32, mode_bits: u32) -> i32 {
    libc_result(open_raw(libc::AT_FDCWD, path, flags, mode_bits)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open64(path: *const u8, flags: i32, mode_bits: u32) -> i32 {
    libc_result(open_raw(libc::AT_FDCWD, path, flags, mode_bits)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __open_2(path: *const u8, flags: i32) -> i32 {
    libc_result(open_raw(libc::AT_FDCWD, path, flags, 0)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __open64_2(path: *const u8, flags: i32) -> i32 {
    libc_result(open_raw(libc::AT_FDCWD, path, flags, 0)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat(dir: i32, path: *const u8, flags: i32, mode_bits: u32) -> i32 {
    libc_result(open_raw(dir, path, flags, mode_bits)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat64(dir: i32, path: *const u8, flags: i32, mode_bits: u32) -> i32 {
    libc_result(open_raw(dir, path, flags, mode_bits)) as i32
}

const STAT_BYTES: usize = size_of::<libc::stat>();

fn stat_call(fd: i32, out: *mut u8, bytes: usize, raw: impl Fn() -> isize) -> i32 {
    if inside() {
        return libc_result(raw()) as i32;
    }
    libc_result(with_data(Call::stat, fd, &[(out, bytes)], raw)) as i32
}

macro_rules! stats {
    ($($name:ident ($($arg:ident: $type:ty),*), $fd:expr, $out:ident, $raw:expr;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            // SAFETY: the server's own call, with its own arguments.
            stat_call($fd, $out, STAT_BYTES, || unsafe { $raw })
        }
    )+ };
}

stats! {
    stat(path: *const u8, out: *mut u8), -1, out, syscall!(SYS_stat, path, out);
    stat64(path: *const u8, out: *mut u8), -1, out, syscall!(SYS_stat, path, out);
    lstat(path: *const u8, out: *mut u8), -1, out, syscall!(SYS_lstat, path, out);
    lstat64(path: *const u8, out: *mut u8), -1, out, syscall!(SYS_lstat, path, out);
    fstat(fd: i32, out: *mut u8), fd, out, syscall!(SYS_fstat, fd, out);
    fstat64(fd: i32, out: *mut u8), fd, out, syscall!(SYS_fstat, fd, out);
    fstatat(dir: i32, path: *const u8, out: *mut u8, flags: i32), -1, out, syscall!(SYS_newfstatat, dir, path, out, flags);
    fstatat64(dir: i32, path: *const u8, out: *mut u8, flags: i32), -1, out, syscall!(SYS_newfstatat, dir, path, out, flags);
    __xstat(_v: i32, path: *const u8, out: *mut u8), -1, out, syscall!(SYS_stat, path, out);
    __xstat64(_v: i32, path: *const u8, out: *mut u8), -1, out, syscall!(SYS_stat, path, out);
    __lxstat(_v: i32, path: *const u8, out: *mut u8), -1, out, syscall!(SYS_lstat, path, out);
    __lxstat64(_v: i32, path: *const u8, out: *mut u8), -1, out, syscall!(SYS_lstat, path, out);
    __fxstat(_v: i32, fd: i32, out: *mut u8), fd, out, syscall!(SYS_fstat, fd, out);
    __fxstat64(_v: i32, fd: i32, out: *mut u8), fd, out, syscall!(SYS_fstat, fd, out);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statx(
    dir: i32,
    path: *const u8,
    flags: i32,
    mask: u32,
    out: *mut u8,
) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    stat_call(-1, out, size_of::<libc::statx>(), || unsafe {
        syscall!(SYS_statx, dir, path, flags, mask, out)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fstatfs(fd: i32, out: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_fstatfs, fd, out) };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    libc_result(with_data(Call::fstatfs, fd, &[(out, size_of::<libc::statfs>())], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fstatfs64(fd: i32, out: *mut u8) -> i32 {
    // SAFETY: the same call on a 64-bit system.
    unsafe { fstatfs(fd, out) }
}

fn lseek_raw(fd: i32, offset: i64, whence: i32) -> isize {
    let raw = || sys!(SYS_lseek, fd, offset, whence);
    if !fds::is_virtual(fd) { raw() } else { simple(Call::lseek, fd, false, raw) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn lseek(fd: i32, offset: i64, whence: i32) -> i64 {
    libc_result(lseek_raw(fd, offset, whence)) as i64
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn lseek64(fd: i32, offset: i64, whence: i32) -> i64 {
    libc_result(lseek_raw(fd, offset, whence)) as i64
}

/// `isatty`: standard streams are each member's own, but whether they are
/// terminals changes what a server prints and buffers, so it comes from the
/// log.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn isatty(fd: i32) -> i32 {
    let mut termios = [0u8; 64];
    let at = termios.as_mut_ptr();
    // SAFETY: room enough for what the request fills in.
    let raw = || unsafe { syscall!(SYS_ioctl, fd, 0x5401, at) };
    let r = if inside() { raw() } else { simple(Call::isatty, fd, false, raw) };
    i32::from(libc_result(r) == 0)
}
