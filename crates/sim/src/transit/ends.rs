//! Senders that retransmit lost segments (NewReno, RFC 6582), and receivers that check what
//! arrives.

use super::packet::{Packet, Tuple, sum_of};
use super::plan::{MS, SenderPlan};
use crate::{Ns, Rng};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

const MSS: u64 = 1000;
/// Smallest distance between the initial sequence numbers of two connections on the same
/// tuple, in bytes: more than one connection sends.
const LIFE_BYTES: u64 = 100_000_000;
const RTO_FIRST: Ns = 1000 * MS;
const RTO_MIN: Ns = 200 * MS;
const RTO_MAX: Ns = 3000 * MS;

/// A sender's connection. Offsets are in bytes of its stream: the SYN is at 0, and the FIN
/// comes last.
struct Conn {
    tuple: Tuple,
    iss: SeqNo,
    bytes: u64,
    una: u64,
    next: u64,
    /// The furthest right edge of the window that was ever advertised.
    edge: u64,
    cwnd: f64,
    ssthresh: f64,
    duplicates: u32,
    /// The highest offset sent when fast recovery began; `None` outside recovery (RFC 6582:
    /// `recover`).
    repairs: Option<u64>,
    /// Offset below which everything has been sent at least once.
    sent: u64,
    rto: Ns,
    srtt: Option<(f64, f64)>,
    timed: Option<(u64, Ns)>,
    due: Ns,
}

/// The sender; see the module.
pub struct Sender {
    pub number: u16,
    pub plan: SenderPlan,
    conn: Option<Conn>,
    next: Ns,
    until: Ns,
    port: u16,
    iss: SeqNo,
    rng: Rng,
    pub done: u64,
    /// Number of bytes acknowledged on all connections.
    pub acked: u64,
    pub timeouts: u64,
    vanished: bool,
}

impl Sender {
    pub fn new(number: u16, plan: SenderPlan, until: Ns, seed: u64) -> Self {
        Self {
            number,
            plan,
            conn: None,
            next: plan.start,
            until,
            port: 5000,
            iss: SeqNo(Rng::new(seed, 800 + u64::from(number)).draw() as u32),
            rng: Rng::new(seed, 700 + u64::from(number)),
            done: 0,
            acked: 0,
            timeouts: 0,
            vanished: false,
        }
    }

    pub fn is_done(&self, now: Ns) -> bool {
        self.vanished || (self.conn.is_none() && now >= self.until)
    }

    /// When to wake it.
    pub fn due(&self) -> Option<Ns> {
        match &self.conn {
            _ if self.vanished => None,
            Some(conn) => Some(conn.due),
            None => (self.next < self.until).then_some(self.next),
        }
    }

    pub fn wake(&mut self, now: Ns) -> Vec<Packet> {
        let mut out = Vec::new();
        if self.vanished {
            return out;
        }
        if self.conn.is_none() {
            if now >= self.next && now < self.until {
                self.begin(now, &mut out);
            }
            return out;
        }
        let Some(conn) = self.conn.as_mut().filter(|conn| now >= conn.due) else { return out };
        self.timeouts += 1;
        // Retransmission timeout: everything is sent again, in slow start (RFC 5681 §3.1).
        conn.ssthresh = ((conn.next - conn.una) as f64 / 2.0).max(2.0 * MSS as f64);
        conn.cwnd = MSS as f64;
        (conn.next, conn.repairs, conn.duplicates, conn.timed) = (conn.una, None, 0, None);
        conn.rto = (conn.rto * 2).min(RTO_MAX);
        conn.due = now + conn.rto;
        // After the end of the load, bytes that were never sent are left out.
        if now >= self.until {
            conn.bytes = conn.bytes.min(conn.sent.saturating_sub(1));
        }
        conn.send(now, &mut out);
        out
    }

