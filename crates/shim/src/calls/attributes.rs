//! Extended attributes of files. Each member has its own files, and changes their attributes
//! itself; what is read of them comes from the log, as what `stat` says does. So a process that
//! looks at a file while another one sets its attributes (smbd, at a file that has just been
//! made) sees the same on both members.

use crate::base::state::inside;
use crate::base::sys::{libc_result, syscall};
use crate::base::table::Call;
use crate::calls::shapes::with_bytes;
use crate::calls::{children, folders};

/// Reads an attribute, or the names of all, into `out`.
fn read(fd: i32, out: *mut u8, room: usize, raw: impl Fn() -> isize) -> isize {
    libc_result(if inside() { raw() } else { with_bytes(Call::getxattr, fd, (out, room), raw) })
}

macro_rules! reads {
    ($($name:ident ($($arg:ident: $type:ty),*; $out:ident, $room:ident) of $fd:expr, $number:ident;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type,)* $out: *mut u8, $room: usize) -> isize {
            // SAFETY: the server's own call, with its own arguments.
            read($fd, $out, $room, || unsafe { syscall!($number, $($arg,)* $out, $room) })
        }
    )+ };
}

macro_rules! changes {
    ($($name:ident ($($arg:ident: $type:ty),*) = $number:ident;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            children::settle();
            // SAFETY: the server's own call, with its own arguments.
            let raw = || unsafe { syscall!($number, $($arg),*) };
            libc_result(folders::change_attribute(raw)) as i32
        }
    )+ };
}

reads! {
    getxattr(path: *const u8, name: *const u8; out, room) of -1, SYS_getxattr;
    lgetxattr(path: *const u8, name: *const u8; out, room) of -1, SYS_lgetxattr;
    fgetxattr(fd: i32, name: *const u8; out, room) of fd, SYS_fgetxattr;
    listxattr(path: *const u8; out, room) of -1, SYS_listxattr;
    llistxattr(path: *const u8; out, room) of -1, SYS_llistxattr;
    flistxattr(fd: i32; out, room) of fd, SYS_flistxattr;
}

changes! {
    setxattr(path: *const u8, name: *const u8, value: *const u8, len: usize, flags: i32) =
        SYS_setxattr;
    lsetxattr(path: *const u8, name: *const u8, value: *const u8, len: usize, flags: i32) =
        SYS_lsetxattr;
    fsetxattr(fd: i32, name: *const u8, value: *const u8, len: usize, flags: i32) = SYS_fsetxattr;
    removexattr(path: *const u8, name: *const u8) = SYS_removexattr;
    lremovexattr(path: *const u8, name: *const u8) = SYS_lremovexattr;
    fremovexattr(fd: i32, name: *const u8) = SYS_fremovexattr;
}

#[cfg(test)]
mod tests;
