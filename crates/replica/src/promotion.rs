//! Promotion of the backup: from what the log and the tap held, what the
//! clients answer, what the edge saw and what the replica wrote, to the exact
//! state of every socket that must be rebuilt (decisions 13 to 18).

mod settle;

pub use settle::{Closing, Discarded, Restore, Tell, Why};

use crate::earlier::Earlier;
use crate::limits::Limits;
use crate::segment::OwnedSegment;
use crate::tap::Tap;
use crate::{Nanos, Verdict};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, FlowBounds};
use holdfast_wire::packet::TcpPacket;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// Longest time for which a connection waits for its client's answer and the
/// edge's bounds.
pub const PROBE_WAIT: Nanos = Nanos::from_ms(20);
/// Additional time for each connection of which the edge's bounds may say that nothing is under way:
/// an edge reads, seals and sends them in a fifth of that.
pub const BOUNDS_WAIT_PER_CONN: Nanos = Nanos(10_000);
/// Round trip assumed for a client that was not asked, or has not answered in time, in ms.
pub const RTT_UNKNOWN_MS: u32 = 100;
/// Margin added to every TSval, in ms, so that it is above whatever the primary
/// sent.
pub const TSVAL_MARGIN_MS: u32 = 1000;
/// Most bytes of packets kept for re-injection after the sockets live; later
/// ones are left to the clients' retransmission.
pub const LATE_BYTES_MAX: usize = 16 << 20;
/// Most SYNs kept for the listeners; later ones are left to retransmission.
pub const LATE_SYNS_MAX: usize = 1024;

/// What the machine wants done; each connection gets exactly one verdict.
pub trait PromotionOutput {
    /// Rebuilds this socket.
    fn restore(&mut self, restore: &Restore<'_>);
    /// No socket is needed. If the
    /// client still waits, `tell` is to be sent once the service lives: the
    /// client's answer finds no socket, and the kernel's RST tells it.
    fn discard(&mut self, lost: &Discarded, tell: Option<Probe>);
    /// The client reset the connection: the server's descriptor answers ECONNRESET.
    fn reset(&mut self, conn: ConnId, accept: u32);
    /// The replica contradicts what clients hold. It must never be promoted;
    /// nothing more is restored.
    fn diverged(&mut self, reason: &Diverged);
}

/// How a replica contradicts the primary (law L5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Diverged {
    /// Edge and gate have seen more pass than was written: the word of a client
    /// proves nothing.
    #[error("connection {conn:?}: the client may hold {held} bytes, the replica wrote {written}")]
    Output { conn: ConnId, held: u64, written: u64 },
    #[error("connection {conn:?}: the log says {logged} bytes were read, the replica read {read}")]
    Input { conn: ConnId, logged: u64, read: u64 },
}

/// A packet that makes the client tell its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub conn: ConnId,
    pub key: ConnKey,
    pub seq: SeqNo,
    pub ack: SeqNo,
    /// A repeated SYN-ACK, with the options of [`record`](Self::record).
    pub syn: bool,
    /// One byte that the client has long acknowledged; none on a SYN-ACK.
    pub payload: Option<u8>,
    pub tsval: Option<u32>,
    /// Window field: the right edge stays where the client knows it (law L4).
    pub window: u16,
    pub record: ConnRecord,
}

/// One connection of the parked replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestConn {
    /// Accept number.
    pub accept: u32,
    /// Whether the server holds a descriptor.
    pub open: bool,
    pub fd: i32,
    /// Stream bytes read and written by the replica.
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Oldest retained output, as a stream offset.
    pub keep_from: u64,
    /// How the server shut the connection down: 1 = its sending side, 2 = its
    /// receiving side.
    pub shut: u32,
    /// Whether the server has seen the client's end of stream.
    pub eof: bool,
}

/// The state of one connection that
/// [`Backup::plan`](crate::backup::Backup::plan) hands over.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) id: ConnId,
    pub(crate) record: ConnRecord,
    pub(crate) accept: Option<u32>,
    /// Whether a newer connection took the four-tuple: the client has then given
    /// this one up.
    pub(crate) replaced: bool,
    pub(crate) in_bytes: u64,
    /// How much the server wrote, by its log.
    pub(crate) out_bytes: u64,
    pub(crate) closed: bool,
    pub(crate) snd_una: u64,
    /// Stream offset before which the client will not send anything again.
    pub(crate) told: u64,
    /// Output from before this member had a replica.
    pub(crate) earlier: Earlier,
    pub(crate) tsval: Option<(u32, Nanos)>,
    pub(crate) tap: Tap,
}

