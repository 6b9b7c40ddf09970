//! The kick-start: in rounds through the flows that are being resent, heads and
//! acknowledgements first, then what is left of each, and again while there
//! are tries. It needs no queue; what was acknowledged meanwhile is not sent.

use super::lists::SACK;
use super::{Direction, Recovery, Resend, Shelf};
use crate::Ns;
use crate::pool::NONE;
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

/// Rounds of one try: first segments, further ones.
const ROUNDS: u32 = 2;

/// What is resent next.
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

impl<K: Ord + Copy, S: Shelf> Recovery<K, S> {
    /// The service is back: everything that is kept goes out again, first
    /// segments before further ones, and is then released.
    pub fn handle_restored(&mut self, now: Ns) {
        self.release_spent();
        let all = std::mem::take(&mut self.flows);
        self.leave(now, all);
    }

    /// The service is back for a part of the flows: those of which `is_back` says
    /// so of a packet that is kept.
    pub fn handle_restored_for(&mut self, now: Ns, is_back: impl Fn(&S::Packet) -> bool) {
        self.release_spent();
        let lists = &self.lists;
        let goes = |flow: u32| {
            let ack = Some(lists.flows[flow].ack).filter(|ack| *ack != NONE);
            lists.segments(flow).chain(ack).any(|kept| is_back(&lists.kept[kept].packet))
        };
        let (back, rest) =
            std::mem::take(&mut self.flows).into_iter().partition(|(_, flow)| goes(*flow));
        self.flows = rest;
        self.leave(now, back);
    }

    fn leave(&mut self, now: Ns, back: BTreeMap<K, u32>) {
        let age = self.config.age_max_ns;
        for (key, flow) in back {
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
        // Before the first packet was taken, nobody needs them.
        self.release_spent();
    }

    /// The next packet to resend now.
    pub fn poll_resend(&mut self, now: Ns) -> Option<Resend<S::Packet>> {
        self.release_spent();
        loop {
            if self.poll_timeout()? > now {
                return None;
            }
            let Kick { restored, round, key, step } = self.kick?;
            let flow = self.leaving.get(&key).copied();
            let item = flow.and_then(|flow| self.item(flow, round, step));
            let next = item.as_ref().map_or(step, |item| item.step + 1);
            self.seek(restored, round, Included(key), next);
            // It may have been acknowledged since it was found.
            let Some(item) = item else { continue };
            let kept = &self.lists.kept[item.kept];
            let (packet, bytes) = (kept.packet, u64::from(kept.bytes));
            // No rate is no pause.
            let takes = (bytes * 1_000_000_000).checked_div(self.config.pace_bytes_per_s);
            self.paced_until = self.paced_until.max(now) + takes.unwrap_or(0);
            self.counts.resent += 1;
            return Some(Resend { packet, direction: item.direction });
        }
    }

    /// When the next packet is to be resent.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        let kick = self.kick.as_ref()?;
        let tries = Ns::from(kick.round / ROUNDS) * self.config.retry_ns;
        let further = Ns::from(kick.round % ROUNDS) * self.config.tail_delay_ns;
        Some((kick.restored + tries + further).max(self.paced_until))
    }

    /// Finds what is to be resent from this place on; flows that are through are
    /// released with the next call.
    fn seek(&mut self, restored: Ns, mut round: u32, mut from: Bound<K>, mut step: u32) {
        let rounds = self.config.tries.max(1) * ROUNDS;
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
            if is_through || self.lists.flows[flow].is_bare() {
                self.leaving.remove(&key);
                self.spent.push(flow);
            }
            (from, step) = (Excluded(key), 0);
        }
    }

    /// What a flow has for a round at or after this step.
    fn item(&self, flow: u32, round: u32, step: u32) -> Option<Item> {
        let at = &self.lists.flows[flow];
        let direction = Direction::IntoCluster;
        if round % ROUNDS == 1 {
            let kept = self.lists.nth(flow, step as usize + 1)?;
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
}
