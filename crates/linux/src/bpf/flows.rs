//! Decides which flows of an edge are over. The table is read in small parts, so that even a full
//! one costs little and never delays the daemon.
//!
//! The programs stamp flows with the host's clock, which a time namespace may hide from this
//! process. So stamps are only compared for equality, and the caller supplies the time.

use super::layout::{
    FLOW_CLIENT_FIN, FLOW_ESTABLISHED, FLOW_RESET, FLOW_SERVER_FIN, RawFlow, RawKey,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Least number of entries that one step reads: takes a quarter of a millisecond.
const LOOK_MIN: u32 = 512;
/// Most entries that one step reads: takes some milliseconds.
const LOOK_MAX: u32 = 4096;
/// Number of steps in which a middle-sized table is read: short connections must be forgotten as
/// fast as they come.
const GOES: u32 = 16;
/// Silence after which a flow that has ended is forgotten: far below TCP's TIME-WAIT (2 MSL), so
/// that short connections do not fill the table.
const OVER_AGE: Duration = Duration::from_secs(1);
/// Silence after which a flow's server is asked whether it knows the flow.
const IDLE_AGE: Duration = Duration::from_secs(60);
/// The same while the table is nearly full.
const IDLE_AGE_CROWDED: Duration = Duration::from_secs(1);
/// Time until such a flow's server is asked again while the table is nearly full.
const ASK_AGAIN_CROWDED: Duration = Duration::from_secs(5);

/// Flags of a flow in which both ends have sent FIN.
pub(super) const FLOW_CLOSED: u32 = FLOW_SERVER_FIN | FLOW_CLIENT_FIN;

/// How many entries one step reads, of a table with `flows` flows.
pub(super) fn look_at(flows: usize) -> u32 {
    (u32::try_from(flows).unwrap_or(u32::MAX) / GOES).clamp(LOOK_MIN, LOOK_MAX)
}

/// What to do with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    /// It is over.
    Forget,
    /// It may have vanished without a FIN or RST: its server knows.
    Ask,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    stamp: u64,
    /// When this daemon first saw the stamp.
    since: Instant,
    asked: Option<Instant>,
}

/// How long each flow has been silent, as far as this daemon has seen.
#[derive(Default)]
pub(super) struct Silence {
    /// Flows of the previous sweep that this sweep has not reached yet.
    before: BTreeMap<RawKey, Known>,
    /// Flows that this sweep has seen.
    met: BTreeMap<RawKey, Known>,
    /// Flows that the last complete sweep found and kept.
    count: usize,
}

impl Silence {
    /// Decides about one flow of a sweep. `crowded`: the table is nearly full; `may_ask`: its
    /// server can be asked.
    pub(super) fn look(
        &mut self,
        now: Instant,
        (key, flow): (&RawKey, &RawFlow),
        (crowded, may_ask): (bool, bool),
    ) -> Fate {
        let fresh = Known { stamp: flow.seen_ns, since: now, asked: None };
        let known = self.before.remove(key).or_else(|| self.met.get(key).copied());
        let mut known = known.filter(|known| known.stamp == flow.seen_ns).unwrap_or(fresh);
        let silent = now.saturating_duration_since(known.since);
        let (idle, again) =
            if crowded { (IDLE_AGE_CROWDED, ASK_AGAIN_CROWDED) } else { (IDLE_AGE, IDLE_AGE) };
        let asked = known.asked.is_some_and(|at| now.saturating_duration_since(at) < again);
        let fate = if is_over(flow) && silent > OVER_AGE {
            return Fate::Forget;
        } else if may_ask && silent > idle && !asked {
            known.asked = Some(now);
            Fate::Ask
        } else {
            Fate::Keep
        };
        self.met.insert(*key, known);
        fate
    }

    /// Notes that the whole table has been read.
    pub(super) fn end_sweep(&mut self) {
        self.count = self.met.len();
        self.before = std::mem::take(&mut self.met);
    }

    /// Flows in the table: as many as the last complete sweep found, or as this one
    /// has found so far.
    pub(super) fn count(&self) -> usize {
        self.count.max(self.met.len())
    }

    /// The stamp of a flow that was asked about.
    pub(super) fn asked(&self, key: &RawKey) -> Option<u64> {
        let known = self.met.get(key).or_else(|| self.before.get(key));
        known.filter(|known| known.asked.is_some()).map(|known| known.stamp)
    }

    pub(super) fn forget(&mut self, key: &RawKey) {
        let known = self.met.remove(key).or_else(|| self.before.remove(key));
        self.count -= usize::from(known.is_some() && self.count > 0);
    }
}

fn is_over(flow: &RawFlow) -> bool {
    flow.flags & FLOW_CLOSED == FLOW_CLOSED
        || flow.flags & FLOW_RESET != 0
        || flow.flags & FLOW_ESTABLISHED == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that come and go at 10,000 a second never fill a table of 65,536: each is
    /// seen, and seen again a second later.
    #[test]
    fn short_connections_are_forgotten_as_fast_as_they_come() {
        let (mut silence, mut now) = (Silence::default(), Instant::now());
        let mut table: Vec<(RawKey, RawFlow)> = Vec::new();
        let (mut place, mut made, mut most) = (0, 0_u32, 0);
        for _ in 0..300 {
            for _ in 0..1000 {
                made += 1;
                let mut key: RawKey = zerocopy::FromZeros::new_zeroed();
                key.client[..4].copy_from_slice(&made.to_ne_bytes());
                let flags = FLOW_CLOSED | FLOW_ESTABLISHED;
                table.push((key, RawFlow { flags, ..RawFlow::default() }));
            }
            most = most.max(table.len());
            let end = (place + look_at(silence.count()) as usize).min(table.len());
            let seen = table.drain(place..end).collect::<Vec<_>>();
            let stays = |(key, flow): &(RawKey, RawFlow)| {
                silence.look(now, (key, flow), (false, false)) != Fate::Forget
            };
            let kept: Vec<_> = seen.into_iter().filter(stays).collect();
            let count = kept.len();
            table.splice(place..place, kept);
            place += count;
            if place == table.len() {
                silence.end_sweep();
                place = 0;
            }
            now += Duration::from_millis(100);
        }
        assert!(most < 65_536, "{most} flows");
    }
}
