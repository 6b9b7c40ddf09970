//! From the ring to numbered frames, and back to a record's payload.

use super::sent::Sent;
use super::{Primary, PrimaryOutput};
use crate::Broken;
use holdfast_wire::log::{
    AcceptInfo, HEADER_LEN, Header, LogError, NO_CONN, Op, PAYLOAD_MAX, POSITION_MAX, TAPPED,
    read_header,
};
use holdfast_wire::message::{ConnId, ConnKey, Message};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes read back from the ring at a time; enough for any single record.
const PUMP_BYTES: usize = 2 * PAYLOAD_MAX;

/// A frame that the backup has not confirmed.
#[derive(Debug)]
pub(super) struct Frame {
    number: u64,
    /// Ring positions of its start and end.
    start: u64,
    end: u64,
    /// Connections whose server ended its sending side in this frame.
    fins: Vec<ConnId>,
}

/// Whether the bytes must end with a record's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    Whole,
    Partial,
}

/// A record of the ring, with its payload.
type Record<'a> = (Header, Op, &'a [u8]);

/// A frame in the making.
struct Builder {
    start: u64,
    end: u64,
    records: Vec<u8>,
    fins: Vec<ConnId>,
}

impl Builder {
    fn new(start: u64) -> Self {
        Self { start, end: start, records: Vec::new(), fins: Vec::new() }
    }
}

impl Primary {
    /// Sends the records in `bytes`, which start at `self.framed`, as frames;
    /// stops at the limit of unconfirmed ones.
    pub(super) fn frame_up(
        &mut self,
        bytes: &[u8],
        walk: Walk,
        out: &mut impl PrimaryOutput,
    ) -> Result<(), Broken> {
        self.frame_up_to(bytes, walk, self.limits.frames_unconfirmed_max, out)
    }

    fn frame_up_to(
        &mut self,
        bytes: &[u8],
        walk: Walk,
        frames_max: usize,
        out: &mut impl PrimaryOutput,
    ) -> Result<(), Broken> {
        let mut at = self.pass_over(bytes, walk, out)?;
        let mut frame = Builder::new(self.framed);
        frame.records.reserve(bytes.len().min(self.limits.frame_bytes_max));
        while at < bytes.len() && self.unconfirmed.len() < frames_max {
            let Some((header, op, record)) = next_record(&bytes[at..], walk)? else { break };
            let stripped = stripped_len(&header, op);
            if !frame.records.is_empty()
                && frame.records.len() + stripped > self.limits.frame_bytes_max
            {
                self.send_frame(&mut frame, out);
                continue;
            }
            self.append(&mut frame, &header, op, record)?;
            at += record.len();
            frame.end += record.len() as u64;
        }
        if frame.end > frame.start {
            self.send_frame(&mut frame, out);
        }
        Ok(())
    }

    /// Sends nothing of what the backup has from the server itself; returns the length of that.
    fn pass_over(
        &mut self,
        bytes: &[u8],
        walk: Walk,
        out: &mut impl PrimaryOutput,
    ) -> Result<usize, Broken> {
        let (mut passed, mut at) = (Builder::new(self.framed), 0);
        while at < bytes.len() && self.framed + (at as u64) < self.held_to {
            let Some((header, op, record)) = next_record(&bytes[at..], walk)? else { break };
            if self.framed + (at + record.len()) as u64 > self.held_to {
                break;
            }
            self.append(&mut passed, &header, op, record)?;
            passed.records.clear();
            at += record.len();
        }
        if at > 0 {
            self.framed += at as u64;
            assert!(self.framed <= self.produced, "L2: more is held than the server has logged");
            self.allow_fins(&passed.fins, out);
            self.release_to(self.framed, out);
        }
        Ok(at)
    }

