//! Whom a server runs as.

use crate::sockopt::checked;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// What a server does with a file at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Run,
    Read,
}

/// A user, and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// All of its groups, `gid` among them.
    pub groups: Vec<u32>,
}

impl User {
    /// In the child that is to become the server: gives up the daemon's user, and its groups.
    pub(super) fn enter(&self) -> io::Result<()> {
        // SAFETY: the kernel only reads the list.
        let listed = checked(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) });
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } == 0 {
            // A daemon that is not root may lack the right; then its groups are not root's.
            listed?;
        }
        // SAFETY: plain numbers.
        checked(unsafe { libc::setgid(self.gid) })?;
        // SAFETY: as above.
        checked(unsafe { libc::setuid(self.uid) })?;
        Ok(())
    }
}

/// Whether a server of this user may use a file so, as the kernel says: folders on its way, and how
/// its file system is mounted, count, too. Nothing is run.
///
/// # Errors
/// As access(2), or if there can be no process to ask it.
pub fn try_use(user: Option<&User>, path: &Path, wanted: Use) -> io::Result<()> {
    /// What the child ends with if the answer is yes, for it becomes no program.
    const YES: i32 = libc::ECANCELED;
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mode = match wanted {
        Use::Run => libc::X_OK,
        Use::Read => libc::R_OK,
    };
    let user = user.cloned();
    let ask = move || {
        user.as_ref().map_or(Ok(()), User::enter)?;
        // SAFETY: the kernel reads a C string that lives across the call.
        checked(unsafe { libc::access(name.as_ptr(), mode) })?;
        Err(io::Error::from_raw_os_error(YES))
    };
    let mut command = Command::new("/proc/self/exe");
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe { command.pre_exec(ask) };
    match command.spawn() {
        Err(error) if error.raw_os_error() == Some(YES) => Ok(()),
        Err(error) => Err(error),
        // It cannot be: the child has an error in either case.
        Ok(mut child) => child.kill().and_then(|()| child.wait()).map(drop),
    }
}
