//! The primary's machine: sends what the shim logs, and tells the shim what is
//! stable and the gate what may leave.

mod frames;
mod sent;

use crate::limits::PrimaryLimits;
use crate::{Broken, Nanos};
use frames::{Frame, Walk};
use holdfast_wire::message::{
    ConnId, ConnKey, ConnProgress, ConnRecord, Message, UNREAD_BYTES_MAX,
};
use holdfast_wire::seq::SeqNo;
use sent::Sent;
use std::collections::{BTreeMap, VecDeque};

/// Largest frame, in bytes of stripped records; only a single record may be longer.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Most frames sent and not confirmed. At the limit the log waits in the ring,
/// and with it the server's writes.
pub const FRAMES_UNCONFIRMED_MAX: usize = 4096;
/// Farthest that one confirmation may move a stream, in bytes; more is
/// nonsense.
const ADVANCE_BYTES_MAX: u64 = 1 << 31;

/// Bytes of a client's stream that the backup lacks and the server may not have
/// read: `[from, until)`, where the client's FIN counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub conn: ConnId,
    /// The server's accept number for the connection, and the cookie of the
    /// kernel's socket.
    pub accept: u32,
    pub socket: u64,
    pub from: u64,
    pub until: u64,
}

/// The outcome of looking for wanted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// The kernel does not have the first wanted byte, or nobody can tell.
    Nothing,
    /// Bytes from the first one on.
    Bytes,
    /// Bytes from the first one on, possibly none, and then the client's FIN.
    Last,
}

/// What the machine wants done; called during `handle_*`, in order.
pub trait PrimaryOutput {
    /// Sends to the backup, in order with earlier messages.
    fn send(&mut self, message: &Message<'_>);
    /// The backup holds the record: let the SYN-ACK go.
    fn open(&mut self, conn: ConnId);
    /// The table is full: drop the SYN-ACK and its slot.
    fn refuse(&mut self, conn: ConnId);
    /// ACKs up to `stable` may leave.
    fn advance(&mut self, conn: ConnId, stable: SeqNo);
    /// Everything in the log before ring position `pos` is held by the backup.
    fn stable(&mut self, pos: u64);
    /// The server asked to end its sending side: FIN and RST may leave.
    fn allow_fin(&mut self, conn: ConnId);
    /// Replaces `into` by `len` bytes of the ring from `pos` on; false if they
    /// are gone. Never asked for bytes before the last `stable`.
    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool;
    /// Replaces `into` by the unread bytes of `wanted` that the kernel holds, and
    /// leaves them there for the server.
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked;
    /// Protection has ended; nothing more is confirmed.
    fn broken(&mut self, reason: &Broken);
}

/// Counts of what the machine ignored or repaired, for status and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests for records of frames that are confirmed or unknown.
    pub needs_ignored: u64,
    /// Confirmations of unknown connections, and those that go backwards or too
    /// far.
    pub held_ignored: u64,
    /// Messages that are not for a primary.
    pub messages_ignored: u64,
    /// Connections refused at [`CONNS_MAX`](crate::CONNS_MAX).
    pub refused_full: u64,
    /// Accepted connections that the gate did not know.
    pub accepts_unknown: u64,
    /// Payloads sent because the tap failed.
    pub repairs: u64,
    /// Bytes sent that the server had not read, because the tap failed.
    pub peeked: u64,
}

/// A connection of a server that has run without a backup.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub id: ConnId,
    /// Cookie of the kernel's socket.
    pub socket: u64,
    pub key: ConnKey,
    /// The initial sequence numbers of client and server.
    pub irs: SeqNo,
    pub iss: SeqNo,
    /// The server's accept number, once it has accepted the connection.
    pub accept: Option<u32>,
    /// Stream bytes that the server has read and written.
    pub in_bytes: u64,
    pub out_bytes: u64,
}

#[derive(Debug)]
struct Conn {
    key: ConnKey,
    /// Cookie of the kernel's socket.
    socket: u64,
    /// Sequence number of the first byte of the client's stream.
    origin: SeqNo,
    held: u64,
    open: bool,
    accept: Option<u32>,
    sent: Sent,
}

