//! How many timeouts long flows have that lost data (Figs 15 to 17).

use super::context::{Context, FAILS_AT_MS, MS, OUTAGES_MS, cluster};
use super::{Check, Drawn, Table};
use holdfast_netsim::net::Scenario;
use holdfast_netsim::net::dumbbell::one_flow;
use holdfast_netsim::tcp::Profile;
use holdfast_report::plot::{Bar, Chart};

/// Number of segments of a long flow.
pub const SEGMENTS: u32 = 1000;

/// Time between two flows in µs; those that are under way at 2 s count.
const STEP_US: u64 = 15_500;

/// Number of timeouts that have a colour of their own; the last stands for more.
const COLOURS: usize = 6;

/// Shares of flows with 0, 1, … timeouts, for each outage, raw and with HALR.
pub struct Timeouts {
    /// The figure without its checks.
    pub drawn: Drawn,
    shares: Vec<[[f64; COLOURS]; 2]>,
}

impl Timeouts {
    /// Mean number of timeouts for an outage.
    pub fn mean(&self, outage_ms: u64, recovery: bool) -> f64 {
        let index = OUTAGES_MS.iter().position(|it| *it == outage_ms).unwrap_or(0);
        let shares = &self.shares[index][usize::from(recovery)];
        shares.iter().enumerate().map(|(count, share)| count as f64 * share).sum()
    }

    /// Number of outages at which flows with HALR have more timeouts than raw ones.
    pub fn worse(&self) -> f64 {
        let is_worse = |ms: &&u64| self.mean(**ms, true) > self.mean(**ms, false) + 1e-9;
        OUTAGES_MS.iter().filter(is_worse).count() as f64
    }
}

/// Simulates the flows of all outages.
pub fn timeouts(context: &Context, title: &str, profile: Profile) -> Timeouts {
    let arrivals = context.arrivals_ns(0, FAILS_AT_MS - 40, STEP_US);
    let mut cells = Vec::new();
    let mut scenarios: Vec<Scenario> = Vec::new();
    for outage_ms in OUTAGES_MS {
        for recovery in [false, true] {
            let outage = Some((FAILS_AT_MS * MS, (FAILS_AT_MS + outage_ms) * MS));
            let flow = |at: &u64| one_flow(&cluster(recovery), profile, SEGMENTS, *at, outage);
            scenarios.extend(arrivals.iter().map(flow));
            cells.push((outage_ms, recovery));
        }
    }
    let outcomes = context.run_all(&scenarios);
    let mut shares = vec![[[0.0; COLOURS]; 2]; OUTAGES_MS.len()];
    for (cell, outcomes) in outcomes.chunks(arrivals.len()).enumerate() {
        // In Case 2 the handshake was over, and the transfer was not.
        let hit = outcomes.iter().map(|it| &it.flows[0]).filter(|flow| {
            flow.connected_ns.is_some_and(|at| at < FAILS_AT_MS * MS)
                && flow.finished_ns.is_none_or(|at| at > FAILS_AT_MS * MS)
        });
        let counts: Vec<usize> =
            hit.map(|flow| (flow.counts.timeouts as usize).min(COLOURS - 1)).collect();
        for count in &counts {
            shares[cell / 2][cell % 2][*count] += 1.0 / counts.len() as f64;
        }
    }
    let drawn =
        Drawn { charts: vec![chart(title, &shares)], table: table(&shares), checks: Vec::new() };
    Timeouts { drawn, shares }
}

fn table(shares: &[[[f64; COLOURS]; 2]]) -> Table {
    let mut table = Table::new(&["failover_s", "halr", "t0", "t1", "t2", "t3", "t4", "t5_or_more"]);
    for (outage_ms, both) in OUTAGES_MS.iter().zip(shares) {
        for (recovery, shares) in both.iter().enumerate() {
            let mut row = vec![*outage_ms as f64 / 1e3, recovery as f64];
            row.extend(shares);
            table.rows.push(row);
        }
    }
    table
}

/// A chart of pairs of bars: the left one with HALR, the right one without.
fn chart(title: &str, shares: &[[[f64; COLOURS]; 2]]) -> Chart {
    let mut bars = Vec::new();
    for (index, both) in shares.iter().enumerate() {
        for (place, recovery) in [(0.1, 1), (0.52, 0)] {
            let left = index as f64 + place;
            let mut low = 0.0;
            for (count, share) in both[recovery].iter().enumerate() {
                bars.push(Bar { x: (left, left + 0.38), y: (low, low + share), name: count });
                low += share;
            }
        }
    }
    let outages: Vec<String> =
        OUTAGES_MS.iter().map(|ms| format!("{}", *ms as f64 / 1e3)).collect();
    Chart {
        title: title.to_owned(),
        x_name: "failover time, s; left bars with HALR, right ones without".to_owned(),
        x_names: outages,
        y_name: "share of flows".to_owned(),
        x_range: (0.0, shares.len() as f64),
        y_range: Some((0.0, 1.0)),
        bars,
        bar_names: (0..COLOURS).map(|count| format!("{count} timeouts")).collect(),
        ..Chart::default()
    }
}

/// Checks of what the text says of all three figures.
pub fn common_checks(found: &Timeouts) -> Vec<Check> {
    vec![
        Check::new(
            "failover times at which HALR has more timeouts",
            "none",
            found.worse(),
            (0.0, 0.0),
        ),
        Check::new("raw, mean timeouts at 0.5 s", "1", found.mean(500, false), (0.9, 1.1)),
        Check::new(
            "raw, mean timeouts at 3 s",
            "2: ssthresh becomes 2",
            found.mean(3000, false),
            (1.9, 2.1),
        ),
        Check::new("HALR, mean timeouts at 3 s", "one fewer", found.mean(3000, true), (0.9, 1.1)),
    ]
}
