//! The lab without the rest of Holdfast: `cargo run -p holdfast-lab --example
//! lab -- lab bench emu`. Everything that needs no daemon works with it.

use clap::Parser;

#[derive(Parser)]
enum Cli {
    /// The same verbs as `holdfast lab`.
    #[command(subcommand)]
    Lab(holdfast_lab::LabCommand),
}

fn main() -> anyhow::Result<std::process::ExitCode> {
    let Cli::Lab(command) = Cli::parse();
    holdfast_lab::run(command)
}
