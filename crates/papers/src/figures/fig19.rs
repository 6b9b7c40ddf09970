//! Fig 19: the model of long flows against the simulation.

use super::context::Context;
use super::validate::{Dot, drawn, share_inside, simulate};
use super::{Check, Drawn, Figure};
use crate::models::{LongFlow, Parameters, Range};
use holdfast_netsim::tcp::Congestion;

pub const FIGURE: Figure = Figure { id: "fig19", title: "Long flows: model and simulation", draw };

/// Tolerance in s: the thesis says that only the trend is close.
const SLACK_S: f64 = 1.0;

fn draw(context: &Context) -> Drawn {
    let dots = simulate(context, Congestion::Reno, 1000, 2000);
    let model = LongFlow::new(Parameters::default(), 1000);
    let extended = model.with_threshold_two();
    let both = |outage_s: f64, recovery: bool| {
        model.data_lost_s(outage_s, recovery).with(model.syn_lost_s(outage_s, recovery))
    };
    let with_two = |outage_s: f64, recovery: bool| {
        extended.data_lost_s(outage_s, recovery).with(extended.syn_lost_s(outage_s, recovery))
    };
    let raw = |syn: bool| {
        dots.iter().filter(move |dot| {
            dot.outage_ms == 500
                && !dot.recovery
                && dot.is_delayed(2.7)
                && dot.is_syn() == syn
                && !dot.is_between()
        })
    };
    let mean = |range: &mut dyn Iterator<Item = &Dot>| {
        let times: Vec<f64> = range.map(|dot| dot.time_s).collect();
        times.iter().sum::<f64>() / times.len().max(1) as f64
    };
    let gap = mean(&mut raw(true)) - mean(&mut raw(false));
    let delayed =
        || dots.iter().filter(|dot| !dot.recovery && dot.is_delayed(2.7) && !dot.is_between());
    let range = Range::of(raw(true).map(|dot| dot.time_s));
    let checks = vec![
        Check::new("raw, SYN lost, 0.5 s, s", "upper group: ssthresh 2", range.max, (9.0, 10.5)),
        Check::new("gap between the groups at 0.5 s, s", "two major groups", gap, (2.0, 6.0)),
        Check::new("raw dots within the model's lines", "some inaccuracy", share_inside(delayed(), &both, SLACK_S), (0.0, 0.7))
            .because("The model has no linear growth after ssthresh = 2, as the thesis says."),
        Check::new("raw dots within the lines with ssthresh 2", "the reason it names", share_inside(delayed(), &with_two, SLACK_S), (0.7, 1.0))
            .because("The model's lines begin where slow start has ended, after about 630 segments; earlier interruptions have more to resend."),
    ];
    Drawn { checks, ..drawn(FIGURE.title, &dots, &both, Some(&with_two)) }
}
