//! The primary: the shim's log and the gate's connections go to the backup; what it
//! confirms lets the server write and the gate acknowledge.

mod apart;
mod closing;
mod conn;
mod doubt;
mod half_open;
mod join;
mod lacking;

pub use join::{AGAIN, Book, Image};
pub use lacking::{Earlier, Unacked};

use crate::host::{Member, MemberHost, Turn, tell_vanished};
use crate::nanos;
use crate::pairing::PairingHost;
use crate::timing::primary::{
    ATTACH_MAX, CLOSING_EVERY, OWED_BYTES, OWED_WAIT, PROGRESS_EVERY, PROGRESS_PER_CONN,
    REPORT_EVERY, TICK,
};
use apart::Stage;
use conn::Conn;
use doubt::{Doubt, SILENT};
use half_open::HalfOpen;
use holdfast_cluster::Nanos;
use holdfast_replica::Broken;
use holdfast_replica::limits::PrimaryLimits;
use holdfast_replica::primary::{Counters, Peeked, Primary, PrimaryOutput, Wanted};
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, ConnProgress, ConnRecord, Message};
use holdfast_wire::seq::SeqNo;
use join::{Closing, Joiner, Tried};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;

const UNATTACHED: &str = "the server runs without the shim, so that nothing of it can be replicated: \
    it is a static or setuid program, or starts another one without LD_PRELOAD; \
    name the server itself in `command`, linked dynamically";
/// The log lies in memory that the server can write to.
const OVERWRITTEN: &str = "the server has written over the log that it shares with its daemon; \
    look for a server that writes where it should not";
const LOST: &str = "the channel to the backup was lost";

/// A SYN-ACK that the gate holds back, or has let pass where the server speaks alone.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub conn: ConnId,
    /// Names the socket among all that its tuple ever had.
    pub socket: u64,
    pub record: ConnRecord,
}

/// What a primary needs of its host.
pub trait PrimaryHost: MemberHost + PairingHost + Sized {
    /// A part of the log.
    type Bytes: Deref<Target = [u8]>;

    // The gate.

    /// SYN-ACKs that have come to it since the last time.
    fn held(&mut self) -> Vec<Held>;
    fn conn_of(&self, key: &ConnKey) -> Option<ConnId>;
    fn slot(&self, conn: ConnId) -> Option<SlotView>;
    /// Lets a connection's SYN-ACK out, and from now on what follows.
    fn open(&mut self, conn: ConnId);
    /// Forgets a connection; a SYN-ACK that is held is never sent.
    fn free(&mut self, conn: ConnId);
    fn set_stable(&mut self, conn: ConnId, stable: SeqNo);
    fn allow_fin(&mut self, conn: ConnId);
    /// No FIN or RST of the kernel leaves any more.
    fn set_server_dead(&mut self);

    // The log.

    /// A shim runs in the server.
    fn is_attached(&self) -> bool;
    /// Where the log ends.
    fn tail(&self) -> u64;
    /// As [`Self::tail`], for who has read up to `from`; `None`: it went back.
    fn take_tail(&mut self, from: u64) -> Option<u64>;
    fn bytes(&self, pos: u64, len: usize) -> Self::Bytes;
    /// The server writes no log that would be missed by who sleeps after reading up
    /// to `read_to`.
    fn may_sleep(&mut self, read_to: u64) -> bool;
    fn set_log_stable(&mut self, pos: u64);
    /// The shim cannot go on recording, in words.
    fn log_fault(&self) -> Option<String>;
    /// Looks at what a connection's socket holds unread.
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked;

    // The server.

    /// Stops it where it is.
    fn pause_server(&mut self);
    /// As [`MemberHost::kill_server`], without waiting for its end.
    fn strike_server(&mut self);
    /// From now on no death of ours touches the service: the gate lets everything pass and
    /// keeps its books, as the shim does, and held SYN-ACKs are sent.
    ///
    /// # Errors
    /// When the gate cannot be opened, in words.
    fn go_alone(&mut self) -> Result<(), String>;
    /// How many handshakes the smallest listener bears, if there is one.
    fn backlog(&mut self) -> Option<usize>;
    /// Ends connections in the kernel; whether it did.
    fn destroy(&mut self, keys: &[ConnKey]) -> bool;
    /// Server and gate have nothing more to say that anybody reads.
    fn stop_watching(&mut self);

