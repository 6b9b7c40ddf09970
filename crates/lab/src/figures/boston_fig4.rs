//! TCP Boston Fig. 4: goodput, response time and packet loss over buffers.

use super::boston::{
    BP, BP_AT_ONCE, BUFFERS, FEC, FEC_AT_ONCE, PACKETS, PROTOCOLS, Runs, STARVED, VEGAS, not_more,
    responses, run_all,
};
use super::context::Context;
use super::{Check, Drawn, Figure};
use holdfast_sim::atm::{Outcome, Scenario};

pub const FIGURE: Figure =
    Figure { id: "boston-fig4", title: "TCP Boston: goodput, response time, packet loss", draw };

/// Bytes that name a cell's segment and row, where they are charged.
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
        charts.push(runs.chart(packet, "packet loss, share", all, Outcome::packet_loss));
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

fn goodput(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, Outcome::goodput_mbps);
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let gap = |buffer: usize| 1.0 - fec[buffer] / bp[buffer];
    vec![
        Check::new(&named(packet, "buffers of 6 with goodput BP >= Vegas"), "all", not_more(&vegas, &bp), (5.5, 6.0))
            .because("At the smallest buffers one Vegas connection alone fills the link and the others starve."),
        Check::new(&named(packet, "buffers of 6 with goodput BP >= FEC"), "all", not_more(&fec, &bp), (5.5, 6.0)),
        Check::new(&named(packet, "FEC's goodput below BP's at 64 cells, share"), "the gap grows as buffers shrink", gap(0), (gap(5), 0.2)),
        Check::new(&named(packet, "the same at 4,000 cells"), "(one cell in 30: 0.033)", gap(5), (0.02, 0.06))
            .because("Where cells are lost, retransmissions carry a tenth of the segment more."),
    ]
}

fn response(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, |it| responses(it).mean_s);
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let ratio = |what: &str, paper: &str, ours: f64, expected: f64| {
        Check::new(&named(packet, what), paper, ours, (expected - 0.03, expected + 0.03))
            .because(STARVED)
    };
    let queue = "Redundancy lengthens the queue that all share, and interleaved packets end \
                 later; a round trip that it saves is less than that here.";
    vec![
        Check::new(
            &named(packet, "buffers of 6 with response BP <= Vegas"),
            "all",
            not_more(&bp, &vegas),
            (5.5, 6.0),
        ),
        Check::new(
            &named(packet, "buffers of 6 with response FEC <= BP"),
            "all",
            not_more(&fec, &bp),
            (5.5, 6.0),
        )
        .because(queue),
        ratio("response BP : Vegas at 64 cells", "0.96", bp[0] / vegas[0], 0.96),
        ratio("response FEC : Vegas at 64 cells", "0.90", fec[0] / vegas[0], 0.90),
        ratio("response BP : Vegas at 4,000 cells", "0.97", bp[5] / vegas[5], 0.97),
        ratio("response FEC : Vegas at 4,000 cells", "0.96", fec[5] / vegas[5], 0.96)
            .because(queue),
    ]
}

fn losses(runs: &Runs, packet: usize) -> Vec<Check> {
    let of = |protocol| runs.series(packet, protocol, Outcome::packet_loss);
    let (vegas, bp, fec) = (of(VEGAS), of(BP), of(FEC));
    let timeouts = |protocol| runs.series(packet, protocol, |it| it.timeouts() as f64).iter().sum();
    let paper = "(not given)";
    let more = "A partial packet keeps its connection sending where Vegas waits for its timer: \
                there is more to lose.";
    let mut checks = vec![
        Check::new(
            &named(packet, "buffers of 6 with packet loss BP <= Vegas"),
            "all",
            not_more(&bp, &vegas),
            (5.5, 6.0),
        )
        .because(more),
        Check::new(
            &named(packet, "buffers of 6 with packet loss FEC <= BP"),
            "all",
            not_more(&fec, &bp),
            (5.5, 6.0),
        )
        .because(more),
    ];
    for protocol in [VEGAS, BP, FEC, BP_AT_ONCE, FEC_AT_ONCE] {
        let what = format!("retransmission timeouts of {}, all buffers", PROTOCOLS[protocol].0);
        checks.push(Check::new(&named(packet, &what), paper, timeouts(protocol), (0.0, f64::MAX)));
    }
    checks
}

/// What it costs that every cell says whose it is.
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
