//! The edge of a pair: which members are here, which are heard, and which may
//! speak (decisions 19, 21 and 22). The data path lives in the kernel and goes on
//! without it.
//!
//! A grant is on disk before it is in the fence, and in the fence before the member
//! hears of it.

mod grant;
mod member_request;
mod watch;

pub use member_request::MemberRequest;

use crate::nanos;
use crate::standing::hello;
use crate::timing::edge::{FLOW_AGE_PERIOD, SETTLE, TAP_LINGER};
use grant::Asked;
use holdfast_cluster::Nanos;
use holdfast_cluster::hearing::Hearing;
use holdfast_cluster::membership::{EdgeMembership, MembersError};
use holdfast_cluster::state::EdgeState;
use holdfast_wire::message::{ConnKey, FlowBounds, KEYS_MAX, Message};
use watch::Slot;

/// What the machine needs of its host: the kernel's fence, tap and flows, a disk,
/// and channels to the members, who are named by their index.
pub trait EdgeHost {
    /// The time, which has advanced since the machine was called.
    fn now(&self) -> Nanos;
    /// Sends a message to a member that is here. If its channel fails,
    /// [`EdgeMachine::handle_closed`] follows the present call.
    fn send(&mut self, member: usize, message: &Message<'_>);
    /// Closes the channel of a member.
    fn close(&mut self, member: usize);
    /// From now on only `current` speaks, in this epoch, and clients' packets go to
    /// it.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason; the fence is unchanged.
    fn set_fence(&mut self, epoch: u64, current: Option<usize>) -> Result<(), String>;
    /// Sets whether a member gets copies of what clients send.
    fn set_tap(&mut self, member: usize, on: bool);
    /// Has `state` written, after everything asked for before; returns the number
    /// of the write. [`EdgeMachine::handle_written`] follows, not within this
    /// call.
    fn keep(&mut self, state: &EdgeState) -> u64;
    /// The bounds that the edge has seen for every flow.
    ///
    /// # Errors
    /// When they cannot be read, with the reason.
    fn bounds(&mut self) -> Result<Vec<FlowBounds>, String>;
    /// Sets whether what clients send to `member` is kept because it may be
    /// lost.
    fn set_cache(&mut self, member: usize, on: bool);
    /// Plays what was kept to `member`.
    fn resend(&mut self, member: usize);
    /// Looks through a share of the flows, and forgets those that are over. Returns
    /// the flows of which nothing was heard for long, if somebody can be asked: at most
    /// [`KEYS_MAX`].
    fn age_flows(&mut self, now: Nanos, can_ask: bool) -> Vec<ConnKey>;
    /// Forgets flows whose clients have vanished, as the current member knows.
    fn forget_flows(&mut self, keys: &[ConnKey]);
    /// Notes an event that people want to know about: its kind, and a text.
    fn note(&mut self, what: &'static str, words: String);
}

/// Configuration of an edge.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub group: &'a str,
    /// All members; their positions here are the indices that everybody uses.
    pub members: &'a [&'a str],
    /// The member that is current before any other was.
    pub first: &'a str,
    /// Time between two heartbeats.
    pub period: Nanos,
}

/// The machine of a pair's edge: it judges the members by their heartbeats, and grants one of them
/// the right to speak.
///
/// # Contract
/// * [`EdgeMachine::handle_start`] comes first.
/// * Members are judged in [`EdgeMachine::handle_timeout`]: before it, hand over
///   whatever has come already.
#[derive(Debug)]
pub struct EdgeMachine {
    group: String,
    names: Vec<String>,
    first: String,
    membership: EdgeMembership,
    slots: Vec<Slot>,
    /// Hears all members together: an edge that hears nobody accuses nobody.
    hearing: Hearing,
    /// Whether it is closed by hand until the next takeover; not remembered.
    held: bool,
    /// The newest epoch that was in the fence.
    fenced_epoch: u64,
    /// The grant that is being written.
    asked: Option<Asked>,
    /// The last refusal, so that a repeated one is noted once.
    refused: Option<(usize, u64, String)>,
    /// When to stop waiting for members that have not said hello.
    settled_at: Option<Nanos>,
    age_at: Nanos,
    grants: u64,
    /// Time from the member's last request to its answer.
    last_grant: Nanos,
}

