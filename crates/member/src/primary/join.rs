//! A server that speaks alone, and a member that joins it: an image of the server and its
//! connections go over while it serves on, the log from there follows, and nobody waits
//! for the joiner until it has caught up. Then output waits for confirmation, and the
//! joiner says that it is in step, in this order: who could take over has everything.

use super::alone::{Alone, Tried, knock};
use super::apart::{Stage, rest_replaced};
use super::audit::{contradiction, impossible};
use super::lacking::{Lacking, slow};
use super::renewal::Wish;
use super::sending::Sending;
use super::{Conn, Held, LOST, PrimaryHost, PrimaryMachine};
use crate::host::{ConnState, MemberEvent, Turn, speak_alone};
use crate::nanos;
use crate::timing::primary::{
    ALONE_LOOK, CATCHING_UP_MAX, CLOSING_EVERY, IDLE_LOOK, JOINER_SILENT, MINDED, TICK,
};
use holdfast_cluster::Nanos;
use holdfast_replica::limits::PrimaryLimits;
use holdfast_replica::primary::{Primary, PrimaryOutput, Taken};
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ADOPTED_MAX, Adopted, ConnId, ConnKey, ConnRecord, Message};
use std::collections::BTreeMap;

pub(super) const ANOTHER: &str = "another member is joining";
const SERVES_NOT: &str = "its server does not serve any more";
/// Reason that nobody can join: connections beyond the tables could not be served once output
/// waits.
pub(super) const TOO_MANY: &str = "the server has more connections than a backup can follow";

/// Why nobody can join a server that has connections which the gate does not know.
fn strangers(host: &mut impl PrimaryHost) -> Option<String> {
    let count = host.strangers();
    (count > 0).then(|| {
        format!(
            "{count} of the server's connections are unknown to the gate, which knows \
             `connections_max` at most, and would end; wait until their clients have, or give \
             both members a larger `connections_max` when they are started next"
        )
    })
}

/// Connections for the log's machine and for the joiner, and those whose sending side has ended.
type Conns = (Vec<Taken>, Vec<Adopted>, Vec<ConnId>);

/// What the server's books say of a connection that it has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Book {
    /// The server's number of the connection.
    pub accept: u32,
    /// Cookie of the kernel's socket.
    pub socket: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
    pub eof: bool,
    /// Whether the server has ended its sending side and closed the connection.
    pub shut: bool,
    pub closed: bool,
}

/// An image that was taken of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Position of the server's log at the image's moment: the log begins there.
    pub log_from: u64,
    /// Upper bound of the image's size, in bytes.
    pub bytes: u64,
}

/// A join while image and log go over and the server speaks alone.
#[derive(Debug)]
pub(super) struct Join {
    alone: Alone,
    sending: Sending,
    /// Since when the joiner has been told that the image is whole.
    whole_at: Option<Nanos>,
    /// Whether the joiner's server runs and has executed the log up to its present end.
    caught_up: bool,
    /// Clients that lack what was sent before the image.
    lacking: Lacking,
    begun: Nanos,
    heard_at: Nanos,
}

/// A join in its last step, in which the joiner may say any moment that it is in step.
#[derive(Debug)]
pub(super) struct Closing {
    /// Where the log was when output began to wait; `None`: the joiner was told.
    until: Option<u64>,
    begun: Nanos,
}

impl PrimaryMachine {
    /// A member whose server speaks alone with these connections: it has taken over, or no
    /// backup has come.
    pub fn alone(
        linger_max: usize,
        limits: PrimaryLimits,
        conns: impl IntoIterator<Item = Held>,
        host: &mut impl PrimaryHost,
    ) -> Self {
        let now = host.now();
        let mut this = Self::with_limits(linger_max, limits, host);
        this.log.handle_backup_lost();
        this.unattached = None;
        for Held { conn, socket, record } in conns {
            this.tables.conns.insert(conn, Conn::new(socket, record, now));
        }
        this.stage = Stage::Alone(Box::new(Alone::new(now)));
        this
    }

