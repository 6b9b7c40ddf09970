//! Fig 13: short flows, failover 3 s.

use super::context::Context;
use super::short::short_flows;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig13", title: "Short flows by arrival, failover 3 s", draw };

fn draw(context: &Context) -> Drawn {
    let mut flows = short_flows(context, FIGURE.title, 3000);
    let group = flows.range(1.86, 1.95, false);
    let kept = flows.range(1.45, 2.0, true);
    let last = flows.range(4.7, 4.95, true);
    flows.drawn.checks = vec![
        Check::new(
            "raw, arrivals 1.86 to 1.95 s, s",
            "about 10: 3 + 6 s later",
            group.max,
            (9.8, 10.1),
        )
        .because("The SYN-ACK is lost: the sink delays it by 100 ms, so it crosses at 2 s."),
        Check::new(
            "raw, data lost, most, s",
            "5.5",
            flows.range(1.45, 1.84, false).max,
            (5.2, 5.6),
        ),
        Check::new("raw, SYN lost, s", "4.0", flows.range(1.97, 4.95, false).max, (3.95, 4.1)),
        Check::new("HALR, data lost, least, s", "around 4", kept.min, (3.5, 4.2)),
        Check::new("HALR, data lost, most, s", "around 4", kept.max, (3.5, 4.3)),
        Check::new("HALR, SYN lost at the end, least, s", "falls linearly", last.min, (0.5, 0.85)),
    ];
    flows.drawn
}
