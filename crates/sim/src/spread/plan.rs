//! What a seed draws before a run of a spread group: host servers, clients, limits,
//! and the faults.

use crate::clock::ClockPlan;
use crate::{Ns, Rng};
use holdfast_edge::HalrLimits;
use std::fmt;

pub(super) const MS: Ns = 1_000_000;

/// Most services of a group.
pub(super) const SERVICES: u8 = 4;

/// A host server.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// The weight that it announces.
    pub weight: u32,
    /// The largest weight that the edge's file allows.
    pub weight_max: u32,
    /// Numbers of the services that its processes listen for.
    pub serves: Vec<u8>,
    /// Services that the file names; `None`: everything bound to the group's addresses.
    pub named: Option<Vec<u8>>,
    /// When its daemon starts.
    pub starts: Ns,
    /// When its processes bind.
    pub binds: Ns,
    /// Time that a check of its listeners takes.
    pub look: Ns,
    pub clock: ClockPlan,
}

/// What a hostile client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// It sends very many SYNs and completes none of the handshakes.
    FloodsSyns,
    /// It opens many connections and abandons them.
    Hoards,
}

/// One client's habits.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub start: Ns,
    pub service: u8,
    pub requests: u32,
    pub think: Ns,
    /// Whether the next connection has the same port.
    pub reuses_port: bool,
    /// Whether it abandons connections without ending them, and connects again.
    pub vanishes: bool,
    pub trick: Option<Trick>,
}

/// Sizes of tables and queues (law L6).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub flows_max: usize,
    pub embryos_max: usize,
    pub services_max: usize,
    /// Most host servers.
    pub hosts_max: usize,
    /// Most copies on their way to the cache.
    pub ring_max: usize,
    pub cache: HalrLimits,
}

impl Limits {
    /// The daemons' limits.
    pub const WIDE: Self = Self {
        flows_max: 1 << 20,
        embryos_max: 65_536,
        services_max: 64,
        hosts_max: 250,
        ring_max: 40_000,
        cache: HalrLimits::STANDARD,
    };

    fn draw(rng: &mut Rng, servers: usize) -> Self {
        let mut limits = Self::WIDE;
        if rng.one_in(4) {
            limits.flows_max = rng.range(4, 24) as usize;
        }
        if rng.one_in(4) {
            limits.embryos_max = rng.range(2, 16) as usize;
        }
        if rng.one_in(6) {
            limits.services_max = rng.range(1, 3) as usize;
        }
        if rng.one_in(6) {
            limits.hosts_max = servers + rng.below(3) as usize;
        }
        if rng.one_in(6) {
            limits.ring_max = rng.range(1, 16) as usize;
        }
        if rng.one_in(4) {
            limits.cache.flows_max = rng.range(1, 8) as usize;
            limits.cache.memory_bytes = 1 << 20;
        }
        limits
    }
}

/// Direction between the edge and a host server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    ToServer,
    ToEdge,
}

/// What a host server announces that is false or not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Another host server's address as the end of its tunnel.
    OthersTunnel,
    /// An address that is in no file as the end of its tunnel.
    StrangeTunnel,
    Weight(u32),
    /// A service that the file does not allow it.
    Service,
    Method,
    /// A message that no host server sends.
    Nonsense,
    /// Channels under many names that the file does not have.
    Strangers,
}

/// A fault; host servers are named by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The whole machine dies, and comes back after this time with nothing in its
    /// kernel.
    HostDies {
        server: usize,
        again: Option<Ns>,
    },
    /// The machine is suspended; meanwhile its clock continues, stands still or jumps.
    Freeze {
        server: usize,
        lasts: Ns,
    },
    /// Only the daemon dies.
    KillDaemon {
        server: usize,
        again: Ns,
    },
    /// The server's process ends, and is started again.
    KillServer {
        server: usize,
        again: Ns,
    },
    /// The process stops calling accept().
    Hangs {
        server: usize,
        lasts: Ns,
    },
    Cut {
        server: usize,
        ways: Ways,
        lasts: Ns,
    },
    /// An operator drains the host server.
    Drained {
        server: usize,
        lasts: Ns,
    },
    /// The host server gets another name in the files of both hosts, whose daemons restart.
    Renamed {
        server: usize,
    },
    Lies {
        server: usize,
        lie: Lie,
        lasts: Ns,
    },
    EdgeDaemon {
        lasts: Ns,
    },
    /// The edge's host restarts and loses all its kernel state, also which servers are
    /// drained. Seeds draw none.
    EdgeBoots {
        lasts: Ns,
    },
    FreezeEdge {
        lasts: Ns,
    },
}

