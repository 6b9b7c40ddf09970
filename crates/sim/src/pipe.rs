//! The channels between daemons, as TCP carries them: in order and complete, late when
//! segments are lost, closed when a process dies, silent when a host dies, and given up
//! when nothing has been acknowledged for 3 s.

use crate::Ns;
use crate::plan::Mutation;
use crate::world::{EDGE, Event, World};
use holdfast_wire::message::Message;
use std::collections::VecDeque;

/// Time without acknowledgement after which a channel is given up, in ns: the value in
/// `channel.rs`.
const USER_TIMEOUT: Ns = 3_000_000_000;
/// Idle time after which TCP probes a channel, in ns: the value in `channel.rs`.
const KEEPALIVE: Ns = 1_000_000_000;
/// Time between two attempts to connect, in ns: the value in `daemon/dialer.rs`.
pub const RETRY: Ns = 100_000_000;
/// Longest time for a handshake, in ns: the value in `channel.rs`.
const HANDSHAKE_LIMIT: Ns = 2_000_000_000;
/// Time until a SYN is retransmitted, in ns (RFC 6298 §2.1).
const SYN_AGAIN: Ns = 1_000_000_000;
/// Longest time between two retransmissions in the model, in ns.
const REPEAT_MAX: Ns = 400_000_000;
/// Longest delay of a message on an uneven path, in ns: far less than the period of
/// heartbeats.
const LATE_MAX: Ns = 4_000_000;

pub type PipeId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From a member to the edge.
    Edge,
    /// From the backup to the primary.
    Pair,
}

/// A process: its host, and how often it has been started there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub host: usize,
    pub life: u32,
}

/// What a daemon finds in a link's inbox.
#[derive(Clone, Debug)]
pub enum Input {
    /// This end's attempt to connect has succeeded.
    Opened(PipeId),
    Failed,
    /// Another process has connected to this one.
    Accepted(PipeId),
    Message(PipeId, Vec<u8>),
    Lost(PipeId),
}

#[derive(Clone, Debug)]
pub enum Item {
    Data(Vec<u8>),
    /// A keepalive probe.
    Probe,
    End,
}

/// One direction of a pipe.
#[derive(Debug, Default)]
struct Flow {
    sent: u64,
    delivered: u64,
    /// Time by which earlier items have arrived.
    free_at: Ns,
    /// Items sent into a cut link, which TCP retransmits.
    stalled: VecDeque<(u64, Item)>,
    unacked: VecDeque<(u64, Ns)>,
    timer: bool,
}

#[derive(Debug)]
pub struct Pipe {
    pub kind: Kind,
    /// The ends: the one that connected, and the one that accepted.
    pub ends: [Process; 2],
    open: [bool; 2],
    flows: [Flow; 2],
}

/// An event of a pipe. Direction `dir` leads from end `dir` to the other one.
#[derive(Clone, Debug)]
pub enum PipeEvent {
    Arrives {
        pipe: PipeId,
        dir: usize,
        number: u64,
        item: Item,
    },
    /// The other end's kernel does not know the connection, and answers with an RST.
    Reset {
        pipe: PipeId,
        end: usize,
    },
    Repeats {
        pipe: PipeId,
        dir: usize,
    },
    Timer {
        pipe: PipeId,
        dir: usize,
    },
    Idle {
        pipe: PipeId,
        dir: usize,
    },
    Connects {
        from: Process,
        kind: Kind,
        since: Ns,
    },
}

impl PipeEvent {
    /// The host where it happens.
    pub fn host(&self, pipes: &[Pipe]) -> usize {
        match self {
            Self::Arrives { pipe, dir, .. } => pipes[*pipe].ends[1 - dir].host,
            Self::Reset { pipe, end } => pipes[*pipe].ends[*end].host,
            Self::Repeats { pipe, dir } | Self::Timer { pipe, dir } | Self::Idle { pipe, dir } => {
                pipes[*pipe].ends[*dir].host
            }
            Self::Connects { from, .. } => from.host,
        }
    }
}

impl World {
    /// Begins to connect; the outcome is put into the inbox.
    pub fn connect(&mut self, from: Process, kind: Kind) {
        let delay = self.link_delay() * 4;
        let since = self.now;
        self.schedule(delay, Event::Pipe(PipeEvent::Connects { from, kind, since }));
    }

    /// Queues a message; false if the channel is closed at this end.
    pub fn send(&mut self, pipe: PipeId, end: usize, message: &Message<'_>) -> bool {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_item(pipe, end, Item::Data(bytes))
    }

