//! A client's end of one connection: one retransmission timer that backs off, retransmissions that
//! overlap in other cuts, and the SACK blocks of the server.

use crate::Ns;
use crate::Rng;
use crate::app::Request;
use crate::kernel::CHALLENGE_PAUSE;
use crate::packet::{ACK, NO_SCALING, Packet, Truth, shift};
use crate::plan::ClientPlan;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, SackBlocks};
use holdfast_wire::seq::SeqNo;

const SEGMENT_MAX: u64 = 120;
const RTO_MIN: Ns = 40_000_000;
const RTO_MAX: Ns = 1_000_000_000;
/// Number of timeouts in a row up to which the back-off grows.
const RETRIES_MAX: u32 = 8;
/// Most segments resent at a time.
const BURST: usize = 8;
const BUFFER: u64 = 8192;

/// The client's end of one connection.
#[derive(Clone, Debug)]
pub struct Conn {
    pub key: ConnKey,
    /// When its first SYN left.
    pub(super) since: Ns,
    pub(super) irs: SeqNo,
    pub iss: Option<SeqNo>,
    pub(super) outgoing: Vec<u8>,
    pub requests: Vec<Request>,
    pub replies: usize,
    pub(super) una: u64,
    pub(super) nxt: u64,
    /// Whether there are no more requests, so that a FIN follows the last byte.
    pub(super) finishing: bool,
    /// Right edge of the server's window, as an offset.
    pub(super) edge: u64,
    pub(super) rcv_wscale: u8,
    pub(super) snd_wscale: u8,
    /// Whether its program reads nothing.
    pub(super) away: bool,
    pub(super) wl1: SeqNo,
    /// Number of bytes received in order.
    pub(super) rx: u64,
    /// Those that the program has not read yet.
    pub(super) unparsed: Vec<u8>,
    pub(super) server_fin: bool,
    pub(super) rto_at: Option<Ns>,
    pub(super) backoff: u32,
    /// Offset up to which data is resent after a timeout.
    pub(super) recover: u64,
    pub(super) quiet_until: Ns,
    /// Whether both sides have permitted SACK.
    pub(super) sack: bool,
    /// Ranges `[left, right)` that the server has SACKed since the last timeout.
    pub(super) sacked: Vec<(u64, u64)>,
    /// Beginning of the hole before those that was already retransmitted.
    pub(super) filled: Option<u64>,
    /// Whether the next data segment carries CWR (RFC 3168 §6.1.2).
    pub(super) reduced: bool,
    /// Whether this side closed first, and so stays in TIME-WAIT; otherwise nothing is remembered.
    pub(super) ended_first: bool,
}

pub(super) enum Took {
    Nothing,
    Bytes,
    Reset,
}

impl Conn {
    pub(super) fn new(key: ConnKey, irs: SeqNo, plan: &ClientPlan, now: Ns) -> Self {
        Self {
            key,
            since: now,
            irs,
            iss: None,
            outgoing: Vec::new(),
            requests: Vec::new(),
            replies: 0,
            una: 0,
            nxt: 0,
            finishing: false,
            edge: 0,
            rcv_wscale: plan.wscale,
            snd_wscale: NO_SCALING,
            away: false,
            wl1: SeqNo(0),
            rx: 0,
            unparsed: Vec::new(),
            server_fin: false,
            rto_at: Some(now),
            backoff: 0,
            recover: 0,
            quiet_until: 0,
            sack: plan.sack,
            sacked: Vec::new(),
            filled: None,
            reduced: false,
            ended_first: false,
        }
    }

    pub(super) fn rcv_nxt(&self) -> SeqNo {
        self.iss.unwrap_or_default().plus(1 + self.rx + u64::from(self.server_fin))
    }

    pub(super) fn end(&self) -> u64 {
        self.outgoing.len() as u64
    }

    pub fn is_done(&self) -> bool {
        self.server_fin && self.una == self.end() + 1
    }

    /// Whether it has sent a FIN.
    pub(super) fn has_ended(&self) -> bool {
        self.nxt == self.end() + 1
    }

    /// Whether only the ACK of this side's FIN is missing (RFC 9293 §3.3.2).
    fn is_last_ack(&self) -> bool {
        self.server_fin && self.nxt == self.end() + 1
    }

    /// The receive window in bytes.
    fn window(&self) -> u64 {
        BUFFER.saturating_sub(if self.away { self.unparsed.len() as u64 } else { 0 })
    }

    pub(super) fn ack(&self, now: Ns) -> Packet {
        self.packet(now, self.nxt, ACK, &[])
    }

    pub(super) fn syn(&self, now: Ns, plan: &ClientPlan) -> Packet {
        let ecn = if plan.ecn { Flags::ECE | Flags::CWR } else { Flags::default() };
        let syn = self.packet(now, 0, Flags::SYN | ecn, &[]);
        let (window, wscale, sack_permitted) = (BUFFER as u16, self.rcv_wscale, self.sack);
        Packet { seq: self.irs, window, wscale, sack_permitted, ..syn }
    }

