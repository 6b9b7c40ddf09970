//! Fig 15: timeouts of long flows that lost data, TCP Reno.

use super::context::{Context, ns2};
use super::timeouts::{common_checks, timeouts};
use super::{Check, Drawn, Figure};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure =
    Figure { id: "fig15", title: "Timeouts of long flows that lost data, Reno", draw };

fn draw(context: &Context) -> Drawn {
    let found = timeouts(context, FIGURE.title, ns2(Congestion::Reno));
    let mut checks = common_checks(&found);
    checks.push(Check::new(
        "HALR, mean timeouts at 0.5 s",
        "mostly still one",
        found.mean(500, true),
        (0.5, 0.95),
    ));
    Drawn { checks, ..found.drawn }
}
