//! `holdfast-lab life`: years of a group's life in hours. One seed draws real loads, hostile
//! clients, faults, pressure on the machine, joins that heal the group, repairs and restarts of
//! every daemon, in every order. After each step the lab compares what it knows with what the
//! clients got, with what `status` says on every host, and with what the daemons still hold.
//!
//! A life is one group from its first start to its last step. What a life does
//! depends on its seed alone, so one line replays it.

mod act;
mod hostile;
mod judge;
mod leaks;
mod pressure;
mod protection;
mod step;

use crate::testbed::server::Program;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum as _};
use protection::Protection;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use step::Life;

/// Default number of steps in a life: enough for leaks to show, and few enough that every server
/// has its turn within the hour.
const STEPS_PER_LIFE: u64 = 120;

/// Options of the life of a group.
#[derive(Args, Clone, Debug)]
pub struct LifeArgs {
    /// Print one JSON object at the end, and each violation to stderr.
    #[arg(long)]
    pub json: bool,
    /// How long it goes on, besides the minutes.
    #[arg(long, default_value_t = 0)]
    pub hours: u64,
    /// How long it goes on.
    #[arg(long, default_value_t = 0)]
    pub minutes: u64,
    /// How many steps, instead of a time: what a replay gives.
    #[arg(long, conflicts_with_all = ["hours", "minutes"])]
    pub steps: Option<u64>,
    /// Steps until a new group begins anew, with the next seed and another server.
    #[arg(long, default_value_t = STEPS_PER_LIFE)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub steps_per_life: u64,
    /// How long a group that is protected is left alone after each step, s.
    #[arg(long, default_value_t = 0)]
    pub rest_s: u64,
    /// Determines every step of every life.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The server of every life, instead of a drawn one.
    #[arg(long, value_enum)]
    pub server: Option<Program>,
    /// Time between two heartbeats, ms; without it, the default.
    #[arg(long)]
    pub heartbeat_ms: Option<u64>,
    /// Let the clock of this machine jump, by up to an hour and back: not where
    /// anybody else needs it.
    #[arg(long)]
    pub jump_clock: bool,
    /// Keep the daemons' logs of violations in this directory.
    #[arg(long)]
    pub keep_logs: Option<PathBuf>,
}

impl LifeArgs {
    /// The options that a replay needs besides the seed and the number of steps.
    fn replayed(&self) -> String {
        let mut words = String::new();
        if let Some(server) = self.server.and_then(|it| it.to_possible_value()) {
            words += &format!(" --server {}", server.get_name());
        }
        if let Some(ms) = self.heartbeat_ms {
            words += &format!(" --heartbeat-ms {ms}");
        }
        if self.jump_clock {
            words += " --jump-clock";
        }
        if self.rest_s > 0 {
            words += &format!(" --rest-s {}", self.rest_s);
        }
        if self.steps_per_life != STEPS_PER_LIFE {
            words += &format!(" --steps-per-life {}", self.steps_per_life);
        }
        words
    }
}

/// One step, and what was wrong after it.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The command that replays the step, with all steps before it.
    pub command: String,
    /// What was done.
    pub what: String,
    /// What the clients did meanwhile.
    pub load: String,
    /// Laws that were broken; a life ends with the first.
    pub violations: Vec<String>,
    /// Number of connections that were checked.
    pub connections: usize,
    /// Time from the deed until every host's status was true again, in ms.
    pub truth_ms: u64,
}

/// Results of all lives.
#[derive(Debug, Serialize)]
struct LifeReport {
    bench: &'static str,
    seed: u64,
    lives: u64,
    steps: usize,
    takeovers: u64,
    repairs: u64,
    /// Number of members that joined.
    joins: usize,
    /// Median time that the group was without a backup before a join, in ms.
    heal_ms_median: u64,
    /// Longest time that the group was without a backup before a join, in ms.
    heal_ms_max: u64,
    /// Percentage of the time in which the group was protected.
    protected_percent: f64,
    connections: u64,
    violations: usize,
    /// Steps with violations, in full.
    failed: Vec<StepReport>,
    minutes: f64,
}

/// When the run stops.
#[derive(Clone, Copy)]
struct Until {
    time: Option<Instant>,
    steps: Option<u64>,
}