impl EdgeMachine {
    /// Builds an edge; `state` is what the disk says, or the default before the
    /// very first start.
    ///
    /// # Errors
    /// If the names are unusable, or the state names somebody else.
    pub fn new(setup: &Setup<'_>, state: EdgeState, now: Nanos) -> Result<Self, MembersError> {
        let names: Vec<String> = setup.members.iter().map(|name| (*name).to_owned()).collect();
        let membership = membership(&names, setup.first, state)?;
        Ok(Self {
            group: setup.group.to_owned(),
            first: setup.first.to_owned(),
            membership,
            slots: names.iter().map(|_| Slot::new(now, setup.period)).collect(),
            hearing: Hearing::new(now, setup.period),
            names,
            held: false,
            fenced_epoch: 0,
            asked: None,
            refused: None,
            settled_at: Some(now.plus(nanos(SETTLE))),
            age_at: now.plus(nanos(FLOW_AGE_PERIOD)),
            grants: 0,
            last_grant: Nanos(0),
        })
    }

    /// Takes the state of the kernel's fence, which an earlier life of this daemon has left. It may
    /// be older than the disk (the daemon died between the two, and nobody was told: the fence's
    /// member is current), new and closed (the host was started again), or newer (the file was lost
    /// or rolled back). It may stay open only if both agree; otherwise the named member has to ask.
    ///
    /// # Errors
    /// When the fence cannot be closed.
    pub fn handle_start(
        &mut self,
        (epoch, current): (u64, Option<usize>),
        host: &mut impl EdgeHost,
    ) -> Result<(), String> {
        let disk = self.membership.handle_ask().clone();
        let name = current.and_then(|index| self.names.get(index).cloned());
        if epoch > disk.epoch {
            let who = name.as_deref().unwrap_or("nobody");
            host.note("disk", format!("older than the fence: epoch {epoch}, {who} it is"));
            // Closed by hand, as far as anybody can tell.
            self.believe(EdgeState { epoch, fenced: name.is_none(), current: name }, host)?;
        } else if let Some(name) = name.clone().filter(|name| was_not_given(&disk, epoch, name)) {
            let what =
                format!("epoch {} was written and never granted: {name} goes on", disk.epoch);
            host.note("disk", what);
            self.believe(EdgeState { epoch, current: Some(name), fenced: false }, host)?;
            self.set_fence(epoch, None, host)?;
        } else if epoch < disk.epoch || name != disk.current || disk.fenced {
            self.set_fence(disk.epoch, None, host)?;
        }
        // The fence is new, or no member has been let through since it was: an
        // earlier life of this daemon may have ended before all members had spoken.
        if epoch == 0 || current.is_none() {
            self.membership.handle_boot();
        }
        self.fenced_epoch = self.fenced_epoch.max(epoch);
        // A member that was lost while this daemon was away must be missed all the
        // same.
        for name in &self.names {
            self.membership.handle_answers(name, true);
        }
        self.update_taps(host);
        let state = self.membership.handle_ask();
        let current = state.current.as_deref().unwrap_or("nobody");
        host.note("started", format!("epoch {}, current: {current}", state.epoch));
        Ok(())
    }

