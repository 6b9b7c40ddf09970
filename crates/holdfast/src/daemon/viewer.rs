//! The program that serves the counters and the live page, as a child of the daemon: it listens to
//! strangers, so it has no right to anything but the daemon's socket for those who only look.

use super::child::{self, Care, Child};
use crate::admin::watch_socket;
use crate::config::{Common, admin_socket};
use holdfast_linux::address::AddressSocket;
use holdfast_program::WATCH;
use holdfast_wire::packet::mapped;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};

/// The child, for as long as this lives.
#[derive(Debug)]
pub struct Viewer {
    _child: Child,
}

impl Viewer {
    /// Starts it if a file of these groups says that something is to be served on this host;
    /// `daemons` are the groups, and this daemon's role in each. What fails is logged, with the
    /// remedy.
    #[must_use]
    pub fn start(daemons: &[(Common<'_>, &str)]) -> Option<Self> {
        Some(Self { _child: Child::start(Plan::of(daemons)?)? })
    }
}

/// What is to be started.
#[derive(Debug)]
struct Plan {
    /// The daemon's sockets for those who only look.
    sockets: Vec<PathBuf>,
    arguments: Vec<String>,
}

impl Plan {
    /// `None` if nothing is to be served here.
    fn of(daemons: &[(Common<'_>, &str)]) -> Option<Self> {
        let mut arguments = Vec::new();
        for (common, _) in daemons {
            let watching = common.watching;
            for (what, listen) in [("metrics", watching.metrics), ("page", watching.page)] {
                let Some(at) = listen.map(|it| it.listen).filter(|at| is_here(what, *at)) else {
                    continue;
                };
                arguments.push(format!("--{what}={at}"));
            }
        }
        if arguments.is_empty() {
            return None;
        }
        // Groups that a witness serves may say the same.
        arguments.sort();
        arguments.dedup();
        let socket =
            |(common, role): &(Common<'_>, &str)| watch_socket(&admin_socket(common.run_dir, role));
        let sockets: Vec<PathBuf> = daemons.iter().map(socket).collect();
        Some(Self { sockets, arguments })
    }
}

impl Care for Plan {
    const PROGRAM: &'static str = WATCH;
    const WITHOUT: &'static str = "metrics and page are not served";

    /// Whether the daemon answers there already.
    fn is_due(&mut self) -> bool {
        self.sockets.iter().all(|path| UnixStream::connect(path).is_ok())
    }

    fn spawn(&mut self) -> io::Result<Process> {
        let mut command = Command::new(child::beside(Self::PROGRAM));
        command.arg("serve").args(&self.arguments);
        command.args(self.sockets.iter().flat_map(|path| [Path::new("--watch"), path]));
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }
}

/// Whether this host has the address: one file is for all hosts.
fn is_here(what: &str, at: SocketAddr) -> bool {
    let mut addresses = match AddressSocket::open() {
        Ok(addresses) if !at.ip().is_unspecified() => addresses,
        _ => return true,
    };
    let is_local = addresses.is_local(&mapped(at.ip())).unwrap_or(true);
    if !is_local {
        tracing::info!("[{what}] listen = {at} is no address of this host: nothing is served here");
    }
    is_local
}

/// What nobody can tell by a file: whether the host has the group of users.
#[must_use]
pub fn trouble_of(common: &Common<'_>) -> Option<String> {
    let error = crate::admin::group_id(common.watching.watchers?).err()?;
    (error.kind() == ErrorKind::NotFound).then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KeptEvents, Listen, Watching};

    fn common(metrics: &str, page: Option<&str>) -> Common<'static> {
        let listen = |text: &str| Listen { listen: text.parse().unwrap() };
        let watching =
            Watching { watchers: None, metrics: Some(listen(metrics)), page: page.map(listen) };
        let (run_dir, key_file) = (Path::new("/run/x"), Path::new("/nowhere"));
        let (events, hooks) = (&KeptEvents::NONE, None);
        Common { name: "x", key_file, run_dir, heartbeat_ms: 20, events, hooks, watching }
    }

    #[test]
    fn only_what_this_host_can_serve_is_started() {
        let none = Common { watching: Watching::default(), ..common("[::]:1", None) };
        assert!(Plan::of(&[(none, "a")]).is_none());
        assert!(Plan::of(&[(common("192.0.2.1:1", None), "a")]).is_none(), "another host's");
        let here = common("127.0.0.1:9464", Some("[::]:9465"));
        let plan = Plan::of(&[(here, "a"), (here, "witness")]).unwrap();
        assert_eq!(plan.arguments, ["--metrics=127.0.0.1:9464", "--page=[::]:9465"]);
        assert_eq!(plan.sockets, [Path::new("/run/x/a.watch"), Path::new("/run/x/witness.watch")]);
    }
}
