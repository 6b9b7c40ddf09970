//! The log at the backup: frames in, records out to the replica, each tapped
//! read only with the bytes that the primary's server really read.

mod direct;

use super::{Accepted, Backup, BackupOutput, NEED_AFTER, Phase};
use crate::{Broken, Nanos};
use direct::{Direct, Rest};
use holdfast_wire::hash::{hash, hash_pieces};
use holdfast_wire::log::{
    AcceptInfo, HEADER_LEN, Header, LogError, NO_CONN, Op, PEEKED, TAPPED, read_header,
};
use holdfast_wire::message::{ConnId, Message};
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// A frame with records that are not replayed yet.
#[derive(Debug)]
struct Queued {
    number: u64,
    /// Index within the frame of the first record in `records`, and where in the primary's log that
    /// is.
    index: u32,
    position: u64,
    records: Vec<u8>,
}

/// Why the first queued record waits.
#[derive(Debug)]
struct Stall {
    frame: u64,
    index: u32,
    /// The connection whose bytes are missing, if the tap can bring them.
    conn: Option<ConnId>,
    need_at: Nanos,
    asked: bool,
}

/// The queued frames and their state.
#[derive(Debug, Default)]
pub(super) struct Log {
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    received: u64,
    resolved: u64,
    confirmed: u64,
    /// Position of the primary's log up to which records have come in frames, and up to which they
    /// were replayed.
    end: u64,
    replayed: u64,
    /// Up to where that was confirmed to the server, and to its daemon; `None`: frames say nothing
    /// of positions.
    direct: Option<Direct>,
    /// What the server has sent itself and could not be replayed yet.
    rest: Option<Rest>,
    stall: Option<Stall>,
    /// The primary's answer for the first queued record.
    repair: Option<Vec<u8>>,
}

impl Log {
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn resolved(&self) -> u64 {
        self.resolved
    }

    /// Number and bytes of frames that wait for the tap, or for room in the
    /// replica's ring.
    pub(super) fn queued(&self) -> (usize, usize) {
        (self.queue.len(), self.queue_bytes)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    pub(super) fn waits_for(&self, conn: ConnId) -> bool {
        self.stall.as_ref().is_some_and(|stall| stall.conn == Some(conn))
    }

    pub(super) fn need_at(&self) -> Option<Nanos> {
        self.stall.as_ref().filter(|stall| !stall.asked).map(|stall| stall.need_at)
    }

    pub(super) fn has_confirmable(&self) -> bool {
        self.resolved > self.confirmed
    }

    /// The frame to confirm, if there is a new one.
    pub(super) fn take_confirmable(&mut self) -> Option<u64> {
        assert!(self.resolved <= self.received, "L2: a frame is resolved that did not come");
        assert!(self.confirmed <= self.resolved, "L2: a frame is confirmed that is not resolved");
        let new = self.has_confirmable();
        self.confirmed = self.resolved;
        new.then_some(self.resolved)
    }

    pub(super) fn ask_if_due(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        if let Some(stall) = &mut self.stall
            && !stall.asked
            && now >= stall.need_at
        {
            stall.asked = true;
            out.send(&Message::Need { frame: stall.frame, index: stall.index });
        }
    }
}

/// Why the walk through a frame stopped.
enum Stop {
    /// A tapped read lacks bytes that the tap may still bring.
    Missing(Option<ConnId>),
    /// The tap contradicts what the server read.
    Conflict,
    /// The replica's ring has no room.
    Room,
    Broken(Broken),
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        Self::Broken(error.into())
    }
}

impl Backup {
    pub(super) fn handle_frame(
        &mut self,
        now: Nanos,
        (number, position): (u64, Option<u64>),
        records: &[u8],
        out: &mut impl BackupOutput,
    ) {
        if number <= self.log.received {
            self.counters.frames_repeated += 1;
            return;
        }
        let expected = self.log.received + 1;
        if number != expected {
            return self.break_off(&Broken::FrameGap { expected, got: number }, out);
        }
        let (start, end) = match self.place(position, records) {
            Ok(place) => place,
            Err(reason) => return self.break_off(&reason, out),
        };
        self.log.received = number;
        self.log.end = self.log.end.max(end);
        let mut frame = Queued { number, index: 0, position: start, records: Vec::new() };
        if !self.log.queue.is_empty() {
            frame.records = records.to_vec();
            return self.queue(frame, out);
        }
        let mut at = 0;
        if self.walk(now, &mut frame, records, &mut at, out) {
            self.log.resolved = number;
            self.sweep(out);
            self.drain(now, out);
        } else if self.phase != Phase::Broken {
            frame.records = records[at..].to_vec();
            self.queue(frame, out);
        }
    }

