//! Fig 9: unused flow time against down time, from the model.

use super::context::{Context, line};
use super::{Check, Drawn, Figure, Table};
use crate::models::unused_flow_time;
use holdfast_report::plot::Chart;

pub const FIGURE: Figure =
    Figure { id: "fig09", title: "Unused flow time against down time", draw };

/// Step of the sawtooth, in s.
const STEP_S: f64 = 0.01;

fn draw(_: &Context) -> Drawn {
    let timeouts = [("data, RTO 1.5 s", 1.5), ("SYN, RTO 3 s", 3.0)];
    let downs: Vec<f64> = (1..=1200).map(|step| f64::from(step) * STEP_S).collect();
    let mut table = Table::new(&["down_s", "uft_data_s", "uft_syn_s"]);
    table.rows = downs
        .iter()
        .map(|down| vec![*down, unused_flow_time(1.5, *down), unused_flow_time(3.0, *down)])
        .collect();
    let lines = timeouts.map(|(name, timeout)| {
        line(name, downs.iter().map(|down| (*down, unused_flow_time(timeout, *down))).collect())
    });
    let teeth: f64 = [1.5, 4.5, 10.5].iter().map(|down| unused_flow_time(1.5, *down)).sum();
    let chart = Chart {
        title: FIGURE.title.to_owned(),
        x_name: "flow down time, s".to_owned(),
        y_name: "unused flow time, s".to_owned(),
        x_range: (0.0, 12.0),
        lines: lines.to_vec(),
        ..Chart::default()
    };
    let checks = vec![
        Check::new("UFT at 1.5, 4.5 and 10.5 s together, s", "a sawtooth", teeth, (0.0, 1e-9)),
        Check::new("UFT of a SYN at 5 s, s", "(3 + 6) - 5", unused_flow_time(3.0, 5.0), (4.0, 4.0))
            .stating(4.0),
    ];
    Drawn { charts: vec![chart], table, checks }
}
