//! FT-TCP Fig. 2 and §5.2: throughput of a bulk transfer in both directions and of a paced
//! stream; and how many clients of 50 KB/s a link carries.

use super::sides::{LINK_BITS_PER_S, Rounds, Side, bars, kb_per_s, link, load_ms, median, rounds};
use crate::bench::service::Service;
use crate::load::{Group, Workload};
use crate::testbed::server::Program;
use anyhow::Result;
use holdfast_papers::figures::{Check, Drawn, Effort, Measured, Table};
use holdfast_report::plot::{Chart, Line, Mark};
use holdfast_report::progress;

pub(super) const FIGURE: Measured = Measured {
    id: "fttcp-fig2",
    title: "FT-TCP: throughput with and without it, and concurrent clients",
    measure,
};

const ROUNDS: u64 = 2;

/// Bytes of a bulk transfer's values.
const BULK_BYTES: u64 = 8 << 10;
/// Number of a bulk transfer's values that are under way.
const BULK_DEPTH: usize = 16;

/// Bytes of each of the stream's values, ten a second: the paper's streaming server (DSS) throttles
/// itself to 20.13 KB/s.
const STREAM_BYTES: u64 = 2_013;
/// Bytes of each of a client's values, ten a second: 50 KB/s.
const CLIENT_BYTES: u64 = 5_000;
/// Time between two values of a paced stream, in µs.
const INTERVAL_US: u64 = 100_000;

/// Numbers of clients that are measured, one after the other.
const CLIENTS: [usize; 5] = [5, 15, 20, 25, 30];
/// Numbers of clients that are measured in a quick run.
const QUICK_CLIENTS: [usize; 2] = [20, 30];

/// Bytes of a full frame.
const FRAME_BYTES: f64 = 1514.0;
/// Bytes of a full frame's payload, with timestamps.
const SEGMENT_BYTES: f64 = 1448.0;

/// Most application data that a link can carry, in KB/s.
const LINK_KB_PER_S: f64 = LINK_BITS_PER_S as f64 / 8e3 * SEGMENT_BYTES / FRAME_BYTES;

const NAMES: [&str; 3] = ["ttcp in", "ttcp out", "DSS"];

/// Throughput of a side, by round.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Throughput of the cases in the order of [`NAMES`], in KB/s.
    pub(super) cases: [Rounds; 3],
    /// Throughput of each client in KB/s, by the number of clients.
    pub(super) each: Vec<(usize, Rounds)>,
}