    /// Sends what waits in the ring, as far as the limit allows.
    pub(super) fn pump(
        &mut self,
        frames_max: usize,
        out: &mut impl PrimaryOutput,
    ) -> Result<(), Broken> {
        let mut bytes = Vec::new();
        while self.framed < self.produced && self.unconfirmed.len() < frames_max {
            let (pos, wanted) = (self.framed, self.produced - self.framed);
            let len = wanted.min(PUMP_BYTES as u64) as usize;
            if !out.read_log(pos, len, &mut bytes) {
                return Err(Broken::LogLost { pos });
            }
            let walk = if (len as u64) < wanted { Walk::Partial } else { Walk::Whole };
            self.frame_up_to(&bytes, walk, frames_max, out)?;
            if self.framed == pos {
                return Err(LogError::Truncated.into());
            }
        }
        Ok(())
    }

    fn append(
        &mut self,
        frame: &mut Builder,
        header: &Header,
        op: Op,
        record: &[u8],
    ) -> Result<(), Broken> {
        if op == Op::Pad {
            // Its length would be in no frame, and the backup would count wrongly.
            return if self.is_direct { Err(LogError::UnknownOp(op as u8).into()) } else { Ok(()) };
        }
        if header.flags & TAPPED != 0 {
            if i64::from(header.payload_len) != header.ret.max(0) {
                return Err(Broken::TappedLength {
                    ret: header.ret,
                    payload_len: header.payload_len,
                });
            }
            frame.records.extend_from_slice(&record[..HEADER_LEN]);
            return Ok(());
        }
        let at = frame.records.len();
        frame.records.extend_from_slice(record);
        match op {
            Op::Accept if header.ret >= 0 && header.conn != NO_CONN => {
                self.name_accepted(header.conn, &mut frame.records[at + HEADER_LEN..])?;
            }
            Op::Close => frame.fins.extend(self.accepts.get(&header.conn)),
            Op::Shutdown if matches!(header.ret, 1 | 2) => {
                frame.fins.extend(self.accepts.get(&header.conn))
            }
            Op::Intent => self.note_sent(header, Sent::intend),
            Op::Written => self.note_sent(header, Sent::write),
            _ => {}
        }
        Ok(())
    }

    fn note_sent(&mut self, header: &Header, note: fn(&mut Sent, i64)) {
        let conn = self.accepts.get(&header.conn).and_then(|id| self.conns.get_mut(id));
        conn.into_iter().for_each(|conn| note(&mut conn.sent, header.ret));
    }

    /// Writes the gate's id of the accepted connection into the record.
    fn name_accepted(&mut self, accept: u32, payload: &mut [u8]) -> Result<(), Broken> {
        let (mut info, _) =
            AcceptInfo::read_from_prefix(payload).map_err(|_| Broken::AcceptInfo { accept })?;
        if self.accepts.contains_key(&accept) {
            return Err(Broken::AcceptTwice { accept });
        }
        let key = ConnKey {
            server: info.local,
            client: info.peer,
            server_port: info.local_port,
            client_port: info.peer_port,
        };
        match self.bind(&key, info.conn_id, accept) {
            Some(id) => info.conn_id = id.0,
            None => {
                info.conn_id = 0;
                self.counters.accepts_unknown += 1;
            }
        }
        payload[..size_of::<AcceptInfo>()].copy_from_slice(info.as_bytes());
        Ok(())
    }

    fn send_frame(&mut self, frame: &mut Builder, out: &mut impl PrimaryOutput) {
        let next = Builder::new(frame.end);
        let Builder { start, end, records, fins } = std::mem::replace(frame, next);
        self.last_frame += 1;
        self.framed = end;
        assert!(end <= self.produced, "L2: a frame beyond what the server has logged");
        let follows = |last: &Frame| last.number + 1 == self.last_frame && last.end == start;
        assert!(self.unconfirmed.back().is_none_or(follows), "L2: frames leave no gap in the log");
        self.unconfirmed.push_back(Frame { number: self.last_frame, start, end, fins });
        let number = self.last_frame;
        out.send(&match self.is_direct {
            true => Message::FrameAt { number, position: start, records: &records },
            false => Message::Frame { number, records: &records },
        });
    }

    /// Notes that the backup holds everything up to frame `number`.
    pub(super) fn handle_frame_ok(&mut self, number: u64, out: &mut impl PrimaryOutput) {
        let end = self.unconfirmed.iter().take_while(|frame| frame.number <= number).last();
        if let Some(pos) = end.map(|frame| frame.end) {
            self.release_to(pos, out);
        }
        if let Err(reason) = self.pump(self.limits.frames_unconfirmed_max, out) {
            self.break_off(&reason, out);
        }
    }