    // The backup.

    /// Hands on what has come; whether the channel is lost.
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool;
    fn send(&mut self, message: &Message<'_>);
    /// Whether what was to be sent is on its way, as far as there is room.
    fn flush(&mut self) -> bool;
    /// The channel is of no use any more.
    fn drop_peer(&mut self);

    // A joiner, while the server speaks alone.

    /// What a member does beside a server that speaks alone and that somebody may join.
    fn stand_beside(&mut self);
    /// Whoever comes hears that it cannot join now.
    fn turn_away(&mut self, reason: &str);
    /// Who has just been met is the one that joins.
    fn admit(&mut self);
    /// Living connections of the server that the gate does not know: it would let nothing
    /// of them pass any more.
    fn strangers(&mut self) -> usize;
    /// Begins to copy the server as it is at one moment, at which its log begins; its output
    /// does not wait for it. What the kernel holds then for the clients of the `slow` sockets is
    /// copied too.
    ///
    /// # Errors
    /// In words; the server goes on as before.
    fn take_image(&mut self, slow: &[u64]) -> Result<(), String>;
    /// What has become of it; `None`: that moment has not come.
    fn image_taken(&mut self) -> Option<Result<Image, String>>;
    /// The connections that it had accepted then, and of those that it had let go of by then
    /// what the kernel still has: no other way tells them from what it has not accepted.
    fn books(&mut self) -> Vec<Book>;
    /// Output of the slow sockets, as far as there was room for it.
    fn earlier(&mut self) -> Vec<Earlier>;
    /// Sockets of connections that it has accepted until now, but those that it has let go of
    /// long ago.
    fn sockets(&mut self) -> BTreeSet<u64>;
    /// The next bytes of the image, at most so many; none are left if it gives none.
    /// `None`: they are not there yet.
    ///
    /// # Errors
    /// In words: the image will never be whole.
    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String>;
    /// Nobody needs the image any more, and from here on nobody takes one.
    fn drop_image(&mut self);
    /// The joiner holds the log before `pos`: its room may be used again.
    fn free_log(&mut self, pos: u64);
    /// The server will not have to wait for room soon.
    fn has_log_room(&self) -> bool;
    /// Nobody follows the log any more, and none did: it ends.
    fn end_log(&mut self);
    /// Output waits from now on until what it depends on is stable, as it is up to `pos`.
    fn commit(&mut self, pos: u64);
    /// From now on ACKs wait, and what else the gate holds back.
    ///
    /// # Errors
    /// When the kernel refuses, in words; the gate stands open as before.
    fn clamp(&mut self) -> Result<(), String>;
    /// What each connection's client has not acknowledged; `None`: the kernel does not tell.
    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>>;

    /// How things are, now and then.
    fn report(&mut self, report: &Report<'_>);
}

/// See [`PrimaryHost::report`].
#[derive(Debug)]
pub struct Report<'a> {
    pub is_attached: bool,
    /// The backup does not answer, and the edge is asked to bar it.
    pub is_in_doubt: bool,
    pub connections: usize,
    pub frames_unconfirmed: usize,
    /// Of the log, read and not executed by the replica at its last heartbeat.
    pub unexecuted: u64,
    pub log_at: u64,
    pub counters: &'a Counters,
    /// Handshakes that had to make room.
    pub handshakes_ended: u64,
    /// Somebody joins, and so many hundredths of the server's image are there; `None`: the
    /// backup follows, or there is none.
    pub joins: Option<u8>,
}

/// What effects of the log's machine change here.
#[derive(Debug, Default)]
struct Tables {
    conns: BTreeMap<ConnId, Conn>,
    /// ACKs that the gate owes clients, since when.
    owed: BTreeMap<ConnId, Nanos>,
    ending: BTreeSet<ConnId>,
    broken: Option<String>,
    /// The backup said that it cannot follow.
    gave_up: bool,
    /// What a joiner has said.
    joiner: Joiner,
    /// Output waits for confirmation: always, but while somebody joins.
    is_committing: bool,
}

/// See the module.
///
/// # Contract
/// [`PrimaryMachine::turn`] is called when something has come, and at the time that
/// it has said.
#[derive(Debug)]
pub struct PrimaryMachine {
    stage: Stage,
    log: Primary,
    tables: Tables,
    half_open: HalfOpen,
    doubt: Option<Doubt>,
    /// It hands over, and is the other one's backup then.
    returns: bool,
    limits: PrimaryLimits,
    /// See [`Report::joins`].
    joins: Option<u8>,
    closing: Option<Closing>,
    tried: Option<Tried>,
    /// Connections that are over, whose slots wait for late packets.
    linger: VecDeque<(Nanos, ConnId)>,
    linger_max: usize,
    log_at: u64,
    unexecuted: u64,
    /// Since when no shim runs in the server; `None`: one does.
    unattached: Option<Nanos>,
    progress_at: Nanos,
    closing_at: Nanos,
    strays_looked: Nanos,
    report_at: Nanos,
}

/// The log's machine at work on the host.
struct Acting<'a, H> {
    host: &'a mut H,
    tables: &'a mut Tables,
    /// Messages for a channel that is just being read, encoded.
    outbox: Option<&'a mut Vec<Vec<u8>>>,
}