    /// Where in the primary's log a frame begins and ends. It may begin earlier than the last one
    /// ended, where the server has sent some of it itself.
    fn place(&self, position: Option<u64>, records: &[u8]) -> Result<(u64, u64), Broken> {
        let expected = self.log.end;
        let start = match (position, self.log.direct.is_some()) {
            (None, false) => return Ok((0, 0)),
            (Some(start), true) if start <= expected => start,
            (position, _) => {
                return Err(Broken::LogGap { expected, got: position.unwrap_or_default() });
            }
        };
        Ok((start, start.saturating_add(len_in_log(records)?)))
    }

    fn queue(&mut self, frame: Queued, out: &mut impl BackupOutput) {
        let max = self.limits.frames_queued_max;
        if self.log.queue_bytes + frame.records.len() > max {
            return self.break_off(&Broken::FramesFull { max }, out);
        }
        self.log.queue_bytes += frame.records.len();
        assert!(self.log.queue_bytes <= max, "L6: more frames wait than the limit");
        self.log.queue.push_back(frame);
    }

    /// Continues with the queued frames as far as possible.
    pub(super) fn resume(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        while let Some(mut frame) = self.log.queue.pop_front() {
            self.log.queue_bytes -= frame.records.len();
            let (mut at, mut records) = (0, std::mem::take(&mut frame.records));
            if !self.walk(now, &mut frame, &records, &mut at, out) {
                records.drain(..at);
                frame.records = records;
                self.log.queue_bytes += frame.records.len();
                self.log.queue.push_front(frame);
                break;
            }
            self.log.resolved = frame.number;
            self.sweep(out);
        }
        match self.phase {
            Phase::Draining { .. } => self.drain(now, out),
            Phase::Ending => self.finish_if_possible(out),
            Phase::Following | Phase::Ended | Phase::Broken => {}
        }
    }

    /// The log ends before the first read whose bytes are not here; only a ring
    /// without room can delay that.
    fn finish_if_possible(&mut self, out: &mut impl BackupOutput) {
        if self.log.queue.is_empty() || self.log.stall.is_some() {
            self.log.queue.clear();
            self.log.queue_bytes = 0;
            self.log.stall = None;
            self.phase = Phase::Ended;
            out.log_ended();
        }
    }

    /// Replays records from `at` on, which begin where `frame` says; true if it is finished.
    fn walk(
        &mut self,
        now: Nanos,
        frame: &mut Queued,
        records: &[u8],
        at: &mut usize,
        out: &mut impl BackupOutput,
    ) -> bool {
        while *at < records.len() {
            match self.step_of(frame, &records[*at..], out) {
                Ok((len, position)) => {
                    *at += len;
                    frame.index += 1;
                    frame.position = position;
                    self.log.replayed = self.log.replayed.max(position);
                    self.log.stall = None;
                }
                Err(stop) => {
                    self.stop(now, frame.number, frame.index, stop, out);
                    return false;
                }
            }
        }
        true
    }

    /// Replays a frame's next record, unless the server has sent it itself; returns its length in
    /// the frame, and where it ends in the primary's log, if frames tell.
    fn step_of(
        &mut self,
        frame: &Queued,
        bytes: &[u8],
        out: &mut impl BackupOutput,
    ) -> Result<(usize, u64), Stop> {
        if self.log.direct.is_none() {
            return Ok((self.step(frame.number, bytes, out)?, 0));
        }
        let (len, in_log) = lens(bytes)?;
        let ends = frame.position + in_log;
        if ends > self.log.replayed {
            self.step(frame.number, bytes, out)?;
        }
        Ok((len, ends))
    }

    fn stop(
        &mut self,
        now: Nanos,
        frame: u64,
        index: u32,
        stop: Stop,
        out: &mut impl BackupOutput,
    ) {
        let same = self
            .log
            .stall
            .as_ref()
            .is_some_and(|stall| (stall.frame, stall.index) == (frame, index));
        let (conn, wait) = match stop {
            Stop::Broken(reason) => return self.break_off(&reason, out),
            Stop::Room => return self.log.stall = None,
            Stop::Missing(conn @ Some(_)) => (conn, NEED_AFTER),
            Stop::Missing(None) | Stop::Conflict => (None, Nanos(0)),
        };
        if !same {
            self.counters.needs += 1;
            self.log.stall =
                Some(Stall { frame, index, conn, need_at: now.plus(wait), asked: false });
        }
        if let Some(stall) = &mut self.log.stall {
            stall.need_at = stall.need_at.min(now.plus(wait));
            stall.conn = conn;
        }
        if wait == Nanos(0) && self.phase != Phase::Ending {
            self.log.ask_if_due(now, out);
        }
    }

