//! Whether the protected server listens where clients are told to come.

use holdfast_linux::listeners::{ListenerSocket, Listening};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often a server that does not listen yet is looked at, and one that does.
const LOOK_SOON: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Descriptors of the server that are looked through: what listens is opened early.
const FDS_MAX: usize = 1024;

/// What was found the last time.
pub(super) struct Services {
    socket: ListenerSocket,
    look_at: Instant,
    /// Where each service's listener is in the server.
    known: BTreeMap<SocketAddr, PathBuf>,
    missing: Option<String>,
}

impl Services {
    pub fn open(now: Instant) -> std::io::Result<Self> {
        let missing = Some("the server has not started yet".to_owned());
        let socket = ListenerSocket::open()?;
        Ok(Self { socket, look_at: now, known: BTreeMap::new(), missing })
    }

    /// Why not every service is served by the process `pid`; `None`: all are.
    pub fn missing(&mut self, services: &[SocketAddr], pid: u32, now: Instant) -> Option<&str> {
        if now >= self.look_at {
            self.missing = match self.socket.listening() {
                Ok(all) => services.iter().find_map(|service| self.lacks(&all, *service, pid)),
                Err(error) => Some(format!("the kernel does not tell who listens: {error}")),
            };
            let pause = if self.missing.is_some() { LOOK_SOON } else { LOOK_EVERY };
            self.look_at = now + pause;
        }
        self.missing.as_deref()
    }

    fn lacks(&mut self, all: &[Listening], service: SocketAddr, pid: u32) -> Option<String> {
        let serve = |it: &&Listening| it.serves(service.ip(), service.port());
        let names: Vec<PathBuf> =
            all.iter().filter(serve).map(|it| format!("socket:[{}]", it.inode).into()).collect();
        if names.is_empty() {
            self.known.remove(&service);
            return Some(format!("the server does not listen at {service} yet"));
        }
        let is_one = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| names.contains(&to));
        if self.known.get(&service).is_some_and(is_one) {
            return None;
        }
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        match fds.take(FDS_MAX).map(|entry| entry.path()).find(is_one) {
            Some(path) => {
                self.known.insert(service, path);
                None
            }
            None => Some(format!("another process than the protected server listens at {service}")),
        }
    }
}
