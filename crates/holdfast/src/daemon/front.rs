//! Who a member asks for its place: an edge, over a channel, or where there is none this host's own
//! stand-in for it, which asks the witness and keeps the lease.

use super::dialer::{Dialer, LinkEvent};
use super::lease::{self, LeaseThread, View};
use super::said::Said;
use super::segment::Watch;
use crate::admin::Level;
use crate::config::{Arbiter, ArbiterKind, Config, Member};
use crate::key::Keyring;
use crate::poll::Poll;
use crate::status::{Role, State};
use anyhow::Context as _;
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::Refusal;
use holdfast_cluster::lease::Note;
use holdfast_linux::link::{Carries, carries};
use holdfast_linux::way;
use holdfast_member::own_edge::{OwnEdge, Sight, Whose};
use holdfast_member::segment;
use holdfast_wire::message::Message;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// See the module.
pub enum Front {
    Edge(Box<Dialer>),
    Own(Box<Own>),
}

impl Front {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Edge(_) => "edge",
            Self::Own(own) => own.arbiter.name(),
        }
    }

    /// Who has said what it says: the witness, or its stand-in on this host.
    #[must_use]
    pub fn speaker(&self) -> &'static str {
        match self {
            Self::Own(own) if own.unheard().is_none() => "this host",
            _ => self.name(),
        }
    }

    /// What is said of whom this member asks, as it is called here.
    #[must_use]
    pub fn words<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self {
            Self::Own(own) if text.contains("the edge") => {
                text.replace("the edge", own.called()).into()
            }
            _ => text.into(),
        }
    }

    /// When [`Front::turn`] must be called even if nothing is ready.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Edge(edge) => edge.deadline(),
            Self::Own(own) => Some(own.deadline()),
        }
    }

    /// Whether messages are heard.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Edge(edge) => edge.is_open(),
            Self::Own(own) => own.opened,
        }
    }

    /// Whether somebody answers there now.
    #[must_use]
    pub fn answers(&self) -> bool {
        match self {
            Self::Edge(edge) => edge.is_open(),
            Self::Own(own) => own.view.is_answered,
        }
    }

    /// Queues a message; true if it was taken.
    pub fn send(&mut self, message: &Message<'_>) -> bool {
        match self {
            Self::Edge(edge) => edge.send(message),
            Self::Own(own) => {
                own.machine.handle_message(message);
                own.is_due = true;
                true
            }
        }
    }

    /// Writes what was queued.
    pub fn flush(&mut self, now: Instant, poll: &Poll) {
        match self {
            // A loss is noticed in the next turn.
            Self::Edge(edge) => {
                edge.flush(now, poll);
            }
            // A backup that leaves may have no next turn.
            Self::Own(own) => own.lease.order(own.machine.withdrawal()),
        }
    }

    /// Takes the payload of a frame that proves a way; the number of an edge's.
    pub fn hear_frame(&mut self, payload: &[u8]) -> Option<u64> {
        match self {
            Self::Edge(_) => way::number_of(payload),
            Self::Own(own) => {
                let now = own.nanos(Instant::now());
                own.is_due |= own.watch.hear(now, payload);
                None
            }
        }
    }

    /// When this member sent the latest request that the other one has granted, so that nobody else
    /// spoke then; `None` where an edge decides.
    #[must_use]
    pub fn granted(&self) -> Option<Instant> {
        match self {
            Self::Edge(_) => None,
            Self::Own(own) => own.view.granted.map(|at| own.started + Duration::from_nanos(at.0)),
        }
    }

    /// Says what is to be said before this member leaves.
    pub fn part(&mut self) {
        if let Self::Own(own) = self {
            let (now, view) = (own.nanos(Instant::now()), own.segment_view());
            own.watch.part(now, &view);
        }
    }

    /// Does what is due, and passes what has come to `each`.
    pub fn turn(&mut self, now: Instant, poll: &Poll, each: impl FnMut(Message<'_>)) -> LinkEvent {
        match self {
            Self::Edge(edge) => edge.turn(now, poll, each),
            Self::Own(own) => own.turn(now, each),
        }
    }

    /// Notes whether this member's server speaks, and whether the other member says that all is
    /// well with it.
    pub fn note(&mut self, speaks: bool, is_other_fine: bool) {
        if let Self::Own(own) = self {
            own.is_due |= own.speaks != speaks;
            (own.speaks, own.is_other_fine) = (speaks, is_other_fine);
        }
    }

    /// Takes an operator's word that the other member's host is off.
    ///
    /// # Errors
    /// Why that means nothing here.
    pub fn take_word(&self) -> Result<(), String> {
        match self {
            Self::Edge(_) => Err(format!("the edge decides who takes over\n  remedy: {LOOK}")),
            Self::Own(own) => own.take_word(),
        }
    }

    /// Who decides between the members, where no edge does and there is something to know about it.
    #[must_use]
    pub fn decides(&self) -> &'static str {
        match self {
            Self::Edge(_) => "",
            Self::Own(own) => match own.arbiter.kind {
                ArbiterKind::Witness(_) => "witness",
                ArbiterKind::Etcd(_) => "etcd",
                ArbiterKind::None => "none: a host that dies silently waits for an operator's word",
                ArbiterKind::Command(_) => "command: it switches the other host off first",
                ArbiterKind::Gateway => {
                    "gateway: UNSAFE, both members serve where they reach it and not each other"
                }
            },
        }
    }

    /// Whether who decides knows of a backup that could take over. An edge says so itself.
    #[must_use]
    pub fn names_backup(&self) -> bool {
        match self {
            Self::Edge(_) => true,
            Self::Own(own) => own.view.record.is_some_and(|record| {
                // A backup may have heard of an epoch that it has not read of yet.
                let is_of = own.machine.follows().is_none_or(|epoch| epoch == record.epoch);
                record.pair && (record.whose == Whose::Mine || is_of)
            }),
        }
    }

    /// What keeps this host from doing its part, where it stands in for an edge.
    #[must_use]
    pub fn finding(&self) -> Option<Said> {
        match self {
            Self::Edge(_) => None,
            Self::Own(own) => own.finding(Instant::now()),
        }
    }
}

