//! The backup's machine: holds what clients send (from the tap) and what the
//! primary's server did (from the log), confirms both, and feeds the replica.

mod conns;
mod counters;
mod early;
mod log;
mod unread;

pub use counters::Counters;
pub use unread::{UNREAD_AFTER, UNREAD_ANSWER, UNREAD_ASKED_MAX, UNREAD_PAUSE_MAX};

use crate::limits::{Limits, Pool};
use crate::promotion::Promotion;
use crate::tap::Usage;
use crate::{Broken, Lag, Nanos};
use conns::{Accepted, Conn};
use early::Early;
use holdfast_wire::hash::HashKey;
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, Message};
use holdfast_wire::packet::TcpPacket;
use log::Log;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use unread::Gaps;

/// Time for which a read waits for the tap before the primary is asked.
pub const NEED_AFTER: Nanos = Nanos(300_000);
/// Longest time for which a promotion waits for frames that a living peer still
/// sends.
pub const PROMOTE_DRAIN_MAX: Nanos = Nanos::from_ms(5);
/// Most bytes of frames that wait for the tap; more breaks the pair. The
/// primary's ring holds less, so an honest peer never gets there.
pub const FRAMES_QUEUED_MAX: usize = 64 << 20;
/// Most SYNs remembered for tuples without a record; the oldest is dropped
/// first.
pub const SYNS_MAX: usize = 1024;
/// Age after which a SYN is forgotten: the client has repeated it by then.
pub const SYN_AGE_MAX: Nanos = Nanos::from_ms(3000);
/// Most bytes tapped before their connection's record; later ones are refused, or, where a joiner
/// has not heard of any connection yet, the oldest are forgotten.
pub const EARLY_BYTES_MAX: usize = 16 << 20;
/// Most accepted connections that the log may have open; more breaks the pair.
pub const ACCEPTS_MAX: usize = 2 * crate::CONNS_MAX;

/// What the machine wants done; called during `handle_*`, in order.
pub trait BackupOutput {
    /// Sends to the primary, in order with earlier messages.
    fn send(&mut self, message: &Message<'_>);
    /// Appends one record, its payload in pieces, to the replica's ring. False
    /// if the ring has no room: nothing was taken, and [`Backup::handle_room`]
    /// must be called once there is room.
    #[must_use]
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool;
    /// The client acknowledged this many bytes of what the server wrote (the
    /// server's FIN may count as one more). Older output need not be retained.
    fn acked(&mut self, accept: u32, bytes: u64);
    /// The connection is over; none of its state need be kept.
    fn gone(&mut self, accept: u32);
    /// The primary says that its server's process is dead.
    fn server_died(&mut self);
    /// Every record that could be replayed was replayed; [`Backup::plan`] is
    /// possible.
    fn log_ended(&mut self);
    /// The peer and this member no longer understand each other. Nothing is
    /// confirmed any more, and this member must not be promoted.
    fn broken(&mut self, reason: &Broken);
}

/// How far this member has gone from following to promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Confirms what it holds.
    Following,
    /// Confirms nothing; still takes frames up to `last`.
    Draining {
        last: u64,
        until: Nanos,
    },
    /// Takes no more frames; waits for room in the replica's ring.
    Ending,
    Ended,
    Broken,
}

/// Memory that connections share.
#[derive(Debug)]
struct Pools {
    held: Pool,
    aside: Pool,
}

impl Pools {
    /// Notes that a connection took `before` bytes and takes `after` now.
    fn note(&mut self, before: Usage, after: Usage) {
        self.held.note(before.held, after.held);
        self.aside.note(before.aside, after.aside);
    }
}

