//! The primary: the shim's log and the gate's connections go to the backup; what it
//! confirms lets the server write and the gate acknowledge.

mod ahead;
mod alone;
mod apart;
mod audit;
mod closing;
mod conn;
mod direct;
mod doubt;
mod half_open;
mod host;
mod join;
mod keeper;
mod kept;
mod lacking;
mod renewal;
mod sending;

pub use alone::AGAIN;
pub use host::{Held, PrimaryHost, Report};
pub use join::{Book, Image};
pub use keeper::KeeperHost;
use lacking::lacks;
pub use lacking::{Earlier, Unacked};

use crate::host::{Fault, Member, STOPPED, Turn, tell_vanished};
use crate::nanos;
use crate::timing::primary::{
    ATTACH_MAX, CLOSING_EVERY, OWED_BYTES, PROGRESS_EVERY, PROGRESS_PER_CONN, REPORT_EVERY, TICK,
};
use alone::Tried;
use apart::Stage;
use conn::Conn;
use direct::Direct;
use doubt::{Doubt, SILENT};
use half_open::HalfOpen;
use holdfast_cluster::Nanos;
use holdfast_replica::Broken;
use holdfast_replica::limits::PrimaryLimits;
use holdfast_replica::primary::{Peeked, Primary, PrimaryOutput, Wanted};
use holdfast_wire::message::{ConnId, ConnProgress, Message};
use holdfast_wire::seq::SeqNo;
use join::{Closing, Joiner};
use keeper::Keeper;
use kept::Keeping;
use renewal::{Renewal, Wish};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const UNATTACHED: &str = "the server runs without the shim, so that nothing of it can be replicated: \
    it is a static or setuid program, or starts another one without LD_PRELOAD; \
    name the server itself in `command`, linked dynamically";
/// Reason to give up the log, which lies in memory that the server can write to.
const OVERWRITTEN: &str = "the server has written over the log that it shares with its daemon; \
    look for a server that writes where it should not";
const LOST: &str = "the channel to the backup was lost";

/// What the log's machine changes in this one.
#[derive(Debug, Default)]
struct Tables {
    conns: BTreeMap<ConnId, Conn>,
    /// ACKs that the gate owes to clients, with the time since when.
    owed: BTreeMap<ConnId, Nanos>,
    ending: BTreeSet<ConnId>,
    broken: Option<String>,
    /// Whether the backup said that it follows no more.
    gave_up: bool,
    /// Whether that was because somebody has stopped it.
    was_stopped: bool,
    /// Whether a replica has differed from this server.
    has_differed: bool,
    /// What a joiner has said, and a backup that wants a new image.
    joiner: Joiner,
    wish: Wish,
    /// Whether output waits for confirmation: always, except while somebody
    /// joins.
    is_committing: bool,
    /// Keeps what the server can be rebuilt from, in the place of another host's backup.
    keeper: Option<Keeper>,
    /// The backup's word on the short way of the log: which, and its port.
    direct_ok: Option<(u64, u16)>,
}

impl Tables {
    /// Sends a message to the backup, or to the keeper in its place.
    fn say(&mut self, message: &Message<'_>, host: &mut impl PrimaryHost) {
        match &mut self.keeper {
            Some(keeper) => keeper.tell(message),
            None => host.send(message),
        }
    }
}

/// The machine of a primary: it sends the log and the gate's connections to the backup, and
/// releases what the backup has confirmed.
///
/// # Contract
/// Call [`PrimaryMachine::turn`] when something has come, and at the time that it
/// has named.
#[derive(Debug)]
pub struct PrimaryMachine {
    stage: Stage,
    log: Primary,
    tables: Tables,
    direct: Direct,
    half_open: HalfOpen,
    doubt: Option<Doubt>,
    /// Whether the primary becomes the other member's backup after it has handed over.
    returns: bool,
    limits: PrimaryLimits,
    /// See [`Report::joins`].
    joins: Option<u8>,
    closing: Option<Closing>,
    tried: Option<Tried>,
    renewal: Option<Renewal>,
    keeping: Keeping,
    /// See [`Report::at_risk`].
    at_risk: BTreeMap<ConnId, SeqNo>,
    /// Connections that are over, whose slots wait for late packets.
    linger: VecDeque<(Nanos, ConnId)>,
    linger_max: usize,
    log_at: u64,
    unexecuted: u64,
    /// Since when no shim has been running in the server; `None`: one is running.
    unattached: Option<Nanos>,
    progress_at: Nanos,
    closing_at: Nanos,
    strays_looked: Nanos,
    report_at: Nanos,
}

/// Carries out on the host what the log's machine asks for.
struct LogOutput<'a, H> {
    host: &'a mut H,
    tables: &'a mut Tables,
    /// Encoded messages for a channel that is just being read; they are sent afterwards.
    outbox: Option<&'a mut Vec<Vec<u8>>>,
}

