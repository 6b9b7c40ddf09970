//! The output of a sweep: a row for each combination and seed, which says what it is of, and the
//! joining of shares.

use super::columns::Column;
use super::error::{FileError, Refused};
use super::means::Means;
use super::plot::plot;
use super::{SimArgs, Sweep};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use holdfast_netsim::net::{Outcome, Scenario};
use holdfast_program::BUILD;
use holdfast_report::Summary;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Most bytes of one file of results.
const RESULTS_BYTES_MAX: u64 = 1 << 30;

/// Options of `holdfast-lab merge`.
#[derive(Args, Clone, Debug)]
pub struct MergeArgs {
    /// What the shares wrote with --output.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Where the joined results go, as CSV; stdout if not given.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// Where means over the seeds go, as CSV.
    #[arg(long)]
    pub means: Option<PathBuf>,
    /// Print the joined results as JSON lines instead.
    #[arg(long)]
    pub json: bool,
}

/// What all rows of a run are of. It is in every row, so that each stands for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Checksum of the scenario file's text.
    scenario: String,
    seed: Option<u64>,
    seeds: u64,
    points: usize,
    columns: Vec<Column>,
}

impl Origin {
    /// The origin of the results of a file.
    pub fn new(text: &str, sweep: &Sweep, args: &SimArgs) -> Self {
        // FNV-1a distinguishes two versions of a file, and protects nothing.
        let checksum = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The seed has a column of its own anyway.
        let axes = sweep.axes().iter();
        let columns = axes.map(|(name, values)| Column::of(name, values)).collect();
        let (seed, seeds, points) = (args.seed, args.seeds, sweep.points());
        Self { scenario: format!("{checksum:016x}"), seed, seeds, points, columns }
    }

    /// The values that vary, of one combination.
    fn swept(&self, indices: &[usize]) -> BTreeMap<String, Json> {
        let cells = self.columns.iter().zip(indices);
        cells
            .filter(|(column, _)| column.name != "seed")
            .map(|(column, index)| (column.name.clone(), column.values[*index].clone()))
            .collect()
    }
}

/// Results of one combination and seed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PointRow {
    /// Number of the combination.
    pub point: usize,
    pub seed: u64,
    pub flows: usize,
    /// Number of flows whose sender knows that everything has arrived.
    pub finished: usize,
    pub completion_min_s: f64,
    pub completion_median_s: f64,
    pub completion_max_s: f64,
    pub timeouts: u64,
    pub syn_timeouts: u64,
    pub resent: u64,
    pub overflowed: u64,
    pub lost: u64,
    pub cut: u64,
    /// Number of packets that the edge resent.
    pub kicked: u64,
    /// Number of acknowledgements whose window the edge reduced.
    pub capped: u64,
    pub events: u64,
    pub hops: u64,
    pub ended_s: f64,
    /// Version of the program.
    version: String,
    /// Checksum of the scenario file's text.
    scenario: String,
    /// Number of combinations, and of seeds for each.
    points: usize,
    seeds: u64,
    /// First seed, if it was not the file's.
    first_seed: Option<u64>,
    /// What varies, with units in the names.
    #[serde(flatten)]
    pub swept: BTreeMap<String, Json>,
}

/// Columns that say what a row is of, and are no results.
const OF_THE_RUN: [&str; 5] = ["version", "scenario", "points", "seeds", "first_seed"];

