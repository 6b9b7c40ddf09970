//! Which members are heard: a detector for each, and what all of them have in
//! common.

use super::{EdgeHost, EdgeMachine};
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, FIRST_PATIENCE, Peer, Verdicts};
use holdfast_wire::message::Message;

/// What the edge knows of a member beside its epoch.
#[derive(Debug)]
pub(super) struct Slot {
    /// Whether its channel is open.
    pub here: bool,
    /// Whether its hello was valid.
    pub greeted: bool,
    /// The detector outlives a channel: a member that comes back at once was
    /// never gone.
    pub detector: Detector,
    /// When the tap of a member that went away is switched off.
    pub tap_off: Option<Nanos>,
}

impl Slot {
    /// A member that counts as heard at `now`, so that it has some time to connect.
    pub fn new(now: Nanos, period: Nanos) -> Self {
        let detector = Detector::new(now, period);
        Self { here: false, greeted: false, detector, tap_off: None }
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        self.detector.next_deadline().into_iter().chain(self.tap_off).min()
    }

    pub fn hear(&mut self, at: Nanos) {
        self.detector.handle_received(at, &mut Verdicts::default());
    }
}

impl EdgeMachine {
    /// Takes a heartbeat that came beside the channel, at `at`.
    pub fn handle_pulse(&mut self, index: usize, at: Nanos) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if at > slot.detector.last_heard() {
            slot.hear(at);
            self.hearing.handle_received(at);
        }
    }

    /// Takes note that one of this host's processors stood still at `at`: what members have sent
    /// may wait there. They have a heartbeat's time more from then on.
    pub fn handle_standstill(&mut self, at: Nanos) {
        for slot in &mut self.slots {
            slot.detector.handle_standstill(at);
        }
    }

    /// Takes note that packets of the service have passed the fence, which are the current member's:
    /// it lets nobody else speak. Its kernel sends some without its daemon, too, so that they count
    /// only while the channel is open.
    pub(super) fn note_passing(&mut self, now: Nanos) {
        let current = (0..self.slots.len()).find(|index| self.is_current(*index));
        let slot = current.and_then(|index| self.slots.get_mut(index)).filter(|slot| slot.here);
        slot.into_iter().for_each(|slot| slot.detector.handle_passing(now));
    }

    /// Sends a member a heartbeat when it is time, and judges its silence.
    pub(super) fn watch(&mut self, index: usize, now: Nanos, host: &mut impl EdgeHost) {
        let was_suspected = self.is_suspected(index);
        let excused = self.hearing.excused_until(now);
        // A member that is still starting bars nobody, and nobody waits for it.
        let starts = !self.is_current(index) && !self.membership.is_in_step(self.name(index));
        let slot = &mut self.slots[index];
        slot.detector.excuse(excused);
        slot.detector.set_starting(starts);
        let mut verdicts = Verdicts::default();
        slot.detector.handle_timeout(now, &mut verdicts);
        let here = slot.here;
        if verdicts.declared {
            // Heartbeats go on, since the member may come back.
            slot.detector.start_over(now);
        }
        if let Some((number, echo)) = verdicts.beat.filter(|_| here) {
            host.send(index, &Message::Beat { number, echo, executed: 0 });
        }
        if verdicts.declared {
            self.reach(index, false, host);
        }
        let is_news = !was_suspected && self.membership.answers(self.name(index));
        if is_news && self.is_suspected(index) && self.is_current(index) {
            host.note("suspect", self.names[index].clone());
        }
        self.cache_if_suspected(index, host);
    }

    /// Caches what clients send from the second missed heartbeat of the current
    /// member on: it may be lost, and is kept until somebody answers again
    /// (thesis §3.3).
    fn cache_if_suspected(&self, index: usize, host: &mut impl EdgeHost) {
        if !self.is_current(index) {
        } else if self.is_suspected(index) {
            host.set_cache(index, true);
        } else if self.membership.answers(self.name(index)) {
            host.set_cache(index, false);
        }
    }

    /// Notes whether a member is heard, which decides who may run on alone, and tells the other
    /// members: a backup takes over from a primary that only the edge has lost.
    pub(super) fn reach(&mut self, index: usize, yes: bool, host: &mut impl EdgeHost) {
        if !self.membership.handle_answers(&self.names[index], yes) {
            return;
        }
        let what = match (yes, self.is_current(index)) {
            (true, _) => "heard",
            (false, true) => "declare",
            (false, false) => "silent",
        };
        let name = &self.names[index];
        host.note(what, name.clone());
        self.tell_all_but(index, &Message::Reach { member: name, yes }, host);
    }

    /// Excuses the silence of a member that has just become current, while it starts its server.
    pub(super) fn excuse_start(&mut self, index: usize, at: Nanos) {
        self.slots[index].detector.excuse(at.plus(FIRST_PATIENCE));
    }

    /// Whether two heartbeats of the member are missing.
    #[must_use]
    pub fn is_suspected(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.detector.peer() == Peer::Suspected)
    }

    /// Whether no takeover is about to begin, as far as the edge knows.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let current = self.membership.handle_ask().current.as_deref();
        current.and_then(|name| self.index(name)).is_none_or(|index| !self.is_suspected(index))
    }

    /// How often this process slept longer than a heartbeat.
    #[must_use]
    pub fn overslept(&self) -> u64 {
        self.slots.iter().map(|slot| slot.detector.overslept()).max().unwrap_or(0)
    }

    /// How often nobody at all was heard.
    #[must_use]
    pub fn deafened(&self) -> u64 {
        self.hearing.deafened()
    }
}
