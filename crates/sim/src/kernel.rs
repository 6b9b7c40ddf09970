//! The model of a member's TCP: takes segments in order, advertises a window whose right edge
//! never moves left, sends within the client's window, and retransmits by a timer that backs off.

use crate::Ns;
use crate::beyond::Beyond;
use crate::packet::{ACK, NO_SCALING, Packet, Truth, shift};
use holdfast_member::primary::{Earlier, Unacked};
use holdfast_replica::primary::Peeked;
use holdfast_replica::promotion::Restore;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, SackBlocks};
use holdfast_wire::seq::SeqNo;
use std::collections::VecDeque;

pub const SEGMENT_MAX: u64 = 200;
/// Time in ns within which only one empty out-of-window segment is answered (as by Linux'
/// `tcp_invalid_ratelimit`).
pub const CHALLENGE_PAUSE: Ns = 100_000_000;
const RTO_MIN: Ns = 40_000_000;
const RTO_MAX: Ns = 1_000_000_000;
/// Most segments that are retransmitted at a time.
const BURST: usize = 8;
/// Send buffer in bytes: beyond it a write is accepted in part.
const SEND_BUFFER: u64 = 4000;

/// Time in ns for which an unanswered SYN-ACK is remembered: five retransmissions (Linux'
/// `tcp_synack_retries`).
const HANDSHAKE: Ns = 63_000_000_000;
/// The same if half of the listener's queue is full: two (Linux' `reqsk_timer_handler`).
const HANDSHAKE_CROWDED: Ns = 7_000_000_000;

