//! The root of the control groups (version 2).

use super::error::BpfError;
use crate::sockopt::{checked, checked_fd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `FSCONFIG_CMD_CREATE` of `<linux/mount.h>`.
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;

/// Opens the root through a detached mount of its own: the path of the system's mount differs
/// between distributions, and a container or `ip netns exec` hides it.
pub(super) fn root() -> Result<OwnedFd, BpfError> {
    mounted().map_err(BpfError::Cgroup)
}

fn mounted() -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    let opened = unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), FSOPEN_CLOEXEC) };
    let context = checked_fd(opened)?;
    let (none, nothing) = (std::ptr::null::<libc::c_char>(), std::ptr::null::<libc::c_void>());
    let fd = context.as_raw_fd();
    // SAFETY: this command takes neither key nor value.
    let made =
        unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, nothing, 0) };
    checked(made as libc::c_int)?;
    // SAFETY: fsmount() takes no pointers.
    checked_fd(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0) })
}
