//! Channels between the edge and host servers: TCP connections whose messages wait while a
//! path is cut, and which are given up when that lasts too long.

use super::plan::{MS, Mutation};
use super::server::{Channel, strangers_words};
use super::world::{Event, World};
use crate::Ns;
use std::collections::BTreeMap;

/// Time without acknowledgement after which a channel is given up, in ns
/// (`crates/holdfast/src/channel.rs`).
const USER_TIMEOUT: Ns = 3000 * MS;
/// Longest time for a handshake, in ns (`crates/holdfast/src/channel.rs`).
const HANDSHAKE_LIMIT: Ns = 2000 * MS;
/// Time between two attempts to connect, in ns (`crates/holdfast/src/daemon/dialer.rs`).
const RETRY: Ns = 100 * MS;
/// Time until lost data is retransmitted when the path works again, in ns.
const AGAIN: Ns = 60 * MS;
/// Time that a handshake takes besides the delay of the path, in ns.
const HANDSHAKE: Ns = MS;

/// One direction of the path to a host server.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cuts: u32,
    /// When the previous event arrived: later ones do not overtake it.
    arrived: Ns,
}

#[derive(Default)]
struct Line {
    to_server: Way,
    to_edge: Way,
    /// Events that wait until the path works again.
    held: Vec<Event>,
    /// Counts the changes between working and stuck; odd while it is stuck.
    stuck: u32,
}

/// The channels; see the module.
pub struct Wires {
    lines: Vec<Line>,
    /// Host server of each channel.
    owners: BTreeMap<u32, usize>,
    next: u32,
    /// Events that arrived while the edge was suspended; next, while a host server was.
    pub edge_waits: Vec<Event>,
    pub server_waits: Vec<Vec<Event>>,
}

impl Wires {
    pub fn new(servers: usize) -> Self {
        Self {
            lines: (0..servers).map(|_| Line::default()).collect(),
            owners: BTreeMap::new(),
            next: 0,
            edge_waits: Vec::new(),
            server_waits: (0..servers).map(|_| Vec::new()).collect(),
        }
    }

    pub fn server_of(&self, channel: u32) -> Option<usize> {
        self.owners.get(&channel).copied()
    }

    /// Creates a channel of a host server; `None`: of a stranger.
    pub fn channel(&mut self, server: Option<usize>) -> u32 {
        self.next += 1;
        if let Some(server) = server {
            self.owners.insert(self.next, server);
        }
        self.next
    }

    pub fn is_cut_to_server(&self, server: usize) -> bool {
        self.lines[server].to_server.cuts > 0
    }

    fn is_cut(&self, server: usize) -> bool {
        let line = &self.lines[server];
        line.to_server.cuts + line.to_edge.cuts > 0
    }
}

impl World {
    /// Delivers the edge machine's messages, and closes the channels that it has closed.
    pub fn carry_from_edge(&mut self) {
        let notes = std::mem::take(&mut self.edge.wire.notes);
        for (what, words) in notes {
            self.say(|| format!("edge: {what}: {words}"));
        }
        let out = std::mem::take(&mut self.edge.wire.out);
        for (link, bytes) in out {
            let channel = self.edge.daemon.as_ref().and_then(|it| it.links[link].channel);
            if let Some(channel) = channel {
                self.send(channel, true, Event::ToServer(channel, bytes));
            }
        }
        let closed = std::mem::take(&mut self.edge.wire.closed);
        let Some(daemon) = &mut self.edge.daemon else { return };
        let mut gone = std::mem::take(&mut daemon.turned_away);
        let ours = |channel: &&u32| self.wires.server_of(**channel).is_some();
        self.reached.shut_out += gone.iter().filter(ours).count() as u64;
        gone.extend(closed.iter().filter_map(|link| daemon.links[*link].channel.take()));
        for channel in gone {
            self.send(channel, true, Event::GoneAtServer(channel));
        }
    }

