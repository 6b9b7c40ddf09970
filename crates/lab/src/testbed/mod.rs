//! A client, an edge, a primary and a backup on one machine, as network
//! namespaces that differ the way machines do. Everything a run starts hangs
//! from its four hosts, so that dropping the testbed, or dying in any way,
//! leaves nothing behind.

pub mod config;
mod host;
pub mod ours;
mod overhear;
mod reaper;
pub mod server;
pub mod spread;
pub mod strings;
mod topology;

pub use host::{Host, Role};
pub use overhear::Overheard;
pub(crate) use overhear::socket_at;
pub use topology::{addresses, interface, unbridge_primary};

use crate::emu::{self, EmuSpec};
use anyhow::{Context as _, Result};
use reaper::Reaper;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where every testbed keeps its directory; a tmpfs on any Debian.
const BASE: &str = "/run/holdfast-lab";

/// How long a part of a testbed may take to come up or to go: others may keep the
/// machine busy, and what is measured has limits of its own.
const SETUP_LIMIT: Duration = Duration::from_secs(40);

/// What limits the links between the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Nothing but the two cores that carry it all.
    #[default]
    None,
    /// A token bucket of this many bits per second at both ends of every link.
    Tbf {
        /// Bits per second.
        bits_per_second: u64,
    },
}

/// How primary and backup reach each other with the log.
#[derive(Clone, Debug, Default)]
pub enum LogLink {
    /// Over the service network, as in the smallest installation.
    #[default]
    Shared,
    /// Over a wire of its own (10.10.0.0/24).
    Separate,
    /// Over a wire of its own that the emulator makes worse.
    Emulated(EmuSpec),
}

/// What a testbed is to look like.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rate limits, the same for every link.
    pub shape: Shape,
    /// Emulated trouble between client and edge.
    pub client_path: Option<EmuSpec>,
    /// Emulated trouble between edge and primary.
    pub primary_path: Option<EmuSpec>,
    /// Emulated trouble between edge and backup, where the copies travel.
    pub tap_path: Option<EmuSpec>,
    /// The way of the log.
    pub log: LogLink,
    /// `sysctl` settings of the client host, as `name=value`.
    pub client_sysctls: Vec<String>,
}

/// Four running hosts and their links.
pub struct Testbed {
    id: String,
    directory: PathBuf,
    hosts: [Host; 4],
    log_separate: bool,
    _links: Vec<emu::Link>,
    // Last, so that it sees the others gone.
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
        let directory = Path::new(BASE).join(&id);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {} (are you root?)", directory.display()))?;
        let reaper = Reaper::start(&id, &directory)?;
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
            hosts,
            log_separate: !matches!(plan.log, LogLink::Shared),
            _links: links,
            _reaper: reaper,
        })
    }

    /// One of the hosts.
    pub fn host(&self, role: Role) -> &Host {
        &self.hosts[role as usize]
    }

    /// The prefix of this testbed's namespaces, `hf-<pid>-<n>`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where a host has its own disk, as seen from outside.
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

    /// Takes from the edge's kernel what a reboot would take: programs and maps.
    /// Its daemon must be dead, and its `run_dir` be `run` in the host's directory.
    ///
    /// # Errors
    /// When the pins cannot be removed.
    pub fn forget_edge_programs(&self) -> Result<()> {
        use interface::{EDGE_BACKUP, EDGE_BRIDGE, EDGE_CLIENT, EDGE_PRIMARY};
        let edge = self.host(Role::Edge);
        for device in [EDGE_CLIENT, EDGE_PRIMARY, EDGE_BACKUP, EDGE_BRIDGE] {
            let words = ["-n", edge.namespace(), "qdisc", "del", "dev", device, "clsact"];
            // Not every interface has programs.
            let _ = crate::command::output("tc", &words);
        }
        let pins = edge.inside().join("run/bpf-edge");
        let status = edge.command("umount").arg(&pins).status()?;
        anyhow::ensure!(status.success(), "cannot unmount {}", pins.display());
        Ok(())
    }

    /// Gives the service addresses to the primary's kernel, as the variant
    /// `clean` needs it.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn own_service_addresses(&self, role: Role) -> Result<()> {
        topology::own_service_addresses(self.host(role), role)
    }
}
