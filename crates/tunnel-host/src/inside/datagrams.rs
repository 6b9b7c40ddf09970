//! Datagrams that lead through the tunnel: what comes at a local UDP port goes to an address of the other
//! end, and the answers come back. Each local client is a flow.
//!
//! A message begins with one byte. Bit 0: to the flow's opener, else to its target. Bit 1: the target
//! follows, 4 or 16 bytes (bit 2) and the port. An opener writes the target until it has heard
//! something of the flow, since before that the other end may not know it.

use super::target::{self, WITH_TARGET};
use super::{Counters, class_of, sockets};
use crate::config::{Allow, Config, Forward, Transport};
use crate::trial;
use holdfast_tunnel::{Class, Endpoint, Rule};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const TO_OPENER: u8 = 1;

/// Most bytes of a datagram.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Datagrams that are taken in a turn before the other side has its turn.
const TAKEN_PER_TURN: usize = 64;
/// Tokens of listening sockets; those of flows are their numbers.
const LISTENERS: u64 = 1 << 32;

/// The UDP ports of one tunnel.
pub struct Datagrams {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    allowed: Vec<Allow>,
    rules: Vec<Rule>,
    /// Flows that local clients have opened, by the number that this end gave.
    ours: HashMap<u32, Ours>,
    by_client: HashMap<(usize, SocketAddr), u32>,
    /// Flows that the peer has opened, by its number.
    theirs: HashMap<u32, Theirs>,
    next_flow: u32,
    flows_max: usize,
    idle: Duration,
    idle_at: Option<Duration>,
    buffer: Vec<u8>,
    message: Vec<u8>,
    pub counters: Counters,
}

struct Listener {
    socket: UdpSocket,
    target: SocketAddr,
    class: Class,
}

struct Ours {
    listener: usize,
    client: SocketAddr,
    used: Duration,
    is_known: bool,
}

struct Theirs {
    socket: UdpSocket,
    target: SocketAddr,
    class: Class,
    used: Duration,
}