impl<H: PrimaryHost> PrimaryOutput for LogOutput<'_, H> {
    fn send(&mut self, message: &Message<'_>) {
        match &mut self.outbox {
            None => self.tables.say(message, self.host),
            Some(outbox) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                outbox.push(bytes);
            }
        }
    }

    fn open(&mut self, conn: ConnId) {
        self.begin_acknowledging(conn);
        self.host.open(conn);
    }

    fn refuse(&mut self, conn: ConnId) {
        if !self.tables.is_committing {
            // A joiner is given up rather than clients: the server lives, so nobody has to wait.
            self.tables.broken.get_or_insert_with(|| join::TOO_MANY.into());
            return;
        }
        self.tables.conns.remove(&conn);
        self.host.free(conn);
    }

    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.acknowledge(conn, stable);
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

/// Takes what a backup says.
struct Hearing<'m> {
    log: &'m mut Primary,
    tables: &'m mut Tables,
    unexecuted: &'m mut u64,
    log_at: u64,
    outbox: &'m mut Vec<Vec<u8>>,
}

impl Hearing<'_> {
    fn hear(&mut self, message: &Message<'_>, host: &mut impl PrimaryHost) {
        let now = host.now();
        self.tables.joiner.note(message);
        self.tables.wish.note(message);
        if let Message::Beat { number, echo, executed } = *message {
            host.member().watch.handle_beat(now, number, echo);
            *self.unexecuted = self.log_at.saturating_sub(executed);
            return;
        }
        host.member().watch.handle_received(now);
        if let Message::DirectOk { id, port } = *message {
            self.tables.direct_ok = Some((id, port));
            return;
        }
        if let Message::GaveUp { state, reason } = message {
            let gave_up = || format!("the backup gave up: {state}: {reason}");
            self.tables.broken.get_or_insert_with(gave_up);
            self.tables.gave_up = true;
            self.tables.was_stopped = *reason == STOPPED;
            self.tables.has_differed |= *state == Fault::Diverged.word();
        }
        let outbox = Some(&mut *self.outbox);
        let mut acting = LogOutput { host, tables: &mut *self.tables, outbox };
        self.log.handle_message(now, message, &mut acting);
    }
}

impl PrimaryMachine {
    /// A primary whose server has just been started, and whose backup follows. At most half of
    /// `linger_max` ended connections keep their slots.
    pub fn new(linger_max: usize, host: &mut impl PrimaryHost) -> Self {
        Self::with_limits(linger_max, PrimaryLimits::DEFAULT, host)
    }

    /// Like [`new`](Self::new), with the caller's own bounds.
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
            direct: Direct::Off,
            // Unfinished handshakes get half of what ended connections get, so at most a quarter of
            // the gate's slots.
            half_open: HalfOpen::new(linger_max / 2, now),
            doubt: None,
            returns: false,
            limits,
            joins: None,
            closing: None,
            tried: None,
            renewal: None,
            keeping: Keeping::default(),
            at_risk: BTreeMap::new(),
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

