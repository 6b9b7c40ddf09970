//! What the load has said so far, and what can be told of it: pauses and rates of a span of time.

use crate::load::{LaneNow, Snapshot};
use std::ops::{Range, RangeFrom};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The load's snapshots, oldest first.
#[derive(Default)]
pub(super) struct Seen(Mutex<Vec<Snapshot>>);

impl Seen {
    pub(super) fn push(&self, snapshot: Snapshot) {
        self.look().push(snapshot);
    }

    /// All snapshots.
    pub(super) fn all(&self) -> Vec<Snapshot> {
        self.look().clone()
    }

    /// A reader that has panicked leaves what it had read.
    fn look(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every connection has had a reply.
    pub(super) fn all_work(&self) -> bool {
        let works = |lane: &LaneNow| lane.replies > 0;
        self.look().last().is_some_and(|it| it.lanes.iter().all(works))
    }

    /// The longest wait of any connection that a span has seen, in ms.
    pub(super) fn worst_ms(&self, span_ns: &Range<u64>) -> f64 {
        self.worst_of(0.., span_ns)
    }

    /// The same of the connections from a number on.
    pub(super) fn worst_of(&self, lanes: RangeFrom<usize>, span_ns: &Range<u64>) -> f64 {
        let seen = self.look();
        let within = seen.iter().filter(|it| span_ns.contains(&it.at_ns));
        let gaps = within.flat_map(|it| it.lanes.iter().skip(lanes.start)).map(|lane| lane.gap_ns);
        gaps.max().unwrap_or(0) as f64 / 1e6
    }

    /// For how long after the start of a span each connection waited that waited at its start, in
    /// ms, sorted.
    pub(super) fn after_ms(&self, span_ns: Range<u64>) -> Vec<f64> {
        let seen = self.look();
        let within: Vec<&Snapshot> = seen.iter().filter(|it| span_ns.contains(&it.at_ns)).collect();
        let lanes = within.first().map_or(0, |it| it.lanes.len());
        let wait = |lane: usize| {
            let gaps = within.iter().map(|it| &it.lanes[lane]);
            let began = gaps.filter(|gap| gap.gap_start_ns < span_ns.start);
            let ends = began.map(|gap| gap.gap_start_ns + gap.gap_ns);
            ends.filter_map(|end| end.checked_sub(span_ns.start)).max()
        };
        let mut waits: Vec<f64> = (0..lanes).filter_map(wait).map(|it| it as f64 / 1e6).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }

    /// What each of the first connections received in a span, in Mbit/s.
    pub(super) fn mbit(&self, connections: usize, span_ns: &Range<u64>) -> Vec<f64> {
        let seen = self.look();
        let mut within = seen.iter().filter(|it| span_ns.contains(&it.at_ns));
        let Some(first) = within.next() else { return Vec::new() };
        let last = within.next_back().unwrap_or(first);
        let us = (last.at_ns - first.at_ns).max(1) as f64 / 1e3;
        let both = first.lanes.iter().zip(&last.lanes).take(connections);
        both.map(|(first, last)| (last.bytes_in - first.bytes_in) as f64 * 8.0 / us).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two connections, seen at this time: the first has waited since `since`, the second works.
    fn snapshot(at_ms: u64, since_ms: u64) -> Snapshot {
        let lane = |gap_start_ms: u64, bytes_in| LaneNow {
            replies: 1,
            bytes_in,
            pause_ns: 0,
            gap_ns: (at_ms - gap_start_ms) * MS,
            gap_start_ns: gap_start_ms * MS,
            has_ended: false,
        };
        let lanes = vec![lane(since_ms, 7), lane(at_ms - 2, at_ms * 1_000)];
        Snapshot { at_ns: at_ms * MS, fault_ns: None, lanes }
    }

    #[test]
    fn pauses_and_rates_are_those_of_the_span() {
        let seen = Seen::default();
        assert_eq!((seen.all_work(), seen.mbit(2, &(0..MS))), (false, Vec::new()));
        for at_ms in [100, 200, 300, 400] {
            seen.push(snapshot(at_ms, 50));
        }
        seen.push(snapshot(500, 497));
        assert!(seen.all_work());
        assert_eq!(seen.worst_ms(&(0..350 * MS)), 250.0);
        assert_eq!(seen.worst_ms(&(450 * MS..900 * MS)), 3.0);
        assert_eq!(seen.worst_of(1.., &(0..350 * MS)), 2.0);
        // Only the first one waited at 150 ms, and it did so until 400 ms.
        assert_eq!(seen.after_ms(150 * MS..900 * MS), [250.0]);
        assert_eq!(seen.mbit(2, &(0..350 * MS)), [0.0, 8.0]);
    }
}