    /// Notes that the backup holds everything before a position, wherever it has it from. The
    /// server's part of it may not have been read yet.
    pub(super) fn handle_log_held(&mut self, position: u64, out: &mut impl PrimaryOutput) {
        if !self.is_direct || position > POSITION_MAX {
            self.counters.messages_ignored += 1;
            return;
        }
        self.held_to = self.held_to.max(position);
        // The ring is freed by whole frames: of one that the backup has in part it may ask for a
        // record, which is found from the frame's start on.
        let in_part = self.unconfirmed.iter().find(|frame| frame.end > position);
        let whole = in_part.map_or(self.framed, |frame| frame.start);
        self.release_to(position.min(whole), out);
        if let Err(reason) = self.pump(self.limits.frames_unconfirmed_max, out) {
            self.break_off(&reason, out);
        }
    }

    fn allow_fins(&self, fins: &[ConnId], out: &mut impl PrimaryOutput) {
        let known = fins.iter().filter(|id| self.conns.contains_key(id));
        known.for_each(|id| out.allow_fin(*id));
    }

    /// The backup holds everything before `pos`: first the ends of streams may leave, then the
    /// writers may go on.
    fn release_to(&mut self, pos: u64, out: &mut impl PrimaryOutput) {
        while let Some(frame) = self.unconfirmed.pop_front_if(|frame| frame.end <= pos) {
            self.allow_fins(&frame.fins, out);
        }
        assert!(pos <= self.framed, "L2: nothing is released that the backup was not sent");
        if pos > self.confirmed {
            self.confirmed = pos;
            out.stable(pos);
        }
    }

    /// Sends the payload of one record again, from the ring.
    pub(super) fn repair(&mut self, frame: u64, index: u32, out: &mut impl PrimaryOutput) {
        let known = self.unconfirmed.iter().find(|known| known.number == frame);
        let Some(range) = known.map(|known| known.start..known.end) else {
            self.counters.needs_ignored += 1;
            return;
        };
        let mut bytes = Vec::new();
        let (mut pos, mut passed) = (range.start, 0);
        while pos < range.end {
            if !out.read_log(pos, HEADER_LEN, &mut bytes) {
                return self.break_off(&Broken::LogLost { pos }, out);
            }
            let Ok((header, op)) = read_header(&bytes) else { break };
            if op != Op::Pad {
                if passed == index {
                    return self.send_payload(frame, index, pos, &header, out);
                }
                passed += 1;
            }
            // The server may have written over the record meanwhile.
            pos = pos.saturating_add(header.len_in_log() as u64);
        }
        self.counters.needs_ignored += 1;
    }

    fn send_payload(
        &mut self,
        frame: u64,
        index: u32,
        pos: u64,
        header: &Header,
        out: &mut impl PrimaryOutput,
    ) {
        let mut bytes = Vec::new();
        let from = pos + HEADER_LEN as u64;
        if !out.read_log(from, header.payload_len as usize, &mut bytes) {
            return self.break_off(&Broken::LogLost { pos: from }, out);
        }
        self.counters.repairs += 1;
        out.send(&Message::Payload { frame, index, bytes: &bytes });
    }
}

/// The record at the start of `bytes`; `None`: only a part of it is there, as may be.
fn next_record(bytes: &[u8], walk: Walk) -> Result<Option<Record<'_>>, LogError> {
    match split(bytes) {
        Err(LogError::Truncated) if walk == Walk::Partial => Ok(None),
        other => other.map(Some),
    }
}

/// The record at the start of `bytes`.
fn split(bytes: &[u8]) -> Result<Record<'_>, LogError> {
    let (header, op) = read_header(bytes)?;
    let record = bytes.get(..header.len_in_log()).ok_or(LogError::Truncated)?;
    Ok((header, op, record))
}

/// Length of the part of a record that is sent.
fn stripped_len(header: &Header, op: Op) -> usize {
    if op == Op::Pad { 0 } else { header.len_sent() }
}
