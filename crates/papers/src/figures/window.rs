//! Congestion windows of one flow around an outage (Figs 7 and 8).

use super::context::{Context, FAILS_AT_MS, MS, cluster, line, ns2};
use super::{Drawn, Table};
use holdfast_netsim::net::dumbbell::one_flow;
use holdfast_netsim::net::scenario::Watch;
use holdfast_netsim::tcp::Congestion;
use holdfast_report::plot::{Chart, Span};

/// Congestion windows of one flow, raw and with local recovery.
pub struct Windows {
    /// The figure without its checks.
    pub drawn: Drawn,
    /// Threshold right after the outage in segments: raw, and with recovery.
    pub threshold: [f64; 2],
    /// Time from the outage's end until the window has 16 segments, in s.
    pub to_sixteen_s: [f64; 2],
}

/// Simulates a flow of 1000 segments.
pub fn windows(context: &Context, title: &str, arrival_ms: u64, outage_ms: u64) -> Windows {
    let until_ms = FAILS_AT_MS + outage_ms;
    let outage = Some((FAILS_AT_MS * MS, until_ms * MS));
    let scenarios = [false, true].map(|recovery| {
        let dumbbell = cluster(recovery);
        let mut scenario =
            one_flow(&dumbbell, ns2(Congestion::NewReno), 1000, arrival_ms * MS, outage);
        scenario.watch = Watch { windows: vec![0], ..Watch::default() };
        scenario
    });
    let outcomes = context.run_all(&scenarios);
    let end_s = 1.2 * (until_ms as f64 / 1e3) + 4.0;
    let mut found =
        Windows { drawn: Drawn::default(), threshold: [0.0; 2], to_sixteen_s: [f64::NAN; 2] };
    let mut table = Table::new(&["time_s", "recovery", "cwnd_segments", "ssthresh_segments"]);
    let mut lines = Vec::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        let trace = &outcome.flows[0].windows;
        let rows = trace
            .iter()
            .map(|(at, cwnd, ssthresh)| vec![*at as f64 / 1e9, index as f64, *cwnd, *ssthresh]);
        table.rows.extend(rows);
        let after = trace.iter().filter(|it| it.0 >= until_ms * MS);
        let last_cut = trace.iter().rev().find(|it| it.1 == 1.0).or(trace.first());
        found.threshold[index] = last_cut.map_or(f64::NAN, |it| it.2);
        let sixteen = after.into_iter().find(|it| it.1 >= 16.0);
        found.to_sixteen_s[index] =
            sixteen.map_or(f64::NAN, |it| (it.0 - until_ms * MS) as f64 / 1e9);
        let points = steps(trace.iter().map(|it| (it.0 as f64 / 1e9, it.1)));
        lines.push(line(["without HALR", "with HALR"][index], points));
    }
    let failover = Span {
        name: "failover".to_owned(),
        from: FAILS_AT_MS as f64 / 1e3,
        to: until_ms as f64 / 1e3,
    };
    found.drawn.charts = vec![Chart {
        title: title.to_owned(),
        x_name: "time, s".to_owned(),
        y_name: "cwnd, segments".to_owned(),
        x_range: (0.0, end_s),
        lines,
        spans: vec![failover],
        ..Chart::default()
    }];
    found.drawn.table = table;
    found
}

/// Points of a window, which keeps its size until it changes.
fn steps(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        if let Some(last) = out.last().copied() {
            out.push((x, last.1));
        }
        out.push((x, y));
    }
    out
}
