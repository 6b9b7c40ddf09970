//! `holdfast-lab list`, `holdfast-lab run` and `holdfast-lab report`.

use super::report::{ReportArgs, page};
use super::{
    EQUAL_PERCENT, Effort, FIGURES, Figure, Finding, Finished, Measured, Verdict, finish, measure,
};
use crate::scenario::suggestion;
use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_program::BUILD;
use holdfast_report::plot::stacked;
use holdfast_report::progress;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `holdfast-lab list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `holdfast-lab run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Names from `holdfast-lab list`, or `all`: all that are computed.
    #[arg(required = true)]
    pub figures: Vec<String>,
    /// Where NAME.csv and NAME.svg go.
    #[arg(long, default_value = ".")]
    pub output: PathBuf,
    /// How many seeds; more than one gives 95 % confidence intervals. Without it one,
    /// or ten where the scenario itself is a matter of chance. Of a figure that is
    /// measured: how many rounds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
    /// Figures that are measured: one short round, to see that they run.
    #[arg(long)]
    pub quick: bool,
    /// The first seed; 0 is the thesis' scenario as it stands.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The error of names that no figure has.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct NoFigure(Vec<String>);

impl NoFigure {
    /// The error of all names that no figure has, each with what was probably meant.
    fn of(names: &[&String], known: &[&str]) -> Self {
        let one = |name: &&String| {
            let list = || "`holdfast-lab list` shows them".to_owned();
            let remedy = suggestion(name, known).unwrap_or_else(list);
            format!("unknown figure {name:?}\n  remedy: {remedy}")
        };
        Self(names.iter().map(one).collect())
    }
}

#[derive(Serialize)]
struct Listed {
    id: &'static str,
    title: &'static str,
}

/// Results of a figure, for machines.
#[derive(Serialize)]
pub struct FigureReport {
    id: &'static str,
    title: &'static str,
    /// Command that repeats the figure.
    replay: String,
    version: &'static str,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct RunReport {
    schema: &'static str,
    figures: Vec<FigureReport>,
}

/// A figure, simulated or measured.
#[derive(Clone, Copy)]
enum Chosen<'a> {
    Computed(Figure),
    Measured(&'a Measured),
}

/// Lists the figures, including those that are `measured`.
///
/// # Errors
/// If the list cannot be written.
pub fn list(args: &ListArgs, measured: &[Measured]) -> Result<ExitCode> {
    let computed = FIGURES.iter().map(|it| Listed { id: it.id, title: it.title });
    let measured = measured.iter().map(|it| Listed { id: it.id, title: it.title });
    let listed: Vec<Listed> = computed.chain(measured).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        listed.iter().for_each(|it| println!("{:<16} {}", it.id, it.title));
    }
    Ok(ExitCode::SUCCESS)
}

/// Simulates or measures figures and writes their files.
///
/// # Errors
/// When a figure does not exist or cannot be measured, or a file cannot be written. A number that
/// differs from the paper's gives the exit code 1.
pub fn run(args: &RunArgs, measured: &[Measured]) -> Result<ExitCode> {
    let figures = named(&args.figures, measured)?;
    fs::create_dir_all(&args.output)
        .with_context(|| format!("cannot make {}", args.output.display()))?;
    let finished = finish_all(&figures, args)?;
    for it in &finished {
        write(&args.output, it)?;
    }
    let differs =
        finished.iter().flat_map(|it| &it.findings).any(|it| it.verdict == Verdict::Differs);
    if args.json {
        let figures = finished.iter().map(Finished::report).collect();
        let report = RunReport { schema: "holdfast.lab.figures/2", figures };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        finished.iter().for_each(Finished::print);
    }
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes one page with all figures.
///
/// # Errors
/// When the page cannot be written. A number that differs from the paper's is no failure, since the
/// page shows it.
pub fn report(args: &ReportArgs) -> Result<ExitCode> {
    let bar = progress("drawing", FIGURES.len() as u64);
    let finished: Vec<Finished> = FIGURES
        .iter()
        .map(|figure| {
            let finished = finish(*figure, 0, args.seeds.unwrap_or(figure.seeds()));
            bar.inc(1);
            finished
        })
        .collect();
    bar.finish_and_clear();
    fs::write(&args.output, page(&finished, args.seeds))
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    if args.json {
        let figures = finished.iter().map(Finished::report).collect();
        let report = RunReport { schema: "holdfast.lab.figures/2", figures };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}; {}", headline(&finished), args.output.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of findings of each verdict, in words.
pub fn headline(finished: &[Finished]) -> String {
    let count = |verdict| {
        let findings = finished.iter().flat_map(|it| &it.findings);
        findings.filter(|it| it.verdict == verdict).count()
    };
    let (equal, same) = (count(Verdict::Equal), count(Verdict::SameDirection));
    let (differs, unsaid) = (count(Verdict::Differs), count(Verdict::NoNumber));
    format!(
        "{} of {} comparisons agree with the papers: {equal} are equal within {EQUAL_PERCENT} %, \
         {same} have the same direction; {differs} differ. Of {unsaid} more numbers the papers say \
         nothing",
        equal + same,
        equal + same + differs
    )
}

fn named<'a>(names: &[String], measured: &'a [Measured]) -> Result<Vec<Chosen<'a>>> {
    if names.iter().any(|name| name == "all") {
        return Ok(FIGURES.iter().copied().map(Chosen::Computed).collect());
    }
    let find = |name: &String| {
        let computed = FIGURES.iter().find(|it| it.id == name).copied().map(Chosen::Computed);
        let measured = || measured.iter().find(|it| it.id == name).map(Chosen::Measured);
        computed.or_else(measured)
    };
    let unknown: Vec<&String> = names.iter().filter(|name| find(name).is_none()).collect();
    if !unknown.is_empty() {
        let computed = FIGURES.iter().map(|it| it.id);
        let known: Vec<&str> = computed.chain(measured.iter().map(|it| it.id)).collect();
        return Err(NoFigure::of(&unknown, &known).into());
    }
    Ok(names.iter().filter_map(find).collect())
}

