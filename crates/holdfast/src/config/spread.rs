//! The file of a spread group: one service address, many host servers.

mod edges;
#[cfg(test)]
mod tests;

pub use edges::{Clients, EDGES_MAX, SpreadEdge};

use super::checks::{
    Pace, check_heartbeat, check_interface, check_key_file, check_kind, check_name,
    check_routed_ip, number, run_dir,
};
use super::error::{ConfigErrors, Findings};
use super::explain::suggestion;
use super::group::{self, Checked, Common, Settings};
use super::keys::{RawKeys, check_keys};
use super::kind::Kind;
use super::recover::{Policy, RawRecover, Recover, Start, check_recover};
use super::replicated::{Mac, mac_of};
use super::told::{Hooks, KeptEvents, RawHooks, check_events, check_hooks};
use super::watching::{Listen, RawListen, Watching, check_listens, check_watchers};
use crate::key::PublicKey;
use crate::status::counted;
use edges::{RawClients, RawEdges, check_clients, check_edges};
use holdfast_member::spread::Service;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;

/// Most service addresses of one group.
pub const ADDRESSES_MAX: usize = 16;
/// Most host servers of one group.
pub const HOSTS_MAX: usize = 250;
/// Most services that one host server names in the file.
pub const NAMED_SERVICES_MAX: usize = 16;
/// Bounds of a host server's `weight`.
pub const WEIGHT: RangeInclusive<u64> = 1..=1000;
/// Bounds of `flows_max`.
pub const FLOWS_MAX: RangeInclusive<u64> = 16..=16_000_000;
/// Bounds of `mtu`: the least that IPv6 needs, and the most that IP can say.
pub const MTU: RangeInclusive<u64> = 1280..=65_535;

const WEIGHT_DEFAULT: u64 = 100;
const FLOWS_MAX_DEFAULT: u64 = 262_144;
const HEARTBEAT_MS_DEFAULT: u64 = 100;
const OUTER4_DEFAULT: &str = "172.16.0.0/16";
const OUTER6_DEFAULT: &str = "fd68:6f6c:6466::/64";

/// A checked file of a spread group.
pub type SpreadConfig = Checked<Spread>;

/// What the file of a spread group says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    pub group: SpreadGroup,
    /// Edges in the order of the file.
    #[serde(rename = "edge")]
    pub edges: Vec<SpreadEdge>,
    #[serde(skip_serializing_if = "Clients::is_empty")]
    pub clients: Clients,
    /// Host servers in the order of the file.
    #[serde(rename = "host")]
    pub hosts: Vec<SpreadHost>,
    /// What the edge keeps for the death of a host server.
    pub recover: Recover,
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

/// What edge and host servers have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpreadGroup {
    pub kind: Kind,
    /// Names the group in paths and messages.
    pub name: String,
    pub key_file: PathBuf,
    /// Addresses that clients use; their ports are announced by the host servers.
    pub addresses: Vec<IpAddr>,
    /// Holds the admin sockets and the pins.
    pub run_dir: PathBuf,
    /// Time between heartbeats, in ms; three missed ones take a host server
    /// out.
    pub heartbeat_ms: u64,
    /// Most TCP connections of each family that are kept where they are. Further
    /// ones are not taken.
    pub flows_max: u32,
    #[serde(flatten)]
    pub events: KeptEvents,
    /// The users' group that may read the state of a daemon; without it, root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchers: Option<String>,
}

/// One host server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpreadHost {
    pub name: String,
    /// Address to which packets for IPv4 services are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Ipv4Addr>,
    /// Address to which packets for IPv6 services are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel6: Option<Ipv6Addr>,
    /// The host server's interface towards the edge.
    pub interface: String,
    pub method: Method,
    /// Its share of new connections, compared with the others'.
    pub weight: u32,
    /// Services that it serves. Without it: all that its processes bind to the
    /// group's addresses.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_written")]
    pub services: Option<Vec<Service>>,
    /// What the host is known by, best first; empty where all share one key file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<PublicKey>,
}

/// How a packet reaches a host server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// Encapsulated (RFC 2003, RFC 2473).
    #[serde(rename = "ip-in-ip")]
    IpInIp,
    /// Unchanged, to the host server's hardware address: for one network
    /// segment.
    #[serde(rename = "layer-2")]
    Layer2,
}

