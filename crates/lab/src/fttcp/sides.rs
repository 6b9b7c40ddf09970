//! The sides that are compared: clean TCP and each buffering mode with a cold and a hot backup.
//! Also how much a load gets through.

use crate::bench::service::{Service, Variant, address, with_service};
use crate::load::{Group, Report, Run, Spec, Workload};
use crate::testbed::ours::{ColdOptions, GroupOptions};
use crate::testbed::server::Program;
use crate::testbed::{LogLink, Plan, Role, Shape};
use anyhow::{Context as _, Result, ensure};
use holdfast_papers::figures::Effort;
use holdfast_report::Summary;
use holdfast_report::plot::{Bar, Chart};
use holdfast_wire::buffering::Buffering;

/// Rate of the paper's client link, in bits per second (§5.2).
pub(super) const LINK_BITS_PER_S: u64 = 10_000_000;

/// Duration of the load of a round, in ms.
const LOAD_MS: u64 = 3_000;
/// Duration of the load of a round in a quick run, in ms.
const QUICK_LOAD_MS: u64 = 600;

/// Time at the start of a load that is not measured, in ms: it empties the bucket that limits the
/// link, which otherwise lets a quarter of a megabyte pass at once.
const WARM_MS: u64 = 400;

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Plain TCP, without Holdfast.
    Clean,
    Ours {
        cold: bool,
        buffering: Buffering,
    },
}

impl Side {
    /// Clean TCP, and Holdfast with its default buffering, cold and hot.
    pub(super) const USUAL: [Self; 3] =
        [Self::Clean, Self::cold(Buffering::Commit), Self::hot(Buffering::Commit)];

    pub(super) const fn cold(buffering: Buffering) -> Self {
        Self::Ours { cold: true, buffering }
    }

    pub(super) const fn hot(buffering: Buffering) -> Self {
        Self::Ours { cold: false, buffering }
    }

    /// Clean TCP, then each mode cold and hot, in the order of the paper's Fig. 3.
    pub(super) fn all() -> Vec<Self> {
        let modes = Buffering::ALL.into_iter().rev();
        let ours = modes.flat_map(|mode| [Self::cold(mode), Self::hot(mode)]);
        std::iter::once(Self::Clean).chain(ours).collect()
    }

    /// The side's name in words, which is also part of a column's name.
    pub(super) fn name(self) -> String {
        match self {
            Self::Clean => "clean TCP".to_owned(),
            Self::Ours { cold, buffering } => {
                let word = buffering.word();
                let mode = if buffering == Buffering::Immediate {
                    word.to_owned()
                } else {
                    word.to_uppercase()
                };
                format!("{} {mode}", if cold { "cold" } else { "hot" })
            }
        }
    }

    /// Builds the side with a redis-server, hands it to `work`, and checks afterwards that it still
    /// protects.
    pub(super) fn serve<T>(
        self,
        shape: Shape,
        work: impl FnOnce(&mut Service<'_>) -> Result<T>,
    ) -> Result<T> {
        let plan = Plan { shape, log: LogLink::Separate, ..Plan::default() };
        let (variant, options) = match self {
            Self::Clean => (Variant::Clean, GroupOptions::default()),
            Self::Ours { cold, buffering } => {
                let cold = cold.then(ColdOptions::default);
                (Variant::Ours, GroupOptions { cold, buffering, ..GroupOptions::default() })
            }
        };
        with_service(variant, Program::Redis, &plan, &options, 0, work).with_context(|| self.name())
    }
}

/// The limit of the paper's link.
pub(super) fn link() -> Shape {
    Shape::Tbf { bits_per_second: LINK_BITS_PER_S }
}

/// Duration of a load, in ms.
pub(super) fn load_ms(effort: &Effort) -> u64 {
    if effort.quick { QUICK_LOAD_MS } else { LOAD_MS }
}

/// How often each number is measured.
pub(super) fn rounds(effort: &Effort, usual: u64) -> u64 {
    effort.rounds.unwrap_or(if effort.quick { 1 } else { usual })
}

/// Runs clients of one kind for the duration of a load.
pub(super) fn run(
    service: &Service<'_>,
    group: Group,
    duration_ms: u64,
    seed: u64,
) -> Result<Report> {
    let spec = Spec {
        address: address(false)?,
        groups: vec![group],
        duration_ms,
        congestion: None,
        fault: None,
        seed,
        points: Vec::new(),
    };
    let report = Run::start(service.testbed.host(Role::Client), &spec)?.finish()?;
    ensure!(report.all_survived(), "a byte was wrong");
    Ok(report)
}

/// Throughput of a load in KB/s after the link's bucket was empty. Of an upload the answered values
/// count, since what a client has given to its kernel may still be there.
pub(super) fn kb_per_s(
    service: &Service<'_>,
    group: &Group,
    duration_ms: u64,
    seed: u64,
) -> Result<f64> {
    run(service, group.clone(), WARM_MS, 2 * seed + 1)?;
    let report = run(service, group.clone(), duration_ms, 2 * seed)?;
    service.ensure_protected()?;
    let bytes = match group.workload {
        Workload::Upload => report.total(|it| it.replies) * group.size_bytes,
        _ => report.total(|it| it.bytes_in),
    };
    Ok(bytes as f64 / report.seconds() / 1e3)
}

/// Values of one side, one for each round.
pub(super) type Rounds = Vec<f64>;

/// Median of the values.
pub(super) fn median(values: &[f64]) -> f64 {
    Summary::of(values).median
}

/// A chart of medians, with one bar for each side in each group; the legend says which is which.
pub(super) fn bars(
    title: &str,
    y_name: &str,
    groups: &[&str],
    sides: &[(String, Vec<f64>)],
) -> Chart {
    let width = 0.8 / sides.len() as f64;
    let one = |(name, (_, values)): (usize, &(String, Vec<f64>))| {
        let bar = move |(group, value): (usize, &f64)| {
            let left = group as f64 + 0.1 + name as f64 * width;
            Bar { x: (left, left + width), y: (0.0, *value), name }
        };
        values.iter().enumerate().map(bar).collect::<Vec<_>>()
    };
    let top = sides.iter().flat_map(|it| &it.1).copied().fold(0.0, f64::max);
    Chart {
        title: title.to_owned(),
        y_name: y_name.to_owned(),
        x_range: (0.0, groups.len() as f64),
        x_names: groups.iter().map(|it| (*it).to_owned()).collect(),
        // The room above the bars is for the legend.
        y_range: Some((0.0, top * (1.2 + 0.08 * sides.len() as f64))),
        bars: sides.iter().enumerate().flat_map(one).collect(),
        bar_names: sides.iter().map(|it| it.0.clone()).collect(),
        ..Chart::default()
    }
}
