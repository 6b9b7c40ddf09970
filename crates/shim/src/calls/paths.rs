//! Calls on files by name: each member has its own files, and the calls are made on both. Files
//! that children write must exist before.

use crate::base::sys::{libc_result, syscall};
use crate::calls::{children, folders};

macro_rules! paths {
    ($($name:ident ($($arg:ident: $type:ty),*) = $raw:expr;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            children::settle();
            // SAFETY: the server's own call, with its own arguments.
            libc_result(folders::change(|| unsafe { $raw })) as i32
        }
    )+ };
}

paths! {
    mkdir(path: *const u8, mode: u32) = syscall!(SYS_mkdir, path, mode);
    mkdirat(dir: i32, path: *const u8, mode: u32) = syscall!(SYS_mkdirat, dir, path, mode);
    symlink(to: *const u8, path: *const u8) = syscall!(SYS_symlink, to, path);
    symlinkat(to: *const u8, dir: i32, path: *const u8) = syscall!(SYS_symlinkat, to, dir, path);
    rename(from: *const u8, to: *const u8) = syscall!(SYS_rename, from, to);
    renameat(a: i32, from: *const u8, b: i32, to: *const u8) = syscall!(SYS_renameat, a, from, b, to);
    renameat2(a: i32, from: *const u8, b: i32, to: *const u8, flags: u32) =
        syscall!(SYS_renameat2, a, from, b, to, flags);
    unlink(path: *const u8) = syscall!(SYS_unlink, path);
    unlinkat(dir: i32, path: *const u8, flags: i32) = syscall!(SYS_unlinkat, dir, path, flags);
    link(from: *const u8, to: *const u8) = syscall!(SYS_link, from, to);
    linkat(a: i32, from: *const u8, b: i32, to: *const u8, flags: i32) =
        syscall!(SYS_linkat, a, from, b, to, flags);
    rmdir(path: *const u8) = syscall!(SYS_rmdir, path);
    truncate(path: *const u8, len: i64) = syscall!(SYS_truncate, path, len);
    truncate64(path: *const u8, len: i64) = syscall!(SYS_truncate, path, len);
    access(path: *const u8, how: i32) = syscall!(SYS_access, path, how);
}
