//! TCP endpoints as machines: a [`Sender`] and a [`Receiver`] that know neither
//! clock nor network. Sequence numbers count segments of one size; 0 is the SYN.

mod cubic;
mod flight;
mod hystart;
mod oneway;
mod profile;
mod receiver;
mod scoreboard;
mod ticks;
mod twoway;
mod vegas;

#[cfg(test)]
mod tests;

pub use profile::{Congestion, Profile, Stack};
pub use receiver::{RANGES_MAX, Received, Receiver};

use crate::Ns;
use crate::net::packet::{HEADER_BYTES, Kind, Packet};

/// Counts of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that left, including SYNs.
    pub sent: u64,
    /// Segments sent that had been sent before.
    pub resent: u64,
    /// Expiries of the retransmission timer after the handshake.
    pub timeouts: u32,
    /// Expiries of the retransmission timer during the handshake.
    pub syn_timeouts: u32,
    /// Recoveries without a timeout.
    pub fast_retransmits: u32,
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the segment.
    pub seq: u32,
    /// Whether it was sent before.
    pub is_again: bool,
    /// Whether it is the last one that the application asked for.
    pub push: bool,
}

impl Segment {
    /// The packet that carries the segment.
    #[must_use]
    pub fn packet(self, now: Ns, profile: &Profile, flow: u32) -> Packet {
        let is_syn = self.seq == 0;
        let bytes = if is_syn { HEADER_BYTES } else { profile.mss_bytes + profile.header_bytes };
        Packet {
            flow,
            seq: self.seq,
            sent_at: now,
            bytes: bytes as u16,
            push: self.push,
            kind: if is_syn { Kind::Syn } else { Kind::Data },
            ..Packet::default()
        }
    }
}

// The kind of machine comes first, in the cache line that is prefetched.
#[derive(Debug)]
#[repr(u8)]
enum Machine {
    OneWay(oneway::Sender),
    TwoWay(twoway::Sender),
}

/// Calls the same method of either machine.
macro_rules! machine {
    ($sender:expr, $machine:ident => $call:expr) => {
        match $sender {
            Machine::OneWay($machine) => $call,
            Machine::TwoWay($machine) => $call,
        }
    };
}

/// A sender of either stack, idle until it is started.
///
/// Contract: after [`Sender::start`] and after every `handle_*` call, call
/// [`Sender::poll_transmit`] until it returns no segment, then wait for an acknowledgement or for
/// [`Sender::poll_timeout`].
#[derive(Debug)]
#[repr(C)]
pub struct Sender {
    started: bool,
    machine: Machine,
}

impl Sender {
    /// A sender of `segments` segments.
    #[must_use]
    pub fn new(profile: &Profile, segments: u32) -> Self {
        let machine = match profile.stack {
            Stack::OneWay => Machine::OneWay(oneway::Sender::new(profile, segments)),
            Stack::TwoWay => Machine::TwoWay(twoway::Sender::new(profile, segments)),
        };
        Self { started: false, machine }
    }

    /// Starts the transfer: the SYN may leave.
    pub fn start(&mut self) {
        self.started = true;
    }

    /// Takes an acknowledgement.
    #[inline]
    pub fn handle_ack(&mut self, now: Ns, profile: &Profile, packet: &Packet) {
        machine!(&mut self.machine, it => it.handle_ack(now, profile, packet));
    }

    /// Handles the expiry of the timer.
    pub fn handle_timeout(&mut self, now: Ns, profile: &Profile) {
        machine!(&mut self.machine, it => it.handle_timeout(now, profile));
    }

    /// The next segment; call it until there is none.
    #[inline]
    pub fn poll_transmit(&mut self, now: Ns, profile: &Profile) -> Option<Segment> {
        if !self.started {
            return None;
        }
        machine!(&mut self.machine, it => it.poll_transmit(now, profile))
    }

    /// Prefetches what the acknowledgement that comes soon will touch.
    #[inline]
    pub(crate) fn fetch(&self) {
        if let Machine::TwoWay(it) = &self.machine {
            it.fetch();
        }
    }

    /// When [`Sender::handle_timeout`] is due.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        machine!(&self.machine, it => it.poll_timeout())
    }

    /// Whether everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        machine!(&self.machine, it => it.is_done())
    }

    /// Whether the SYN is acknowledged.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        machine!(&self.machine, it => it.is_connected())
    }

    /// Congestion window and slow-start threshold, in segments.
    #[must_use]
    pub fn window(&self) -> (f64, f64) {
        machine!(&self.machine, it => it.window())
    }

    /// Smoothed round trip as the timer has it, in ns; `None` before the first one. The one-way
    /// agents count in ticks.
    #[must_use]
    pub fn smoothed_round_trip(&self) -> Option<Ns> {
        machine!(&self.machine, it => it.smoothed_round_trip())
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        machine!(&self.machine, it => it.counts())
    }
}
