//! What a tunnel carries: the packets of an interface, or the datagrams and bytes of ports.

mod datagrams;
mod device;
mod ports;
mod sockets;
mod splice;
mod target;

pub use device::Device;
pub use ports::Ports;

use crate::config::Transport;
use holdfast_tunnel::{Class, Endpoint, Inside, Rule};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// What went in and out.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Packets, or messages, from the inside and to it.
    pub taken: u64,
    pub taken_bytes: u64,
    pub given: u64,
    pub given_bytes: u64,
    /// Those from the inside that were not taken: no peer, a full queue, or no packet of IP.
    pub refused: u64,
    /// Those that the inside did not take.
    pub undelivered: u64,
    /// SYNs of packets that pass whose MSS was lowered to what the interface takes.
    pub clamped: u64,
    /// Flows and connections of ports that are open, were ended because nothing came, and were refused
    /// because there were too many.
    pub flows: u64,
    pub flows_idle: u64,
    pub flows_refused: u64,
    /// Connections that were reset: an end of them was lost.
    pub resets: u64,
    /// Those of them of local clients that the far end reset before a byte of an answer came. It does not
    /// say why: its target may refuse, be out of reach or not be allowed, or it has too many.
    #[serde(default)]
    pub resets_unanswered: u64,
    /// Those of them of the peer whose target here refused them, or could not be reached.
    #[serde(default)]
    pub targets_unreached: u64,
    /// What the peer wanted to send to an address that `allow` does not name: datagrams, and connections.
    pub not_allowed: u64,
    /// The connections among it.
    #[serde(default)]
    pub connections_not_allowed: u64,
}

/// The inside of one tunnel.
pub enum Door {
    Device(Box<Device>),
    Ports(Box<Ports>),
}

impl Door {
    /// Hands to the machine what waits inside; whether more may wait. With `is_ready` false there is
    /// nobody to send to, and what came is dropped: an old packet is worth nothing.
    ///
    /// # Errors
    /// If the inside is gone.
    pub fn take(
        &mut self,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> io::Result<bool> {
        match self {
            Self::Device(device) => device.take(machine, is_ready, now),
            Self::Ports(ports) => ports.take(machine, is_ready, now),
        }
    }

    /// Gives something to the inside.
    pub fn give(&mut self, inside: Inside, machine: &mut Endpoint, now: Duration) {
        match (self, inside) {
            (Self::Device(device), Inside::Packet(packet)) => device.give(&packet),
            (Self::Ports(ports), Inside::Message { flow, bytes }) => {
                ports.datagrams.give(flow, &bytes, now);
            }
            (Self::Ports(ports), Inside::Stream(id, event)) => {
                ports.splice.hear(id, event, machine);
            }
            // A peer in another mode.
            (Self::Device(device), Inside::Stream(id, _)) => {
                device.counters.undelivered += 1;
                let _gone = machine.stream_reset(id);
            }
            (Self::Device(device), _) => device.counters.undelivered += 1,
            (Self::Ports(ports), _) => ports.datagrams.counters.undelivered += 1,
        }
    }

    /// Everything is given.
    pub fn flush(&mut self) {
        if let Self::Device(device) = self {
            device.flush();
        }
    }

    /// Does what is due.
    pub fn do_due(&mut self, now: Duration) {
        if let Self::Ports(ports) = self {
            ports.datagrams.end_idle(now);
        }
    }

    /// When something is due.
    pub fn wake_at(&self) -> Option<Duration> {
        match self {
            Self::Device(_) => None,
            Self::Ports(ports) => ports.datagrams.wake_at(),
        }
    }

    /// The peer is a new one: what it knew of flows is gone.
    pub fn forget_peer(&mut self) {
        if let Self::Ports(ports) = self {
            ports.forget_peer();
        }
    }

    /// Whether the inside has something for which there was no room: it is to be asked in each turn.
    pub fn is_paused(&self) -> bool {
        matches!(self, Self::Device(device) if device.is_paused())
    }

    /// What is to be watched.
    pub fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        match self {
            Self::Device(device) if device.is_paused() => [None, None],
            Self::Device(device) => [Some(device.as_fd()), None],
            Self::Ports(ports) => ports.fds().map(Some),
        }
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        match self {
            Self::Device(device) => device.counters,
            Self::Ports(ports) => ports.counters(),
        }
    }
}

/// The class of what goes to a port: what the file's rules say. Else datagrams are `now`, for they are
/// worth nothing late, and connections `bulk`.
fn class_of(rules: &[Rule], transport: Transport, port: u16) -> Class {
    let fits = |rule: &&Rule| {
        rule.dscp.is_none()
            && rule.protocol.is_none_or(|it| it == transport.protocol())
            && rule.port.is_none_or(|it| it == port)
    };
    let usual = match transport {
        Transport::Udp => Class::Now,
        Transport::Tcp => Class::Bulk,
    };
    rules.iter().find(fits).map_or(usual, |rule| rule.class)
}
