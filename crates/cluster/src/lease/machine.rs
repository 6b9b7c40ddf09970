//! The machine of one member: what it hears, what is due, and what its kernel is told.

use super::Timing;
use super::link::{Link, Reject};
use super::message::{Kind, Message};
use crate::Nanos;
use crate::arbiter::client::{Client, ClientSettings};
use crate::arbiter::{Arbiter, Asker, Mode, Owner, Record, Refusal, Reply, rank_of};

/// Tries of a takeover that the arbiter does not answer, after which a primary that is heard
/// again is followed again.
const TRIES_IN_VAIN: u32 = 2;

/// What a member is, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has not read the record yet.
    Starting,
    /// The record names an earlier life of it, whose connections are lost; the other member
    /// may hold them.
    Restarting,
    /// The service is another's, or nobody's, and it is not in step.
    Waiting,
    /// It is in step with the owner, and grants.
    Following,
    /// It wants to own the record.
    Claiming,
    /// It owns the record, and speaks as long as the other one grants.
    Paired,
    /// It owns the record alone, lives on grants already, and has asked to be a pair.
    Pairing,
    /// It owns the record alone.
    Solo,
    /// It owned the record when it fell silent for good.
    Resigned,
}

/// What is worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    Founded,
    TookOver,
    Unprotected,
    Protected,
    PeerSilent,
    PeerResigned,
    PeerHeardAgain,
    NoGrants,
    Overslept,
    Barred,
    Deposed,
    Copied,
    Refused(Refusal),
    ArbiterSilent,
    ArbiterAnswers,
    ArbiterForgot,
    OtherArbiter,
}

impl Note {
    /// The note for people.
    #[must_use]
    pub fn words(&self) -> String {
        let words = match self {
            Self::Founded => {
                "the group begins with this member, alone until the other one has joined"
            }
            Self::TookOver => "this member is the owner now",
            Self::Unprotected => "this member goes on alone",
            Self::Protected => "the other member holds everything; a takeover is possible",
            Self::PeerSilent => "the owner is silent; this member takes over",
            Self::PeerResigned => "the owner has handed over; this member takes over",
            Self::PeerHeardAgain => "the owner is heard again, and the arbiter is not",
            Self::NoGrants => "the other member grants nothing; this one asks to go on alone",
            Self::Overslept => "this process was not run for a while; it asks again first",
            Self::Barred => "the owner has gone on alone: what this member holds is of no use",
            Self::Deposed => "the other member is the owner now; this one is silent",
            Self::Copied => "another life of this member owns the record: was it copied?",
            Self::ArbiterSilent => "the arbiter does not answer: a second fault stops the service",
            Self::ArbiterAnswers => "the arbiter answers again",
            Self::ArbiterForgot => "the arbiter's record is older than what this member knows",
            Self::OtherArbiter => {
                "the arbiter's host was started again, or another one answers for it"
            }
            Self::Refused(refusal) => return format!("the arbiter refuses: {refusal}"),
        };
        words.to_owned()
    }
}

/// How often what was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub grants: u64,
    /// Messages that were no messages, or for somebody else.
    pub misdirected: u64,
    pub replayed: u64,
    pub unproven: u64,
    /// Grants of questions that are not remembered.
    pub stale_grants: u64,
    pub overslept: u64,
    /// Answers of the arbiter to tries that had been given up.
    pub late_answers: u64,
    pub refusals: u64,
    /// Records that were older than, or contradicted, what is known.
    pub forgotten: u64,
    /// Changes of the arbiter's lineage; many of them are two arbiters in one name.
    pub lineages: u64,
}