/// The primary's machine; see the module.
///
/// # Contract
/// * The machine has no timers. Every `handle_*` has its effects, through
///   `out`, before it returns.
/// * [`handle_log`](Self::handle_log) must see every byte of the ring, in order
///   and in whole records.
/// * After `broken`, [`handle_backup_lost`](Self::handle_backup_lost) or
///   [`handle_server_died`](Self::handle_server_died) it is frozen: nothing is
///   stable, opened, advanced or allowed any more.
#[derive(Debug)]
pub struct Primary {
    conns: BTreeMap<ConnId, Conn>,
    /// Connections of a four-tuple, oldest first: an older one may still wait
    /// for its accept.
    by_key: BTreeMap<ConnKey, Vec<ConnId>>,
    accepts: BTreeMap<u32, ConnId>,
    /// Ring positions: end of what was framed, and end of what the shim
    /// produced.
    framed: u64,
    produced: u64,
    /// End of what the backup confirmed and the machine released (law L2).
    confirmed: u64,
    /// Ring position up to which the backup has said that it holds the log.
    held_to: u64,
    /// Whether frames say where in the log they begin, because the server sends parts of it itself.
    is_direct: bool,
    last_frame: u64,
    unconfirmed: VecDeque<Frame>,
    /// Ring position from which output waits for the backup; `None` if it does
    /// not.
    waits_from: Option<u64>,
    frozen: bool,
    limits: PrimaryLimits,
    counters: Counters,
}

impl Primary {
    /// A machine for a log that starts at ring position `log_start`.
    #[must_use]
    pub fn new(log_start: u64) -> Self {
        Self::with_limits(log_start, PrimaryLimits::DEFAULT)
    }

    /// Like [`new`](Self::new), with the caller's own bounds.
    #[must_use]
    pub fn with_limits(log_start: u64, limits: PrimaryLimits) -> Self {
        Self {
            conns: BTreeMap::new(),
            by_key: BTreeMap::new(),
            accepts: BTreeMap::new(),
            framed: log_start,
            produced: log_start,
            confirmed: log_start,
            held_to: log_start,
            is_direct: false,
            last_frame: 0,
            unconfirmed: VecDeque::new(),
            waits_from: Some(log_start),
            frozen: false,
            limits,
            counters: Counters::default(),
        }
    }

    /// A machine for a log that begins at `log_start` where a server has run alone, with the
    /// connections that it has accepted since, and with the counts of what was ignored
    /// before. Connections beyond the limit are left out, as the gate's slots would be.
    pub fn adopt(
        log_start: u64,
        limits: PrimaryLimits,
        ignored: Counters,
        conns: impl IntoIterator<Item = Taken>,
    ) -> Self {
        let mut this =
            Self { counters: ignored, waits_from: None, ..Self::with_limits(log_start, limits) };
        for Taken { id, socket, key, irs, iss, accept, in_bytes, out_bytes } in conns {
            if this.conns.len() >= limits.conns_max || this.conns.contains_key(&id) {
                continue;
            }
            let origin = irs.plus(1);
            let sent = match accept {
                Some(_) => Sent::after(iss.plus(1), out_bytes),
                None => Sent::new(iss.plus(1)),
            };
            let conn = Conn { key, socket, origin, held: in_bytes, open: true, accept, sent };
            this.conns.insert(id, conn);
            this.by_key.entry(key).or_default().push(id);
            this.accepts.extend(accept.map(|accept| (accept, id)));
        }
        this
    }

    /// Ring position up to which the backup has confirmed the log.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Ring position where the part of the log begins that no frame holds yet, and
    /// the number of the last frame before it.
    #[must_use]
    pub fn framed(&self) -> (u64, u64) {
        (self.framed, self.last_frame)
    }

    /// Ring position up to which the backup has said that it holds the log; it may lie beyond what
    /// was read.
    #[must_use]
    pub fn held_to(&self) -> u64 {
        self.held_to
    }

    /// From now on the server may send parts of its log to the backup itself (decision 35). Returns
    /// whether that has begun; not while frames are under way.
    pub fn begin_direct(&mut self, out: &mut impl PrimaryOutput) -> bool {
        if self.frozen || !self.unconfirmed.is_empty() {
            return false;
        }
        self.is_direct = true;
        out.send(&Message::LogAt { position: self.framed });
        true
    }

    /// The gate holds a SYN-ACK of the kernel's socket with the cookie `socket`:
    /// the backup must have its record first.
    pub fn handle_synack(
        &mut self,
        _now: Nanos,
        id: ConnId,
        socket: u64,
        record: ConnRecord,
        out: &mut impl PrimaryOutput,
    ) {
        if self.frozen || self.conns.contains_key(&id) {
            return;
        }
        self.replace_bound(&record.key);
        if self.conns.len() >= self.limits.conns_max {
            self.counters.refused_full += 1;
            out.refuse(id);
            return;
        }
        let conn = Conn {
            key: record.key,
            socket,
            origin: record.irs.plus(1),
            held: 0,
            open: false,
            accept: None,
            sent: Sent::new(record.iss.plus(1)),
        };
        self.conns.insert(id, conn);
        let max = self.limits.conns_max;
        assert!(self.conns.len() <= max, "L6: more connections than the limit");
        self.by_key.entry(record.key).or_default().push(id);
        out.send(&Message::Conn { conn: id, record });
    }