/// A range of addresses: `172.16.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Prefix {
    pub address: IpAddr,
    pub bits: u8,
}

impl Settings for Spread {
    type Role<'r> = &'r str;

    fn read(path: &Path, text: &str) -> Result<SpreadConfig, ConfigErrors> {
        group::read(path, text, check)
    }

    fn common(&self) -> Common<'_> {
        let SpreadGroup { name, key_file, run_dir, heartbeat_ms, events, watchers, .. } =
            &self.group;
        let (heartbeat_ms, hooks) = (*heartbeat_ms, self.hooks.as_ref());
        let (watchers, metrics, page) = (watchers.as_deref(), self.metrics, self.page);
        let watching = Watching { watchers, metrics, page };
        Common { name, key_file, run_dir, heartbeat_ms, events, hooks, watching }
    }

    fn summary(&self) -> String {
        let addresses: Vec<String> = self.group.addresses.iter().map(ToString::to_string).collect();
        format!("spreads {} over {} host servers", addresses.join(", "), self.hosts.len())
    }

    fn roles(&self) -> Vec<(String, Vec<IpAddr>)> {
        let edges = self.edges.iter().map(|edge| (edge.name.clone(), vec![edge.listen.ip()]));
        let hosts = self.hosts.iter().map(|host| (host.name.clone(), host.tunnels()));
        edges.chain(hosts).collect()
    }

    fn public_keys(&self) -> Vec<(&str, &[PublicKey])> {
        let edges = self.edges.iter().map(|edge| (edge.name.as_str(), &edge.public_keys[..]));
        let hosts = self.hosts.iter().map(|host| (host.name.as_str(), &host.public_keys[..]));
        edges.chain(hosts).collect()
    }

    fn take_public_keys(&mut self, other: &Self) {
        for edge in &mut self.edges {
            let same = other.edge(&edge.name);
            same.iter().for_each(|it| edge.public_keys.clone_from(&it.public_keys));
        }
        for host in &mut self.hosts {
            let same = other.host(&host.name);
            same.iter().for_each(|it| host.public_keys.clone_from(&it.public_keys));
        }
    }

    fn name_of<'r>(&'r self, role: &'r str) -> &'r str {
        role
    }
}

impl Spread {
    /// The edge called `name`.
    #[must_use]
    pub fn edge(&self, name: &str) -> Option<&SpreadEdge> {
        self.edges.iter().find(|edge| edge.name == name)
    }

    /// The hardware address that goes with a shared gateway.
    #[must_use]
    pub fn gateway_mac(&self) -> Mac {
        mac_of(&self.group.name)
    }

    /// The host server called `name`.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&SpreadHost> {
        self.hosts.iter().find(|host| host.name == name)
    }
}

impl SpreadHost {
    /// The host server's tunnel addresses.
    #[must_use]
    pub fn tunnels(&self) -> Vec<IpAddr> {
        let v4 = self.tunnel.map(IpAddr::V4);
        v4.into_iter().chain(self.tunnel6.map(IpAddr::V6)).collect()
    }
}

