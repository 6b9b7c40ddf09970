//! The wires: client 10.8.0.2 - 10.8.0.1 router, whose other ends are in two segments of a switch:
//! "outside", 10.8.1.0/24, with the router (.1) and both edges (.11, .12), and "service",
//! 10.9.0.0/24, with the router (.9), both edges (.1, .4) and the host servers (.2, .3); and the
//! same in IPv6. Answers go from the host servers straight to the router. Addresses are resolved as
//! anywhere: who answers for the shared one is what is tested.

use super::{Node, Way};
use crate::testbed::host::Host;
use crate::testbed::topology::{
    addresses, believes_addresses, bridges_unfiltered, forwards, many_ports, wire,
};
use anyhow::Result;

/// Names of the interfaces, the same on every host that has one.
pub mod interface {
    /// The client's only interface.
    pub const CLIENT: &str = "c0";
    /// The router's interface towards the client.
    pub const ROUTER_CLIENT: &str = "rc";
    /// The router's interface towards the edges.
    pub const ROUTER_OUTSIDE: &str = "ro";
    /// The router's interface towards the host servers.
    pub const ROUTER_SERVICE: &str = "rs";
    /// An edge's interface towards the router.
    pub const EDGE_OUTSIDE: &str = "ec";
    /// An edge's interface towards the host servers.
    pub const EDGE_SERVICE: &str = "es";
    /// A host server's only interface.
    pub const HOST: &str = "h0";
}

/// The address that the router's packets for the service go to.
pub const GATEWAY_V4: &str = "10.8.1.254";
/// The same in IPv6.
pub const GATEWAY_V6: &str = "fd08:1::254";
/// The router's address towards the edges.
pub const ROUTER_V4: &str = "10.8.1.1";
/// The same in IPv6.
pub const ROUTER_V6: &str = "fd08:1::1";

/// A segment of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Router and edges.
    Outside,
    /// Edges, host servers, and the router for their answers.
    Service,
}

impl Segment {
    /// Both segments.
    pub const BOTH: [Segment; 2] = [Segment::Outside, Segment::Service];

    /// Name of its bridge.
    fn bridge(self) -> &'static str {
        match self {
            Segment::Outside => "outside",
            Segment::Service => "service",
        }
    }

    /// Name of the port in which a host's wire ends.
    fn port(self, node: Node) -> String {
        let letter = if self == Segment::Outside { 'o' } else { 's' };
        format!("{letter}-{}", node.name())
    }

    fn v4(self, end: u8) -> String {
        match self {
            Segment::Outside => format!("10.8.1.{end}"),
            Segment::Service => format!("10.9.0.{end}"),
        }
    }

    /// Numbers of IPv6 addresses are read as they are in IPv4, not as hexadecimal ones.
    fn v6(self, end: u8) -> String {
        match self {
            Segment::Outside => format!("fd08:1::{end}"),
            Segment::Service => format!("fd09::{end}"),
        }
    }
}

/// A host's end in a segment: its interface, and the last number of its address.
fn end(node: Node, segment: Segment) -> Option<(&'static str, u8)> {
    match (node, segment) {
        (Node::Router, Segment::Outside) => Some((interface::ROUTER_OUTSIDE, 1)),
        (Node::E1, Segment::Outside) => Some((interface::EDGE_OUTSIDE, 11)),
        (Node::E2, Segment::Outside) => Some((interface::EDGE_OUTSIDE, 12)),
        (Node::Router, Segment::Service) => Some((interface::ROUTER_SERVICE, 9)),
        (Node::E1, Segment::Service) => Some((interface::EDGE_SERVICE, 1)),
        (Node::E2, Segment::Service) => Some((interface::EDGE_SERVICE, 4)),
        (Node::A, Segment::Service) => Some((interface::HOST, 2)),
        (Node::B, Segment::Service) => Some((interface::HOST, 3)),
        _ => None,
    }
}

/// The address of a host in a segment.
pub(super) fn address(node: Node, segment: Segment) -> Option<String> {
    end(node, segment).map(|(_, end)| segment.v4(end))
}

/// The IPv6 address of a host in a segment.
pub(super) fn address_v6(node: Node, segment: Segment) -> Option<String> {
    end(node, segment).map(|(_, end)| segment.v6(end))
}