impl<H: PrimaryHost> PrimaryOutput for Acting<'_, H> {
    fn send(&mut self, message: &Message<'_>) {
        match &mut self.outbox {
            None => self.host.send(message),
            Some(outbox) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                outbox.push(bytes);
            }
        }
    }

    fn open(&mut self, conn: ConnId) {
        self.host.open(conn);
    }

    fn refuse(&mut self, conn: ConnId) {
        if !self.tables.is_committing {
            // It lives: nobody waits for a joiner, nor is anybody sent away for one.
            self.tables.broken.get_or_insert_with(|| join::TOO_MANY.into());
            return;
        }
        self.tables.conns.remove(&conn);
        self.host.free(conn);
    }

    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.host.set_stable(conn, stable);
        let now = self.host.now();
        self.tables.owed.entry(conn).or_insert(now);
    }

    fn stable(&mut self, pos: u64) {
        match self.tables.is_committing {
            true => self.host.set_log_stable(pos),
            false => self.host.free_log(pos),
        }
    }

    fn allow_fin(&mut self, conn: ConnId) {
        self.host.allow_fin(conn);
        if let Some(known) = self.tables.conns.get_mut(&conn) {
            known.ending = true;
            self.tables.ending.insert(conn);
        }
    }

    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        let bytes = self.host.bytes(pos, len);
        into.clear();
        into.extend_from_slice(&bytes);
        bytes.len() == len
    }

    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        self.host.peek(wanted, into)
    }

    fn broken(&mut self, reason: &Broken) {
        self.tables.broken = Some(reason.to_string());
    }
}

impl PrimaryMachine {
    /// The server has just been started, and the backup follows. At most `linger_max`
    /// connections that are over keep their slots: half of these.
    pub fn new(linger_max: usize, host: &mut impl PrimaryHost) -> Self {
        Self::with_limits(linger_max, PrimaryLimits::DEFAULT, host)
    }

    /// As [`new`](Self::new), with bounds of one's own.
    pub fn with_limits(
        linger_max: usize,
        limits: PrimaryLimits,
        host: &mut impl PrimaryHost,
    ) -> Self {
        let now = host.now();
        let Member { speaks, watch, .. } = host.member();
        *speaks = true;
        watch.renew(now);
        Self {
            stage: Stage::Serving,
            log: Primary::with_limits(0, limits),
            tables: Tables { is_committing: true, ..Tables::default() },
            // Half of what may linger, and so a quarter of the gate's slots at most.
            half_open: HalfOpen::new(linger_max / 2, now),
            doubt: None,
            returns: false,
            limits,
            joins: None,
            closing: None,
            tried: None,
            linger: VecDeque::new(),
            linger_max,
            log_at: 0,
            unexecuted: 0,
            unattached: Some(now),
            progress_at: now,
            closing_at: now,
            strays_looked: now,
            report_at: now,
        }
    }

