//! Fig 14: short flows, failover 5 s.

use super::context::Context;
use super::short::short_flows;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig14", title: "Short flows by arrival, failover 5 s", draw };

fn draw(context: &Context) -> Drawn {
    let mut flows = short_flows(context, FIGURE.title, 5000);
    // SYNs that arrive at the cluster in 2 to 7 s are lost; they left 40 ms earlier.
    let share = flows.share_above(1.96, 6.96, 9.0);
    flows.drawn.checks = vec![
        Check::new("share that waits 9 s", "40 %", share, (0.39, 0.41)),
        Check::new(
            "wait of the others, s",
            "3",
            flows.range(4.0, 6.95, false).max - 1.0,
            (2.9, 3.1),
        ),
        Check::new("raw, most, s", "11.2 to 11.5", flows.range(1.4, 7.5, false).max, (11.1, 11.6)),
        Check::new(
            "HALR, SYN lost, most over the outage's end, s",
            "depends on the failover time only",
            flows.range(2.0, 6.95, true).max - 5.0,
            (0.5, 1.2),
        ),
    ];
    flows.drawn
}