impl PointRow {
    /// The row of an outcome.
    pub fn new(
        origin: &Origin,
        (point, indices): (usize, &[usize]),
        scenario: &Scenario,
        outcome: &Outcome,
    ) -> Self {
        let times: Vec<f64> = outcome.flows.iter().filter_map(|it| it.completion_s()).collect();
        let completion = Summary::of(&times);
        let flows = || outcome.flows.iter().map(|it| it.counts);
        let links = || outcome.links.iter();
        Self {
            point,
            seed: scenario.seed,
            flows: scenario.flows.len(),
            finished: times.len(),
            completion_min_s: completion.min,
            completion_median_s: completion.median,
            completion_max_s: completion.max,
            timeouts: flows().map(|it| u64::from(it.timeouts)).sum(),
            syn_timeouts: flows().map(|it| u64::from(it.syn_timeouts)).sum(),
            resent: flows().map(|it| it.resent).sum(),
            overflowed: links().map(|it| it.overflowed).sum(),
            lost: links().map(|it| it.lost).sum(),
            cut: links().map(|it| it.cut).sum(),
            kicked: outcome.recovery.iter().map(|it| it.resent).sum(),
            capped: outcome.rate_control.iter().map(|it| it.capped).sum(),
            events: outcome.events,
            hops: outcome.hops,
            ended_s: outcome.ended_ns as f64 / 1e9,
            version: BUILD.to_owned(),
            scenario: origin.scenario.clone(),
            points: origin.points,
            seeds: origin.seeds,
            first_seed: origin.seed,
            swept: origin.swept(indices),
        }
    }

    /// What varies, in words.
    pub fn varied(&self) -> String {
        self.varied_but("")
    }

    /// What varies besides one name, in words.
    pub fn varied_but(&self, but: &str) -> String {
        let one = |(name, value): (&String, &Json)| format!("{name} = {value}");
        let others = self.swept.iter().filter(|it| it.0 != but);
        others.map(one).collect::<Vec<_>>().join(", ")
    }

    /// The results that are numbers, by name.
    pub fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("flows", self.flows as f64),
            ("finished", self.finished as f64),
            ("completion_min_s", self.completion_min_s),
            ("completion_median_s", self.completion_median_s),
            ("completion_max_s", self.completion_max_s),
            ("timeouts", self.timeouts as f64),
            ("syn_timeouts", self.syn_timeouts as f64),
            ("resent", self.resent as f64),
            ("overflowed", self.overflowed as f64),
            ("lost", self.lost as f64),
            ("cut", self.cut as f64),
            ("kicked", self.kicked as f64),
            ("capped", self.capped as f64),
            ("ended_s", self.ended_s),
        ]
    }

    fn print(&self) {
        println!("point {} seed {}  {}", self.point, self.seed, self.varied());
        println!(
            "  {} of {} flows finished, in {:.3} / {:.3} / {:.3} s (least, median, most)",
            self.finished,
            self.flows,
            self.completion_min_s,
            self.completion_median_s,
            self.completion_max_s
        );
        println!(
            "  timeouts {} (SYN {}), resent {}, overflowed {}, lost {}, cut {}, kicked {}, capped {}",
            self.timeouts,
            self.syn_timeouts,
            self.resent,
            self.overflowed,
            self.lost,
            self.cut,
            self.kicked,
            self.capped
        );
    }
}

/// Times of one flow, as a line of CSV.
pub struct FlowRow(String);

impl FlowRow {
    /// The rows of all flows in an outcome.
    pub fn all(point: usize, seed: u64, outcome: &Outcome) -> impl Iterator<Item = Self> {
        let seconds =
            |at: Option<u64>| at.map_or(String::new(), |ns| format!("{}", ns as f64 / 1e9));
        outcome.flows.iter().enumerate().map(move |(index, flow)| {
            Self(format!(
                "{point},{seed},{index},{},{},{},{},{},{},{}",
                flow.start_ns as f64 / 1e9,
                seconds(flow.connected_ns),
                seconds(flow.received_ns),
                seconds(flow.finished_ns),
                flow.counts.timeouts,
                flow.counts.syn_timeouts,
                flow.counts.resent
            ))
        })
    }
}

/// Writes the rows of flows as CSV.
///
/// # Errors
/// When the file cannot be written.
pub fn write_flows(path: &Path, rows: &[FlowRow]) -> Result<()> {
    let mut csv = String::from(
        "point,seed,flow,start_s,connected_s,received_s,finished_s,timeouts,syn_timeouts,resent\n",
    );
    for row in rows {
        csv.push_str(&row.0);
        csv.push('\n');
    }
    text_file(path, &csv)
}

