//! Fig 17: timeouts of long flows that lost data, TCP SACK.

use super::context::{Context, ns2};
use super::timeouts::{common_checks, timeouts};
use super::{Check, Drawn, Figure};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure =
    Figure { id: "fig17", title: "Timeouts of long flows that lost data, SACK", draw };

fn draw(context: &Context) -> Drawn {
    let found = timeouts(context, FIGURE.title, ns2(Congestion::Sack));
    let mut checks = common_checks(&found);
    checks.push(
        Check::new(
            "HALR, mean timeouts at 0.5 s",
            "some avoided, more than Reno's",
            found.mean(500, true),
            (0.0, 0.8),
        )
        .because(
            "Bare duplicates carry no blocks: the sender knows of one hole only, and waits for the \
             rest. NewReno, which probes hole by hole, does better.",
        ),
    );
    Drawn { checks, ..found.drawn }
}
