//! The rest of TCP Boston's grid: all packets, windows and buffers, both flow
//! controls, all discard policies, one switch and three in a row.

use super::boston::{BUFFERS, chart, curve, run_all};
use super::context::Context;
use super::{Check, Drawn, Figure, Table};
use holdfast_netsim::atm::{FlowControl, Outcome, Policy, Protocol, Repair, Scenario};

pub const FIGURE: Figure =
    Figure { id: "boston-sweep", title: "TCP Boston: the grid, with SCD and EPD", draw };

const PACKETS: [u32; 4] = [576, 1500, 4470, 9180];
const WINDOWS_KB: [u32; 4] = [8, 16, 32, 64];
/// Duration of a run in ns, a tenth of the paper's: enough to order schemes.
const DURATION_NS: u64 = 70_000_000_000;
/// Early Packet Discard with the threshold of Jain's group; Romanow and Floyd leave it open.
const EPD: Policy = Policy::EpdThreshold(0.8);

const BP: Protocol = Protocol::boston_bp(Repair::WithRetransmission);
const FEC: Protocol = Protocol::boston_fec(Repair::WithRetransmission);

/// Schemes that are compared: protocol, policy, and bytes of identification in a cell.
const SCHEMES: [(&str, Protocol, Policy, u32); 8] = [
    ("TCP", Protocol::Tcp, Policy::Ubr, 0),
    ("TCP, SCD", Protocol::Tcp, Policy::Scd, 0),
    ("TCP, EPD (threshold)", Protocol::Tcp, EPD, 0),
    ("TCP, EPD (the paper's)", Protocol::Tcp, Policy::EpdPurge, 0),
    ("Boston-BP", BP, Policy::Ubr, 0),
    ("Boston-FEC", FEC, Policy::Ubr, 0),
    ("Boston-BP, cells with 2 bytes of identification", BP, Policy::Ubr, 2),
    ("Boston-BP, repairs at once", Protocol::boston_bp(Repair::AtOnce), Policy::Ubr, 0),
];
const CONTROLS: [FlowControl; 2] = [FlowControl::Vegas, FlowControl::Reno];
const SWITCHES: [u16; 2] = [1, 3];

/// A point of the grid, in the order of the table.
struct Point {
    scheme: usize,
    control: usize,
    scenario: Scenario,
}

fn grid(seed: u64) -> Vec<Point> {
    let mut points = Vec::new();
    for packet_bytes in PACKETS {
        for window_kb in WINDOWS_KB {
            for switches in SWITCHES {
                // Rows of several switches are compared with the largest windows only.
                if switches > 1 && window_kb < 64 {
                    continue;
                }
                for (scheme, (_, protocol, policy, cell_id_bytes)) in SCHEMES.iter().enumerate() {
                    for (control, flow_control) in CONTROLS.into_iter().enumerate() {
                        points.extend(BUFFERS.map(|buffer_cells| {
                            let scenario = Scenario {
                                seed,
                                protocol: *protocol,
                                policy: *policy,
                                cell_id_bytes: *cell_id_bytes,
                                flow_control,
                                switches,
                                packet_bytes,
                                window_bytes: window_kb << 10,
                                buffer_cells,
                                duration_ns: DURATION_NS,
                                ..Scenario::PAPER
                            };
                            Point { scheme, control, scenario }
                        }));
                    }
                }
            }
        }
    }
    points
}

fn draw(context: &Context) -> Drawn {
    let points = grid(context.seed());
    let scenarios: Vec<Scenario> = points.iter().map(|it| it.scenario).collect();
    let outcomes = run_all(&scenarios);
    let mut table = Table::new(&[
        "packet_bytes",
        "window_kb",
        "switches",
        "scheme",
        "reno",
        "buffer_cells",
        "goodput_mbps",
        "response_s",
        "packet_loss",
        "timeouts",
        "fairness",
    ]);
    for (point, it) in points.iter().zip(&outcomes) {
        let scenario = &point.scenario;
        table.rows.push(vec![
            f64::from(scenario.packet_bytes),
            f64::from(scenario.window_bytes >> 10),
            f64::from(scenario.switches),
            point.scheme as f64,
            point.control as f64,
            f64::from(scenario.buffer_cells),
            it.goodput_mbps(),
            it.by_connection().mean_s,
            it.packet_loss(),
            it.timeouts() as f64,
            it.fairness(),
        ]);
    }
    let charts = CONTROLS.iter().enumerate().map(|(control, flow_control)| {
        let drawn = SCHEMES.iter().enumerate().filter(|(_, it)| it.3 == 0);
        let lines = drawn.map(|(scheme, (name, ..))| {
            let of = |it: &&(&Point, &Outcome)| {
                let (point, scenario) = (it.0, &it.0.scenario);
                (point.scheme, point.control) == (scheme, control)
                    && (scenario.packet_bytes, scenario.window_packets()) == (9180, 7)
                    && scenario.switches == 1
            };
            let all: Vec<(&Point, &Outcome)> = points.iter().zip(&outcomes).collect();
            let found: Vec<f64> = all.iter().filter(of).map(|it| it.1.goodput_mbps()).collect();
            let values = std::array::from_fn(|it| found.get(it).copied().unwrap_or(f64::NAN));
            curve(&format!("{scheme} {name}"), &values)
        });
        chart(1, &format!("goodput over {flow_control:?}, Mb/s"), lines.collect())
    });
    Drawn { charts: charts.collect(), checks: checks(&points, &outcomes), table }
}

/// Mean goodput of a scheme over the grid, for a flow control and a number of switches.
fn goodput(
    points: &[Point],
    outcomes: &[Outcome],
    scheme: usize,
    control: usize,
    switches: u16,
) -> f64 {
    let of = |it: &(&Point, &Outcome)| {
        (it.0.scheme, it.0.control, it.0.scenario.switches) == (scheme, control, switches)
    };
    let found: Vec<f64> =
        points.iter().zip(outcomes).filter(of).map(|it| it.1.goodput_mbps()).collect();
    found.iter().sum::<f64>() / found.len() as f64
}

fn checks(points: &[Point], outcomes: &[Outcome]) -> Vec<Check> {
    let mut checks = Vec::new();
    for switches in SWITCHES {
        for (control, flow_control) in CONTROLS.iter().enumerate() {
            let of = |scheme| goodput(points, outcomes, scheme, control, switches);
            let plain = of(0);
            let mut compare = |scheme: usize, over: f64, name: &str, paper: &str, limit: f64| {
                let what = format!(
                    "{switches} switch(es), {flow_control:?}: goodput of {} over {name}",
                    SCHEMES[scheme].0
                );
                checks.push(Check::new(&what, paper, of(scheme) / over, (limit, 10.0)));
            };
            compare(1, plain, "UBR", "higher ([23])", 1.0);
            compare(2, plain, "UBR", "higher ([23])", 1.0);
            compare(3, plain, "UBR", "higher ([23])", 1.0);
            compare(4, plain, "TCP", "higher", 1.0);
            compare(4, of(2), "TCP, EPD (threshold)", "(superior)", 1.0);
            compare(4, of(3), "TCP, EPD (the paper's)", "(superior)", 1.0);
            compare(6, of(4), "that without", "(not mentioned)", 0.9);
        }
    }
    checks
}
