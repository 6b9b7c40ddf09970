use super::*;
use crate::arbiter::client::ClientSettings;
use crate::arbiter::{Arbiter, Asker, Call, Mode, Owner, Record, Refusal, Reply, Request};

mod begins;
mod deaf;
mod epochs;
mod hands_over;
mod loses;

const MS: fn(u64) -> Nanos = Nanos::from_ms;
/// Lives of the two, and of later ones.
const LIVES: [u64; 2] = [10, 20];
const LINEAGE: u64 = 1;
const FOREVER: u64 = u64::MAX;

fn timing() -> Timing {
    Timing::new(MS(20), MS(60), Nanos(0)).expect("the default")
}

/// What a machine wanted.
#[derive(Default)]
struct Wanted {
    stores: Vec<u64>,
    sent: Vec<Message>,
    asked: Vec<(u64, Asker, Request)>,
    kept: Vec<Kept>,
    notes: Vec<Note>,
}

impl Arbiter for Wanted {
    fn read(&mut self, call: Call, asker: &Asker) {
        self.asked.push((call.number, asker.clone(), Request::Read));
    }
    fn compare_and_swap(
        &mut self,
        call: Call,
        asker: &Asker,
        expected: Option<&Record>,
        next: &Record,
    ) {
        let request = Request::Swap { expected: expected.cloned(), next: next.clone() };
        self.asked.push((call.number, asker.clone(), request));
    }
}

impl LeaseOutput for Wanted {
    fn store(&mut self, deadline: u64) {
        assert!(self.sent.is_empty() || self.sent.iter().all(|it| it.kind != Kind::Resign));
        self.stores.push(deadline);
    }
    fn send(&mut self, message: &Message) {
        self.sent.push(*message);
    }
    fn heard(&mut self, _: Nanos, _: &Message) {}
    fn keep(&mut self, kept: &Kept) {
        self.kept.push(kept.clone());
    }
    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }
}

impl Wanted {
    fn kinds(&self) -> Vec<Kind> {
        self.sent.iter().map(|message| message.kind).collect()
    }

    fn swaps(&self) -> Vec<Record> {
        let next = |(_, _, request): &'_ (u64, Asker, Request)| match request {
            Request::Swap { next, .. } => Some(next.clone()),
            Request::Read => None,
        };
        self.asked.iter().filter_map(next).collect()
    }
}

fn record(epoch: u64, side: usize, mode: Mode) -> Record {
    let owner = Owner { name: ["a", "b"][side].to_owned(), life: LIVES[side] };
    Record { epoch, owner, mode }
}

fn setup(side: usize) -> Setup {
    Setup {
        group: "g".to_owned(),
        me: Owner { name: ["a", "b"][side].to_owned(), life: LIVES[side] },
        peer: ["b", "a"][side].to_owned(),
        sides: [[1, 2], [2, 1]][side],
        kept: Kept::default(),
        preferred: side == 0,
        timing: timing(),
        arbiter: ClientSettings { try_out: MS(30), poll: MS(10_000), ..ClientSettings::STANDARD },
    }
}

/// Two members and an arbiter, nothing of which takes time or is lost unless it is said.
struct Pair {
    now: Nanos,
    members: [Lease; 2],
    /// What each has wanted since it was looked at.
    wanted: [Wanted; 2],
    record: Option<Record>,
    lineage: u64,
    /// Whether messages of a member arrive, and whether the arbiter answers it.
    heard: [bool; 2],
    answers: [bool; 2],
    /// Whether a member's process runs.
    runs: [bool; 2],
    /// Whether nothing arrives at a member.
    deaf: [bool; 2],
    /// What the arbiter has told each last, and how often it has refused a change for that.
    tickets: [u64; 2],
    unproven: [u32; 2],
}

impl Pair {
    fn new() -> Self {
        let mut wanted = [Wanted::default(), Wanted::default()];
        let members = [0, 1].map(|side| Lease::new(Nanos(0), setup(side), &mut wanted[side]));
        assert!(wanted.iter().all(|it| it.stores == [0]), "silent first");
        let (heard, answers, runs) = ([true; 2], [true; 2], [true; 2]);
        let (now, record, lineage) = (Nanos(0), None, LINEAGE);
        let (deaf, tickets, unproven) = ([false; 2], [0; 2], [0; 2]);
        Self {
            now,
            members,
            wanted,
            record,
            lineage,
            heard,
            answers,
            runs,
            deaf,
            tickets,
            unproven,
        }
    }

    /// Two that are a pair since 200 ms, of epoch 1.
    fn paired() -> Self {
        let mut pair = Self::new();
        pair.until(100);
        assert_eq!(pair.roles(), [Role::Solo, Role::Waiting]);
        pair.joins();
        pair.until(200);
        assert_eq!(pair.roles(), [Role::Paired, Role::Following]);
        assert_eq!(pair.record, Some(record(1, 0, Mode::Pair)));
        pair.wanted = Default::default();
        pair
    }

    fn joins(&mut self) {
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        for side in [1, 0] {
            self.does(side, |lease, now, out| assert!(lease.handle_in_step(now, epoch, true, out)));
        }
    }

    fn roles(&self) -> [Role; 2] {
        self.members.each_ref().map(Lease::role)
    }

    fn speaks(&self, side: usize) -> bool {
        self.now.0 < self.members[side].deadline()
    }

    /// Whoever speaks; never two.
    fn speaker(&self) -> Option<usize> {
        assert!(!self.speaks(0) || !self.speaks(1), "two speak at {:?}", self.now);
        [0, 1].into_iter().find(|side| self.speaks(*side))
    }