/// The stand-in for an edge.
pub struct Own {
    machine: OwnEdge,
    lease: LeaseThread,
    arbiter: Arbiter,
    /// The interface by which clients come.
    interface: String,
    /// Whether what they send reaches both members.
    watch: Watch,
    started: Instant,
    view: View,
    opened: bool,
    speaks: bool,
    is_other_fine: bool,
    /// Whether something was said to it since its last turn.
    is_due: bool,
    notes: Vec<Note>,
}

impl Own {
    /// Loads what lets this member speak, and starts the thread that tells it until when.
    ///
    /// # Errors
    /// When a program cannot be loaded, or a socket not be opened.
    pub fn begin(
        config: &Config,
        me: &Member,
        key: &Keyring,
        started: Instant,
    ) -> anyhow::Result<Self> {
        let arbiter = config.arbiter.as_ref().context("the group has neither edge nor arbiter")?;
        let segment = config.segment.as_ref().context("the group has neither edge nor segment")?;
        // A daemon that is refused must not have taken another one's programs from their interface.
        let socket = lease::listen(me)?;
        let (programs, begun) = super::speak::begin(config, segment, me)?;
        let lease = LeaseThread::start((config, arbiter), me, key, (begun, socket), started)?;
        let period = Nanos(config.heartbeat().as_nanos() as u64);
        Ok(Self {
            machine: OwnEdge::new(&me.name, &config.other(me).name, period, Nanos(0)),
            lease,
            arbiter: arbiter.clone(),
            interface: me.interface.clone(),
            watch: Watch::new(config, (segment, me), key, programs)?,
            started,
            view: View::default(),
            opened: false,
            speaks: false,
            is_other_fine: false,
            is_due: true,
            notes: Vec::new(),
        })
    }

    fn take_word(&self) -> Result<(), String> {
        let name = self.arbiter.name();
        let waits = matches!(
            self.view.refused,
            Some(Refusal::NotOff | Refusal::Unheard | Refusal::Proving | Refusal::NoProof)
        );
        match () {
            () if !self.arbiter.is_own() => Err(format!(
                "the arbiter of this group is {name}, which decides who takes over\n  remedy: {LOOK}"
            )),
            () if self.view.hears_other => {
                Err(format!("the other member is heard: its host is not off\n  remedy: {LOOK}"))
            }
            () if !waits => {
                Err(format!("nothing on this host waits for an operator's word\n  remedy: {LOOK}"))
            }
            () => {
                self.lease.give_word();
                Ok(())
            }
        }
    }

    /// The thread that keeps the lease.
    #[must_use]
    pub fn lease(&self) -> &LeaseThread {
        &self.lease
    }

