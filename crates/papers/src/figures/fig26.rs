//! Fig 26: the bottleneck's queue, buffers of 750 and 3000 packets.

use super::active::{Setup, pair, queues, runs};
use super::context::{Context, line};
use super::{Check, Drawn, Figure};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure = Figure { id: "fig26", title: "Queue at R1, buffer 750 packets", draw };

fn draw(context: &Context) -> Drawn {
    let both = pair(context, Congestion::Sack, 750);
    let others = [
        Setup { tcp: Congestion::Sack, buffer: 3000, ..Setup::default() },
        Setup { tcp: Congestion::Reno, ..Setup::default() },
        Setup { tcp: Congestion::NewReno, ..Setup::default() },
    ];
    let others = runs(context, &others);
    let mut drawn = queues(FIGURE.title, &both);
    drawn.checks = vec![
        Check::new(
            "surges in 20 s without rate control, SACK",
            "8",
            both[0].surges(),
            (7.0, 9.0),
        )
        .because(
            "Chaotic: one packet more of buffer, or the order of two that arrive at once, changes \
             them by one. --seeds 12 gives 8.6 ± 0.5.",
        ),
        Check::new("the same with NewReno", "8", others[2].surges(), (7.0, 9.0)),
        Check::new("the same with Reno", "8", others[1].surges(), (7.0, 9.0)).because(
            "The paper does not say which TCP it was. Reno, which waits for a timeout when it loses \
             more than one segment, has fewer: --seeds 12 gives 6.8 ± 0.5.",
        ),
        Check::new("longest queue with rate control, packets", "600", both[1].longest(), (550.0, 650.0))
            .because("The controller's interval is not stated in the paper; 0.25 s is a fit. --seeds 12: 596 ± 9."),
        Check::new("packets dropped with rate control", "none", both[1].queue().overflows.len() as f64, (0.0, 0.0)),
        Check::new("surges with a buffer of 3000", "postponed, not avoided", others[0].surges(), (1.0, 2.0)),
    ];
    drawn.charts[0].lines.push(line("buffer 3000, without", others[0].queue_series()));
    drawn
}
