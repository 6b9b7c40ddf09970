//! Fig 8: the congestion window of a flow whose SYN was lost (Case 3).

use super::context::Context;
use super::window::windows;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig08", title: "Window of a flow that lost its SYN, failover 0.5 s", draw };

fn draw(context: &Context) -> Drawn {
    let mut found = windows(context, FIGURE.title, 2100, 500);
    let [raw, kept] = found.threshold;
    found.drawn.checks = vec![
        Check::new("ssthresh after one SYN timeout, segments", "2", raw, (2.0, 2.0)),
        Check::new("ssthresh with HALR, segments", "stays exponential", kept, (8.0, 64.0)),
        Check::new(
            "time to a window of 16 without HALR, s",
            "after a SYN timeout of 3 s, linearly",
            found.to_sixteen_s[0],
            (3.0, 20.0),
        ),
        Check::new(
            "time to a window of 16 with HALR, s",
            "without waiting",
            found.to_sixteen_s[1],
            (0.0, 1.5),
        ),
    ];
    found.drawn
}
