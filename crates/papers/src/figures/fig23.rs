//! Fig 23: throughput of single flows, without rate control.

use super::active::{Setup, shares};
use super::context::Context;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig23", title: "Shares of ten flows, without rate control", draw };

fn draw(context: &Context) -> Drawn {
    let run = Setup::default().run(context);
    let checks = [(13, 17), (17, 21)]
        .map(|(from, until)| {
            let what = format!("Jain's index, {from} to {until} s");
            Check::new(
                &what,
                "some fail to attain their share",
                run.fairness(from, until),
                (0.4, 0.9),
            )
        })
        .to_vec();
    Drawn { checks, ..shares(FIGURE.title, &run) }
}
