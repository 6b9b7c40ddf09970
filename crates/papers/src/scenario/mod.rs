//! Scenario files: the simulator as its users have it. `holdfast-lab sim FILE`
//! runs every combination of a file's sweep, or a share of them; `holdfast-lab
//! merge` joins the shares.

mod build;
mod capture;
mod columns;
mod each;
mod error;
mod file;
mod machines;
mod means;
mod mistake;
mod output;
mod plot;
mod route;
mod series;
mod sweep;
mod units;

#[cfg(test)]
mod tests;

pub use build::build;
pub use error::{FileError, Refused};
pub use mistake::{Mistakes, suggestion};
pub use output::{MergeArgs, merge};
pub use sweep::Sweep;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use each::{Each, FLOWS_MAX};
use holdfast_netsim::net::{Network, Scenario};
use holdfast_report::parallel;
use holdfast_report::progress;
use output::{FlowRow, Origin, PointRow, text_file, write_flows};
use series::Series;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `holdfast-lab sim`.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// The scenario; docs/SCENARIOS.md explains it.
    pub file: PathBuf,
    /// Run only share I of N of the sweep: 1/4, 2/4 …
    #[arg(long, value_parser = parse_shard, default_value = "1/1")]
    pub shard: Shard,
    /// Run only this combination, as a result's line names it.
    #[arg(long, conflicts_with = "shard")]
    pub point: Option<usize>,
    /// Instead of the file's seed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How many seeds for each combination.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: u64,
    /// Where results go, one JSON object a line; `holdfast-lab merge` reads them.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Where means over the seeds go, with 95 % confidence intervals, as CSV.
    #[arg(long)]
    pub means: Option<PathBuf>,
    /// Where a chart of completion times over what varies goes, as SVG.
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Where every flow's times go, as CSV.
    #[arg(long)]
    pub flows: Option<PathBuf>,
    /// Where goodput and queues go, in bins of 100 ms, as CSV.
    #[arg(long)]
    pub series: Option<PathBuf>,
    /// A link whose queue is in the series; more than one is allowed.
    #[arg(long, value_name = "LINK")]
    pub watch: Vec<u32>,
    /// Where congestion window, smoothed round trip and queue of single flows go, every 100 ms, as
    /// CSV. The queue is that of the first watched link; of link 0 if there is none.
    #[arg(long, value_name = "FILE")]
    pub flow_series: Option<PathBuf>,
    /// Where a chart of the same goes, as SVG: six flows of the first combination and seed.
    #[arg(long, value_name = "FILE")]
    pub flow_plot: Option<PathBuf>,
    /// A flow that is in these; more than one is allowed. If not given: the first six.
    #[arg(long, value_name = "NUMBER")]
    pub flow: Vec<u32>,
    /// Write the packets of a link: NUMBER:FILE.pcapng. One combination only.
    #[arg(long, value_parser = capture::parse)]
    pub capture: Option<capture::Capture>,
    /// Only check the file.
    #[arg(long)]
    pub check: bool,
    /// Print results as JSON lines.
    #[arg(long)]
    pub json: bool,
}

/// One share of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the share, from 1 on.
    pub number: usize,
    /// Number of shares.
    pub of: usize,
}

fn parse_shard(text: &str) -> Result<Shard, String> {
    let bad = || format!("{text:?} is no share; write for example 2/4");
    let (number, of) = text.split_once('/').ok_or_else(bad)?;
    let shard =
        Shard { number: number.parse().map_err(|_| bad())?, of: of.parse().map_err(|_| bad())? };
    if shard.number >= 1 && shard.number <= shard.of { Ok(shard) } else { Err(bad()) }
}

/// One combination and seed to run.
struct Job {
    point: usize,
    seed: u64,
    scenario: Scenario,
}

/// Results of all runs.
struct Results {
    rows: Vec<PointRow>,
    flows: Vec<FlowRow>,
    series: Option<Series>,
    each: Option<Each>,
}