/// Writes a file.
///
/// # Errors
/// When the file cannot be written, with its name.
pub fn text_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes results to the file or to stdout, as the options say.
///
/// # Errors
/// When they cannot be written.
pub fn write(args: &SimArgs, rows: &[PointRow]) -> Result<()> {
    let means = Means::of(rows);
    if let Some(path) = &args.means {
        text_file(path, &means.csv())?;
    }
    if let Some(path) = &args.plot {
        text_file(path, &plot(rows).ok_or(Refused(FileError::NothingToPlot))?)?;
    }
    match &args.output {
        Some(path) => text_file(path, &lines(rows)?)?,
        None if args.json => print!("{}", lines(rows)?),
        None if args.seeds > 1 => means.print(),
        None => rows.iter().for_each(PointRow::print),
    }
    Ok(())
}

/// Rows as JSON, one a line.
fn lines(rows: &[PointRow]) -> Result<String> {
    let mut lines = String::new();
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{}", serde_json::to_string(row)?);
    }
    Ok(lines)
}

/// Joins the files that the shares of a sweep have written.
///
/// # Errors
/// When they are not shares of one sweep, or a result is missing or occurs twice.
pub fn merge(args: &MergeArgs) -> Result<ExitCode> {
    let mut rows: BTreeMap<(usize, u64), PointRow> = BTreeMap::new();
    for path in &args.files {
        let shown = path.display();
        let length = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.len();
        if length > RESULTS_BYTES_MAX {
            bail!("{shown} has {length} bytes; the limit is {RESULTS_BYTES_MAX}");
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{shown}, line {}", number + 1);
            let row: PointRow = serde_json::from_str(line).with_context(|| {
                format!("{} is no row that `holdfast-lab sim --output` writes", place())
            })?;
            if rows.values().next().is_some_and(|known| !known.is_of_the_run_of(&row)) {
                let first = args.files[0].display();
                bail!("{} is of another scenario, version or seed than {first}", place());
            }
            let key = (row.point, row.seed);
            if rows.insert(key, row).is_some() {
                bail!("{} repeats point {} seed {}", place(), key.0, key.1);
            }
        }
    }
    let Some(first) = rows.values().next() else { bail!("no rows") };
    let wanted = first.points as u64 * first.seeds;
    if rows.len() as u64 != wanted {
        bail!("{} of {wanted} results are there; add the files of the other shares", rows.len());
    }
    let rows: Vec<PointRow> = rows.into_values().collect();
    if let Some(path) = &args.means {
        text_file(path, &Means::of(&rows).csv())?;
    }
    let text = if args.json { lines(&rows)? } else { csv(&rows)? };
    match &args.output {
        Some(path) => text_file(path, &text)?,
        None => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

impl PointRow {
    fn is_of_the_run_of(&self, other: &Self) -> bool {
        let own = |it: &Self| (it.version.clone(), it.scenario.clone(), it.points, it.seeds);
        own(self) == own(other) && self.first_seed == other.first_seed
    }
}

/// Rows as CSV: what varies, then the results, then what they are of.
fn csv(rows: &[PointRow]) -> Result<String> {
    let mut csv = String::new();
    for (index, row) in rows.iter().enumerate() {
        let Json::Object(fields) = serde_json::to_value(row)? else { continue };
        let is_of_run = |name: &str| OF_THE_RUN.contains(&name);
        let is_result = |name: &str| !is_of_run(name) && !row.swept.contains_key(name);
        let results = fields.iter().filter(|it| is_result(it.0));
        let of_run = fields.iter().filter(|it| is_of_run(it.0));
        let all: Vec<(&String, &Json)> = row.swept.iter().chain(results).chain(of_run).collect();
        if index == 0 {
            csv.push_str(&joined(all.iter().map(|it| (*it.0).clone())));
        }
        csv.push_str(&joined(all.iter().map(|it| cell(it.1))));
    }
    Ok(csv)
}

/// A line of CSV.
pub fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(",") + "\n"
}

/// A value as a cell of CSV: one with a comma or a quote is quoted (RFC 4180).
pub fn cell(value: &Json) -> String {
    let text = match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}
