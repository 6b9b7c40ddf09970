//! The backup's connections: announced by the primary, filled by the tap,
//! bound to accept numbers by the log.

use super::{Backup, BackupOutput, EARLY_BYTES_MAX, Phase, SYN_AGE_MAX, SYNS_MAX, TAP_BYTES_MAX};
use crate::promotion::Planned;
use crate::segment::OwnedSegment;
use crate::tap::Tap;
use crate::{CONNS_MAX, Nanos, TapSegment, Verdict};
use holdfast_wire::message::{ConnId, ConnProgress, ConnRecord, Message};

/// One announced connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) record: ConnRecord,
    pub(super) tap: Tap,
    pub(super) accept: Option<u32>,
    /// A newer connection has the same four-tuple.
    pub(super) replaced: bool,
    /// Stream offset of the oldest byte the client had not acknowledged, as the
    /// primary's kernel said (decision 9); `None` before it said anything.
    pub(super) snd_una: Option<u64>,
    /// Last TSval known to have been sent, and when that was learnt.
    tsval: Option<(u32, Nanos)>,
}

/// What the log says about one accept number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accepted {
    /// `None` if the primary's gate did not know the connection, or it is gone.
    pub(super) conn: Option<ConnId>,
    /// Stream bytes the server has read.
    pub(super) in_bytes: u64,
    /// Stream bytes the server's kernel took.
    pub(super) out_bytes: u64,
    pub(super) closed: bool,
}

impl Backup {
    /// Gives a segment to its connection; the connection if it grew.
    pub(super) fn tap(&mut self, now: Nanos, segment: &TapSegment<'_>) -> Option<ConnId> {
        let conn = self.by_key.get(&segment.key).and_then(|id| self.conns.get_mut(id));
        let Some(conn) = conn else {
            self.tap_unknown(now, segment);
            return None;
        };
        if segment.syn && !segment.ack_flag {
            if segment.seq == conn.record.irs {
                conn.tap.note_syn(now, segment, &mut conn.record);
            } else {
                // The tuple may be on its way to a new life; the primary decides.
                self.keep_syn(now, segment);
            }
            return None;
        }
        if self.tap_bytes >= TAP_BYTES_MAX && !segment.payload.is_empty() {
            self.counters.refused_full += 1;
            return None;
        }
        let before = conn.tap.stream.held_bytes();
        let verdict = conn.tap.accept(now, segment);
        self.tap_bytes = self.tap_bytes + conn.tap.stream.held_bytes() - before;
        self.counters.note(verdict);
        let (id, end) = (conn.id, conn.tap.stream.end());
        if verdict == Verdict::Kept {
            self.note_gap(now, id, end);
        }
        (verdict == Verdict::Grown).then_some(id)
    }

    fn tap_unknown(&mut self, now: Nanos, segment: &TapSegment<'_>) {
        if segment.syn && !segment.ack_flag {
            self.keep_syn(now, segment);
            return;
        }
        self.counters.segments_unknown += 1;
        let known_syn = self.syns.iter().any(|(_, syn)| syn.view().key == segment.key);
        let room = EARLY_BYTES_MAX - self.early_bytes.min(EARLY_BYTES_MAX);
        if known_syn
            && segment.payload.len() + segment.raw.len() + size_of::<OwnedSegment>() <= room
        {
            let early = OwnedSegment::new(segment);
            self.early_bytes += early.bytes();
            self.early.push_back(early);
        }
    }

    fn keep_syn(&mut self, now: Nanos, segment: &TapSegment<'_>) {
        while self.syns.len() >= SYNS_MAX
            || self.syns.front().is_some_and(|(at, _)| now.since(*at) >= SYN_AGE_MAX)
        {
            if let Some((_, syn)) = self.syns.pop_front() {
                self.forget_early(&syn);
            }
        }
        // A repeated SYN replaces the older copy.
        self.syns.retain(|(_, syn)| (syn.view().key, syn.view().seq) != (segment.key, segment.seq));
        self.syns.push_back((now, OwnedSegment::new(segment)));
    }

    fn forget_early(&mut self, syn: &OwnedSegment) {
        let key = syn.view().key;
        self.early.retain(|segment| segment.view().key != key);
        self.early_bytes = self.early.iter().map(OwnedSegment::bytes).sum();
    }