    /// The shim appended `bytes` (whole records) at ring position `pos`.
    pub fn handle_log(
        &mut self,
        _now: Nanos,
        pos: u64,
        bytes: &[u8],
        out: &mut impl PrimaryOutput,
    ) {
        if self.frozen {
            return;
        }
        if pos != self.produced {
            return self.break_off(&Broken::LogGap { expected: self.produced, got: pos }, out);
        }
        self.produced += bytes.len() as u64;
        // Earlier bytes that still wait in the ring are sent first.
        let result = if self.framed == pos {
            self.frame_up(bytes, Walk::Whole, out)
        } else {
            self.pump(self.limits.frames_unconfirmed_max, out)
        };
        if let Err(reason) = result {
            self.break_off(&reason, out);
        }
    }

    /// Takes one message from the backup.
    pub fn handle_message(
        &mut self,
        _now: Nanos,
        message: &Message<'_>,
        out: &mut impl PrimaryOutput,
    ) {
        if self.frozen {
            // A dead server's log is still repaired: the backup drains it.
            if let Message::Need { frame, index } = message {
                self.repair(*frame, *index, out);
            }
            return;
        }
        match message {
            Message::FrameOk { number } => self.handle_frame_ok(*number, out),
            Message::LogHeld { position } => self.handle_log_held(*position, out),
            Message::ConnOk { conn } => {
                if let Some(known) = self.conns.get_mut(conn)
                    && !known.open
                {
                    known.open = true;
                    out.open(*conn);
                }
            }
            Message::Held { conns } => {
                conns.iter().for_each(|(conn, seq)| self.handle_held(*conn, *seq, out))
            }
            Message::Need { frame, index } => self.repair(*frame, *index, out),
            Message::NeedUnread { conn, from, until } => {
                self.handle_need_unread(*conn, *from, *until, out)
            }
            _ => self.counters.messages_ignored += 1,
        }
    }

    /// Takes the kernel's state of its connections; unknown ones are left out. Read the
    /// log once more after that state was read: a call's intent is in the log before the
    /// call, and output does not wait for its own intent.
    pub fn handle_progress(
        &mut self,
        _now: Nanos,
        progress: &[ConnProgress],
        out: &mut impl PrimaryOutput,
    ) {
        let conns: Vec<_> =
            progress.iter().filter(|p| self.conns.contains_key(&p.conn)).copied().collect();
        if self.frozen || conns.is_empty() {
            return;
        }
        let has_all = self.framed == self.produced;
        let knows_all = has_all && self.waits_from.is_some_and(|from| self.framed >= from);
        let lacking = |p: &ConnProgress| Some((p.conn, self.conns[&p.conn].sent.lacks(p.snd_nxt)?));
        if let Some((conn, (sent, known))) = conns.iter().find_map(lacking).filter(|_| knows_all) {
            return self.break_off(&Broken::Unlogged { conn, sent, known }, out);
        }
        out.send(&Message::Progress { conns });
    }

    /// If a client has acknowledged more than the server had written by what is known of a
    /// connection, and an end: how many bytes, and how many are known. Read the log after
    /// `acked`; while some of it waits in the ring, nobody can tell.
    #[must_use]
    pub fn unwritten(&self, id: ConnId, acked: SeqNo) -> Option<(u64, u64)> {
        let conn = self.conns.get(&id).filter(|_| self.framed == self.produced)?;
        conn.sent.is_exceeded_by(acked)
    }

    /// Output waits for the backup from ring position `pos` on.
    pub fn output_waits(&mut self, pos: u64) {
        self.waits_from = Some(pos);
    }

    /// The log has ended with its server: what still leaves has no record.
    pub fn end_log(&mut self) {
        self.waits_from = None;
    }

    /// The connection is over on the wire: the client reset it, or both FINs are
    /// acknowledged. A client whose FIN still awaits its (clamped) ACK needs the
    /// backup, even if it has acknowledged the server's FIN (decision 15).
    pub fn handle_gone(&mut self, _now: Nanos, id: ConnId, out: &mut impl PrimaryOutput) {
        if !self.frozen && self.forget(id) {
            out.send(&Message::Gone { conn: id });
        }
    }

