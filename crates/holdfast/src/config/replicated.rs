//! The file of a replicated group: a primary and its backup, and what stands before them.

mod arbiter;
mod check;
mod cold;
mod front;
mod state_dirs;
#[cfg(test)]
mod tests;

use super::error::ConfigErrors;
use super::group::{self, Checked, Common, Settings, choose_role};
use super::recover::Recover;
use super::told::{Hooks, KeptEvents};
use super::watching::{Listen, Watching};
use crate::key::PublicKey;
pub use arbiter::{Arbiter, ArbiterKind, Etcd, PowerOff};
pub use cold::{Cold, Mode};
pub use front::Segment;
pub(in crate::config) use front::mac_of;
use holdfast_wire::buffering::Buffering;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Most service addresses that one group can protect.
pub const SERVICES_MAX: usize = 16;
/// Bounds of `connections_max`: the server may use half of them.
pub const CONNECTIONS_MAX: RangeInclusive<u64> = 16..=2 * holdfast_wire::shm::CONNS_MAX as u64;
/// Bounds of `rejoin_max`.
pub const REJOIN_MAX: RangeInclusive<u64> = 0..=1_000_000;
/// Bounds of `alone_after_s`: up to a year.
pub const ALONE_AFTER_S: RangeInclusive<u64> = 1..=365 * 86_400;
/// Bounds of `flows_max`.
pub const FLOWS_MAX: RangeInclusive<u64> = 8..=1 << 20;
/// Bounds of `ring_bytes`, which is a power of two.
pub const RING_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 30;

/// A checked file of a replicated group.
pub type Config = Checked<Replicated>;

/// What the file of a replicated group says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replicated {
    pub group: Group,
    /// What forwards clients' packets to the current member, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<Edge>,
    /// How clients' packets reach both members where there is no edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
    /// Who decides between the members of a pair without an edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arbiter: Option<Arbiter>,
    /// Members, exactly two, in the order of the file.
    #[serde(rename = "member")]
    pub members: Vec<Member>,
    pub server: Server,
    /// What the edge, if there is one, keeps while no member answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recover: Option<Recover>,
    /// Where a cold backup, or a member without a backup, keeps what it can build the server
    /// of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<Cold>,
    /// What is run when the state changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    /// Where the counters are served to Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Listen>,
    /// Where the live page is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Listen>,
}

/// What the members and the edge have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Names the group in paths, messages and metrics.
    pub name: String,
    pub key_file: PathBuf,
    /// Addresses and ports that clients use.
    pub services: Vec<SocketAddr>,
    /// Holds the admin sockets.
    pub run_dir: PathBuf,
    /// Three missed heartbeats declare a peer dead.
    pub heartbeat_ms: u64,
    /// Most connections that are protected at once, including those that ended less
    /// than a minute ago, unless these are half of all. Further ones are not
    /// answered.
    pub connections_max: u32,
    /// How often in a row a backup that has given up (diverged, hung) joins again by itself.
    pub rejoin_max: u32,
    /// Time for which a member waits for the other one before it serves without a
    /// backup, in seconds.
    pub alone_after_s: u64,
    /// Whether a replica runs on the backup.
    pub mode: Mode,
    /// Whether a server that falls while it has no backup is rebuilt on its own host
    /// (decision 31).
    pub rebuild: bool,
    /// What acknowledgements and output wait for.
    pub buffering: Buffering,
    /// Whether the daemons ask for real-time scheduling and locked memory.
    pub realtime: bool,
    #[serde(flatten)]
    pub events: KeptEvents,
    /// Whether the primary's daemon shares one processor with its server's main
    /// thread, and the backup's runs where the primary's packets arrive.
    pub share_cpu: bool,
    /// Whether the server's threads send their log to the backup themselves (decision 35).
    pub direct: bool,
    /// How the members' channel goes.
    pub channel: ChannelWay,
    /// The users' group that may read the state of a daemon; without it, root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchers: Option<String>,
}