/// The backup's machine; see the module.
///
/// # Contract
/// * `handle_segment`, `handle_message`, `handle_room` and `handle_timeout` take
///   one input each; replay, requests and notices leave through `out` at once.
/// * Confirmations wait for [`flush`](Self::flush): call it after each batch of
///   inputs, before sleeping.
/// * Sleep no longer than until [`next_deadline`](Self::next_deadline), then
///   call `handle_timeout`. Calling it early is harmless.
/// * [`begin_promotion`](Self::begin_promotion) ends confirming for ever. After
///   `log_ended`, [`plan`](Self::plan) hands everything to a [`Promotion`].
#[derive(Debug)]
pub struct Backup {
    phase: Phase,
    key: HashKey,
    conns: BTreeMap<ConnId, Conn>,
    by_key: BTreeMap<ConnKey, ConnId>,
    accepts: BTreeMap<u32, Accepted>,
    /// Connections to forget, each once its frame is resolved.
    leaving: BTreeSet<(u64, ConnId)>,
    log: Log,
    /// Connections with news for [`Message::Held`].
    dirty: BTreeSet<ConnId>,
    gaps: Gaps,
    lag: Lag,
    /// Records for which there is no room, since the primary forgets ended connections
    /// sooner. Their SYN-ACKs wait with them.
    waiting: VecDeque<(ConnId, ConnRecord)>,
    early: Early,
    /// Bytes of output from before the join that connections keep.
    earlier_bytes: usize,
    limits: Limits,
    pools: Pools,
    peer_lost: bool,
    server_died: Option<u64>,
    /// Whether it is still joining, not yet in step: nobody waits for its
    /// replica.
    joins: bool,
    /// Whose bytes the log has given to the server last.
    last_input: Option<ConnKey>,
    counters: Counters,
}

impl Backup {
    /// A machine that knows nothing yet; `key` is the group's hash key.
    #[must_use]
    pub fn new(key: HashKey) -> Self {
        Self::with_limits(key, Limits::default())
    }

    /// Like [`new`](Self::new), with the caller's own bounds.
    #[must_use]
    pub fn with_limits(key: HashKey, limits: Limits) -> Self {
        Self {
            phase: Phase::Following,
            key,
            conns: BTreeMap::new(),
            by_key: BTreeMap::new(),
            accepts: BTreeMap::new(),
            leaving: BTreeSet::new(),
            log: Log::default(),
            dirty: BTreeSet::new(),
            gaps: Gaps::default(),
            lag: Lag::default(),
            waiting: VecDeque::new(),
            early: Early::new(limits),
            earlier_bytes: 0,
            limits,
            pools: Pools { held: Pool::new(limits.held), aside: Pool::new(limits.aside) },
            peer_lost: false,
            server_died: None,
            joins: false,
            last_input: None,
            counters: Counters::default(),
        }
    }

    /// Like [`with_limits`](Self::with_limits), for a server that already runs:
    /// connections are [adopted](Self::adopt), and frames are confirmed as soon as they
    /// are held, until [`joined`](Self::joined).
    #[must_use]
    pub fn joining(key: HashKey, limits: Limits) -> Self {
        let mut this = Self { joins: true, ..Self::with_limits(key, limits) };
        this.early.keep_strangers();
        this
    }

    /// The replica, built from an image, begins with the records that wait for it:
    /// all connections of the image have been adopted.
    pub fn replica_begins(&mut self, now: Nanos) {
        self.lag = Lag::default();
        self.early.forget_strangers(now);
    }

    /// The replica has caught up with the log: from now on it sets the pace.
    pub fn joined(&mut self) {
        self.joins = false;
    }

    /// Takes one segment of a client from the edge's copies.
    pub fn handle_segment(
        &mut self,
        now: Nanos,
        segment: &TcpPacket<'_>,
        out: &mut impl BackupOutput,
    ) {
        if self.phase == Phase::Broken {
            return;
        }
        self.counters.segments += 1;
        let Some(grown) = self.tap(now, segment) else { return };
        self.dirty.insert(grown);
        if self.log.waits_for(grown) {
            self.resume(now, out);
        }
        self.resume_direct(Some(grown), out);
    }

