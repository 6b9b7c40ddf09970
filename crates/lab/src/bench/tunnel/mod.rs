//! `holdfast-lab bench tunnel`: the coded tunnel beside no tunnel at all and beside other people's,
//! over the same emulated wire, with the same load. Lanes of small loads go side by side, each over
//! a wire of its own; those that fill a wire take turns, round by round.

mod bed;
mod bulk;
mod cell;
mod draw;
mod fair;
mod lane;
mod paths;
mod report;
mod talk;
mod work;

use crate::emu::EmuSpec;
use anyhow::{Context as _, Result, bail, ensure};
use cell::{Round, Setting};
use clap::Args;
use fair::FairRow;
use holdfast_report::{Summary, progress};
use lane::{LANES, Lane, NOT_THERE, Peers};
use paths::Path;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use work::{WORKLOADS, Workload};

/// A load of at most so many packets per second leaves room for other lanes beside it.
const SMALL_PER_SECOND: u32 = 200;

/// Options of the tunnel bench.
#[derive(Args, Clone, Debug)]
pub struct TunnelArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Which workloads: S, V, M, M4, R, R5, F, B, B+M.
    #[arg(long, value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Which lanes (plain-udp, ours, ours-splice, wireguard, ...); names that are not known are
    /// told together with all that are.
    #[arg(long, value_delimiter = ',')]
    pub lane: Vec<String>,
    /// Which losses, alike in both directions: 10% at random, 10%/3 in runs of 3.
    #[arg(long, value_delimiter = ',', default_value = "0%,1%,10%")]
    pub loss: Vec<String>,
    /// The loss lies behind the queue, not before it.
    #[arg(long)]
    pub behind: bool,
    /// The path's round trip without queues, ms.
    #[arg(long, default_value_t = 20)]
    pub rtt_ms: u32,
    /// The path's rate, in the words of the emulator.
    #[arg(long, default_value = "50mbit")]
    pub rate: String,
    /// Full-sized packets that may wait for the rate.
    #[arg(long, default_value_t = 100)]
    pub queue: u32,
    /// Further words of the emulator, for example "jitter 1ms back loss 1%".
    #[arg(long, default_value = "")]
    pub path: String,
    /// Beyond the path's delay, after which a message is late, us. The tunnel's own budget is 2 ms;
    /// the programs of both ends and the wire take some of the rest.
    #[arg(long, default_value_t = 2500)]
    pub budget_us: u64,
    /// Messages (of F: frames) that count in each cell.
    #[arg(long, default_value_t = 20_000)]
    pub messages: usize,
    /// How long bulk counts, s.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// How often each cell is measured.
    #[arg(long, default_value_t = 1)]
    pub rounds: u64,
    /// A few seconds for each cell: 400 messages, or 3 s of bulk.
    #[arg(long)]
    pub quick: bool,
    /// Instead: ours beside none over many kinds of paths; is it anywhere worse?
    #[arg(long)]
    pub matrix: bool,
    /// Of the matrix only paths with this in their name, for example "jitter".
    #[arg(long, default_value = "", requires = "matrix")]
    pub only: String,
    /// Instead: bulk through ours beside connections of the kernel with CUBIC, on 20 Mbit/s.
    #[arg(long, conflicts_with = "matrix")]
    pub fair: bool,
    /// Beside how many of those connections, in turn.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", requires = "fair")]
    pub beside: Vec<usize>,
    /// The folder of the peers' programs, which scripts/peers fills.
    #[arg(long, default_value = "target/peers/bin")]
    pub peers: PathBuf,
    /// Where the distributions and the rates are drawn; without it, nowhere.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Draws the losses and the plans.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A lane's rounds in a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    lane: &'static str,
    rounds: Vec<Round>,
    /// Why there are fewer than asked for.
    failed: Option<String>,
}

