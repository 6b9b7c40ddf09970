//! The replica's listeners in a takeover: they are made to listen, and those whose port
//! another process holds are tried again until it has released that port.

use super::sockets;
use crate::daemon::member::MemberContext;
use holdfast_linux::spawn::Server;
use holdfast_linux::{listener, unread};
use holdfast_wire::shm::Listener;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time after which a listener whose port somebody holds is tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(1);

/// Listeners whose port somebody else holds.
#[derive(Default)]
pub struct Barred {
    /// Each listener with the kernel's cookie of its socket: the server may have reused its
    /// descriptor number since.
    listeners: Vec<(Listener, u64)>,
    again_at: Option<Instant>,
}

impl Barred {
    /// Makes everything listen that the replica's table lists; failures become
    /// events.
    pub fn revive_all(node: &mut MemberContext<'_>, replica: &Server, now: Instant) -> Self {
        let mut barred = Self { listeners: Vec::new(), again_at: Some(now + AGAIN_EVERY) };
        for l in replica.memory.listeners() {
            let found = socket_of(node, replica, &l);
            let revived = match &found {
                Ok((fd, _)) => revive(fd, &l),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let Err(error) = revived else { continue };
            if let Ok((_, cookie)) = found
                && error.kind() == ErrorKind::AddrInUse
            {
                barred.listeners.push((l, cookie));
            }
            node.events.add("listener lost", format!("descriptor {}: {error}", l.fd));
        }
        barred
    }

    /// Tries again the listeners of the speaking server whose port was held.
    pub fn revive(&mut self, node: &mut MemberContext<'_>, server: &Server, now: Instant) {
        if self.listeners.is_empty() || self.again_at.is_some_and(|at| now < at) {
            return;
        }
        self.again_at = Some(now + AGAIN_EVERY);
        for (l, cookie) in std::mem::take(&mut self.listeners) {
            let same = socket_of(node, server, &l).ok().filter(|(_, found)| *found == cookie);
            // The server has closed this listener in the meantime.
            let Some((fd, _)) = same else { continue };
            match revive(&fd, &l) {
                Ok(()) => {
                    let what = format!("descriptor {}: whoever held its port has gone", l.fd);
                    node.events.add("listens again", what);
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    self.listeners.push((l, cookie));
                }
                Err(error) => tracing::debug!("descriptor {}: {error}", l.fd),
            }
        }
    }
}

/// A listener's socket in the server, and its cookie.
fn socket_of(
    node: &MemberContext<'_>,
    server: &Server,
    l: &Listener,
) -> io::Result<(OwnedFd, u64)> {
    let as_root = node.config.server.user.is_none();
    sockets::may_listen(address(l), &node.config.group.services, as_root)?;
    let fd = server.take_listener(l)?;
    let cookie = unread::cookie(fd.as_fd())?;
    Ok((fd, cookie))
}

fn revive(fd: &OwnedFd, l: &Listener) -> io::Result<()> {
    listener::revive(fd.as_fd(), address(l), l.backlog)
}

fn address(l: &Listener) -> &[u8] {
    &l.addr[..(l.addr_len as usize).min(l.addr.len())]
}
