//! The wires of a testbed with strings: client 10.8.0.2 - 10.8.0.1 near edge, string n 10.11.n.0/24
//! towards the near edge and 10.12.n.0/24 towards the far one, far edge 10.9.0.1 - 10.9.0.2 server
//! (or, in front of a pair, far edge 10.13.0.1 - 10.13.0.2 the pair's edge),
//! and the same in IPv6. An edge is .1 and a string .2. Neighbours are static, so no measurement
//! contains an address resolution.

use super::{Edge, StringPlan, StringsPlan};
use crate::command;
use crate::emu::Link;
use crate::testbed::host::Host;
use crate::testbed::topology::{self, addresses, believes_addresses, forwards, wire};
use anyhow::Result;

/// Names of the interfaces.
pub mod interface {
    /// The client's interface.
    pub const CLIENT: &str = "c0";
    /// The near edge's interface towards the clients.
    pub const NEAR_OUTSIDE: &str = "nc";
    /// The far edge's interface towards the servers.
    pub const FAR_OUTSIDE: &str = "fo";
    /// A string's interface towards the near edge.
    pub const STRING_NEAR: &str = "sn";
    /// A string's interface towards the far edge.
    pub const STRING_FAR: &str = "sf";
    /// The server's interface.
    pub const SERVER: &str = "s0";
}

/// Addresses of the hosts at the ends.
pub mod address {
    /// Address of the client.
    pub const CLIENT: &str = "10.8.0.2";
    /// Address of the server, beside those of the service.
    pub const SERVER: &str = "10.9.0.2";
}

/// Port on which the edges listen for each other's heartbeats.
pub(super) const HEARTBEAT_PORT: u16 = 7710;

/// Last number of the edge's address in the network between it and a string.
pub(super) const EDGE_END: u8 = 1;

/// Last number of the string's address in the network between it and an edge.
pub(super) const STRING_END: u8 = 2;

/// Bytes of a bucket, more than any burst of GSO frames that a sender may hand over at once: it
/// limits the rate and does not split frames.
const TBF_BURST_BYTES: u64 = 64 * 1024;

/// The network between an edge and string `n`, counted from 1.
pub(super) struct Network {
    edge: Edge,
    n: usize,
    /// Name of the edge's interface.
    pub edge_interface: String,
    /// Name of the string's interface.
    pub string_interface: &'static str,
}

pub(super) fn network(edge: Edge, n: usize) -> Network {
    let (letter, string_interface) = match edge {
        Edge::Near => ('n', interface::STRING_NEAR),
        Edge::Far => ('f', interface::STRING_FAR),
    };
    Network { edge, n, edge_interface: format!("{letter}{n}"), string_interface }
}

impl Network {
    pub(super) fn v4(&self, end: u8) -> String {
        format!("10.{}.{}.{end}", self.second(), self.n)
    }

    pub(super) fn v6(&self, end: u8) -> String {
        format!("fd{}:{}::{end}", self.second(), self.n)
    }

    fn second(&self) -> u8 {
        match self.edge {
            Edge::Near => 11,
            Edge::Far => 12,
        }
    }

    fn mac(&self, end: u8) -> String {
        format!("02:68:66:{}:{:02}:{end:02}", self.second(), self.n)
    }

    /// Lines for `ip -batch` that set one end up, with the other as its neighbour.
    fn configure(&self, device: &str, own: u8, other: u8) -> String {
        format!(
            "link set {device} address {mac} up\n\
             addr add {v4}/24 dev {device}\n\
             addr add {v6}/64 dev {device} nodad\n\
             neigh replace {other4} lladdr {other_mac} dev {device} nud permanent\n\
             neigh replace {other6} lladdr {other_mac} dev {device} nud permanent\n",
            mac = self.mac(own),
            v4 = self.v4(own),
            v6 = self.v6(own),
            other4 = self.v4(other),
            other6 = self.v6(other),
            other_mac = self.mac(other),
        )
    }
}

/// The network between a host outside, which is .2, and its edge, which is .1.
struct Outside {
    v4: &'static str,
    v6: &'static str,
    mac: &'static str,
}

const CLIENTS: Outside = Outside { v4: "10.8.0", v6: "fd08::", mac: "02:68:66:08:00" };
const SERVERS: Outside = Outside { v4: "10.9.0", v6: "fd09::", mac: "02:68:66:09:00" };
/// Between the far edge and the edge of a pair, which has the servers' network behind it.
const PAIR: Outside = Outside { v4: "10.13.0", v6: "fd13::", mac: "02:68:66:13:00" };

impl Outside {
    fn configure(&self, device: &str, own: u8, other: u8) -> String {
        let Self { v4, v6, mac } = self;
        format!(
            "link set {device} address {mac}:{own:02} up\n\
             addr add {v4}.{own}/24 dev {device}\n\
             addr add {v6}{own}/64 dev {device} nodad\n\
             neigh replace {v4}.{other} lladdr {mac}:{other:02} dev {device} nud permanent\n\
             neigh replace {v6}{other} lladdr {mac}:{other:02} dev {device} nud permanent\n",
        )
    }

    /// Lines for `ip -batch` that route packets for this network to a gateway.
    fn route(&self, net: &Network, gateway: u8, metric: usize) -> String {
        format!(
            "route add {}.0/24 via {} metric {metric}\nroute add {}/64 via {} metric {metric}\n",
            self.v4,
            net.v4(gateway),
            self.v6,
            net.v6(gateway),
        )
    }
}