    /// Replays the record at the start of `bytes`; returns its length in the
    /// frame.
    fn step(
        &mut self,
        frame: u64,
        bytes: &[u8],
        out: &mut impl BackupOutput,
    ) -> Result<usize, Stop> {
        let (header, op) = read_header(bytes)?;
        if header.flags & TAPPED != 0 {
            self.step_tapped(&header, out)?;
            return Ok(HEADER_LEN);
        }
        let len = header.len_in_log();
        let record = bytes.get(..len).ok_or(LogError::Truncated)?;
        let payload = &record[HEADER_LEN..HEADER_LEN + header.payload_len as usize];
        let accepted = self.check_accept(&header, op, payload)?;
        if op != Op::Pad && !out.replay(&header, &[payload]) {
            return Err(Stop::Room);
        }
        match (accepted, op) {
            (Some(conn), _) => self.bind(frame, header.conn, conn, out),
            (None, Op::Written) => self.note_written(&header),
            (None, Op::Close) => self.note_close(header.conn),
            _ => {}
        }
        Ok(len)
    }

    /// Checks an accept before anything is changed. `Some` if the accept is of
    /// a protected connection, with the connection that the primary named.
    fn check_accept(
        &self,
        header: &Header,
        op: Op,
        payload: &[u8],
    ) -> Result<Option<Option<ConnId>>, Stop> {
        if op != Op::Accept || header.ret < 0 || header.conn == NO_CONN {
            return Ok(None);
        }
        let accept = header.conn;
        let (info, _) = AcceptInfo::read_from_prefix(payload)
            .map_err(|_| Stop::Broken(Broken::AcceptInfo { accept }))?;
        self.check_number(accept).map_err(Stop::Broken)?;
        if info.conn_id == 0 {
            return Ok(Some(None));
        }
        match self.conns.get(&ConnId(info.conn_id)) {
            Some(conn) if conn.accept.is_none() => Ok(Some(Some(conn.id))),
            Some(_) => Err(Stop::Broken(Broken::AcceptTwice { accept })),
            None => Err(Stop::Broken(Broken::AcceptUnknown { accept })),
        }
    }

    /// Whether an accept may have this number.
    pub(super) fn check_number(&self, accept: u32) -> Result<(), Broken> {
        let max = self.limits.accepts_max;
        if self.accepts.contains_key(&accept) {
            return Err(Broken::AcceptTwice { accept });
        }
        if self.accepts.len() >= max {
            return Err(Broken::AcceptsFull { max });
        }
        Ok(())
    }

    fn bind(&mut self, frame: u64, accept: u32, id: Option<ConnId>, out: &mut impl BackupOutput) {
        self.accepts.insert(accept, Accepted { conn: id, ..Accepted::default() });
        let max = self.limits.accepts_max;
        assert!(self.accepts.len() <= max, "L6: more accepts than the limit");
        let Some((id, conn)) = id.and_then(|id| Some((id, self.conns.get_mut(&id)?))) else {
            return;
        };
        conn.accept = Some(accept);
        if let Some(bytes) = conn.snd_una {
            out.acked(accept, bytes);
        }
        if conn.replaced {
            self.leave_after(frame, id, out);
        }
    }

    fn note_written(&mut self, header: &Header) {
        let Some(accepted) = self.accepts.get_mut(&header.conn) else { return };
        accepted.out_bytes =
            accepted.out_bytes.saturating_add(u64::try_from(header.ret).unwrap_or(0));
        if let Some(conn) = accepted.conn.and_then(|id| self.conns.get_mut(&id)) {
            conn.tap.note_written(accepted.out_bytes);
        }
    }

    fn note_close(&mut self, accept: u32) {
        let Some(accepted) = self.accepts.get_mut(&accept) else { return };
        accepted.closed = true;
        if accepted.conn.is_none() {
            self.accepts.remove(&accept);
        }
    }

