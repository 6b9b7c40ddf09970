//! Fig 25: the bottleneck's queue, buffer of 1500 packets.

use super::active::{Setup, pair, queues};
use super::context::Context;
use super::{Check, Drawn, Figure};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure = Figure { id: "fig25", title: "Queue at R1, buffer 1500 packets", draw };

fn draw(context: &Context) -> Drawn {
    let both = pair(context, Congestion::Sack, 1500);
    let newreno = Setup { tcp: Congestion::NewReno, buffer: 1500, ..Setup::default() }.run(context);
    let checks = vec![
        Check::new("surges in 20 s without rate control, SACK", "3", both[0].surges(), (2.0, 4.0)),
        Check::new("the same with NewReno", "3", newreno.surges(), (2.0, 4.0)).because(
            "The paper does not say which TCP it was, nor what a surge is: overflows more than 0.7 s \
             apart here. --seeds 12 gives 3.0 ± 0.4 with SACK, 2.6 ± 0.3 with NewReno.",
        ),
        Check::new(
            "longest queue with rate control, packets",
            "600",
            both[1].longest(),
            (550.0, 650.0),
        )
        .because("The controller's interval is not stated in the paper; 0.25 s is a fit. --seeds 12: 596 ± 9."),
        Check::new(
            "packets dropped with rate control",
            "none",
            both[1].queue().overflows.len() as f64,
            (0.0, 0.0),
        ),
    ];
    Drawn { checks, ..queues(FIGURE.title, &both) }
}
