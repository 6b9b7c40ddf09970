//! Fig 21: throughput over time, with rate control.

use super::active::{Setup, failover_flows_down, throughput};
use super::context::Context;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig21", title: "Throughput over time, with rate control", draw };

fn draw(context: &Context) -> Drawn {
    let run = Setup { control: true, ..Setup::default() }.run(context);
    let (mean, deviation) = run.total(9.0, 24.0);
    // Of 1500 bytes 1460 are data.
    let utilization = mean / 97.33;
    let checks = vec![
        Check::new(
            "share of the bandwidth, 9 to 24 s",
            "slightly lower; 95 % is aimed at",
            utilization,
            (0.94, 1.0),
        ),
        Check::new(
            "its deviation in bins of 0.5 s, Mb/s",
            "better smoothness",
            deviation,
            (0.0, 4.0),
        ),
        Check::new(
            "failover flows, 5 to 8 s, Mb/s",
            "interrupted",
            failover_flows_down(&run),
            (0.0, 0.0),
        ),
    ];
    Drawn { checks, ..throughput(FIGURE.title, &run) }
}