    /// Takes a turn; `stop`: the operator ends this member.
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
            let asked = self.doubt.take().map(Doubt::into_asked);
            return self.server_ended(asked, host);
        }
        if self.is_attached(host) {
            self.take_held(host);
        }
        self.read_log(host);
        let lost = self.take_messages(host);
        self.read_held(host);
        self.agree_on_direct(host);
        self.settle_closing(host);
        self.renew(host);
        self.settle(host);
        let broken = self.tables.broken.take().or_else(|| host.log_fault());
        if let Some(reason) = broken.or(lost.then(|| LOST.to_owned())) {
            return self.ask_to_go_alone(reason, host);
        }
        if self.doubts_for_good(opened, host) {
            return self.ask_to_go_alone(SILENT.to_owned(), host);
        }
        let turn = match self.may_sleep(host) {
            true => Turn::Until(self.deadline(host)),
            false => Turn::Busy,
        };
        (Stage::Serving, turn)
    }

    /// Tells which clients have vanished; while a backup follows, only the gate
    /// knows.
    fn tell_vanished(&self, host: &mut impl PrimaryHost) {
        let conns = &self.tables.conns;
        tell_vanished(host, |host, keys| {
            let known = |key| host.conn_of(key).is_some_and(|conn| conns.contains_key(&conn));
            Some(keys.iter().map(known).collect())
        });
    }

    /// Whether a shim runs in the server. Until then, and while the server becomes
    /// another program, no connection is let in: nothing of it would be in the
    /// log.
    fn is_attached(&mut self, host: &mut impl PrimaryHost) -> bool {
        let now = host.now();
        if host.is_attached() {
            if self.unattached.take().is_some() {
                // A report is due at once, since it looks at the server's listeners.
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

    /// Runs a step of the log's machine, which acts on the host.
    fn act<H: PrimaryHost>(
        &mut self,
        host: &mut H,
        act: impl FnOnce(&mut Primary, &mut LogOutput<'_, H>),
    ) {
        act(&mut self.log, &mut LogOutput { host, tables: &mut self.tables, outbox: None });
    }

    /// Takes connections whose SYN-ACKs the gate holds back. Two SYN-ACKs of one request, sent on two
    /// processors at once, have a slot each; the gate knows one of them by the tuple.
    fn take_held(&mut self, host: &mut impl PrimaryHost) -> Vec<ConnId> {
        let mut held = host.held();
        held.retain(|Held { conn, record, .. }| {
            let is_it = host.conn_of(&record.key).is_none_or(|known| known == *conn);
            if !is_it {
                host.free(*conn);
            }
            is_it
        });
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
        self.take_log_to(tail, host);
    }

    fn take_log_to(&mut self, tail: u64, host: &mut impl PrimaryHost) {
        if tail == self.log_at {
            return;
        }
        assert!(tail > self.log_at, "the log went back to {tail} from {}", self.log_at);
        if !self.tables.is_committing {
            // The gate holds no handshakes back now. So it is looked at again after the log was
            // read: it knows by now of every connection that the log says is accepted.
            self.let_in(host);
        }
        let at = std::mem::replace(&mut self.log_at, tail);
        let (now, bytes) = (host.now(), host.bytes(at, (tail - at) as usize));
        self.act(host, |log, out| log.handle_log(now, at, &bytes, out));
    }

    /// Takes the backup's messages; returns true when the backup is lost.
    fn take_messages(&mut self, host: &mut impl PrimaryHost) -> bool {
        if self.tables.keeper.is_some() {
            self.talk(host);
            return false;
        }
        let mut outbox = Vec::new();
        let mut hearing = self.hearing(&mut outbox);
        let lost = host.recv(&mut |host, message| hearing.hear(message, host));
        self.answer(&outbox, host);
        lost
    }

    fn hearing<'m>(&'m mut self, outbox: &'m mut Vec<Vec<u8>>) -> Hearing<'m> {
        let Self { log, tables, unexecuted, log_at, .. } = self;
        Hearing { log, tables, unexecuted, log_at: *log_at, outbox }
    }

    /// Sends the answers to messages that were just taken.
    fn answer(&mut self, outbox: &[Vec<u8>], host: &mut impl PrimaryHost) {
        for bytes in outbox {
            if let Ok(message) = Message::decode(bytes) {
                self.tables.say(&message, host);
            }
        }
    }

    /// Does what is due between events: owed ACKs, reports of progress, ended connections,
    /// heartbeats.
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

    /// Sends heartbeats to the other member, and to the edge when it asks.
    fn show_life(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        if now >= self.report_at {
            self.report_at = now.plus(nanos(REPORT_EVERY));
            self.at_risk.retain(|id, end| lacks(*id, *end, host));
            host.report(&self.report());
        }
        if let Some((number, echo)) = host.member().watch.handle_timeout(now) {
            let executed = self.log_at;
            self.tables.say(&Message::Beat { number, echo, executed }, host);
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
            joins: self.joins.filter(|_| self.tables.keeper.is_none()),
            keeps: self.tables.keeper.is_some(),
            at_risk: self.at_risk.len(),
        }
    }

    fn deadline(&self, host: &mut impl PrimaryHost) -> Nanos {
        let now = host.now();
        let beat = host.member().watch.next_deadline();
        let wait = nanos(self.direct.owed_wait());
        let owed = self.tables.owed.values().min().map(|since| since.plus(wait));
        let looks = !self.tables.conns.is_empty() || self.unattached.is_some();
        let log = (looks || self.is_in_doubt()).then(|| now.plus(nanos(TICK)));
        let keeper = self.tables.keeper.as_ref().map(Keeper::due);
        let all = [beat, owed, log, keeper, self.renewal_due(now), self.direct.due()];
        all.into_iter().flatten().fold(self.report_at, Nanos::min).max(now)
    }

    /// Sends owed ACKs: the kernel sent them long ago as far as it knows, and will not repeat them.
    fn pay_owed(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        let wait = nanos(self.direct.owed_wait());
        self.tables.owed.retain(|conn, since| {
            let Some(slot) = host.slot(*conn) else { return false };
            let Some(ack) = slot.owed_ack() else { return false };
            let waited = now.since(*since);
            if ack.since(slot.last_ack) < OWED_BYTES && waited < wait {
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
            // Whatever the server has sent meanwhile is in the log up to here.
            self.take_log(host);
            if host.is_log_over() {
                self.log.end_log();
            }
            self.act(host, |log, out| log.handle_progress(now, &news, out));
        }
    }
}

#[cfg(test)]
mod tests;
