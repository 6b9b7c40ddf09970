//! The verbs of `holdfast lab`.

use crate::bench::{self, BenchCommand};
use crate::chaos::{self, ChaosArgs};
use crate::demo::{self, DemoArgs};
use crate::figures::{self, ListArgs, ReportArgs, RunArgs};
use crate::life::{self, LifeArgs};
use crate::memory::{self, MemoryArgs};
use crate::plan::{self, PlanArgs};
use crate::scenario::{self, MergeArgs, SimArgs};
use crate::simulate::{self, SimulateArgs};
use crate::{emu, load};
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Testbed, link emulator, benches, the papers' figures.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a command behind an emulated wire: delay 50ms loss 1% -- CMD
    ///
    /// Words: delay TIME, jitter TIME, loss SHARE, reorder SHARE, duplicate
    /// SHARE, rate RATE, queue PACKETS, only to ADDRESS, seed N. The command
    /// runs in a network namespace of its own whose only wire leads to the
    /// caller's network; wires nest. HOLDFAST_EMU_GATEWAY is the caller's end.
    Emu {
        /// What the wire does, in the words and units of tc netem.
        #[arg(required = true, num_args = 1..)]
        words: Vec<String>,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// The whole cluster in virtual time, broken by faults that seeds draw.
    ///
    /// Checkers watch every packet and every reply for the laws of
    /// ARCHITECTURE.md. A failure prints the line that replays its seed.
    Simulate(SimulateArgs),
    /// How much redundancy TCP Boston needs for a deadline.
    Plan(PlanArgs),
    /// The figures of the HALR and PFRC thesis, and sweeps beyond them.
    List(ListArgs),
    /// Simulate figures: NAME.csv, NAME.svg, and what the paper says of them.
    Run(RunArgs),
    /// One self-contained page with all figures.
    Report(ReportArgs),
    /// Simulate a scenario file: topology, flows, outages, policies, sweeps.
    Sim(SimArgs),
    /// What local recovery would have to keep of a recorded trace.
    Memory(MemoryArgs),
    /// Join what the shares of a sweep have written.
    Merge(MergeArgs),
    /// Measure: takeovers, throughput, latency, concurrency, the codec, the simulator.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Random faults, alone and in pairs, until the time is over.
    Chaos(ChaosArgs),
    /// The life of a group: loads, faults, repairs and hostile clients, step by step.
    ///
    /// After each step every client that should live has lived, byte for byte;
    /// `status` on every host is true; nothing has grown. A violation prints the
    /// line that replays it.
    Life(LifeArgs),
    /// Three deaths of a redis-server's primary, told and drawn.
    Demo(DemoArgs),
    /// Carries an emulated wire.
    #[command(name = "emu-link", hide = true)]
    EmuLink {
        /// A description in JSON.
        arguments: String,
    },
    /// Runs a load.
    #[command(name = "load-run", hide = true)]
    LoadRun {
        /// A description in JSON.
        spec: String,
    },
}

/// Runs a verb.
///
/// # Errors
/// When the verb cannot do its work; a bench with a negative answer is no
/// error but an exit code of 1.
pub fn run(command: LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Emu { words, command } => {
            emu::shell::run(&emu::EmuSpec::parse(&words)?, &command)
        }
        LabCommand::Bench(command) => bench::run(command),
        LabCommand::Plan(args) => plan::run(&args),
        LabCommand::Chaos(args) => chaos::run(&args),
        LabCommand::Life(args) => life::run(&args),
        LabCommand::Simulate(args) => simulate::run(&args),
        LabCommand::List(args) => figures::list(&args),
        LabCommand::Run(args) => figures::run(&args),
        LabCommand::Report(args) => figures::report(&args),
        LabCommand::Sim(args) => scenario::sim(&args),
        LabCommand::Merge(args) => scenario::merge(&args),
        LabCommand::Memory(args) => memory::run(&args),
        LabCommand::Demo(args) => demo::run(&args),
        LabCommand::EmuLink { arguments } => emu::carry(&arguments).map(|()| ExitCode::SUCCESS),
        LabCommand::LoadRun { spec } => load::run_here(&spec).map(|()| ExitCode::SUCCESS),
    }
}