/// Number that is unique among all sockets that a four-tuple ever had, as SO_COOKIE is.
pub fn cookie(iss: SeqNo, irs: SeqNo) -> u64 {
    u64::from(iss.0) << 32 | u64::from(irs.0)
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Socket {
    pub key: ConnKey,
    pub iss: SeqNo,
    pub irs: SeqNo,
    /// The server's accept number.
    pub accept: Option<u32>,
    pub established: bool,
    opened: Ns,
    /// Stream offset of the first byte in `unread`.
    pub read: u64,
    pub unread: VecDeque<u8>,
    pub client_fin: bool,
    /// Stream offset of the right edge that was advertised.
    edge: u64,
    buffer: u64,
    pub rcv_wscale: u8,
    snd_wscale: u8,
    pub snd_una: u64,
    pub snd_nxt: u64,
    /// Highest offset ever sent: after a timeout `snd_nxt` goes back.
    snd_max: u64,
    /// Output from stream offset `out_from` on.
    out: VecDeque<u8>,
    out_from: u64,
    /// What parts of the output depend on, each with the offset at which its part ends.
    marks: VecDeque<(u64, Truth)>,
    fin: Option<Truth>,
    fin_sent: bool,
    pub fin_acked: bool,
    peer_window: u64,
    wl1: SeqNo,
    ts_recent: Option<u32>,
    tsval: (u32, Ns),
    rto_at: Option<Ns>,
    backoff: u32,
    quiet_until: Ns,
    /// Whether both sides have permitted SACK; only then are bytes beyond a hole kept.
    sack: bool,
    beyond: Beyond,
    /// Range that came twice, for a D-SACK in the next ACK (RFC 2883).
    twice: Option<(u64, u64)>,
    /// Whether both sides use ECN (RFC 3168 §6.1.1). A rebuilt socket never does.
    ecn: bool,
    /// Whether ACKs carry ECE, because the client has not reacted to congestion yet (RFC 3168
    /// §6.1.3).
    congested: bool,
    /// Whether the server has closed it.
    pub orphan: bool,
    pub reset: bool,
    /// Whether this side closed first: once over, the socket stays in TIME-WAIT and only answers.
    pub time_wait: bool,
}

impl Socket {
    /// The socket that answers a SYN.
    pub fn new(syn: &Packet, iss: SeqNo, wscale: u8, buffer: u64, now: Ns) -> Self {
        let scaled = syn.wscale != NO_SCALING;
        Self {
            key: syn.key,
            iss,
            irs: syn.seq,
            accept: None,
            established: false,
            opened: now,
            read: 0,
            unread: VecDeque::new(),
            client_fin: false,
            edge: buffer.min(65535),
            buffer,
            rcv_wscale: if scaled { wscale } else { NO_SCALING },
            snd_wscale: if wscale == NO_SCALING { NO_SCALING } else { syn.wscale },
            snd_una: 0,
            snd_nxt: 0,
            snd_max: 0,
            out: VecDeque::new(),
            out_from: 0,
            marks: VecDeque::new(),
            fin: None,
            fin_sent: false,
            fin_acked: false,
            peer_window: u64::from(syn.window),
            wl1: syn.seq,
            ts_recent: Some(syn.tsval),
            // One timestamp clock for all connections of a four-tuple, as Linux has it.
            tsval: (1000 + (now / 1_000_000) as u32, now),
            rto_at: None,
            backoff: 0,
            quiet_until: 0,
            sack: syn.sack_permitted,
            beyond: Beyond::default(),
            twice: None,
            ecn: syn.is(Flags::ECE | Flags::CWR),
            congested: false,
            orphan: false,
            reset: false,
            time_wait: false,
        }
    }

    /// A socket as TCP_REPAIR rebuilds it; `kept` is the output `[snd_una, out_end)`. The client's
    /// FIN is injected afterwards.
    pub fn restore(r: &Restore<'_>, kept: &[u8], truth: Truth, buffer: u64, now: Ns) -> Self {
        let origin = r.record.irs.plus(1);
        let unread: VecDeque<u8> = r.unread.concat().into();
        // Streams of the simulation are far shorter than 2^31.
        let read = u64::from(r.recv_start.since(origin).unsigned_abs());
        let edge = u64::from(r.right_edge.since(origin).unsigned_abs());
        Self {
            key: r.record.key,
            iss: r.record.iss,
            irs: r.record.irs,
            accept: r.accept,
            established: true,
            opened: now,
            read,
            edge,
            unread,
            client_fin: r.closing.client_fin,
            buffer,
            rcv_wscale: r.record.rcv_wscale,
            snd_wscale: r.record.snd_wscale,
            snd_una: r.snd_una_offset,
            snd_nxt: r.in_flight_end,
            snd_max: r.in_flight_end,
            out: kept.iter().copied().collect(),
            out_from: r.snd_una_offset,
            marks: VecDeque::from([(r.out_end, truth)]),
            fin: r.closing.server_fin.then_some(truth),
            fin_sent: r.closing.server_fin_acked,
            fin_acked: r.closing.server_fin_acked,
            peer_window: u64::from(r.peer_window_bytes),
            wl1: r.rcv_nxt,
            ts_recent: r.client_tsval,
            tsval: (r.tsval.unwrap_or(1000), now),
            rto_at: (r.in_flight_end > r.snd_una_offset).then_some(now),
            backoff: 0,
            quiet_until: 0,
            sack: r.record.sack,
            beyond: Beyond::default(),
            twice: None,
            ecn: false,
            congested: false,
            orphan: r.closing.orphan,
            reset: false,
            time_wait: false,
        }
    }

    /// Offset of the next byte, or FIN, that is expected.
    pub fn received(&self) -> u64 {
        self.read + self.unread.len() as u64 + u64::from(self.client_fin)
    }

    pub fn out_end(&self) -> u64 {
        self.out_from + self.out.len() as u64
    }

    /// snd_una, as the gate asks the kernel for it; an acknowledged FIN counts.
    pub fn snd_una_seq(&self) -> SeqNo {
        self.iss.plus(1 + self.snd_una + u64::from(self.fin_acked))
    }

    fn advertise(&mut self) -> u16 {
        let free = self.buffer.saturating_sub(self.unread.len() as u64);
        let at = self.received();
        // In whole units (RFC 7323 §2.3), rounded up where the edge would move left.
        let unit = shift(self.rcv_wscale);
        let open = (free.min(65535 << unit) >> unit) << unit;
        let wanted = self.edge.max(at + open) - at;
        let window = wanted.div_ceil(1 << unit).min(65535);
        self.edge = self.edge.max(at + (window << unit));
        window as u16
    }

    fn packet(&mut self, now: Ns, seq: SeqNo, flags: Flags, payload: &[u8]) -> Packet {
        let is_dsack = self.twice.is_some();
        let agrees = flags.has(Flags::SYN) && self.ecn;
        let notice = if self.congested || agrees { Flags::ECE } else { Flags::default() };
        Packet {
            key: self.key,
            seq,
            ack: self.irs.plus(1 + self.received()),
            flags: flags | ACK | notice,
            window: self.advertise(),
            wscale: NO_SCALING,
            sack_permitted: false,
            sack: self.report(),
            ce: false,
            tsval: self.tsval.0.wrapping_add(((now - self.tsval.1) / 1_000_000) as u32),
            payload: payload.into(),
            id: 0,
            truth: Truth::default(),
            fin_truth: Truth::default(),
            is_dsack,
        }
    }

    /// SACK blocks for the next ACK: a D-SACK, once, and what lies beyond a hole.
    fn report(&mut self) -> SackBlocks {
        let mut sack = SackBlocks::default();
        if self.sack {
            let beyond = self.beyond.blocks();
            for (left, right) in self.twice.take().into_iter().chain(beyond) {
                sack.push(self.irs.plus(1 + left), self.irs.plus(1 + right));
            }
        }
        sack
    }

    pub fn syn_ack(&mut self, now: Ns) -> Packet {
        let window = self.buffer.min(65535) as u16;
        let wscale = self.rcv_wscale;
        let (seq, sack_permitted) = (self.iss, self.sack);
        Packet { window, wscale, sack_permitted, ..self.packet(now, seq, Flags::SYN, &[]) }
    }

    pub fn ack(&mut self, now: Ns) -> Packet {
        let seq = self.iss.plus(1 + self.snd_nxt + u64::from(self.fin_sent));
        self.packet(now, seq, ACK, &[])
    }

    /// Takes one segment (RFC 9293 §3.10.7.4); true if an ACK is due.
    pub fn receive(&mut self, now: Ns, p: &Packet) -> bool {
        let next = self.received();
        // Signed offsets: a segment may start before the stream does.
        let start = next as i64 + i64::from(p.seq.since(self.irs.plus(1 + next)));
        let end = start + p.payload.len() as i64 + i64::from(p.is(Flags::FIN));
        if p.is(Flags::RST) {
            // Linux also accepts a reset at the number of a received FIN: so do clients reset that
            // have closed a socket whose FIN is under way (`tcp_reset_check`).
            let before_fin = self.client_fin && start + 1 == next as i64;
            self.reset |= start == next as i64 || before_fin;
            return false;
        }
        self.congested = self.ecn && ((self.congested && !p.is(Flags::CWR)) || p.ce);
        let old = self.ts_recent.is_some_and(|recent| recent.wrapping_sub(p.tsval) as i32 > 1);
        if self.sack && !p.payload.is_empty() && end <= next as i64 {
            self.twice = u64::try_from(start).ok().map(|start| (start, end as u64));
        }
        if old || start > self.edge as i64 || (end < next as i64) {
            let answers = p.len() > 0 || now >= self.quiet_until;
            self.quiet_until = if answers { now + CHALLENGE_PAUSE } else { self.quiet_until };
            return answers;
        }
        if start <= next as i64
            && self.ts_recent.is_none_or(|r| p.tsval.wrapping_sub(r) as i32 >= 0)
        {
            self.ts_recent = Some(p.tsval);
        }
        if !p.is(ACK) || !self.take_ack(now, p) {
            return p.len() > 0;
        }
        self.established = true;
        if start > next as i64 || end <= next as i64 || self.client_fin {
            if self.sack && start > next as i64 && !self.client_fin {
                self.beyond.keep(start as u64, self.edge, p);
            }
            return p.len() > 0;
        }
        let skip = (next as i64 - start) as usize;
        let room = (self.edge - next) as usize;
        let fresh = p.payload.get(skip..).unwrap_or_default();
        let taken = fresh.len().min(room);
        self.unread.extend(&fresh[..taken]);
        self.client_fin |= p.is(Flags::FIN) && taken == fresh.len();
        if !self.client_fin {
            let (bytes, ends) = self.beyond.take(self.received());
            self.unread.extend(bytes);
            self.client_fin = ends;
        }
        true
    }

    /// Takes an ACK; false if it acknowledges what was never sent.
    fn take_ack(&mut self, now: Ns, p: &Packet) -> bool {
        let acked = i64::from(p.ack.since(self.iss.plus(1)));
        let sent = self.snd_max + u64::from(self.fin_sent);
        if acked > sent as i64 {
            return false;
        }
        // In SYN-RECEIVED only an ACK of the SYN-ACK counts.
        let Ok(acked) = u64::try_from(acked) else { return self.established };
        if acked > self.snd_una + u64::from(self.fin_acked) {
            self.fin_acked |= acked > self.out_end();
            self.snd_una = acked.min(self.out_end());
            self.snd_nxt = self.snd_nxt.max(self.snd_una);
            let drop = (self.snd_una - self.out_from).min(self.out.len() as u64) as usize;
            self.out.drain(..drop);
            self.out_from += drop as u64;
            while self.marks.len() > 1 && self.marks[0].0 <= self.snd_una {
                self.marks.pop_front();
            }
            self.backoff = 0;
            self.rto_at = self.is_waiting().then_some(now + RTO_MIN);
        }
        // RFC 9293 §3.10.7.4: older segments do not change the window.
        if !self.wl1.after(p.seq) {
            self.wl1 = p.seq;
            self.peer_window = u64::from(p.window) << shift(self.snd_wscale);
        }
        true
    }

    fn is_waiting(&self) -> bool {
        let unsent_fin = self.fin.is_some() && !self.fin_acked;
        self.established && (self.snd_una < self.out_end() || unsent_fin)
    }

    /// Output that the client has not acknowledged; a FIN counts as one byte, as in Linux.
    pub fn unacked(&self) -> Unacked {
        let end = self.fin.is_some() && !self.fin_acked;
        let bytes = (self.out_end() - self.snd_una) as u32 + u32::from(end);
        let window_closed = bytes > 0 && self.peer_window == 0;
        Unacked { bytes, repeats: self.backoff as u8, window_closed }
    }

    /// All output in its send buffer.
    pub fn earlier(&self) -> Earlier {
        let socket = cookie(self.iss, self.irs);
        let from = self.iss.plus(1 + self.out_from);
        Earlier { socket, from, bytes: self.out.iter().copied().collect() }
    }

    /// When [`Self::on_timer`] is due.
    pub fn timer(&self) -> Option<Ns> {
        self.rto_at.filter(|_| self.is_waiting() && !self.reset)
    }

    /// Bytes that a write can place in the send buffer now.
    pub fn room(&self) -> u64 {
        SEND_BUFFER.saturating_sub(self.out.len() as u64)
    }

    pub fn write(&mut self, bytes: &[u8], truth: Truth) {
        self.out.extend(bytes);
        self.marks.push_back((self.out_end(), truth));
    }

    /// Ends the server's sending side.
    pub fn shutdown(&mut self, truth: Truth) {
        if self.fin.is_none() {
            self.time_wait = !self.client_fin;
            self.fin = Some(truth);
        }
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.unread.drain(..len).collect();
        self.read += bytes.len() as u64;
        bytes
    }

    /// Bytes of `[from, until)` in the receive queue, read through a duplicate of the descriptor.
    pub fn peek(&self, from: u64, until: u64, into: &mut Vec<u8>) -> Peeked {
        let end = self.read + self.unread.len() as u64;
        if self.reset || self.orphan || from < self.read || from > end {
            return Peeked::Nothing;
        }
        let until = until.clamp(from, end);
        let at = (from - self.read) as usize..(until - self.read) as usize;
        into.clear();
        into.extend(self.unread.range(at));
        match (self.client_fin && until == end, into.is_empty()) {
            (true, _) => Peeked::Last,
            (false, true) => Peeked::Nothing,
            (false, false) => Peeked::Bytes,
        }
    }

    /// Sends what is new, as far as the client's window allows.
    pub fn push(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if !self.established {
            return;
        }
        let limit = self.out_end().min(self.snd_una + self.peer_window);
        while self.snd_nxt < limit {
            let until = limit.min(self.snd_nxt + SEGMENT_MAX);
            out.push(self.data(now, self.snd_nxt, until));
            self.snd_nxt = until;
        }
        self.snd_max = self.snd_max.max(self.snd_nxt);
        self.end_sending(now, out);
        if self.is_waiting() && self.rto_at.is_none() {
            self.rto_at = Some(now + RTO_MIN);
        }
    }

    /// Sends the FIN once everything else is sent, unless the last segment carried it.
    fn end_sending(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if self.snd_nxt == self.out_end() && self.fin.is_some() && !self.fin_sent {
            self.fin_sent = true;
            if out.last().is_none_or(|last| !last.is(Flags::FIN)) {
                out.push(self.fin_packet(now));
            }
        }
    }

    /// A data segment; the last one carries the FIN if the stream has ended by now.
    fn data(&mut self, now: Ns, from: u64, until: u64) -> Packet {
        let fin = self.fin.filter(|_| until == self.out_end());
        let flags = fin.map_or(ACK, |_| Flags::FIN | ACK);
        let at = (from - self.out_from) as usize..(until - self.out_from) as usize;
        let bytes: Vec<u8> = self.out.range(at).copied().collect();
        let mark = self.marks.iter().find(|(end, _)| *end >= until).map(|(_, truth)| *truth);
        let seq = self.iss.plus(1 + from);
        let (truth, fin_truth) = (mark.unwrap_or_default(), fin.unwrap_or_default());
        Packet { truth, fin_truth, ..self.packet(now, seq, flags, &bytes) }
    }

    fn fin_packet(&mut self, now: Ns) -> Packet {
        let seq = self.iss.plus(1 + self.out_end());
        let fin_truth = self.fin.unwrap_or_default();
        Packet { fin_truth, ..self.packet(now, seq, Flags::FIN, &[]) }
    }

    /// Retransmits the oldest segments, or probes a closed window.
    pub fn on_timer(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if self.timer().is_none_or(|at| at > now) {
            return;
        }
        self.backoff = (self.backoff + 1).min(8);
        self.rto_at = Some(now + (RTO_MIN << self.backoff).min(RTO_MAX));
        let limit = self.out_end().min(self.snd_max).min(self.snd_una + self.peer_window);
        let mut at = self.snd_una;
        for _ in 0..BURST {
            if at < limit {
                let until = limit.min(at + SEGMENT_MAX);
                out.push(self.data(now, at, until));
                at = until;
            }
        }
        let has_fin = out.last().is_some_and(|last| last.is(Flags::FIN));
        self.fin_sent |= has_fin;
        if at == self.out_end() && self.fin_sent && !self.fin_acked && !has_fin {
            out.push(self.fin_packet(now));
        }
        if out.is_empty() {
            // A zero-window probe (RFC 9293 §3.8.6.1): an old sequence number, which must be
            // answered.
            let seq = self.iss.plus(self.snd_una);
            out.push(self.packet(now, seq, ACK, &[]));
        }
        self.push(now, out);
    }

    pub fn is_readable(&self, eof_seen: bool) -> bool {
        self.established && (!self.unread.is_empty() || (self.client_fin && !eof_seen))
    }

    /// Whether its SYN-ACK was not answered in time, by the host's clock. If that clock leaps
    /// ahead, the handshake ends at once; Linux, which counts retransmissions, would keep it.
    pub fn is_expired(&self, now: Ns, crowded: bool) -> bool {
        let life = if crowded { HANDSHAKE_CROWDED } else { HANDSHAKE };
        !self.established && now - self.opened > life
    }

    /// Whether `p` does not acknowledge its SYN-ACK (RFC 9293 §3.10.7.4).
    pub fn is_not_meant(&self, p: &Packet) -> bool {
        !self.established && p.is(ACK) && !p.is(Flags::RST) && p.ack != self.iss.plus(1)
    }

    /// Whether both ends of stream are acknowledged.
    pub fn is_over(&self) -> bool {
        self.reset || (self.client_fin && self.fin_acked)
    }
}
