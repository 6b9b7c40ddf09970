//! What all figures share: the seed, the thesis' set-up, and small helpers.

use holdfast_chance::Rng;
use holdfast_edge::{HalrConfig, Law, PfrcConfig, RecoveryConfig, RightEdge};
use holdfast_netsim::net::dumbbell::Dumbbell;
use holdfast_netsim::net::{Outcome, Scenario, run};
use holdfast_netsim::tcp::{Congestion, Profile};
use holdfast_report::parallel;
use holdfast_report::plot::{Line, Mark};

/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;

/// Time of the cluster's failure in section 7.2, in ms.
pub const FAILS_AT_MS: u64 = 2000;

/// Failover times of section 7.2, in ms.
pub const OUTAGES_MS: [u64; 9] = [50, 100, 500, 1000, 1500, 3000, 5000, 8000, 12_000];

/// The seed of a figure, and the scenarios that depend on it.
pub struct Context {
    seed: u64,
}

impl Context {
    /// The context of a seed; seed 0 is the thesis' scenario as it stands.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Arrivals in ns, one step apart; seeds other than 0 move each by less than a step.
    #[must_use]
    pub fn arrivals_ns(&self, from_ms: u64, until_ms: u64, step_us: u64) -> Vec<u64> {
        let mut rng = Rng::of_state(self.seed);
        let steps = (until_ms - from_ms) * 1000 / step_us.max(1);
        let moved = |step| {
            let shift = if self.seed == 0 { 0 } else { rng.below(step_us * 1000) };
            from_ms * MS + step * step_us * 1000 + shift
        };
        (0..steps).map(moved).collect()
    }

    /// Runs many scenarios on all cores.
    #[must_use]
    pub fn run_all(&self, scenarios: &[Scenario]) -> Vec<Outcome> {
        // The figures' scenarios name only what they contain, so no run fails.
        parallel::map(scenarios, |scenario| run(scenario).unwrap_or_default())
    }
}

/// ns-2's endpoints with one of its congestion controls.
#[must_use]
pub fn ns2(tcp: Congestion) -> Profile {
    Profile { sack: tcp == Congestion::Sack, ..Profile::NS2.with(tcp) }
}

/// The thesis' dumb-bell, with local recovery or without.
#[must_use]
pub fn cluster(recovery: bool) -> Dumbbell {
    let recovery = recovery.then(|| HalrConfig::printed(RecoveryConfig::default()));
    Dumbbell { recovery, ..Dumbbell::thesis() }
}

/// The thesis' rate control, for a string of `capacity_bps`. The thesis does not state its
/// interval; with 0.25 s its queue has 600 packets.
#[must_use]
pub fn rate_control(capacity_bps: u64) -> PfrcConfig {
    PfrcConfig {
        capacity_bytes_per_s: capacity_bps / 8,
        interval_ns: 250 * MS,
        rtt_ns: 100 * MS,
        alpha: 1.0,
        utilization: 0.95,
        law: Law::Printed,
        window_min_bytes: 3000,
        right_edge: RightEdge::MayShrink,
        flows_max: 10_000,
    }
}

/// A line through points.
pub fn line(name: &str, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), points, mark: Mark::Joined, ..Line::default() }
}

/// A dashed line through points.
pub fn dashed(name: &str, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), points, mark: Mark::Dashed, ..Line::default() }
}

/// Points without a line.
pub fn dots(name: &str, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), points, mark: Mark::Dots, ..Line::default() }
}

/// Mean and standard deviation.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}
