//! The edges of a spread group, and how clients' packets find one of several.

use super::{MTU, OUTER4_DEFAULT, OUTER6_DEFAULT, Prefix, check_own};
use crate::config::checks::{
    THROUGH_CLIENTS, check_address, check_interfaces, check_name, check_routed_ip, number,
    unspecified,
};
use crate::config::error::Findings;
use crate::config::keys::{RawKeys, check_keys};
use crate::key::PublicKey;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use toml::Spanned;

/// Most edges of one group.
pub const EDGES_MAX: usize = 8;
/// Most shared addresses of its edges: one of each family is enough.
const GATEWAYS_MAX: usize = 2;
/// Name of the only edge, which is its role, too.
pub const ONLY_EDGE: &str = "edge";
/// Tables of the kernel that route for everybody on the host.
const TABLES_IN_USE: [u32; 4] = [0, 253, 254, 255];

/// One edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpreadEdge {
    pub name: String,
    /// Address at which the host servers reach the edge's daemon.
    pub listen: SocketAddr,
    /// Interfaces that face the clients.
    pub clients: Vec<String>,
    /// Outer source addresses of encapsulated packets: one per flow, so that the
    /// host servers' network cards spread flows over their processors.
    pub outer4: Prefix,
    pub outer6: Prefix,
    /// MTU of the path to the host servers; without it, that of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// What the host is known by, best first; empty where all share one key file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<PublicKey>,
}

/// How clients' packets find an edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Clients {
    /// Addresses that all edges share, by a hardware address that no host has: clients' routers
    /// send packets for the group there, and one edge acts on them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<IpAddr>,
    /// Table of the kernel in which an edge has the group's addresses while it should have their
    /// packets, for a routing daemon that announces what is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes_table: Option<u32>,
}

