//! TCP Boston Fig. 5: response times in a typical run, in intervals of 100 ms.

use super::boston::{BP, FEC, OPEN, PROTOCOLS, QUEUE, VEGAS, run_all};
use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};
use holdfast_netsim::atm::{Outcome, RESPONSE_BIN_NS, Scenario};
use holdfast_report::plot::Chart;

pub const FIGURE: Figure =
    Figure { id: "boston-fig5", title: "TCP Boston: histogram of response times", draw };

/// Number of a run's bins in an interval.
const PER_INTERVAL: usize = (100_000_000 / RESPONSE_BIN_NS) as usize;
/// Number of intervals that are drawn.
const INTERVALS: usize = 30;

fn draw(context: &Context) -> Drawn {
    let scenarios = PROTOCOLS.map(|(_, protocol)| Scenario {
        seed: context.seed(),
        protocol,
        ..Scenario::PAPER
    });
    let outcomes = run_all(&scenarios);
    let mut table = Table::new(&["interval_from_s", "vegas", "bp", "fec", "bp_once", "fec_once"]);
    let shares: Vec<Vec<f64>> = outcomes.iter().map(intervals).collect();
    for number in 0..shares[0].len() {
        let mut row = vec![number as f64 / 10.0];
        row.extend(shares.iter().map(|it| it[number]));
        if row[1..].iter().any(|it| *it > 0.0) {
            table.rows.push(row);
        }
    }
    let lines = shares.iter().zip(PROTOCOLS).map(|(shares, (name, _))| {
        let at = |(number, share): (usize, &f64)| (number as f64 / 10.0 + 0.05, share.log10());
        let some = shares.iter().take(INTERVALS).enumerate().filter(|it| *it.1 > 0.0);
        line(name, some.map(at).collect())
    });
    let chart = Chart {
        title: "1,500-byte packets, 64 kB windows, buffer 256 cells".to_owned(),
        x_name: "response time, s (intervals of 0.1 s)".to_owned(),
        y_name: "share of packets, log10".to_owned(),
        x_range: (0.0, INTERVALS as f64 / 10.0),
        // The room above 1 is for the legend.
        y_range: Some((-5.0, 3.0)),
        lines: lines.collect(),
        ..Chart::default()
    };
    let checks = checks(&outcomes);
    Drawn { charts: vec![chart], table, checks }
}

/// Share of packets in each interval.
fn intervals(outcome: &Outcome) -> Vec<f64> {
    let count = outcome.delivered() as f64;
    let share = |bins: &[u32]| bins.iter().map(|it| f64::from(*it)).sum::<f64>() / count;
    outcome.response_bins.chunks(PER_INTERVAL).map(share).collect()
}

fn checks(outcomes: &[Outcome]) -> Vec<Check> {
    let all = |protocol: usize| outcomes[protocol].all().deviation_s;
    let one = |protocol: usize| outcomes[protocol].by_connection().deviation_s;
    vec![
        Check::new(
            "deviation, Boston-BP : Vegas",
            "less than 1",
            all(BP) / all(VEGAS),
            (0.0, 0.999),
        ),
        Check::new(
            "deviation, Boston-FEC : Boston-BP",
            "less than 1",
            all(FEC) / all(BP),
            (0.0, 0.999),
        )
        .because(QUEUE),
        Check::new(
            "the same by connection, BP : Vegas",
            "less than 1",
            one(BP) / one(VEGAS),
            (0.0, 0.999),
        )
        .because(OPEN),
        Check::new(
            "the same by connection, FEC : BP",
            "less than 1",
            one(FEC) / one(BP),
            (0.0, 0.999),
        )
        .because(QUEUE),
    ]
}