/// The edge's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Address at which the members reach the edge's daemon.
    pub listen: SocketAddr,
    /// Interfaces that face the clients.
    pub clients: Vec<String>,
    /// The interface that routes towards the members when their ports are
    /// ports of a bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3: Option<String>,
    /// File that keeps the epoch and its member.
    pub state_file: PathBuf,
    /// The member that is preferred at the very first start (decision 21).
    pub first: String,
    /// Most connections that the edge follows at once; it refuses further ones.
    pub flows_max: u32,
    /// What the host is known by, best first; empty where all share one key file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<PublicKey>,
}

/// One member host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    pub name: String,
    /// Address at which the other member reaches this one's daemon.
    pub address: SocketAddr,
    /// The interface of this host that carries the service.
    pub interface: String,
    /// How the edge reaches it.
    #[serde(flatten)]
    pub port: Option<Port>,
    /// What the host is known by, best first; empty where all share one key file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<PublicKey>,
}

impl Member {
    /// A port of this host's, so many above that of its daemon.
    #[must_use]
    pub fn port_above(&self, ports: u16) -> SocketAddr {
        let mut address = self.address;
        address.set_port(address.port().wrapping_add(ports));
        address
    }
}

/// The way from an edge to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// The edge's interface towards the member.
    pub edge_port: String,
    /// Hardware address of the member's interface.
    pub mac: Mac,
}

/// The protected server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// User who runs it; without it, the user who runs the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File for its standard output and error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// Folders in which it keeps its state. A joining member gets them with the
    /// server's memory, in place of what it had there.
    pub state_dirs: Vec<PathBuf>,
    /// Size of the log ring that it shares with the daemon, in bytes.
    pub ring_bytes: u64,
    /// Whether the kernel may choose the server's addresses at random. They would
    /// then differ between the members, and so would everything that the server
    /// computes from them.
    pub aslr: bool,
    /// Whether a server that reads the processor's time stamp counter itself is
    /// reported, and protection ended. Every clock read is then a system call.
    pub trap_tsc: bool,
    /// How its processes run.
    pub run: Run,
    /// Variables added to the environment that the daemon passes on.
    pub env: BTreeMap<String, String>,
}

/// How the processes of the server run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// The server is the process that is started; its children are not protected. Its threads run
    /// as they like, until a replica has differed: from the join behind that on one at a time.
    #[default]
    Auto,
    /// All processes are in one log, and run as they like (decision 33).
    Parallel,
    /// Besides, one thread of all of them runs at a time (decision 34).
    OneAtATime,
}

impl Run {
    /// As the file writes it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Parallel => "parallel",
            Self::OneAtATime => "one-at-a-time",
        }
    }

    /// Whether all processes of the server are in one log.
    #[must_use]
    pub const fn is_family(self) -> bool {
        !matches!(self, Self::Auto)
    }
}

/// How the bytes of the members' channel go from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelWay {
    /// Over TCP.
    #[default]
    Plain,
    /// Over a coded tunnel, for paths that lose packets (decision 37).
    Coded,
}

/// A hardware (Ethernet) address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Mac(pub [u8; 6]);

/// Which daemon a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Edge,
    /// The arbiter of a pair without an edge.
    Witness,
    /// Index into [`Replicated::members`].
    Member(usize),
}

impl Settings for Replicated {
    type Role<'r> = Role;

    fn read(path: &Path, text: &str) -> Result<Config, ConfigErrors> {
        group::read(path, text, check::check)
    }