impl Clients {
    /// Whether the file says nothing about it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One `[edge]`, or several `[[edge]]`.
pub(super) struct RawEdges(Vec<RawEdge>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEdge {
    name: Option<Spanned<String>>,
    listen: Spanned<String>,
    clients: Spanned<Vec<Spanned<String>>>,
    outer4: Option<Spanned<String>>,
    outer6: Option<Spanned<String>>,
    mtu: Option<Spanned<u64>>,
    public_keys: RawKeys,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClients {
    gateway: Option<Spanned<Vec<Spanned<String>>>>,
    routes_table: Option<Spanned<u64>>,
}

impl<'de> Deserialize<'de> for RawEdges {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = RawEdges;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one [edge], or an [[edge]] for each edge")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawEdges, A::Error> {
                Ok(RawEdges(vec![RawEdge::deserialize(MapAccessDeserializer::new(map))?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RawEdges, A::Error> {
                Ok(RawEdges(Vec::deserialize(SeqAccessDeserializer::new(seq))?))
            }
        }
        from.deserialize_any(OneOrMore)
    }
}

pub(super) fn check_edges(
    findings: &mut Findings,
    raw: RawEdges,
    addresses: &[IpAddr],
) -> Vec<SpreadEdge> {
    let RawEdges(raw) = raw;
    let is_only = raw.len() == 1;
    if raw.is_empty() || raw.len() > EDGES_MAX {
        let message = format!("the group has {} edges", raw.len());
        findings.add(0..0, message, format!("1 to {EDGES_MAX} [[edge]] sections"));
    }
    let mut edges: Vec<SpreadEdge> = Vec::new();
    for raw in raw {
        let span = raw.listen.span();
        check_own(findings, &raw.listen, addresses);
        let edge = check_edge(findings, raw, is_only);
        for other in &edges {
            let same = [("name", other.name == edge.name), ("listen", other.listen == edge.listen)];
            let names = ["edges", &other.name, &edge.name];
            findings.add_twins(&span, names, &same, "every [[edge]] is a machine of its own");
            let outer = |it: &SpreadEdge| (it.outer4, it.outer6, it.mtu);
            if outer(other) != outer(&edge) {
                findings.add(
                    span.clone(),
                    format!(
                        "edges `{}` and `{}` differ in outer4, outer6 or mtu",
                        other.name, edge.name
                    ),
                    "host servers take tunnels of one kind: write the same in every [[edge]]",
                );
            }
        }
        edges.push(edge);
    }
    if !is_only && edges.iter().any(|edge| !edge.public_keys.is_empty()) {
        findings.add_at_key(
            "several edges need the shared key: by it all of them choose the same host server",
            "remove public_keys everywhere, and give all hosts the same key_file; or have one edge",
        );
    }
    edges
}

fn check_edge(findings: &mut Findings, raw: RawEdge, is_only: bool) -> SpreadEdge {
    if let Some(name) = &raw.name {
        check_name(findings, name);
    } else if !is_only {
        let remedy = "write name = \"e1\", another one in each [[edge]]: it is the edge's role";
        findings.add(raw.listen.span(), "an edge among several has no name", remedy);
    }
    let listen = check_address(findings, &raw.listen);
    let clients = check_interfaces(findings, "clients", raw.clients, THROUGH_CLIENTS);
    let mtu = raw.mtu.map(|mtu| number(findings, "mtu", Some(mtu), 1500, MTU, "bytes") as u16);
    SpreadEdge {
        name: raw.name.map_or_else(|| ONLY_EDGE.to_owned(), Spanned::into_inner),
        listen: listen.unwrap_or_else(unspecified),
        clients,
        outer4: check_outer(findings, "outer4", raw.outer4, OUTER4_DEFAULT),
        outer6: check_outer(findings, "outer6", raw.outer6, OUTER6_DEFAULT),
        mtu,
        public_keys: check_keys(findings, raw.public_keys),
    }
}

/// Checks a prefix; the default is a valid one of the same family.
fn check_outer(
    findings: &mut Findings,
    name: &str,
    written: Option<Spanned<String>>,
    default: &str,
) -> Prefix {
    let fallback = Prefix { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 32 };
    let default: Prefix = default.parse().unwrap_or(fallback);
    let Some(written) = written else { return default };
    let parsed = written.get_ref().parse::<Prefix>();
    match parsed.ok().filter(|p| p.address.is_ipv4() == default.address.is_ipv4()) {
        Some(prefix) => prefix,
        None => {
            findings.add(
                written.span(),
                format!("{name} = \"{}\" is not a range of such addresses", written.get_ref()),
                format!("write it like the default, \"{default}\""),
            );
            default
        }
    }
}

pub(super) fn check_clients(
    findings: &mut Findings,
    raw: RawClients,
    addresses: &[IpAddr],
    edges: &[SpreadEdge],
) -> Clients {
    let gateway = raw.gateway.map(|raw| check_gateway(findings, &raw, addresses, edges));
    let routes_table = raw.routes_table.map(|raw| {
        let span = raw.span();
        let bounds = 1..=u64::from(u32::MAX);
        let table = number(findings, "routes_table", Some(raw), 200, bounds, "") as u32;
        if TABLES_IN_USE.contains(&table) {
            findings.add(
                span,
                format!("table {table} routes this host's own packets"),
                "choose a number that no rule of the host names, as 200",
            );
        }
        table
    });
    Clients { gateway: gateway.unwrap_or_default(), routes_table }
}

fn check_gateway(
    findings: &mut Findings,
    raw: &Spanned<Vec<Spanned<String>>>,
    addresses: &[IpAddr],
    edges: &[SpreadEdge],
) -> Vec<IpAddr> {
    let mut gateway: Vec<IpAddr> = Vec::new();
    for written in raw.get_ref() {
        let Some(ip) = check_routed_ip(findings, written) else { continue };
        let is_own = edges.iter().any(|edge| edge.listen.ip() == ip);
        if addresses.contains(&ip) || is_own {
            findings.add(
                written.span(),
                format!("{ip} is an address of the group or of one edge"),
                "write an address of the clients' segment that nobody has: the edges share it",
            );
        }
        if gateway.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            findings.add(
                written.span(),
                "gateway has two addresses of one family",
                format!("at most {GATEWAYS_MAX}, one of each family"),
            );
        }
        gateway.push(ip);
    }
    if let Some(edge) = edges.iter().find(|edge| edge.clients.len() != 1) {
        findings.add(
            raw.span(),
            format!("edge `{}` has {} client interfaces", edge.name, edge.clients.len()),
            "a shared gateway is on one segment: name the interface to it in `clients`",
        );
    }
    gateway
}
