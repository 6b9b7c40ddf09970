//! The record of a pair that has no third party: each member keeps it on its own disk, changes it
//! there, and learns from the other one's messages what that has on its.
//!
//! Nobody can decide between two members that do not hear each other, so one of them must not need
//! a decision. The owner that has lost its backup goes on; the backup that has lost its owner takes
//! over only what can be nobody's any more:
//!
//! * the owner has resigned in this epoch, or another life of it is heard, which is silent;
//! * or there is a *proof*: the operator's word that the other host is off, or what [`Way`] says.
//!
//! Where a proof can be had, the owner needs one, too, before it goes on alone: otherwise both would
//! own the same epoch. What an owner has given away (it has resigned, or its daemon was started
//! again) it gets back when the other one *yields*: says that it will never take over in that
//! epoch. A group that has no record is founded by one certain member, when the other one has said
//! that it has none either; a fresh disk therefore starts no empty server beside a living one.
//!
//! What the other member says that comes later than what is stored is learnt. Two owners of one
//! epoch are never settled here: nothing is changed any more, and it is shown.
//!
//! No ticket is needed. A ticket keeps one who hears nothing from a record that bars the other one;
//! here the owner of a record always knows, since it is on its own disk.
//!
//! What is left to trust: proofs, an operator's word above all, which says that the host is off, that
//! it stays off until the members hear each other again, and that it did not go on alone before
//! ([`Way::Nobody`] lets it). And a copy of a member is taken for a later life of it.

use super::{Mode, Owner, Record, Refusal, Reply, Request, rank_of};
use crate::Nanos;
use crate::lease::{Kind, Message};

/// A member's own record is one, whatever disk it was read from; later than that of a witness, which
/// may have been asked before.
pub const LINEAGE: u64 = u64::MAX;
/// Longest time between two requests for the same change. After a longer one this process was not
/// run, or has wanted something else meanwhile.
const GAP: Nanos = Nanos::from_ms(100);
/// Time for which a proof that says nothing of the future counts, since it was sought.
const FRESH: Nanos = Nanos::from_ms(200);

/// How a member proves that the other one is silent for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It does not; there is the operator's word.
    Nobody,
    /// A command switches the other host off, and says so.
    Command,
    /// It reaches its router, and takes that for a proof. It is none: both may reach it.
    Gateway,
}

/// What a record is kept with.
#[derive(Clone, Debug)]
pub struct Settings {
    pub me: Owner,
    /// Name of the other member.
    pub peer: String,
    /// Whether this member founds the group; one of the two does.
    pub founds: bool,
    pub way: Way,
    /// Time for which a change has been wanted before a proof is sought: by the owner, and by its
    /// backup. The owner's is shorter, so that it wins where only the path between them is cut.
    pub patience: [Nanos; 2],
    /// Time between a proof that was not given and the next try.
    pub retry: Nanos,
}

/// What was heard last of the other member.
#[derive(Clone, Debug)]
struct Heard {
    life: u64,
    record: Option<Record>,
    /// Whether that is to be learnt if it is later; not again where the disk has refused it.
    counts: bool,
}

/// What is on its way to the disk.
#[derive(Clone, Debug)]
struct Writing {
    record: Record,
    /// The request that it answers; `None`: it is learnt.
    call: Option<u64>,
}

/// A change that waits for a proof.
#[derive(Clone, Debug)]
struct Wanted {
    over: Option<Record>,
    since: Nanos,
    last: Nanos,
}

/// The machine; see the module.
///
/// # Contract
/// * Every message of the other member that counts goes to `handle_heard`, every one to it through
///   `mark`, which is the last to change it.
/// * After each call: write and sync what `poll_write` gives, then call `handle_written`; seek a proof
///   if `poll_proof` says so, then call `handle_proof`; and give the lease what `poll_reply` has.
/// * While `is_contested_alive`, this member must be silent.
#[derive(Clone, Debug)]
pub struct Own {
    settings: Settings,
    /// Whether this life has found an empty disk, and has not heard a living owner since: what an
    /// earlier life did it does not know. What it is told of that is not written down, so that a
    /// later life does not know it either.
    is_fresh: bool,
    /// Whether this life is about to end.
    leaves: bool,
    stored: Option<Record>,
    writing: Option<Writing>,
    /// Whether what is being written was fetched.
    is_fetched: bool,
    asked: Option<(u64, Request)>,
    reply: Option<(u64, Reply)>,
    heard: Option<Heard>,
    /// Epoch and life in which the other member has resigned.
    peer_resigned: Option<(u64, u64)>,
    /// Epoch of ours that the other member will not take over.
    peer_yielded: Option<u64>,
    /// Epoch in which this life has resigned, and the other one's in which it has yielded.
    resigned: Option<u64>,
    yielded: Option<u64>,
    /// Epoch in which this life was in step last.
    followed: Option<u64>,
    wanted: Option<Wanted>,
    /// What the operator has given the word over.
    word: Option<Option<Record>>,
    /// What a proof is sought over since when, and what the last one was given for.
    proving: Option<(Record, Nanos)>,
    is_proof_due: bool,
    proved: Option<(Record, Nanos)>,
    /// Whether the last proof was not given, and when the next one may be sought.
    failed: bool,
    retry_at: Nanos,
}