/// What the machine wants done, in this order.
pub trait LeaseOutput: Arbiter {
    /// Makes this the point in time, by the member's own clock, from which its kernel lets
    /// nothing more pass: 0 is silence now, and `u64::MAX` none at all. Must be in force
    /// before anything that follows is done.
    fn store(&mut self, deadline: u64);
    /// Sends a message to the other member, by every path that they share.
    fn send(&mut self, message: &Message);
    /// A message of the other member counts: it is of now, and of a life that is believed. It has
    /// not been acted upon yet.
    fn heard(&mut self, now: Nanos, message: &Message);
    /// Keeps this for another life of this member. A crash that loses it does harm only where
    /// the arbiter has forgotten something, or there are two of it.
    fn keep(&mut self, kept: &Kept);
    /// Something to be told.
    fn note(&mut self, note: Note);
}

/// What a life of a member leaves to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The newest record that it has seen.
    pub record: Option<Record>,
    /// The latest lineage of the arbiter; 0 if none has answered.
    pub lineage: u64,
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    pub group: String,
    /// This member, and the life that it begins now: random, and that of its messages too.
    pub me: Owner,
    /// Name of the other member.
    pub peer: String,
    /// Numbers of both in messages, this one first.
    pub sides: [u8; 2],
    /// What an earlier life has kept.
    pub kept: Kept,
    /// Whether this member begins a group that has no record.
    pub preferred: bool,
    pub timing: Timing,
    pub arbiter: ClientSettings,
}

/// The lease machine of a member; see the module above.
///
/// # Contract
/// * Every message that was proven goes to `handle_message`, every answer of the arbiter to
///   `handle_reply`. Before `handle_timeout`, read whatever the socket holds: a message that
///   waits there is not missing.
/// * Sleep no longer than until `next_deadline`. What the process overslept is not held
///   against the other member; the deadline in the kernel is never forgiven anything.
/// * Time is the clock that the kernel compares with.
#[derive(Clone, Debug)]
pub struct Lease {
    pub(super) setup: Setup,
    pub(super) role: Role,
    pub(super) client: Client,
    pub(super) link: Link,
    /// Latest epoch that the other member has named.
    pub(super) peer_epoch: u64,
    /// Epoch in which the host has found both members in step.
    pub(super) in_step: Option<u64>,
    /// When the newest question was sent that was granted.
    pub(super) granted: Option<Nanos>,
    /// Time until which this member has promised not to speak.
    promise: Nanos,
    /// What the kernel was told last.
    stored: u64,
    next_send: Nanos,
    /// Backup: when the owner was last heard.
    pub(super) heard: Nanos,
    /// Backup that claims: when it began to doubt what it hears.
    pub(super) doubted: Nanos,
    /// Whether the takeover is one that the owner asked for.
    pub(super) resigned_to: bool,
    /// Primary: time before which missing grants are this process's own fault.
    pub(super) excused: Nanos,
    /// Member that starts: when it stops waiting for a backup to take over.
    pub(super) claim_at: Nanos,
    /// Whether a pair that was asked for is not wanted any more.
    pub(super) withdraws: bool,
    was_silent: bool,
    /// When the other member was last heard, and the epoch in which it was in step then.
    heard_at: Option<Nanos>,
    follows: Option<u64>,
    /// Since when it says that it is in step no more: a primary need not wait for its grants.
    pub(super) left: Option<Nanos>,
    /// Whether it has said that it will not speak any more in its epoch.
    peer_resigns: bool,
    pub(super) counts: Counts,
}

impl Lease {
    /// A member that has just started. It silences its kernel first, and keeps every promise
    /// that an earlier life of it may have made.
    #[must_use]
    pub fn new(now: Nanos, setup: Setup, out: &mut impl LeaseOutput) -> Self {
        let asker = Asker {
            group: setup.group.clone(),
            from: setup.me.clone(),
            peer: setup.peer.clone(),
            lineage: setup.kept.lineage,
            known: setup.kept.record.clone(),
            ticket: 0,
        };
        out.store(0);
        Self {
            role: Role::Starting,
            client: Client::new(now, setup.arbiter, asker),
            link: Link::new(setup.sides, setup.me.life),
            peer_epoch: 0,
            in_step: None,
            granted: None,
            promise: now.plus(setup.timing.promise()),
            stored: 0,
            next_send: now,
            heard: now,
            doubted: now,
            resigned_to: false,
            excused: now,
            claim_at: now,
            withdraws: false,
            was_silent: false,
            heard_at: None,
            follows: None,
            left: None,
            peer_resigns: false,
            counts: Counts::default(),
            setup,
        }
    }

