//! The receiving end: orders segments and acknowledges them, every second one at once, a lone one
//! after a delay.

use super::profile::{Profile, Stack};
use crate::Ns;
use crate::net::packet::{HEADER_BYTES, Kind, Packet, SACK_BLOCKS};

/// Most holes that a receiver remembers; segments that would make more are dropped, as by a full
/// reassembly queue.
pub const RANGES_MAX: usize = 8192;

/// Bytes of a SACK option with one block (RFC 2018 §3).
const SACK_FIRST_BYTES: u32 = 12;
/// Bytes of every further block of a SACK option (RFC 2018 §3).
const SACK_MORE_BYTES: u32 = 8;

/// The effect of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Number of segments that were new, in order or not.
    pub fresh: u32,
    /// Number of segments that the application can read now.
    pub in_order: u32,
}

/// A receiver. Feed it with [`Receiver::handle_packet`] and
/// [`Receiver::handle_timeout`], then take its acknowledgement with
/// [`Receiver::poll_transmit`] and its deadline with [`Receiver::poll_timeout`].
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    rcv_nxt: u32,
    /// Ranges that arrived beyond `rcv_nxt`, `first..end`, ascending and apart.
    ranges: Vec<(u32, u32)>,
    /// The range of the newest segment, which is reported first (RFC 2018 §4).
    newest: u32,
    /// Number of segments that wait for an acknowledgement.
    unacked: u32,
    quick_acks: u32,
    deadline: Option<Ns>,
    /// The kind of acknowledgement that is due, if one is.
    due: Option<Kind>,
    /// The timestamp to echo, in ns.
    echo: Ns,
}

impl Receiver {
    /// Takes a packet from the sender.
    pub fn handle_packet(&mut self, now: Ns, profile: &Profile, packet: &Packet) -> Received {
        if packet.kind == Kind::Syn {
            self.handle_syn(now, profile, packet);
            return Received::default();
        }
        // ns-2's sink does not check where a segment comes from; a TCP without a connection would.
        if self.rcv_nxt == 0 {
            return Received::default();
        }
        let before = self.rcv_nxt;
        let (fresh, filled) = self.insert(packet.seq);
        let in_order = self.rcv_nxt - before;
        if packet.seq <= before || self.unacked == 0 {
            self.echo = packet.sent_at;
        }
        let expected = match profile.stack {
            // ns-2's sink compares with the highest segment in order, so that a repeated last
            // segment counts as expected.
            Stack::OneWay => packet.seq + 1 == self.rcv_nxt,
            Stack::TwoWay => in_order > 0,
        };
        let pushed = profile.ack_push && packet.push;
        if !expected || filled || pushed {
            // A segment that is out of order, old, or fills a gap is acknowledged at once (RFC 5681
            // §4.2).
            self.owe(Kind::Ack);
        } else {
            self.delay(now, profile);
        }
        Received { fresh: u32::from(fresh), in_order }
    }

    fn handle_syn(&mut self, now: Ns, profile: &Profile, packet: &Packet) {
        let is_first = self.rcv_nxt == 0;
        self.echo = packet.sent_at;
        if is_first {
            self.rcv_nxt = 1;
            self.quick_acks = profile.quick_acks;
        }
        if profile.delack_syn && self.rcv_nxt == 1 {
            self.delay(now, profile);
        } else {
            self.owe(if self.rcv_nxt == 1 { Kind::SynAck } else { Kind::Ack });
        }
    }

    fn delay(&mut self, now: Ns, profile: &Profile) {
        self.unacked += 1;
        if self.unacked >= profile.delack_segments || self.quick_acks > 0 {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.owe(Kind::Ack);
        } else {
            self.deadline = Some(now + profile.delack_ns);
        }
    }

    fn owe(&mut self, kind: Kind) {
        self.due = Some(kind);
        self.unacked = 0;
        self.deadline = None;
    }

    /// Handles the expiry of the timer.
    pub fn handle_timeout(&mut self, now: Ns) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.owe(if self.rcv_nxt == 1 { Kind::SynAck } else { Kind::Ack });
        }
    }

    /// When [`Receiver::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.deadline
    }

    /// The acknowledgement that is due, if one is.
    pub fn poll_transmit(&mut self, now: Ns, profile: &Profile) -> Option<Packet> {
        let kind = self.due.take()?;
        let mut packet = Packet {
            ack: self.rcv_nxt,
            window: profile.window_segments,
            sent_at: now,
            echo: self.echo,
            kind,
            ..Packet::default()
        };
        let blocks = if profile.sack { self.fill_sack(&mut packet) } else { 0 };
        let sack_bytes = match (blocks, profile.stack) {
            (0, _) | (_, Stack::OneWay) => 0,
            (more, Stack::TwoWay) => SACK_FIRST_BYTES + SACK_MORE_BYTES * (more - 1),
        };
        let header = match profile.stack {
            Stack::OneWay => HEADER_BYTES,
            Stack::TwoWay => profile.header_bytes,
        };
        packet.bytes = (header + sack_bytes) as u16;
        Some(packet)
    }

    /// Fills in the block of the newest segment first, then the latest others.
    fn fill_sack(&self, packet: &mut Packet) -> u32 {
        let mut blocks = 0;
        let newest = self.ranges.iter().position(|it| (it.0..it.1).contains(&self.newest));
        let others = (0..self.ranges.len()).rev().filter(|index| Some(*index) != newest);
        for index in newest.into_iter().chain(others).take(SACK_BLOCKS) {
            packet.sack[blocks] = self.ranges[index];
            blocks += 1;
        }
        blocks as u32
    }

    /// Notes a segment; returns whether it was new, and whether it was the first of a hole.
    fn insert(&mut self, seq: u32) -> (bool, bool) {
        if seq < self.rcv_nxt {
            return (false, false);
        }
        if seq == self.rcv_nxt {
            self.rcv_nxt += 1;
            let filled = !self.ranges.is_empty();
            if self.ranges.first().is_some_and(|first| first.0 == self.rcv_nxt) {
                self.rcv_nxt = self.ranges.remove(0).1;
            }
            return (true, filled);
        }
        self.newest = seq;
        let at = self.ranges.partition_point(|range| range.1 < seq);
        let is_full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.get_mut(at) {
            Some(range) if (range.0..range.1).contains(&seq) => return (false, false),
            Some(range) if range.1 == seq => {
                range.1 += 1;
                let end = range.1;
                if self.ranges.get(at + 1).is_some_and(|next| next.0 == end) {
                    self.ranges[at].1 = self.ranges.remove(at + 1).1;
                }
            }
            Some(range) if range.0 == seq + 1 => range.0 = seq,
            _ if is_full => return (false, false),
            _ => self.ranges.insert(at, (seq, seq + 1)),
        }
        (true, false)
    }

    /// The next segment that the receiver waits for.
    #[must_use]
    pub fn rcv_nxt(&self) -> u32 {
        self.rcv_nxt
    }
}
