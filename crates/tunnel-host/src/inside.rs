//! What a tunnel carries: the packets of an interface, or the datagrams and bytes of ports.

mod device;
mod ports;

pub use device::Device;
pub use ports::Ports;

use holdfast_tunnel::{Endpoint, Inside};
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
    /// Flows of ports that are open, were ended because nothing came, and were refused because there
    /// were too many.
    pub flows: u64,
    pub flows_idle: u64,
    pub flows_refused: u64,
    /// What the peer wanted to send to an address that `allow` does not name.
    pub not_allowed: u64,
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
            (Self::Ports(ports), Inside::Message { flow, bytes }) => ports.give(flow, &bytes, now),
            (Self::Ports(_), Inside::Stream(id, _)) => {
                // Nothing is lost by it: nobody forwards TCP yet.
                let _gone = machine.stream_reset(id, now);
            }
            // A peer in another mode.
            (Self::Device(device), _) => device.counters.undelivered += 1,
            (Self::Ports(ports), _) => ports.counters.undelivered += 1,
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
            ports.end_idle(now);
        }
    }

    /// When something is due.
    pub fn wake_at(&self) -> Option<Duration> {
        match self {
            Self::Device(_) => None,
            Self::Ports(ports) => ports.wake_at(),
        }
    }

    /// The peer is a new one: what it knew of flows is gone.
    pub fn forget_peer(&mut self) {
        if let Self::Ports(ports) = self {
            ports.forget_peer();
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

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Device(device) => device.as_fd(),
            Self::Ports(ports) => ports.as_fd(),
        }
    }
}
