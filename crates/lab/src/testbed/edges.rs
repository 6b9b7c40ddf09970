//! A spread group with two edges, as network namespaces: a client, a router, a switch with two
//! segments, the edges and two host servers. The edges' packets come by a shared hardware address,
//! by what BIRD announces, or to the address that keepalived moves; and an edge may die.

mod faults;
mod group;
mod routing;
mod wires;

pub use faults::EdgeFault;
pub use group::EdgesOptions;
pub use wires::{GATEWAY_V4, GATEWAY_V6, Segment, interface};

use super::host::Host;
use super::make_directory;
use super::reaper::Reaper;
use super::topology::addresses;
use crate::command;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs;
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the health check of an edge without Holdfast says.
const ALWAYS_HEALTHY: &str = "/bin/true";

/// How clients' packets find an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// By a hardware address that both edges share: `[clients] gateway`.
    Mac,
    /// By what BIRD announces at both edges, watched by BFD: `[clients] routes_table`.
    Bgp,
    /// By an address that keepalived gives to one of them.
    Keepalived,
}

/// A host of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The host of the load.
    Client,
    /// The router in front of the edges.
    Router,
    /// What connects the others.
    Switch,
    /// The first edge.
    E1,
    /// The second edge.
    E2,
    /// The first host server.
    A,
    /// The second host server.
    B,
}

impl Node {
    /// All hosts, in the order in which [`Edges`] keeps them.
    pub const ALL: [Node; 7] =
        [Node::Client, Node::Router, Node::Switch, Node::E1, Node::E2, Node::A, Node::B];
    /// The edges.
    pub const EDGES: [Node; 2] = [Node::E1, Node::E2];
    /// The host servers.
    pub const HOSTS: [Node; 2] = [Node::A, Node::B];

    /// Its name, which is that of its role in the group's file if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Node::Client => "client",
            Node::Router => "router",
            Node::Switch => "switch",
            Node::E1 => "e1",
            Node::E2 => "e2",
            Node::A => "a",
            Node::B => "b",
        }
    }

    /// The other edge.
    #[must_use]
    pub fn other_edge(self) -> Node {
        if self == Node::E1 { Node::E2 } else { Node::E1 }
    }
}

/// What a process of a host is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Holdfast's daemon.
    Daemon,
    /// keepalived or BIRD.
    Routing,
}

/// A process, by the one that started it.
struct Running {
    node: Node,
    part: Part,
    child: Child,
}

/// The running hosts, and what has been started on them.
pub struct Edges {
    running: Vec<Running>,
    hosts: Vec<Host>,
    way: Way,
    /// Edges that others do not reach since they were killed or cut.
    gone: Vec<Node>,
    /// Command by which keepalived learns of an edge's health, without the role.
    healthy: Option<String>,
    // The reaper is the last field, so that it runs after the others are gone.
    _reaper: Reaper,
}

impl Edges {
    /// Builds the hosts and the wires between them.
    ///
    /// # Errors
    /// When the kernel or a tool refuses a step, in most cases for want of root; whatever was built
    /// until then is removed.
    pub fn build(way: Way) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("hfe-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (directory, reaper) = make_directory(&id)?;
        let hosts = Node::ALL.map(|node| Host::start(&id, &directory, node.name(), node as u64));
        let hosts = hosts.into_iter().collect::<Result<Vec<_>>>()?;
        wires::connect(&hosts, way)?;
        let bed = Self {
            running: Vec::new(),
            hosts,
            way,
            gone: Vec::new(),
            healthy: None,
            _reaper: reaper,
        };
        bed.write_cuts()?;
        Ok(bed)
    }

    /// One of the hosts.
    pub fn host(&self, node: Node) -> &Host {
        &self.hosts[node as usize]
    }

    /// Lets both edges forward everything to the first host server, without Holdfast, and tells
    /// that to whoever leads packets to them. What moves packets between edges can be measured
    /// alone so.
    ///
    /// # Errors
    /// When `ip` refuses, or a routing daemon cannot be started.
    pub fn start_clean(&mut self) -> Result<()> {
        let service = [addresses::SERVICE_V4, addresses::SERVICE_V6];
        let [v4, v6] = service;
        self.host(Node::A).ip(&format!(
            "addr add {v4}/32 dev {device}\naddr add {v6}/128 dev {device} nodad\n",
            device = interface::HOST
        ))?;
        let to = [
            wires::address(Node::A, Segment::Service),
            wires::address_v6(Node::A, Segment::Service),
        ];
        let [Some(to4), Some(to6)] = to else { anyhow::bail!("the host server has no address") };
        let table = routing::TABLE;
        for edge in Node::EDGES {
            self.host(edge).ip(&format!(
                "route add {v4}/32 via {to4}\nroute add {v6}/128 via {to6}\n\
                 route add unreachable {v4}/32 table {table} proto 77\n\
                 route add unreachable {v6}/128 table {table} proto 77\n"
            ))?;
        }
        self.start_routing()
    }