    /// A SYN-ACK waits at the primary until this record is held (decision 14).
    pub(super) fn handle_conn(
        &mut self,
        now: Nanos,
        id: ConnId,
        record: ConnRecord,
        out: &mut impl BackupOutput,
    ) {
        if self.phase != Phase::Following {
            return;
        }
        if self.conns.get(&id).is_some_and(|conn| conn.record.key == record.key) {
            out.send(&Message::ConnOk { conn: id });
            return;
        }
        if self.conns.len() >= CONNS_MAX || self.conns.contains_key(&id) {
            self.counters.refused_full += 1;
            return;
        }
        if let Some(older) = self.by_key.insert(record.key, id) {
            self.replace(older, out);
        }
        let mut conn = Conn {
            id,
            tap: Tap::new(&record),
            record,
            accept: None,
            replaced: false,
            snd_una: None,
            tsval: record.tsval.map(|tsval| (tsval, now)),
        };
        if let Some(at) = self
            .syns
            .iter()
            .position(|(_, syn)| syn.view().key == record.key && syn.view().seq == record.irs)
            && let Some((_, syn)) = self.syns.remove(at)
        {
            conn.tap.note_syn(now, &syn.view(), &mut conn.record);
        }
        self.conns.insert(id, conn);
        out.send(&Message::ConnOk { conn: id });
        self.take_early(now, id, &record);
    }

    fn take_early(&mut self, now: Nanos, id: ConnId, record: &ConnRecord) {
        let (ours, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|segment| segment.view().key == record.key);
        self.early = others.into();
        self.early_bytes = self.early.iter().map(OwnedSegment::bytes).sum();
        for segment in ours {
            if self.tap(now, &segment.view()).is_some() {
                self.dirty.insert(id);
            }
        }
    }

    /// The tuple has a new connection: the older one is over as soon as the
    /// records that may still name it are through.
    fn replace(&mut self, older: ConnId, out: &mut impl BackupOutput) {
        let Some(conn) = self.conns.get_mut(&older) else { return };
        conn.replaced = true;
        if conn.accept.is_some() {
            self.leave_after(self.log.received(), older, out);
        }
    }

    /// Forgets a connection once `frame` is resolved.
    pub(super) fn leave_after(&mut self, frame: u64, id: ConnId, out: &mut impl BackupOutput) {
        self.leaving.insert((frame, id));
        self.sweep(out);
    }

    pub(super) fn handle_gone(&mut self, id: ConnId, out: &mut impl BackupOutput) {
        if self.conns.contains_key(&id) {
            self.leave_after(self.log.received(), id, out);
        }
    }

    /// Forgets connections whose last frame is resolved.
    pub(super) fn sweep(&mut self, out: &mut impl BackupOutput) {
        while let Some((frame, id)) = self.leaving.first().copied() {
            if frame > self.log.resolved() {
                return;
            }
            self.leaving.pop_first();
            self.forget(id, out);
        }
    }

    fn forget(&mut self, id: ConnId, out: &mut impl BackupOutput) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if self.by_key.get(&conn.record.key) == Some(&id) {
            self.by_key.remove(&conn.record.key);
        }
        self.dirty.remove(&id);
        self.gaps.remove(id);
        self.tap_bytes = self.tap_bytes.saturating_sub(conn.tap.stream.held_bytes());
        let Some(accept) = conn.accept else { return };
        out.gone(accept);
        if let Some(accepted) = self.accepts.get_mut(&accept) {
            accepted.conn = None;
            if accepted.closed {
                self.accepts.remove(&accept);
            }
        }
    }

    /// Accepted state of the primary's kernel: may lag, never goes back.
    pub(super) fn handle_progress(
        &mut self,
        now: Nanos,
        new: &ConnProgress,
        out: &mut impl BackupOutput,
    ) {
        let Some(conn) = self.conns.get_mut(&new.conn) else { return };
        let known = conn.snd_una.unwrap_or(0);
        let snd_una = new.snd_una.offset_near(conn.tap.snd_origin, known).max(known);
        conn.snd_una = Some(snd_una);
        conn.tap.note_progress(new, snd_una);
        if conn.tsval.is_some_and(|(old, _)| new.tsval.wrapping_sub(old) as i32 > 0) {
            conn.tsval = Some((new.tsval, now));
        }
        if let Some(accept) = conn.accept {
            out.acked(accept, snd_una);
        }
        if conn.tap.is_behind() {
            let at = conn.tap.stream.end();
            self.note_gap(now, new.conn, at);
        }
    }

    pub(super) fn planned(&self, conn: Conn) -> Planned {
        let accepted =
            conn.accept.and_then(|accept| self.accepts.get(&accept)).copied().unwrap_or_default();
        Planned {
            id: conn.id,
            record: conn.record,
            accept: conn.accept,
            replaced: conn.replaced,
            in_bytes: accepted.in_bytes,
            closed: accepted.closed,
            snd_una: conn.snd_una.unwrap_or(0),
            tsval: conn.tsval,
            tap: conn.tap,
        }
    }
}
