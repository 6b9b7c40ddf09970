//! Simulated completion times against the models' (Figs 18 and 19).

use super::context::{Context, FAILS_AT_MS, MS, OUTAGES_MS, cluster, dashed, dots, line, ns2};
use super::{Drawn, Table};
use crate::models::Range;
use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::one_flow;
use holdfast_netsim::tcp::Congestion;
use holdfast_report::plot::{Chart, Line};

/// Number of flows for each outage.
const FLOWS: u64 = 120;

/// Range of arrivals before the outage, in ms, for which it meets the second half of the handshake,
/// which the models do not know: a SYN crosses the cluster 40 ms after it left, and its delayed
/// acknowledgement 160 ms after.
const HANDSHAKE_MS: (u64, u64) = (40, 160);

/// One simulated flow.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Duration of the outage, in ms.
    pub outage_ms: u64,
    /// Whether it ran with local recovery.
    pub recovery: bool,
    /// Arrival of the flow, in ms.
    pub arrival_ms: f64,
    /// Completion time, in s.
    pub time_s: f64,
}

impl Dot {
    /// Whether the outage met the second half of the handshake.
    #[must_use]
    pub fn is_between(&self) -> bool {
        let before = FAILS_AT_MS as f64 - self.arrival_ms;
        before > HANDSHAKE_MS.0 as f64 && before < HANDSHAKE_MS.1 as f64 + 2.0
    }

    /// Whether the flow was delayed by the outage.
    #[must_use]
    pub fn is_delayed(&self, normal_s: f64) -> bool {
        self.time_s > normal_s + 0.05
    }

    /// Whether the outage met the SYN.
    #[must_use]
    pub fn is_syn(&self) -> bool {
        self.arrival_ms + HANDSHAKE_MS.0 as f64 > FAILS_AT_MS as f64
    }
}

/// Simulates flows over all outages; `length_ms` is how long one takes.
pub fn simulate(context: &Context, tcp: Congestion, segments: u32, length_ms: u64) -> Vec<Dot> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut dots = Vec::new();
    for outage_ms in OUTAGES_MS {
        let from_ms = FAILS_AT_MS.saturating_sub(length_ms);
        let until_ms = FAILS_AT_MS + outage_ms;
        let step_us = (until_ms - from_ms) * 1000 / FLOWS;
        for at in context.arrivals_ns(from_ms, until_ms, step_us) {
            for recovery in [false, true] {
                let outage = Some((FAILS_AT_MS * MS, until_ms * MS));
                scenarios.push(one_flow(&cluster(recovery), ns2(tcp), segments, at, outage));
                let arrival_ms = at as f64 / 1e6;
                dots.push(Dot { outage_ms, recovery, arrival_ms, time_s: f64::NAN });
            }
        }
    }
    for (dot, outcome) in dots.iter_mut().zip(context.run_all(&scenarios)) {
        dot.time_s = outcome.flows[0].completion_s().unwrap_or(f64::NAN);
    }
    dots
}

/// Longest completion time of an outage, in s.
pub fn longest(dots: &[Dot], outage_ms: u64, recovery: bool, keep: impl Fn(&Dot) -> bool) -> f64 {
    let of = |dot: &&Dot| dot.outage_ms == outage_ms && dot.recovery == recovery && keep(dot);
    dots.iter().filter(of).map(|dot| dot.time_s).fold(0.0, f64::max)
}

/// A model: its range for an outage of this many seconds, raw or with recovery.
pub type Model<'a> = &'a dyn Fn(f64, bool) -> Range;

/// Share of the flows that lie between a model's lines.
pub fn share_inside<'a>(
    dots: impl Iterator<Item = &'a Dot>,
    model: Model<'_>,
    slack_s: f64,
) -> f64 {
    let (mut inside, mut all) = (0.0, 0.0);
    for dot in dots {
        let range = model(dot.outage_ms as f64 / 1e3, dot.recovery);
        all += 1.0;
        inside += f64::from(u8::from(range.holds(dot.time_s, slack_s)));
    }
    inside / f64::max(all, 1.0)
}

/// The figure without its checks.
pub fn drawn(title: &str, found: &[Dot], model: Model<'_>, extended: Option<Model<'_>>) -> Drawn {
    let mut table =
        Table::new(&["failover_s", "halr", "arrival_s", "time_s", "model_min_s", "model_max_s"]);
    table.rows = found
        .iter()
        .map(|dot| {
            let outage_s = dot.outage_ms as f64 / 1e3;
            let Range { min, max } = model(outage_s, dot.recovery);
            let halr = f64::from(u8::from(dot.recovery));
            vec![outage_s, halr, dot.arrival_ms / 1e3, dot.time_s, min, max]
        })
        .collect();
    let points = |recovery: bool| {
        let of = found.iter().filter(move |dot| dot.recovery == recovery);
        of.map(|dot| (dot.outage_ms as f64 / 1e3, dot.time_s)).collect()
    };
    let mut lines = vec![dots("without HALR", points(false)), dots("with HALR", points(true))];
    lines.extend(model_lines(model, ["model, without HALR", "model, with HALR"]));
    if let Some(extended) = extended {
        let above = "model with ssthresh 2";
        lines.push(dashed(above, curve(|s| extended(s, false).max)));
    }
    let chart = Chart {
        title: title.to_owned(),
        x_name: "failover time, s".to_owned(),
        y_name: "completion time, s".to_owned(),
        x_range: (0.0, 12.2),
        lines,
        ..Chart::default()
    };
    Drawn { charts: vec![chart], table, checks: Vec::new() }
}

fn model_lines(model: Model<'_>, names: [&str; 2]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (name, recovery) in names.into_iter().zip([false, true]) {
        lines.push(line(&format!("{name}, most"), curve(|s| model(s, recovery).max)));
        lines.push(dashed(&format!("{name}, least"), curve(|s| model(s, recovery).min)));
    }
    lines
}

fn curve(of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    (1..=240).map(|step| f64::from(step) * 0.05).map(|s| (s, of(s))).collect()
}
