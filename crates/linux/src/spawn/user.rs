//! Whom a server runs as.

use crate::sockopt::checked;
use std::io;

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