    /// A turn; `stop`: the operator ends this member.
    pub fn turn(&mut self, stop: bool, host: &mut impl PrimaryHost) -> Turn {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let (stage, turn) = match stage {
            Stage::Serving => self.serve(stop, host),
            apart => self.turn_apart(apart, stop, host),
        };
        self.stage = stage;
        turn
    }

    fn serve(&mut self, stop: bool, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        let (opened, granted) = self.hear_edge(host);
        if let Some(epoch) = granted {
            return self.bar_backup(epoch, host);
        }
        self.tell_vanished(host);
        self.returns = std::mem::take(&mut host.member().hands_over);
        if stop || self.returns {
            return self.hand_over(host);
        }
        if let Some(newer) = host.member().replaced_by() {
            return self.stand_down(&newer, host);
        }
        if host.has_server_ended() {
            return self.server_ended(host);
        }
        if self.is_attached(host) {
            self.take_held(host);
        }
        self.take_log(host);
        let lost = self.take_messages(host);
        self.settle_closing(host);
        self.settle(host);
        let broken = self.tables.broken.take().or_else(|| host.log_fault());
        if let Some(reason) = broken.or(lost.then(|| LOST.to_owned())) {
            return self.ask_to_go_alone(reason, host);
        }
        if self.doubts_for_good(opened, host) {
            return self.ask_to_go_alone(SILENT.to_owned(), host);
        }
        let turn = match host.may_sleep(self.log_at) {
            true => Turn::Until(self.deadline(host)),
            false => Turn::Busy,
        };
        (Stage::Serving, turn)
    }

    /// While a backup follows only the gate says which clients have vanished.
    fn tell_vanished(&self, host: &mut impl PrimaryHost) {
        let conns = &self.tables.conns;
        tell_vanished(host, |host, keys| {
            let known = |key| host.conn_of(key).is_some_and(|conn| conns.contains_key(&conn));
            Some(keys.iter().map(known).collect())
        });
    }

    /// Whether a shim runs in the server. Until then, and while the server becomes
    /// another program, no connection is let in: nothing would be in the log.
    fn is_attached(&mut self, host: &mut impl PrimaryHost) -> bool {
        let now = host.now();
        if host.is_attached() {
            if self.unattached.take().is_some() {
                // Its listeners are looked at first.
                self.report_at = now;
            }
            return true;
        }
        let since = *self.unattached.get_or_insert(now);
        if now.since(since) > nanos(ATTACH_MAX) {
            self.tables.broken.get_or_insert_with(|| UNATTACHED.into());
        }
        false
    }

