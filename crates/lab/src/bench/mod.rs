//! The benches. Each alternates between `clean` and `ours`, or between an event and none, on the
//! same topology in the same run, and prints medians with their extremes.

mod beside;
mod built;
mod busy;
mod channel;
mod check;
mod codec;
mod concurrency;
mod deaths;
mod edges;
mod emulator;
mod false_alarms;
pub(crate) mod faults;
pub(crate) mod heal;
mod latency;
mod ns3;
mod plans;
mod promotion;
pub(crate) mod recover;
mod redirect;
pub(crate) mod regulate;
pub(crate) mod service;
mod sim;
pub(crate) mod takeover;
mod throughput;
mod tunnel;

use crate::servers::heavy;
use crate::simulate;
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use std::process::ExitCode;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The primary breaks under load; do all connections survive, and how fast?
    Takeover(takeover::TakeoverArgs),
    /// A server or its host dies, behind HAProxy and in our pair: which connections end, and how
    /// long do clients wait that connect again at once?
    Deaths(deaths::DeathsArgs),
    /// A takeover with many connections: how long, and how much memory?
    Promotion(promotion::PromotionArgs),
    /// A member dies and is started again: how soon are both protected, and what do
    /// clients notice?
    Rejoin(heal::rejoin::RejoinArgs),
    /// A cold backup builds its server when the primary's dies: how long, for how much
    /// memory and log.
    Cold(heal::cold::ColdArgs),
    /// The members are swapped under load: how long do clients wait?
    Switchover(heal::switchover::SwitchoverArgs),
    /// All daemons of a pair are replaced by another build under load: who lives?
    Upgrade(heal::upgrade::UpgradeArgs),
    /// How often a healthy primary is replaced, idle and busy, and how fast a dead one.
    FalseAlarms(false_alarms::FalseAlarmArgs),
    /// Bytes and requests per second, protected and clean.
    Throughput(throughput::ThroughputArgs),
    /// Round trips and handshakes, protected and clean.
    Latency(latency::LatencyArgs),
    /// The members' channel over a path that loses packets, plain and coded: who stays protected?
    Channel(channel::ChannelArgs),
    /// Clients of 50 KB/s are added until the link is full.
    Concurrency(concurrency::ConcurrencyArgs),
    /// Servers of several processes under their own tools' load, protected and clean.
    Families(heavy::FamiliesArgs),
    /// One load without a fault: is every byte right?
    Check(check::CheckArgs),
    /// How many seeds of the cluster simulation a CPU-second runs.
    Simulate(simulate::SimulateBenchArgs),
    /// The erasure codec beside other crates.
    Codec(codec::CodecArgs),
    /// The packet simulator: CPU seconds, packet-hops and memory, beside ns-3's.
    Sim(sim::SimBenchArgs),
    /// An outage between two edges, with local recovery and without.
    Recover(recover::RecoverArgs),
    /// A string fails under many flows, with rate control and without.
    Regulate(regulate::RegulateArgs),
    /// The redirector beside the plain route, address translation and a proxy.
    Redirect(redirect::RedirectArgs),
    /// One of two edges breaks under load; do all connections live, and how long do they wait?
    Edges(edges::EdgesArgs),
    /// What the link emulator carries.
    Emu(emulator::EmulatorArgs),
    /// The coded tunnel beside none and beside others, over paths that lose packets.
    Tunnel(tunnel::TunnelArgs),
}

/// Runs a bench and prints its result.
///
/// # Errors
/// When it cannot be set up. A negative answer is the exit code 1.
pub fn run(command: BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Takeover(args) => {
            let report = takeover::run(&args)?;
            show(args.json, &report, takeover::TakeoverReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Deaths(args) => {
            let report = deaths::run(&args)?;
            show(args.json, &report, deaths::DeathsReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Promotion(args) => {
            let report = promotion::run(&args)?;
            show(args.json, &report, promotion::PromotionReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Cold(args) => {
            let report = heal::cold::run(&args)?;
            show(args.json, &report, heal::cold::ColdReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Rejoin(args) => {
            let report = heal::rejoin::run(&args)?;
            show(args.json, &report, heal::rejoin::RejoinReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Switchover(args) => {
            let report = heal::switchover::run(&args)?;
            show(args.json, &report, heal::switchover::SwitchoverReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Upgrade(args) => {
            let report = heal::upgrade::run(&args)?;
            show(args.json, &report, heal::upgrade::UpgradeReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::FalseAlarms(args) => {
            let report = false_alarms::run(&args)?;
            show(args.json, &report, false_alarms::FalseAlarmReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Throughput(args) => {
            let report = throughput::run(&args)?;
            show(args.json, &report, throughput::ThroughputReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Latency(args) => {
            let report = latency::run(&args)?;
            show(args.json, &report, latency::LatencyReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Channel(args) => {
            let report = channel::run(&args)?;
            show(args.json, &report, channel::ChannelReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Concurrency(args) => {
            let report = concurrency::run(&args)?;
            show(args.json, &report, concurrency::ConcurrencyReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Families(args) => {
            let report = heavy::run(&args)?;
            show(args.json, &report, heavy::FamiliesReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Check(args) => {
            let report = check::run(&args)?;
            show(args.json, &report, check::CheckReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Simulate(args) => {
            let report = simulate::bench(&args);
            show(args.json, &report, simulate::SimulateReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Codec(args) => {
            let report = codec::run(&args)?;
            show(args.json, &report, codec::CodecReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Sim(args) => {
            let report = sim::run(&args)?;
            show(args.json, &report, sim::SimBenchReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Recover(args) => {
            let report = recover::run(&args)?;
            show(args.json, &report, recover::RecoverReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Regulate(args) => {
            let report = regulate::run(&args)?;
            show(args.json, &report, regulate::RegulateReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Redirect(args) => {
            let report = redirect::run(&args)?;
            show(args.json, &report, redirect::RedirectReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Edges(args) => {
            let report = edges::run(&args)?;
            show(args.json, &report, edges::EdgesReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Tunnel(args) => {
            let report = tunnel::run(&args)?;
            show(args.json, &report, tunnel::TunnelReport::print)?;
            Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        BenchCommand::Emu(args) => {
            let report = emulator::run(&args)?;
            show(args.json, &report, emulator::EmulatorReport::print)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show<T: Serialize>(json: bool, report: &T, print: impl Fn(&T)) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print(report);
    }
    Ok(())
}
