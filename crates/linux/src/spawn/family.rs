//! A server whose processes are all in one log. They are in a pid namespace of their own,
//! so that both members' have the same numbers; its first process is the server, and the
//! kernel ends the others with it.

use super::Server;
use crate::process;
use holdfast_wire::group::PROCESSES_MAX;
use holdfast_wire::shm::Listener;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Starts the server; in a namespace of its own, by a thread that lives as long as the
/// sender that comes with it, if it `is_family`.
pub(super) fn spawn(
    mut command: Command,
    is_family: bool,
) -> io::Result<(Child, Option<Sender<()>>)> {
    if !is_family {
        return Ok((command.spawn()?, None));
    }
    let ((to, made), (maker, until_dropped)) = (channel(), channel());
    let work = move || {
        let child = begin_namespace().and_then(|()| command.spawn());
        let runs = child.is_ok();
        if to.send(child).is_ok() && runs {
            // The server is this thread's child: it would end with it.
            let _dropped = until_dropped.recv();
        }
    };
    std::thread::Builder::new().name("family".to_owned()).spawn(work)?;
    let child = made.recv().map_err(|_| io::Error::other("whoever starts it is gone"))??;
    Ok((child, Some(maker)))
}

/// Has what the calling thread starts from now on be in a pid namespace of its own, whose
/// first process is the next one: when that ends, all others do. And in an IPC namespace of its own,
/// so that both members' SysV shared memory has the same numbers and nothing is left of it, as is so
/// for their copies.
fn begin_namespace() -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWIPC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Server {
    /// Like [`Self::take_fd`], of whichever process of a family holds the connection.
    ///
    /// # Errors
    /// As [`Self::take_fd`], and if no process has said that it holds it.
    pub fn take_connection(&self, accept: u32, fd: RawFd) -> io::Result<OwnedFd> {
        if !self.memory.is_family() {
            return self.take_fd(fd);
        }
        self.members.take_fd(self.pid(), self.memory.holder(accept), fd)
    }

    /// Like [`Self::take_fd`], of whichever process of a family has the listener.
    ///
    /// # Errors
    /// As [`Self::take_fd`].
    pub fn take_listener(&self, listener: &Listener) -> io::Result<OwnedFd> {
        if !self.memory.is_family() {
            return self.take_fd(listener.fd);
        }
        self.members.take_fd(self.pid(), listener.pid, listener.fd)
    }
}

/// Most threads of a family that are looked at by the daemon's loop.
const LOOKED_AT_MAX: usize = 4096;

/// Processes by their numbers in the server's namespace.
#[derive(Default)]
pub(super) struct Members(Mutex<BTreeMap<i32, OwnedFd>>);

impl Members {
    /// Which of these processes have ended; `None` of one that there is not.
    pub(super) fn ended(&self, server: u32, numbers: &[i32]) -> Vec<Option<bool>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.iter().any(|number| !known.contains_key(number)) {
            // Those that have ended are not found again.
            known.extend(look(server, |own| numbers.contains(&own)));
        }
        let over = |number| process::poll_in(known.get(number)?.as_fd(), 0).ok();
        numbers.iter().map(over).collect()
    }

    /// These numbers are other processes' now, or nobody's.
    pub(super) fn forget(&self, numbers: &[i32]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| !numbers.contains(number));
    }

    /// A duplicate of descriptor `fd` of the process with this number, in the namespace
    /// whose first process is `server` here.
    pub(super) fn take_fd(&self, server: u32, number: i32, fd: RawFd) -> io::Result<OwnedFd> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lives =
            |process: &OwnedFd| process::poll_in(process.as_fd(), 0).is_ok_and(|over| !over);
        if !known.get(&number).is_some_and(lives) {
            known.remove(&number);
            if known.len() >= PROCESSES_MAX {
                known.clear();
            }
            known.extend(look(server, |own| own == number));
        }
        let process = known.get(&number).ok_or(io::ErrorKind::NotFound)?;
        process::take_descriptor(process.as_fd(), fd)
    }
}

/// Those of a family's processes whose own numbers are `wanted`: no more descriptors are held than
/// the family has places. One with more threads than [`LOOKED_AT_MAX`] is not seen in full.
fn look(server: u32, wanted: impl Fn(i32) -> bool) -> BTreeMap<i32, OwnedFd> {
    let mut found = BTreeMap::new();
    for pid in process::family_within(server, LOOKED_AT_MAX) {
        // Who has ended meanwhile holds nothing.
        let own = process::innermost_tid(pid, pid).map(u32::cast_signed);
        if let Some(own) = own.ok().filter(|own| wanted(*own))
            && let Ok(process) = process::pidfd_open(pid)
        {
            found.insert(own, process);
        }
    }
    found
}