    fn packet(&self, now: Ns, from: u64, flags: Flags, payload: &[u8]) -> Packet {
        let window = (self.window() >> shift(self.rcv_wscale)).min(65535) as u16;
        Packet {
            key: self.key,
            seq: self.irs.plus(1 + from),
            ack: self.rcv_nxt(),
            flags: if self.iss.is_some() { flags | ACK } else { flags },
            window,
            wscale: NO_SCALING,
            sack_permitted: false,
            sack: SackBlocks::default(),
            tsval: (now / 1_000_000) as u32,
            ce: false,
            payload: payload.into(),
            id: 0,
            truth: Truth::default(),
            fin_truth: Truth::default(),
            is_dsack: false,
        }
    }

    /// A segment with the bytes `[from, until)`; the offset after the last byte is the FIN's.
    pub(super) fn data(&mut self, now: Ns, from: u64, until: u64) -> Packet {
        let end = self.end();
        let reduced = from < end && std::mem::take(&mut self.reduced);
        let flags = if until > end { Flags::FIN } else { ACK };
        let flags = if reduced { flags | Flags::CWR } else { flags };
        let bytes = &self.outgoing[from.min(end) as usize..until.min(end) as usize];
        self.packet(now, from, flags, bytes)
    }

    pub(super) fn push(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if self.iss.is_none() {
            return;
        }
        let limit = self.end().min(self.edge);
        while self.nxt < limit {
            let until = limit.min(self.nxt + SEGMENT_MAX);
            out.push(self.data(now, self.nxt, until));
            self.nxt = until;
        }
        if self.finishing && self.nxt == self.end() {
            out.push(self.data(now, self.nxt, self.nxt + 1));
            self.nxt += 1;
        }
        let waits = self.una < self.nxt || self.nxt < self.end();
        if waits && self.rto_at.is_none() {
            self.rto_at = Some(now + RTO_MIN);
        }
    }

    pub(super) fn on_timer(
        &mut self,
        now: Ns,
        plan: &ClientPlan,
        rng: &mut Rng,
        out: &mut Vec<Packet>,
    ) {
        if self.backoff == RETRIES_MAX && self.is_last_ack() && self.una == self.end() {
            // As with `tcp_orphan_retries`: a connection whose program has closed it waits no
            // longer.
            self.una = self.nxt;
            self.rto_at = None;
            return;
        }
        self.backoff = (self.backoff + 1).min(RETRIES_MAX);
        let patient = plan.patient && self.iss.is_none();
        let wait = if patient { RTO_MAX } else { (RTO_MIN << self.backoff).min(RTO_MAX) };
        self.rto_at = Some(now + wait);
        if self.iss.is_none() {
            out.push(self.syn(now, plan));
        } else if self.una < self.nxt {
            // The receiver may have discarded SACKed data since (RFC 2018 §8).
            self.sacked.clear();
            self.recover = self.nxt;
            self.repeat(now, plan, rng, out);
        } else if self.nxt < self.end() {
            // A zero-window probe: an old sequence number, which must be answered.
            out.push(Packet { seq: self.irs.plus(self.una), ..self.ack(now) });
        } else {
            self.rto_at = None;
        }
    }

    /// Retransmits data in other cuts than the first time, so that segments overlap; a liar sends
    /// other bytes than before.
    fn repeat(&mut self, now: Ns, plan: &ClientPlan, rng: &mut Rng, out: &mut Vec<Packet>) {
        let mut at = self.una;
        for _ in 0..BURST {
            if at < self.recover {
                let until = (at + 1 + rng.below(2 * SEGMENT_MAX)).min(self.recover);
                let mut p = self.data(now, at, until);
                if plan.lies && rng.one_in(2) {
                    self.change_filler(at, &mut p);
                }
                out.push(p);
                at = until;
            }
        }
    }

    /// Flips filler bytes; the framing of requests stays intact.
    fn change_filler(&self, from: u64, p: &mut Packet) {
        let mut payload = p.payload.to_vec();
        let mut start = 0;
        for request in &self.requests {
            let end = start + crate::app::REQUEST_HEADER + usize::from(request.filler);
            for at in start + crate::app::REQUEST_HEADER..end {
                if let Some(byte) = at.checked_sub(from as usize).and_then(|i| payload.get_mut(i)) {
                    *byte ^= 0x55;
                }
            }
            start = end;
        }
        p.payload = payload.into();
    }

