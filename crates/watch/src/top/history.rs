//! The last minutes of a daemon, as numbers: connections, lag, and what passes.

use holdfast::status::{Role, Status};
use std::collections::VecDeque;
use std::time::Instant;

/// Number of samples that are kept: ten minutes, at one a second.
pub const SAMPLES_MAX: usize = 600;

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Packets,
}

/// What passes a daemon each second, by the counters that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub title: &'static str,
    pub unit: Unit,
    /// Their sum is the amount.
    counters: &'static [&'static str],
    /// The role that counts it: a member keeps what it counted in its last one. `None`: any.
    role: Option<Role>,
}

/// The first one is shown of which a daemon has the counters: what clients send and get comes
/// before what the members tell each other of it.
const RATES: [Rate; 7] = [
    Rate::packets("packets", &["speak.taken", "speak.sent"], None),
    Rate::packets("forwarded", &["edge.forwarded_in", "edge.forwarded_out"], None),
    Rate::packets("redirected", &["edge.redirected"], None),
    Rate::packets("packets", &["transit.into", "transit.out"], None),
    Rate::packets("packets", &["host.decapsulated"], None),
    Rate { unit: Unit::Bytes, ..Rate::packets("log", &["log.bytes"], Some(Role::Primary)) },
    Rate::packets("copies", &["tap.segments"], Some(Role::Backup)),
];

impl Rate {
    const fn packets(
        title: &'static str,
        counters: &'static [&'static str],
        role: Option<Role>,
    ) -> Self {
        Self { title, unit: Unit::Packets, counters, role }
    }

    /// The rate of this daemon; `None` if it counts nothing that passes.
    fn of(status: &Status) -> Option<Self> {
        let has = |rate: &&Rate| {
            let is_told = rate.counters.iter().all(|it| status.counters.contains_key(*it));
            is_told && rate.role.is_none_or(|role| role == status.role)
        };
        RATES.iter().find(has).copied()
    }

    fn amount(self, status: &Status) -> u64 {
        let counted = self.counters.iter().filter_map(|name| status.counters.get(*name));
        counted.fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// What was read at one moment; `None` in place of a number that nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub connections: Option<u64>,
    /// Bytes of the log that the backup has not confirmed.
    pub lag_bytes: Option<u64>,
    /// What passed since the sample before, per second.
    pub per_second: Option<u64>,
}

/// The samples of a daemon, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    rate: Option<Rate>,
    /// When the rate's counters had which sum.
    before: Option<(Instant, u64)>,
}

impl History {
    /// Takes an answer that came at `now`.
    pub fn take(&mut self, status: &Status, now: Instant) {
        let rate = Rate::of(status);
        if rate != self.rate {
            (self.rate, self.before) = (rate, None);
        }
        let amount = rate.map(|rate| rate.amount(status));
        let per_second = amount.zip(self.before).and_then(|(amount, (then, before))| {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            // A daemon that was started again counts from 0.
            let passed = amount.checked_sub(before)?;
            (seconds > 0.0).then(|| (passed as f64 / seconds).round() as u64)
        });
        self.before = amount.map(|amount| (now, amount));
        let (connections, lag_bytes) = (Some(status.connections), Some(status.lag.bytes));
        self.push(Sample { connections, lag_bytes, per_second });
    }

    /// Notes that nobody answered: there is a gap in the curves.
    pub fn skip(&mut self) {
        self.before = None;
        self.push(Sample::default());
    }

    /// What is counted as passing; `None` if nothing is.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// The newest sample.
    #[must_use]
    pub fn last(&self) -> Sample {
        self.samples.back().copied().unwrap_or_default()
    }

    /// One number of the newest `count` samples, oldest first.
    pub fn newest(
        &self,
        count: usize,
        of: impl Fn(&Sample) -> Option<u64>,
    ) -> impl Iterator<Item = Option<u64>> {
        self.samples.iter().skip(self.samples.len().saturating_sub(count)).map(of)
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn status(counters: &[(&str, u64)]) -> Status {
        let counters = counters.iter().map(|(name, count)| ((*name).to_owned(), *count));
        let role = Role::Primary;
        Status { counters: counters.collect(), connections: 7, role, ..Status::new("g", "a") }
    }

    #[test]
    fn rates_are_per_second_and_begin_anew_with_a_daemon() {
        let (mut history, begun) = (History::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        history.take(&status(&[("log.bytes", 1000), ("gate.syns", 9)]), at(0));
        assert_eq!(history.rate().map(|it| (it.title, it.unit)), Some(("log", Unit::Bytes)));
        assert_eq!(history.last().per_second, None, "one look tells no rate");
        history.take(&status(&[("log.bytes", 4000)]), at(2000));
        assert_eq!(history.last().per_second, Some(1500));
        history.take(&status(&[("log.bytes", 10)]), at(3000));
        assert_eq!(history.last().per_second, None, "the daemon is another one");
        history.take(&status(&[("log.bytes", 20)]), at(3500));
        assert_eq!(history.last().per_second, Some(20));
        history.skip();
        assert_eq!(history.last(), Sample::default());
        history.take(&status(&[("log.bytes", 9020)]), at(9500));
        assert_eq!(history.last().per_second, None, "nobody saw what passed meanwhile");
        // As a backup, the same daemon counts something else.
        let counters = [("tap.segments", 500), ("log.bytes", 9020)];
        let backup = Status { role: Role::Backup, ..status(&counters) };
        history.take(&backup, at(10_500));
        assert_eq!(
            (history.rate().map(|it| it.title), history.last().per_second),
            (Some("copies"), None)
        );
        assert_eq!(
            history.newest(3, |it| it.connections).collect::<Vec<_>>(),
            [None, Some(7), Some(7)]
        );
    }

    #[test]
    fn only_the_last_minutes_are_kept() {
        let mut history = History::default();
        for _ in 0..2 * SAMPLES_MAX {
            history.skip();
        }
        assert_eq!(history.newest(usize::MAX, |it| it.lag_bytes).count(), SAMPLES_MAX);
    }
}