fn measure(effort: &Effort) -> Result<Drawn> {
    let clients: &[usize] = if effort.quick { &QUICK_CLIENTS } else { &CLIENTS };
    let fresh = || Found {
        each: clients.iter().map(|count| (*count, Rounds::new())).collect(),
        ..Found::default()
    };
    let mut found = Side::USUAL.map(|_| fresh());
    let rounds = rounds(effort, ROUNDS);
    let progress = progress("fttcp-fig2", rounds * Side::USUAL.len() as u64);
    for round in 0..rounds {
        for (side, found) in Side::USUAL.into_iter().zip(&mut found) {
            side.serve(link(), |service| take(service, effort, effort.seed + round, found))?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(draw(&found))
}

fn take(service: &Service<'_>, effort: &Effort, seed: u64, found: &mut Found) -> Result<()> {
    let port = Program::Redis.port();
    let bulk = |workload| Group {
        size_bytes: BULK_BYTES,
        depth: BULK_DEPTH,
        ..Group::usual(workload, 1, port)
    };
    let paced = |workload, count, size_bytes| Group {
        size_bytes,
        interval_us: INTERVAL_US,
        ..Group::usual(workload, count, port)
    };
    let cases = [
        bulk(Workload::Upload),
        bulk(Workload::Download),
        paced(Workload::Download, 1, STREAM_BYTES),
    ];
    for (case, values) in cases.iter().zip(&mut found.cases) {
        values.push(kb_per_s(service, case, load_ms(effort), seed)?);
    }
    for (count, values) in &mut found.each {
        let group = paced(Workload::Upload, *count, CLIENT_BYTES);
        values.push(kb_per_s(service, &group, load_ms(effort), seed)? / *count as f64);
    }
    Ok(())
}

pub(super) fn draw(found: &[Found; 3]) -> Drawn {
    let names = ["clean", "cold", "hot"];
    let mut table = Table::new(&["case", "clean_kb_per_s", "cold_kb_per_s", "hot_kb_per_s"]);
    for case in 0..NAMES.len() {
        let row = found.iter().map(|it| median(&it.cases[case]));
        table.rows.push(std::iter::once(case as f64).chain(row).collect());
    }
    // The rows after the cases are numbers of clients, with the throughput of each client.
    for index in 0..found[0].each.len() {
        let row = found.iter().map(|it| median(&it.each[index].1));
        table.rows.push(std::iter::once(found[0].each[index].0 as f64).chain(row).collect());
    }
    let sides: Vec<_> = names
        .iter()
        .zip(found)
        .map(|(name, it)| ((*name).to_owned(), it.cases.iter().map(|v| median(v)).collect()))
        .collect();
    let throughput =
        bars("Throughput on a link of 10 Mbit/s (Samba: not measured)", "KB/s", &NAMES, &sides);
    let lines = names.iter().zip(found).map(|(name, it)| Line {
        name: (*name).to_owned(),
        points: it.each.iter().map(|(count, v)| (*count as f64, median(v))).collect(),
        mark: Mark::Joined,
        ..Line::default()
    });
    let clients = Chart {
        title: "Clients that send 50 KB/s each".to_owned(),
        x_name: "clients".to_owned(),
        y_name: "KB/s of each".to_owned(),
        x_range: (0.0, found[0].each.iter().map(|it| it.0).max().unwrap_or(1) as f64 + 1.0),
        y_range: Some((0.0, 70.0)),
        lines: lines.collect(),
        ..Chart::default()
    };
    Drawn { charts: vec![throughput, clients], table, checks: checks(found) }
}

/// The paper's bars are a picture; what its text says of them is compared.
fn checks(found: &[Found; 3]) -> Vec<Check> {
    let [clean, cold, hot] = found;
    let case = |it: &Found, index: usize| median(&it.cases[index]);
    let mut checks = vec![
        Check::new(
            "ttcp in, clean TCP : what the link can carry",
            "97 %",
            case(clean, 0) / LINK_KB_PER_S,
            (0.9, 1.0),
        )
        .because("redis and 8 KiB SETs in the place of ttcp; a bucket of tc in that of Ethernet"),
    ];
    for (index, name) in [(0, "ttcp in"), (1, "ttcp out")] {
        for (side, word) in [(cold, "cold"), (hot, "hot")] {
            checks.push(Check::new(
                &format!("{name}, {word} : clean TCP"),
                "at least 0.982: the worst is 1.8 % less",
                case(side, index) / case(clean, index),
                (0.982, 1.05),
            ));
        }
        checks.push(Check::new(
            &format!("{name}, cold : hot"),
            "statistically indistinguishable",
            case(cold, index) / case(hot, index),
            (0.98, 1.02),
        ));
    }
    for (side, word, said) in
        [(clean, "clean TCP", "20.13"), (cold, "cold", "20.12"), (hot, "hot", "20.12")]
    {
        let what = format!("DSS-like stream, {word}, KB/s");
        checks.push(Check::new(&what, said, case(side, 2), (19.9, 20.3)));
    }
    let each = |it: &Found, clients: usize| {
        it.each.iter().find(|it| it.0 == clients).map_or(f64::NAN, |it| median(&it.1))
    };
    for (side, word) in [(clean, "clean TCP"), (cold, "cold"), (hot, "hot")] {
        let what = format!("each of 20 clients, {word}, KB/s");
        checks.push(Check::new(&what, "50", each(side, 20), (48.0, 51.0)));
    }
    for (side, word) in [(cold, "cold"), (hot, "hot")] {
        checks.push(
            Check::new(
                &format!("each of 30 clients, {word} : clean TCP"),
                "the link is the bottleneck",
                each(side, 30) / each(clean, 30),
                (0.95, 1.05),
            )
            .because(
                "Samba, in and out, is left out: its families of processes are not replicated",
            ),
        );
    }
    checks
}
