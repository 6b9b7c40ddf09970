//! Beyond the figures: other failover times. "Using different failover times
//! will not affect the macroscopic system behavior" (thesis §7.4).

use super::active::{Setup, chart, runs};
use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};

pub const FIGURE: Figure =
    Figure { id: "sweep-failover", title: "Section 7.4 with other failover times", draw };

const OUTAGES_MS: [u64; 5] = [500, 1000, 2000, 3000, 5000];

fn draw(context: &Context) -> Drawn {
    let setups: Vec<Setup> = OUTAGES_MS
        .iter()
        .flat_map(|ms| {
            [false, true].map(|control| Setup { control, until_ms: 5000 + ms, ..Setup::default() })
        })
        .collect();
    let found = runs(context, &setups);
    let mut table =
        Table::new(&["failover_s", "control", "goodput_mbps", "surges", "longest_queue"]);
    let mut lines = Vec::new();
    for (setup, run) in setups.iter().zip(&found) {
        let outage_s = (setup.until_ms - 5000) as f64 / 1e3;
        let (mean, _) = run.total(12.0, 24.0);
        let control = f64::from(u8::from(setup.control));
        table.rows.push(vec![outage_s, control, mean, run.surges(), run.longest()]);
        if setup.control {
            lines.push(line(&format!("failover {outage_s} s"), run.series(5, |_| true)));
        }
    }
    let of = |control: f64, column: usize| {
        let rows = table.rows.iter().filter(move |row| row[1] == control);
        rows.map(move |row| row[column])
            .fold((f64::MAX, 0.0), |it: (f64, f64), x| (it.0.min(x), it.1.max(x)))
    };
    let goodput = of(1.0, 2);
    let checks = vec![
        Check::new(
            "goodput with control, most over least",
            "not affected",
            goodput.1 / goodput.0,
            (1.0, 1.05),
        ),
        Check::new("longest queue with control, packets", "restrained", of(1.0, 4).1, (0.0, 749.0)),
        Check::new(
            "fewest surges without control",
            "overflows at any failover time",
            of(0.0, 3).0,
            (4.0, 12.0),
        ),
    ];
    let charts = vec![chart(FIGURE.title, "goodput, Mb/s", (0.0, 40.0), lines)];
    Drawn { charts, table, checks }
}