#[derive(Debug)]
struct Conn {
    planned: Planned,
    bounds: Option<FlowBounds>,
    asked: Asked,
    /// Time until the first answer in ms, once it is here.
    answered_ms: Option<u32>,
    settled: bool,
}

/// Whether a client is asked how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Not if it has all that was written, which the edge's bounds may say.
    Perhaps,
    /// Nothing is under way in either direction.
    Never,
    At(Nanos),
}

/// The machine of a promotion; see the module.
///
/// # Contract
/// * Send [`probes`](Self::probes) once the edge has granted; all go out at once. Send
///   [`further_probes`](Self::further_probes) after everything that is fed.
/// * Then feed `handle_segment` (every client packet that now arrives, pure
///   ACKs included), `handle_bounds` (from the edge) and `handle_manifest` (once
///   the replica is parked), in any order. Verdicts leave through `out`
///   connection by connection; none waits for another.
/// * Sleep no longer than until [`next_deadline`](Self::next_deadline), then
///   call `handle_timeout`.
/// * When [`is_done`](Self::is_done), and the sockets and listeners live,
///   re-inject [`take_late`](Self::take_late), then [`take_syns`](Self::take_syns).
#[derive(Debug)]
pub struct Promotion {
    conns: BTreeMap<ConnId, Conn>,
    by_key: BTreeMap<ConnKey, ConnId>,
    manifest: Option<BTreeMap<u32, ManifestConn>>,
    bounds_complete: bool,
    /// When the first were asked.
    begun: Option<Nanos>,
    deadline: Option<Nanos>,
    waited: bool,
    /// Clients that are to be asked besides.
    further: Vec<ConnId>,
    diverged: bool,
    /// A client that holds what the replica did not write loses its connection alone.
    may_lose: bool,
    late: VecDeque<Vec<u8>>,
    late_bytes: usize,
    syns: VecDeque<OwnedSegment>,
    limits: Limits,
}

impl Promotion {
    pub(crate) fn new(planned: Vec<Planned>, syns: VecDeque<OwnedSegment>, limits: Limits) -> Self {
        let by_key = planned.iter().filter(|p| !p.replaced).map(|p| (p.record.key, p.id)).collect();
        let conns = planned
            .into_iter()
            .map(|planned| {
                let (bounds, asked, answered_ms) = (None, Asked::Perhaps, None);
                (planned.id, Conn { planned, bounds, asked, answered_ms, settled: false })
            })
            .collect();
        Self {
            conns,
            by_key,
            manifest: None,
            bounds_complete: false,
            begun: None,
            deadline: None,
            waited: false,
            further: Vec::new(),
            diverged: false,
            may_lose: false,
            late: VecDeque::new(),
            late_bytes: 0,
            syns,
            limits,
        }
    }

    /// Clients of a primary that did not wait for all may know of more than came here: that
    /// ends their connections, and says nothing against the replica (decision 32).
    #[must_use]
    pub fn after(mut self, buffering: Buffering) -> Self {
        self.may_lose = buffering.may_lose();
        if !buffering.holds_acks() {
            for Conn { planned, .. } in self.conns.values_mut() {
                planned.told = planned.told.max(planned.tap.acknowledged());
            }
        }
        self
    }

    /// The packets that ask clients at once, but for those who may have nothing to tell; the wait
    /// starts now.
    pub fn probes(&mut self, now: Nanos) -> Vec<Probe> {
        // From here on only answers count: what was acknowledged before may have
        // been forged, and `snd_una` has what the kernel took of it. An earlier
        // RST had the next number of the stream held here, which need not have
        // been that of the primary's kernel; a client that has reset says so
        // again.
        for conn in self.conns.values_mut() {
            let Planned { tap, out_bytes, .. } = &conn.planned;
            conn.asked = match conn.planned.may_be_at_rest() {
                false => Asked::At(now),
                true if tap.acked == *out_bytes => Asked::Never,
                true => Asked::Perhaps,
            };
            if conn.asked != Asked::Never {
                conn.planned.tap.acked = conn.planned.snd_una;
            }
            conn.planned.tap.reset = false;
        }
        self.begun = Some(now);
        let waits = self.conns.values().filter(|conn| conn.asked == Asked::Perhaps).count() as u64;
        self.deadline = Some(now.plus(PROBE_WAIT).plus(Nanos(waits * BOUNDS_WAIT_PER_CONN.0)));
        let asked = |conn: &&Conn| !conn.is_over() && conn.asked == Asked::At(now);
        self.conns.values().filter(asked).map(|conn| conn.probe(now)).collect()
    }

