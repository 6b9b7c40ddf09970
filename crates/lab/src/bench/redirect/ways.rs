//! The paths from client to server that are compared, each on a testbed of its own where it would
//! disturb another.

use crate::command::output;
use crate::testbed::haproxy::{self, Front};
use crate::testbed::server::PlainServer;
use crate::testbed::spread::{SpreadGroup, SpreadOptions};
use crate::testbed::{Plan, Role, Testbed, addresses, interface, unbridge_primary};
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;
use std::net::SocketAddr;

/// Port of the server.
pub const PORT: u16 = 8080;
/// Port of the proxy at the edge.
const PROXY_PORT: u16 = 8081;
/// MTU towards the server in bytes: 1500, and an outer IPv4 header.
const INNER_MTU: u32 = 1520;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The edge is a router and nothing else.
    Route,
    /// The edge has a redirector that does not redirect this service.
    Miss,
    /// The edge redirects, by IP-in-IP.
    Redirected,
    /// The edge rewrites addresses (nftables).
    Dnat,
    /// The edge runs HAProxy in TCP mode.
    Haproxy,
}

impl Way {
    /// All paths, the plain one first.
    pub const ALL: [Self; 5] =
        [Self::Route, Self::Miss, Self::Redirected, Self::Dnat, Self::Haproxy];

    /// Index of the testbed that the path uses.
    fn bed(self) -> usize {
        match self {
            Self::Route | Self::Haproxy => 0,
            Self::Miss | Self::Redirected => 1,
            Self::Dnat => 2,
        }
    }

    /// Whether the path carries datagrams.
    pub fn has_udp(self) -> bool {
        self != Self::Haproxy
    }

    /// Address to which the client connects.
    pub fn target(self) -> SocketAddr {
        let (address, port) = match self {
            Self::Route | Self::Miss => (addresses::PRIMARY, PORT),
            Self::Redirected | Self::Dnat => (addresses::SERVICE_V4, PORT),
            Self::Haproxy => ("10.8.0.1", PROXY_PORT),
        };
        SocketAddr::new(address.parse().unwrap_or([0, 0, 0, 0].into()), port)
    }

    /// Address at which the server listens.
    pub fn served_at(self) -> SocketAddr {
        match self {
            Self::Redirected => self.target(),
            _ => Self::Route.target(),
        }
    }
}

/// The testbeds of all paths, with what runs on them.
pub struct Beds<'a> {
    beds: &'a [Testbed; 3],
    group: SpreadGroup<'a>,
    _proxy: PlainServer,
}

/// Three testbeds: plain, with the redirector, with nftables.
///
/// # Errors
/// When one cannot be built.
pub fn build() -> Result<[Testbed; 3]> {
    Ok([unbridged()?, unbridged()?, unbridged()?])
}

/// A testbed as an operator would set it up: a link with room for the outer header leads from the
/// edge to the server, without the edge's bridge, which knows nothing of encapsulation and would
/// cut frames of many segments in software.
fn unbridged() -> Result<Testbed> {
    let bed = Testbed::build(&Plan::default())?;
    let edge = bed.host(Role::Edge);
    unbridge_primary(edge)?;
    edge.ip(&format!("link set {} mtu {INNER_MTU}\n", interface::EDGE_PRIMARY))?;
    bed.host(Role::Primary).ip(&format!("link set {} mtu {INNER_MTU}\n", interface::PRIMARY))?;
    Ok(bed)
}

impl<'a> Beds<'a> {
    /// Starts what the paths need.
    ///
    /// # Errors
    /// When a daemon or a tool refuses.
    pub fn start(beds: &'a [Testbed; 3]) -> Result<Self> {
        let service = format!("{}:{PORT}", addresses::SERVICE_V4);
        let services = Some(vec![service.clone(), format!("{service}/udp")]);
        let options = SpreadOptions { services, ..SpreadOptions::default() };
        let group = SpreadGroup::start(&beds[1], &[Role::Primary], &options)?;
        translate(&beds[2])?;
        Ok(Self { beds, group, _proxy: start_proxy(&beds[0])? })
    }

    /// Waits until the redirector knows the server.
    ///
    /// # Errors
    /// When the redirector does not know the server in time.
    pub fn wait_redirected(&mut self) -> Result<()> {
        let service = format!("{}:{PORT}", addresses::SERVICE_V4);
        for name in [format!("{service}/udp"), service] {
            self.group.wait_members(&name, &["a"])?;
        }
        Ok(())
    }

    /// The testbed of a path.
    pub fn bed(&self, way: Way) -> &'a Testbed {
        &self.beds[way.bed()]
    }

    /// All testbeds.
    pub fn all(&self) -> &'a [Testbed; 3] {
        self.beds
    }
}

/// Sets up destination address translation as on a router.
fn translate(bed: &Testbed) -> Result<()> {
    let rules = format!(
        "table ip lab {{\n chain in {{\n  type nat hook prerouting priority -100\n  \
         ip daddr {} dnat to {}\n }}\n}}\n",
        addresses::SERVICE_V4,
        addresses::PRIMARY
    );
    let edge = bed.host(Role::Edge);
    let path = edge.outside().join("nat.nft");
    std::fs::write(&path, rules)?;
    let holder = edge.holder().to_string();
    let path = path.display().to_string();
    output("nsenter", &["-t", &holder, "-n", "--", "nft", "-f", &path])
        .context("nft is missing? run scripts/setup")
        .map(drop)
}

fn start_proxy(bed: &Testbed) -> Result<PlainServer> {
    let front = Front {
        bind: format!("10.8.0.1:{PROXY_PORT}"),
        servers: vec![format!("one {}:{PORT}", addresses::PRIMARY)],
    };
    haproxy::start(bed.host(Role::Edge), PROXY_PORT, &[front])
}

/// Binds the edge's work on packets from clients to one processor.
///
/// # Errors
/// When the kernel has no receive packet steering.
pub fn steer(bed: &Testbed, cpu: Option<usize>) -> Result<()> {
    let holder = bed.host(Role::Edge).holder();
    let device = interface::EDGE_CLIENT;
    let path = format!("/proc/{holder}/root/sys/class/net/{device}/queues/rx-0/rps_cpus");
    let mask = cpu.map_or(0, |cpu| 1_u32 << cpu);
    std::fs::write(&path, format!("{mask:x}")).with_context(|| format!("cannot write {path}"))
}