/// Runs the scenarios of a file.
///
/// # Errors
/// When the file is wrong, or a result cannot be written.
pub fn sim(args: &SimArgs) -> Result<ExitCode> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let sweep = Sweep::read(&args.file, &text)?;
    let points = chosen(args, sweep.points())?;
    if args.check {
        sweep.check(&points)?;
        println!("{}: {} combinations, no error", args.file.display(), sweep.points());
        return Ok(ExitCode::SUCCESS);
    }
    check_watched(args)?;
    if let Some(capture) = &args.capture {
        if points.len() != 1 {
            return Err(Refused(FileError::ManyCaptured).into());
        }
        let scenario = with_seed(sweep.scenario(points[0])?, args.seed);
        capture.write(&scenario)?;
    }
    let origin = Origin::new(&text, &sweep, args);
    let results = run(args, &origin, &sweep, &points)?;
    if let Some(path) = &args.flows {
        write_flows(path, &results.flows)?;
    }
    if let (Some(path), Some(series)) = (&args.series, &results.series) {
        text_file(path, series.csv())?;
    }
    if let Some(each) = &results.each {
        let files = [(&args.flow_series, each.csv()), (&args.flow_plot, each.svg())];
        for (path, text) in
            files.into_iter().filter_map(|(path, text)| Some((path.as_ref()?, text)))
        {
            text_file(path, text)?;
        }
    }
    output::write(args, &results.rows)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that what is watched goes anywhere, and that it is not too much.
fn check_watched(args: &SimArgs) -> Result<()> {
    let has_flows = args.flow_series.is_some() || args.flow_plot.is_some();
    ensure!(
        args.watch.is_empty() || has_flows || args.series.is_some(),
        "--watch needs --series, --flow-series or --flow-plot"
    );
    ensure!(args.flow.is_empty() || has_flows, "--flow needs --flow-series or --flow-plot");
    let count = args.flow.len();
    ensure!(count <= FLOWS_MAX, "{count} flows are too many for series; the limit is {FLOWS_MAX}");
    Ok(())
}

fn chosen(args: &SimArgs, points: usize) -> Result<Vec<usize>> {
    match args.point {
        Some(point) if point < points => Ok(vec![point]),
        Some(point) => {
            let (what, number) = ("combination", u32::try_from(point).unwrap_or(u32::MAX));
            Err(Refused(FileError::Missing { what, number, count: points }).into())
        }
        None => Ok((0..points).filter(|it| it % args.shard.of == args.shard.number - 1).collect()),
    }
}

fn with_seed(mut scenario: Scenario, seed: Option<u64>) -> Scenario {
    scenario.seed = seed.unwrap_or(scenario.seed);
    scenario
}

/// Runs as many combinations at once as there are cores, so that a large sweep does not hold all
/// its scenarios in memory.
fn run(args: &SimArgs, origin: &Origin, sweep: &Sweep, points: &[usize]) -> Result<Results> {
    const BATCH: usize = 64;
    let bar = progress("simulating", points.len() as u64 * args.seeds);
    let series = args.series.as_ref().map(|_| Series::new(&args.watch));
    let wants_flows = args.flow_series.is_some() || args.flow_plot.is_some();
    let link = args.watch.first().copied().unwrap_or(0);
    let each = wants_flows.then(|| Each::new(&args.flow, link));
    let mut results = Results { rows: Vec::new(), flows: Vec::new(), series, each };
    let all: Vec<(usize, u64)> =
        points.iter().flat_map(|point| (0..args.seeds).map(|seed| (*point, seed))).collect();
    for batch in all.chunks(BATCH) {
        let mut jobs = Vec::new();
        for (point, number) in batch {
            let mut scenario = with_seed(sweep.scenario(*point)?, args.seed);
            scenario.seed = scenario.seed.wrapping_add(*number);
            if let Some(series) = &results.series {
                series.watch(&mut scenario);
            }
            if let Some(each) = &results.each {
                each.watch(&mut scenario);
            }
            jobs.push(Job { point: *point, seed: scenario.seed, scenario });
        }
        let outcomes = parallel::map(&jobs, |job| {
            let outcome = Network::new(&job.scenario).map(Network::run);
            bar.inc(1);
            outcome
        });
        for (job, outcome) in jobs.iter().zip(outcomes) {
            let outcome = outcome.map_err(|it| Refused(it.into()))?;
            let indices = sweep.indices(job.point);
            let combination = (job.point, &indices[..]);
            results.rows.push(PointRow::new(origin, combination, &job.scenario, &outcome));
            if args.flows.is_some() {
                results.flows.extend(FlowRow::all(job.point, job.seed, &outcome));
            }
            if let Some(series) = &mut results.series {
                series.add(job.point, job.seed, &outcome);
            }
            if let Some(each) = &mut results.each {
                each.add((job.point, job.seed), &job.scenario, &outcome);
            }
        }
    }
    bar.finish_and_clear();
    Ok(results)
}