    /// Takes one message from the primary. Messages of other conversations are
    /// ignored.
    pub fn handle_message(
        &mut self,
        now: Nanos,
        message: &Message<'_>,
        out: &mut impl BackupOutput,
    ) {
        if matches!(self.phase, Phase::Ending | Phase::Ended | Phase::Broken) {
            self.counters.messages_late += 1;
            return;
        }
        match message {
            Message::Frame { number, records } => {
                self.handle_frame(now, (*number, None), records, out);
            }
            Message::FrameAt { number, position, records } => {
                self.handle_frame(now, (*number, Some(*position)), records, out);
            }
            Message::LogAt { position } => self.handle_log_at(*position, out),
            Message::Payload { frame, index, bytes } => {
                self.handle_payload(now, *frame, *index, bytes, out)
            }
            Message::Unread { conn, offset, bytes, last } => {
                self.handle_unread(now, *conn, *offset, bytes, *last, out);
            }
            Message::Conn { conn, record } => self.handle_conn(now, *conn, *record, out),
            Message::Earlier { conn, offset, bytes } => self.handle_earlier(*conn, *offset, bytes),
            Message::Progress { conns } => {
                for progress in conns {
                    self.handle_progress(now, progress, out);
                }
            }
            Message::Gone { conn } => {
                self.handle_gone(*conn, out);
                // Perhaps nothing is left to confirm, so that no flush follows.
                self.admit_waiting(now, out);
            }
            Message::ServerDied { last } => {
                self.server_died = Some(*last);
                out.server_died();
                self.begin_promotion(now, out);
            }
            _ => self.counters.messages_late += 1,
        }
    }

    /// The replica's ring has room again.
    pub fn handle_room(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        if self.phase != Phase::Broken && self.phase != Phase::Ended {
            self.resume(now, out);
            self.resume_direct(None, out);
        }
    }

    /// The channel to the primary has ended, or the primary was declared dead.
    /// Nothing more can come; a promotion that waits goes on.
    pub fn handle_peer_lost(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        self.peer_lost = true;
        if matches!(self.phase, Phase::Draining { .. }) {
            self.end_log(now, out);
        }
    }

    /// Stops confirming for ever. With a peer that still sends what its dead
    /// server logged, waits up to [`PROMOTE_DRAIN_MAX`] for that; then the log
    /// ends before the first read whose bytes are not here.
    pub fn begin_promotion(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        if self.phase != Phase::Following {
            return;
        }
        self.dirty.clear();
        match self.server_died {
            Some(last) if !self.peer_lost => {
                self.phase = Phase::Draining { last, until: now.plus(PROMOTE_DRAIN_MAX) };
                self.drain(now, out);
            }
            _ => self.end_log(now, out),
        }
    }

    /// Where the replica stands in its ring. As long as it is behind, frames
    /// are not confirmed (decision 23).
    pub fn handle_executed(&mut self, now: Nanos, appended: u64, executed: u64) {
        self.lag.note(now, appended, executed);
    }

    /// Whether there are frames to confirm with the next [`flush`](Self::flush)
    /// in which the replica is not [behind](Self::is_behind).
    #[must_use]
    pub fn owes_confirmation(&self) -> bool {
        self.phase == Phase::Following && self.log.has_confirmable()
    }

    /// Whether the primary must wait for the replica.
    #[must_use]
    pub fn is_behind(&self, now: Nanos) -> bool {
        !self.joins && self.lags(now)
    }

    /// Whether the replica is behind what was appended for it.
    #[must_use]
    pub fn lags(&self, now: Nanos) -> bool {
        self.lag.is_behind(now)
    }

    /// The last frame that has gone to the replica completely.
    #[must_use]
    pub fn resolved(&self) -> u64 {
        self.log.resolved()
    }

    /// Whether the replica has log to run and does not run it (decision 23); then it
    /// can only be given up. `is_busy`: it computes, or waits for a processor or a
    /// disk.
    #[must_use]
    pub fn is_hung(&self, is_busy: impl FnOnce() -> bool) -> bool {
        self.lag.is_hung(is_busy)
    }

