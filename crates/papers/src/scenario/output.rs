//! The output of a sweep: a line of JSON that says what was run, and one for each combination and
//! seed; and the joining of shares.

use super::{SimArgs, Sweep};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use holdfast_netsim::net::{Outcome, Scenario};
use holdfast_program::BUILD;
use holdfast_report::Summary;
use serde::{Deserialize, Serialize};
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
    /// Print the joined results as JSON lines instead.
    #[arg(long)]
    pub json: bool,
}

/// The first line of the output, which says what was run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Header {
    schema: String,
    version: String,
    /// Length of the scenario file's text, in bytes.
    file_length: u64,
    /// Checksum of the scenario file's text.
    file_checksum: u64,
    points: usize,
    names: Vec<String>,
    seed: Option<u64>,
    seeds: u64,
}

impl Header {
    /// The header of the results of a file.
    pub fn new(text: &str, sweep: &Sweep, seed: Option<u64>, seeds: u64) -> Self {
        // FNV-1a distinguishes two versions of a file, and protects nothing.
        let checksum = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            schema: "holdfast.lab.sim/1".to_owned(),
            version: BUILD.to_owned(),
            file_length: text.len() as u64,
            file_checksum: checksum,
            points: sweep.points(),
            names: sweep.names().map(str::to_owned).collect(),
            seed,
            seeds,
        }
    }
}

/// Results of one combination and seed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PointRow {
    /// Number of the combination.
    pub point: usize,
    pub seed: u64,
    /// Values of the combination, in the order of the header's names.
    pub values: Vec<serde_json::Value>,
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
}

impl PointRow {
    /// The row of an outcome.
    pub fn new(
        point: usize,
        seed: u64,
        sweep: &Sweep,
        scenario: &Scenario,
        outcome: &Outcome,
    ) -> Self {
        let times: Vec<f64> = outcome.flows.iter().filter_map(|it| it.completion_s()).collect();
        let completion = Summary::of(&times);
        let flows = || outcome.flows.iter().map(|it| it.counts);
        let links = || outcome.links.iter();
        let json = |value: &toml::Value| serde_json::to_value(value).unwrap_or_default();
        Self {
            point,
            seed,
            values: sweep.values(point).iter().map(json).collect(),
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
        }
    }

    fn print(&self, names: &[String]) {
        let varied: Vec<String> = names
            .iter()
            .zip(&self.values)
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        println!("point {} seed {}  {}", self.point, self.seed, varied.join(", "));
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
    csv_file(path, &csv)
}

/// Writes a CSV file.
///
/// # Errors
/// When the file cannot be written, with its name.
pub fn csv_file(path: &Path, csv: &str) -> Result<()> {
    std::fs::write(path, csv).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes results to the file or to stdout, as the options say.
///
/// # Errors
/// When they cannot be written.
pub fn write(args: &SimArgs, header: &Header, rows: &[PointRow]) -> Result<()> {
    let mut lines = serde_json::to_string(header)?;
    lines.push('\n');
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{}", serde_json::to_string(row)?);
    }
    match &args.output {
        Some(path) => std::fs::write(path, &lines)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None if args.json => print!("{lines}"),
        None => rows.iter().for_each(|row| row.print(&header.names)),
    }
    Ok(())
}

/// Joins the files that the shares of a sweep have written.
///
/// # Errors
/// When they are not shares of one sweep, or a result is missing or occurs twice.
pub fn merge(args: &MergeArgs) -> Result<ExitCode> {
    let mut header: Option<Header> = None;
    let mut rows = BTreeMap::new();
    for path in &args.files {
        let shown = path.display();
        let length = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.len();
        if length > RESULTS_BYTES_MAX {
            bail!("{shown} has {length} bytes; the limit is {RESULTS_BYTES_MAX}");
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let found: Header = serde_json::from_str(first).with_context(|| {
            format!("{shown} does not begin as `holdfast-lab sim --output` writes it")
        })?;
        if header.as_ref().is_some_and(|known| *known != found) {
            bail!(
                "{shown} is of another scenario, version or seed than {}",
                args.files[0].display()
            );
        }
        header = Some(found);
        for (number, line) in lines.enumerate() {
            let row: PointRow = serde_json::from_str(line)
                .with_context(|| format!("{shown}, line {}", number + 2))?;
            let key = (row.point, row.seed);
            if rows.insert(key, row).is_some() {
                bail!("{shown} repeats point {} seed {}", key.0, key.1);
            }
        }
    }
    let Some(header) = header else { bail!("no files") };
    let wanted = header.points as u64 * header.seeds;
    if rows.len() as u64 != wanted {
        bail!("{} of {wanted} results are there; add the files of the other shares", rows.len());
    }
    show_merged(args, &header, &rows.into_values().collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

fn show_merged(args: &MergeArgs, header: &Header, rows: &[PointRow]) -> Result<()> {
    let mut text = String::new();
    if args.json {
        let _ = writeln!(text, "{}", serde_json::to_string(header)?);
        for row in rows {
            let _ = writeln!(text, "{}", serde_json::to_string(row)?);
        }
    } else {
        text = csv(header, rows)?;
    }
    match &args.output {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => print!("{text}"),
    }
    Ok(())
}

fn csv(header: &Header, rows: &[PointRow]) -> Result<String> {
    let mut csv = String::new();
    for (index, row) in rows.iter().enumerate() {
        let serde_json::Value::Object(fields) = serde_json::to_value(row)? else {
            continue;
        };
        let plain = || fields.iter().filter(|it| it.0 != "values");
        if index == 0 {
            let names = header.names.iter().cloned().chain(plain().map(|it| it.0.clone()));
            let _ = writeln!(csv, "{}", names.collect::<Vec<_>>().join(","));
        }
        let values = row.values.iter().chain(plain().map(|it| it.1)).map(cell);
        let _ = writeln!(csv, "{}", values.collect::<Vec<_>>().join(","));
    }
    Ok(csv)
}

/// A value as a cell of CSV: one with a comma or a quote is quoted (RFC 4180).
fn cell(value: &serde_json::Value) -> String {
    let text = match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}
