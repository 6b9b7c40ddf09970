//! The backup's connections: announced by the primary, filled by the tap,
//! bound to accept numbers by the log.

use super::{Backup, BackupOutput, Phase};
use crate::earlier::Earlier;
use crate::promotion::Planned;
use crate::tap::{Room, Tap, Usage};
use crate::{Broken, Nanos, Verdict};
use holdfast_wire::message::{Adopted, ConnId, ConnProgress, ConnRecord, Message};
use holdfast_wire::packet::TcpPacket;
use std::collections::BTreeMap;

/// One announced connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) record: ConnRecord,
    pub(super) tap: Tap,
    pub(super) accept: Option<u32>,
    /// Whether a newer connection has the same four-tuple.
    pub(super) replaced: bool,
    /// Stream offset of the oldest byte that the client had not acknowledged,
    /// as the primary's kernel last reported (decision 9); `None` before the
    /// first report.
    pub(super) snd_una: Option<u64>,
    /// Stream offset up to which the client was told, before this member joined, that its
    /// bytes have arrived: it will not send them again.
    told: u64,
    /// Output that the server had written before this member joined and that the client
    /// lacks, from the `snd_una` of that time on.
    earlier: Earlier,
    /// Last TSval known to have been sent, and when that was learnt.
    tsval: Option<(u32, Nanos)>,
}

/// What the log says about one accept number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accepted {
    /// The gate's id; `None` if the primary's gate did not know the connection,
    /// or it is gone.
    pub(super) conn: Option<ConnId>,
    /// Stream bytes that the server has read.
    pub(super) in_bytes: u64,
    /// Stream bytes that the server's kernel took.
    pub(super) out_bytes: u64,
    pub(super) closed: bool,
}

impl Backup {
    /// Gives a segment to its connection; returns the connection if it grew.
    pub(super) fn tap(&mut self, now: Nanos, segment: &TcpPacket<'_>) -> Option<ConnId> {
        let conn =
            self.by_key.get(&segment.client_to_server_key()).and_then(|id| self.conns.get_mut(id));
        let Some(conn) = conn else {
            self.tap_unknown(now, segment);
            return None;
        };
        if segment.is_opening() {
            if segment.seq == conn.record.irs {
                conn.tap.note_syn(now, segment, &mut conn.record);
            } else {
                // The tuple may be on its way to a new life; the primary decides.
                self.early.keep_syn(now, segment);
            }
            return None;
        }
        let before = conn.tap.usage();
        if !self.pools.held.has_room(before.held, segment.payload.len()) {
            self.counters.refused_full += 1;
            return None;
        }
        // At the bound, a copy beyond a hole is left out: the primary is asked
        // for it once its kernel has the bytes before it.
        let has_room = self.pools.aside.has_room(before.aside, Tap::aside_cost(segment));
        let room = if has_room { Room::Anywhere } else { Room::InOrder };
        let verdict = conn.tap.accept_in(now, segment, room);
        self.pools.note(before, conn.tap.usage());
        self.counters.note(verdict);
        let (id, end) = (conn.id, conn.tap.stream.end());
        if verdict == Verdict::Kept {
            self.note_gap(now, id, end);
        }
        (verdict == Verdict::Grown).then_some(id)
    }

    fn tap_unknown(&mut self, now: Nanos, segment: &TcpPacket<'_>) {
        if segment.is_opening() {
            self.early.keep_syn(now, segment);
            return;
        }
        self.counters.segments_unknown += 1;
        self.early.keep(segment);
    }

