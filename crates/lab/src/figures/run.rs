//! `holdfast lab list`, `lab run` and `lab report`.

use super::report::{ReportArgs, page};
use super::{FIGURES, Figure, Finding, Finished, Verdict, finish};
use crate::BUILD;
use crate::bench::progress;
use crate::plot::stacked;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `lab list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `lab run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Names from `lab list`, or `all`.
    #[arg(required = true)]
    pub figures: Vec<String>,
    /// Where NAME.csv and NAME.svg go.
    #[arg(long, default_value = ".")]
    pub output: PathBuf,
    /// How many seeds; more than one gives 95 % confidence intervals. Without it one,
    /// or ten where the scenario itself is a matter of chance.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
    /// The first seed; 0 is the thesis' scenario as it stands.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Listed {
    id: &'static str,
    title: &'static str,
}

/// What a figure led to, for machines.
#[derive(Serialize)]
pub struct FigureReport {
    id: &'static str,
    title: &'static str,
    /// The line that repeats it.
    replay: String,
    version: &'static str,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct RunReport {
    schema: &'static str,
    figures: Vec<FigureReport>,
}

/// Lists the figures.
///
/// # Errors
/// If the list cannot be written.
pub fn list(args: &ListArgs) -> Result<ExitCode> {
    let listed = FIGURES.map(|it| Listed { id: it.id, title: it.title });
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        listed.iter().for_each(|it| println!("{:<16} {}", it.id, it.title));
    }
    Ok(ExitCode::SUCCESS)
}

/// Simulates figures and writes their files.
///
/// # Errors
/// When a figure does not exist or a file cannot be written. A number that
/// differs is the exit code 1.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let figures = named(&args.figures)?;
    fs::create_dir_all(&args.output)
        .with_context(|| format!("cannot make {}", args.output.display()))?;
    let finished = finish_all(&figures, args.seed, args.seeds);
    for it in &finished {
        write(&args.output, it)?;
    }
    let agrees =
        finished.iter().flat_map(|it| &it.findings).all(|it| it.verdict == Verdict::Agrees);
    if args.json {
        let figures = finished.iter().map(|it| it.report(args.seed, args.seeds)).collect();
        let report = RunReport { schema: "holdfast.lab.figures/1", figures };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        finished.iter().for_each(Finished::print);
    }
    Ok(if agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes one page with all figures.
///
/// # Errors
/// When the page cannot be written. A number that differs is no failure: the
/// page says so.
pub fn report(args: &ReportArgs) -> Result<ExitCode> {
    let finished = finish_all(&FIGURES, 0, args.seeds);
    fs::write(&args.output, page(&finished, args.seeds))
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    if args.json {
        let figures = finished.iter().map(|it| it.report(0, args.seeds)).collect();
        let report = RunReport { schema: "holdfast.lab.figures/1", figures };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let findings = || finished.iter().flat_map(|it| &it.findings);
        let agree = findings().filter(|it| it.verdict == Verdict::Agrees).count();
        println!("{agree} of {} numbers agree; {}", findings().count(), args.output.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn named(names: &[String]) -> Result<Vec<Figure>> {
    if names.iter().any(|name| name == "all") {
        return Ok(FIGURES.to_vec());
    }
    let find = |name: &String| match FIGURES.iter().find(|it| it.id == name) {
        Some(figure) => Ok(*figure),
        None => bail!("there is no figure {name:?}; `holdfast lab list` shows them"),
    };
    names.iter().map(find).collect()
}

fn finish_all(figures: &[Figure], seed: u64, seeds: Option<u64>) -> Vec<Finished> {
    let bar = progress("drawing", figures.len() as u64);
    let one = |figure: &Figure| {
        let finished = finish(*figure, seed, seeds.unwrap_or(figure.seeds()));
        bar.inc(1);
        finished
    };
    let finished = figures.iter().map(one).collect();
    bar.finish_and_clear();
    finished
}

fn write(folder: &Path, finished: &Finished) -> Result<()> {
    let id = finished.figure.id;
    for (ending, text) in
        [("csv", finished.drawn.table.to_csv()), ("svg", stacked(&finished.drawn.charts))]
    {
        let path = folder.join(format!("{id}.{ending}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Finished {
    /// For machines.
    fn report(&self, seed: u64, seeds: Option<u64>) -> FigureReport {
        let seeds = seeds.unwrap_or(self.figure.seeds());
        FigureReport {
            id: self.figure.id,
            title: self.figure.title,
            replay: format!("holdfast lab run {} --seed {seed} --seeds {seeds}", self.figure.id),
            version: BUILD,
            findings: self.findings.clone(),
        }
    }

    /// For a reader.
    fn print(&self) {
        println!("{}: {}", self.figure.id, self.figure.title);
        println!("  {:<56} {:<34} {:>16}  verdict", "", "paper says", "we get");
        for it in &self.findings {
            let (ours, verdict) = (it.ours(), it.verdict());
            println!("  {:<56} {:<34} {ours:>16}  {verdict}", it.what, it.paper);
            if !it.note.is_empty() {
                println!("      {}", it.note);
            }
        }
    }
}

impl Finding {
    /// Our number, with its confidence interval if there is one.
    #[must_use]
    pub fn ours(&self) -> String {
        if self.plus_minus > 0.0 {
            format!("{:.3} ± {:.3}", self.ours, self.plus_minus)
        } else {
            format!("{:.3}", self.ours)
        }
    }

    /// In a word; "by chance" when the interval reaches beyond the limits.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match (self.verdict, self.is_certain) {
            (Verdict::Agrees, true) => "agrees",
            (Verdict::Agrees, false) => "agrees, by chance",
            (Verdict::Differs, true) => "DIFFERS",
            (Verdict::Differs, false) => "DIFFERS, by chance",
        }
    }
}
