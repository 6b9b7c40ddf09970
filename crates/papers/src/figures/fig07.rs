//! Fig 7: the congestion window of a flow whose data was lost (Case 2).

use super::context::Context;
use super::window::windows;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig07", title: "Window of a flow that lost data, failover 3 s", draw };

fn draw(context: &Context) -> Drawn {
    // The flow must be in the middle of its transfer at 2 s.
    let mut found = windows(context, FIGURE.title, 1000, 3000);
    let [raw, kept] = found.threshold;
    found.drawn.checks = vec![
        Check::new("ssthresh after two timeouts, segments", "2: grows linearly", raw, (2.0, 2.0)),
        Check::new("ssthresh with HALR, segments", "stays exponential", kept, (8.0, 64.0)),
        Check::new(
            "time to a window of 16 with HALR, share of that without",
            "much shorter",
            found.to_sixteen_s[1] / found.to_sixteen_s[0],
            (0.0, 0.5),
        ),
    ];
    found.drawn
}
