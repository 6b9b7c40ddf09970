//! Beyond the figures: caching policies (thesis §3.3) for short flows at a
//! failover of 0.5 s, and what each keeps.

use super::context::{Context, FAILS_AT_MS, MS, dots, ns2};
use super::{Check, Drawn, Figure, Table};
use crate::models::Range;
use holdfast_edge::{HalrConfig, RecoveryConfig};
use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::{Dumbbell, one_flow};
use holdfast_netsim::tcp::Congestion;
use holdfast_report::plot::Chart;

pub const FIGURE: Figure =
    Figure { id: "sweep-policy", title: "Caching policies, short flows, failover 0.5 s", draw };

const OUTAGE_MS: u64 = 500;

fn draw(context: &Context) -> Drawn {
    let base = RecoveryConfig::default();
    let policies = [
        ("nothing", None),
        ("SYNs only", Some(RecoveryConfig { syn_only: true, ..base })),
        ("acknowledgements only", Some(RecoveryConfig { segments_max: 0, ..base })),
        ("lowest segment", Some(RecoveryConfig { ack_copies: 0, ..base })),
        ("lowest segment and acknowledgements", Some(base)),
        (
            "lowest and highest segment",
            Some(RecoveryConfig { segments_max: 2, ack_copies: 0, ..base }),
        ),
        ("whole window", Some(RecoveryConfig { segments_max: 64, tail_delay_ns: 0, ..base })),
    ];
    let until_ms = FAILS_AT_MS + OUTAGE_MS;
    let arrivals = context.arrivals_ns(1400, until_ms, 10_000);
    let scenarios: Vec<Scenario> = policies
        .iter()
        .flat_map(|(_, recovery)| {
            let recovery = recovery.map(HalrConfig::printed);
            let dumbbell = Dumbbell { recovery, ..Dumbbell::thesis() };
            let outage = Some((FAILS_AT_MS * MS, until_ms * MS));
            let flow =
                move |at: &u64| one_flow(&dumbbell, ns2(Congestion::NewReno), 10, *at, outage);
            arrivals.iter().map(flow).collect::<Vec<_>>()
        })
        .collect();
    let outcomes = context.run_all(&scenarios);
    let mut table = Table::new(&["policy", "least_s", "mean_s", "most_s", "bytes_per_flow"]);
    let mut lines = Vec::new();
    for (number, (outcomes, (name, _))) in
        outcomes.chunks(arrivals.len()).zip(&policies).enumerate()
    {
        let times: Vec<f64> = outcomes.iter().filter_map(|it| it.flows[0].completion_s()).collect();
        let range = Range::of(times.iter().copied());
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let bytes = outcomes.iter().flat_map(|it| &it.recovery).map(|it| it.bytes_peak).max();
        table.rows.push(vec![number as f64, range.min, mean, range.max, bytes.unwrap_or(0) as f64]);
        let points = arrivals.iter().zip(&times).map(|(at, time)| (*at as f64 / 1e9, *time));
        lines.push(dots(&format!("{number} {name}"), points.collect()));
    }
    let mean = |policy: usize| table.rows[policy][2];
    let checks = vec![
        Check::new(
            "SYNs only, mean over nothing's",
            "needs no data packets",
            mean(1) / mean(0),
            (0.4, 0.9),
        ),
        Check::new(
            "segment and acknowledgements, over SYNs only",
            "better",
            mean(4) / mean(1),
            (0.3, 0.999),
        ),
        Check::new(
            "whole window, over segment and acknowledgements",
            "little more for much memory",
            mean(6) / mean(4),
            (0.7, 1.01),
        ),
    ];
    let chart = Chart {
        title: FIGURE.title.to_owned(),
        x_name: "arrival, s".to_owned(),
        y_name: "completion time, s".to_owned(),
        x_range: (1.4, until_ms as f64 / 1e3),
        lines,
        ..Chart::default()
    };
    Drawn { charts: vec![chart], table, checks }
}