    pub fn carry_from_server(&mut self, number: usize) {
        let server = &mut self.servers[number];
        let notes = std::mem::take(&mut server.desk.notes);
        let out = std::mem::take(&mut server.desk.out);
        let channel = server.channel;
        for (what, words) in notes {
            self.say(|| format!("h{number}: {what}: {words}"));
        }
        if let Channel::Open(channel) = channel {
            for bytes in out {
                self.send(channel, false, Event::ToEdge(channel, bytes));
            }
        }
    }

    /// Sends an event along a channel; events stay in order.
    fn send(&mut self, channel: u32, to_server: bool, event: Event) {
        let Some(number) = self.wires.server_of(channel) else { return };
        let jitter = self.rng.below(MS / 4);
        let line = &mut self.wires.lines[number];
        let way = if to_server { &mut line.to_server } else { &mut line.to_edge };
        if way.cuts > 0 {
            line.held.push(event);
            return;
        }
        way.arrived = way.arrived.max(self.now + self.plan.server_way + jitter);
        self.queue.push(way.arrived, event);
    }

    /// Connects a channel for a host server's daemon.
    pub fn connect(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.retry = None;
        if server.channel != Channel::Closed {
            return;
        }
        let refused = self.edge.daemon.is_none();
        if refused || self.wires.is_cut(number) || self.edge.frozen.is_some() {
            let wait = if refused { 0 } else { HANDSHAKE_LIMIT };
            server.retry = Some(self.now + wait + RETRY);
            return;
        }
        let channel = self.wires.channel(Some(number));
        server.channel = Channel::Opens(channel);
        let takes = 3 * self.plan.server_way + HANDSHAKE;
        self.schedule(takes, Event::OpensAtEdge(channel));
    }

    pub fn opens_at_edge(&mut self, channel: u32) {
        let Some(number) = self.wires.server_of(channel) else { return };
        let opens = self.servers[number].channel == Channel::Opens(channel);
        let name = self.servers[number].name.clone();
        let cut = self.wires.is_cut(number);
        let Some(daemon) = self.edge.daemon.as_mut().filter(|_| opens && !cut) else {
            if opens {
                self.servers[number].closed(self.now, "handshake", RETRY);
                self.server_turns(number);
            }
            return;
        };
        // It replaces an earlier channel of the same host server.
        let old = daemon.links.iter().find(|link| link.name == name);
        let old = old.and_then(|link| link.channel);
        daemon.comes.push((name, channel));
        if let Some(old) = old {
            self.send(old, true, Event::GoneAtServer(old));
        }
        self.send(channel, true, Event::OpensAtServer(channel));
        self.edge_turns();
    }

    pub fn opens_at_server(&mut self, channel: u32) {
        let Some(number) = self.wires.server_of(channel) else { return };
        if self.servers[number].channel == Channel::Opens(channel) {
            self.servers[number].opened(channel);
            self.server_turns(number);
        }
    }

    pub fn comes_to_server(&mut self, channel: u32, bytes: &[u8]) {
        let Some(number) = self.wires.server_of(channel) else { return };
        if self.servers[number].channel == Channel::Open(channel) {
            self.servers[number].hears(bytes);
            self.server_turns(number);
        }
    }

    pub fn gone_at_edge(&mut self, channel: u32) {
        let super::edge::Edge { wire, daemon: Some(daemon), .. } = &mut self.edge else { return };
        daemon.lose(channel, "it is gone", wire);
        self.edge_turns();
    }

    pub fn gone_at_server(&mut self, channel: u32) {
        let Some(number) = self.wires.server_of(channel) else { return };
        if self.is_open(number, channel) {
            self.servers[number].closed(self.now, "it is gone", RETRY);
            self.server_turns(number);
        }
    }

