//! Fig 24: throughput of single flows, with rate control.

use super::active::{Setup, shares};
use super::context::Context;
use super::{Check, Drawn, Figure};

pub const FIGURE: Figure =
    Figure { id: "fig24", title: "Shares of ten flows, with rate control", draw };

fn draw(context: &Context) -> Drawn {
    let run = Setup { control: true, ..Setup::default() }.run(context);
    let checks = [(13, 17), (17, 21)]
        .map(|(from, until)| {
            let what = format!("Jain's index, {from} to {until} s");
            Check::new(&what, "fairly allocated", run.fairness(from, until), (0.99, 1.0))
        })
        .to_vec();
    Drawn { checks, ..shares(FIGURE.title, &run) }
}
