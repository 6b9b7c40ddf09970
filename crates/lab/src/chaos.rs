//! `holdfast-lab chaos`: fault after fault, of every kind, alone or in pairs,
//! on pairs of real servers under real loads, all drawn from one seed. Every
//! stream is checked; each fault is one line, and each line can be replayed.

use crate::bench::faults::FaultKind;
use crate::bench::takeover::{Outcome, TakeoverArgs, failure, one_takeover};
use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum as _};
use holdfast_chance::Rng;
use holdfast_report::plot::{Chart, Line, stacked};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Span in which a second fault follows, in ms.
const SECOND_WITHIN_MS: u64 = 1000;

/// Options that set the clients' workload, one of which is drawn for each round.
const WORKLOADS: [&str; 13] = [
    "--workload pingpong --connections 1",
    "--workload incr",
    "--workload shared --connections 8",
    "--workload echo",
    "--workload upload",
    "--workload download",
    "--workload churn --connections 8",
    "--workload pubsub",
    "--workload mqtt",
    "--workload http-keepalive --server lighttpd",
    "--workload http-close --server nginx",
    "--workload memcached --server memcached-4",
    "--workload http-keepalive --server python",
];

/// Options that set what disturbs packets, one of which is drawn for each round; often nothing does.
const PATHS: [&str; 5] = ["", "", "--client-path wan", "--primary-loss 1%", "--channel-loss 5%"];

/// Options of the chaos run.
#[derive(Args, Clone, Debug)]
pub struct ChaosArgs {
    /// Print one JSON object at the end, and nothing before it.
    #[arg(long)]
    pub json: bool,
    /// How long it goes on.
    #[arg(long, default_value_t = 5)]
    pub minutes: u64,
    /// Determines every fault and every load.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the plot of the stalls goes, an SVG file.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Keep the daemons' logs of violations in this directory.
    #[arg(long)]
    pub keep_logs: Option<PathBuf>,
}

/// Results of one round: a fresh pair, and one fault or two.
#[derive(Clone, Debug, Serialize)]
struct Round {
    /// The command that replays the round.
    command: String,
    /// The violation, if there was one.
    violation: Option<String>,
    stall_ms: f64,
    connections: usize,
    /// Whether both members were hit and the service stopped.
    stopped: bool,
}

#[derive(Debug, Serialize)]
struct ChaosReport {
    bench: &'static str,
    seed: u64,
    minutes: u64,
    violations: usize,
    rounds: Vec<Round>,
}

/// Runs faults until the time is over.
///
/// # Errors
/// When a pair cannot be built, or the plot not be written. A violation is no
/// error but exit code 1.
pub fn run(args: &ChaosArgs) -> Result<ExitCode> {
    let until = Instant::now() + Duration::from_secs(60 * args.minutes);
    let mut rounds = Vec::new();
    while Instant::now() < until {
        let seed = args.seed.wrapping_add(rounds.len() as u64);
        let words = draw(&mut Rng::of_state(seed));
        let mut takeover = TakeoverArgs::of_words(&words)?;
        takeover.keep_logs.clone_from(&args.keep_logs);
        let command = format!("holdfast-lab bench takeover {words} --runs 1 --seed {seed}");
        let round = match one_takeover(&takeover, seed) {
            Ok(outcome) => Round::of(command, &outcome),
            Err(error) => Round::untried(command, &error),
        };
        if !args.json {
            println!("{}", round.line());
        } else if round.violation.is_some() {
            // The line is printed at once, since the report at the end may never come.
            eprintln!("{}", round.line());
        }
        rounds.push(round);
    }
    if let Some(path) = &args.output {
        let text = stacked(&[chart(&rounds)]);
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let violations = rounds.iter().filter(|round| round.violation.is_some()).count();
    let (bench, count) = ("chaos", rounds.len());
    let report = ChaosReport { bench, seed: args.seed, minutes: args.minutes, violations, rounds };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("chaos: {count} rounds, {violations} violations");
    }
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Draws the options of one round.
fn draw(rng: &mut Rng) -> String {
    let kinds = FaultKind::value_variants();
    let mut fault = || {
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    let (first, second) = (fault(), fault());
    let mut words = vec![format!("--fault {first}")];
    if rng.chance(0.4) {
        let later_ms = rng.below(SECOND_WITHIN_MS);
        words.push(format!("--second {second} --second-after-ms {later_ms}"));
    }
    for axis in [&WORKLOADS[..], &["", "--ipv6"], &PATHS] {
        words.push(axis[rng.below(axis.len() as u64) as usize].to_owned());
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

impl Round {
    /// A round whose group did not start, or whose load did not.
    fn untried(command: String, error: &anyhow::Error) -> Self {
        let violation = Some(format!("{error:#}"));
        Self { command, violation, stall_ms: 0.0, connections: 0, stopped: false }
    }

    fn of(command: String, outcome: &Outcome) -> Self {
        let report = &outcome.report;
        Self {
            command,
            violation: failure(outcome),
            stall_ms: report.stall_ns() as f64 / 1e6,
            connections: report.connections.len(),
            stopped: outcome.may_stop && !report.all_survived(),
        }
    }

    fn line(&self) -> String {
        let result = match &self.violation {
            Some(violation) => format!("VIOLATION: {violation}"),
            None if self.stopped => "stopped, without a wrong byte".to_owned(),
            None => format!("{} connections, stall {:.1} ms", self.connections, self.stall_ms),
        };
        format!("{}   # {result}", self.command)
    }
}

/// A plot of the stalls of the rounds that survived, in their order.
fn chart(rounds: &[Round]) -> Chart {
    let survived = rounds.iter().enumerate().filter(|(_, round)| !round.stopped);
    let points = survived.map(|(index, round)| (index as f64, round.stall_ms)).collect();
    Chart {
        title: format!("Longest stall of any client, {} rounds of chaos", rounds.len()),
        x_name: "round".to_owned(),
        y_name: "ms".to_owned(),
        x_range: (0.0, rounds.len() as f64),
        lines: vec![Line { name: "stall".to_owned(), points, ..Line::default() }],
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_a_command_that_can_be_given() {
        for seed in 0..500 {
            let words = draw(&mut Rng::of_state(seed));
            assert!(TakeoverArgs::of_words(&words).is_ok(), "{words}");
            assert_eq!(words, draw(&mut Rng::of_state(seed)));
        }
    }
}