    /// The packets that ask clients of whom it has turned out by now that they have something to
    /// tell; the wait for all starts anew if there are any.
    pub fn further_probes(&mut self, now: Nanos) -> Vec<Probe> {
        let further = std::mem::take(&mut self.further);
        let open = further.iter().filter_map(|id| self.conns.get(id).filter(|conn| !conn.settled));
        let probes: Vec<Probe> = open.map(|conn| conn.probe(now)).collect();
        if !probes.is_empty() {
            self.deadline = Some(now.plus(PROBE_WAIT));
        }
        probes
    }

    /// A client's packet: an answer, data that is still missing, or something
    /// to re-inject once the socket lives.
    pub fn handle_segment(
        &mut self,
        now: Nanos,
        segment: &TcpPacket<'_>,
        out: &mut impl PromotionOutput,
    ) {
        let conn =
            self.by_key.get(&segment.client_to_server_key()).and_then(|id| self.conns.get_mut(id));
        if segment.is_opening() {
            if conn.is_none_or(|conn| conn.planned.record.irs != segment.seq) {
                self.keep_syn(segment);
            }
            return;
        }
        let Some(conn) = conn else { return };
        if conn.settled {
            self.keep_late(segment);
            return;
        }
        if conn.acknowledges_unsent(segment) {
            return;
        }
        let verdict = conn.planned.tap.accept(now, segment);
        if verdict.is_acceptable() && segment.is_ack() {
            let took_ms = match conn.asked {
                Asked::At(at) => now.since(at).as_ms() as u32 + 1,
                Asked::Never | Asked::Perhaps => RTT_UNKNOWN_MS,
            };
            conn.answered_ms.get_or_insert(took_ms);
        }
        if conn.has_answered() || verdict == Verdict::Reset {
            let id = conn.planned.id;
            self.settle_one(now, id, out);
        }
    }

    /// Takes the bounds that the edge has seen; `last` if no more are to come.
    pub fn handle_bounds(
        &mut self,
        now: Nanos,
        flows: &[FlowBounds],
        last: bool,
        out: &mut impl PromotionOutput,
    ) {
        let mut told = Vec::new();
        for bounds in flows {
            // Bounds of an earlier life of the four-tuple say nothing about this
            // one.
            if let Some(conn) = self.by_key.get(&bounds.key).and_then(|id| self.conns.get_mut(id))
                && bounds.iss.is_none_or(|iss| iss == conn.planned.record.iss)
            {
                conn.bounds = Some(*bounds);
                self.further.extend(conn.find_rest(now));
                told.push(conn.planned.id);
            }
        }
        if last {
            self.bounds_complete = true;
            let rest = self.conns.values_mut().filter_map(|conn| conn.find_rest(now));
            self.further.extend(rest);
            self.deadline = self.last_asked().map(|at| at.plus(PROBE_WAIT));
            return self.settle_all(now, out);
        }
        // Of ten thousand connections they come in many parts.
        self.deadline = self.deadline.map(|deadline| deadline.max(now.plus(PROBE_WAIT)));
        for id in told {
            self.settle_one(now, id, out);
        }
    }

    /// When somebody was asked for the last time, if anybody could be by now.
    fn last_asked(&self) -> Option<Nanos> {
        let asked = |conn: &Conn| match conn.asked {
            Asked::At(at) => Some(at),
            Asked::Perhaps | Asked::Never => None,
        };
        self.conns.values().filter_map(asked).chain(self.begun).max()
    }

    /// Accept numbers of all connections that the server has accepted.
    #[must_use]
    pub fn accepts(&self) -> Vec<u32> {
        self.conns.values().filter_map(|conn| conn.planned.accept).collect()
    }

    /// Takes the state of the parked replica: what it holds, read and wrote.
    pub fn handle_manifest(
        &mut self,
        now: Nanos,
        conns: &[ManifestConn],
        out: &mut impl PromotionOutput,
    ) {
        self.manifest = Some(conns.iter().map(|conn| (conn.accept, *conn)).collect());
        self.settle_all(now, out);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.deadline.filter(|_| !self.waited)
    }