    /// Lets a machine do something, and carries out what it wants.
    fn does(&mut self, side: usize, what: impl FnOnce(&mut Lease, Nanos, &mut Wanted)) {
        let mut wanted = Wanted::default();
        what(&mut self.members[side], self.now, &mut wanted);
        self.carry_out(side, wanted);
    }

    fn carry_out(&mut self, side: usize, wanted: Wanted) {
        let (sent, asked) = (wanted.sent.clone(), wanted.asked.clone());
        let seen = &mut self.wanted[side];
        seen.stores.extend(wanted.stores);
        seen.sent.extend(wanted.sent);
        seen.asked.extend(wanted.asked);
        seen.kept.extend(wanted.kept);
        seen.notes.extend(wanted.notes);
        self.speaker();
        for (number, asker, request) in asked {
            if !self.answers[side] {
                continue;
            }
            let ticket = std::mem::replace(&mut self.tickets[side], self.now.0 + 1);
            let mut outcome = Ok(());
            if let Request::Swap { expected, next } = request
                && expected == self.record
            {
                if asker.ticket == ticket && ticket != 0 {
                    self.record = Some(next);
                } else {
                    self.unproven[side] += 1;
                    outcome = Err(Refusal::Unproven);
                }
            }
            if self.deaf[side] {
                continue;
            }
            let outcome = outcome.map(|()| self.record.clone());
            let reply = Reply { lineage: self.lineage, ticket: self.tickets[side], outcome };
            let mut wanted = Wanted::default();
            self.members[side].handle_reply(self.now, number, &reply, &mut wanted);
            self.carry_out(side, wanted);
        }
        for message in sent {
            if self.heard[side] && self.runs[1 - side] && !self.deaf[1 - side] {
                let mut wanted = Wanted::default();
                self.members[1 - side].handle_message(self.now, &message, &mut wanted);
                self.carry_out(1 - side, wanted);
            }
        }
    }

    /// Does what is due until then.
    fn until(&mut self, ms: u64) {
        loop {
            let due = |side: &usize| self.members[*side].next_deadline();
            let next = [0, 1].into_iter().filter(|side| self.runs[*side]).min_by_key(due);
            let Some(side) = next.filter(|side| due(side) < MS(ms)) else { break };
            self.now = self.now.max(due(&side));
            self.does(side, Lease::handle_timeout);
        }
        self.now = MS(ms);
    }

    /// The first time, in ms, at which this is true; it must be before `end`.
    fn when(&mut self, end: u64, is: impl Fn(&Self) -> bool) -> u64 {
        let from = self.now.as_ms();
        let first = (from..end).find(|ms| {
            self.until(*ms);
            is(self)
        });
        first.expect("it becomes true")
    }
}

/// Ends what a member does.
fn dies(pair: &mut Pair, side: usize) {
    (pair.runs[side], pair.heard[side]) = (false, false);
}

#[test]
fn times_fit_or_are_refused() {
    let new = |period, lease, behind| Timing::new(MS(period), MS(lease), MS(behind));
    for (period, error) in [(0, TimingError::Period), (101, TimingError::Period)] {
        assert_eq!(new(period, 400, 0), Err(error));
    }
    assert_eq!(new(20, 59, 0), Err(TimingError::Lease), "it ends before a death is declared");
    assert_eq!(new(20, 501, 0), Err(TimingError::Lease));
    assert_eq!(new(20, 60, 60), Err(TimingError::Behind));
    for (period, lease) in [(1, 3), (100, 300), (100, 500), (20, 60)] {
        let timing = new(period, lease, 0).expect("they fit");
        assert_eq!((timing.period(), timing.lease()), (MS(period), MS(lease)));
        assert_eq!(timing.declare(), MS(3 * period));
        assert_eq!(timing.solo(), Nanos(MS(5 * period).0 / 2));
        assert!(timing.solo() < timing.declare() && timing.declare() <= timing.lease());
    }
    // 60 ms, 0.2 % of it, half a millisecond, and the queue.
    assert_eq!(
        new(20, 60, 10).expect("fits").promise(),
        Nanos(60_000_000 + 120_000 + 500_000 + 10_000_000)
    );
    assert_eq!(timing().patience(), timing().promise().plus(MS(60)));
}

/// The promise outlasts the lease by any two clocks within their bounds.
#[test]
fn a_promise_is_longer_than_the_lease_by_any_clock() {
    for (period, lease) in [(1, 3), (20, 60), (100, 500)] {
        let timing = Timing::new(MS(period), MS(lease), Nanos(0)).expect("fits");
        // The owner's clock is slow, the other one fast, both by as much as they may.
        let owner_true =
            u128::from(timing.lease().0) * 1_000_000 / (1_000_000 - u128::from(DRIFT_PPM_EACH));
        let other_true =
            u128::from(timing.promise().0) * 1_000_000 / (1_000_000 + u128::from(DRIFT_PPM_EACH));
        assert!(other_true > owner_true + 400_000, "{lease} ms");
    }
}

#[test]
fn every_note_has_words_of_its_own() {
    let notes = [
        Note::Founded,
        Note::TookOver,
        Note::Unprotected,
        Note::Protected,
        Note::PeerSilent,
        Note::PeerResigned,
        Note::PeerHeardAgain,
        Note::NoGrants,
        Note::Overslept,
        Note::Barred,
        Note::Deposed,
        Note::Copied,
        Note::Refused(Refusal::Busy),
        Note::ArbiterSilent,
        Note::ArbiterAnswers,
        Note::ArbiterForgot,
        Note::OtherArbiter,
    ];
    let words: std::collections::BTreeSet<String> = notes.iter().map(Note::words).collect();
    assert_eq!(words.len(), notes.len());
}
