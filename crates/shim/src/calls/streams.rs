//! Streams (`FILE`) and directories, whose descriptors libc opens, reads and closes itself, past
//! the shim.

use crate::base::fds::{self, Kind};
use crate::base::real::{self, Real, real, real6};
use crate::base::state::{Mode, inside, mode, threaded};
use crate::base::sys::{libc_result, syscall};
use crate::calls::descriptors::{self, close_plain};
use crate::calls::files::{kind_behind, open_own, open_raw};
use crate::calls::{children, content, input, listings};
use core::ffi::CStr;

unsafe extern "C" {
    fn fopencookie(cookie: *mut u8, mode: *const u8, functions: Cookie) -> *mut u8;
    fn fdopen(fd: i32, mode: *const u8) -> *mut u8;
    fn fileno(stream: *mut u8) -> i32;
    fn fdopendir(fd: i32) -> *mut u8;
    fn dirfd(directory: *mut u8) -> i32;
}

/// Whether opening and closing by libc must be in the log, because several threads compete for the
/// lowest free descriptor number.
fn compete() -> bool {
    threaded() && matches!(mode(), Mode::Record | Mode::Replay) && !inside()
}

/// glibc's `cookie_io_functions_t`.
#[repr(C)]
struct Cookie {
    read: Option<unsafe extern "C" fn(*mut u8, *mut u8, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut u8, *const u8, usize) -> isize>,
    seek: usize,
    close: Option<unsafe extern "C" fn(*mut u8) -> i32>,
}

unsafe extern "C" fn cookie_read(cookie: *mut u8, buffer: *mut u8, len: usize) -> isize {
    libc_result(input::read_raw(cookie as usize as i32, buffer, len))
}

unsafe extern "C" fn cookie_close(cookie: *mut u8) -> i32 {
    libc_result(descriptors::close_raw(cookie as usize as i32)) as i32
}

/// Opens a stream. libc would read its file past the shim, so a device's stream gets functions
/// that go through the shim.
fn open_stream(
    path: *const u8,
    how: *const u8,
    real: fn(*const u8, *const u8) -> *mut u8,
) -> *mut u8 {
    if mode() == Mode::Pass || inside() || path.is_null() {
        return real(path, how);
    }
    children::settle();
    if kind_behind(path) == Kind::Own {
        let flags = flags_of(how);
        return if compete() || is_compared(path, how, flags) {
            open_plain_stream(path, how, flags)
        } else {
            real(path, how)
        };
    }
    let fd = open_raw(libc::AT_FDCWD, path, libc::O_RDONLY, 0);
    if libc_result(fd) < 0 {
        return core::ptr::null_mut();
    }
    let functions =
        Cookie { read: Some(cookie_read), write: None, seek: 0, close: Some(cookie_close) };
    // SAFETY: the functions live as long as the process; the cookie is a number.
    unsafe { fopencookie(fd as usize as *mut u8, how, functions) }
}

/// A stream's mode, such as "rb".
fn letters(how: *const u8) -> &'static [u8] {
    // SAFETY: the caller's mode string, which is used only while it calls.
    unsafe { CStr::from_ptr(how.cast()) }.to_bytes()
}

/// Whether the members compare the stream's file. Not if the mode names a character set, or is not
/// known here: then libc opens it alone.
fn is_compared(path: *const u8, how: *const u8, flags: i32) -> bool {
    let letters = letters(how);
    letters.starts_with(b"r") && !letters.contains(&b',') && content::is_compared(path, flags)
}

/// Flags of `open` for a stream's mode.
fn flags_of(how: *const u8) -> i32 {
    let letters = letters(how);
    let has = |c: u8| letters.contains(&c);
    let make = match letters.first() {
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    let access = match make {
        _ if has(b'+') => libc::O_RDWR,
        0 => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    let cloexec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    access | make | exclusive | cloexec
}

/// Opens a stream whose descriptor has the primary's number.
fn open_plain_stream(path: *const u8, how: *const u8, flags: i32) -> *mut u8 {
    let fd = open_raw(libc::AT_FDCWD, path, flags, 0o666);
    if libc_result(fd) < 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: a fresh descriptor and the caller's mode.
    unsafe { fdopen(fd as i32, how) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fclose(stream: *mut u8) -> i32 {
    let close = || real(Real::Fclose)(stream as usize, 0, 0, 0);
    // SAFETY: the caller's stream; -1 if it has no descriptor.
    let fd = if compete() { unsafe { fileno(stream) } } else { -1 };
    if fd < 0 { close() } else { close_in_order(fd, close) }
}

/// Lets libc's `close` free `fd`, in the log's order. Returns libc's answer.
fn close_in_order(fd: i32, close: impl Fn() -> i32) -> i32 {
    close_plain(fd, || fds::closed(fd), &|| close() as isize) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn opendir(path: *const u8) -> *mut u8 {
    children::settle();
    if !compete() || path.is_null() {
        return real6(Real::Opendir, [path as usize, 0, 0, 0, 0, 0]) as *mut u8;
    }
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the server's own call, with its own arguments.
    let fd =
        open_own(path, flags, || unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0) });
    if libc_result(fd) < 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: a fresh descriptor of a directory.
    unsafe { fdopendir(fd as i32) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closedir(directory: *mut u8) -> i32 {
    listings::forget(directory as usize);
    let close = || real(Real::Closedir)(directory as usize, 0, 0, 0);
    if !compete() {
        return close();
    }
    // SAFETY: the caller's open directory.
    close_in_order(unsafe { dirfd(directory) }, close)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen(path: *const u8, how: *const u8) -> *mut u8 {
    open_stream(path, how, real::fopen)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen64(path: *const u8, how: *const u8) -> *mut u8 {
    open_stream(path, how, real::fopen)
}

#[cfg(test)]
mod tests;
