//! Beyond the figures: clusters of more than two nodes (thesis chapter 1). The
//! strings share 200 Mb/s; one of them fails.

use super::active::{Setup, chart, runs};
use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};

pub const FIGURE: Figure =
    Figure { id: "sweep-nodes", title: "Section 7.4 with more than two nodes", draw };

const NODES: [usize; 3] = [2, 3, 4];

fn draw(context: &Context) -> Drawn {
    let setups: Vec<Setup> = NODES
        .iter()
        .flat_map(|nodes| {
            let strings_bps = vec![200_000_000 / *nodes as u64; *nodes];
            [false, true].map(|control| Setup {
                control,
                strings_bps: strings_bps.clone(),
                ..Setup::default()
            })
        })
        .collect();
    let found = runs(context, &setups);
    let mut table =
        Table::new(&["nodes", "control", "goodput_mbps", "share_of_the_rest", "longest_queue"]);
    let mut lines = Vec::new();
    for (setup, run) in setups.iter().zip(&found) {
        let nodes = setup.strings_bps.len() as f64;
        let rest_mbps = 200.0 * (nodes - 1.0) / nodes * 1460.0 / 1500.0;
        let (mean, _) = run.total(9.0, 16.0);
        let control = f64::from(u8::from(setup.control));
        table.rows.push(vec![nodes, control, mean, mean / rest_mbps, run.longest()]);
        if setup.control {
            lines.push(line(&format!("{nodes} nodes"), run.series(5, |_| true)));
        }
    }
    let on: Vec<f64> = table.rows.iter().filter(|row| row[1] == 1.0).map(|row| row[3]).collect();
    let least = on.iter().copied().fold(f64::MAX, f64::min);
    let checks = vec![
        Check::new(
            "least share of what is left, with control",
            "also for N > 2",
            least,
            (0.9, 1.02),
        )
        .because("One window for all strings: uneven strings are evened out only by the switch."),
    ];
    let charts = vec![chart(FIGURE.title, "goodput, Mb/s", (0.0, 40.0), lines)];
    Drawn { charts, table, checks }
}
