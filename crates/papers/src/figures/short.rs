//! Completion times of short flows against their arrival (Figs 12 to 14).

use super::context::{Context, FAILS_AT_MS, MS, cluster, dots, ns2};
use super::{Drawn, Table};
use crate::models::Range;
use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::one_flow;
use holdfast_netsim::tcp::Congestion;
use holdfast_report::plot::{Chart, Span};

/// Number of segments of a short flow.
pub const SEGMENTS: u32 = 10;

/// Time between two arrivals, in µs.
const STEP_US: u64 = 10_000;

/// Completion times of flows raw and with local recovery, by arrival.
pub struct ShortFlows {
    /// The figure without its checks.
    pub drawn: Drawn,
    /// Arrival, and completion times raw and with recovery, in s.
    pub times: Vec<(f64, f64, f64)>,
}

impl ShortFlows {
    /// Completion times, in s, of the flows that arrived in a period.
    fn between(&self, from_s: f64, until_s: f64, recovery: bool) -> Vec<f64> {
        let inside = self.times.iter().filter(|it| it.0 >= from_s && it.0 < until_s);
        inside.map(|it| if recovery { it.2 } else { it.1 }).collect()
    }

    /// Range of the completion times, in s, of the flows that arrived in a period.
    pub fn range(&self, from_s: f64, until_s: f64, recovery: bool) -> Range {
        Range::of(self.between(from_s, until_s, recovery))
    }

    /// Share of the raw flows that arrived in a period and took longer than `limit_s`.
    pub fn share_above(&self, from_s: f64, until_s: f64, limit_s: f64) -> f64 {
        let times = self.between(from_s, until_s, false);
        times.iter().filter(|it| **it > limit_s).count() as f64 / times.len().max(1) as f64
    }
}

/// Simulates one flow for each arrival, from before the outage until after it.
pub fn short_flows(context: &Context, title: &str, outage_ms: u64) -> ShortFlows {
    let until_ms = FAILS_AT_MS + outage_ms;
    let arrivals = context.arrivals_ns(500, until_ms + 500, STEP_US);
    let outage = Some((FAILS_AT_MS * MS, until_ms * MS));
    let scenarios: Vec<Scenario> = arrivals
        .iter()
        .flat_map(|at| {
            [false, true].map(|recovery| {
                one_flow(&cluster(recovery), ns2(Congestion::NewReno), SEGMENTS, *at, outage)
            })
        })
        .collect();
    let outcomes = context.run_all(&scenarios);
    let completion = |index: usize| outcomes[index].flows[0].completion_s().unwrap_or(f64::NAN);
    let times: Vec<(f64, f64, f64)> = arrivals
        .iter()
        .enumerate()
        .map(|(index, at)| (*at as f64 / 1e9, completion(2 * index), completion(2 * index + 1)))
        .collect();
    let mut table = Table::new(&["arrival_s", "raw_s", "halr_s"]);
    table.rows = times.iter().map(|it| vec![it.0, it.1, it.2]).collect();
    let highest = times.iter().map(|it| it.1).fold(0.0, f64::max);
    let chart = Chart {
        title: title.to_owned(),
        x_name: "arrival, s".to_owned(),
        y_name: "completion time, s".to_owned(),
        x_range: (0.5, until_ms as f64 / 1e3 + 0.5),
        y_range: Some((0.0, highest * 1.05)),
        lines: vec![
            dots("without HALR", times.iter().map(|it| (it.0, it.1)).collect()),
            dots("with HALR", times.iter().map(|it| (it.0, it.2)).collect()),
        ],
        spans: vec![Span {
            name: "failover".to_owned(),
            from: FAILS_AT_MS as f64 / 1e3,
            to: until_ms as f64 / 1e3,
        }],
        ..Chart::default()
    };
    ShortFlows { drawn: Drawn { charts: vec![chart], table, checks: Vec::new() }, times }
}
