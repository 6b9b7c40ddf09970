//! The paths: losses of the command line, and those of the matrix, in which ours must be nowhere
//! worse than none.

use super::cell::Delays;
use super::{Cell, Row};
use anyhow::{Context as _, Result, ensure};
use holdfast_report::units;

/// Workloads of the matrix, and the lanes that are compared in it.
pub const WORKLOADS: [&str; 2] = ["M", "B"];
pub const LANES: [&str; 7] = [
    "plain-udp",
    "plain-cubic",
    "plain-bbr",
    "ours",
    "ours-splice",
    "ours-tun-cubic",
    "ours-tun-bbr",
];

/// Ours, and what it must not be worse than.
const PAIRS: [(&str, &str); 5] = [
    ("ours", "plain-udp"),
    ("ours-splice", "plain-cubic"),
    ("ours-splice", "plain-bbr"),
    ("ours-tun-cubic", "plain-cubic"),
    ("ours-tun-bbr", "plain-bbr"),
];

/// Share of the plain goodput below which ours is worse: what rounds of one lane differ by.
const GOODPUT_NOISE: f64 = 0.95;
/// Deviations of a share that are chance.
const DEVIATIONS: f64 = 3.0;
/// Share of messages that a busy machine makes late.
const SHARE_NOISE: f64 = 0.002;
/// By how much the median may be later, ms: a tunnel's two programs.
const MEDIAN_NOISE_MS: f64 = 1.0;

/// A path, beside its delay, rate and queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub name: String,
    /// In the words of the emulator.
    pub words: String,
}

impl Path {
    /// `10%`, or `10%/3`: in runs of 3 packets on average.
    ///
    /// # Errors
    /// When it is neither.
    pub fn of_loss(text: &str, behind: bool) -> Result<Self> {
        let (share, run) = match text.split_once('/') {
            Some((share, run)) => (share, run.parse::<f64>().ok()),
            None => (text, Some(1.0)),
        };
        let example = || format!("`{text}` is no loss, for example 10% or 10%/3");
        let mean = units::share(share).with_context(example)?;
        let run = run.filter(|it| *it >= 1.0 && mean < 1.0).with_context(example)?;
        let keyword = if behind { "loss-behind" } else { "loss" };
        let words = if text.contains('/') {
            // A run ends with 1 in its length, and so many begin that the mean is right.
            let (to_good, to_bad) = (1.0 / run, mean / (1.0 - mean) / run);
            ensure!(to_bad <= 1.0, "{}", example());
            format!("{keyword} gemodel {}% {}%", to_bad * 100.0, to_good * 100.0)
        } else {
            format!("{keyword} {share}")
        };
        Ok(Self { name: format!("loss {text}"), words })
    }

    fn of_words(words: &str) -> Self {
        Self { name: words.to_owned(), words: words.to_owned() }
    }
}

/// All paths of the matrix.
pub fn matrix() -> Vec<Path> {
    let losses = ["0%", "1%", "3%", "5%", "10%", "20%", "30%", "10%/3", "10%/10"];
    let losses = losses.iter().filter_map(|it| Path::of_loss(it, false).ok());
    let others = [
        "reorder 1%",
        "reorder 5%",
        "jitter 1ms",
        "jitter 5ms",
        "outage 100ms every 4s",
        "outage 1s every 5s",
        "outage 5s every 9s",
    ];
    losses.chain(others.map(Path::of_words)).collect()
}

/// Where ours is worse than none in a cell.
pub fn worse(cell: &Cell) -> Vec<String> {
    let row = |name: &str| cell.rows.iter().find(|row| row.lane == name);
    let mut found = Vec::new();
    for (ours, plain) in PAIRS {
        let (Some(our), Some(other)) = (row(ours), row(plain)) else { continue };
        let reason = our.failed.clone().or_else(|| why_worse(our, other));
        found.extend(reason.map(|why| {
            format!("{} over {}: {ours} beside {plain}: {why}", cell.workload, cell.path)
        }));
    }
    found
}