    fn common(&self) -> Common<'_> {
        let Group { name, key_file, run_dir, heartbeat_ms, events, watchers, .. } = &self.group;
        let (heartbeat_ms, hooks) = (*heartbeat_ms, self.hooks.as_ref());
        let (watchers, metrics, page) = (watchers.as_deref(), self.metrics, self.page);
        let watching = Watching { watchers, metrics, page };
        Common { name, key_file, run_dir, heartbeat_ms, events, hooks, watching }
    }

    fn summary(&self) -> String {
        let services: Vec<String> = self.group.services.iter().map(ToString::to_string).collect();
        format!("protects {}", services.join(", "))
    }

    fn roles(&self) -> Vec<(String, Vec<IpAddr>)> {
        let edge = self.edge.iter().map(|edge| ("edge".to_owned(), vec![edge.listen.ip()]));
        let members = self.members.iter().map(|it| (it.name.clone(), vec![it.address.ip()]));
        let witness = self.arbiter.iter().filter_map(Arbiter::witness);
        let witness = witness.map(|at| ("witness".to_owned(), vec![at.ip()]));
        edge.chain(members).chain(witness).collect()
    }

    fn public_keys(&self) -> Vec<(&str, &[PublicKey])> {
        let edge = self.edge.iter().map(|edge| ("edge", &edge.public_keys[..]));
        let members = self.members.iter().map(|it| (it.name.as_str(), &it.public_keys[..]));
        let witness = self.arbiter.iter().filter(|it| it.witness().is_some());
        let witness = witness.map(|it| ("witness", &it.public_keys[..]));
        edge.chain(members).chain(witness).collect()
    }

    fn take_public_keys(&mut self, other: &Self) {
        if let (Some(edge), Some(other)) = (&mut self.edge, &other.edge) {
            edge.public_keys.clone_from(&other.public_keys);
        }
        if let (Some(arbiter), Some(other)) = (&mut self.arbiter, &other.arbiter) {
            arbiter.public_keys.clone_from(&other.public_keys);
        }
        for member in &mut self.members {
            let same = other.members.iter().find(|it| it.name == member.name);
            same.iter().for_each(|it| member.public_keys.clone_from(&it.public_keys));
        }
    }

    fn name_of(&self, role: Role) -> &str {
        self.role_name(role)
    }
}

impl Replicated {
    /// The role called `name`: `edge`, `witness` or a member's name.
    ///
    /// # Errors
    /// A sentence that lists the roles there are.
    pub fn role(&self, name: &str) -> Result<Role, String> {
        let name = choose_role(&self.roles(), Some(name))?;
        let member = self.members.iter().position(|member| member.name == name);
        let other = if name == "witness" { Role::Witness } else { Role::Edge };
        Ok(member.map_or(other, Role::Member))
    }

    /// `edge`, `witness` or the member's name.
    #[must_use]
    pub fn role_name(&self, role: Role) -> &str {
        match role {
            Role::Edge => "edge",
            Role::Witness => "witness",
            Role::Member(index) => self.members.get(index).map_or("?", |m| &m.name),
        }
    }

    /// The member that is preferred at the very first start (decision 21).
    #[must_use]
    pub fn first(&self) -> &str {
        let edge = self.edge.as_ref().map(|edge| &edge.first);
        edge.or(self.segment.as_ref().map(|it| &it.first)).map_or("", String::as_str)
    }

    /// The ways from the edge to the members, in their order.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.members.iter().filter_map(|member| member.port.as_ref())
    }

    /// The member that is not `member`.
    #[must_use]
    pub fn other(&self, member: &Member) -> &Member {
        let is_first = self.members.first().is_some_and(|m| m.name == member.name);
        &self.members[usize::from(is_first)]
    }

    /// Addresses and ports that clients use.
    #[must_use]
    pub fn served(&self) -> Vec<(IpAddr, u16)> {
        self.group.services.iter().map(|s| (s.ip(), s.port())).collect()
    }

    /// The distinct service addresses without their ports.
    #[must_use]
    pub fn service_ips(&self) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = self.group.services.iter().map(SocketAddr::ip).collect();
        ips.sort();
        ips.dedup();
        ips
    }

    /// The distinct protected ports.
    #[must_use]
    pub fn service_ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.group.services.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

impl std::str::FromStr for Mac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const HOW: &str =
            "a hardware address is six pairs of hexadecimal digits: 02:00:00:00:00:0a";
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(HOW)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| HOW)?;
        }
        if parts.next().is_some() {
            return Err(HOW);
        }
        if bytes[0] & 1 != 0 || bytes == [0; 6] {
            return Err("a host's hardware address is neither zero nor a group address");
        }
        Ok(Self(bytes))
    }
}