    /// Starts keepalived or BIRD wherever one is needed.
    fn start_routing(&mut self) -> Result<()> {
        let needed = |node: &Node| routing::is_needed(*node, self.way);
        let nodes: Vec<Node> = Node::ALL.into_iter().filter(needed).collect();
        nodes.into_iter().try_for_each(|node| self.start_routing_at(node))
    }

    fn start_routing_at(&mut self, node: Node) -> Result<()> {
        let healthy = match &self.healthy {
            Some(command) => format!("{command} --role {}", node.name()),
            None => ALWAYS_HEALTHY.to_owned(),
        };
        let child = routing::start(node, self.host(node), self.way, &healthy)?;
        self.running.push(Running { node, part: Part::Routing, child });
        Ok(())
    }

    /// The edges to which clients' packets go now. One that others do not reach may believe so.
    pub fn carriers(&self) -> Vec<Node> {
        let lives = |edge: &Node| !self.gone.contains(edge);
        Node::EDGES.into_iter().filter(|it| lives(it) && self.carries(*it)).collect()
    }

    fn carries(&self, edge: Node) -> bool {
        let shows = |node: Node, words: &[&str], what: &str| {
            let words = [&["-n", self.host(node).namespace()], words].concat();
            command::output("ip", &words).is_ok_and(|text| text.contains(what))
        };
        let outside = Segment::Outside;
        match self.way {
            Way::Mac => self.show(edge).is_ok_and(|show| show["serves"] == true),
            Way::Keepalived => {
                let words = ["addr", "show", "dev", interface::EDGE_OUTSIDE];
                let has = |address: &str| shows(edge, &words, &format!(" {address}/"));
                has(GATEWAY_V4) && has(GATEWAY_V6)
            }
            Way::Bgp => {
                let addresses = [
                    ("-4", addresses::SERVICE_V4, wires::address(edge, outside)),
                    ("-6", addresses::SERVICE_V6, wires::address_v6(edge, outside)),
                ];
                addresses.iter().all(|(family, service, via)| {
                    let words = [family, "route", "show", service];
                    let via = via.as_deref().unwrap_or_default();
                    shows(Node::Router, &words, &format!("via {via} "))
                })
            }
        }
    }

    /// Waits until clients' packets go to as many edges as they should with all edges alive: both
    /// with BGP, else one. Returns the first of them.
    ///
    /// # Errors
    /// When a process ends, or the time is over.
    pub fn wait_carried(&mut self) -> Result<Node> {
        let count = if self.way == Way::Bgp { Node::EDGES.len() } else { 1 };
        let carriers = self.wait("clients' packets find an edge", |bed| {
            Some(bed.carriers()).filter(|carriers| carriers.len() == count)
        })?;
        carriers.first().copied().context("no edge carries")
    }

    /// Waits until clients' packets go to exactly this edge.
    ///
    /// # Errors
    /// As [`Edges::wait_carried`].
    pub fn wait_only(&mut self, edge: Node) -> Result<()> {
        let what = format!("clients' packets go to {}", edge.name());
        self.wait(&what, |bed| (bed.carriers() == [edge]).then_some(()))
    }

    /// Whether the switch knows a port of the hardware address to which the router sends what is
    /// for the service. What goes to one that it does not know reaches all.
    ///
    /// # Errors
    /// When the router knows no such address, or a tool fails.
    pub fn has_learnt_gateway(&self) -> Result<bool> {
        let router = self.host(Node::Router).namespace();
        let shown = command::output("ip", &["-n", router, "neigh", "show", GATEWAY_V4])?;
        let mut words = shown.split(' ').skip_while(|word| *word != "lladdr");
        let address = words.nth(1).with_context(|| format!("the router knows: {shown}"))?;
        let switch = self.host(Node::Switch).namespace();
        let known = command::output("bridge", &["-n", switch, "fdb", "show"])?;
        Ok(known.lines().any(|line| line.starts_with(address)))
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let mut out = String::new();
        for host in &self.hosts {
            for file in ["daemon.log", "routing.log", "server.log"] {
                let path = host.outside().join(file);
                if fs::metadata(&path).is_ok_and(|it| it.len() > 0) {
                    let tail = super::ours::tail(&path);
                    out.push_str(&format!("--- {} {file}\n{tail}\n", host.name()));
                }
            }
        }
        out
    }
}

impl Drop for Edges {
    fn drop(&mut self) {
        for Running { child, .. } in &mut self.running {
            // This kills nsenter; the process itself ends with its host.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