    /// What was worth telling since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Counts for the status: of the lease, and of clients' frames.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, &[(&'static str, u64)]); 2] {
        [("lease", &self.view.counters), ("speak", self.watch.counters())]
    }

    fn deadline(&self) -> Instant {
        match self.is_due {
            true => Instant::now(),
            false => {
                let due = self.machine.next_deadline().min(self.watch.next_deadline());
                self.started + Duration::from_nanos(due.0)
            }
        }
    }

    fn turn(&mut self, now: Instant, mut each: impl FnMut(Message<'_>)) -> LinkEvent {
        self.is_due = false;
        self.view = self.lease.view();
        self.notes.extend(self.lease.take_notes());
        let at = self.nanos(now);
        let seen = self.segment_view();
        self.watch.turn(at, &seen);
        let unheard = self.unheard();
        // Clients may reach the other member, which then says that all is well.
        let is_deaf = self.watch.is_deaf(at) && self.is_other_fine;
        let sight = Sight {
            record: self.view.record,
            speaks: seen.speaks,
            hears_other: self.view.hears_other,
            other_follows: self.view.other_follows,
            is_cut: is_deaf || !seen.has_link,
            has_resigned: self.view.has_resigned,
            unheard: unheard.as_deref(),
        };
        let mut said: Vec<Vec<u8>> = Vec::new();
        let orders = self.machine.turn(at, &sight, self.speaks, &mut |message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            said.push(bytes);
        });
        self.lease.order(orders);
        said.iter().filter_map(|bytes| Message::decode(bytes).ok()).for_each(&mut each);
        match std::mem::replace(&mut self.opened, true) {
            true => LinkEvent::Nothing,
            false => LinkEvent::Opened,
        }
    }

    /// The machines' time.
    fn nanos(&self, at: Instant) -> Nanos {
        Nanos((at - self.started).as_nanos() as u64)
    }

    /// What the machine that watches the segment has to know.
    fn segment_view(&self) -> segment::View {
        let is = |whose: Whose| self.view.record.is_some_and(|record| record.whose == whose);
        segment::View {
            leads: is(Whose::Mine),
            follows: is(Whose::Other),
            pair: self.view.record.is_some_and(|record| record.pair),
            speaks: self.view.deadline > self.nanos(Instant::now()).0,
            hears_other: self.view.hears_other,
            has_link: carries(&self.interface).is_ok_and(|it| it == Carries::Yes),
        }
    }

    /// What the arbiter is called in a sentence.
    fn called(&self) -> &'static str {
        match self.arbiter.kind {
            ArbiterKind::Witness(_) => "the witness",
            ArbiterKind::Etcd(_) => "etcd",
            ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => "the record",
        }
    }

    /// Why nobody could take over now.
    fn unheard(&self) -> Option<String> {
        if !self.view.is_answered {
            // Of a record of its own, that says what became of the last proof.
            let why = self.view.unanswered.as_ref().filter(|_| !self.arbiter.is_own());
            let why = why.map(|why| format!(": {why}"));
            let (called, place) = (self.called(), self.arbiter.place());
            let why = why.unwrap_or_default();
            return Some(format!("{called} at {place} does not answer{why}"));
        }
        let refusal = self.view.refused?;
        let failure = self.view.unanswered.as_deref().filter(|_| refusal == Refusal::NoProof);
        Some(match (&self.arbiter.kind, refusal) {
            (ArbiterKind::Etcd(_), Refusal::OtherLineage) => OTHER_ETCD.to_owned(),
            (ArbiterKind::Etcd(_), Refusal::Behind | Refusal::Conflict) => OLD_ETCD.to_owned(),
            (_, Refusal::Conflict) if self.arbiter.is_own() => TWO_OWNERS.to_owned(),
            _ => failure.map_or(refusal.to_string(), |why| format!("{refusal}: {why}")),
        })
    }

    fn is_in_step(&self, epoch: u64) -> bool {
        self.view.other_follows == Some(epoch) || self.machine.follows() == Some(epoch)
    }

    /// What keeps this host from doing its part, and which of its neighbours is at fault.
    fn finding(&self, now: Instant) -> Option<Said> {
        let says = |reason: &str, remedy: &str| {
            Some(Said::new(Role::Witness, State::Unprotected, reason, remedy))
        };
        if let Some(why) = self.unheard() {
            let refused = self.view.refused.filter(|_| self.view.is_answered);
            let remedy = match (&self.arbiter.kind, refused) {
                _ if self.arbiter.is_own() => refused
                    .map_or(SLOW_DISK, |refusal| remedy_alone(refusal, self.view.hears_other)),
                (ArbiterKind::Witness(_), None) => UNANSWERED,
                (ArbiterKind::Witness(_), Some(refusal)) => remedy(refusal),
                (ArbiterKind::Etcd(_), None) => ETCD_UNANSWERED,
                (
                    ArbiterKind::Etcd(_),
                    Some(Refusal::OtherLineage | Refusal::Behind | Refusal::Conflict),
                ) => ETCD_ANEW,
                (_, _) => super::advice::WAIT,
            };
            return says(&format!("nobody could take over: {why}"), remedy);
        }
        if let Some(why) = &self.view.unkept {
            let called = self.called();
            let reason = format!("what {called} grants cannot be noted on this host: {why}");
            return says(&reason, "look at the disk of arbiter.state_dir");
        }
        let (reason, remedy) = self.watch.finding(self.nanos(now))?;
        says(&reason, remedy)
    }

    /// The state of what stands in the edge's place.
    #[must_use]
    pub fn said(&self) -> Said {
        if let Some(finding) = self.finding(Instant::now()) {
            return finding;
        }
        let says =
            |state, reason: &str| Said::new(Role::Witness, state, reason, super::advice::WAIT);
        match self.view.record {
            Some(record) if !record.pair && self.is_in_step(record.epoch) => {
                says(State::Unprotected, UNNAMED)
            }
            // Who is alone says so itself.
            Some(_) => Said::fine(Role::Witness),
            None => says(State::Waiting, "nobody has begun yet"),
        }
    }
}