impl Own {
    /// The record as this member's disk has it.
    #[must_use]
    pub fn new(settings: Settings, stored: Option<Record>) -> Self {
        Self {
            settings,
            is_fresh: stored.is_none(),
            leaves: false,
            stored,
            writing: None,
            is_fetched: false,
            asked: None,
            reply: None,
            heard: None,
            peer_resigned: None,
            peer_yielded: None,
            resigned: None,
            yielded: None,
            followed: None,
            wanted: None,
            word: None,
            proving: None,
            is_proof_due: false,
            proved: None,
            failed: false,
            retry_at: Nanos(0),
        }
    }

    /// The record, as far as it is on this disk.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.stored.as_ref()
    }

    /// Whether the other member names another owner of the same epoch.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.told().zip(self.record()).is_some_and(|(told, stored)| told.contradicts(stored))
    }

    /// Whether both members own the same epoch, and the other one lives: at most one of them may be
    /// right, and nobody knows which.
    #[must_use]
    pub fn is_contested_alive(&self) -> bool {
        let is_mine = self.record().is_some_and(|record| record.owner == self.settings.me);
        let is_its = |heard: &Heard| {
            heard.record.as_ref().is_some_and(|record| record.owner.life == heard.life)
        };
        is_mine && self.is_contested() && self.heard.as_ref().is_some_and(is_its)
    }

    /// The record, if this member can say that it is its newest. Where the disk is lost of one that
    /// went on alone, the other one must not take over what it has got.
    fn known(&self) -> Option<&Record> {
        self.record().filter(|record| !self.is_lost(record))
    }

    /// Whether that is a record of an earlier life that this one would have found on its disk.
    fn is_lost(&self, record: &Record) -> bool {
        let Settings { me, .. } = &self.settings;
        self.is_fresh && record.owner.name == me.name && record.owner != *me
    }

    /// This life is about to end: it grants nothing more, and takes nothing over. The other member
    /// hears that, and need not prove anything.
    pub fn leave(&mut self) {
        self.leaves = true;
    }

    fn told(&self) -> Option<&Record> {
        self.heard.as_ref()?.record.as_ref()
    }

    // What comes.

    /// Takes a request of this member's lease. An earlier one that was not answered yet never will
    /// be.
    pub fn handle_request(&mut self, now: Nanos, number: u64, request: Request) {
        self.asked = Some((number, request));
        self.serve(now);
    }

    /// Takes a message of the other member that counts.
    pub fn handle_heard(&mut self, now: Nanos, message: &Message) {
        let record = message.record(&self.settings.peer, &self.settings.me.name);
        if message.kind == Kind::Resign && message.owns && message.life == message.session {
            self.peer_resigned = Some((message.epoch, message.life));
        }
        if message.yields && record.is_some() && record == self.stored {
            self.peer_yielded = Some(message.epoch);
        }
        // Who asks for grants speaks for what it owns.
        let is_owner = message.kind == Kind::Ask && message.owns && message.life == message.session;
        self.is_fresh &= !is_owner;
        let owner = self.record().map(|record| record.owner.life);
        if owner == Some(message.session) {
            // It lives: what was said or proved of it is not so.
            (self.word, self.proved) = (None, None);
        }
        self.heard = Some(Heard { life: message.session, record, counts: true });
        self.serve(now);
    }

    /// Completes a message to the other member: it tells the record as it is stored.
    pub fn mark(&mut self, message: &mut Message) {
        // A change that is being written may be true already: whoever resigns says in which epoch.
        if message.kind == Kind::Resign && self.writing.is_some() {
            message.kind = Kind::Word;
        }
        message.follows &= !self.leaves;
        let (follows, epoch) = (message.follows, message.epoch);
        message.tell(self.known(), &self.settings.me.name);
        message.follows &= epoch == message.epoch;
        // A later life of the other one has not heard of it yet.
        let has_resigned = self.resigned == Some(message.epoch) && message.owns && !message.solo;
        if has_resigned && message.kind == Kind::Word && self.writing.is_none() {
            message.kind = Kind::Resign;
        }
        if message.kind == Kind::Resign {
            self.resigned = Some(message.epoch);
        }
        if message.follows {
            self.followed = Some(epoch);
        }
        message.yields = !follows && self.may_yield();
        if message.yields {
            self.yielded = Some(message.epoch);
        }
    }

    /// Whether this member, which is not in step, can say that it will never take over what the
    /// record gives to the other one. Nobody comes into step with a pair: this life may once have
    /// been, and comes into step again if its owner goes on.
    fn may_yield(&self) -> bool {
        let is_its = |it: &&Record| it.mode == Mode::Pair && it.owner.name == self.settings.peer;
        let Some(record) = self.record().filter(is_its) else { return false };
        let is_left = self.followed != Some(record.epoch) || self.is_owner_gone(record);
        (is_left || self.leaves) && !self.is_fresh && self.writing.is_none()
    }

    /// What is to be written now, once.
    pub fn poll_write(&mut self) -> Option<Record> {
        let writing = self.writing.as_ref()?;
        let is_new = !std::mem::replace(&mut self.is_fetched, true);
        is_new.then(|| writing.record.clone())
    }

    /// Notes that what was given to write is on the disk, or could not be written.
    pub fn handle_written(&mut self, now: Nanos, ok: bool) {
        let Some(Writing { record, call }) = self.writing.take() else { return };
        if ok {
            assert!(record.rank() > rank_of(self.record()), "L3: an epoch is taken back");
            self.is_fresh &= call.is_none();
            self.stored = Some(record);
        } else if let Some(heard) = self.heard.as_mut().filter(|_| call.is_none()) {
            heard.counts = false;
        }
        if let Some(number) = call {
            let outcome = if ok { Ok(self.stored.clone()) } else { Err(Refusal::NotWritten) };
            self.answer(number, outcome);
        }
        self.serve(now);
    }

    /// What the lease is to be told, once: the number of its request, and the reply.
    pub fn poll_reply(&mut self) -> Option<(u64, Reply)> {
        self.reply.take()
    }

    /// Whether a proof is to be sought now, once.
    pub fn poll_proof(&mut self) -> bool {
        std::mem::take(&mut self.is_proof_due)
    }

    /// Takes what became of the proof that was sought.
    pub fn handle_proof(&mut self, now: Nanos, ok: bool) {
        let Some(proving) = self.proving.take() else { return };
        self.failed = !ok;
        if ok {
            self.proved = Some(proving);
        } else {
            self.retry_at = now.plus(self.settings.retry);
        }
    }

    /// Takes the operator's word that the other member's host is off. False if nothing waits for
    /// it.
    pub fn handle_word(&mut self, now: Nanos) -> bool {
        let wanted = self.wanted.as_ref().filter(|wanted| now.since(wanted.last) <= GAP);
        let over = wanted.map(|wanted| wanted.over.clone());
        let is_needed = over.is_some();
        if is_needed {
            self.word = over;
        }
        is_needed
    }

    // What follows.

    fn answer(&mut self, number: u64, outcome: Result<Option<Record>, Refusal>) {
        // No ticket proves anything here, and none is asked for.
        self.reply = Some((number, Reply { lineage: LINEAGE, ticket: 1, outcome }));
    }

    /// Learns what is to be learnt, then answers what was asked; one write at a time.
    fn serve(&mut self, now: Nanos) {
        if self.writing.is_some() {
            return;
        }
        let told = self.heard.as_ref().filter(|heard| heard.counts);
        let told = told.and_then(|heard| heard.record.clone());
        if let Some(record) = told
            && record.rank() > rank_of(self.record())
            && !self.is_contested()
        {
            if !self.is_lost(&record) {
                return self.write(record, None);
            }
            self.stored = Some(record);
        }
        let Some((number, request)) = self.asked.take() else { return };
        match request {
            Request::Read if self.is_contested() => self.answer(number, Err(Refusal::Conflict)),
            Request::Read => self.answer(number, Ok(self.stored.clone())),
            // Done already, or not as it was: the asker looks.
            Request::Swap { expected, next }
                if self.stored.as_ref() == Some(&next) || self.stored != expected =>
            {
                self.answer(number, Ok(self.stored.clone()));
            }
            Request::Swap { next, .. } => match self.consider(now, &next) {
                Ok(()) => self.write(next, Some(number)),
                Err(refusal) => self.answer(number, Err(refusal)),
            },
        }
    }

    fn write(&mut self, record: Record, call: Option<u64>) {
        self.writing = Some(Writing { record, call });
        self.is_fetched = false;
    }

    /// Whether this member may make the record `next`.
    fn consider(&mut self, now: Nanos, next: &Record) -> Result<(), Refusal> {
        if next.owner != self.settings.me || !next.may_follow(self.record()) {
            return Err(Refusal::Change);
        }
        if self.is_contested() {
            return Err(Refusal::Conflict);
        }
        let Some(record) = self.stored.clone() else {
            let knows_none = self.heard.as_ref().is_some_and(|heard| heard.record.is_none());
            return match self.settings.founds && knows_none {
                true => Ok(()),
                false => self.wait(now, None, Refusal::Unheard),
            };
        };
        let is_own = record.owner.name == self.settings.me.name;
        match record.mode {
            Mode::Solo if is_own => Ok(()),
            Mode::Solo => Err(Refusal::Barred),
            Mode::Pair if is_own => self.go_on(now, record),
            Mode::Pair if self.leaves || self.yielded == Some(record.epoch) => Err(Refusal::Barred),
            Mode::Pair if self.is_owner_gone(&record) => Ok(()),
            Mode::Pair => self.prove(now, record),
        }
    }

    /// Whether a pair's record of this member may become one of it alone.
    fn go_on(&mut self, now: Nanos, record: Record) -> Result<(), Refusal> {
        let is_given = record.owner != self.settings.me || self.resigned == Some(record.epoch);
        match () {
            () if self.peer_yielded == Some(record.epoch) => Ok(()),
            // No proof of silence helps here: the other one may have taken over before it fell
            // silent, and a host that was switched off must not do the same to the other one when
            // it comes back.
            () if is_given => self.wait(now, Some(record), Refusal::Unheard),
            // The other one never takes over by silence.
            () if self.settings.way == Way::Nobody => Ok(()),
            () => self.prove(now, record),
        }
    }

    /// Whether the owner of this record, which is the other member, has given it away.
    fn is_owner_gone(&self, record: &Record) -> bool {
        let Record { epoch, owner, mode } = record;
        let is_another =
            |heard: &Heard| heard.life != owner.life && heard.record.as_ref() == Some(record);
        let is_reborn = self.heard.as_ref().is_some_and(is_another);
        let has_resigned = self.peer_resigned == Some((*epoch, owner.life));
        *mode == Mode::Pair && owner.name == self.settings.peer && (is_reborn || has_resigned)
    }

    /// Notes that a change waits for the operator's word, if nothing else comes.
    fn wait(&mut self, now: Nanos, over: Option<Record>, refusal: Refusal) -> Result<(), Refusal> {
        if self.word.as_ref() == Some(&over) {
            return Ok(());
        }
        let is_same = |it: &&Wanted| it.over == over && now.since(it.last) <= GAP;
        let since = self.wanted.as_ref().filter(is_same).map(|wanted| wanted.since);
        // What failed in an earlier need says nothing of this one.
        self.failed &= since.is_some();
        let since = since.unwrap_or(now);
        self.wanted = Some(Wanted { over, since, last: now });
        Err(refusal)
    }

    /// Whether the other member is proved to be silent for good; seeks a proof, when it is time.
    fn prove(&mut self, now: Nanos, record: Record) -> Result<(), Refusal> {
        let lasts = |at: Nanos| self.settings.way == Way::Command || now.since(at) < FRESH;
        if self.proved.as_ref().is_some_and(|(of, at)| *of == record && lasts(*at)) {
            return Ok(());
        }
        let refusal = match self.settings.way {
            Way::Nobody => Refusal::NotOff,
            Way::Command | Way::Gateway if self.failed => Refusal::NoProof,
            Way::Command | Way::Gateway => Refusal::Proving,
        };
        let waited = self.wait(now, Some(record.clone()), refusal);
        let patience = self.settings.patience[usize::from(record.owner != self.settings.me)];
        let since = self.wanted.as_ref().map_or(now, |wanted| wanted.since);
        let is_time = now >= since.plus(patience) && now >= self.retry_at;
        let has_way = self.settings.way != Way::Nobody && self.proving.is_none();
        if waited.is_err() && has_way && is_time {
            (self.proving, self.is_proof_due) = (Some((record, now)), true);
        }
        waited
    }
}

#[cfg(test)]
mod tests;