    /// Closes a host server's end of its channel. The edge notices it `at_once`, or else when
    /// its own TCP gives up.
    pub fn server_end_closes(&mut self, number: usize, at_once: bool) {
        let (Channel::Open(channel) | Channel::Opens(channel)) = self.servers[number].channel
        else {
            return;
        };
        if at_once {
            self.send(channel, false, Event::GoneAtEdge(channel));
        } else {
            self.schedule(USER_TIMEOUT, Event::GoneAtEdge(channel));
        }
    }

    /// Closes the edge's ends of all channels, as its kernel does when the daemon ends.
    pub fn edge_ends_close(&mut self) {
        let Some(daemon) = &self.edge.daemon else { return };
        let open: Vec<u32> = daemon.links.iter().filter_map(|link| link.channel).collect();
        for channel in open {
            self.send(channel, true, Event::GoneAtServer(channel));
        }
    }

    pub fn cut(&mut self, number: usize, to_server: bool, to_edge: bool) {
        let line = &mut self.wires.lines[number];
        line.to_server.cuts += u32::from(to_server);
        line.to_edge.cuts += u32::from(to_edge);
        self.sticks(number);
    }

    pub fn mend(&mut self, number: usize, to_server: bool, to_edge: bool) {
        let line = &mut self.wires.lines[number];
        line.to_server.cuts -= u32::from(to_server);
        line.to_edge.cuts -= u32::from(to_edge);
        if self.wires.is_cut(number) {
            return;
        }
        self.loosens(number);
        let held = std::mem::take(&mut self.wires.lines[number].held);
        for (order, event) in held.into_iter().enumerate() {
            let at = self.now + AGAIN + order as u64;
            let line = &mut self.wires.lines[number];
            line.to_server.arrived = line.to_server.arrived.max(at);
            line.to_edge.arrived = line.to_edge.arrived.max(at);
            self.queue.push(at, event);
        }
    }

    /// From now on nothing sent on this path is acknowledged.
    pub fn sticks(&mut self, number: usize) {
        let line = &mut self.wires.lines[number];
        if line.stuck.is_multiple_of(2) {
            line.stuck += 1;
            let stuck = line.stuck;
            self.schedule(USER_TIMEOUT, Event::Stuck(number, stuck));
        }
    }

    pub fn loosens(&mut self, number: usize) {
        let still = self.wires.is_cut(number)
            || self.servers[number].frozen.is_some()
            || self.edge.frozen.is_some();
        let line = &mut self.wires.lines[number];
        if line.stuck % 2 == 1 && !still {
            line.stuck += 1;
        }
    }

    /// Both ends give up the channel, if the path has been stuck since count `stuck`.
    pub fn stuck(&mut self, number: usize, stuck: u32) {
        if self.wires.lines[number].stuck != stuck {
            return;
        }
        // What was in flight never arrives.
        self.wires.lines[number].held.clear();
        if let Channel::Open(channel) | Channel::Opens(channel) = self.servers[number].channel {
            self.schedule(0, Event::GoneAtEdge(channel));
            self.schedule(0, Event::GoneAtServer(channel));
        }
    }

    /// Strangers that have the group's key open channels under names that are in no file,
    /// and announce another host server's tunnel.
    pub fn strangers_come(&mut self) {
        let count = self.plan.limits.hosts_max + 3;
        for number in 0..count {
            let channel = self.wires.channel(None);
            self.strangers.push(channel);
            let Some(daemon) = &mut self.edge.daemon else { return };
            daemon.comes.push((format!("x{number}"), channel));
        }
        self.edge_turns();
        for (number, channel) in self.strangers.clone().into_iter().enumerate() {
            for bytes in strangers_words(&format!("x{number}")) {
                self.edge.take(channel, bytes);
            }
        }
        self.edge_turns();
    }

    pub fn strangers_go(&mut self) {
        for channel in std::mem::take(&mut self.strangers) {
            self.gone_at_edge(channel);
        }
    }

    /// Whether a mutation makes the machine ignore an operator's drain.
    pub fn ignores_drain(&self) -> bool {
        self.plan.mutation == Some(Mutation::DrainIgnored)
    }
}
