//! The configuration: one TOML file that all hosts of a group share.
//! [`Config`] is that of a replicated group; [`GroupFile`] is that of any kind.
//!
//! Nothing in it is guessed: an unknown key, a value out of range or a name
//! that is not defined is an error with its line, its column and a remedy.
//! `config show --effective` prints every default.

mod error;
mod kind;
mod raw;
pub mod recover;
pub mod spread;
#[cfg(test)]
mod tests;
pub mod transit;

pub use error::{ConfigError, ConfigErrors};
pub use kind::{GroupFile, Kind, choose_role, kind_of};
pub(crate) use kind::{admin_socket, pin_dir};

use crate::key::GroupKey;
use recover::Recover;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Service addresses one group can protect.
pub const SERVICES_MAX: usize = 16;
/// Client-facing interfaces one edge can have.
pub const CLIENT_INTERFACES_MAX: usize = 8;
/// Largest configuration file that is read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bounds of `heartbeat_ms`.
pub const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 5..=1000;
/// Bounds of `connections_max`: half of them may be in use by the server.
pub const CONNECTIONS_MAX: std::ops::RangeInclusive<u64> =
    16..=2 * holdfast_wire::shm::CONNS_MAX as u64;
/// Bounds of `flows_max`.
pub const FLOWS_MAX: std::ops::RangeInclusive<u64> = 8..=1 << 20;
/// Bounds of `ring_bytes`, which is a power of two.
pub const RING_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    pub group: Group,
    pub edge: Edge,
    /// Exactly two; the order is that of the file.
    #[serde(rename = "member")]
    pub members: Vec<Member>,
    pub server: Server,
    /// What the edge keeps for the time in which no member answers.
    pub recover: Recover,
    #[serde(skip)]
    key_file_at: error::Position,
    #[serde(skip)]
    path: PathBuf,
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
    /// Connections that are protected at once, those included that ended less than
    /// a minute ago, unless these are half of all. What comes beyond is not answered.
    pub connections_max: u32,
    /// Whether the daemons ask for real-time scheduling and locked memory.
    pub realtime: bool,
    /// Whether the primary's daemon shares one processor with its server's main
    /// thread, and the backup's goes where the primary's packets arrive.
    pub share_cpu: bool,
}

/// The edge's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Where the members reach the edge's daemon.
    pub listen: SocketAddr,
    /// Interfaces that face the clients.
    pub clients: Vec<String>,
    /// The interface that routes towards the members when their ports are
    /// ports of a bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3: Option<String>,
    /// Where (epoch, member) is kept.
    pub state_file: PathBuf,
    /// The member that is preferred at the very first start (decision 21).
    pub first: String,
    /// Connections that the edge follows at once; it refuses more.
    pub flows_max: u32,
}

/// One member host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    pub name: String,
    /// Where the other member reaches this one's daemon.
    pub address: SocketAddr,
    /// The interface of this host that carries the service.
    pub interface: String,
    /// The edge's interface towards this host.
    pub edge_port: String,
    /// Hardware address of `interface`.
    pub mac: Mac,
}

/// The protected server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Server {
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Who runs it; without it, the user who runs the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where its standard output and error go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// Size of the log ring that it shares with the daemon.
    pub ring_bytes: u64,
    /// Whether the kernel may choose the server's addresses at random. They would
    /// differ between the members, and whatever the server computes from them.
    pub aslr: bool,
    /// Whether a server that reads the processor's time stamp counter itself is
    /// reported, and protection ended. Every clock read is a system call then.
    pub trap_tsc: bool,
    /// Added to the environment that the daemon passes on.
    pub env: BTreeMap<String, String>,
}

/// A hardware (Ethernet) address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Mac(pub [u8; 6]);

/// Which of the daemons a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Edge,
    /// Index into [`Config::members`].
    Member(usize),
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place and a remedy.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = read_limited(path).map_err(|e| ConfigErrors(vec![e]))?;
        Self::parse(path, &text)
    }

    /// Checks `text` as if it had been read from `path`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        raw::parse(path, text)
    }

    /// Reads the group's key, which must be readable by its owner only.
    ///
    /// # Errors
    /// One error that points at `key_file`.
    pub fn key(&self) -> Result<GroupKey, ConfigErrors> {
        raw::load_key(&self.group.key_file, &self.path, self.key_file_at)
    }

    /// The file with every default written out.
    #[must_use]
    pub fn effective(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// The role called `name`: `edge` or a member's name.
    ///
    /// # Errors
    /// A sentence that lists the roles there are.
    pub fn role(&self, name: &str) -> Result<Role, String> {
        if name == "edge" {
            return Ok(Role::Edge);
        }
        let found = self.members.iter().position(|m| m.name == name);
        found.map(Role::Member).ok_or_else(|| {
            format!("there is no role `{name}`; this file has: {}", self.role_names().join(", "))
        })
    }

    /// The role whose address belongs to this host, if exactly one does.
    ///
    /// # Errors
    /// A sentence that asks for `--role`.
    pub fn role_of_this_host(&self) -> Result<Role, String> {
        let is_local = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
        let mut local = Vec::new();
        if is_local(&self.edge.listen) {
            local.push(Role::Edge);
        }
        local.extend(
            (0..self.members.len())
                .filter(|&i| is_local(&self.members[i].address))
                .map(Role::Member),
        );
        match local[..] {
            [role] => Ok(role),
            [] => Err(format!(
                "none of the group's addresses belongs to this host; say which role it has: --role {}",
                self.role_names().join("|")
            )),
            _ => Err(format!(
                "several roles have an address here; choose one: --role {}",
                self.role_names().join("|")
            )),
        }
    }

    /// `edge` or the member's name.
    #[must_use]
    pub fn role_name(&self, role: Role) -> &str {
        match role {
            Role::Edge => "edge",
            Role::Member(index) => self.members.get(index).map_or("?", |m| &m.name),
        }
    }

    /// The admin socket of the daemon with this role.
    #[must_use]
    pub fn admin_socket(&self, role: Role) -> PathBuf {
        admin_socket(&self.group.run_dir, self.role_name(role))
    }

    /// Where the daemon with this role pins its eBPF programs and maps.
    #[must_use]
    pub fn pin_dir(&self, role: Role) -> PathBuf {
        kind::pin_dir(&self.group.run_dir, self.role_name(role))
    }

    /// The member that is not `member`.
    #[must_use]
    pub fn other(&self, member: &Member) -> &Member {
        let is_first = self.members.first().is_some_and(|m| m.name == member.name);
        &self.members[usize::from(is_first)]
    }

    /// `heartbeat_ms` as a duration.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.group.heartbeat_ms)
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

    fn role_names(&self) -> Vec<&str> {
        let members = self.members.iter().map(|m| m.name.as_str());
        std::iter::once("edge").chain(members).collect()
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

fn read_limited(path: &Path) -> Result<String, ConfigError> {
    let error = |message: String, remedy: &str| ConfigError {
        path: path.to_owned(),
        at: error::Position::default(),
        message,
        remedy: remedy.to_owned(),
    };
    let size = std::fs::metadata(path)
        .map_err(|e| {
            error(format!("cannot be read: {e}"), "give the path of the group's file with --config")
        })?
        .len();
    if size > FILE_BYTES_MAX {
        return Err(error(
            format!("has {size} bytes"),
            "a configuration is never that large; is it the right file?",
        ));
    }
    std::fs::read_to_string(path)
        .map_err(|e| error(format!("cannot be read: {e}"), "it must be a readable UTF-8 text file"))
}