    /// The server serves alone, and a member may come and join it.
    pub(super) fn turn_alone(
        &mut self,
        mut alone: Box<Alone>,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if let Some(over) = self.serve_on(stop, host) {
            return over;
        }
        match knock(&mut alone, host) {
            None => self.begin_join(*alone, host),
            Some(turn) => self.keep_if_due(alone, turn, host),
        }
    }

    /// Does what goes on beside a server that speaks alone; its connections are kept track of,
    /// since somebody may join. Returns what follows if it does not speak alone any more.
    fn serve_on(&mut self, stop: bool, host: &mut impl PrimaryHost) -> Option<(Stage, Turn)> {
        if let Some(over) = self.speak_on(stop, host) {
            return Some(over);
        }
        self.let_in(host);
        let now = host.now();
        if now >= self.closing_at {
            self.closing_at = now.plus(nanos(CLOSING_EVERY));
            self.reap(now, host);
            self.make_room(now, host);
            host.mind_slots(MINDED);
        }
        None
    }

    /// Checks that the server still speaks alone. Returns what follows if it does not.
    pub(super) fn speak_on(
        &mut self,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> Option<(Stage, Turn)> {
        host.stand_beside();
        if let Some(end) = speak_alone(stop, host) {
            return Some((Stage::Idle, Turn::End(end)));
        }
        if !host.member().speaks {
            // A joiner does not wait for a server that serves no more.
            self.part(SERVES_NOT, host);
            host.stop_watching();
            let replaced = host.member().is_behind_another();
            let since = host.now();
            return Some(match replaced {
                true => rest_replaced(since, false, host),
                false => (Stage::Idle, Turn::after(IDLE_LOOK, since)),
            });
        }
        None
    }

    /// PREPARING: a member has come that may join. The server is copied as it is at one moment, at
    /// which its log begins.
    pub(super) fn begin_join(
        &mut self,
        alone: Alone,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        host.admit();
        self.begin_image(alone, host)
    }

    pub(super) fn begin_image(
        &mut self,
        alone: Alone,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if let Some(reason) = strangers(host) {
            return self.turn_away(alone, &reason, host);
        }
        (self.tables.broken, self.tables.joiner) = (None, Joiner::default());
        self.tables.wish = Wish::default();
        (self.tables.gave_up, self.tables.was_stopped) = (false, false);
        let slow = slow(&self.tables.conns, host);
        if let Err(reason) = host.take_image(&slow, self.tables.has_differed) {
            return self.turn_away(alone, &reason, host);
        }
        let now = host.now();
        host.member().watch.renew(now);
        self.prepare(alone, false, host)
    }

    /// Waits until the image's moment has come.
    pub(super) fn prepare(
        &mut self,
        alone: Alone,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if let Some(over) = self.serve_on(stop, host) {
            host.drop_image();
            return over;
        }
        self.joins = Some(0);
        self.tell_others(host);
        let lost = self.take_messages(host).then(|| LOST.to_owned());
        if let Some(reason) = lost.or_else(|| self.tables.broken.take()) {
            return self.abandon(alone, &reason, host);
        }
        match host.image_taken() {
            Some(Ok(image)) => self.begin_log(alone, image, host),
            Some(Err(reason)) => self.abandon(alone, &reason, host),
            None => {
                let now = host.now();
                self.show_life(now, host);
                (Stage::Preparing(Box::new(alone)), Turn::after(TICK, now))
            }
        }
    }

    /// Begins the log, and tells the joiner of every connection that existed before.
    fn begin_log(
        &mut self,
        alone: Alone,
        image: Image,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        // Handshakes that began before the image are in its books.
        self.take_held(host);
        let now = host.now();
        let (taken, adopted, ended) = match self.adopted(host) {
            Ok(conns) => conns,
            Err(reason) => return self.abandon(alone, &reason, host),
        };
        if taken.len() > self.limits.conns_max {
            return self.abandon(alone, TOO_MANY, host);
        }
        for Taken { id, irs, in_bytes, .. } in &taken {
            // What an earlier backup held beyond what the server has read, no member holds now.
            host.set_stable(*id, irs.plus(1).plus(*in_bytes));
        }
        let mut lacking = Lacking::of(&adopted, &ended, now, host);
        self.log = Primary::adopt(image.log_from, self.limits, *self.log.counters(), taken);
        (self.log_at, self.tables.is_committing) = (image.log_from, false);
        // No later record will say that the FINs of these connections may leave.
        self.act(host, |_, out| ended.iter().for_each(|id| out.allow_fin(*id)));
        for conn in self.tables.conns.values_mut() {
            conn.told = None;
        }
        let join = Message::Join { log_from: image.log_from, image_bytes: image.bytes };
        self.tables.say(&join, host);
        for conns in adopted.chunks(ADOPTED_MAX) {
            self.tables.say(&Message::Adopt { conns: conns.to_vec() }, host);
        }
        lacking.hand_over(&mut self.tables, &adopted, host);
        if self.tables.keeper.is_none() {
            host.show(MemberEvent::Joins { image_bytes: image.bytes });
        }
        let join = Join {
            alone,
            sending: Sending::new(image, now),
            whole_at: None,
            caught_up: false,
            lacking,
            begun: now,
            heard_at: now,
        };
        self.turn_join(Box::new(join), false, host)
    }

    /// The connections that the server has, for the log's machine and for the joiner, and
    /// those whose sending side it has ended. An error names a connection of which the server's
    /// memory tells what cannot be.
    pub(super) fn adopted(&self, host: &mut impl PrimaryHost) -> Result<Conns, String> {
        let now = host.now();
        let mut books: BTreeMap<u64, Book> =
            host.books().into_iter().map(|book| (book.socket, book)).collect();
        let accepted = host.sockets();
        let (mut taken, mut adopted, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        let keys: Vec<ConnKey> = self.tables.conns.values().map(|conn| conn.key).collect();
        let states = host.states(&keys).unwrap_or_else(|| vec![ConnState::Living; keys.len()]);
        for ((id, conn), state) in self.tables.conns.iter().zip(states) {
            // What the kernel says of a tuple is of its newest connection.
            let newest = host.conn_of(&conn.key) == Some(*id);
            let Some(slot) = host.slot(*id).filter(|_| newest) else { continue };
            let book = books.remove(&conn.socket);
            if let Some(reason) = book.and_then(|book| contradiction(&book, conn, &slot)) {
                return Err(reason);
            }
            if book.is_none() && state == ConnState::Over {
                // It is over, and not yet off the tables.
                continue;
            }
            let has_spoken = slot.snd_nxt.after(conn.record.iss.plus(1));
            if book.is_none() && has_spoken && !accepted.contains(&conn.socket) {
                // The server has closed it and dropped it from its books: no backup could resend
                // what the client lacks, and it never waited in a queue. A connection that was
                // accepted since the image is still in the books, and the log says so.
                ended.push(*id);
                continue;
            }
            let accept = book.map(|book| book.accept);
            let (in_bytes, out_bytes) = book.map_or((0, 0), |it| (it.in_bytes, it.out_bytes));
            let Conn { key, socket, record: ConnRecord { irs, iss, .. }, .. } = *conn;
            taken.push(Taken { id: *id, socket, key, irs, iss, accept, in_bytes, out_bytes });
            adopted.push(adopt(now, Some((*id, conn)), book.as_ref(), Some(&slot)));
            ended.extend(book.filter(|book| book.shut || book.closed).map(|_| *id));
        }
        if let Some(reason) = books.values().find_map(|book| impossible(book, None)) {
            return Err(reason);
        }
        let unknown = books.values().filter(|book| !book.closed);
        adopted.extend(unknown.map(|book| adopt(now, None, Some(book), None)));
        Ok((taken, adopted, ended))
    }

    /// Takes connections that have begun; none of their SYN-ACKs stays held back.
    pub(super) fn let_in(&mut self, host: &mut impl PrimaryHost) {
        for id in self.take_held(host) {
            // Its SYN-ACK was held back just before the gate was opened.
            if host.slot(id).is_some_and(|slot| slot.held_synack) {
                host.open(id);
            }
        }
    }

    /// CATCHING UP: image, connections and log go over; nobody waits for them.
    pub(super) fn turn_join(
        &mut self,
        mut join: Box<Join>,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if let Some(over) = self.serve_on(stop, host) {
            host.drop_image();
            return over;
        }
        self.tell_others(host);
        self.take_log(host);
        let lost = self.take_joiner(&mut join, host);
        self.settle(host);
        if let Some(reason) = self.why_not(&join, lost, host) {
            return self.abandon(join.alone, &reason, host);
        }
        self.send_image(&mut join, host);
        if join.caught_up && !join.lacking.waits(&mut self.tables.conns, host) {
            if let Some(reason) = strangers(host) {
                return self.abandon(join.alone, &reason, host);
            }
            return self.close_ranks(*join, host);
        }
        let now = host.now();
        let turn = match host.may_sleep(self.log_at) {
            true => Turn::Until(join.sending.due(now).min(self.deadline(host))),
            false => Turn::Busy,
        };
        (Stage::Joining(join), turn)
    }

    /// Takes what the joiner says; returns true when the joiner is lost.
    fn take_joiner(&mut self, join: &mut Join, host: &mut impl PrimaryHost) -> bool {
        let lost = self.take_messages(host);
        let said = &mut self.tables.joiner;
        if std::mem::take(&mut said.heard) {
            join.heard_at = host.now();
        }
        join.sending.note(std::mem::take(&mut said.arrived));
        join.caught_up |= said.caught_up;
        lost
    }

    fn why_not(&mut self, join: &Join, lost: bool, host: &impl PrimaryHost) -> Option<String> {
        if let Some(reason) = host.log_fault().or_else(|| self.tables.broken.take()) {
            return Some(reason);
        }
        let behind = || "it takes the log more slowly than the server writes it".to_owned();
        let silent = || "it has said nothing for ten seconds".to_owned();
        let is_silent = host.now().since(join.heard_at) > nanos(JOINER_SILENT);
        let for_long = |since| host.now().since(since) > nanos(CATCHING_UP_MAX);
        let is_slow = !join.caught_up && join.whole_at.is_some_and(for_long);
        lost.then(|| LOST.to_owned())
            .or_else(|| (is_slow || !host.has_log_room()).then(behind))
            .or_else(|| is_silent.then(silent))
    }

    fn send_image(&mut self, join: &mut Join, host: &mut impl PrimaryHost) {
        if let Err(reason) = join.sending.turn(&mut self.tables, host) {
            self.tables.broken.get_or_insert(reason);
        }
        if join.sending.is_sent() && join.whole_at.is_none() {
            join.whole_at = Some(host.now());
            Sending::end(&mut self.tables, host);
        }
        host.flush();
        self.joins = Some(join.sending.percent());
    }

    /// CLOSING: from here on output and ACKs wait. Only after that may the joiner say that it is in
    /// step, and then only the edge can take that back.
    fn close_ranks(&mut self, join: Join, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        if let Some(reason) = self.unwritten(host) {
            return self.abandon(join.alone, &reason, host);
        }
        self.tables.is_committing = true;
        host.commit(self.log.confirmed());
        if let Err(reason) = host.clamp() {
            return self.abandon(join.alone, &reason, host);
        }
        self.at_risk = join.lacking.at_risk();
        let now = host.now();
        // The joiner must hold whatever has left until here, and hears of it before it is told that
        // it may be in step.
        self.take_held(host);
        self.tell_progress(now, host);
        let until = host.tail();
        self.log.output_waits(until);
        host.member().watch.renew(now);
        self.closing = Some(Closing { until: Some(until), begun: join.begun });
        let tried = Tried { failed: join.alone.failed, in_step: None };
        self.tried = self.tables.keeper.is_none().then_some(tried);
        self.joins = Some(100);
        if self.tables.keeper.is_some() {
            return self.turn_kept(Box::new(join.alone), false, host);
        }
        self.serve(false, host)
    }

    /// Tells the joiner the position at which it has everything, once all was sent, and takes its
    /// word that it has.
    pub(super) fn settle_closing(&mut self, host: &mut impl PrimaryHost) {
        let joined = self.tables.joiner.joined;
        let Some(closing) = &mut self.closing else { return };
        let (framed, number) = self.log.framed();
        if closing.until.is_some_and(|until| framed >= until) {
            closing.until = None;
            self.tables.say(&Message::Closing { number }, host);
        }
        if joined && closing.until.is_none() {
            let now = host.now();
            let took = now.since(closing.begun);
            (self.closing, self.joins) = (None, None);
            if let Some(tried) = &mut self.tried {
                tried.in_step = Some(now);
            }
            host.show(match self.tables.keeper {
                Some(_) => self.keeping.begins(now, took),
                None => MemberEvent::Joined { took },
            });
        }
    }

    /// Gives the join up: the server speaks alone again, as if its output had never waited.
    fn abandon(
        &mut self,
        alone: Alone,
        reason: &str,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        // Taking an image must end before the log does.
        host.drop_image();
        host.end_log();
        self.turn_away(alone, reason, host)
    }

    fn turn_away(
        &mut self,
        mut alone: Alone,
        reason: &str,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.lose_backup(host);
        (self.tables.is_committing, self.joins) = (true, None);
        host.drop_image();
        let now = host.now();
        if self.tables.keeper.is_some() {
            self.part(reason, host);
            self.keeping.fail(reason, now, host);
            return (Stage::Alone(Box::new(alone)), Turn::after(ALONE_LOOK, now));
        }
        self.part(reason, host);
        host.show(MemberEvent::JoinFailed { reason });
        alone.fail(now, reason);
        (Stage::Alone(Box::new(alone)), Turn::after(ALONE_LOOK, now))
    }
}

/// What a joiner has said since it came.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// Whether it has said anything since the last turn.
    heard: bool,
    /// Bytes of the image that have come.
    arrived: u64,
    caught_up: bool,
    joined: bool,
}

impl Joiner {
    pub(super) fn note(&mut self, message: &Message<'_>) {
        self.heard = true;
        match message {
            Message::ImageOk { bytes } => self.arrived = self.arrived.max(*bytes),
            Message::CaughtUp => self.caught_up = true,
            Message::Joined => self.joined = true,
            _ => {}
        }
    }
}

fn adopt(
    now: Nanos,
    conn: Option<(ConnId, &Conn)>,
    book: Option<&Book>,
    slot: Option<&SlotView>,
) -> Adopted {
    let count = |of: fn(&Book) -> u64| book.map_or(0, of);
    let is = |of: fn(&Book) -> bool| book.is_some_and(of);
    let (in_bytes, out_bytes) = (count(|book| book.in_bytes), count(|book| book.out_bytes));
    // The log tells what the server has sent since the image.
    let acked = book.and(conn.zip(slot)).map_or(out_bytes, |((_, conn), slot)| {
        slot.snd_una.offset_near(conn.record.iss.plus(1), out_bytes)
    });
    let record = |(id, conn): (ConnId, &Conn)| {
        let mut record = conn.record;
        // The record gets the connection's clock as it is now: that of the handshake may be weeks
        // old.
        record.tsval = slot.and_then(|slot| conn.tsval(slot.tsval, now));
        (id, record)
    };
    Adopted {
        conn: conn.map(record),
        accept: book.map(|book| book.accept),
        in_bytes,
        out_bytes,
        acked_bytes: acked.min(out_bytes.saturating_add(1)),
        eof: is(|book| book.eof),
        closed: is(|book| book.closed),
        // A gate that has sent nothing yet has 0.
        client_tsval: slot.filter(|it| it.has_ts && it.tsecr != 0).map(|it| it.tsecr),
    }
}
