//! TCP endpoints as machines: a [`Sender`] and a [`Receiver`] that know neither
//! clock nor network. Sequence numbers count segments of one size; 0 is the SYN.

mod oneway;
mod profile;
mod receiver;
mod scoreboard;
mod ticks;
mod vegas;

#[cfg(test)]
mod tests;

pub use profile::{Congestion, Profile, Stack};
pub use receiver::{RANGES_MAX, Received, Receiver};

use crate::Ns;
use crate::net::packet::{HEADER_BYTES, Kind, Packet};

/// What happened to a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that left, SYNs too.
    pub sent: u64,
    /// Those that had left before.
    pub resent: u64,
    /// Expiries of the retransmission timer after the handshake.
    pub timeouts: u32,
    /// Expiries before it.
    pub syn_timeouts: u32,
    /// Recoveries without a timeout.
    pub fast_retransmits: u32,
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which.
    pub seq: u32,
    /// It was sent before.
    pub is_again: bool,
    /// The last one that the application asked for.
    pub push: bool,
}

impl Segment {
    /// The segment as a packet.
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

/// A sender of either stack, idle until it is started.
#[derive(Debug)]
pub struct Sender {
    started: bool,
    machine: oneway::Sender,
}

impl Sender {
    /// A sender of `segments` segments.
    #[must_use]
    pub fn new(profile: &Profile, segments: u32) -> Self {
        Self { started: false, machine: oneway::Sender::new(profile, segments) }
    }

    /// Its time has come: the SYN may leave.
    pub fn start(&mut self) {
        self.started = true;
    }

    /// Takes an acknowledgement.
    #[inline]
    pub fn handle_ack(&mut self, now: Ns, profile: &Profile, packet: &Packet) {
        self.machine.handle_ack(now, profile, packet);
    }

    /// Its deadline has come.
    pub fn handle_timeout(&mut self, now: Ns, profile: &Profile) {
        self.machine.handle_timeout(now, profile);
    }

    /// The next segment; call it until there is none.
    #[inline]
    pub fn poll_transmit(&mut self, now: Ns, profile: &Profile) -> Option<Segment> {
        if !self.started {
            return None;
        }
        self.machine.poll_transmit(now, profile)
    }

    /// When it wants to be called again.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.machine.poll_timeout()
    }

    /// Is everything acknowledged?
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.machine.is_done()
    }

    /// Is the SYN acknowledged?
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.machine.is_connected()
    }

    /// Congestion window and slow-start threshold, segments.
    #[must_use]
    pub fn window(&self) -> (f64, f64) {
        self.machine.window()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.machine.counts()
    }
}