fn finish_all(figures: &[Chosen<'_>], args: &RunArgs) -> Result<Vec<Finished>> {
    let &RunArgs { seed, seeds, quick, .. } = args;
    let bar = progress("drawing", figures.len() as u64);
    let one = |chosen: &Chosen<'_>| {
        let finished = match *chosen {
            Chosen::Computed(figure) => finish(figure, seed, seeds.unwrap_or(figure.seeds())),
            Chosen::Measured(figure) => {
                let effort = Effort { seed, rounds: seeds, quick };
                measure(figure, &effort).with_context(|| figure.id)?
            }
        };
        bar.inc(1);
        Ok(finished)
    };
    let finished = figures.iter().map(one).collect();
    bar.finish_and_clear();
    finished
}

fn write(folder: &Path, finished: &Finished) -> Result<()> {
    let id = finished.id;
    for (ending, text) in
        [("csv", finished.drawn.table.to_csv()), ("svg", stacked(&finished.drawn.charts))]
    {
        let path = folder.join(format!("{id}.{ending}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Finished {
    /// The figure's results for machines.
    fn report(&self) -> FigureReport {
        FigureReport {
            id: self.id,
            title: self.title,
            replay: format!("holdfast-lab {}", self.again),
            version: BUILD,
            findings: self.findings.clone(),
        }
    }

    /// Prints the figure's results for people.
    fn print(&self) {
        println!("{}: {}", self.id, self.title);
        println!(
            "  {:<56} {:<34} {:>16} {:>9}  {:<18} verdict",
            "", "paper says", "we get", "apart", "holds within"
        );
        for it in &self.findings {
            let (ours, apart, limits) = (it.ours(), it.apart(), it.limits());
            let (what, paper, verdict) = (&it.what, &it.paper, it.verdict());
            println!("  {what:<56} {paper:<34} {ours:>16} {apart:>9}  {limits:<18} {verdict}");
            if !it.reason().is_empty() {
                println!("      {}", it.reason());
            }
        }
    }
}

impl Finding {
    /// The number found, with its confidence interval if there is one.
    #[must_use]
    pub fn ours(&self) -> String {
        if self.plus_minus > 0.0 {
            format!("{:.3} ± {:.3}", self.ours, self.plus_minus)
        } else {
            format!("{:.3}", self.ours)
        }
    }

    /// The distance from the paper's number.
    #[must_use]
    pub fn apart(&self) -> String {
        self.deviation_percent.map_or_else(String::new, |percent| format!("{percent:+.1} %"))
    }

    /// The values that agree with the paper's words.
    #[must_use]
    pub fn limits(&self) -> String {
        match self.accepted {
            None => String::new(),
            Some((low, high)) if low == high => format!("{low:.3}"),
            Some((low, high)) => format!("{low:.3} to {high:.3}"),
        }
    }

    /// Why it differs, or where its range comes from. What differs without a known reason says so.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self.verdict {
            Verdict::Differs if self.note.is_empty() => "The reason is not known.",
            _ => &self.note,
        }
    }

    /// The verdict in words; "by chance" if the confidence interval reaches another verdict.
    #[must_use]
    pub fn verdict(&self) -> String {
        let word = match self.verdict {
            Verdict::Equal => format!("equal within {EQUAL_PERCENT} %"),
            Verdict::SameDirection => "same direction".to_owned(),
            Verdict::Differs => "DIFFERS".to_owned(),
            Verdict::NoNumber => "the paper gives no number".to_owned(),
        };
        if self.is_certain { word } else { format!("{word}, by chance") }
    }
}