    /// Restores clients that did not answer from the bounds; asks those of whom the edge says
    /// nothing.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut impl PromotionOutput) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let unknown = self.conns.values_mut().filter_map(|conn| conn.find_rest(now));
        let unknown: Vec<ConnId> = unknown.collect();
        self.waited = unknown.is_empty();
        self.further.extend(unknown);
        if self.waited {
            self.settle_all(now, out);
        }
    }

    /// Whether every connection has its verdict. Never true after divergence.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.diverged && self.manifest.is_some() && self.conns.values().all(|conn| conn.settled)
    }

    /// Packets of restored connections that came after their verdict, in order.
    pub fn take_late(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        self.late_bytes = 0;
        std::mem::take(&mut self.late).into_iter()
    }

    /// SYNs that nobody answered, for the listeners.
    pub fn take_syns(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        std::mem::take(&mut self.syns).into_iter().map(OwnedSegment::into_raw)
    }

    fn keep_syn(&mut self, segment: &TcpPacket<'_>) {
        let key = segment.client_to_server_key();
        let same = |syn: &OwnedSegment| syn.key() == key && syn.view().seq == segment.seq;
        if self.syns.len() < self.limits.late_syns_max && !self.syns.iter().any(same) {
            self.syns.push_back(OwnedSegment::new(segment));
            let max = self.limits.late_syns_max;
            assert!(self.syns.len() <= max, "L6: more SYNs than the limit");
        }
    }

    fn keep_late(&mut self, segment: &TcpPacket<'_>) {
        let matters = !segment.payload.is_empty() || segment.is_fin() || segment.is_rst();
        let max = self.limits.late_bytes_max;
        if matters && self.late_bytes + segment.raw.len() <= max {
            self.late_bytes += segment.raw.len();
            assert!(self.late_bytes <= max, "L6: more late packets than the limit");
            self.late.push_back(segment.raw.to_vec());
        }
    }

    fn settle_all(&mut self, now: Nanos, out: &mut impl PromotionOutput) {
        let ids: Vec<_> =
            self.conns.values().filter(|conn| !conn.settled).map(|conn| conn.planned.id).collect();
        for id in ids {
            self.settle_one(now, id, out);
        }
    }

    /// Gives the connection its verdict if enough is known.
    fn settle_one(&mut self, now: Nanos, id: ConnId, out: &mut impl PromotionOutput) {
        let (Some(manifest), Some(conn), false) =
            (&self.manifest, self.conns.get_mut(&id), self.diverged)
        else {
            return;
        };
        let known = conn.is_over()
            || conn.has_ended(manifest)
            || ((conn.has_answered() || conn.rests(manifest))
                && (conn.bounds.is_some() || self.bounds_complete));
        if conn.settled || !(known || self.waited) {
            // The replica has written, or ended, what its log does not say that the primary had:
            // the client may have that or not.
            let waits = conn.asked == Asked::Never && !conn.settled && !conn.has_answered();
            if waits && !conn.rests(manifest) {
                conn.asked = Asked::At(now);
                conn.planned.tap.acked = conn.planned.snd_una;
                self.further.push(id);
            }
            return;
        }
        match conn.settle(now, manifest, out) {
            Ok(()) => conn.settled = true,
            Err(Diverged::Output { .. }) if self.may_lose => {
                conn.settled = true;
                conn.lose(now, Why::BeyondLog, out);
            }
            Err(reason) => {
                self.diverged = true;
                out.diverged(&reason);
            }
        }
    }
}

impl Planned {
    /// Whether nothing is under way if the client has all that was written: the server has read all
    /// that came, and neither has ended.
    fn may_be_at_rest(&self) -> bool {
        self.accept.is_some()
            && !self.closed
            && self.tap.acked <= self.out_bytes
            && self.tap.holds(self.told)
            && self.tap.is_at_rest(self.in_bytes)
    }
}

impl Conn {
    /// Whether the client has given the connection up.
    fn is_over(&self) -> bool {
        self.planned.replaced || self.planned.tap.reset
    }

    /// Whether the client need not be asked, by the replica's table too.
    fn rests(&self, manifest: &BTreeMap<u32, ManifestConn>) -> bool {
        let replica = self.planned.accept.and_then(|accept| manifest.get(&accept));
        self.asked == Asked::Never
            && replica.is_some_and(|r| !r.has_ended() && r.out_bytes == self.planned.out_bytes)
    }

