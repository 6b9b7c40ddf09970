//! The replica's listeners in a takeover: made to listen, and once more when whoever held
//! the port of one has gone.

use super::{BackupDaemon, sockets};
use holdfast_linux::{listener, unread};
use holdfast_wire::shm::Listener;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often a listener whose port somebody holds is tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(1);

/// Listeners whose port is somebody else's.
pub(super) struct Barred {
    /// Each with the cookie of its socket: the server may have given its number to
    /// another one since.
    listeners: Vec<(Listener, u64)>,
    again_at: Instant,
}

impl Barred {
    pub fn new(now: Instant) -> Self {
        Self { listeners: Vec::new(), again_at: now }
    }
}

impl BackupDaemon<'_, '_> {
    /// All that the replica's table lists; what cannot listen is an event.
    pub(super) fn revive_all(&mut self) {
        self.barred = Barred::new(Instant::now() + AGAIN_EVERY);
        for l in self.replica.memory.listeners() {
            let found = self.socket_of(&l);
            let revived = match &found {
                Ok((fd, _)) => revive(fd, &l),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let Err(error) = revived else { continue };
            if let Ok((_, cookie)) = found
                && error.kind() == ErrorKind::AddrInUse
            {
                self.barred.listeners.push((l, cookie));
            }
            self.node.events.add("listener lost", format!("descriptor {}: {error}", l.fd));
        }
    }

    /// Tries those again that were somebody else's, of the server that speaks.
    pub(super) fn revive_barred(&mut self, now: Instant) {
        if self.barred.listeners.is_empty() || now < self.barred.again_at {
            return;
        }
        self.barred.again_at = now + AGAIN_EVERY;
        for (l, cookie) in std::mem::take(&mut self.barred.listeners) {
            let same = self.socket_of(&l).ok().filter(|(_, found)| *found == cookie);
            // The server has closed it: it wants no clients there.
            let Some((fd, _)) = same else { continue };
            match revive(&fd, &l) {
                Ok(()) => {
                    let what = format!("descriptor {}: whoever held its port has gone", l.fd);
                    self.node.events.add("listens again", what);
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    self.barred.listeners.push((l, cookie));
                }
                Err(error) => tracing::debug!("descriptor {}: {error}", l.fd),
            }
        }
    }

    /// A listener's socket in the replica, and its cookie.
    fn socket_of(&self, l: &Listener) -> io::Result<(OwnedFd, u64)> {
        let config = self.node.config;
        let as_root = config.server.user.is_none();
        sockets::may_listen(address(l), &config.group.services, as_root)?;
        let fd = self.replica.take_fd(l.fd)?;
        let cookie = unread::cookie(fd.as_fd())?;
        Ok((fd, cookie))
    }
}

fn revive(fd: &OwnedFd, l: &Listener) -> io::Result<()> {
    listener::revive(fd.as_fd(), address(l), l.backlog)
}

fn address(l: &Listener) -> &[u8] {
    &l.addr[..(l.addr_len as usize).min(l.addr.len())]
}
