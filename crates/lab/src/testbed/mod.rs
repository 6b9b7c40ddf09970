//! A client, an edge, a primary and a backup on one machine, as network namespaces that differ as
//! machines do. Every process of a run descends from the four hosts, so that nothing is left when
//! the testbed is dropped or its process dies.

pub mod config;
pub mod edges;
pub mod etcd;
pub mod haproxy;
mod host;
pub mod journey;
pub mod ours;
mod overhear;
pub mod power;
mod reaper;
pub mod server;
pub mod spread;
pub mod strings;
mod topology;

pub use host::{Host, Role};
pub use overhear::Overheard;
pub(crate) use overhear::socket_at;
pub use topology::{addresses, interface, remake_interface, unbridge_primary};

use crate::emu::{self, EmuSpec};
use anyhow::{Context as _, Result};
use reaper::Reaper;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Directory of all testbeds.
const BASE: &str = "/run/holdfast-lab";

/// Longest time for a part of a testbed to come up or to go: the machine may be busy, and what is
/// measured has limits of its own.
const SETUP_LIMIT: Duration = Duration::from_secs(90);

/// Makes the directory of the testbed `id`, and who removes it. It is in memory: on a disk that
/// this machine shares with whatever else it does, logs and servers' files would stand still for
/// seconds when that writes.
fn make_directory(id: &str) -> Result<(PathBuf, Reaper)> {
    let directory = Path::new(BASE).join(id);
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {} (are you root?)", directory.display()))?;
    let reaper = Reaper::start(id, &directory)?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "mode=755", "holdfast-lab"]).arg(&directory);
    let done = mount.output().context("cannot start mount")?;
    let said = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "cannot mount {}: {said}", directory.display());
    Ok((directory, reaper))
}

/// Limit of the links between the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// No limit but the two cores that carry everything.
    #[default]
    None,
    /// A token bucket at both ends of every link.
    Tbf {
        /// Rate of the bucket, in bits per second.
        bits_per_second: u64,
    },
}

/// The link between primary and backup for the log.
#[expect(clippy::large_enum_variant, reason = "a testbed has one")]
#[derive(Clone, Debug, Default)]
pub enum LogLink {
    /// The service network, as in the smallest installation.
    #[default]
    Shared,
    /// A wire of its own (10.10.0.0/24).
    Separate,
    /// A wire of its own that the emulator disturbs.
    Emulated(EmuSpec),
}

/// How a testbed is to be built.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rate limits, the same for every link.
    pub shape: Shape,
    /// What the emulator does between client and edge.
    pub client_path: Option<EmuSpec>,
    /// What the emulator does between edge and primary.
    pub primary_path: Option<EmuSpec>,
    /// What the emulator does between edge and backup, where the copies travel.
    pub tap_path: Option<EmuSpec>,
    /// The link for the log.
    pub log: LogLink,
    /// `sysctl` settings of the client host, as `name=value`.
    pub client_sysctls: Vec<String>,
}

/// Four running hosts and their links.
pub struct Testbed {
    id: String,
    directory: PathBuf,
    hosts: [Arc<Host>; 4],
    log_separate: bool,
    _links: Vec<emu::Link>,
    // The reaper is the last field, so that it runs after the others are gone.
    _reaper: Reaper,
}

impl Testbed {
    /// Builds the hosts and the links between them.
    ///
    /// # Errors
    /// When the kernel or a tool refuses a step, in most cases for want of
    /// root; whatever was built until then is removed.
    pub fn build(plan: &Plan) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("hf-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (directory, reaper) = make_directory(&id)?;
        let hosts = Role::ALL
            .map(|role| Host::start(&id, &directory, role.name(), role as u64))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let Ok(hosts) = <[Host; 4]>::try_from(hosts) else {
            anyhow::bail!("four roles make four hosts");
        };
        let links = topology::connect(&hosts, plan)?;
        Ok(Self {
            id,
            directory,
            hosts: hosts.map(Arc::new),
            log_separate: !matches!(plan.log, LogLink::Shared),
            _links: links,
            _reaper: reaper,
        })
    }

    /// One of the hosts.
    pub fn host(&self, role: Role) -> &Host {
        &self.hosts[role as usize]
    }

    /// One of the hosts, for a testbed that is joined to this one.
    fn shared_host(&self, role: Role) -> Arc<Host> {
        Arc::clone(&self.hosts[role as usize])
    }

    /// Prefix of this testbed's namespaces, `hf-<pid>-<n>`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Folder of a host's own disk, as seen from outside.
    pub fn disk(&self, role: Role) -> PathBuf {
        let holder = self.host(role).holder();
        let inside = self.host(role).inside().join(host::DISK);
        Path::new("/proc")
            .join(format!("{holder}/root"))
            .join(inside.strip_prefix("/").unwrap_or(&inside))
    }

    /// The directory that is removed with the testbed.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether primary and backup have a wire of their own.
    pub fn has_log_link(&self) -> bool {
        self.log_separate
    }

    /// Removes from the edge's kernel what a reboot would remove: programs and maps. Its daemon
    /// must be dead, and its `run_dir` must be `run` in the host's directory.
    ///
    /// # Errors
    /// When the pins cannot be removed.
    pub fn forget_edge_programs(&self) -> Result<()> {
        use interface::{EDGE_BACKUP, EDGE_BRIDGE, EDGE_CLIENT, EDGE_PRIMARY};
        let edge = self.host(Role::Edge);
        for device in [EDGE_CLIENT, EDGE_PRIMARY, EDGE_BACKUP, EDGE_BRIDGE] {
            let words = ["-n", edge.namespace(), "qdisc", "del", "dev", device, "clsact"];
            // Some interfaces have no programs.
            let _ = crate::command::output("tc", &words);
        }
        let pins = edge.inside().join("run/bpf-edge");
        let status = edge.command("umount").arg(&pins).status()?;
        anyhow::ensure!(status.success(), "cannot unmount {}", pins.display());
        Ok(())
    }

    /// Gives the service addresses to a host's kernel: to the primary's, which the variant `clean`
    /// needs, or to a proxy's.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn own_service_addresses(&self, role: Role) -> Result<()> {
        topology::own_service_addresses(self.host(role), role)
    }
}
