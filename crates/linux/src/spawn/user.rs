//! Whom a server runs as, and what that user may do with its files.

use crate::sockopt::{checked, checked_fd};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// What a server, or who starts it, does with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Runs it.
    Run,
    /// Maps it as a library: also of what may be read a file system can be mounted `noexec`, and
    /// then the loader passes a preloaded one over.
    Load,
    /// Makes a file in it, which is gone at once.
    Fill,
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

/// Whether running a file gives capabilities (setcap(8)): the loader then leaves out what is
/// preloaded. False if nobody can tell.
#[must_use]
pub fn gains_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability".as_ptr();
    // SAFETY: two C strings, and no room to fill: the kernel answers with a length.
    unsafe { libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0) > 0 }
}

/// Whether a server of this user may use a path so, as the kernel says: folders on its way, and how
/// its file system is mounted, count, too; and on a network it is that user who asks, where root may
/// be nobody. Nothing is run.
///
/// # Errors
/// As access(2), open(2) or mmap(2), or if there can be no process to ask it.
pub fn try_use(user: Option<&User>, path: &Path, wanted: Use) -> io::Result<()> {
    /// What the child ends with if the answer is yes, for it becomes no program.
    const YES: i32 = libc::ECANCELED;
    let name = CString::new(path.as_os_str().as_bytes())?;
    // No two daemons try the same name.
    let inside = path.join(format!(".holdfast-{}", std::process::id()));
    let inside = CString::new(inside.as_os_str().as_bytes())?;
    let user = user.cloned();
    let ask = move || {
        user.as_ref().map_or(Ok(()), User::enter)?;
        match wanted {
            // SAFETY: the kernel reads a C string that lives across the call.
            Use::Run => drop(checked(unsafe { libc::access(name.as_ptr(), libc::X_OK) })?),
            Use::Load => load(&name)?,
            Use::Fill => fill(&name, &inside)?,
        }
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

/// Maps a file as a library is mapped. The mapping ends with the process.
fn load(name: &CStr) -> io::Result<()> {
    // SAFETY: the kernel reads a C string that lives across the call.
    let file =
        checked_fd(unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }.into())?;
    let (as_code, fd) = (libc::PROT_READ | libc::PROT_EXEC, file.as_raw_fd());
    // SAFETY: a new mapping, in a place of the kernel's choice, that nobody looks at.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 1, as_code, libc::MAP_PRIVATE, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a file in a folder: without a name, or, where there are no such files, as `inside`.
fn fill(folder: &CStr, inside: &CStr) -> io::Result<()> {
    const MODE: libc::c_uint = 0o600;
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a C string that lives across the call.
    let made = unsafe { libc::open(folder.as_ptr(), flags | libc::O_TMPFILE, MODE) };
    match checked_fd(made.into()) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {}
        made => return made.map(drop),
    }
    let new = flags | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as above.
    checked_fd(unsafe { libc::open(inside.as_ptr(), new, MODE) }.into())?;
    // SAFETY: as above.
    checked(unsafe { libc::unlink(inside.as_ptr()) }).map(drop)
}
