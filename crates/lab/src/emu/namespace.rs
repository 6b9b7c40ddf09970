//! A network of its own, held open by a process that ends with the thread that started it.

use crate::command::{self, Killed, wait_for};
use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest time for the kernel to make a namespace.
const START_LIMIT: Duration = Duration::from_secs(5);

/// A network namespace; dropping it ends the process that holds it.
pub(crate) struct Namespace(Killed);

impl Namespace {
    /// Makes an empty one.
    ///
    /// # Errors
    /// When it cannot be made: the caller is not root.
    pub(crate) fn start() -> Result<Self> {
        // Programs that replace each other keep the wish to die with the caller (prctl(2)).
        let holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start unshare")?;
        let namespace = Self(Killed(holder));
        let own = std::fs::read_link("/proc/self/ns/net")?;
        wait_for("a network namespace", START_LIMIT, || {
            std::fs::read_link(namespace.path()).ok().filter(|link| *link != own)
        })
        .context("cannot unshare the network (are you root?)")?;
        Ok(namespace)
    }

    /// Its file.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.0.id()).into()
    }

    /// A command that will run in it, and ends with the thread that started it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter", "-t"]);
        command.args([&self.0.0.id().to_string(), "-n", "--", program]);
        command
    }

    /// Feeds lines to `ip -batch` in it.
    ///
    /// # Errors
    /// When `ip` refuses a line.
    pub(crate) fn ip(&self, lines: &str) -> Result<()> {
        let holder = self.0.0.id();
        command::shell(&format!("nsenter -t {holder} -n -- ip -batch - <<'END'\n{lines}END\n"))
            .map(drop)
    }

    /// Does something on a thread that has moved there; sockets that it makes stay there.
    ///
    /// # Errors
    /// What `work` returns, and when the namespace cannot be entered.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = self.path();
        let done = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let namespace = File::open(path)?;
                    let kind = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(namespace.as_fd(), kind)?;
                    work()
                })
                .join()
        });
        match done {
            Ok(result) => result,
            Err(_) => bail!("a thread in a namespace panicked"),
        }
    }
}
