//! `holdfast-lab servers`: every server of a table, as Debian ships it, under Holdfast,
//! with its own client, sessions that stay, takeovers and joins; and what became of each.
//! The page `docs/SERVERS.md` is made of it.

mod crowd;
pub(crate) mod heavy;
mod install;
mod report;
mod row;
mod session;
mod table;
mod trial;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use holdfast_report::progress;
use report::{Report, line};
use row::Row;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trial::Options;

/// How long a server that listens may take until it answers as it should.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How often something is asked that takes a while.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Options of the trials.
#[derive(Args, Clone, Debug)]
pub struct ServersArgs {
    /// Names of the table; without any, all of it.
    pub names: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often the primary of each dies, and the other member joins.
    #[arg(long, default_value_t = 5)]
    pub takeovers: u64,
    /// Draws the moments at which it dies.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time between two heartbeats, ms; without it, the default.
    #[arg(long)]
    pub heartbeat_ms: Option<u64>,
    /// Install the Debian packages that are missing; their services are not started.
    #[arg(long)]
    pub install: bool,
    /// Keep the daemons' and the servers' logs of those that fail in this directory.
    #[arg(long, value_name = "DIR")]
    pub keep_logs: Option<PathBuf>,
    /// Add what is found to this file after each server: results, in JSON.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Try nothing: print docs/SERVERS.md, made of the results.
    #[arg(long, requires = "results", conflicts_with_all = ["json", "install", "names"])]
    pub markdown: bool,
    /// Try nothing: print the names of the table.
    #[arg(long, conflicts_with_all = ["json", "install", "markdown"])]
    pub list: bool,
}

/// Tries the servers.
///
/// # Errors
/// When a name is not in the table, or packages or results cannot be had. A server that fails
/// is no error but exit code 1.
pub fn run(args: &ServersArgs) -> Result<ExitCode> {
    let rows = chosen(table::rows(), &args.names)?;
    if args.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(ExitCode::SUCCESS);
    }
    let known = args.results.as_deref().map(|path| load(path, args)).transpose()?;
    if let (true, Some(known)) = (args.markdown, &known) {
        print!("{}", known.markdown(&rows));
        return Ok(ExitCode::SUCCESS);
    }
    if args.install {
        install::packages(&install::lacking(&rows))?;
    }
    let report = try_all(&rows, args, known)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tries the rows; returns what was found now, and adds it to what is `known`.
fn try_all(rows: &[Row], args: &ServersArgs, mut known: Option<Report>) -> Result<Report> {
    let ServersArgs { takeovers, seed, heartbeat_ms, .. } = *args;
    let options = Options { takeovers, seed, heartbeat_ms, keep_logs: args.keep_logs.clone() };
    let mut report = Report::new(seed, takeovers);
    // The clean run, the protected one, and each takeover.
    let steps = takeovers + 2;
    let bar = progress("servers", steps * rows.len() as u64);
    if !args.json {
        println!("{}", report::HEADER);
    }
    for (index, row) in rows.iter().enumerate() {
        bar.set_message(row.name);
        let found = trial::run(row, &options, &|| bar.inc(1));
        bar.set_position(steps * (index as u64 + 1));
        if !args.json {
            bar.suspend(|| println!("{}", line(&found)));
        }
        if let (Some(known), Some(path)) = (&mut known, &args.results) {
            known.add(found.clone());
            fs::write(path, serde_json::to_string_pretty(known)?)?;
        }
        report.add(found);
    }
    bar.finish_and_clear();
    Ok(report)
}

/// The results of earlier runs, if there are any.
fn load(path: &Path, args: &ServersArgs) -> Result<Report> {
    let fresh = Report::new(args.seed, args.takeovers);
    if !path.exists() {
        return Ok(fresh);
    }
    let text = fs::read_to_string(path)?;
    let old: Report =
        serde_json::from_str(&text).with_context(|| format!("{} is no result", path.display()))?;
    Ok(match args.markdown {
        true => old,
        false => Report { servers: old.servers, ..fresh },
    })
}

fn chosen(all: Vec<Row>, names: &[String]) -> Result<Vec<Row>> {
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|row| row.name == **name)) {
        let known: Vec<&str> = all.iter().map(|row| row.name).collect();
        bail!("no server is called {unknown}; there are {}", known.join(", "));
    }
    let is_chosen = |row: &Row| names.is_empty() || names.iter().any(|name| name == row.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// Asks a server that has just begun to listen, again and again: some answer properly only later.
fn at_last<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        let asked = ask();
        if asked.is_ok() || begun.elapsed() > READY_LIMIT {
            return asked;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

#[cfg(test)]
mod tests;
