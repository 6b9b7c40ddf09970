//! The last minutes of a daemon, for the page's charts.

use holdfast::status::Status;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

/// Time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Number of samples that are kept: five minutes.
const SAMPLES_MAX: usize = 300;

/// A sample a second.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
}

#[derive(Debug)]
struct Sample {
    /// Milliseconds since 1970.
    at: u64,
    connections: u64,
    lag_bytes: u64,
    counters: BTreeMap<String, u64>,
}

impl History {
    /// Notes what the daemon says now, unless the last sample is younger than a second.
    pub fn add(&mut self, status: &Status) {
        let at = now_ms();
        let last = self.samples.back().map_or(0, |sample| sample.at);
        // Half a period, for the questions are not exactly that far apart.
        if at.saturating_sub(last) < SAMPLE_EVERY.as_millis() as u64 / 2 {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at,
            connections: status.connections,
            lag_bytes: status.lag.bytes,
            counters: status.counters.clone(),
        });
    }

    /// All samples, each column as a list; of the counters those that have changed.
    pub fn answer(&self) -> Value {
        let column = |of: fn(&Sample) -> u64| self.samples.iter().map(of).collect::<Vec<_>>();
        let last = self.samples.back().map(|sample| &sample.counters);
        let changed = last.into_iter().flatten().filter_map(|(name, last)| {
            let values = self.samples.iter().map(|sample| sample.counters.get(name).copied());
            let values: Vec<u64> = values.map(|value| value.unwrap_or(*last)).collect();
            let is_new = values.iter().any(|value| value != last);
            is_new.then(|| (name.clone(), Value::from(values)))
        });
        json!({
            "at": column(|sample| sample.at),
            "connections": column(|sample| sample.connections),
            "lag_bytes": column(|sample| sample.lag_bytes),
            "counters": changed.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64
}
