//! TCP Boston Fig. 4: goodput, response time and packet loss over buffers.

use super::boston::{
    BP, BP_AT_ONCE, BUFFERS, FEC, FEC_AT_ONCE, OPEN, PACKETS, PROTOCOLS, QUEUE, Runs, VEGAS,
    mean_ratio, not_more, responses, run_all, undelivered,
};
use super::context::Context;
use super::{Check, Drawn, Figure};
use holdfast_netsim::atm::{Outcome, Scenario};

pub const FIGURE: Figure =
    Figure { id: "boston-fig4", title: "TCP Boston: goodput, response time, packet loss", draw };

/// Bytes in a cell that name its segment and row, in the run that charges for them.
const CELL_ID_BYTES: u32 = 2;

fn draw(context: &Context) -> Drawn {
    let runs = Runs::new(context);
    let mut charts = Vec::new();
    let mut checks = Vec::new();
    for packet in 0..PACKETS.len() {
        let all = 0..PROTOCOLS.len();
        let log = |it: &Outcome| responses(it).mean_s.log10();
        charts.push(runs.chart(packet, "goodput, Mb/s", all.clone(), Outcome::goodput_mbps));
        charts.push(runs.chart(packet, "response time, s, log10", all.clone(), log));
        charts.push(runs.chart(packet, "incomplete packets, share", all, Outcome::packet_loss));
        checks.extend(goodput(&runs, packet));
        checks.extend(response(&runs, packet));
        checks.extend(losses(&runs, packet));
        checks.push(identified(context, &runs, packet));
    }
    Drawn { charts, table: runs.table(), checks }
}

fn named(packet: usize, what: &str) -> String {
    format!("{} B: {what}", PACKETS[packet].0)
}

/// Checks of an ordering: the number of buffers at which it holds, and the mean ratio over the
/// buffers.
fn ordering(packet: usize, what: &str, low: &[f64; 6], high: &[f64; 6], note: &str) -> [Check; 2] {
    let buffers = format!("buffers of 6 with {what}");
    let ratio = format!("{what}, mean ratio");
    [
        Check::new(&named(packet, &buffers), "all", not_more(low, high), (5.5, 6.0)).because(note),
        Check::new(&named(packet, &ratio), "at most 1", mean_ratio(low, high), (0.0, 1.001))
            .because(note),
    ]
}

fn goodput(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, Outcome::goodput_mbps);
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let gap = |buffer: usize| 1.0 - fec[buffer] / bp[buffer];
    let mut checks = Vec::new();
    checks.extend(ordering(packet, "goodput Vegas <= BP", &vegas, &bp, ""));
    checks.extend(ordering(packet, "goodput FEC <= BP", &fec, &bp, ""));
    let without_loss = "Where no cell is lost, redundancy costs a cell in 32 and gains nothing.";
    checks.extend(ordering(packet, "goodput Vegas <= FEC", &vegas, &fec, without_loss));
    checks.push(Check::new(
        &named(packet, "FEC's goodput below BP's at 64 cells, share"),
        "the gap grows as buffers shrink",
        gap(0),
        (gap(5), 0.2),
    ));
    let again = "Where cells are lost, retransmissions carry a tenth of the segment more.";
    let what = named(packet, "the same at 4,000 cells");
    checks.push(
        Check::new(&what, "(one cell in 30: 0.033)", gap(5), (0.02, 0.06))
            .stating(1.0 / 30.0)
            .because(again),
    );
    checks
}

fn response(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, |it| responses(it).mean_s);
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let ratio = |what: &str, paper: &str, ours: f64, expected: f64, note: &str| {
        let range = (expected - 0.03, expected + 0.03);
        Check::new(&named(packet, what), paper, ours, range).because(note)
    };
    let mut checks = Vec::new();
    checks.extend(ordering(packet, "response BP <= Vegas", &bp, &vegas, OPEN));
    checks.extend(ordering(packet, "response FEC <= BP", &fec, &bp, QUEUE));
    checks.extend([
        ratio("response BP : Vegas at 64 cells", "0.96", bp[0] / vegas[0], 0.96, OPEN),
        ratio("response FEC : Vegas at 64 cells", "0.90", fec[0] / vegas[0], 0.90, OPEN),
        ratio("response BP : Vegas at 4,000 cells", "0.97", bp[5] / vegas[5], 0.97, OPEN),
        ratio("response FEC : Vegas at 4,000 cells", "0.96", fec[5] / vegas[5], 0.96, QUEUE),
    ]);
    checks
}

fn losses(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, |it| undelivered(it, protocol));
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let incomplete = |protocol| runs.series(packet, protocol, Outcome::packet_loss);
    let more = "The other reading: a transmission after which the packet is not complete is \
                lost. A partial packet keeps its connection sending where Vegas waits for its \
                timer, so there is more to lose.";
    let mut checks = Vec::new();
    checks.extend(ordering(
        packet,
        "packets not delivered by the AAL, BP <= Vegas",
        &bp,
        &vegas,
        "",
    ));
    checks.extend(ordering(packet, "packets not delivered by the AAL, FEC <= BP", &fec, &bp, ""));
    let (vegas, bp, fec) = (incomplete(VEGAS), incomplete(BP), incomplete(FEC));
    checks.extend(ordering(packet, "incomplete packets BP <= Vegas", &bp, &vegas, more));
    checks.extend(ordering(packet, "incomplete packets FEC <= BP", &fec, &bp, more));
    let timeouts = |protocol| runs.series(packet, protocol, |it| it.timeouts() as f64).iter().sum();
    for protocol in [VEGAS, BP, FEC, BP_AT_ONCE, FEC_AT_ONCE] {
        let what = format!("retransmission timeouts of {}, all buffers", PROTOCOLS[protocol].0);
        let count = timeouts(protocol);
        checks.push(Check::unsaid(&named(packet, &what), "(not given)", count));
    }
    checks
}

/// Goodput that is lost because every cell names its segment and row.
fn identified(context: &Context, runs: &Runs, packet: usize) -> Check {
    let (packet_bytes, deadline_ns) = PACKETS[packet];
    let scenario = Scenario {
        seed: context.seed(),
        protocol: PROTOCOLS[BP].1,
        packet_bytes,
        deadline_ns,
        buffer_cells: BUFFERS[5],
        cell_id_bytes: CELL_ID_BYTES,
        ..Scenario::PAPER
    };
    let charged = run_all(&[scenario])[0].goodput_mbps();
    let what =
        "BP's goodput with 2 bytes per cell for segment and row, of that without, 4,000 cells";
    let share = charged / runs.get(packet, BP, 5).goodput_mbps();
    Check::new(&named(packet, what), "(identification is not mentioned)", share, (0.9, 1.0))
        .because("All other numbers are without: AAL5's cells have no place for it.")
}