fn as_written<S: Serializer>(
    services: &Option<Vec<Service>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(services.iter().flatten().map(ToString::to_string))
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, bits) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let bits: u8 = bits.parse().map_err(|_| ())?;
        if bits <= if address.is_ipv4() { 32 } else { 128 } {
            Ok(Self { address, bits })
        } else {
            Err(())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSpread {
    group: RawGroup,
    edge: RawEdges,
    clients: Option<RawClients>,
    host: Vec<Spanned<RawHost>>,
    recover: Option<Spanned<RawRecover>>,
    hooks: Option<RawHooks>,
    metrics: Option<RawListen>,
    page: Option<RawListen>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    kind: Option<Spanned<String>>,
    name: Spanned<String>,
    key_file: Spanned<PathBuf>,
    addresses: Spanned<Vec<Spanned<String>>>,
    run_dir: Option<PathBuf>,
    heartbeat_ms: Option<Spanned<u64>>,
    flows_max: Option<Spanned<u64>>,
    events_dir: Option<PathBuf>,
    events_max_kb: Option<Spanned<u64>>,
    watchers: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: Spanned<String>,
    tunnel: Option<Spanned<String>>,
    tunnel6: Option<Spanned<String>>,
    interface: Spanned<String>,
    method: Option<Method>,
    weight: Option<Spanned<u64>>,
    services: Option<Vec<Spanned<String>>>,
    public_keys: RawKeys,
}

fn check(findings: &mut Findings, raw: RawSpread) -> Spread {
    let folder = findings.path.parent().unwrap_or(Path::new("")).to_owned();
    let group = check_group(findings, raw.group, &folder);
    let edges = check_edges(findings, raw.edge, &group.addresses);
    let clients = raw.clients.unwrap_or_default();
    let hosts = check_hosts(findings, raw.host, &group.addresses, &edges);
    let mut taken: Vec<(SocketAddr, &str)> =
        edges.iter().map(|edge| (edge.listen, "an edge's channel")).collect();
    // A socket that is bound there is announced as a service.
    taken
        .extend(group.addresses.iter().map(|ip| (SocketAddr::new(*ip, 0), "the group's services")));
    let named = hosts.iter().flat_map(|host| host.services.iter().flatten());
    taken.extend(named.filter(|it| !it.udp).map(|it| (it.address, "a service")));
    let [metrics, page] = check_listens(findings, [raw.metrics, raw.page], &taken);
    Spread {
        clients: check_clients(findings, clients, &group.addresses, &edges),
        hosts,
        edges,
        recover: check_syns(findings, raw.recover),
        hooks: check_hooks(findings, raw.hooks),
        group,
        metrics,
        page,
    }
}

/// Checks that the address at which a host is reached itself, with a port or without, is none that
/// clients use: every host server has those, and the edge redirects them.
fn check_own(findings: &mut Findings, written: &Spanned<String>, addresses: &[IpAddr]) {
    let text = written.get_ref();
    let own = text.parse::<SocketAddr>().map(|at| at.ip()).or_else(|_| text.parse());
    if let Some(ip) = own.ok().filter(|ip| addresses.contains(ip)) {
        findings.add(
            written.span(),
            format!(
                "{ip} is an address of the group: clients use it, and all host servers have it"
            ),
            "write an address that this host alone has",
        );
    }
}

/// Checks that only SYNs are kept. Answers do not pass the edge, which could not
/// tell whether a segment arrived.
fn check_syns(findings: &mut Findings, raw: Option<Spanned<RawRecover>>) -> Recover {
    let span = raw.as_ref().map(Spanned::span);
    let standard = Recover::standard(Policy::Syn, Start::Always);
    let recover = check_recover(findings, raw.map(Spanned::into_inner), standard);
    if let Some(span) = span.filter(|_| !matches!(recover.policy, Policy::Off | Policy::Syn)) {
        let message = "a spread group's edge keeps SYNs and nothing else";
        findings.add(span, message, "write policy = \"syn\" or \"off\"");
    }
    recover
}

fn check_group(findings: &mut Findings, raw: RawGroup, folder: &Path) -> SpreadGroup {
    check_kind(findings, raw.kind.as_ref(), Kind::Spread);
    check_name(findings, &raw.name);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for spanned in raw.addresses.get_ref() {
        let Some(address) = check_routed_ip(findings, spanned) else { continue };
        if addresses.contains(&address) {
            let message = format!("address {address} is listed twice");
            findings.add(spanned.span(), message, "remove one of the two");
        }
        addresses.push(address);
    }
    if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
        let message = format!("addresses has {} entries", addresses.len());
        let remedy = format!("name the 1 to {ADDRESSES_MAX} addresses that clients use");
        findings.add(raw.addresses.span(), message, remedy);
    }
    let pace = Pace { default: HEARTBEAT_MS_DEFAULT, is_leased: false };
    let heartbeat_ms = check_heartbeat(findings, raw.heartbeat_ms, pace);
    let flows_max =
        number(findings, "flows_max", raw.flows_max, FLOWS_MAX_DEFAULT, FLOWS_MAX, "connections");
    let name = raw.name.into_inner();
    SpreadGroup {
        kind: Kind::Spread,
        key_file: check_key_file(findings, raw.key_file, folder),
        addresses,
        run_dir: run_dir(raw.run_dir, folder, &name),
        events: check_events(findings, raw.events_dir, raw.events_max_kb, folder),
        heartbeat_ms,
        flows_max: flows_max as u32,
        watchers: check_watchers(findings, raw.watchers),
        name,
    }
}

