//! The verbs about papers.

use crate::figures::{self, ListArgs, Measured, NoFigure, ReportArgs, RunArgs};
use crate::memory::{self, MemoryArgs};
use crate::plan::{self, PlanArgs};
use crate::scenario::{self, MergeArgs, Mistakes, Refused, SimArgs};
use anyhow::Result;
use clap::Subcommand;
use std::error::Error;
use std::process::ExitCode;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// How much redundancy TCP Boston needs for a deadline.
    Plan(PlanArgs),
    /// The papers' figures, and sweeps beyond them.
    List(ListArgs),
    /// Simulate or measure figures: NAME.csv, NAME.svg, and what the paper says of them.
    Run(RunArgs),
    /// One self-contained page with all figures.
    Report(ReportArgs),
    /// Simulate a scenario file: topology, flows, outages, policies, sweeps.
    Sim(Box<SimArgs>),
    /// What local recovery would have to keep of a recorded trace.
    Memory(MemoryArgs),
    /// Join what the shares of a sweep have written.
    Merge(MergeArgs),
}

/// Runs a verb; figures that are `measured` come from the caller.
///
/// # Errors
/// When the verb fails.
pub fn run(verb: Verb, measured: &[Measured]) -> Result<ExitCode> {
    match verb {
        Verb::Plan(args) => plan::run(&args),
        Verb::List(args) => figures::list(&args, measured),
        Verb::Run(args) => figures::run(&args, measured),
        Verb::Report(args) => figures::report(&args),
        Verb::Sim(args) => scenario::sim(&args),
        Verb::Memory(args) => memory::run(&args),
        Verb::Merge(args) => scenario::merge(&args),
    }
}

/// Whether an error is the user's: a name or a file that is wrong.
#[must_use]
pub fn is_mistake(error: &(dyn Error + 'static)) -> bool {
    error.is::<Mistakes>() || error.is::<Refused>() || error.is::<NoFigure>()
}