    fn send_item(&mut self, id: PipeId, end: usize, item: Item) -> bool {
        let now = self.now;
        let pipe = &mut self.pipes[id];
        if !pipe.open[end] {
            return false;
        }
        let link = (pipe.ends[end].host, pipe.ends[1 - end].host);
        let flow = &mut pipe.flows[end];
        flow.sent += 1;
        let number = flow.sent;
        flow.unacked.push_back((number, now));
        let wants_timer = !std::mem::replace(&mut flow.timer, true);
        if self.links.is_cut(link.0, link.1) || !flow.stalled.is_empty() {
            flow.stalled.push_back((number, item));
        } else {
            self.arrive_later(id, end, number, item);
        }
        if wants_timer {
            self.schedule(USER_TIMEOUT, Event::Pipe(PipeEvent::Timer { pipe: id, dir: end }));
        }
        true
    }

    fn arrive_later(&mut self, id: PipeId, dir: usize, number: u64, item: Item) {
        let mut delay = self.link_delay();
        if self.pipes[id].kind == Kind::Pair && self.links.pair_slow && self.rng.one_in(6) {
            // A lost segment delays everything behind it until it is retransmitted.
            delay += 200_000_000 + self.rng.below(200_000_000);
        }
        let late = self.plan.uneven.messages_late_permille;
        if self.pipes[id].kind == Kind::Pair && late > 0 && self.rng.below(1000) < late {
            delay += self.rng.below(LATE_MAX);
        }
        let flow = &mut self.pipes[id].flows[dir];
        flow.free_at = flow.free_at.max(self.now + delay);
        let at = flow.free_at;
        self.queue.push(at, Event::Pipe(PipeEvent::Arrives { pipe: id, dir, number, item }));
    }

    pub fn pipe_event(&mut self, event: PipeEvent) {
        match event {
            PipeEvent::Arrives { pipe, dir, number, item } => self.arrives(pipe, dir, number, item),
            PipeEvent::Reset { pipe, end } => {
                let from = self.pipes[pipe].ends[1 - end].host;
                if !self.links.is_cut(from, self.pipes[pipe].ends[end].host) {
                    self.lose_end(pipe, end);
                }
            }
            PipeEvent::Repeats { pipe, dir } => self.repeats(pipe, dir),
            PipeEvent::Timer { pipe, dir } => self.pipe_timer(pipe, dir),
            PipeEvent::Idle { pipe, dir } => self.keeps_alive(pipe, dir),
            PipeEvent::Connects { from, kind, since } => self.connects(from, kind, since),
        }
    }

    fn arrives(&mut self, id: PipeId, dir: usize, number: u64, item: Item) {
        let [sender, receiver] = [dir, 1 - dir].map(|end| self.pipes[id].ends[end]);
        let lost = self.now > self.hosts[sender.host].heard_until;
        if lost {
            return;
        }
        if !self.hosts[receiver.host].alive {
            return self.repeats_later(id, dir, number, item);
        }
        if !self.pipes[id].open[1 - dir] {
            let delay = self.link_delay();
            return self.schedule(delay, Event::Pipe(PipeEvent::Reset { pipe: id, end: dir }));
        }
        let acked = !self.links.is_cut(receiver.host, sender.host);
        let flow = &mut self.pipes[id].flows[dir];
        flow.delivered = number;
        if acked {
            flow.unacked.retain(|(n, _)| *n > number);
        }
        match item {
            Item::Data(bytes) => {
                self.put(receiver, id, Input::Message(id, bytes));
                if self.pipes[id].kind == Kind::Pair {
                    self.message_came();
                }
            }
            Item::Probe => {}
            Item::End => self.lose_end(id, 1 - dir),
        }
    }

    /// Closes this end, because the other end or its own kernel has given up.
    fn lose_end(&mut self, id: PipeId, end: usize) {
        if std::mem::replace(&mut self.pipes[id].open[end], false) {
            let process = self.pipes[id].ends[end];
            self.put(process, id, Input::Lost(id));
        }
    }

    /// The process closes its end.
    pub fn close_pipe(&mut self, id: PipeId, end: usize) {
        self.send_item(id, end, Item::End);
        self.pipes[id].open[end] = false;
    }

    /// Closes the connections of a process that has died, as its kernel does if the host
    /// lives.
    pub fn end_pipes_of(&mut self, process: Process) {
        for id in 0..self.pipes.len() {
            for end in 0..2 {
                if self.pipes[id].ends[end] == process && self.pipes[id].open[end] {
                    if self.hosts[process.host].alive {
                        self.close_pipe(id, end);
                    } else {
                        self.pipes[id].open[end] = false;
                        self.pipes[id].flows[end].stalled.clear();
                    }
                }
            }
        }
    }