    /// Finds the bytes of a tapped read and replays it with them.
    fn step_tapped(&mut self, header: &Header, out: &mut impl BackupOutput) -> Result<(), Stop> {
        let len = header.payload_len as usize;
        if i64::from(header.payload_len) != header.ret.max(0) {
            return Err(Stop::Broken(Broken::TappedLength {
                ret: header.ret,
                payload_len: header.payload_len,
            }));
        }
        if len == 0 {
            return if out.replay(header, &[]) { Ok(()) } else { Err(Stop::Room) };
        }
        let accepted = self.accepts.get(&header.conn).copied().unwrap_or_default();
        if self.log.repair.is_some() {
            return self.step_repaired(header, &accepted, out);
        }
        let conn =
            accepted.conn.and_then(|id| self.conns.get_mut(&id)).ok_or(Stop::Missing(None))?;
        let Some(pieces) = conn.tap.stream.range(accepted.in_bytes, len) else {
            return Err(Stop::Missing(Some(conn.id)));
        };
        if hash_pieces(&self.key, pieces) != header.hash {
            self.counters.conflicts += 1;
            return Err(Stop::Conflict);
        }
        if !out.replay(header, &pieces) {
            return Err(Stop::Room);
        }
        self.consume(header);
        Ok(())
    }

    /// Replays a read with the bytes that the primary sent, and corrects the
    /// stream by them.
    fn step_repaired(
        &mut self,
        header: &Header,
        accepted: &Accepted,
        out: &mut impl BackupOutput,
    ) -> Result<(), Stop> {
        let Some(bytes) = self.log.repair.take() else { return Ok(()) };
        if !out.replay(header, &[&bytes]) {
            self.log.repair = Some(bytes);
            return Err(Stop::Room);
        }
        if let Some(conn) = accepted.conn.and_then(|id| self.conns.get_mut(&id)) {
            let (held, before) = (conn.tap.held(), conn.tap.usage());
            let was_contradicted = conn.tap.is_contradicted();
            conn.tap.overwrite(accepted.in_bytes, &bytes);
            self.pools.note(before, conn.tap.usage());
            self.counters.note_contradiction(was_contradicted, conn.tap.is_contradicted());
            if conn.tap.held() != held {
                self.dirty.insert(conn.id);
            }
        }
        self.consume(header);
        Ok(())
    }

    /// Notes that the server has taken the bytes, unless it only peeked.
    fn consume(&mut self, header: &Header) {
        let conn = self.accepts.get(&header.conn).and_then(|accepted| accepted.conn);
        if let Some(conn) = conn.and_then(|id| self.conns.get(&id)) {
            self.last_input = Some(conn.record.key);
        }
        if header.flags & PEEKED != 0 {
            return;
        }
        let Some(accepted) = self.accepts.get_mut(&header.conn) else { return };
        accepted.in_bytes += u64::from(header.payload_len);
        if let Some(conn) = accepted.conn.and_then(|id| self.conns.get_mut(&id)) {
            let before = conn.tap.usage();
            conn.tap.stream.consume_to(accepted.in_bytes);
            self.pools.note(before, conn.tap.usage());
        }
    }

    /// The primary's answer to a Need: what its server read, whatever the tap said.
    pub(super) fn handle_payload(
        &mut self,
        now: Nanos,
        frame: u64,
        index: u32,
        bytes: &[u8],
        out: &mut impl BackupOutput,
    ) {
        let waits = self
            .log
            .stall
            .as_ref()
            .is_some_and(|stall| stall.asked && (stall.frame, stall.index) == (frame, index));
        let front = self
            .log
            .queue
            .front()
            .filter(|_| waits)
            .and_then(|front| read_header(&front.records).ok());
        let Some((header, _)) = front else {
            self.counters.payloads_late += 1;
            return;
        };
        if bytes.len() != header.payload_len as usize || hash(&self.key, bytes) != header.hash {
            return self.break_off(&Broken::PayloadHash { frame, index }, out);
        }
        self.log.repair = Some(bytes.to_vec());
        self.resume(now, out);
    }
}

/// Lengths of the record at the start of `bytes`: here, and in the primary's log.
fn lens(bytes: &[u8]) -> Result<(usize, u64), LogError> {
    let (header, _) = read_header(bytes)?;
    Ok((header.len_sent(), header.len_in_log() as u64))
}

/// Length in the primary's log of all of these records.
fn len_in_log(records: &[u8]) -> Result<u64, LogError> {
    let (mut at, mut total) = (0, 0);
    while at < records.len() {
        let (len, in_log) = lens(&records[at..])?;
        (at, total) = (at + len, total + in_log);
    }
    Ok(total)
}
