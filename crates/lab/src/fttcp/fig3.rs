//! FT-TCP Fig. 3: throughput in each buffering mode, cold and hot. The paper has Samba, since
//! its many calls show the modes best; here it is a redis-server that gets values of 4 KiB
//! one at a time, and answers each three times.

use super::sides::{Rounds, Side, bars, kb_per_s, link, load_ms, median, rounds};
use crate::load::{Group, Workload};
use crate::testbed::server::Program;
use anyhow::Result;
use holdfast_papers::figures::{Check, Drawn, Effort, Measured, Table};
use holdfast_report::{Summary, progress};
use holdfast_wire::buffering::Buffering;

pub(super) const FIGURE: Measured =
    Measured { id: "fttcp-fig3", title: "FT-TCP: incoming throughput, by buffering mode", measure };

const ROUNDS: u64 = 2;

/// Bytes of a value.
const VALUE_BYTES: u64 = 4 << 10;

/// Throughput of the paper's Samba, in KB/s: clean TCP, then each mode cold and hot. Which bar
/// belongs to which mode follows from the text.
const PAPER: [(Side, f64); 7] = [
    (Side::Clean, 1035.61),
    (Side::cold(Buffering::Immediate), 1026.84),
    (Side::hot(Buffering::Immediate), 1026.01),
    (Side::cold(Buffering::Pr), 1024.48),
    (Side::hot(Buffering::Pr), 1028.21),
    (Side::cold(Buffering::Prs), 1016.39),
    (Side::hot(Buffering::Prs), 1015.67),
];

/// Throughput of a side in KB/s, by round.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) side: Side,
    pub(super) kb_per_s: Rounds,
}

fn measure(effort: &Effort) -> Result<Drawn> {
    let fresh = |side| Found { side, kb_per_s: Rounds::new() };
    let mut found: Vec<Found> = Side::all().into_iter().map(fresh).collect();
    let rounds = rounds(effort, ROUNDS);
    let progress = progress("fttcp-fig3", rounds * found.len() as u64);
    let group = Group {
        size_bytes: VALUE_BYTES,
        ..Group::usual(Workload::Upload, 1, Program::Redis.port())
    };
    for round in 0..rounds {
        for Found { side, kb_per_s: values } in &mut found {
            let (ms, seed) = (load_ms(effort), effort.seed + round);
            values.push(side.serve(link(), |service| kb_per_s(service, &group, ms, seed))?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(draw(&found))
}

pub(super) fn draw(found: &[Found]) -> Drawn {
    let mut table = Table::new(&["side", "kb_per_s", "min", "max", "paper_kb_per_s"]);
    let said = |side| PAPER.iter().find(|it| it.0 == side).map_or(f64::NAN, |it| it.1);
    for (index, it) in found.iter().enumerate() {
        let Summary { median, min, max } = Summary::of(&it.kb_per_s);
        table.rows.push(vec![index as f64, median, min, max, said(it.side)]);
    }
    let of = |it: &Found| (it.side.name(), vec![median(&it.kb_per_s)]);
    let sides: Vec<_> = found.iter().map(of).collect();
    let chart = bars("A stream of answered values, link of 10 Mbit/s", "KB/s", &[""], &sides);
    Drawn { charts: vec![chart], table, checks: checks(found) }
}

fn checks(found: &[Found]) -> Vec<Check> {
    let of =
        |side| found.iter().find(|it| it.side == side).map_or(f64::NAN, |it| median(&it.kb_per_s));
    let share = |side| of(side) / of(Side::Clean);
    let mut checks = Vec::new();
    for (side, kb_per_s) in PAPER.into_iter().skip(1) {
        let said = format!("{:.3}: {kb_per_s} of {} KB/s", kb_per_s / PAPER[0].1, PAPER[0].1);
        let what = format!("{} : clean TCP", side.name());
        checks.push(Check::new(&what, &said, share(side), (0.96, 1.01)));
    }
    for side in [Side::cold(Buffering::Commit), Side::hot(Buffering::Commit)] {
        let what = format!("{} : clean TCP", side.name());
        checks.push(Check::unsaid(&what, "(output commit is ours)", share(side)).because(
            "waits for the order of locks, too, of which a server of one thread has none",
        ));
    }
    let modes = [Buffering::Immediate, Buffering::Pr, Buffering::Prs];
    for (word, side) in [("cold", Side::cold as fn(_) -> _), ("hot", Side::hot as fn(_) -> _)] {
        let shares = modes.map(|mode| share(side(mode)));
        let least = shares.windows(2).map(|two| two[0] - two[1]).fold(f64::INFINITY, f64::min);
        let what = format!("{word}: the least step down from immediate to PR to PRS");
        checks.push(Check::new(&what, "falls with each step", least, (-0.01, 1.0)).because(
            "0.01 of clean TCP's is what rounds differ by; `fttcp-latency` tells modes apart",
        ));
    }
    for mode in modes {
        let words = match mode {
            Buffering::Pr => "hot is faster, unexplained",
            _ => "statistically indistinguishable",
        };
        let what = format!("{}, cold : hot", mode.word());
        let ours = of(Side::cold(mode)) / of(Side::hot(mode));
        checks.push(Check::new(&what, words, ours, (0.98, 1.02)));
    }
    checks
}