    /// The server's process is dead. What it logged is sent, then the end is
    /// announced. Nothing is confirmed any more: whatever the dying kernel still
    /// sends was committed before (decision 11).
    pub fn handle_server_died(&mut self, _now: Nanos, out: &mut impl PrimaryOutput) {
        if self.frozen {
            return;
        }
        if let Err(reason) = self.pump(usize::MAX, out) {
            return self.break_off(&reason, out);
        }
        self.frozen = true;
        out.send(&Message::ServerDied { last: self.last_frame });
    }

    /// The backup is gone: the service waits (no solo before a takeover).
    pub fn handle_backup_lost(&mut self) {
        self.frozen = true;
        self.unconfirmed.clear();
    }

    /// Whether the server has not accepted the connection yet, as far as the
    /// log tells.
    #[must_use]
    pub fn awaits_accept(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.accept.is_none())
    }

    /// Whether the backup is told of the connection: of none while there is no backup,
    /// nor of an accepted one whose tuple has had another life since.
    #[must_use]
    pub fn follows(&self, id: ConnId) -> bool {
        !self.frozen && self.conns.contains_key(&id)
    }

    /// Frames that were sent and that the backup has not confirmed; at most
    /// [`FRAMES_UNCONFIRMED_MAX`] while the server lives.
    #[must_use]
    pub fn frames_unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// What was ignored so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn break_off(&mut self, reason: &Broken, out: &mut impl PrimaryOutput) {
        self.frozen = true;
        self.unconfirmed.clear();
        out.broken(reason);
    }

    fn handle_held(&mut self, id: ConnId, seq: SeqNo, out: &mut impl PrimaryOutput) {
        let moved = self.conns.get_mut(&id).and_then(|conn| {
            let held = seq.offset_near(conn.origin, conn.held);
            let new = held > conn.held && held - conn.held < ADVANCE_BYTES_MAX;
            new.then(|| conn.held = held)
        });
        match moved {
            Some(()) => out.advance(id, seq),
            None => self.counters.held_ignored += 1,
        }
    }

    /// Answers every question, if only with "nothing": the backup waits for an
    /// answer. A connection that was not accepted has no descriptor.
    fn handle_need_unread(
        &mut self,
        id: ConnId,
        from: u64,
        until: u64,
        out: &mut impl PrimaryOutput,
    ) {
        let known = self.conns.get(&id).and_then(|conn| Some((conn.accept?, conn.socket)));
        let mut bytes = Vec::new();
        let mut peeked = Peeked::Nothing;
        if let Some((accept, socket)) = known {
            let until = until.min(from.saturating_add(UNREAD_BYTES_MAX as u64));
            let wanted = Wanted { conn: id, accept, socket, from, until };
            peeked = out.peek(&wanted, &mut bytes);
        }
        if peeked == Peeked::Nothing {
            bytes.clear();
        }
        self.counters.peeked += bytes.len() as u64;
        let last = peeked == Peeked::Last;
        out.send(&Message::Unread { conn: id, offset: from, bytes: &bytes, last });
    }

    /// Handles a new connection on the tuple of an accepted one: the client has
    /// given the older one up, and both members forget it (the backup by
    /// itself).
    fn replace_bound(&mut self, key: &ConnKey) {
        let older = self.by_key.get(key).cloned().unwrap_or_default();
        for id in older {
            if self.conns.get(&id).is_some_and(|conn| conn.accept.is_some()) {
                self.forget(id);
            }
        }
    }

    /// Finds the very socket that was accepted: a tuple may have more than one,
    /// such as one that an old SYN began and that nobody will ever accept. A socket may have two
    /// connections, if its SYN-ACK was repeated before the gate knew it; the gate goes on with the
    /// newer one.
    fn bind(&mut self, key: &ConnKey, socket: u64, accept: u32) -> Option<ConnId> {
        let ids = self.by_key.get(key)?;
        let is_it = |conn: &Conn| conn.socket == socket && conn.accept.is_none();
        let id = *ids.iter().rev().find(|id| self.conns.get(id).is_some_and(is_it))?;
        let replaced = ids.last() != Some(&id);
        self.conns.get_mut(&id)?.accept = Some(accept);
        self.accepts.insert(accept, id);
        if replaced {
            self.forget(id);
        }
        Some(id)
    }

    fn forget(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.conns.remove(&id) else { return false };
        if let Some(accept) = conn.accept {
            self.accepts.remove(&accept);
        }
        if let Some(ids) = self.by_key.get_mut(&conn.key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_key.remove(&conn.key);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