    /// Takes the fence's word for the disk's, and writes it.
    fn believe(&mut self, state: EdgeState, host: &mut impl EdgeHost) -> Result<(), String> {
        host.keep(&state);
        self.membership =
            membership(&self.names, &self.first, state).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Whether a host may connect under this member's name: while the member answers, any other
    /// host that comes is using its name.
    #[must_use]
    pub fn admits(&self, index: usize) -> bool {
        !(self.is_here(index) && self.membership.answers(self.name(index)))
    }

    /// A member's channel has opened; an earlier channel of the member is
    /// closed.
    pub fn handle_opened(&mut self, index: usize, host: &mut impl EdgeHost) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        (slot.here, slot.greeted) = (true, false);
        let epoch = self.membership.handle_ask().epoch;
        host.send(index, &hello(&self.group, "edge", (epoch, false), Vec::new()));
        // It may be another life of the member, whose old channel has not
        // closed yet; a member in step says so again.
        self.membership.handle_left(&self.names[index]);
        host.note("joined", self.names[index].clone());
        self.update_taps(host);
    }

    /// A member's channel is gone. The member has some time to come back.
    pub fn handle_closed(&mut self, index: usize, why: &str, now: Nanos, host: &mut impl EdgeHost) {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.here) else { return };
        slot.here = false;
        slot.detector.start_over(now);
        slot.tap_off = Some(now.plus(nanos(TAP_LINGER)));
        host.note("left", format!("{}: {why}", self.names[index]));
        // A member that comes back announces again whether it is in step.
        self.membership.handle_left(&self.names[index]);
    }

    /// Takes a message from a member that is here; false if that is not allowed.
    pub fn handle_wish(
        &mut self,
        index: usize,
        wish: MemberRequest,
        now: Nanos,
        host: &mut impl EdgeHost,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.here) else { return false };
        slot.hear(now);
        self.hearing.handle_received(now);
        if let MemberRequest::Hello { fits, .. } = &wish {
            slot.greeted = *fits;
        }
        let greeted = slot.greeted;
        self.reach(index, true, host);
        if let Some(why) = wish.fault(greeted) {
            host.send(index, &Message::Refused { reason: why, again: false });
            host.close(index);
            self.handle_closed(index, why, now, host);
            return false;
        }
        self.fulfil(index, wish, now, host);
        true
    }

    fn fulfil(&mut self, index: usize, wish: MemberRequest, now: Nanos, host: &mut impl EdgeHost) {
        let name = self.names[index].clone();
        match wish {
            MemberRequest::Hello { greeting, .. } => {
                self.membership.handle_hello(&name, greeting);
                self.tell_epoch(index, host);
                self.tell_unheard(index, host);
                self.adopt_claim(now, host);
            }
            MemberRequest::Ask => self.tell_epoch(index, host),
            MemberRequest::InStep { epoch, yes } => {
                let before = self.membership.is_in_step(&name);
                if self.membership.handle_in_step(&name, epoch, yes) && before != yes {
                    let what = if yes { "in step" } else { "out of step" };
                    host.note(what, format!("{name}, epoch {epoch}"));
                }
            }
            MemberRequest::Builds { epoch } => {
                let before = self.membership.builds(&name);
                if self.membership.handle_builds(&name, epoch) && !before {
                    host.note("builds", format!("{name}, epoch {epoch}"));
                }
            }
            MemberRequest::Promote { epoch, lives } => {
                self.promote(index, (epoch, lives), now, host);
            }
            MemberRequest::NotAlive { epoch, keys } => {
                // Only the current member knows, and only about its own epoch.
                if self.is_current(index) && epoch == self.membership.handle_ask().epoch {
                    host.forget_flows(&keys);
                }
            }
            MemberRequest::Nothing | MemberRequest::Nonsense => {}
        }
    }

    /// When [`EdgeMachine::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let slots = self.slots.iter().filter_map(Slot::next_deadline);
        slots.chain(self.settled_at).fold(self.age_at, Nanos::min)
    }

    /// Sends heartbeats, judges the members, and does what else is due. `passing`: whether packets
    /// of the service have passed the fence since the last call.
    pub fn handle_timeout(&mut self, passing: bool, now: Nanos, host: &mut impl EdgeHost) {
        if passing {
            self.note_passing(now);
        }
        if self.next_deadline() > now {
            return;
        }
        for index in 0..self.slots.len() {
            self.watch(index, now, host);
        }
        let over = |slot: &mut Slot| slot.tap_off.take_if(|at| *at <= now);
        if self.slots.iter_mut().filter_map(over).count() > 0 {
            self.update_taps(host);
        }
        if self.settled_at.take_if(|at| *at <= now).is_some() {
            self.membership.handle_settled();
            self.adopt_claim(now, host);
        }
        if self.age_at <= now {
            self.age_at = now.plus(nanos(FLOW_AGE_PERIOD));
            self.age_flows(now, host);
        }
    }

    /// Ages flows, which end on the wire or whose clients vanish silently; the current member knows
    /// which have vanished.
    fn age_flows(&mut self, now: Nanos, host: &mut impl EdgeHost) {
        let state = self.membership.handle_ask();
        let current = state.current.as_deref().and_then(|name| self.index(name));
        let member = current.filter(|&index| self.is_here(index));
        let keys = host.age_flows(now, member.is_some());
        assert!(keys.len() <= KEYS_MAX, "L6: {} flows are asked about", keys.len());
        if let Some(index) = member.filter(|_| !keys.is_empty()) {
            host.send(index, &Message::AreAlive { epoch: state.epoch, keys });
        }
    }

    /// Sends copies to every member that is here and not current. Call it when
    /// the members' ports have changed.
    pub fn update_taps(&self, host: &mut impl EdgeHost) {
        for index in 0..self.slots.len() {
            host.set_tap(index, self.is_here(index) && !self.is_current(index));
        }
    }

    fn tell_epoch(&self, index: usize, host: &mut impl EdgeHost) {
        let state = self.membership.handle_ask();
        let current = state.current.as_deref().unwrap_or("");
        host.send(index, &Message::Epoch { epoch: state.epoch, current });
    }

    /// Tells a member that has just come which others are not heard: it was not here when that was
    /// news, and takes over only from a primary of which it knows it.
    fn tell_unheard(&self, index: usize, host: &mut impl EdgeHost) {
        let others = self.names.iter().enumerate().filter(|(other, _)| *other != index);
        for (_, member) in others.filter(|(_, name)| !self.membership.answers(name)) {
            host.send(index, &Message::Reach { member, yes: false });
        }
    }

    fn tell_all_but(&self, but: usize, message: &Message<'_>, host: &mut impl EdgeHost) {
        for index in (0..self.slots.len()).filter(|&index| index != but && self.is_here(index)) {
            host.send(index, message);
        }
    }

    /// The membership: who may speak, and who could.
    #[must_use]
    pub fn membership(&self) -> &EdgeMembership {
        &self.membership
    }

    #[must_use]
    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    #[must_use]
    pub fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("?", String::as_str)
    }

    /// Number of members in the configuration.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Whether the member's channel is open.
    #[must_use]
    pub fn is_here(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.here)
    }

    #[must_use]
    pub fn is_current(&self, index: usize) -> bool {
        self.membership.handle_ask().current.as_deref() == Some(self.name(index))
    }

    /// Number of epochs that members were granted.
    #[must_use]
    pub fn grants(&self) -> u64 {
        self.grants
    }

    /// Time from the last request that was granted to its answer.
    #[must_use]
    pub fn last_grant(&self) -> Nanos {
        self.last_grant
    }
}

fn membership(
    names: &[String],
    first: &str,
    state: EdgeState,
) -> Result<EdgeMembership, MembersError> {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_by_key(|name| *name != first);
    EdgeMembership::new(&names, state)
}

/// Whether `disk` has a grant that an earlier life has written and not come to give: the fence
/// lets the member `name` of the `epoch` before it through. Nobody hears of a grant before that.
fn was_not_given(disk: &EdgeState, epoch: u64, name: &str) -> bool {
    let is_another = disk.current.as_deref().is_some_and(|current| current != name);
    is_another && !disk.fenced && epoch.checked_add(1) == Some(disk.epoch)
}

#[cfg(test)]
mod tests;
