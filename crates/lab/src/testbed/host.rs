//! A host of the testbed: a process that holds a network, mount, pid, UTS and time namespace open.
//! Its clock is a day away from every other host's, and a directory of its own lies at a path that
//! is the same on all hosts.

use super::SETUP_LIMIT;
use crate::command::{self, children, wait_for};
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Distance between the monotonic clocks of two hosts, in s.
const CLOCK_STEP_S: u64 = 86_400;

/// What a host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host of the load.
    Client,
    /// The router in front of the service.
    Edge,
    /// The member that serves first.
    Primary,
    /// The member that takes over.
    Backup,
}

impl Role {
    /// Every role, in the order of [`super::Testbed`]'s hosts.
    pub const ALL: [Role; 4] = [Role::Client, Role::Edge, Role::Primary, Role::Backup];

    /// Name of the host's namespace and directory.
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Edge => "edge",
            Role::Primary => "primary",
            Role::Backup => "backup",
        }
    }

    /// The other member of the pair.
    #[must_use]
    pub fn other(self) -> Role {
        if self == Role::Primary { Role::Backup } else { Role::Primary }
    }
}

/// Bytes that a host's own disk holds, so few that a test can fill it.
const DISK_BYTES: u64 = 16 << 20;

/// Name of the host's own disk in its directory.
pub(super) const DISK: &str = "disk";

/// A running host.
pub struct Host {
    name: String,
    namespace: String,
    holder: u32,
    outside: PathBuf,
    inside: PathBuf,
    unshare: Child,
}

impl Host {
    /// Starts a host whose clock is `number` steps away from this machine's.
    pub(super) fn start(id: &str, base: &Path, name: &str, number: u64) -> Result<Self> {
        let outside = base.join(name);
        let inside = base.join("host");
        std::fs::create_dir_all(&outside)?;
        std::fs::create_dir_all(&inside)?;
        // It knows its own name, and no name server: one that no way leads to is waited for.
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        std::fs::write(outside.join("hosts"), format!("{hosts}\n127.0.1.1 {id}-{name}\n"))?;
        std::fs::write(outside.join("resolv.conf"), "")?;
        let clock = (CLOCK_STEP_S * number).to_string();
        // Nothing else writes to the host's disk, as to a real host's: whatever this machine's disk
        // does must not show in a takeover.
        let script = format!(
            "mount -t sysfs sysfs /sys; mount -t bpf bpf /sys/fs/bpf; mount -t tmpfs shm /dev/shm; \
             mount --bind '{0}' '{host}'; mkdir '{host}/{DISK}'; mount -t tmpfs -o size={DISK_BYTES} disk '{host}/{DISK}'; \
             for file in hosts resolv.conf; do [ ! -e /etc/$file ] || mount --bind '{0}'/$file /etc/$file; done; \
             hostname '{id}-{name}'; ip link set lo up; echo ready; exec sleep infinity",
            outside.display(),
            host = inside.display(),
        );
        let mut unshare = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--time"])
            .args(["--monotonic", &clock, "--boottime", &clock])
            .args(["--fork", "--kill-child=KILL", "--mount-proc", "sh", "-eu", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let mut line = String::new();
        if let Some(stdout) = unshare.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        anyhow::ensure!(line.trim() == "ready", "the {name} host did not come up");
        let holder = wait_for("the first process of a host", SETUP_LIMIT, || {
            children(unshare.id()).first().copied()
        })?;
        let namespace = format!("{id}-{name}");
        command::output("ip", &["netns", "attach", &namespace, &holder.to_string()])?;
        Ok(Self { name: name.to_owned(), namespace, holder, outside, inside, unshare })
    }

    /// Name of its directory, and last part of its namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of its network namespace, for `ip -n`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pid of its first process, as seen from outside.
    pub fn holder(&self) -> u32 {
        self.holder
    }

    /// The pids of all processes on it except the first, as seen from outside.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn processes(&self) -> Result<Vec<u32>> {
        processes(self.holder)
    }

    /// Sends a signal to all of them: a host that stands still, goes on, or is off.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn signal_all(&self, signal: Signal) -> Result<()> {
        signal_all(self.holder, signal).map(drop)
    }

    /// Its private directory, as seen from outside.
    pub fn outside(&self) -> &Path {
        &self.outside
    }

    /// The same directory as its own processes see it; the same path on every host.
    pub fn inside(&self) -> &Path {
        &self.inside
    }

    /// A command that will run on this host, in all its namespaces.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.holder.to_string(), "-m", "-u", "-i", "-n", "-p", "-T", "--"])
            .arg(program);
        command
    }

    /// A command that shares only the network with this host: it keeps the
    /// clock and the process numbers of the caller.
    pub fn network_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.to_string(), "-n", "--"]).arg(program);
        command
    }

    /// Applies `sysctl` settings of the form `name=value`.
    ///
    /// # Errors
    /// When a setting is unknown.
    pub fn sysctl(&self, settings: &[&str]) -> Result<()> {
        let holder = self.holder.to_string();
        let mut arguments = vec!["-t", &holder, "-n", "--", "sysctl", "-qw"];
        arguments.extend(settings);
        command::output("nsenter", &arguments).map(drop)
    }

    /// Feeds lines to `ip -batch` on this host.
    ///
    /// # Errors
    /// When `ip` refuses a line.
    pub fn ip(&self, lines: &str) -> Result<()> {
        command::ip_batch(Some(&self.namespace), lines)
    }

    /// The file that takes `0x1002` to bring one of the host's interfaces
    /// down at once, without a process in between.
    pub fn interface_flags(&self, interface: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/sys/class/net/{interface}/flags", self.holder))
    }
}

/// Sends a signal to the processes of a host; returns how many there were.
pub(super) fn signal_all(holder: u32, signal: Signal) -> Result<usize> {
    let pids = processes(holder)?;
    for pid in &pids {
        let pid = Pid::from_raw(pid.cast_signed()).context("no process number")?;
        let _it_may_be_gone = kill_process(pid, signal);
    }
    Ok(pids.len())
}

/// The processes of the host whose first one this is, except that.
fn processes(holder: u32) -> Result<Vec<u32>> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(holder);
    let all = std::fs::read_dir("/proc").context("cannot read /proc")?;
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(|&pid| pid != holder && namespace(pid) == own && lives(pid)).collect())
}

/// Whether a process is more than an entry in the table: the orphans of a host are not waited for.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

impl Drop for Host {
    fn drop(&mut self) {
        // The cleaner removes what cannot be ended here.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let _ = command::output("ip", &["netns", "del", &self.namespace]);
    }
}