/// Connects client, near edge, far edge and server through the strings.
pub(super) fn connect(
    [client, near, far, server]: [&Host; 4],
    strings: &[Host],
    plan: &StringsPlan,
) -> Result<Vec<Link>> {
    for host in [client, server] {
        believes_addresses(host)?;
    }
    let s = (server, interface::SERVER);
    let links = connect_between((client, near), (far, s, &SERVERS), strings, plan)?;
    server.ip(&format!(
        "addr add {}/32 dev {device}\naddr add {}/128 dev {device} nodad\n",
        addresses::SERVICE_V4,
        addresses::SERVICE_V6,
        device = interface::SERVER,
    ))?;
    far.ip(&format!(
        "neigh replace {} lladdr {mac}:02 dev {device} nud permanent\n\
         neigh replace {} lladdr {mac}:02 dev {device} nud permanent\n",
        addresses::SERVICE_V4,
        addresses::SERVICE_V6,
        mac = SERVERS.mac,
        device = interface::FAR_OUTSIDE,
    ))?;
    if plan.single_segments {
        server.ip(&format!("link set {} gso_max_segs 1\n", interface::SERVER))?;
    }
    Ok(links)
}

/// Connects the client of a pair with the pair's edge through the strings, where its own testbed
/// has connected them directly.
pub(super) fn connect_pair(
    [client, near, far, edge]: [&Host; 4],
    strings: &[Host],
    plan: &StringsPlan,
) -> Result<Vec<Link>> {
    client.ip(&format!("link del {}\n", topology::interface::CLIENT))?;
    let e = (edge, topology::interface::EDGE_CLIENT);
    let links = connect_between((client, near), (far, e, &PAIR), strings, plan)?;
    far.ip(&format!(
        "route add {servers}.0/24 via {pair}.2\nroute add {servers6}/64 via {pair6}2\n",
        servers = SERVERS.v4,
        pair = PAIR.v4,
        servers6 = SERVERS.v6,
        pair6 = PAIR.v6,
    ))?;
    Ok(links)
}

/// Connects client, near edge, strings, far edge, and what is behind that by its interface, over a
/// network of its own.
fn connect_between(
    (client, near): (&Host, &Host),
    (far, behind, net): (&Host, (&Host, &str), &Outside),
    strings: &[Host],
    plan: &StringsPlan,
) -> Result<Vec<Link>> {
    for host in [near, far].into_iter().chain(strings) {
        believes_addresses(host)?;
        forwards(host)?;
    }
    let mut links = Vec::new();
    let c = (client, interface::CLIENT);
    wire(&mut links, c, (near, interface::NEAR_OUTSIDE), plan.client_path.as_ref())?;
    wire(&mut links, behind, (far, interface::FAR_OUTSIDE), None)?;
    outside(c, (near, interface::NEAR_OUTSIDE), &CLIENTS)?;
    outside(behind, (far, interface::FAR_OUTSIDE), net)?;
    for (index, (host, string)) in strings.iter().zip(&plan.strings).enumerate() {
        connect_string(&mut links, (near, far), host, index + 1)?;
        if string.limited {
            limit(host, string)?;
        }
    }
    if plan.single_segments {
        client.ip(&format!("link set {} gso_max_segs 1\n", c.1))?;
    }
    Ok(links)
}

/// Connects a host outside with the edge that is its gateway.
fn outside(host: (&Host, &str), edge: (&Host, &str), net: &Outside) -> Result<()> {
    host.0.ip(&net.configure(host.1, 2, 1))?;
    host.0.ip(&format!("route add default via {}.1\nroute add ::/0 via {}1\n", net.v4, net.v6))?;
    edge.0.ip(&net.configure(edge.1, 1, 2))
}

/// Connects string `n` with the edges. Each edge has a route through every string, the first one
/// preferred, so that it can forward without any daemon.
fn connect_string(
    links: &mut Vec<Link>,
    (near, far): (&Host, &Host),
    string: &Host,
    n: usize,
) -> Result<()> {
    let ends = [(Edge::Near, near, &CLIENTS, &SERVERS), (Edge::Far, far, &SERVERS, &CLIENTS)];
    for (edge, host, _, _) in ends {
        let net = network(edge, n);
        wire(links, (host, &net.edge_interface), (string, net.string_interface), None)?;
        host.ip(&net.configure(&net.edge_interface, EDGE_END, STRING_END))?;
        string.ip(&net.configure(net.string_interface, STRING_END, EDGE_END))?;
    }
    for (edge, host, own, beyond) in ends {
        let net = network(edge, n);
        let other = network(if edge == Edge::Near { Edge::Far } else { Edge::Near }, n);
        string.ip(&own.route(&net, EDGE_END, 1))?;
        host.ip(&beyond.route(&net, STRING_END, n))?;
        // The route to the other edge's address on this string is for the heartbeats.
        host.ip(&format!(
            "route add {}/32 via {}\nroute add {}/128 via {}\n",
            other.v4(EDGE_END),
            net.v4(STRING_END),
            other.v6(EDGE_END),
            net.v6(STRING_END),
        ))?;
    }
    Ok(())
}

/// Puts a token bucket with a queue of packets at both exits of a string.
fn limit(host: &Host, string: &StringPlan) -> Result<()> {
    for device in [interface::STRING_NEAR, interface::STRING_FAR] {
        command::shell(&format!(
            "tc -n {ns} qdisc add dev {device} root handle 1: \
             tbf rate {rate}bit burst {TBF_BURST_BYTES}b limit 1000000000b\n\
             tc -n {ns} qdisc add dev {device} parent 1:1 handle 10: pfifo limit {queue}",
            ns = host.namespace(),
            rate = string.bits_per_second,
            queue = string.queue_packets,
        ))?;
    }
    Ok(())
}
