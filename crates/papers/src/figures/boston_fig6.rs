//! TCP Boston Fig. 6: missed deadlines, deviation and variability of response times.

use super::boston::{
    BP, BP_AT_ONCE, BUFFERS, FEC, FEC_AT_ONCE, Improvement, OPEN, PACKETS, PROTOCOLS, QUEUE, Runs,
    SILENT, VEGAS, chart, curve, responses,
};
use super::context::Context;
use super::{Check, Drawn, Figure};
use holdfast_netsim::atm::{Outcome, Responses};
use holdfast_report::plot::Chart;

pub const FIGURE: Figure =
    Figure { id: "boston-fig6", title: "TCP Boston: missed deadlines and variability", draw };

/// Difference by which an improvement may miss the paper's number and still count as met, as a
/// share.
const TOLERANCE: f64 = 0.05;

fn missed(it: &Outcome) -> f64 {
    responses(it).missed_share
}

fn deviation(it: &Outcome) -> f64 {
    responses(it).deviation_s
}

fn variability(it: &Outcome) -> f64 {
    let Responses { mean_s, deviation_s, .. } = responses(it);
    deviation_s / mean_s
}

fn draw(context: &Context) -> Drawn {
    let runs = Runs::new(context);
    let mut charts = Vec::new();
    let mut checks = Vec::new();
    for packet in 0..PACKETS.len() {
        charts.extend(panels(&runs, packet));
        checks.extend(claims(&runs, packet));
        checks.extend(beyond(&runs, packet));
    }
    Drawn { charts, table: runs.table(), checks }
}

fn panels(runs: &Runs, packet: usize) -> Vec<Chart> {
    let all = || 0..PROTOCOLS.len();
    let vegas = runs.series(packet, VEGAS, deviation);
    let ratio = |protocol: usize| {
        let ours = runs.series(packet, protocol, deviation);
        let ratios: [f64; BUFFERS.len()] = std::array::from_fn(|it| ours[it] / vegas[it]);
        curve(PROTOCOLS[protocol].0, &ratios)
    };
    vec![
        runs.chart(packet, "missed deadlines, share", all(), missed),
        runs.chart(packet, "deviation, s, log10", all(), |it| deviation(it).log10()),
        chart(packet, "deviation : Vegas'", (1..PROTOCOLS.len()).map(ratio).collect()),
        runs.chart(packet, "variability, log10", all(), |it| variability(it).log10()),
    ]
}

/// Checks of what the text says, in three readings each.
fn claims(runs: &Runs, packet: usize) -> Vec<Check> {
    let is_small = packet == 0;
    let pick = |small: f64, large: f64| if is_small { small } else { large };
    let mut checks = Vec::new();
    type Number = fn(&Outcome) -> f64;
    let mut claim = |name: &str, of: Number, note: &str, theirs, ours, paper: f64| {
        let of = |protocol| runs.series(packet, protocol, of);
        let what = format!("{} B: {name}", PACKETS[packet].0);
        checks.extend(readings(&what, paper, note, &Improvement::of(&of(theirs), &of(ours))));
    };
    claim("missed deadlines, BP under Vegas", missed, SILENT, VEGAS, BP, pick(0.189, 0.41));
    claim("missed deadlines, FEC under Vegas", missed, SILENT, VEGAS, FEC, pick(0.192, 0.42));
    claim("missed deadlines, FEC under BP", missed, QUEUE, BP, FEC, pick(0.015, 0.022));
    claim("deviation, BP under Vegas", deviation, OPEN, VEGAS, BP, pick(0.21, 0.32));
    claim("variability, BP under Vegas", variability, OPEN, VEGAS, BP, pick(0.13, 0.25));
    checks
}

fn readings(what: &str, paper: f64, note: &str, ours: &Improvement) -> [Check; 3] {
    let says = format!("{:.1} %", 100.0 * paper);
    let accepted = (paper - TOLERANCE, paper + TOLERANCE);
    let check = |reading: &str, value: f64| {
        Check::new(&format!("{what}, {reading}"), &says, value, accepted).because(note)
    };
    [
        check("mean of the buffers' shares", ours.per_buffer),
        check("share of the means", ours.of_means),
        check("difference of the means as it is", ours.absolute),
    ]
}

/// Checks of all packets together instead of by connection, and of the other reading of a report.
fn beyond(runs: &Runs, packet: usize) -> Vec<Check> {
    let small = packet == 0;
    let named = |what: &str| format!("{} B: {what}", PACKETS[packet].0);
    let all = |protocol| runs.series(packet, protocol, |it| it.all().missed_share);
    let spread = |protocol| runs.series(packet, protocol, |it| it.all().deviation_s);
    let of = |protocol| runs.series(packet, protocol, missed);
    let additional =
        Improvement::of(&runs.series(packet, BP, deviation), &runs.series(packet, FEC, deviation));
    let within = |small_says: f64, large_says: f64| {
        let paper = if small { small_says } else { large_says };
        (format!("{:.1} %", 100.0 * paper), (paper - TOLERANCE, paper + TOLERANCE))
    };
    let (missed_says, missed_range) = within(0.189, 0.41);
    let (spread_says, spread_range) = within(0.21, 0.32);
    let (fec_says, fec_range) = within(0.192, 0.42);
    let overdue = |protocol| runs.series(packet, protocol, Outcome::overdue_share);
    let by_time = |ours| Improvement::of(&overdue(VEGAS), &overdue(ours)).of_means;
    let pooled = "Of all packets together: a connection that starves sends few, so its misses \
                  hardly count, and Vegas looks better than its users would find it.";
    vec![
        Check::new(
            &named("time with a packet overdue, BP under Vegas"),
            &missed_says,
            by_time(BP),
            missed_range,
        )
        .because(SILENT),
        Check::new(
            &named("time with a packet overdue, FEC under Vegas"),
            &fec_says,
            by_time(FEC),
            fec_range,
        )
        .because(SILENT),
        Check::new(
            &named("deviation, FEC under BP, share of the means"),
            "more than 0",
            additional.of_means,
            (0.001, 1.0),
        )
        .because(QUEUE),
        Check::new(
            &named("missed deadlines of all packets, BP under Vegas"),
            &missed_says,
            Improvement::of(&all(VEGAS), &all(BP)).of_means,
            missed_range,
        )
        .because(pooled),
        Check::new(
            &named("deviation of all packets, BP under Vegas"),
            &spread_says,
            Improvement::of(&spread(VEGAS), &spread(BP)).of_means,
            spread_range,
        )
        .because(pooled),
        Check::new(
            &named("repairs at once: missed deadlines, BP under Vegas"),
            &missed_says,
            Improvement::of(&of(VEGAS), &of(BP_AT_ONCE)).of_means,
            missed_range,
        )
        .because(SILENT),
        Check::new(
            &named("repairs at once: missed deadlines, FEC under Vegas"),
            &fec_says,
            Improvement::of(&of(VEGAS), &of(FEC_AT_ONCE)).of_means,
            fec_range,
        )
        .because(SILENT),
    ]
}
