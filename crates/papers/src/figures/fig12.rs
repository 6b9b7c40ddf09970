//! Fig 12: short flows, failover 0.5 s.

use super::context::Context;
use super::short::short_flows;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig12", title: "Short flows by arrival, failover 0.5 s", draw };

fn draw(context: &Context) -> Drawn {
    let mut flows = short_flows(context, FIGURE.title, 500);
    let (data, syn) = (flows.range(1.45, 1.84, false), flows.range(1.86, 2.45, false));
    let kept = flows.range(1.45, 2.45, true);
    let first = flows.times.iter().find(|it| it.1 > 0.7).map_or(f64::NAN, |it| it.0);
    flows.drawn.checks = vec![
        Check::new("normal flow, s", "about 0.6", flows.times[0].1, (0.59, 0.61)),
        Check::new("first arrival that is delayed, s", "1.4", first, (1.4, 1.45)),
        Check::new("raw, data lost, least, s", "one timeout: 2.1", data.min, (2.0, 2.2))
            .stating(2.1),
        Check::new("raw, data lost, most, s", "2.5", data.max, (2.2, 2.6)).because(
            "0.1 s less than another simulator with the same semantics: \
             one delayed acknowledgement.",
        ),
        Check::new("raw, SYN lost, s", "4.01 (4.1 in the figure)", syn.max, (3.95, 4.1)),
        Check::new("HALR, least, s", "0.8", kept.min, (0.6, 0.9)),
        Check::new("HALR, most, s", "1.9", kept.max, (1.2, 1.95))
            .because("Depends on what is cached: one segment and three acknowledgements here."),
    ];
    flows.drawn
}
