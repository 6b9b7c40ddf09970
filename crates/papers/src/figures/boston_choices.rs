//! The choices that TCP Boston's paper leaves open, one after the other: which of its orderings
//! each reverses. Figs 4 to 6 have the first of each.

use super::boston::{
    BP, BUFFERS, FEC, PACKETS, PROTOCOLS, VEGAS, chart, curve, mean_ratio, run_all,
};
use super::context::{Context, MS};
use super::{Check, Drawn, Figure, Table};
use holdfast_netsim::atm::{FlowControl, Outcome, Protocol, Repair, Scenario};

pub const FIGURE: Figure =
    Figure { id: "boston-choices", title: "TCP Boston: what the paper leaves open", draw };

/// Duration of a run in ns, less than a third of the paper's: enough to order protocols.
const DURATION_NS: u64 = 200_000 * MS;
const COMPARED: [usize; 3] = [VEGAS, BP, FEC];

/// A choice, and how it changes the scenario of the figures.
type Choice = (&'static str, fn(Scenario) -> Scenario);

const CHOICES: [Choice; 11] = [
    ("as in Figs 4 to 6", |it| it),
    ("all start within 1 s", |it| Scenario { jitter_ns: 1000 * MS, ..it }),
    ("all start within 100 s", |it| Scenario { jitter_ns: 100_000 * MS, ..it }),
    ("no random delay", |it| Scenario { is_delayed_at_random: false, ..it }),
    ("timer ticks of 10 ms", |it| Scenario { tick_ns: 10 * MS, ..it }),
    ("timer ticks of 500 ms", |it| Scenario { tick_ns: 500 * MS, ..it }),
    ("recovered cells do not count as lost", |it| Scenario { recovered_is_lost: false, ..it }),
    ("nothing interleaved", |it| Scenario { protocol: in_order(it.protocol), ..it }),
    ("repairs at once", |it| Scenario { protocol: at_once(it.protocol), ..it }),
    ("2 bytes of each cell name it", |it| Scenario { cell_id_bytes: 2, ..it }),
    ("over Reno", |it| Scenario { flow_control: FlowControl::Reno, ..it }),
];

fn in_order(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Boston { first, retransmit, repair, .. } => {
            Protocol::Boston { first, retransmit, repair, interleaved: false }
        }
        Protocol::Tcp => protocol,
    }
}

fn at_once(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Boston { first, retransmit, interleaved, .. } => {
            Protocol::Boston { first, retransmit, interleaved, repair: Repair::AtOnce }
        }
        Protocol::Tcp => protocol,
    }
}

/// A number of a run that is compared.
type Number = fn(&Outcome) -> f64;
/// A number over the buffers.
type Series = [f64; BUFFERS.len()];

/// Outcomes of the protocols for a packet size under a choice, each over all buffers.
struct Compared<'a>(&'a [Outcome]);

impl Compared<'_> {
    fn series(&self, protocol: usize, of: Number) -> Series {
        std::array::from_fn(|buffer| of(&self.0[protocol * BUFFERS.len() + buffer]))
    }

    fn ratio(&self, ours: usize, theirs: usize, of: Number) -> f64 {
        mean_ratio(&self.series(ours, of), &self.series(theirs, of))
    }
}

const NUMBERS: [(&str, Number); 4] = [
    ("goodput", Outcome::goodput_mbps),
    ("response", |it| it.by_connection().mean_s),
    ("deviation", |it| it.by_connection().deviation_s),
    ("missed", |it| it.by_connection().missed_share),
];
const GOODPUT: usize = 0;
const RESPONSE: usize = 1;
const DEVIATION: usize = 2;
const MISSED: usize = 3;

fn draw(context: &Context) -> Drawn {
    let mut scenarios = Vec::new();
    for (_, choose) in CHOICES {
        for (packet_bytes, deadline_ns) in PACKETS {
            for protocol in COMPARED {
                scenarios.extend(BUFFERS.map(|buffer_cells| {
                    choose(Scenario {
                        seed: context.seed(),
                        protocol: PROTOCOLS[protocol].1,
                        packet_bytes,
                        deadline_ns,
                        buffer_cells,
                        duration_ns: DURATION_NS,
                        ..Scenario::PAPER
                    })
                }));
            }
        }
    }
    let outcomes = run_all(&scenarios);
    let compared: Vec<Compared<'_>> =
        outcomes.chunks(COMPARED.len() * BUFFERS.len()).map(Compared).collect();
    let charts = (0..PACKETS.len()).map(|packet| responses(&compared, packet)).collect();
    Drawn { charts, table: table(&compared), checks: checks(&compared) }
}

fn responses(compared: &[Compared<'_>], packet: usize) -> holdfast_report::plot::Chart {
    let lines = CHOICES.iter().enumerate().map(|(choice, (name, _))| {
        let it = &compared[choice * PACKETS.len() + packet];
        let of = NUMBERS[RESPONSE].1;
        let (bp, vegas) = (it.series(BP, of), it.series(VEGAS, of));
        let ratios: Series = std::array::from_fn(|it| bp[it] / vegas[it]);
        curve(&format!("{choice} {name}"), &ratios)
    });
    chart(packet, "response BP : Vegas", lines.collect())
}

fn table(compared: &[Compared<'_>]) -> Table {
    let mut columns = vec!["choice", "packet_bytes", "protocol", "buffer_cells"];
    columns.extend(NUMBERS.map(|(name, _)| name));
    let mut table = Table::new(&columns);
    for (number, it) in compared.iter().enumerate() {
        for protocol in COMPARED {
            let series = NUMBERS.map(|(_, of)| it.series(protocol, of));
            for (buffer, cells) in BUFFERS.iter().enumerate() {
                let bytes = PACKETS[number % PACKETS.len()].0;
                let mut row = vec![(number / PACKETS.len()) as f64, f64::from(bytes)];
                row.extend([protocol as f64, f64::from(*cells)]);
                row.extend(series.map(|it| it[buffer]));
                table.rows.push(row);
            }
        }
    }
    table
}

fn checks(compared: &[Compared<'_>]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (number, it) in compared.iter().enumerate() {
        let choice = CHOICES[number / PACKETS.len()].0;
        let bytes = PACKETS[number % PACKETS.len()].0;
        for (what, ours, theirs, of) in [
            ("goodput Vegas : BP", VEGAS, BP, GOODPUT),
            ("response BP : Vegas", BP, VEGAS, RESPONSE),
            ("response FEC : BP", FEC, BP, RESPONSE),
            ("deviation BP : Vegas", BP, VEGAS, DEVIATION),
            ("missed BP : Vegas", BP, VEGAS, MISSED),
        ] {
            let ratio = it.ratio(ours, theirs, NUMBERS[of].1);
            let what = format!("{choice}, {bytes} B: {what}");
            checks.push(Check::new(&what, "at most 1", ratio, (0.0, 1.001)));
        }
    }
    checks
}