/// Connects all hosts.
pub(super) fn connect(hosts: &[Host], way: Way) -> Result<()> {
    let host = |node: Node| &hosts[node as usize];
    settings(hosts)?;
    let switch = host(Node::Switch);
    for segment in Segment::BOTH {
        switch.ip(&format!(
            "link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set {bridge} up\n",
            bridge = segment.bridge()
        ))?;
    }
    let (client, router) = (host(Node::Client), host(Node::Router));
    wire(&mut Vec::new(), (client, interface::CLIENT), (router, interface::ROUTER_CLIENT), None)?;
    client.ip(&format!(
        "link set {device} up\naddr add {}/24 dev {device}\naddr add fd08::2/64 dev {device} nodad\n\
         route add default via 10.8.0.1\nroute add ::/0 via fd08::1\n",
        addresses::CLIENT,
        device = interface::CLIENT,
    ))?;
    router.ip(&format!(
        "link set {device} up\naddr add 10.8.0.1/24 dev {device}\n\
         addr add fd08::1/64 dev {device} nodad\n",
        device = interface::ROUTER_CLIENT,
    ))?;
    for node in Node::ALL {
        for segment in Segment::BOTH {
            if let Some((device, number)) = end(node, segment) {
                plug(switch, (node, host(node)), segment, (device, number))?;
            }
        }
    }
    routes(hosts, way)
}

/// Kernel settings of the hosts, which know nothing but what they are told.
fn settings(hosts: &[Host]) -> Result<()> {
    for host in hosts {
        believes_addresses(host)?;
        many_ports(host)?;
    }
    for node in [Node::Router, Node::E1, Node::E2] {
        forwards(&hosts[node as usize])?;
        hosts[node as usize].sysctl(&[
            // Where two edges are as good, each gets whole connections.
            "net.ipv4.fib_multipath_hash_policy=1",
            "net.ipv6.fib_multipath_hash_policy=1",
        ])?;
    }
    let switch = &hosts[Node::Switch as usize];
    switch.sysctl(&["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"])?;
    bridges_unfiltered(switch)
}

/// Connects a host with a segment.
fn plug(
    switch: &Host,
    (node, host): (Node, &Host),
    segment: Segment,
    (device, number): (&str, u8),
) -> Result<()> {
    let port = segment.port(node);
    wire(&mut Vec::new(), (host, device), (switch, &port), None)?;
    switch.ip(&format!("link set {port} master {} up\n", segment.bridge()))?;
    host.ip(&format!(
        "link set {device} up\naddr add {}/24 dev {device}\naddr add {}/64 dev {device} nodad\n",
        segment.v4(number),
        segment.v6(number),
    ))
}

/// Answers leave by the router, and the router's only way to the service are the edges; a routing
/// daemon may have to tell it.
fn routes(hosts: &[Host], way: Way) -> Result<()> {
    let default = |segment: Segment, end: u8| {
        format!(
            "route add default via {}\nroute add ::/0 via {}\n",
            segment.v4(end),
            segment.v6(end)
        )
    };
    for node in Node::EDGES {
        hosts[node as usize].ip(&default(Segment::Outside, 1))?;
    }
    for node in Node::HOSTS {
        hosts[node as usize].ip(&default(Segment::Service, 9))?;
    }
    let service = [addresses::SERVICE_V4, addresses::SERVICE_V6];
    let to = match way {
        Way::Bgp => return Ok(()),
        Way::Mac | Way::Keepalived => [GATEWAY_V4, GATEWAY_V6],
    };
    hosts[Node::Router as usize].ip(&format!(
        "route add {}/32 via {}\nroute add {}/128 via {}\n",
        service[0], to[0], service[1], to[1]
    ))
}

/// Lines for `bridge -batch` on the switch by which a host's ports of these segments pass nothing
/// any more. The host keeps its carrier, and the switch what it has learnt: nobody is told.
pub(super) fn out_of(node: Node, segments: &[Segment]) -> String {
    segments.iter().map(|it| format!("link set dev {} state 0\n", it.port(node))).collect()
}

/// Lines that end [`out_of`].
pub(super) fn back_into(node: Node, segments: &[Segment]) -> String {
    segments.iter().map(|it| format!("link set dev {} state 3\n", it.port(node))).collect()
}
