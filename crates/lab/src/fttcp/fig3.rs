//! FT-TCP Fig. 3: throughput in each buffering mode, cold and hot. The paper has Samba, since
//! its many calls show the modes best; here it is a redis-server that gets values of 4 KiB
//! one at a time, and answers each three times.

use super::sides::{Rounds, Side, bars, kb_per_s, link, load_ms, median, rounds};
use crate::load::{Group, Workload};
use crate::testbed::Shape;
use crate::testbed::server::Program;
use anyhow::Result;
use holdfast_papers::figures::{Check, Drawn, Effort, Measured, Table};
use holdfast_report::progress;
use holdfast_wire::buffering::Buffering;

pub(super) const FIGURE: Measured =
    Measured { id: "fttcp-fig3", title: "FT-TCP: incoming throughput, by buffering mode", measure };

const ROUNDS: u64 = 2;

/// Bytes of a value.
const VALUE_BYTES: u64 = 4 << 10;

/// The paper's Samba, KB/s: clean TCP, then each mode cold and hot. Which bar is whose follows
/// from what the text says of them.
const PAPER: [(Side, f64); 7] = [
    (Side::Clean, 1035.61),
    (Side::cold(Buffering::Immediate), 1026.84),
    (Side::hot(Buffering::Immediate), 1026.01),
    (Side::cold(Buffering::Pr), 1024.48),
    (Side::hot(Buffering::Pr), 1028.21),
    (Side::cold(Buffering::Prs), 1016.39),
    (Side::hot(Buffering::Prs), 1015.67),
];

/// A side's throughput by round, KB/s: on the paper's link, and where only the processors limit.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) side: Side,
    pub(super) link: Rounds,
    pub(super) free: Rounds,
}

fn measure(effort: &Effort) -> Result<Drawn> {
    let fresh = |side| Found { side, link: Rounds::new(), free: Rounds::new() };
    let mut found: Vec<Found> = Side::all().into_iter().map(fresh).collect();
    let rounds = rounds(effort, ROUNDS);
    let progress = progress("fttcp-fig3", rounds * found.len() as u64);
    let group = Group {
        size_bytes: VALUE_BYTES,
        ..Group::usual(Workload::Upload, 1, Program::Redis.port())
    };
    for round in 0..rounds {
        for Found { side, link: limited, free } in &mut found {
            let seed = effort.seed + round;
            for (shape, values) in [(link(), limited), (Shape::None, free)] {
                let ms = load_ms(effort);
                values.push(side.serve(shape, |service| kb_per_s(service, &group, ms, seed))?);
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(draw(&found))
}

pub(super) fn draw(found: &[Found]) -> Drawn {
    let columns =
        ["side", "link_kb_per_s", "link_min", "link_max", "free_kb_per_s", "paper_kb_per_s"];
    let mut table = Table::new(&columns);
    let said = |side| PAPER.iter().find(|it| it.0 == side).map_or(f64::NAN, |it| it.1);
    for (index, it) in found.iter().enumerate() {
        let ends = |pick: fn(f64, f64) -> f64| it.link.iter().copied().reduce(pick);
        let (low, high) = (ends(f64::min), ends(f64::max));
        table.rows.push(vec![
            index as f64,
            median(&it.link),
            low.unwrap_or(f64::NAN),
            high.unwrap_or(f64::NAN),
            median(&it.free),
            said(it.side),
        ]);
    }
    let chart = |title, pick: fn(&Found) -> &Rounds| {
        let of = |it: &Found| (it.side.name(), vec![median(pick(it))]);
        bars(title, "KB/s", &[""], &found.iter().map(of).collect::<Vec<_>>())
    };
    let charts = vec![
        chart("A stream of answered values, link of 10 Mbit/s", |it| &it.link),
        chart("The same, limited by processors alone", |it| &it.free),
    ];
    Drawn { charts, table, checks: checks(found) }
}

fn checks(found: &[Found]) -> Vec<Check> {
    let of = |side, pick: fn(&Found) -> &Rounds| {
        found.iter().find(|it| it.side == side).map_or(f64::NAN, |it| median(pick(it)))
    };
    let share = |side, pick| of(side, pick) / of(Side::Clean, pick);
    let mut checks = Vec::new();
    for (side, kb_per_s) in PAPER.into_iter().skip(1) {
        let said = format!("{:.3}: {kb_per_s} of {} KB/s", kb_per_s / PAPER[0].1, PAPER[0].1);
        let what = format!("{} : clean TCP", side.name());
        checks.push(Check::new(&what, &said, share(side, |it| &it.link), (0.96, 1.01)));
    }
    for side in [Side::cold(Buffering::Commit), Side::hot(Buffering::Commit)] {
        let what = format!("{} : clean TCP", side.name());
        checks.push(
            Check::unsaid(&what, "(output commit is ours)", share(side, |it| &it.link)).because(
                "waits for the order of locks, too, of which a server of one thread has none",
            ),
        );
    }
    let modes = [Buffering::Immediate, Buffering::Pr, Buffering::Prs];
    let falls = |of: fn(Buffering) -> Side| {
        let shares = modes.map(|mode| share(of(mode), |it: &Found| &it.free));
        let steps = shares.windows(2).map(|two| two[0] - two[1]);
        steps.fold(f64::INFINITY, f64::min)
    };
    for (word, side) in [("cold", Side::cold as fn(_) -> _), ("hot", Side::hot as fn(_) -> _)] {
        checks.push(
            Check::new(
                &format!("{word}: the least step from immediate to PR to PRS, of clean TCP's"),
                "falls with each step",
                falls(side),
                (-0.03, 1.0),
            )
            .because("without a limit of the link; 0.03 is what two rounds differ by here"),
        );
    }
    for mode in modes {
        let (cold, hot) = (Side::cold(mode), Side::hot(mode));
        let word = mode.word();
        let words =
            if mode == Buffering::Pr { "hot is faster, unexplained" } else { "indistinguishable" };
        let ours = of(cold, |it| &it.link) / of(hot, |it| &it.link);
        checks.push(Check::new(&format!("{word}, cold : hot"), words, ours, (0.98, 1.02)));
    }
    checks
}