    /// Nobody has acknowledged this item, for the other end's host is down: TCP repeats it until it
    /// gives up. A host that is back by then does not know the connection, and says so.
    fn repeats_later(&mut self, id: PipeId, dir: usize, number: u64, item: Item) {
        let flow = &mut self.pipes[id].flows[dir];
        let given_up = |(_, since): &(u64, Ns)| self.now >= since + USER_TIMEOUT;
        if flow.unacked.front().is_none_or(given_up) {
            return;
        }
        flow.stalled.push_back((number, item));
        if flow.stalled.len() == 1 {
            let delay = self.rng.below(REPEAT_MAX);
            self.schedule(delay, Event::Pipe(PipeEvent::Repeats { pipe: id, dir }));
        }
    }

    fn repeats(&mut self, id: PipeId, dir: usize) {
        let (from, to) = (self.pipes[id].ends[dir].host, self.pipes[id].ends[1 - dir].host);
        if self.links.is_cut(from, to) {
            return;
        }
        for (number, item) in std::mem::take(&mut self.pipes[id].flows[dir].stalled) {
            self.arrive_later(id, dir, number, item);
        }
    }

    /// A link works again: TCP notices with its next retransmission.
    pub fn link_is_back(&mut self, from: usize, to: usize) {
        for id in 0..self.pipes.len() {
            for dir in 0..2 {
                let ends = &self.pipes[id].ends;
                let (a, b) = (ends[dir].host, ends[1 - dir].host);
                if (a, b) == (from, to) && !self.pipes[id].flows[dir].stalled.is_empty() {
                    let delay = self.rng.below(REPEAT_MAX);
                    self.schedule(delay, Event::Pipe(PipeEvent::Repeats { pipe: id, dir }));
                }
                if (b, a) == (from, to) {
                    let flow = &mut self.pipes[id].flows[dir];
                    let delivered = flow.delivered;
                    flow.unacked.retain(|(n, _)| *n > delivered);
                }
            }
        }
    }

    fn pipe_timer(&mut self, id: PipeId, dir: usize) {
        let now = self.now;
        let flow = &mut self.pipes[id].flows[dir];
        flow.timer = false;
        let Some((_, since)) = flow.unacked.front().copied() else { return };
        if now < since + USER_TIMEOUT {
            flow.timer = true;
            let delay = since + USER_TIMEOUT - now;
            return self.schedule(delay, Event::Pipe(PipeEvent::Timer { pipe: id, dir }));
        }
        self.lose_end(id, dir);
        let delay = self.link_delay();
        self.schedule(delay, Event::Pipe(PipeEvent::Reset { pipe: id, end: 1 - dir }));
    }

    /// Probes an idle connection: otherwise the restart of its peer would go unnoticed.
    fn keeps_alive(&mut self, id: PipeId, dir: usize) {
        let pipe = &self.pipes[id];
        if pipe.open[dir] {
            if pipe.flows[dir].unacked.is_empty() {
                self.send_item(id, dir, Item::Probe);
            }
            self.schedule(KEEPALIVE, Event::Pipe(PipeEvent::Idle { pipe: id, dir }));
        }
    }

    fn connects(&mut self, from: Process, kind: Kind, since: Ns) {
        if !self.is_alive(from) {
            return;
        }
        let to = match kind {
            Kind::Edge => EDGE,
            Kind::Pair => 1 - from.host,
        };
        let host = &self.hosts[to];
        let reachable = host.alive
            && host.frozen.is_none()
            && !self.links.is_cut(from.host, to)
            && !self.links.is_cut(to, from.host);
        if !reachable {
            if self.now + SYN_AGAIN - since > HANDSHAKE_LIMIT {
                return self.put_link(from, kind, Input::Failed);
            }
            let again = Event::Pipe(PipeEvent::Connects { from, kind, since });
            return self.schedule(SYN_AGAIN, again);
        }
        let Some(listener) = self.listener(to, kind) else {
            return self.put_link(from, kind, Input::Failed);
        };
        let flows = [Flow::default(), Flow::default()];
        self.pipes.push(Pipe { kind, ends: [from, listener], open: [true; 2], flows });
        let id = self.pipes.len() - 1;
        let probed = self.plan.mutation != Some(Mutation::NoKeepalive);
        for dir in (0..2).filter(|_| probed) {
            self.schedule(KEEPALIVE, Event::Pipe(PipeEvent::Idle { pipe: id, dir }));
        }
        self.put_link(from, kind, Input::Opened(id));
        self.put_link(listener, kind, Input::Accepted(id));
    }

    /// Number of unacknowledged messages on open channels.
    pub fn unacked(&self) -> usize {
        let open = |pipe: &&Pipe| pipe.open == [true; 2];
        let flows = self.pipes.iter().filter(open).flat_map(|pipe| &pipe.flows);
        flows.map(|flow| flow.unacked.len()).sum()
    }

    fn put(&mut self, process: Process, id: PipeId, input: Input) {
        let kind = self.pipes[id].kind;
        self.put_link(process, kind, input);
    }
}
