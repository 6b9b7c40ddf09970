//! The kick-start: in rounds through the flows that are being resent, heads and
//! acknowledgements first, then the rest of each, and again while there are
//! tries. It needs no queue; segments acknowledged meanwhile are not sent.

use super::lists::{RESENT, SACK};
use super::{Direction, PacketStore, Recovery, Resend};
use crate::Ns;
use crate::pool::NONE;
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

/// Rounds of one try: first segments, then further ones.
const ROUNDS: u32 = 2;
/// Number of looks for flows that have come to a halt again, and the factor by
/// which each look waits longer than the one before.
const LOOKS: u32 = 3;
const LOOK_FACTOR: Ns = 3;

/// When to look for flows that have come to a halt again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    restored: Ns,
    done: u32,
}

/// What to resend next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kick<K> {
    restored: Ns,
    round: u32,
    key: K,
    step: u32,
}

/// One thing to resend.
struct Item {
    step: u32,
    kept: u32,
    direction: Direction,
}

impl<K: Ord + Copy, S: PacketStore> Recovery<K, S> {
    /// The service is back: everything that is kept is resent, first segments
    /// before further ones, and is then released.
    pub fn handle_restored(&mut self, now: Ns) {
        self.handle_restored_for(now, |_| Some(now));
    }

    /// The service is back for some flows: those with a kept packet for which
    /// `lost_since` tells since when such packets may have been lost.
    pub fn handle_restored_for(&mut self, now: Ns, lost_since: impl Fn(&S::Packet) -> Option<Ns>) {
        let lists = &self.lists;
        let since = |flow: u32| {
            let ack = Some(lists.flows[flow].ack).filter(|ack| *ack != NONE);
            let kept = lists.segments(flow).chain(ack);
            kept.filter_map(|kept| lost_since(&lists.kept[kept].packet)).min()
        };
        let mut back = BTreeMap::new();
        for (key, flow) in std::mem::take(&mut self.flows) {
            match since(flow) {
                Some(since) => drop(back.insert(key, (flow, since))),
                None => drop(self.flows.insert(key, flow)),
            }
        }
        if !back.is_empty() && self.config.overdue_ns > 0 {
            self.looks = Some(Looks { restored: now, done: 0 });
        }
        self.leave(now, back);
    }

    /// Senders whose timeouts are undone send whole windows at the same time. If a
    /// full queue drops all of a sender's window, that sender waits for a timer that
    /// takes the outage for a round trip; the resent segments may be lost as well.
    /// So the lowest and the highest segment of each flow without an answer go out
    /// once more.
    fn look(&mut self, now: Ns) {
        let Some(Looks { restored, done }) = self.looks.take() else { return };
        if done + 1 < LOOKS {
            self.looks = Some(Looks { restored, done: done + 1 });
        }
        let Self { lists, flows, leaving, config, .. } = self;
        let is_overdue = |flow: u32| {
            let first = lists.flows[flow].first;
            first != NONE && lists.kept[first].is_older(now, config.overdue_ns)
        };
        let since = |(key, flow)| (key, (flow, now));
        // For a flow that has sent on, its newer entry counts.
        let again = |key: &K, flow: &mut u32| !flows.contains_key(key) && is_overdue(*flow);
        let mut back: BTreeMap<K, (u32, Ns)> = leaving.extract_if(.., again).map(since).collect();
        back.extend(flows.extract_if(.., |_, flow| is_overdue(*flow)).map(since));
        self.leave(now, back);
    }

    fn leave(&mut self, now: Ns, back: BTreeMap<K, (u32, Ns)>) {
        if back.is_empty() {
            return;
        }
        // Nothing is sent again for flows that came back earlier.
        if !self.is_kicking() {
            for flow in self.leaving.values() {
                self.lists.flows[*flow].mark(RESENT, true);
            }
        }
        let age = self.config.age_max_ns;
        for (key, (flow, since)) in back {
            self.lists.flows[flow].touch(since);
            self.lists.flows[flow].unmark(RESENT);
            let old: Vec<u32> = self
                .lists
                .segments(flow)
                .filter(|at| self.lists.kept[*at].is_older(now, age))
                .collect();
            old.into_iter().for_each(|at| self.drop_segment(flow, at));
            let ack = self.lists.flows[flow].ack;
            if ack != NONE && self.lists.kept[ack].is_older(now, age) {
                let kept = self.lists.remove_ack(flow);
                kept.iter().for_each(|kept| self.gone(kept));
            }
            if let Some(earlier) = self.leaving.insert(key, flow) {
                self.release(earlier);
            }
        }
        self.seek(now, 0, Unbounded, 0);
        // Until the first packet is taken, nobody needs the spent flows.
        self.release_spent();
    }

    /// The next packet to resend now.
    pub fn poll_resend(&mut self, now: Ns) -> Option<Resend<S::Packet>> {
        self.release_spent();
        if self.look_timeout().is_some_and(|at| at <= now) {
            self.look(now);
        }
        loop {
            if self.kick_timeout()? > now {
                return None;
            }
            if let Some(key) = self.asked.pop_first() {
                let first = self.leaving.get(&key).map(|flow| self.lists.flows[*flow].first);
                match first.filter(|first| *first != NONE) {
                    Some(first) => return Some(self.sent(now, first, Direction::IntoCluster)),
                    None => continue,
                }
            }
            let Kick { restored, round, key, step } = self.kick?;
            if round == self.rounds() {
                self.end();
                return None;
            }
            let flow = self.leaving.get(&key).copied();
            let item = flow.and_then(|flow| self.item(flow, round, step));
            let next = item.as_ref().map_or(step, |item| item.step + 1);
            self.seek(restored, round, Included(key), next);
            // The segment may have been acknowledged since it was found.
            let Some(item) = item else { continue };
            return Some(self.sent(now, item.kept, item.direction));
        }
    }