    fn begin(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if !self.plan.reuses_port {
            self.port += 1;
        }
        self.iss = self.iss.plus(LIFE_BYTES + self.rng.below(LIFE_BYTES));
        let mut conn = Conn {
            tuple: Tuple { sender: self.number, port: self.port },
            iss: self.iss,
            bytes: self.plan.bytes,
            una: 0,
            next: 0,
            edge: 1,
            cwnd: 10.0 * MSS as f64,
            ssthresh: f64::INFINITY,
            duplicates: 0,
            repairs: None,
            sent: 0,
            rto: RTO_FIRST,
            srtt: None,
            timed: None,
            due: now + RTO_FIRST,
        };
        conn.send(now, out);
        self.conn = Some(conn);
    }

    /// Handles an acknowledgement; returns the segments to be sent.
    pub fn hear(&mut self, now: Ns, packet: &Packet) -> Vec<Packet> {
        let mut out = Vec::new();
        let Some(conn) = self.conn.as_mut().filter(|conn| conn.tuple == packet.tuple) else {
            return out;
        };
        let ack = i64::from(packet.ack.since(conn.iss.plus(conn.una))) + conn.una as i64;
        if ack < 0 || ack as u64 > conn.sent {
            return out;
        }
        let before = conn.una;
        conn.hear(now, ack as u64, packet.window, &mut out);
        self.acked += conn.una - before;
        if self.plan.vanishes && self.done == 0 && conn.una > conn.bytes / 2 {
            self.vanished = true;
            return Vec::new();
        }
        if now >= self.until && conn.bytes >= conn.sent {
            conn.bytes = conn.sent.saturating_sub(1);
        }
        if conn.una >= conn.bytes + 2 {
            self.conn = None;
            self.done += 1;
            self.next = now + self.plan.think;
            return out;
        }
        conn.send(now, &mut out);
        out
    }
}

impl Conn {
    fn hear(&mut self, now: Ns, ack: u64, window: u32, out: &mut Vec<Packet>) {
        let edge = ack + u64::from(window);
        let is_same_edge = edge <= self.edge;
        self.edge = self.edge.max(edge);
        if ack > self.una {
            let news = (ack - self.una) as f64;
            self.una = ack;
            self.next = self.next.max(ack);
            self.duplicates = 0;
            if let Some((at, sent)) = self.timed.filter(|(at, _)| ack > *at) {
                self.measure(now - sent);
                self.timed = None;
                let _at = at;
            }
            match self.repairs {
                Some(until) if ack < until => {
                    let una = self.una;
                    self.repeat(una, out);
                }
                Some(_) => {
                    self.repairs = None;
                    self.cwnd = self.ssthresh;
                }
                None if self.cwnd < self.ssthresh => self.cwnd += news.min(2.0 * MSS as f64),
                None => self.cwnd += MSS as f64 * MSS as f64 / self.cwnd,
            }
            self.due = now + self.rto;
        } else if ack == self.una && self.next > self.una && is_same_edge {
            self.duplicates += 1;
            if self.duplicates == 3 && self.repairs.is_none() {
                self.ssthresh = ((self.next - self.una) as f64 / 2.0).max(2.0 * MSS as f64);
                self.cwnd = self.ssthresh + 3.0 * MSS as f64;
                self.repairs = Some(self.next);
                self.timed = None;
                let una = self.una;
                self.repeat(una, out);
            } else if self.repairs.is_some() {
                self.cwnd += MSS as f64;
            }
        }
    }

    fn measure(&mut self, took: Ns) {
        let took = took as f64;
        let (mean, dev) = match self.srtt {
            None => (took, took / 2.0),
            Some((mean, dev)) => {
                (mean + (took - mean) / 8.0, dev + ((took - mean).abs() - dev) / 4.0)
            }
        };
        self.srtt = Some((mean, dev));
        self.rto = ((mean + 4.0 * dev) as Ns).clamp(RTO_MIN, RTO_MAX);
    }

    fn repeat(&mut self, at: u64, out: &mut Vec<Packet>) {
        out.extend(self.segment(at).map(|it| it.0));
    }