/// A workload over a path.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    workload: &'static str,
    about: &'static str,
    path: String,
    /// The path in the words of the emulator.
    words: String,
    deadlines_ms: [f64; 2],
    rows: Vec<Row>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct TunnelReport {
    bench: &'static str,
    rounds: u64,
    messages: usize,
    seconds: u64,
    cells: Vec<Cell>,
    /// Where ours is worse than none, of the matrix.
    worse: Vec<String>,
    is_matrix: bool,
    fair: Vec<FairRow>,
    not_measured: Vec<String>,
}

/// Runs the bench.
///
/// # Errors
/// When an option is wrong, or no namespace can be made.
pub fn run(args: &TunnelArgs) -> Result<TunnelReport> {
    let args = args.with_quick();
    let peers = Peers(args.peers.clone());
    if args.fair {
        let fair = fair::run(&args, &peers)?;
        return Ok(TunnelReport { fair, ..TunnelReport::of(&args) });
    }
    let lanes = args.lanes()?;
    let mut report = TunnelReport::of(&args);
    let (here, not_here): (Vec<Lane>, Vec<Lane>) =
        lanes.into_iter().partition(|lane| lane.missing(&peers).is_none());
    let reason = |lane: &Lane| lane.missing(&peers).map(|it| format!("{}: {it}", lane.name));
    report.not_measured.extend(not_here.iter().filter_map(reason));
    let (workloads, paths) = (args.workloads()?, args.paths()?);
    let progress = progress("tunnel", (workloads.len() * paths.len()) as u64);
    for workload in &workloads {
        for path in &paths {
            report.cells.push(args.measure(workload, path, &here, &peers)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    if args.matrix {
        report.worse = report.cells.iter().flat_map(paths::worse).collect();
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, draw::draw(&report))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(report)
}

impl TunnelReport {
    fn of(args: &TunnelArgs) -> Self {
        Self {
            bench: "tunnel",
            rounds: args.rounds,
            messages: args.messages,
            seconds: args.seconds,
            cells: Vec::new(),
            worse: Vec::new(),
            is_matrix: args.matrix,
            fair: Vec::new(),
            not_measured: NOT_THERE.map(str::to_owned).to_vec(),
        }
    }

    /// Whether nothing failed, and ours is nowhere worse than none where that was asked.
    pub fn is_good(&self) -> bool {
        let mut rows = self.cells.iter().flat_map(|cell| &cell.rows);
        self.worse.is_empty() && rows.all(|row| row.failed.is_none())
    }
}

impl TunnelArgs {
    fn with_quick(&self) -> Self {
        let (messages, seconds) = if self.quick { (400, 3) } else { (self.messages, self.seconds) };
        Self { messages, seconds, ..self.clone() }
    }

    fn workloads(&self) -> Result<Vec<Workload>> {
        let names = self.names(&self.workload, &paths::WORKLOADS);
        chosen(&WORKLOADS, &names, |it| it.name, "workload")
    }

    fn lanes(&self) -> Result<Vec<Lane>> {
        let names = self.names(&self.lane, &paths::LANES);
        chosen(&LANES, &names, |it| it.name, "lane")
    }

    /// The names that were asked for, or without any those of the matrix, if that is what is measured.
    fn names(&self, asked: &[String], of_matrix: &[&str]) -> Vec<String> {
        let is_of_matrix = asked.is_empty() && self.matrix;
        if is_of_matrix {
            of_matrix.iter().map(|it| (*it).to_owned()).collect()
        } else {
            asked.to_vec()
        }
    }

    fn paths(&self) -> Result<Vec<Path>> {
        if self.matrix {
            let mut paths = paths::matrix();
            paths.retain(|path| path.name.contains(&self.only));
            return Ok(paths);
        }
        self.loss.iter().map(|text| Path::of_loss(text, self.behind)).collect()
    }

    /// The wire of a path.
    fn spec(&self, path: &Path, seed: u64) -> Result<EmuSpec> {
        let delay_us = u64::from(self.rtt_ms) * 500;
        let text = format!(
            "delay {delay_us}us rate {} queue {} seed {seed} {} {}",
            self.rate, self.queue, path.words, self.path
        );
        text.parse().with_context(|| text.clone())
    }

    fn setting(&self, path: &Path, round: u64) -> Result<Setting> {
        let seed = self.seed + round;
        Ok(Setting {
            spec: self.spec(path, seed)?,
            budget: Duration::from_micros(self.budget_us),
            messages: self.messages,
            bulk: Duration::from_secs(self.seconds),
            seed,
        })
    }

    /// A cell, round by round.
    fn measure(
        &self,
        workload: &Workload,
        path: &Path,
        lanes: &[Lane],
        peers: &Peers,
    ) -> Result<Cell> {
        let fits = |lane: &&Lane| if workload.has_bulk { lane.bulk } else { lane.messages };
        let lanes: Vec<&Lane> = lanes.iter().filter(fits).collect();
        let first = self.setting(path, 0)?;
        let mut rows: Vec<Row> = lanes.iter().map(|lane| Row::of(lane)).collect();
        for round in 0..self.rounds {
            let setting = self.setting(path, round)?;
            let measure = |lane: &Lane| workload.measure(lane, &setting, peers);
            if is_small(workload) {
                let all = std::thread::scope(|scope| {
                    let started = lanes.iter().map(|lane| scope.spawn(|| measure(lane)));
                    let started: Vec<_> = started.collect();
                    started.into_iter().map(|it| it.join()).collect::<Vec<_>>()
                });
                for (row, measured) in rows.iter_mut().zip(all) {
                    let Ok(measured) = measured else { bail!("a lane panicked") };
                    row.take(measured);
                }
            } else {
                for (row, lane) in rows.iter_mut().zip(&lanes) {
                    row.take(measure(lane));
                }
            }
        }
        Ok(Cell {
            workload: workload.name,
            about: workload.about,
            path: path.name.clone(),
            words: first.spec.to_string(),
            deadlines_ms: first.deadlines().map(|it| it.as_secs_f64() * 1e3),
            rows,
        })
    }
}

fn is_small(workload: &Workload) -> bool {
    !workload.has_bulk && workload.messages.is_some_and(|it| it.per_second <= SMALL_PER_SECOND)
}

impl Row {
    fn of(lane: &Lane) -> Self {
        Self { lane: lane.name, rounds: Vec::new(), failed: None }
    }

    /// The median of the rounds that have it.
    fn median(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| Summary::of(&values).median)
    }

    fn take(&mut self, measured: Result<Round>) {
        match measured {
            Ok(round) => self.rounds.push(round),
            Err(error) => self.failed = Some(format!("{error:#}")),
        }
    }
}

/// Those with these names; all without any.
fn chosen<T: Copy>(
    all: &[T],
    names: &[String],
    name_of: impl Fn(&T) -> &'static str,
    what: &str,
) -> Result<Vec<T>> {
    for name in names {
        let known: Vec<&str> = all.iter().map(&name_of).collect();
        ensure!(known.contains(&name.as_str()), "no {what} {name}; there are {}", known.join(", "));
    }
    let is_chosen = |it: &&T| names.is_empty() || names.iter().any(|name| *name == name_of(it));
    Ok(all.iter().filter(is_chosen).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_told_with_what_is() {
        let error = chosen(&WORKLOADS, &["X".into()], |it| it.name, "workload").unwrap_err();
        assert!(error.to_string().contains("no workload X; there are S, V, M"), "{error}");
        let names: Vec<String> = ["B", "S"].map(str::to_owned).to_vec();
        let found = chosen(&WORKLOADS, &names, |it| it.name, "workload").unwrap();
        assert_eq!(found.iter().map(|it| it.name).collect::<Vec<_>>(), ["S", "B"]);
        assert_eq!(chosen(&LANES, &[], |it| it.name, "lane").unwrap().len(), LANES.len());
    }

    #[test]
    fn names_of_the_matrix_are_known() {
        let names = paths::LANES.map(str::to_owned);
        chosen(&LANES, &names, |it| it.name, "lane").unwrap();
        chosen(&WORKLOADS, &paths::WORKLOADS.map(str::to_owned), |it| it.name, "workload").unwrap();
    }
}