impl Until {
    fn of(args: &LifeArgs) -> Result<Self> {
        let minutes = args.hours * 60 + args.minutes;
        ensure!(
            args.steps.is_some() || minutes > 0,
            "how long shall it live? give --steps, --minutes or --hours"
        );
        let time = args.steps.is_none().then(|| Instant::now() + Duration::from_secs(60 * minutes));
        Ok(Self { time, steps: args.steps })
    }

    fn is_over(self, steps: usize) -> bool {
        self.time.is_some_and(|time| Instant::now() >= time)
            || self.steps.is_some_and(|limit| steps as u64 >= limit)
    }
}

/// Runs lives until the time is over.
///
/// # Errors
/// When no group can be built at all. A violation is no error but exit code 1.
pub fn run(args: &LifeArgs) -> Result<ExitCode> {
    let (until, started) = (Until::of(args)?, Instant::now());
    let mut report = LifeReport {
        bench: "life",
        seed: args.seed,
        lives: 0,
        steps: 0,
        takeovers: 0,
        repairs: 0,
        joins: 0,
        heal_ms_median: 0,
        heal_ms_max: 0,
        protected_percent: 0.0,
        connections: 0,
        violations: 0,
        failed: Vec::new(),
        minutes: 0.0,
    };
    let mut protection = Protection::default();
    while !until.is_over(report.steps) {
        let seed = args.seed.wrapping_add(report.lives);
        report.lives += 1;
        protection.add(&live(args, seed, until, &mut report)?);
    }
    (report.joins, report.heal_ms_median, report.heal_ms_max) = protection.heals();
    report.protected_percent = protection.percent();
    report.minutes = started.elapsed().as_secs_f64() / 60.0;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(if report.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl LifeReport {
    /// Prints two lines for people.
    fn print(&self) {
        println!(
            "life: {} steps of {} groups, {} takeovers, {} repairs, {} connections, {} violations, {:.1} minutes",
            self.steps,
            self.lives,
            self.takeovers,
            self.repairs,
            self.connections,
            self.violations,
            self.minutes
        );
        println!(
            "protected {:.1} % of the time; {} joins, each after {} ms (median), {} at most",
            self.protected_percent, self.joins, self.heal_ms_median, self.heal_ms_max
        );
    }
}

/// Runs one group from its first start to its last step or its first violation.
fn live(args: &LifeArgs, seed: u64, until: Until, report: &mut LifeReport) -> Result<Protection> {
    let testbed = Life::testbed()?;
    let mut life = Life::begin(&testbed, args, seed)?;
    for number in 1..=args.steps_per_life {
        if until.is_over(report.steps) {
            break;
        }
        let step = life.step(number);
        report.steps += 1;
        report.connections += step.connections as u64;
        tell(args, &step);
        let broken = !step.violations.is_empty();
        if broken {
            report.violations += 1;
            report.failed.push(step);
            life.keep_logs(args)?;
            break;
        }
    }
    report.takeovers += life.takeovers();
    report.repairs += life.repairs();
    Ok(life.end())
}

/// Prints one line for a step: what was done, and how it ended.
fn tell(args: &LifeArgs, step: &StepReport) {
    let result = match step.violations.as_slice() {
        [] => format!("{} connections, true after {} ms", step.connections, step.truth_ms),
        broken => format!("VIOLATION: {}\n  {}", broken.join("; "), step.command),
    };
    let line = format!("{} | {}   # {result}", step.what, step.load);
    if !args.json {
        println!("{line}");
    } else if !step.violations.is_empty() {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LifeArgs,
    }

    fn parse(words: &str) -> Result<LifeArgs, clap::Error> {
        let line = format!("life --steps 3{words}");
        Line::try_parse_from(line.split_whitespace()).map(|line| line.args)
    }

    #[test]
    fn a_replay_says_all_that_was_asked_for() {
        assert_eq!(parse("").unwrap().replayed(), "");
        let all = " --server nginx --heartbeat-ms 10 --jump-clock --rest-s 5 --steps-per-life 500";
        assert_eq!(parse(all).unwrap().replayed(), all);
    }

    #[test]
    fn a_life_has_steps() {
        assert!(parse(" --steps-per-life 0").is_err());
        assert_eq!(parse(" --steps-per-life 1").unwrap().steps_per_life, 1);
    }
}