    /// Decides whether the client is asked after all, and says so if it is. The edge has seen
    /// acknowledgements that the primary's kernel tells of only with its next segment. A stranger
    /// who would forge the one that matters has to hit one number of four thousand million in the
    /// moment of a takeover (RFC 5961 §5).
    fn find_rest(&mut self, now: Nanos) -> Option<ConnId> {
        if self.asked != Asked::Perhaps || self.is_over() {
            return None;
        }
        let Planned { id, tap, out_bytes, snd_una, .. } = &self.planned;
        let (id, written) = (*id, *out_bytes);
        let has = |bounds: &FlowBounds| bounds.client_ack.offset_near(tap.snd_origin, *snd_una);
        if self.whole_bounds().is_some_and(|bounds| has(bounds) == written) {
            self.asked = Asked::Never;
            self.planned.tap.acked = written;
            return None;
        }
        self.asked = Asked::At(now);
        Some(id)
    }

    fn has_answered(&self) -> bool {
        self.answered_ms.is_some()
    }

    /// Whether both directions had ended, as far as the primary's kernel knew.
    /// Such a client has often forgotten the connection, or forgets it without
    /// a word when the probe acknowledges its FIN, and need not be asked.
    fn has_ended(&self, manifest: &BTreeMap<u32, ManifestConn>) -> bool {
        let replica = self.planned.accept.and_then(|accept| manifest.get(&accept));
        self.planned.tap.fin_held()
            && replica.is_some_and(|r| r.has_ended() && self.planned.snd_una > r.out_bytes)
    }

    /// Whether the segment acknowledges what never passed the edge. The kernel
    /// drops such a segment with all its bytes (RFC 9293 §3.10.7.4).
    fn acknowledges_unsent(&self, segment: &TcpPacket<'_>) -> bool {
        segment.is_ack()
            && self.whole_bounds().is_some_and(|bounds| segment.ack.after(bounds.seq_end))
    }

    /// The edge's bounds, if it has seen the connection from its beginning.
    fn whole_bounds(&self) -> Option<&FlowBounds> {
        self.bounds.as_ref().filter(|bounds| bounds.iss.is_some())
    }

    /// Whether the client has said nothing since its SYN, as far as is known.
    fn may_lack_syn_ack(&self) -> bool {
        let tap = &self.planned.tap;
        self.planned.accept.is_none()
            && tap.stream.end() == 0
            && tap.stream.held_bytes() == 0
            && !tap.fin_held()
    }

    fn probe(&self, now: Nanos) -> Probe {
        let Planned { id, record, tap, .. } = &self.planned;
        let syn = self.may_lack_syn_ack();
        // A byte that the client certainly has: the primary's kernel saw it
        // acknowledged. Counting from the ISS would wrap after 2 GiB.
        let seq = if syn {
            record.iss
        } else {
            tap.snd_origin.plus(self.planned.snd_una).plus(u64::from(u32::MAX))
        };
        Probe {
            conn: *id,
            key: record.key,
            seq,
            ack: tap.held(),
            syn,
            payload: (!syn).then_some(0),
            tsval: self.tsval(now),
            window: if syn { record.window } else { self.window() },
            record: *record,
        }
    }

    /// Field for the window that the client knows of.
    fn window(&self) -> u16 {
        let Planned { record, tap, .. } = &self.planned;
        let shift = if record.rcv_wscale > 14 { 0 } else { record.rcv_wscale };
        let bytes = self.right_edge().saturating_sub(tap.held_offset()) >> shift;
        u16::try_from(bytes).unwrap_or(u16::MAX)
    }

    /// Decision 18: last seen, plus the time since, plus a margin; bit 0 clear, which
    /// to Linux means millisecond ticks. Clock values that the edge has seen were
    /// shown to the client, even where the edge does not know the connection's
    /// beginning.
    fn tsval(&self, now: Nanos) -> Option<u32> {
        let (seen, at) = self.planned.tsval?;
        let mut last = seen.wrapping_add(now.since(at).as_ms() as u32);
        if let Some(bounds) = &self.bounds
            && bounds.tsval.wrapping_sub(last) as i32 > 0
        {
            last = bounds.tsval;
        }
        Some(last.wrapping_add(TSVAL_MARGIN_MS) & !1)
    }
}

#[cfg(test)]
mod tests;