    pub(super) fn receive(&mut self, now: Ns, p: &Packet, out: &mut Vec<Packet>) -> Took {
        let Some(iss) = self.iss else { return self.receive_first(now, p, out) };
        if p.is(Flags::RST) {
            // RFC 5961 §3.2. In LAST-ACK a reset only means that the other end is done.
            let last_ack = self.is_last_ack();
            if last_ack {
                self.una = self.nxt;
            }
            let exact = p.seq == self.rcv_nxt();
            return if exact && !last_ack { Took::Reset } else { Took::Nothing };
        }
        let next = self.rx + u64::from(self.server_fin);
        let start = next as i64 + i64::from(p.seq.since(iss.plus(1 + next)));
        let end = start + p.payload.len() as i64 + i64::from(p.is(Flags::FIN));
        let window = self.window();
        if end < next as i64 || start > (next + window) as i64 || p.is(Flags::SYN) {
            // Two ends that disagree must not answer each other forever.
            if p.len() > 0 || now >= self.quiet_until {
                self.quiet_until = now + CHALLENGE_PAUSE;
                out.push(self.ack(now));
            }
            return Took::Nothing;
        }
        let una = self.una;
        self.take_ack(now, p);
        let progress = self.una > una;
        let mut took = Took::Nothing;
        if start <= next as i64 && end > next as i64 && !self.server_fin {
            let skip = (next as i64 - start) as usize;
            let fresh = p.payload.get(skip..).unwrap_or_default();
            let taken = fresh.len().min(window as usize);
            self.unparsed.extend(&fresh[..taken]);
            self.rx += taken as u64;
            self.server_fin |= p.is(Flags::FIN) && taken == fresh.len();
            took = Took::Bytes;
        }
        if p.len() > 0 {
            out.push(self.ack(now));
        }
        if progress {
            self.repeat_if_recovering(now, out);
        }
        self.fill_hole(now, out);
        took
    }

    fn receive_first(&mut self, now: Ns, p: &Packet, out: &mut Vec<Packet>) -> Took {
        if p.is(Flags::RST) {
            // RFC 9293 §3.10.7.3: only the answer to this SYN refuses it.
            let refused = p.is(ACK) && p.ack == self.irs.plus(1);
            return if refused { Took::Reset } else { Took::Nothing };
        }
        if !p.is(Flags::SYN) || p.ack != self.irs.plus(1) {
            // RFC 9293 §3.10.7.3: an ACK of something else is answered with a reset.
            if p.is(ACK) && !p.is(Flags::RST) && p.ack != self.irs.plus(1) {
                out.push(Packet { seq: p.ack, flags: Flags::RST, ..self.ack(now) });
            }
            return Took::Nothing;
        }
        self.iss = Some(p.seq);
        self.wl1 = p.seq;
        self.edge = u64::from(p.window);
        self.snd_wscale = p.wscale;
        self.sack &= p.sack_permitted;
        if p.wscale == NO_SCALING {
            self.rcv_wscale = NO_SCALING;
        }
        self.rto_at = None;
        self.backoff = 0;
        out.push(self.ack(now));
        Took::Nothing
    }

    fn take_ack(&mut self, now: Ns, p: &Packet) {
        let acked = i64::from(p.ack.since(self.irs.plus(1)));
        let Ok(acked) = u64::try_from(acked) else { return };
        if acked > self.nxt {
            return;
        }
        if acked > self.una {
            self.una = acked;
            self.backoff = 0;
            let waits = self.una < self.nxt || self.nxt < self.end();
            self.rto_at = waits.then_some(now + RTO_MIN);
        }
        self.reduced |= p.is(Flags::ECE);
        self.note_sack(p, acked);
        if acked == self.una && !self.wl1.after(p.seq) {
            self.wl1 = p.seq;
            let window = u64::from(p.window) << shift(self.snd_wscale);
            // A server's right edge does not move left (within less than a unit of its scale).
            self.edge = self.edge.max(acked + window);
        }
    }

    /// Notes the server's SACK blocks above the ACK. A block below the ACK, or inside the next
    /// block, only reports a duplicate (RFC 2883 §4).
    fn note_sack(&mut self, p: &Packet, acked: u64) {
        let offset = |seq: SeqNo| seq.offset_near(self.irs.plus(1), acked);
        let blocks = p.sack.as_slice().iter().map(|(left, right)| (offset(*left), offset(*right)));
        let above = blocks.filter(|(left, right)| *left > acked && *right <= self.end());
        let blocks: Vec<(u64, u64)> = above.collect();
        if let Some(highest) = blocks.into_iter().max_by_key(|(_, right)| *right) {
            self.sacked.push(highest);
        }
        let una = self.una;
        self.sacked.retain(|(_, right)| *right > una);
    }

    /// Retransmits, once, the hole before the first SACKed range.
    fn fill_hole(&mut self, now: Ns, out: &mut Vec<Packet>) {
        let Some(left) = self.sacked.iter().map(|(left, _)| *left).min() else { return };
        if left > self.una && self.filled != Some(self.una) {
            self.filled = Some(self.una);
            let until = left.min(self.una + SEGMENT_MAX);
            out.push(self.data(now, self.una, until));
        }
    }

    fn is_sacked(&self, at: u64) -> bool {
        self.sacked.iter().any(|(left, right)| (*left..*right).contains(&at))
    }

    /// After a timeout, retransmits more with each ACK, except what was SACKed since.
    fn repeat_if_recovering(&mut self, now: Ns, out: &mut Vec<Packet>) {
        let mut at = self.una;
        for _ in 0..2 {
            if at < self.recover {
                let until = (at + SEGMENT_MAX).min(self.recover);
                if !self.is_sacked(at) {
                    out.push(self.data(now, at, until));
                }
                at = until;
            }
        }
    }
}