    fn sent(&mut self, now: Ns, kept: u32, direction: Direction) -> Resend<S::Packet> {
        let kept = &self.lists.kept[kept];
        let (packet, bytes) = (kept.packet, u64::from(kept.bytes));
        // Without a rate there is no pause.
        let takes = (bytes * 1_000_000_000).checked_div(self.config.pace_bytes_per_s);
        self.paced_until = self.paced_until.max(now) + takes.unwrap_or(0);
        self.counts.resent += 1;
        Resend { packet, direction }
    }

    /// Part of a flow that was resent is now acknowledged. If the receiver waits
    /// for a segment that is kept, it gets that segment.
    pub(super) fn follow(&mut self, key: K, flow: u32, before: u32) {
        let first = self.lists.flows[flow].first;
        let Some(kick) = self.kick.filter(|_| self.config.follow_ns > 0) else { return };
        let was_resent = self.lists.flows[flow].has(RESENT) || kick.round > 0 || key < kick.key;
        if was_resent && first != NONE && first != before {
            self.asked.insert(key);
        }
    }

    /// Stops following all flows.
    fn end(&mut self) {
        self.kick = None;
        self.asked.clear();
        self.spent.extend(std::mem::take(&mut self.leaving).into_values());
    }

    fn rounds(&self) -> u32 {
        self.config.tries.max(1) * ROUNDS
    }

    /// Whether there is anything to resend that no acknowledgement has to ask
    /// for first.
    #[must_use]
    pub fn is_kicking(&self) -> bool {
        self.kick.as_ref().is_some_and(|kick| kick.round < self.rounds())
    }

    /// When to resend the next packet, or to look for one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.kick_timeout().into_iter().chain(self.look_timeout()).min()
    }

    fn look_timeout(&self) -> Option<Ns> {
        let factor = |looks: Looks| LOOK_FACTOR.pow(looks.done);
        self.looks.map(|looks| looks.restored + self.config.overdue_ns * factor(looks))
    }

    fn kick_timeout(&self) -> Option<Ns> {
        let kick = self.kick.as_ref()?;
        if !self.asked.is_empty() {
            return Some(self.paced_until);
        }
        if kick.round == self.rounds() {
            let tries = Ns::from(self.config.tries.max(1) - 1) * self.config.retry_ns;
            return Some(kick.restored + tries + self.config.follow_ns);
        }
        let tries = Ns::from(kick.round / ROUNDS) * self.config.retry_ns;
        let further = Ns::from(kick.round % ROUNDS) * self.config.tail_delay_ns;
        Some((kick.restored + tries + further).max(self.paced_until))
    }

    /// Finds what to resend from this place on; finished flows are released with
    /// the next call.
    fn seek(&mut self, restored: Ns, mut round: u32, mut from: Bound<K>, mut step: u32) {
        let rounds = self.rounds();
        self.kick = None;
        while round < rounds {
            let next = self.leaving.range((from, Unbounded)).next();
            let Some((key, flow)) = next.map(|(key, flow)| (*key, *flow)) else {
                round += 1;
                (from, step) = (Unbounded, 0);
                continue;
            };
            if let Some(item) = self.item(flow, round, step) {
                self.kick = Some(Kick { restored, round, key, step: item.step });
                return;
            }
            let left = self.lists.flows[flow].segments;
            let is_through = round + 1 == rounds || (round + ROUNDS == rounds && left <= 1);
            if is_through && self.config.follow_ns == 0 || self.lists.flows[flow].is_bare() {
                self.leaving.remove(&key);
                self.spent.push(flow);
            }
            (from, step) = (Excluded(key), 0);
        }
        let first = self.leaving.keys().next().filter(|_| self.config.follow_ns > 0);
        self.kick = first.map(|key| Kick { restored, round, key: *key, step });
    }

    /// The first item that a flow has for a round, at this step or later.
    fn item(&self, flow: u32, round: u32, step: u32) -> Option<Item> {
        let at = &self.lists.flows[flow];
        if at.has(RESENT) {
            return None;
        }
        let direction = Direction::IntoCluster;
        if round % ROUNDS == 1 {
            let kept = self.further(flow, step as usize)?;
            return Some(Item { step, kept, direction });
        }
        if step == 0 && at.first != NONE {
            return Some(Item { step, kept: at.first, direction });
        }
        let step = step.max(1);
        (at.ack != NONE && !at.has(SACK) && step <= self.config.ack_copies).then_some(Item {
            step,
            kept: at.ack,
            direction: Direction::OutOfCluster,
        })
    }

    /// The segment that is resent as the `step`-th behind the first one, in the order
    /// of sequence numbers; the last step is the highest segment.
    fn further(&self, flow: u32, step: usize) -> Option<u32> {
        let segments = usize::from(self.lists.flows[flow].segments);
        let count = segments.min(self.config.segments_max).checked_sub(1).filter(|it| *it > 0)?;
        let (low, high) = (count - 1, self.recent(flow).clamp(1, segments - count));
        let index = if step < low { step + 1 } else { segments - high + (step - low) };
        (step < low + high).then(|| self.lists.nth(flow, index)).flatten()
    }

    /// Number of a flow's highest segments that may be lost and are therefore
    /// resent.
    fn recent(&self, flow: u32) -> usize {
        let leaving = &self.lists.flows[flow];
        let mut at = leaving.first;
        let is_recent = |_: &usize| {
            at = self.lists.kept[at].prev();
            self.lists.kept[at].is_since(leaving)
        };
        (0..self.config.recent_max.min(usize::from(leaving.segments))).take_while(is_recent).count()
    }
}
