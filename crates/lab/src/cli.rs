//! The verbs of `holdfast-lab`.

use crate::bench::{self, BenchCommand};
use crate::chaos::{self, ChaosArgs};
use crate::demo;
use crate::life::{self, LifeArgs};
use crate::servers::{self, ServersArgs};
use crate::simulate::{self, SimulateArgs};
use crate::{emu, fttcp, load};
use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use holdfast_linux::bpf::{Deadline, Until};
use holdfast_program::{BUILD, DemoArgs, LAB, exit};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXIT_CODES: &str = "\
Exit codes:
  0  fine
  1  it could not be done, or the answer is no (a wrong byte, a broken law)
  2  wrong usage, or a file that is not understood
  3  not permitted: run it as root
  4  a daemon does not answer";

/// Holdfast's laboratory.
///
/// Testbed, link emulator, load and faults for `holdfast`, benches, simulators,
/// and the papers' figures, in network namespaces of this machine. It runs the
/// `holdfast` beside it, or the one that HOLDFAST_BIN names.
#[derive(Debug, Parser)]
#[command(name = LAB, version = BUILD, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a command behind an emulated wire: delay 50ms loss 1% -- CMD
    ///
    /// Words: delay TIME, jitter TIME, loss SHARE, loss gemodel P R [1-H [1-K]],
    /// loss-behind (the same, behind the queue), outage TIME every TIME, reorder
    /// SHARE, duplicate SHARE, rate RATE, queue PACKETS, only to ADDRESS, seed N;
    /// and back, after which words change the way from the command to the caller.
    /// The command runs in a network namespace of its own whose only wire leads
    /// to the caller's network; wires nest. HOLDFAST_EMU_GATEWAY is the caller's
    /// end.
    Emu {
        /// Say on stderr at the end what became of the packets, as one JSON object.
        #[arg(long)]
        counts: bool,
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
    #[command(flatten)]
    Papers(holdfast_papers::Verb),
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
    /// Debian's servers under Holdfast, one after the other: which work, and how well.
    ///
    /// Each is started by itself and protected, asked by its own client and by
    /// sessions that stay, killed under them, and joined by the other member. Exit
    /// code 1 if one fails; one that is refused in words does not. docs/SERVERS.md is
    /// made by it.
    Servers(ServersArgs),
    /// A redis-server dies without Holdfast, and three times with it: told, and drawn.
    Demo(DemoArgs),
    /// Print a completion script for a shell.
    ///
    /// For example: holdfast-lab completions bash > /etc/bash_completion.d/holdfast-lab
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory.
    Man { directory: PathBuf },
    /// Carries an emulated wire.
    #[command(name = "emu-link", hide = true)]
    EmuLink {
        /// A description in JSON.
        arguments: String,
    },
    /// Lets a member speak for ever, whatever its daemon says.
    #[command(name = "unfence", hide = true)]
    Unfence {
        /// The folder of its pins.
        pins: PathBuf,
    },
    /// Runs a load.
    #[command(name = "load-run", hide = true)]
    LoadRun {
        /// A description in JSON.
        spec: String,
        /// Print what it sees, ten times a second.
        #[arg(long)]
        told: bool,
    },
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    holdfast_program::abort_on_panic();
    run(Cli::parse().verb).unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "{LAB}: {error:#}");
        ExitCode::from(code_of(&error))
    })
}

/// A bench with a negative answer is no error but an exit code of 1.
fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Emu { counts, words, command } => {
            emu::shell::run(&emu::EmuSpec::parse(&words)?, counts, &command)
        }
        Verb::Bench(command) => bench::run(command),
        Verb::Chaos(args) => chaos::run(&args),
        Verb::Life(args) => life::run(&args),
        Verb::Servers(args) => servers::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Papers(verb) => holdfast_papers::run(verb, &fttcp::FIGURES),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completions { shell } => print_completions(shell),
        Verb::Man { directory } => write_man_pages(&directory),
        Verb::EmuLink { arguments } => emu::carry(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Unfence { pins } => {
            Deadline::pinned(&pins)?.set(Until::Told)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::LoadRun { spec, told } => load::run_here(&spec, told).map(|()| ExitCode::SUCCESS),
    }
}

fn print_completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), LAB, &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

fn write_man_pages(directory: &Path) -> Result<ExitCode> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    Ok(ExitCode::SUCCESS)
}

/// The exit code of a verb that failed.
fn code_of(error: &anyhow::Error) -> u8 {
    let code = error.chain().find_map(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(exit::of);
        io.or_else(|| holdfast_papers::is_mistake(cause).then_some(exit::USAGE))
    });
    code.unwrap_or(exit::DEGRADED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use holdfast_papers::scenario::Sweep;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_mistake_in_a_scenario_is_wrong_usage() {
        let text = "seed = 1\nend = \"1s\"\n[[link]]\nfrom = \"S\"\nto = \"D\"\ndelay = \"1ms\"\n\
             [[flow]]\nfrom = \"S\"\nto = \"D\"\nsegments = 1\n[sweep]\nseed = []\n";
        let read = Sweep::read(Path::new("file.toml"), text);
        let error = read.map(|_| ()).context("reading").expect_err("no values");
        assert_eq!(code_of(&error), exit::USAGE, "{error:#}");
        assert!(format!("{error:#}").contains("has no values"), "{error:#}");
    }
}