impl Datagrams {
    /// Listens at all UDP ports of a file.
    ///
    /// # Errors
    /// With the port that could not be had.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut listeners = Vec::new();
        let is_udp = |it: &&Forward| it.transport == Transport::Udp;
        for Forward { listen, target, .. } in config.forwards.iter().filter(is_udp) {
            let socket = UdpSocket::bind(listen).with_context(|| format!("udp {listen}"))?;
            socket.set_nonblocking(true).with_context(|| format!("udp {listen}"))?;
            sockets::watch(&epoll, &socket, LISTENERS + listeners.len() as u64)?;
            let class = class_of(&config.rules, Transport::Udp, target.port());
            listeners.push(Listener { socket, target: *target, class });
        }
        Ok(Self {
            epoll,
            listeners,
            allowed: config.allowed.clone(),
            rules: config.rules.clone(),
            ours: HashMap::new(),
            by_client: HashMap::new(),
            theirs: HashMap::new(),
            next_flow: 0,
            flows_max: config.flows_max,
            idle: config.idle,
            idle_at: None,
            buffer: vec![0; DATAGRAM_BYTES_MAX],
            message: Vec::new(),
            counters: Counters::default(),
        })
    }

    pub fn counters(&self) -> Counters {
        Counters { flows: (self.ours.len() + self.theirs.len()) as u64, ..self.counters }
    }

    pub fn take(
        &mut self,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> io::Result<bool> {
        let (ready, mut is_more) = sockets::ready(&self.epoll)?;
        for event in ready {
            let token = event.data.u64();
            is_more |= match token.checked_sub(LISTENERS) {
                Some(listener) => self.take_of_clients(listener as usize, machine, is_ready, now),
                None => self.take_of_target(token as u32, machine, is_ready, now),
            };
        }
        Ok(is_more)
    }

    /// Takes what local clients say at one port.
    fn take_of_clients(
        &mut self,
        listener: usize,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> bool {
        for _ in 0..TAKEN_PER_TURN {
            let Some(Listener { socket, target, class }) = self.listeners.get(listener) else {
                return false;
            };
            let (to, class) = (*target, *class);
            let Ok((length, client)) = socket.recv_from(&mut self.buffer) else { return false };
            let Some(flow) = self.flow_of(listener, client, now) else {
                self.counters.flows_refused += 1;
                continue;
            };
            let is_known = self.ours.get(&flow).is_some_and(|flow| flow.is_known);
            self.message.clear();
            if is_known {
                self.message.push(0)
            } else {
                target::push(&mut self.message, to);
            }
            self.message.extend_from_slice(self.buffer.get(..length).unwrap_or_default());
            self.hand_over(flow, class, length, machine, is_ready, now);
        }
        true
    }

    /// Takes what the target of a flow of the peer answers.
    fn take_of_target(
        &mut self,
        flow: u32,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> bool {
        for _ in 0..TAKEN_PER_TURN {
            let Some(theirs) = self.theirs.get_mut(&flow) else { return false };
            let Ok(length) = theirs.socket.recv(&mut self.buffer) else { return false };
            theirs.used = now;
            let class = theirs.class;
            self.message.clear();
            self.message.push(TO_OPENER);
            self.message.extend_from_slice(self.buffer.get(..length).unwrap_or_default());
            self.hand_over(flow, class, length, machine, is_ready, now);
        }
        true
    }

    fn hand_over(
        &mut self,
        flow: u32,
        class: Class,
        length: usize,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) {
        if is_ready && machine.handle_message(flow, class, &self.message, now).is_ok() {
            self.counters.taken += 1;
            self.counters.taken_bytes += length as u64;
        } else {
            self.counters.refused += 1;
        }
    }

    /// The flow of a client, a new one if it has none; `None` if there are too many.
    fn flow_of(&mut self, listener: usize, client: SocketAddr, now: Duration) -> Option<u32> {
        if let Some(flow) = self.by_client.get(&(listener, client)) {
            if let Some(ours) = self.ours.get_mut(flow) {
                ours.used = now;
            }
            return Some(*flow);
        }
        if !self.has_room(now) {
            return None;
        }
        let mut flow = self.next_flow;
        while flow == trial::FLOW || self.ours.contains_key(&flow) {
            flow = flow.wrapping_add(1);
        }
        self.next_flow = flow.wrapping_add(1);
        self.ours.insert(flow, Ours { listener, client, used: now, is_known: false });
        self.by_client.insert((listener, client), flow);
        Some(flow)
    }

    /// Gives a message of the peer to whom it is for.
    pub fn give(&mut self, flow: u32, message: &[u8], now: Duration) {
        let Some((head, rest)) = message.split_first() else {
            self.counters.undelivered += 1;
            return;
        };
        let delivered = if head & TO_OPENER != 0 {
            self.give_to_client(flow, rest, now)
        } else {
            self.give_to_target(flow, *head, rest, now)
        };
        match delivered {
            Some(bytes) => {
                self.counters.given += 1;
                self.counters.given_bytes += bytes as u64;
            }
            None => self.counters.undelivered += 1,
        }
    }

    fn give_to_client(&mut self, flow: u32, bytes: &[u8], now: Duration) -> Option<usize> {
        let ours = self.ours.get_mut(&flow)?;
        (ours.used, ours.is_known) = (now, true);
        self.listeners.get(ours.listener)?.socket.send_to(bytes, ours.client).ok()
    }

    fn give_to_target(&mut self, flow: u32, head: u8, rest: &[u8], now: Duration) -> Option<usize> {
        let (target, bytes) = match head & WITH_TARGET {
            0 => (None, rest),
            _ => target::read(head, rest).map(|(to, bytes)| (Some(to), bytes))?,
        };
        // A number that means another target now: the peer has begun anew.
        if let Some(target) = target
            && self.theirs.get(&flow).is_none_or(|theirs| theirs.target != target)
        {
            self.open_target(flow, target, now)?;
        }
        let theirs = self.theirs.get_mut(&flow)?;
        theirs.used = now;
        theirs.socket.send(bytes).ok()
    }

    /// Opens the way to a target of the peer, if it is allowed.
    fn open_target(&mut self, flow: u32, target: SocketAddr, now: Duration) -> Option<()> {
        self.theirs.remove(&flow);
        let wanted = Allow { transport: Transport::Udp, target };
        if !self.allowed.contains(&wanted) {
            self.counters.not_allowed += 1;
            return None;
        }
        if !self.has_room(now) {
            self.counters.flows_refused += 1;
            return None;
        }
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        socket.set_nonblocking(true).ok()?;
        sockets::watch(&self.epoll, &socket, u64::from(flow)).ok()?;
        let class = class_of(&self.rules, Transport::Udp, target.port());
        self.theirs.insert(flow, Theirs { socket, target, class, used: now });
        Some(())
    }

    /// Whether there may be another flow.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.idle_at.is_none() {
            self.idle_at = Some(now + self.idle);
        }
        self.ours.len() + self.theirs.len() < self.flows_max
    }

    /// Ends flows in which nothing has come for a while.
    pub fn end_idle(&mut self, now: Duration) {
        if self.idle_at.is_none_or(|at| now < at) {
            return;
        }
        let idle = self.idle;
        let is_used = |used: Duration| now < used + idle;
        let before = self.ours.len() + self.theirs.len();
        self.ours.retain(|_, flow| is_used(flow.used));
        self.theirs.retain(|_, flow| is_used(flow.used));
        let ours = &self.ours;
        self.by_client.retain(|_, flow| ours.contains_key(flow));
        let after = self.ours.len() + self.theirs.len();
        self.counters.flows_idle += (before - after) as u64;
        let used =
            self.ours.values().map(|it| it.used).chain(self.theirs.values().map(|it| it.used));
        self.idle_at = used.min().map(|used| used + idle);
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.idle_at
    }

    /// What the peer knew of flows is gone; and its own are.
    pub fn forget_peer(&mut self) {
        self.theirs.clear();
        self.ours.values_mut().for_each(|flow| flow.is_known = false);
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