/// A mutation: what is deliberately wrong in the model, to prove that a checker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The redirector forgets where connections are.
    ForgetsFlows,
    /// The redirector is never told that a host server is dead or alive again.
    TablesStay,
    /// The redirector gives drained host servers new connections.
    DrainIgnored,
    /// The redirector's tables give all servers the same share.
    SharesEqual,
    /// Nothing is re-injected.
    NothingResent,
    /// Host servers that are silent count as heard.
    HearsTheDead,
    /// Announcements are not checked against the file.
    FileIgnored,
    /// The tables have no limit.
    NoLimit,
    /// In a full table, a new flow takes the place of an existing one.
    EvictsFlows,
}

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub period: Ns,
    pub servers: Vec<ServerPlan>,
    pub clients: Vec<ClientPlan>,
    pub limits: Limits,
    /// Whether SYNs are always kept, not only while they may be lost.
    pub always: bool,
    /// One-way delay between clients and edge.
    pub client_way: Ns,
    /// One-way delay between edge and host servers.
    pub server_way: Ns,
    pub loss_permille: u64,
    pub edge_clock: ClockPlan,
    pub load_until: Ns,
    /// Faults, in the order of their times.
    pub faults: Vec<(Ns, Fault)>,
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 51);
        let count = rng.range(2, 6) as usize;
        let services = rng.range(1, u64::from(SERVICES)) as u8;
        let servers: Vec<ServerPlan> =
            (0..count).map(|number| ServerPlan::draw(&mut rng, number, services)).collect();
        let mut clients: Vec<ClientPlan> =
            (0..rng.range(4, 24)).map(|_| ClientPlan::draw(&mut rng, services)).collect();
        if rng.one_in(4) {
            clients[0].trick = Some(rng.pick(&[Trick::FloodsSyns, Trick::Hoards]));
        }
        let mut faults = Vec::new();
        let mut at = rng.range(2500 * MS, 4500 * MS);
        for _ in 0..rng.pick(&[0, 1, 1, 2, 3, 5]) {
            faults.push((at, draw_fault(&mut rng, count)));
            at += rng.spread(MS, 6000 * MS);
        }
        Self {
            seed,
            period: rng.pick(&[18, 50, 100]) * MS,
            limits: Limits::draw(&mut rng, count),
            servers,
            clients,
            always: !rng.one_in(4),
            client_way: rng.spread(MS / 10, 20 * MS),
            server_way: rng.spread(MS / 50, MS),
            loss_permille: rng.pick(&[0, 0, 0, 10, 50]),
            edge_clock: ClockPlan::draw(&mut rng),
            load_until: at + 3000 * MS,
            faults,
            mutation: None,
        }
    }
}

impl ServerPlan {
    fn draw(rng: &mut Rng, number: usize, services: u8) -> Self {
        // The first two serve everything, so that every service has two servers.
        let all: Vec<u8> = (0..services).collect();
        let serves = if number < 2 || rng.one_in(2) {
            all.clone()
        } else {
            vec![rng.below(u64::from(services)) as u8]
        };
        let weight_max = rng.pick(&[100, 100, 50, 200, 10]);
        Self {
            weight: if rng.one_in(4) {
                rng.range(1, u64::from(weight_max) + 1) as u32
            } else {
                weight_max
            },
            weight_max,
            named: rng.one_in(3).then(|| serves.clone()),
            serves,
            starts: rng.below(300) * MS,
            binds: rng.below(1200) * MS,
            look: rng.spread(10_000, 2 * MS),
            clock: ClockPlan::draw(rng),
        }
    }
}

impl ClientPlan {
    fn draw(rng: &mut Rng, services: u8) -> Self {
        Self {
            start: rng.range(1500 * MS, 4000 * MS),
            service: rng.below(u64::from(services)) as u8,
            requests: rng.spread(1, 40) as u32,
            think: rng.spread(5 * MS, 400 * MS),
            reuses_port: rng.one_in(4),
            vanishes: rng.one_in(6),
            trick: None,
        }
    }
}

fn draw_fault(rng: &mut Rng, servers: usize) -> Fault {
    let lasts = rng.spread(10 * MS, 5000 * MS);
    let server = rng.below(servers as u64) as usize;
    match rng.below(22) {
        0..=3 => Fault::HostDies { server, again: rng.one_in(2).then_some(lasts) },
        4..=5 => Fault::Freeze { server, lasts },
        6..=7 => Fault::KillDaemon { server, again: rng.spread(MS, 1000 * MS) },
        8..=9 => Fault::KillServer { server, again: rng.spread(MS, 3000 * MS) },
        10 => Fault::Hangs { server, lasts: lasts + 2000 * MS },
        11..=13 => {
            let ways = rng.pick(&[Ways::Both, Ways::ToServer, Ways::ToEdge]);
            Fault::Cut { server, ways, lasts }
        }
        14..=15 => Fault::Drained { server, lasts: lasts + 500 * MS },
        16 => Fault::Renamed { server },
        17..=18 => {
            let lie = match rng.below(8) {
                0 => Lie::OthersTunnel,
                1 => Lie::StrangeTunnel,
                2 => Lie::Weight(0),
                3 => Lie::Weight(rng.pick(&[201, 1_000_000, u32::MAX])),
                4 => Lie::Service,
                5 => Lie::Method,
                6 => Lie::Nonsense,
                _ => Lie::Strangers,
            };
            Fault::Lies { server, lie, lasts }
        }
        19..=20 => Fault::EdgeDaemon { lasts: rng.spread(MS, 3000 * MS) },
        _ => Fault::FreezeEdge { lasts },
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, heartbeats every {} ms, {:?}, SYNs kept always: {}, ways {} and {} µs, lost \
             {} ‰, load until {} ms",
            self.seed,
            self.period / MS,
            self.limits,
            self.always,
            self.client_way / 1000,
            self.server_way / 1000,
            self.loss_permille,
            self.load_until / MS
        )?;
        for (number, server) in self.servers.iter().enumerate() {
            writeln!(f, "host server {number}: {server:?}")?;
        }
        for (number, client) in self.clients.iter().enumerate() {
            writeln!(f, "client {number}: {client:?}")?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "fault: {fault:?} at {} ms", at / MS)?;
        }
        Ok(())
    }
}