    /// The segment at this offset, and the offset of the next one.
    fn segment(&self, at: u64) -> Option<(Packet, u64)> {
        let end = self.bytes + 2;
        if at >= end {
            return None;
        }
        let syn = at == 0;
        let room = if syn { 0 } else { (self.bytes + 1).saturating_sub(at).min(MSS) };
        let fin = !syn && at + room == self.bytes + 1;
        let (seq, len) = (self.iss.plus(at), room as u16);
        let packet = Packet {
            tuple: self.tuple,
            is_data: true,
            syn,
            fin,
            seq,
            len,
            ack: SeqNo(1),
            window: 65_535,
            sum: sum_of(self.tuple, seq, len),
        };
        Some((packet, at + room + u64::from(syn) + u64::from(fin)))
    }

    fn send(&mut self, now: Ns, out: &mut Vec<Packet>) {
        let window = self.una + self.cwnd as u64;
        while self.next < window.max(self.una + 1) && self.next < self.edge {
            let Some((packet, next)) = self.segment(self.next) else { break };
            if self.next == self.una {
                self.due = now + self.rto;
            }
            if self.timed.is_none() && self.next >= self.sent {
                self.timed = Some((self.next, now));
            }
            self.next = next;
            self.sent = self.sent.max(next);
            out.push(packet);
        }
    }
}

/// A receiver's state of one connection.
struct Stream {
    irs: SeqNo,
    next: u64,
    /// Ranges received out of order, as start and end offsets.
    beyond: BTreeMap<u64, u64>,
    window: u32,
}

/// All receivers.
#[derive(Default)]
pub struct Receivers {
    streams: BTreeMap<Tuple, Stream>,
    pub received: u64,
}

impl Receivers {
    /// Handles a packet; returns its acknowledgement, if it gets one.
    ///
    /// # Errors
    /// If the payload differs from what was sent, or lies beyond the advertised window.
    pub fn hear(&mut self, packet: &Packet, window: u32) -> Result<Option<Packet>, String> {
        if packet.sum != sum_of(packet.tuple, packet.seq, packet.len) {
            return Err(format!("{packet:?} is not what was sent"));
        }
        if packet.syn {
            // Initial sequence numbers increase with each connection on a tuple (RFC 6528): a
            // late SYN of an older connection opens nothing.
            let is_new = |it: &Stream| packet.seq.after(it.irs);
            if self.streams.get(&packet.tuple).is_none_or(is_new) {
                let fresh = Stream { irs: packet.seq, next: 1, beyond: BTreeMap::new(), window };
                self.streams.insert(packet.tuple, fresh);
            }
        }
        let Some(stream) = self.streams.get_mut(&packet.tuple) else { return Ok(None) };
        let at = i64::from(packet.seq.since(stream.irs.plus(stream.next))) + stream.next as i64;
        // It belongs to an older connection on the tuple, or begins beyond the window.
        let promised = stream.next + u64::from(stream.window);
        if at < 0 || at as u64 > promised {
            return Ok(None);
        }
        let (from, until) =
            (at as u64, at as u64 + u64::from(packet.end().since(packet.seq).unsigned_abs()));
        if until > promised + 1 {
            return Err(format!("{packet:?} is beyond what was promised"));
        }
        let before = stream.next;
        if until > from {
            let known = stream.beyond.entry(from).or_insert(until);
            *known = (*known).max(until);
        }
        while let Some((from, until)) = stream.beyond.first_key_value().map(|(a, b)| (*a, *b)) {
            if from > stream.next {
                break;
            }
            stream.next = stream.next.max(until);
            stream.beyond.pop_first();
        }
        self.received += stream.next - before;
        Ok(Some(Packet {
            tuple: packet.tuple,
            is_data: false,
            syn: packet.syn,
            fin: false,
            seq: SeqNo(u32::from(!packet.syn)),
            len: 0,
            ack: stream.irs.plus(stream.next),
            window: stream.window,
            sum: 0,
        }))
    }
}
