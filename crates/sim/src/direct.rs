//! The short way of the log: the thread of the server that waits sends it to the backup itself, in
//! datagrams that may be lost or late, and hears from it. Models the shim's `base/direct.rs`.

use crate::plan::Mutation;
use crate::world::{Event, World};
use crate::{Ns, Rng};
use holdfast_wire::direct::len_of;
use holdfast_wire::log::{Header, record_len};
use zerocopy::FromBytes as _;

/// What the datagrams meet on their way.
#[derive(Clone, Copy, Debug)]
pub struct DirectPlan {
    pub loss_permille: u64,
    /// Longest delay beside that of the link.
    pub late_max: Ns,
    /// Time after which an unanswered one counts as lost.
    pub wait: Ns,
}

impl DirectPlan {
    /// Half of all groups go the short way; half of their ways are bad ones.
    pub fn draw(rng: &mut Rng) -> Option<Self> {
        let is_bad = rng.one_in(2);
        let plan = Self {
            loss_permille: if is_bad { rng.below(400) } else { 0 },
            late_max: if is_bad { rng.spread(1_000, 4_000_000) } else { 0 },
            wait: rng.spread(100_000, 3_000_000),
        };
        rng.one_in(2).then_some(plan)
    }
}

/// The way that is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: u64,
    primary: usize,
    /// Number of the server that sends.
    server: u32,
    /// Log end of what was sent and not answered, and of what was given up.
    asked: u64,
    given_up: u64,
}

/// The ways so far.
#[derive(Debug)]
pub struct Ways {
    rng: Rng,
    number: u64,
    open: Option<Open>,
}

impl Ways {
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed, 12), number: 0, open: None }
    }

    /// A new number for a key.
    pub fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

/// What is on its way, or due.
#[derive(Clone, Debug)]
pub enum DirectEvent {
    Records {
        to: usize,
        id: u64,
        position: u64,
        records: Vec<u8>,
    },
    Held {
        id: u64,
        position: u64,
    },
    /// No answer has come.
    Waited {
        id: u64,
        end: u64,
    },
}

impl World {
    pub fn opens_direct(&mut self, primary: usize, id: u64) {
        let server = self.hosts[primary].server.as_ref().map_or(0, |server| server.number);
        self.direct.open = Some(Open { id, primary, server, asked: 0, given_up: 0 });
    }

    pub fn ends_direct(&mut self, primary: usize) {
        self.direct.open = self.direct.open.filter(|open| open.primary != primary);
    }

    /// The server on `member` waits for the backup: it sends the log itself, or has done so. False:
    /// its daemon has to.
    pub fn sends_direct(&mut self, member: usize) -> bool {
        let Some(plan) = self.plan.direct else { return false };
        let Some(open) = self.direct.open.filter(|open| open.primary == member) else {
            return false;
        };
        let Some(server) = self.hosts[member].server.as_ref() else { return false };
        let (tail, from) = (server.tail(), server.stable);
        if server.number != open.server || open.given_up >= tail {
            return false;
        }
        if open.asked >= tail {
            return true;
        }
        let Some(records) = stripped(&server.log[from as usize..]) else { return false };
        self.direct.open = Some(Open { asked: tail, ..open });
        let (id, to) = (open.id, 1 - member);
        self.schedule(plan.wait, Event::Direct(DirectEvent::Waited { id, end: tail }));
        let event = DirectEvent::Records { to, id, position: from, records };
        self.sets_out((member, to), event);
        true
    }

    /// The backup on `member` tells the server what it holds.
    pub fn sends_held(&mut self, member: usize, id: u64, position: u64) {
        let position = match self.plan.mutation {
            Some(Mutation::HeldUnseen) => u64::MAX,
            _ => position,
        };
        self.sets_out((member, 1 - member), DirectEvent::Held { id, position });
    }

    fn sets_out(&mut self, (from, to): (usize, usize), event: DirectEvent) {
        let Some(plan) = self.plan.direct else { return };
        let rng = &mut self.direct.rng;
        let lost = rng.below(1000) < plan.loss_permille;
        let delay = 10_000 + rng.below(40_000) + rng.below(plan.late_max.max(1));
        let twice = plan.loss_permille > 0 && rng.one_in(20);
        if lost || self.links.is_cut(from, to) {
            return;
        }
        if twice {
            self.schedule(2 * delay, Event::Direct(event.clone()));
        }
        self.schedule(delay, Event::Direct(event));
    }

    pub fn direct_event(&mut self, event: DirectEvent) {
        match event {
            DirectEvent::Records { to, id, position, records } => {
                let host = &mut self.hosts[to];
                let alive = host.alive && host.frozen.is_none();
                let daemon = host.daemon.as_mut().filter(|daemon| daemon.direct == Some(id));
                if let Some(daemon) = daemon.filter(|_| alive) {
                    daemon.directs.push_back((position, records));
                    self.wake_daemon_soon(to);
                }
            }
            DirectEvent::Held { id, position } => {
                let Some(open) = self.direct.open.filter(|open| open.id == id) else { return };
                let host = &mut self.hosts[open.primary];
                let heard = host.alive && host.frozen.is_none();
                let server = host.server.as_mut().filter(|it| it.alive && it.number == open.server);
                if let Some(server) = server.filter(|_| heard) {
                    self.reached.directs += u64::from(position > server.stable);
                    server.stable = server.stable.max(position.min(server.tail()));
                    self.wake_server(open.primary);
                }
            }
            DirectEvent::Waited { id, end } => {
                let Some(open) = &mut self.direct.open else { return };
                let server = self.hosts[open.primary].server.as_ref();
                let waits = server.is_some_and(|server| server.stable < end);
                if open.id == id && waits {
                    open.given_up = open.given_up.max(end);
                    let primary = open.primary;
                    self.wake_server(primary);
                }
            }
        }
    }
}

/// The records as they are sent; `None`: there is one that only the daemon may send.
fn stripped(log: &[u8]) -> Option<Vec<u8>> {
    let (mut records, mut at) = (Vec::new(), 0);
    while at < log.len() {
        let (header, _) = Header::read_from_prefix(&log[at..]).ok()?;
        let len = len_of(&header)?;
        records.extend_from_slice(&log[at..at + len]);
        at += record_len(header.payload_len as usize);
    }
    Some(records)
}
