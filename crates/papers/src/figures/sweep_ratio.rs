//! Beyond the figures: strings of unequal bandwidth ("various string bandwidth
//! ratios are tested", thesis §7.4). The failed string is the larger one.

use super::active::{Setup, chart, runs};
use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};

pub const FIGURE: Figure =
    Figure { id: "sweep-ratio", title: "Section 7.4 with strings of unequal bandwidth", draw };

const RATIOS: [u64; 3] = [1, 2, 3];

fn draw(context: &Context) -> Drawn {
    let setups: Vec<Setup> = RATIOS
        .iter()
        .flat_map(|ratio| {
            let strings_bps = vec![ratio * 100_000_000, 100_000_000];
            [false, true].map(|control| Setup {
                control,
                strings_bps: strings_bps.clone(),
                ..Setup::default()
            })
        })
        .collect();
    let found = runs(context, &setups);
    let mut table = Table::new(&[
        "ratio",
        "control",
        "goodput_mbps",
        "surges",
        "longest_queue",
        "jain_13_17_s",
    ]);
    let mut lines = Vec::new();
    for (setup, run) in setups.iter().zip(&found) {
        let ratio = (setup.strings_bps[0] / setup.strings_bps[1]) as f64;
        let control = f64::from(u8::from(setup.control));
        let (mean, _) = run.total(9.0, 24.0);
        table.rows.push(vec![
            ratio,
            control,
            mean,
            run.surges(),
            run.longest(),
            run.fairness(13, 17),
        ]);
        let name = if setup.control { "with" } else { "without" };
        lines.push(line(&format!("{ratio}:1, {name} control"), run.queue_series()));
    }
    let on: Vec<&Vec<f64>> = table.rows.iter().filter(|row| row[1] == 1.0).collect();
    let least = |column: usize| on.iter().map(|row| row[column]).fold(f64::MAX, f64::min);
    let most = |column: usize| on.iter().map(|row| row[column]).fold(0.0, f64::max);
    let checks = vec![
        Check::new("least goodput with control, Mb/s", "a similar level", least(2), (90.0, 98.0)),
        Check::new("longest queue with control, packets", "restrained", most(4), (0.0, 749.0)),
        Check::new("least fairness with control", "(no number)", least(5), (0.5, 1.0)).because(
            "At 3:1 three quarters of all flows come back at once: the queue overflows before the \
             controller has seen one interval of it, and who lost a window stays behind.",
        ),
    ];
    let charts = vec![chart(FIGURE.title, "packets in R1's queue", (0.0, 40.0), lines)];
    Drawn { charts, table, checks }
}