    /// Whether the server waits for [`Self::take_held`].
    #[must_use]
    pub fn owes_server(&self) -> bool {
        self.phase == Phase::Following && self.log.owes_server()
    }

    /// Whether something that the server has sent itself waits for the tap.
    #[must_use]
    pub fn has_rest(&self) -> bool {
        self.phase == Phase::Following && self.log.has_rest()
    }

    /// The position of the log to confirm to the server that has sent it, if there is a new one.
    pub fn take_held(&mut self, now: Nanos) -> Option<u64> {
        let may = self.phase == Phase::Following && !self.is_behind(now);
        if may { self.log.take_held() } else { None }
    }

    /// Confirms what the batch brought: the last complete frame and the
    /// streams.
    pub fn flush(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        if self.phase != Phase::Following {
            return;
        }
        self.admit_waiting(now, out);
        if !self.is_behind(now) {
            if let Some(number) = self.log.take_confirmable() {
                out.send(&Message::FrameOk { number });
            }
            if let Some(position) = self.log.take_held_for_daemon() {
                out.send(&Message::LogHeld { position });
            }
        }
        let conns = &self.conns;
        let held: Vec<_> = self
            .dirty
            .iter()
            .filter_map(|id| conns.get(id).map(|conn| (*id, conn.tap.held())))
            .collect();
        self.dirty.clear();
        if !held.is_empty() {
            out.send(&Message::Held { conns: held });
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let own = match self.phase {
            Phase::Draining { until, .. } => Some(until),
            Phase::Following => self.gaps.next(),
            Phase::Ending | Phase::Ended | Phase::Broken => return None,
        };
        [own, self.log.need_at()].into_iter().flatten().min()
    }

    /// Asks for what the tap failed to bring, and ends a drain that took too long.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        match self.phase {
            Phase::Draining { until, .. } if now >= until => self.end_log(now, out),
            Phase::Draining { .. } => self.log.ask_if_due(now, out),
            Phase::Following => {
                self.log.ask_if_due(now, out);
                self.ask_for_unread(now, out);
            }
            Phase::Ending | Phase::Ended | Phase::Broken => {}
        }
    }

    /// Hands the connections over to a promotion. `None` before `log_ended`.
    pub fn plan(&mut self, now: Nanos) -> Option<Promotion> {
        if self.phase != Phase::Ended {
            return None;
        }
        for (_, id) in std::mem::take(&mut self.leaving) {
            self.conns.remove(&id);
        }
        let syns = self.early.take_syns(now);
        let conns = std::mem::take(&mut self.conns);
        let planned = conns.into_values().map(|conn| self.planned(conn)).collect();
        Some(Promotion::new(planned, syns, self.limits))
    }

    /// Whose bytes the log has given to the server last.
    #[must_use]
    pub fn last_input(&self) -> Option<ConnKey> {
        self.last_input
    }

    /// What was ignored or repaired so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections that the primary has announced and not ended; the tap keeps what
    /// was not read of them.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Frames that are here and not confirmed, and their bytes: the first one
    /// waits for the tap, or for room in the replica's ring.
    #[must_use]
    pub fn unresolved(&self) -> (usize, usize) {
        self.log.queued()
    }

    /// Ends all confirming and accepting.
    fn break_off(&mut self, reason: &Broken, out: &mut impl BackupOutput) {
        self.phase = Phase::Broken;
        out.broken(reason);
    }

    /// Ends a drain when everything the peer had is resolved.
    fn drain(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        if let Phase::Draining { last, .. } = self.phase
            && self.log.resolved() >= last
        {
            self.end_log(now, out);
        }
    }

    fn end_log(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        self.phase = Phase::Ending;
        self.resume(now, out);
    }
}

#[cfg(test)]
mod tests;