    /// Lets the log's machine act.
    fn act<H: PrimaryHost>(
        &mut self,
        host: &mut H,
        act: impl FnOnce(&mut Primary, &mut Acting<'_, H>),
    ) {
        act(&mut self.log, &mut Acting { host, tables: &mut self.tables, outbox: None });
    }

    /// Which connections have begun.
    fn take_held(&mut self, host: &mut impl PrimaryHost) -> Vec<ConnId> {
        let held = host.held();
        let ids = held.iter().map(|held| held.conn).collect();
        for Held { conn, socket, record } in held {
            let now = host.now();
            self.half_open.begun(conn, now);
            self.tables.conns.insert(conn, Conn::new(socket, record, now));
            self.act(host, |log, out| log.handle_synack(now, conn, socket, record, out));
        }
        ids
    }

    fn take_log(&mut self, host: &mut impl PrimaryHost) {
        let Some(tail) = host.take_tail(self.log_at) else {
            self.tables.broken.get_or_insert_with(|| OVERWRITTEN.into());
            return;
        };
        if tail == self.log_at {
            return;
        }
        assert!(tail > self.log_at, "the log went back to {tail} from {}", self.log_at);
        let at = std::mem::replace(&mut self.log_at, tail);
        let (now, bytes) = (host.now(), host.bytes(at, (tail - at) as usize));
        self.act(host, |log, out| log.handle_log(now, at, &bytes, out));
    }

    /// Returns true when the backup is lost.
    fn take_messages(&mut self, host: &mut impl PrimaryHost) -> bool {
        let mut outbox = Vec::new();
        let Self { log, tables, unexecuted, log_at, .. } = self;
        let lost = host.recv(&mut |host, message| {
            let now = host.now();
            tables.joiner.note(message);
            if let Message::Beat { number, echo, executed } = *message {
                host.member().watch.handle_beat(now, number, echo);
                *unexecuted = log_at.saturating_sub(executed);
                return;
            }
            host.member().watch.handle_received(now);
            if let Message::GaveUp { state, reason } = message {
                let gave_up = || format!("the backup gave up: {state}: {reason}");
                tables.broken.get_or_insert_with(gave_up);
                tables.gave_up = true;
            }
            let mut acting = Acting { host, tables, outbox: Some(&mut outbox) };
            log.handle_message(now, message, &mut acting);
        });
        for bytes in outbox {
            if let Ok(message) = Message::decode(&bytes) {
                host.send(&message);
            }
        }
        lost
    }

    /// What is due between events: owed ACKs, progress, ended connections, beats.
    fn settle(&mut self, host: &mut impl PrimaryHost) {
        let now = host.now();
        self.pay_owed(now, host);
        if now >= self.progress_at {
            self.tell_progress(now, host);
            let pause = PROGRESS_EVERY + PROGRESS_PER_CONN * self.tables.conns.len() as u32;
            self.progress_at = now.plus(nanos(pause));
        }
        if now >= self.closing_at {
            self.closing_at = now.plus(nanos(CLOSING_EVERY));
            self.reap(now, host);
            self.make_room(now, host);
        }
        self.show_life(now, host);
    }

    /// To the other member, and to whoever asks.
    fn show_life(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        if now >= self.report_at {
            self.report_at = now.plus(nanos(REPORT_EVERY));
            host.report(&self.report());
        }
        if let Some((number, echo)) = host.member().watch.handle_timeout(now) {
            host.send(&Message::Beat { number, echo, executed: self.log_at });
        }
        host.flush();
    }

    fn report(&self) -> Report<'_> {
        Report {
            is_attached: self.unattached.is_none(),
            is_in_doubt: self.is_in_doubt(),
            connections: self.tables.conns.len(),
            frames_unconfirmed: self.log.frames_unconfirmed(),
            unexecuted: self.unexecuted,
            log_at: self.log_at,
            counters: self.log.counters(),
            handshakes_ended: self.half_open.ended(),
            joins: self.joins,
        }
    }

    fn deadline(&self, host: &mut impl PrimaryHost) -> Nanos {
        let now = host.now();
        let beat = host.member().watch.next_deadline();
        let owed = self.tables.owed.values().min().map(|since| since.plus(nanos(OWED_WAIT)));
        let looks = !self.tables.conns.is_empty() || self.unattached.is_some();
        let log = (looks || self.is_in_doubt()).then(|| now.plus(nanos(TICK)));
        let all = [beat, owed, log];
        all.into_iter().flatten().fold(self.report_at, Nanos::min).max(now)
    }

    /// The kernel thinks it has acknowledged long ago; nobody else will.
    fn pay_owed(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        self.tables.owed.retain(|conn, since| {
            let Some(slot) = host.slot(*conn) else { return false };
            let Some(ack) = slot.owed_ack() else { return false };
            let waited = now.since(*since);
            if ack.since(slot.last_ack) < OWED_BYTES && waited < nanos(OWED_WAIT) {
                return true;
            }
            host.send_segment(&slot.acknowledgement(ack));
            false
        });
    }

    /// Tells the backup what the kernel has accepted (decision 9).
    fn tell_progress(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        let mut news = Vec::new();
        for (id, conn) in &mut self.tables.conns {
            let Some(slot) = host.slot(*id) else { continue };
            let progress = ConnProgress {
                conn: *id,
                snd_una: conn.acked.map_or(slot.snd_una, |acked| acked.max(slot.snd_una)),
                snd_nxt: slot.snd_nxt,
                right_edge: slot.last_edge,
                tsval: slot.tsval,
                rcv_nxt: slot.rcv_nxt,
            };
            if !slot.held_synack && conn.told != Some(progress) {
                conn.told = Some(progress);
                news.push(progress);
            }
        }
        if !news.is_empty() {
            // What has left meanwhile is in it.
            self.take_log(host);
            self.act(host, |log, out| log.handle_progress(now, &news, out));
        }
    }
}

#[cfg(test)]
mod tests;