    /// Takes a record; its SYN-ACK waits at the primary until the record is
    /// held (decision 14).
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
        // The client has given up all of a tuple's handshakes but the newest.
        self.waiting.retain(|(_, waiting)| waiting.key != record.key);
        if self.conns.contains_key(&id) {
            self.counters.refused_full += 1;
            return;
        }
        if self.conns.len() >= self.limits.conns_max {
            self.counters.refused_full += 1;
            if self.joins {
                // Its SYN-ACK has left: its client is told of bytes that this member does
                // not hold.
                return self.break_off(&Broken::AdoptedFull { max: self.limits.conns_max }, out);
            }
            if self.waiting.len() < self.limits.conns_max {
                self.waiting.push_back((id, record));
            }
            assert!(self.waiting.len() <= self.limits.conns_max, "L6: more wait than the limit");
            return;
        }
        let conn = Conn {
            id,
            tap: Tap::new(&record, self.limits),
            record,
            accept: None,
            replaced: false,
            snd_una: None,
            told: 0,
            earlier: Earlier::default(),
            tsval: record.tsval.map(|tsval| (tsval, now)),
        };
        self.enter(now, conn, out);
        out.send(&Message::ConnOk { conn: id });
    }

    /// Enters a new connection, with the segments that came before its record.
    fn enter(&mut self, now: Nanos, mut conn: Conn, out: &mut impl BackupOutput) {
        let (id, key) = (conn.id, conn.record.key);
        if let Some(older) = self.by_key.insert(key, id) {
            self.replace(older, out);
        }
        if let Some(syn) = self.early.take_syn(&key, conn.record.irs) {
            conn.tap.note_syn(now, &syn.view(), &mut conn.record);
        }
        self.conns.insert(id, conn);
        assert!(self.conns.len() <= self.limits.conns_max, "L6: more connections than the limit");
        for segment in self.early.take(&key) {
            if self.tap(now, &segment.view()).is_some() {
                self.dirty.insert(id);
            }
        }
    }

    /// Adopts a connection that the server had where its log begins. Its stream begins
    /// behind what the server had read; earlier bytes do not concern this member.
    pub fn adopt(&mut self, now: Nanos, adopted: &Adopted, out: &mut impl BackupOutput) {
        if self.phase != Phase::Following || !self.joins {
            self.counters.messages_late += 1;
            return;
        }
        if let Err(reason) = self.take_up(now, adopted, out) {
            self.break_off(&reason, out);
        }
    }

    fn take_up(
        &mut self,
        now: Nanos,
        adopted: &Adopted,
        out: &mut impl BackupOutput,
    ) -> Result<(), Broken> {
        let Adopted { conn, accept, in_bytes, out_bytes, acked_bytes, closed, .. } = *adopted;
        let id = conn.map(|(id, _)| id);
        if !adopted.is_possible() {
            let (read, written, acked) = (in_bytes, out_bytes, acked_bytes);
            return Err(Broken::AdoptedWrong { conn: id, read, written, acked });
        }
        if let Some(accept) = accept {
            self.check_number(accept)?;
            self.accepts.insert(accept, Accepted { conn: id, in_bytes, out_bytes, closed });
        }
        let Some((id, record)) = conn else { return Ok(()) };
        if self.conns.contains_key(&id) {
            return Err(Broken::AdoptedTwice { conn: id });
        }
        let max = self.limits.conns_max;
        if self.conns.len() >= max {
            return Err(Broken::AdoptedFull { max });
        }
        let conn = Conn {
            id,
            tap: Tap::adopt(&record, adopted, self.limits),
            record,
            accept,
            replaced: false,
            snd_una: Some(acked_bytes),
            told: 0,
            earlier: Earlier::default(),
            tsval: record.tsval.map(|tsval| (tsval, now)),
        };
        // The primary is told how far each stream is held, whether anything comes
        // or not.
        self.dirty.insert(id);
        self.enter(now, conn, out);
        // After what the tap has had before, which may be older than the primary's word.
        if let Some((conn, tsval)) = self.conns.get_mut(&id).zip(adopted.client_tsval) {
            conn.tap.note_clock(tsval, now);
        }
        Ok(())
    }

    /// Takes output from before the join; a piece that does not follow the one before it, or
    /// has no room, is left out.
    pub(super) fn handle_earlier(&mut self, id: ConnId, offset: u64, bytes: &[u8]) {
        let has_room = self.earlier_bytes + bytes.len() <= self.limits.earlier_bytes_max;
        let Some(conn) = self.conns.get_mut(&id).filter(|_| self.joins && has_room) else {
            self.counters.refused_full += u64::from(!has_room);
            return;
        };
        if conn.earlier.take(offset, bytes) {
            self.earlier_bytes += bytes.len();
        }
        let max = self.limits.earlier_bytes_max;
        assert!(self.earlier_bytes <= max, "L6: more earlier output than the limit");
    }

    /// Streams of which the primary's kernel, by its last report, has more than is held here,
    /// and up to which offset.
    #[must_use]
    pub fn behind(&self) -> BTreeMap<ConnId, u64> {
        let lacks = |conn: &Conn| conn.tap.is_behind() && !conn.replaced;
        let behind = self.conns.values().filter(|conn| lacks(conn));
        behind.map(|conn| (conn.id, conn.tap.acknowledged())).collect()
    }

    /// Whether a stream is held up to an offset, or is over.
    #[must_use]
    pub fn holds(&self, id: ConnId, until: u64) -> bool {
        self.conns.get(&id).is_none_or(|conn| conn.replaced || conn.tap.holds(until))
    }

    /// Whether the primary can be asked for what the tap lacks of a stream: only if its
    /// server has a descriptor to look through (decision 4).
    #[must_use]
    pub fn can_ask(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.accept.is_some())
    }

    /// Stops waiting for a stream, although its client was told that it has arrived up to an
    /// offset: a takeover ends the connection, unless the bytes are held by then.
    pub fn leave_out(&mut self, id: ConnId, told: u64) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.told = conn.told.max(told);
        }
    }

    /// Takes records for which there is room by now.
    pub(super) fn admit_waiting(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        while self.conns.len() < self.limits.conns_max {
            let Some((id, record)) = self.waiting.pop_front() else { return };
            self.handle_conn(now, id, record, out);
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
        self.waiting.retain(|(waiting, _)| *waiting != id);
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
        self.pools.note(conn.tap.usage(), Usage::default());
        self.earlier_bytes -= conn.earlier.bytes.len();
        let Some(accept) = conn.accept else { return };
        out.gone(accept);
        if let Some(accepted) = self.accepts.get_mut(&accept) {
            accepted.conn = None;
            if accepted.closed {
                self.accepts.remove(&accept);
            }
        }
    }

    /// Takes the state of the primary's kernel, which may lag but never goes
    /// back.
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
        self.earlier_bytes -= conn.earlier.forget(snd_una);
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
            out_bytes: accepted.out_bytes,
            closed: accepted.closed,
            snd_una: conn.snd_una.unwrap_or(0),
            told: conn.told,
            earlier: conn.earlier,
            tsval: conn.tsval,
            tap: conn.tap,
        }
    }
}