    /// What this member is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The newest record that it has seen.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.client.asker().known.as_ref()
    }

    /// What the kernel was told last; see [`LeaseOutput::store`].
    #[must_use]
    pub fn deadline(&self) -> u64 {
        self.stored
    }

    /// Until when this member has promised not to speak.
    #[must_use]
    pub fn promised(&self) -> Nanos {
        self.promise
    }

    /// Whether the arbiter answers. While it does not, a pair goes on, and a second fault
    /// stops it.
    #[must_use]
    pub fn is_arbiter_heard(&self) -> bool {
        self.client.is_answered()
    }

    /// This life of the member.
    #[must_use]
    pub fn me(&self) -> &Owner {
        &self.setup.me
    }

    /// What this member says of itself to the arbiter.
    #[must_use]
    pub fn asker(&self) -> &Asker {
        self.client.asker()
    }

    /// Whether the other member was heard lately, and has not resigned.
    #[must_use]
    pub fn hears_peer(&self, now: Nanos) -> bool {
        !self.peer_resigns
            && self.heard_at.is_some_and(|at| now.since(at) < self.setup.timing.declare())
    }

    /// The epoch in which the other member has last said that it is in step with its owner.
    #[must_use]
    pub fn peer_follows(&self) -> Option<u64> {
        self.follows
    }

    /// The epoch in which the host has found both members in step.
    #[must_use]
    pub fn in_step(&self) -> Option<u64> {
        self.in_step
    }

    /// How often what was met.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn kept(&self) -> Kept {
        let asker = self.client.asker();
        Kept { record: asker.known.clone(), lineage: asker.lineage }
    }

    pub(super) fn known_epoch(&self) -> u64 {
        self.client.asker().epoch()
    }

    pub(super) fn is_mine(&self) -> bool {
        self.record().is_some_and(|record| record.owner == self.setup.me)
    }

    /// When the latest request was sent that the other member has granted: it did not speak then.
    #[must_use]
    pub fn granted(&self) -> Option<Nanos> {
        self.granted
    }

    /// Until when the grants that came allow this member to speak.
    fn lease_until(&self) -> Nanos {
        self.granted.map_or(Nanos(0), |sent| sent.plus(self.setup.timing.lease()))
    }

    // What comes.

    /// Takes a message of the other member, whose authenticity was proven.
    pub fn handle_message(&mut self, now: Nanos, message: &Message, out: &mut impl LeaseOutput) {
        if let Err(reject) = self.link.receive(message, self.keeps_owner(now)) {
            match reject {
                Reject::Misdirected => self.counts.misdirected += 1,
                Reject::Replayed => self.counts.replayed += 1,
                Reject::Unproven => {
                    self.counts.unproven += 1;
                    let answer = self.link.answer(now, message);
                    self.say(answer, out);
                }
            }
            return;
        }
        out.heard(now, message);
        self.peer_epoch = self.peer_epoch.max(message.epoch);
        (self.heard_at, self.peer_resigns) = (Some(now), message.kind == Kind::Resign);
        let followed =
            std::mem::replace(&mut self.follows, message.follows.then_some(message.epoch));
        self.left = match (followed, self.follows) {
            (_, Some(_)) => None,
            (Some(epoch), None) if epoch == self.known_epoch() => Some(now),
            (_, None) => self.left,
        };
        let known = rank_of(self.record());
        if message.epoch > 0 && (message.epoch, !message.solo) > known {
            self.client.poll_now(now);
        }
        match message.kind {
            Kind::Ask => self.take_ask(now, message, out),
            Kind::Grant => self.take_grant(now, message),
            Kind::Resign => self.take_resign(now, message, out),
            // One that does not hear may never win what it claims.
            Kind::Word
                if self.role == Role::Restarting && message.follows && self.is_heard(now) =>
            {
                self.claim_at = now.plus(self.setup.timing.patience());
            }
            Kind::Word => {}
        }
        self.act(now, out);
    }

    fn take_ask(&mut self, now: Nanos, ask: &Message, out: &mut impl LeaseOutput) {
        let is_owner = self.record().is_none_or(|record| record.owner.name == self.setup.peer);
        if ask.epoch < self.known_epoch() && !is_owner {
            // It does not know yet that it is deposed.
            self.send(now, Kind::Word, out);
            return;
        }
        let is_put_off = self.client.unanswered() >= TRIES_IN_VAIN || self.client.is_refused();
        let in_vain = is_put_off && !self.resigned_to;
        // One that does not hear this member would only wait for grants.
        let is_heard = self.is_heard(now);
        if self.claims_as_backup() && in_vain && is_heard {
            self.role = Role::Following;
            self.link.forgive(now);
            self.client.give_up(now);
            out.note(Note::PeerHeardAgain);
        }
        // Who has gone on alone since has nothing from this member, whatever that holds.
        let is_dropped = self.in_step < Some(ask.epoch);
        if self.role != Role::Following || is_dropped || !is_heard {
            return;
        }
        self.heard = now;
        self.promise_until(now.plus(self.setup.timing.promise()));
        self.counts.grants += 1;
        self.send(now, Kind::Grant, out);
    }

    fn take_grant(&mut self, now: Nanos, grant: &Message) {
        if !matches!(self.role, Role::Paired | Role::Pairing | Role::Solo) {
            return;
        }
        let Some(sent) = self.link.asked_at(grant) else {
            self.counts.stale_grants += 1;
            return;
        };
        self.granted = self.granted.max(Some(sent));
        // An arbiter that is away, or refuses, would make it alone later, for no reason.
        let is_put_off = self.client.unanswered() > 0 || self.client.is_refused();
        if self.role == Role::Paired && is_put_off {
            self.client.give_up(now);
        }
    }

    fn promise_until(&mut self, until: Nanos) {
        let before = self.promise;
        self.promise = self.promise.max(until);
        assert!(self.promise >= before, "L3: a promise is broken");
        assert!(self.stored == 0, "L3: a promise of one who speaks");
    }

    /// The owner speaks no more, and does not ask again: nothing is promised to it.
    pub(super) fn release(&mut self) {
        self.promise = Nanos(0);
    }

    /// Takes an answer of the arbiter.
    pub fn handle_reply(
        &mut self,
        now: Nanos,
        number: u64,
        reply: &Reply,
        out: &mut impl LeaseOutput,
    ) {
        if !self.client.handle_answer(now, number, reply) {
            self.counts.late_answers += 1;
            return;
        }
        let is_first = self.client.asker().lineage == 0;
        if self.follow_lineage(now, reply.lineage, out) {
            match &reply.outcome {
                // Who has never asked learns by this whom it asks: nothing was another before.
                Err(Refusal::OtherLineage) if is_first => {}
                Ok(record) => self.adopt(now, record.as_ref(), out),
                // It has brought the ticket with which the change is asked for again.
                Err(Refusal::Unproven) if self.client.next_deadline() <= now => {}
                Err(refusal) => {
                    self.counts.refusals += 1;
                    out.note(Note::Refused(*refusal));
                }
            }
        }
        self.act(now, out);
    }

    // What the host says.

    /// The host says whether both members are in step in `epoch`: the backup holds all that
    /// it needs to go on. Both members are told. False if that means nothing here.
    pub fn handle_in_step(
        &mut self,
        now: Nanos,
        epoch: u64,
        yes: bool,
        out: &mut impl LeaseOutput,
    ) -> bool {
        if epoch < self.known_epoch() {
            return false;
        }
        match self.role {
            Role::Solo => {}
            Role::Waiting if yes && !self.is_mine() => {
                (self.role, self.heard) = (Role::Following, now);
                self.link.forgive(now);
            }
            Role::Following if !yes => {
                self.role = Role::Waiting;
                self.send(now, Kind::Word, out);
            }
            Role::Following => {}
            _ => return false,
        }
        self.in_step = yes.then_some(epoch);
        self.act(now, out);
        true
    }

    // What is due.

    /// When [`Lease::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let due = match self.role {
            Role::Solo if self.stored == 0 => self.promise,
            Role::Restarting => self.claim_at,
            _ if self.is_in_the_dark() => self.doubts_at(),
            _ => self.gives_up_at().unwrap_or(self.next_send),
        };
        due.min(self.next_send).min(self.client.next_deadline())
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        let late = now.since(self.next_deadline());
        // As the failure detector does: what this process overslept, it could not hear.
        self.heard = self.heard.plus(late).min(now);
        if let Some(since) = self.link.unheard_since() {
            self.link.forgive(since.plus(late).min(now));
        }
        let period = self.setup.timing.period();
        if late.0 > period.0 / 2 {
            self.excused = now.plus(period);
            self.claim_at = self.claim_at.max(self.excused);
            self.counts.overslept += 1;
            out.note(Note::Overslept);
        }
        if now >= self.next_send {
            self.next_send = now.plus(period);
            let kind = match self.role {
                Role::Paired | Role::Pairing | Role::Solo => Some(Kind::Ask),
                Role::Resigned => Some(Kind::Resign),
                Role::Following => None,
                _ => Some(Kind::Word),
            };
            if let Some(kind) = kind {
                self.send(now, kind, out);
            }
        }
        self.act(now, out);
    }

    /// Does what follows from what is known now: whatever has changed, the kernel is told
    /// first.
    pub(super) fn act(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        self.store(now, out);
        self.decide(now, out);
        self.store(now, out);
        if now >= self.client.next_deadline() {
            self.client.handle_timeout(now, out);
        }
        let is_silent = self.client.unanswered() >= TRIES_IN_VAIN;
        if std::mem::replace(&mut self.was_silent, is_silent) != is_silent {
            out.note(if is_silent { Note::ArbiterSilent } else { Note::ArbiterAnswers });
        }
    }

    pub(super) fn store(&mut self, now: Nanos, out: &mut impl LeaseOutput) {
        let deadline = match self.role {
            _ if now < self.promise => 0,
            Role::Paired | Role::Pairing => self.lease_until().0,
            Role::Solo => u64::MAX,
            _ => 0,
        };
        if deadline == self.stored {
            return;
        }
        assert!(deadline == 0 || self.is_mine(), "L3: who speaks owns the record");
        assert!(deadline == 0 || now >= self.promise, "L3: who speaks has promised not to");
        let latest = self.link.last_ask().plus(self.setup.timing.lease()).0;
        assert!(deadline <= latest || self.role == Role::Solo, "L3: a lease that nobody granted");
        let is_alone = self.record().is_some_and(|record| record.mode == Mode::Solo);
        assert!(deadline != u64::MAX || is_alone, "L3: a pair speaks by grants");
        self.stored = deadline;
        out.store(deadline);
    }

    pub(super) fn send(&mut self, now: Nanos, kind: Kind, out: &mut impl LeaseOutput) {
        assert!(kind != Kind::Resign || self.stored == 0, "L3: first silent, then resigned");
        let message = self.link.send(now, kind);
        self.say(message, out);
    }

    fn say(&self, message: Message, out: &mut impl LeaseOutput) {
        let follows = matches!(self.role, Role::Following) || self.claims_as_backup();
        let mut message = Message { follows, ..message };
        message.tell(self.record(), &self.setup.me.name);
        out.send(&message);
    }
}