fn why_worse(ours: &Row, plain: &Row) -> Option<String> {
    let goodput = |row: &Row| row.median(|it| it.goodput_mbit_per_s);
    if let (Some(our), Some(other)) = (goodput(ours), goodput(plain))
        && our < other * GOODPUT_NOISE
    {
        return Some(format!("{our:.2} instead of {other:.2} Mbit/s"));
    }
    let count = ours.rounds.iter().filter_map(|it| it.delays.as_ref()).map(|it| it.count).sum();
    let shares: [fn(&Delays) -> f64; 3] = [|it| it.lost, |it| it.late_soon, |it| it.late_now];
    for (name, share) in
        ["lost", "later than a repair takes", "later than the budget"].iter().zip(shares)
    {
        let of = |row: &Row| row.median(|it| it.delays.as_ref().map(share));
        if let (Some(our), Some(other)) = (of(ours), of(plain))
            && our > other + DEVIATIONS * deviation(other.max(our), count) + SHARE_NOISE
        {
            return Some(format!("{:.2} % {name} instead of {:.2} %", our * 100.0, other * 100.0));
        }
    }
    let p50 = |row: &Row| row.median(|it| it.delays.as_ref().and_then(|it| it.p50_ms));
    match (p50(ours), p50(plain)) {
        (Some(our), Some(other)) if our > other + MEDIAN_NOISE_MS => {
            Some(format!("a median of {our:.1} instead of {other:.1} ms"))
        }
        _ => None,
    }
}

/// Of a share that was found in so many trials.
fn deviation(share: f64, count: usize) -> f64 {
    (share * (1.0 - share) / count.max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::cell::Round;
    use super::*;
    use crate::emu::{EmuSpec, WireCounts};
    use holdfast_netsim::net::loss::LossModel;

    fn row(lane: &'static str, goodput: f64, lost: f64) -> Row {
        let delays = Delays { count: 1000, p50_ms: Some(10.0), lost, ..Delays::default() };
        let round = Round {
            delays: Some(delays),
            goodput_mbit_per_s: Some(goodput),
            object_ms: None,
            wire_bytes_per_byte: 1.0,
            cpu_us_per_packet: [0.0; 2],
            seen: WireCounts::default(),
        };
        Row { lane, rounds: vec![round], failed: None }
    }

    fn cell(rows: Vec<Row>) -> Cell {
        let (path, words) = ("loss 1%".to_owned(), String::new());
        Cell { workload: "M", about: "", path, words, deadlines_ms: [12.0, 33.0], rows }
    }

    #[test]
    fn losses_are_read_and_have_the_mean_that_they_say() {
        assert_eq!(Path::of_loss("5%", false).unwrap().words, "loss 5%");
        assert_eq!(Path::of_loss("5%", true).unwrap().words, "loss-behind 5%");
        let path = Path::of_loss("10%/3", false).unwrap();
        let spec: EmuSpec = path.words.parse().unwrap();
        assert!((spec.bursts.mean() - 0.1).abs() < 1e-9, "{:?}", spec.bursts);
        assert!(matches!(spec.bursts, LossModel::GilbertElliott { .. }));
        for wrong in ["10", "10%/x", "10%/0", "100%/3", "90%/2", ""] {
            assert!(Path::of_loss(wrong, false).is_err(), "{wrong}");
        }
        for path in matrix() {
            path.words.parse::<EmuSpec>().unwrap();
        }
    }

    #[test]
    fn only_what_is_no_chance_is_worse() {
        assert!(worse(&cell(vec![row("plain-udp", 9.0, 0.1), row("ours", 9.0, 0.11)])).is_empty());
        let found = worse(&cell(vec![row("plain-udp", 9.0, 0.0), row("ours", 9.0, 0.05)]));
        assert!(found[0].contains("5.00 % lost instead of 0.00 %"), "{found:?}");
        let slow = vec![row("plain-cubic", 9.0, 0.0), row("ours-splice", 8.0, 0.0)];
        assert!(worse(&cell(slow))[0].contains("8.00 instead of 9.00 Mbit/s"));
    }
}
