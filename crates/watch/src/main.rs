//! What looks at a group and never touches it: a program of its own, without rights,
//! so that the daemon needs none of the libraries that draw and serve pages.
//! `holdfast` starts it; what it shows comes from the daemon's sockets.
#![forbid(unsafe_code)]

mod serve;
mod top;

use clap::{Parser, Subcommand};
use holdfast_program::{TopArgs, exit};
use std::io::{Write as _, stderr};
use std::process::ExitCode;

/// Show a group that runs.
#[derive(Debug, Parser)]
#[command(name = "holdfast-watch", version = holdfast_program::BUILD)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Watch the groups of this host in the terminal: `holdfast top`.
    Top(TopArgs),
    /// Serve the counters to Prometheus, and the live page to people.
    ///
    /// `holdfast run` starts this as its child where the group's file has [metrics] or [page].
    /// It gives up all rights before it hears anybody: user, capabilities, files, new
    /// connections. It ends with the daemon.
    Serve(serve::ServeArgs),
    /// Print the counters once, as /metrics has them.
    ///
    /// For a collector of text files: holdfast-watch metrics --config FILE > holdfast.prom.tmp
    /// && mv holdfast.prom.tmp /var/lib/prometheus/node-exporter/holdfast.prom
    Metrics(holdfast::cli::args::GroupArgs),
}

fn main() -> ExitCode {
    holdfast_program::abort_on_panic();
    let done = match Cli::parse().verb {
        Verb::Top(args) => top::run(&args).map(ExitCode::from),
        Verb::Serve(args) => serve::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Metrics(group) => serve::print_metrics(&group),
    };
    done.unwrap_or_else(|error| {
        let _nobody_reads = writeln!(stderr(), "holdfast-watch: {error:#}");
        ExitCode::from(exit::DEGRADED)
    })
}
