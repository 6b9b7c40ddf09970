//! The truth: which strings work and which do not, since when, and how long the edges may
//! take to notice a change.

use crate::transit::plan::{Plan, StringPlan};
use crate::{Ns, ns};
use holdfast_cluster::detector::{FIRST_PATIENCE, PATIENCE_MAX};
use std::time::Duration;

/// Longest delay of heartbeats in a string's full queue, in ns.
const QUEUE_MAX: Ns = ns(Duration::from_millis(400));

#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    cuts: u32,
    loss: u64,
}

#[derive(Clone, Debug)]
struct String {
    ways: [Direction; 2],
    /// Since when neither direction loses packets; `None` if one does.
    well: Option<Ns>,
    /// Since when at least one direction is cut; `None` if none is.
    dead: Option<Ns>,
}

/// The truth; see the module.
#[derive(Clone, Debug)]
pub struct Truth {
    strings: Vec<String>,
    period: Ns,
    /// Since when both daemons run, and neither edge is suspended or closed.
    watched: Option<Ns>,
    /// Number of faults that prevent this.
    blind: u32,
}

impl Truth {
    pub fn new(plan: &Plan) -> Self {
        let string = |plan: &StringPlan| {
            let way = Direction { cuts: 0, loss: plan.loss_permille };
            String { ways: [way; 2], well: (plan.loss_permille == 0).then_some(0), dead: None }
        };
        Self {
            strings: plan.strings.iter().map(string).collect(),
            period: plan.period,
            watched: Some(0),
            blind: 0,
        }
    }

    pub fn strings(&self) -> usize {
        self.strings.len()
    }

    /// A fault begins or ends that keeps an edge from noticing changes.
    pub fn blind(&mut self, at: Ns, begins: bool) {
        self.blind = if begins { self.blind + 1 } else { self.blind - 1 };
        self.watched = (self.blind == 0).then_some(at);
    }

    /// A direction is cut, or works again; direction 0 leads to the far edge.
    pub fn cut(&mut self, at: Ns, string: usize, way: usize, begins: bool) {
        let way = &mut self.strings[string].ways[way];
        way.cuts = if begins { way.cuts + 1 } else { way.cuts - 1 };
        self.renew(at, string);
    }

    pub fn loses(&mut self, at: Ns, string: usize, permille: u64, begins: bool) {
        for way in &mut self.strings[string].ways {
            way.loss = if begins { way.loss + permille } else { way.loss - permille };
        }
        self.renew(at, string);
    }

    fn renew(&mut self, at: Ns, string: usize) {
        let string = &mut self.strings[string];
        let is_well = string.ways.iter().all(|way| way.cuts == 0 && way.loss == 0);
        let is_dead = string.ways.iter().any(|way| way.cuts > 0);
        string.well = is_well.then(|| string.well.unwrap_or(at));
        string.dead = is_dead.then(|| string.dead.unwrap_or(at));
    }

    /// Longest time until both edges have noticed a change, in ns.
    fn known_after(&self) -> Ns {
        (PATIENCE_MAX + 4) * self.period + 2 * FIRST_PATIENCE.0 + 2 * QUEUE_MAX
    }

    fn returns_after(&self) -> Ns {
        self.known_after() + 16 * self.period
    }

    fn is_watched(&self, at: Ns, long: Ns) -> bool {
        self.watched.is_some_and(|since| at > since + long)
    }

    /// Whether another string has worked all the time: edges draw no conclusion from silence
    /// on all strings.
    fn has_other(&self, at: Ns, string: usize) -> bool {
        let mut others = self.strings.iter().enumerate().filter(|(other, _)| *other != string);
        others.any(|(_, it)| it.well.is_some_and(|since| at > since + self.returns_after()))
    }

    /// Whether it has been dead for so long that no edge may use it.
    pub fn must_be_out(&self, at: Ns, string: usize) -> bool {
        let long = self.known_after();
        let is_dead = self.strings[string].dead.is_some_and(|since| at > since + long);
        is_dead && self.is_watched(at, self.returns_after()) && self.has_other(at, string)
    }

    /// Whether it has worked for so long that both edges must use it.
    pub fn must_be_in(&self, at: Ns, string: usize) -> bool {
        let long = self.returns_after();
        let is_well = self.strings[string].well.is_some_and(|since| at > since + long);
        is_well && self.is_watched(at, long)
    }

    /// Whether no fault explains missing heartbeats on it.
    pub fn is_blameless(&self, at: Ns, string: usize) -> bool {
        let long = self.period * 4 + QUEUE_MAX;
        let is_well =
            self.strings[string].well.is_some_and(|since| since == 0 || at > since + long);
        is_well && self.watched.is_some_and(|since| since == 0 || at > since + long)
    }

    /// Since when packets can get through, on at least one string.
    pub fn carries_since(&self) -> Option<Ns> {
        let well = self.strings.iter().filter_map(|string| string.well).min()?;
        Some(well.max(self.watched?))
    }
}
