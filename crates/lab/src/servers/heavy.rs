//! `holdfast-lab bench families`: servers of several processes under the load that their own
//! tools make: how much of it is kept under Holdfast.

use super::row::{At, Row};
use super::{at_last, install, table};
use crate::bench::service::{Variant, with_recipe};
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::{Host, Plan, Role, Shape, Testbed};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;
use std::process::Stdio;
use std::time::Instant;

/// Options of the bench.
#[derive(Args, Clone, Debug)]
pub struct FamiliesArgs {
    /// Only these loads, by their names; without any, all.
    pub names: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often both sides are measured.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// Rate of every link, Mbit/s; without it, as fast as it goes.
    #[arg(long)]
    pub link_mbit: Option<u64>,
    /// Install the Debian packages that are missing; their services are not started.
    #[arg(long)]
    pub install: bool,
}

/// What a tool's output says.
#[derive(Clone, Copy)]
enum Figure {
    /// A number behind these words.
    After(&'static str),
    /// Nothing: so many megabytes have passed.
    Megabytes(f64),
}

/// A load of a server.
struct Load {
    name: &'static str,
    /// Row of the table of servers.
    row: &'static str,
    unit: &'static str,
    /// What is run on the clients' host first, and is not measured.
    before: &'static str,
    line: &'static str,
    figure: Figure,
}

const PGBENCH: &str = "tps = ";
const AB_PACKAGE: &str = "apache2-utils";
const AB: &str = "Requests per second:";
const SMB: &str = "smbclient -N -p {port} -I {host} //test/share -c";

const LOADS: [Load; 5] = [
    Load {
        name: "nginx-keepalive",
        row: "nginx-workers",
        unit: "requests/s",
        before: "true",
        line: "ab -q -k -n 20000 -c 8 http://{host}:{port}/small",
        figure: Figure::After(AB),
    },
    Load {
        name: "nginx-close",
        row: "nginx-workers",
        unit: "requests/s",
        before: "true",
        line: "ab -q -n 5000 -c 8 http://{host}:{port}/small",
        figure: Figure::After(AB),
    },
    Load {
        name: "postgresql-tpcb",
        row: "postgresql",
        unit: "transactions/s",
        before: "pgbench -i -q -s 1 -U postgres -h {host} -p {port} postgres",
        line: "pgbench -n -c 4 -j 1 -T 5 -U postgres -h {host} -p {port} postgres",
        figure: Figure::After(PGBENCH),
    },
    Load {
        name: "samba-out",
        row: "samba",
        unit: "MB/s",
        before: "head -c 134217728 /dev/urandom > {files}/big; {smb} 'put {files}/big big'",
        line: "{smb} 'get big /dev/null'",
        figure: Figure::Megabytes(134.2),
    },
    Load {
        name: "samba-in",
        row: "samba",
        unit: "MB/s",
        before: "head -c 134217728 /dev/urandom > {files}/big; {smb} 'ls'",
        line: "{smb} 'put {files}/big big'",
        figure: Figure::Megabytes(134.2),
    },
];

/// One load, on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    name: &'static str,
    unit: &'static str,
    clean: Summary,
    ours: Summary,
    /// Share that is kept, of each round.
    kept: Summary,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct FamiliesReport {
    bench: &'static str,
    rounds: u64,
    link_mbit: Option<u64>,
    loads: Vec<Kept>,
}

/// Runs the bench.
///
/// # Errors
/// When a server cannot be started, protection is lost, or a client fails.
pub fn run(args: &FamiliesArgs) -> Result<FamiliesReport> {
    let is_chosen =
        |load: &&Load| args.names.is_empty() || args.names.iter().any(|it| it == load.name);
    let loads: Vec<&Load> = LOADS.iter().filter(is_chosen).collect();
    ensure!(!loads.is_empty(), "no load has such a name; there are {}", names());
    let rows = table::rows();
    if args.install {
        let is_used = |row: &&Row| loads.iter().any(|load| load.row == row.name);
        let packages = rows.iter().filter(is_used).flat_map(|row| row.packages).copied();
        install::packages(&packages.chain([AB_PACKAGE]).collect())?;
    }
    let bar = progress("families", args.rounds * 2 * loads.len() as u64);
    let mut kept = Vec::new();
    for load in loads {
        let row = rows.iter().find(|row| row.name == load.row).context("a load of no row")?;
        let (mut clean, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            for (variant, rates) in [(Variant::Clean, &mut clean), (Variant::Ours, &mut ours)] {
                let rate = measure(row, load, variant, args.link_mbit);
                rates.push(rate.with_context(|| load.name.to_owned())?);
                bar.inc(1);
            }
        }
        let shares: Vec<f64> = clean.iter().zip(&ours).map(|(clean, ours)| ours / clean).collect();
        let [clean, ours, share] = [&clean, &ours, &shares].map(|it| Summary::of(it));
        kept.push(Kept { name: load.name, unit: load.unit, clean, ours, kept: share });
    }
    bar.finish_and_clear();
    let FamiliesArgs { rounds, link_mbit, .. } = *args;
    Ok(FamiliesReport { bench: "families", rounds, link_mbit, loads: kept })
}

fn names() -> String {
    LOADS.map(|load| load.name).join(", ")
}

fn measure(row: &Row, load: &Load, variant: Variant, link_mbit: Option<u64>) -> Result<f64> {
    let rate = |mbit| Shape::Tbf { bits_per_second: mbit * 1_000_000 };
    let shape = link_mbit.map_or_else(|| Plan::default().shape, rate);
    let plan = Plan { shape, ..Plan::default() };
    let options = GroupOptions { run: row.run, ..GroupOptions::default() };
    let install = |first: &Host, others: &[&Host]| row.install(first, others);
    with_recipe(variant, &plan, &options, install, |service| {
        let driven = drive(service.testbed, load, &At::of(row, service.testbed))?;
        service.group.as_ref().map_or(Ok(()), Group::ensure_protected)?;
        Ok(driven)
    })
}

/// Runs the load's tool on the clients' host.
fn drive(testbed: &Testbed, load: &Load, at: &At) -> Result<f64> {
    let client = testbed.host(Role::Client);
    at_last(|| output(client, load.before, at))?;
    let begun = Instant::now();
    let text = output(client, load.line, at)?;
    match load.figure {
        Figure::Megabytes(count) => Ok(count / begun.elapsed().as_secs_f64()),
        Figure::After(words) => {
            let (_, rest) = text.split_once(words).with_context(|| format!("no rate in {text}"))?;
            let number = rest.split_whitespace().next().unwrap_or_default();
            number.parse().with_context(|| format!("{number} is no rate"))
        }
    }
}

/// What a line of shell prints.
fn output(host: &Host, line: &str, at: &At) -> Result<String> {
    let line = at.fill(&line.replace("{smb}", SMB));
    let mut command = host.command("sh");
    command.env("PATH", "/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let done = command.args(["-euc", &line]).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{line}: {text}{error}");
    Ok(text)
}

impl FamiliesReport {
    /// A table for people.
    pub fn print(&self) {
        println!("{:<16} {:>12} {:>12}  kept (min to max)", "load", "clean", "ours");
        for Kept { name, unit, clean, ours, kept } in &self.loads {
            println!(
                "{name:<16} {:>12.1} {:>12.1}  {:.2} ({:.2} to {:.2})  {unit}",
                clean.median, ours.median, kept.median, kept.min, kept.max
            );
        }
    }
}