/// Both are in step, and nobody could take over yet.
pub const UNNAMED: &str = "the record does not name a backup yet";
const LOOK: &str = "look at `holdfast status` of both members";
/// What to do when nobody answers.
const UNANSWERED: &str = "start `holdfast witness` there, or look at the way to it";
const ETCD_UNANSWERED: &str = "look at `etcdctl endpoint health`, and at the way to it";
const OTHER_ETCD: &str = "another etcd answers than the one that was asked before";
const OLD_ETCD: &str = "etcd's record is older than what this member knows, or another one: it was \
    restored from a backup, or emptied, or somebody else was asked before";
const SLOW_DISK: &str = "look at the disk of arbiter.state_dir on this host";
const TWO_OWNERS: &str = "both members own the same epoch: an operator's word was not true, or a disk \
    or a gateway was believed that should not have been; neither changes anything";
const ETCD_ANEW: &str = "name the right one; if the old one is gone for good, take the pair down, and \
    remove the group's files in arbiter.state_dir on both members before they start again";

/// What to do where the members keep the record themselves, and this one may not change it.
fn remedy_alone(refusal: Refusal, hears_other: bool) -> &'static str {
    match refusal {
        Refusal::NotOff | Refusal::NoProof | Refusal::Unheard if !hears_other => {
            "start the other member; or switch its host off, look in its log that it had not gone on \
             alone before, and say so here: holdfast takeover --i-have-powered-it-off"
        }
        Refusal::NotOff | Refusal::NoProof | Refusal::Unheard => {
            "one of them has an empty disk, or not the one that it had: stop the daemon of that one, and \
             say so on the other one: holdfast takeover --i-have-powered-it-off"
        }
        Refusal::Conflict => {
            "decide which member is right, stop the other one, remove its file GROUP-MEMBER.seen in \
             arbiter.state_dir, and start it again"
        }
        Refusal::NotWritten => SLOW_DISK,
        _ => super::advice::WAIT,
    }
}

/// What to do when the witness refuses.
fn remedy(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Settling | Refusal::Behind | Refusal::OtherLineage => {
            "start both members, and keep them running: they tell the witness what they know"
        }
        Refusal::NotWritten => "look at the disk of arbiter.state_dir, on the witness's host",
        Refusal::TooManyGroups | Refusal::Stranger | Refusal::Name => {
            "compare the file with the witness's"
        }
        Refusal::Conflict | Refusal::Barred => "look at the status of both members",
        // What nobody but the members themselves says is never a witness's.
        Refusal::Busy
        | Refusal::OwnerLives
        | Refusal::Change
        | Refusal::Unproven
        | Refusal::NotOff
        | Refusal::Unheard
        | Refusal::Proving
        | Refusal::NoProof => super::advice::WAIT,
    }
}

/// Level of a note in the log.
#[must_use]
pub fn level(note: Note) -> Level {
    match note {
        Note::Founded | Note::Protected | Note::ArbiterAnswers | Note::Overslept => Level::Info,
        _ => Level::Warn,
    }
}
