//! Fig 22: aggregate throughput with and without rate control, and a closer look.

use super::active::{chart, pair};
use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure =
    Figure { id: "fig22", title: "Aggregate throughput, with and without rate control", draw };

fn draw(context: &Context) -> Drawn {
    let both = pair(context, Congestion::NewReno, 750);
    let [off, on] = both.each_ref().map(|run| run.series(5, |_| true));
    let mut table = Table::new(&["time_s", "off_mbps", "on_mbps"]);
    table.rows = off.iter().zip(&on).map(|(off, on)| vec![off.0, off.1, on.1]).collect();
    let lines = vec![line("without rate control", off), line("with rate control", on)];
    let mut closer = chart("(b) 9 to 24 s", "goodput, Mb/s", (9.0, 24.0), lines.clone());
    closer.spans.clear();
    closer.y_range = Some((70.0, 105.0));
    let charts =
        vec![chart("(a) during the simulation", "goodput, Mb/s", (0.0, 40.0), lines), closer];
    let [off, on] = both.each_ref().map(|run| run.total(9.0, 24.0));
    let checks = vec![
        Check::new(
            "mean with rate control, share of that without",
            "a similar level",
            on.0 / off.0,
            (0.95, 1.02),
        ),
        Check::new(
            "deviation with rate control, share of that without",
            "smoother",
            on.1 / off.1,
            (0.0, 0.9),
        ),
    ];
    Drawn { charts, table, checks }
}