fn check_hosts(
    findings: &mut Findings,
    raw: Vec<Spanned<RawHost>>,
    addresses: &[IpAddr],
    edges: &[SpreadEdge],
) -> Vec<SpreadHost> {
    if raw.is_empty() || raw.len() > HOSTS_MAX {
        let at = raw.get(HOSTS_MAX).or(raw.first()).map_or(0..0, Spanned::span);
        let message = format!("the group has {}", counted(raw.len() as u64, "host server"));
        findings.add(at, message, format!("1 to {HOSTS_MAX} [[host]] sections"));
    }
    let mut hosts: Vec<SpreadHost> = Vec::new();
    for spanned in raw {
        let span = spanned.span();
        let host = check_host(findings, spanned.into_inner(), &span, addresses);
        if edges.iter().any(|edge| edge.name == host.name) {
            let message = format!("`{}` is the name of an edge", host.name);
            findings.add(span.clone(), message, "every role has a name of its own");
        }
        for other in &hosts {
            let shared = host.tunnels().iter().any(|t| other.tunnels().contains(t));
            let same = [("name", other.name == host.name), ("tunnel address", shared)];
            let names = ["hosts", &other.name, &host.name];
            findings.add_twins(&span, names, &same, "every [[host]] is a machine of its own");
        }
        hosts.push(host);
    }
    hosts
}

fn check_host(
    findings: &mut Findings,
    raw: RawHost,
    span: &std::ops::Range<usize>,
    addresses: &[IpAddr],
) -> SpreadHost {
    check_name(findings, &raw.name);
    if raw.name.get_ref() == "edge" {
        let remedy = "that is the edge's role; choose another name";
        findings.add(raw.name.span(), "a host cannot be called `edge`", remedy);
    }
    check_interface(findings, &raw.interface);
    for own in [&raw.tunnel, &raw.tunnel6].into_iter().flatten() {
        check_own(findings, own, addresses);
    }
    let tunnel = raw.tunnel.and_then(|text| match check_routed_ip(findings, &text)? {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => {
            findings.add(text.span(), "tunnel is an IPv6 address", "write it as tunnel6");
            None
        }
    });
    let tunnel6 = raw.tunnel6.and_then(|text| match check_routed_ip(findings, &text)? {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => {
            findings.add(text.span(), "tunnel6 is an IPv4 address", "write it as tunnel");
            None
        }
    });
    for (family, there) in [("tunnel", tunnel.is_some()), ("tunnel6", tunnel6.is_some())] {
        let needed = addresses.iter().any(|a| a.is_ipv4() == (family == "tunnel"));
        if needed && !there {
            findings.add(
                span.clone(),
                format!("host `{}` has no {family}", raw.name.get_ref()),
                "the group has addresses of that family: name this host's own address of it",
            );
        }
    }
    SpreadHost {
        weight: number(findings, "weight", raw.weight, WEIGHT_DEFAULT, WEIGHT, "shares") as u32,
        services: raw.services.map(|list| check_services(findings, &list, addresses)),
        name: raw.name.into_inner(),
        tunnel,
        tunnel6,
        interface: raw.interface.into_inner(),
        method: raw.method.unwrap_or(Method::IpInIp),
        public_keys: check_keys(findings, raw.public_keys),
    }
}

fn check_services(
    findings: &mut Findings,
    raw: &[Spanned<String>],
    addresses: &[IpAddr],
) -> Vec<Service> {
    let mut services = Vec::new();
    for written in raw {
        let text = written.get_ref();
        let Ok(service) = text.parse::<Service>() else {
            findings.add(
                written.span(),
                format!("\"{text}\" is not a service"),
                "write \"10.9.0.100:80\" for TCP, \"10.9.0.100:53/udp\" for UDP",
            );
            continue;
        };
        if !addresses.contains(&service.address.ip()) {
            let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let ip = service.address.ip().to_string();
            findings.add(
                written.span(),
                format!("{ip} is not an address of the group"),
                suggestion(&ip, &names).unwrap_or_else(|| format!("one of: {}", names.join(", "))),
            );
        }
        services.push(service);
    }
    if services.len() > NAMED_SERVICES_MAX
        && let Some(first) = raw.first()
    {
        let message = format!("services has {} entries", services.len());
        findings.add(first.span(), message, format!("at most {NAMED_SERVICES_MAX}"));
    }
    services
}
