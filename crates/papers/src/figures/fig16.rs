//! Fig 16: timeouts of long flows that lost data, TCP NewReno.

use super::context::{Context, ns2};
use super::timeouts::{common_checks, timeouts};
use super::{Check, Drawn, Figure};
use holdfast_netsim::tcp::{Congestion, Profile};

pub const FIGURE: Figure =
    Figure { id: "fig16", title: "Timeouts of long flows that lost data, NewReno", draw };

fn draw(context: &Context) -> Drawn {
    let found = timeouts(context, FIGURE.title, ns2(Congestion::NewReno));
    let mut checks = common_checks(&found);
    let patient = Profile { impatient: false, ..ns2(Congestion::NewReno) };
    let patient = timeouts(context, FIGURE.title, patient);
    checks.extend([
        Check::new(
            "HALR, mean timeouts at 0.5 s",
            "some avoided, more than Reno's",
            found.mean(500, true),
            (0.0, 0.8),
        )
        .because(
            "ns-2's default is impatient: only the first partial acknowledgement restarts the timer, \
             so that a window of more than 15 holes still ends in a timeout.",
        ),
        Check::new(
            "the same if every partial acknowledgement does",
            "avoided",
            patient.mean(500, true),
            (0.0, 0.15),
        )
        .because("Then a lost window is repaired at one segment per round trip."),
    ]);
    Drawn { checks, ..found.drawn }
}
