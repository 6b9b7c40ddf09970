//! Two hosts joined by an emulated wire, and the programs that run on them.

use crate::command::{self, Killed, wait_for};
use crate::emu::{EmuSpec, End, Link, Namespace, WireCounts};
use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The end that sends, and the one that receives.
pub const A: usize = 0;
pub const B: usize = 1;

/// The ends' addresses on the wire.
pub const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 66, 0, 1), Ipv4Addr::new(10, 66, 0, 2)];

/// Where messages and bulk are received at the far end.
pub const MESSAGES_PORT: u16 = 7001;
pub const BULK_PORT: u16 = 7002;

/// Tells the beds of one process apart.
static BEDS: AtomicU32 = AtomicU32::new(0);

pub struct Bed {
    /// Programs end before their network does.
    programs: Vec<Program>,
    link: Link,
    pub hosts: [Namespace; 2],
    /// A number that no other bed of this machine has.
    pub id: String,
    folder: PathBuf,
}

struct Program {
    end: usize,
    child: Killed,
    log: PathBuf,
}

impl Bed {
    /// Two hosts and a wire that does what `spec` says.
    ///
    /// # Errors
    /// When the caller is not root, or the machine lacks a program.
    pub fn start(spec: &EmuSpec) -> Result<Self> {
        let hosts = [Namespace::start()?, Namespace::start()?];
        let end = |host: &Namespace| End { namespace: host.path(), interface: "wire".to_owned() };
        let link = Link::ip_between(end(&hosts[A]), end(&hosts[B]), spec)?;
        for (host, own) in hosts.iter().zip(OUTSIDE) {
            host.ip(&format!("link set lo up\nlink set wire up\naddr add {own}/24 dev wire\n"))?;
        }
        let id = format!("{}x{}", std::process::id(), BEDS.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("holdfast-bench-{id}"));
        std::fs::create_dir_all(&folder)?;
        Ok(Self { programs: Vec::new(), link, hosts, id, folder })
    }

    /// The path of a file of this bed.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a program at an end; it ends with the bed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&mut self, end: usize, program: &str, words: &[&str]) -> Result<()> {
        let log = self.file(&format!("{}.log", self.programs.len()));
        let said = File::create(&log)?;
        let child = self.hosts[end]
            .command(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        self.programs.push(Program { end, child: Killed(child), log });
        Ok(())
    }

    /// Waits for something of the programs that were started.
    ///
    /// # Errors
    /// When it does not come, with the ends of the programs' logs.
    pub fn wait(&self, what: &str, limit: Duration, ready: impl Fn() -> bool) -> Result<()> {
        wait_for(what, limit, || ready().then_some(())).with_context(|| self.logs())
    }

    /// The last lines that the programs wrote.
    pub fn logs(&self) -> String {
        let last = |program: &Program| {
            let text = std::fs::read_to_string(&program.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(3)..].join(" | ")
        };
        self.programs.iter().map(last).filter(|it| !it.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// What the wire did with packets so far.
    ///
    /// # Errors
    /// When it does not live any more.
    pub fn counts(&mut self) -> Result<WireCounts> {
        self.link.counts()
    }

    /// Processor time that the programs of both ends have used so far, ns. The kernel's own part of
    /// a plain path is nobody's.
    pub fn cpu_ns(&self) -> [u64; 2] {
        let mut used = [0; 2];
        for program in &self.programs {
            used[program.end] += cpu_ns(program.child.0.id());
        }
        used
    }

    /// Whether a program has ended that should not.
    ///
    /// # Errors
    /// Then, with the ends of the logs.
    pub fn check(&mut self) -> Result<()> {
        for program in &mut self.programs {
            if let Some(status) = program.child.0.try_wait()? {
                bail!("a program ended ({status}): {}", self.logs());
            }
        }
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.programs.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program of this machine to its end; what it printed.
///
/// # Errors
/// When it fails, with what it said.
pub fn run_here(program: &str, words: &[&str]) -> Result<String> {
    command::output(program, words).map(|text| text.trim().to_owned())
}

/// Time on a processor of all of a process's threads, ns (sched-stats.rst, `schedstat`).
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_one = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of_one).sum()
}

/// The port of messages at an address.
pub fn messages_at(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, MESSAGES_PORT))
}

/// The port of bulk at an address.
pub fn bulk_at(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, BULK_PORT))
}
