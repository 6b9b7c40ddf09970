//! Fig 20: throughput over time, without rate control.

use super::active::{Setup, failover_flows_down, throughput};
use super::context::Context;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig20", title: "Throughput over time, without rate control", draw };

fn draw(context: &Context) -> Drawn {
    let run = Setup::default().run(context);
    let (mean, deviation) = run.total(9.0, 24.0);
    let checks = vec![
        Check::new("goodput 9 to 24 s, Mb/s", "the available bandwidth", mean, (95.0, 97.4)),
        Check::new(
            "its deviation in bins of 0.5 s, Mb/s",
            "apparent fluctuations",
            deviation,
            (1.0, 8.0),
        )
        .because("What arrives at the bottleneck is flat; goodput shows the fluctuations."),
        Check::new(
            "failover flows, 5 to 8 s, Mb/s",
            "interrupted",
            failover_flows_down(&run),
            (0.0, 0.0),
        ),
    ];
    Drawn { checks, ..throughput(FIGURE.title, &run) }
}
