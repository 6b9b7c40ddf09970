//! The figures of the HALR and PFRC thesis and of TCP Boston, one file each: the simulation, what
//! the paper says of it, and the results here. Figures that are measured on the wire come from
//! outside ([`Measured`]).

mod active;
mod boston;
mod boston_choices;
mod boston_fig2;
mod boston_fig4;
mod boston_fig5;
mod boston_fig6;
mod boston_sweep;
mod context;
mod fig07;
mod fig08;
mod fig09;
mod fig12;
mod fig13;
mod fig14;
mod fig15;
mod fig16;
mod fig17;
mod fig18;
mod fig19;
mod fig20;
mod fig21;
mod fig22;
mod fig23;
mod fig24;
mod fig25;
mod fig26;
mod report;
mod run;
mod said;
mod short;
mod sweep_failover;
mod sweep_nodes;
mod sweep_policy;
mod sweep_ratio;
mod timeouts;
mod validate;
mod window;

#[cfg(test)]
mod tests;

pub use context::Context;
pub use report::ReportArgs;
pub use run::{ListArgs, NoFigure, RunArgs, list, report, run};
pub use said::{EQUAL_PERCENT, Said};

use holdfast_report::Mean;
use holdfast_report::plot::{Chart, Line};
use serde::Serialize;

/// One figure.
#[derive(Clone, Copy)]
pub struct Figure {
    /// Name of the figure on the command line.
    pub id: &'static str,
    /// What the figure shows.
    pub title: &'static str,
    /// Function that simulates and draws the figure for one seed.
    pub draw: fn(&Context) -> Drawn,
}

/// All figures in the thesis' order, then those of what its text mentions besides, then those of
/// TCP Boston.
pub const FIGURES: [Figure; 28] = [
    fig07::FIGURE,
    fig08::FIGURE,
    fig09::FIGURE,
    fig12::FIGURE,
    fig13::FIGURE,
    fig14::FIGURE,
    fig15::FIGURE,
    fig16::FIGURE,
    fig17::FIGURE,
    fig18::FIGURE,
    fig19::FIGURE,
    fig20::FIGURE,
    fig21::FIGURE,
    fig22::FIGURE,
    fig23::FIGURE,
    fig24::FIGURE,
    fig25::FIGURE,
    fig26::FIGURE,
    sweep_failover::FIGURE,
    sweep_ratio::FIGURE,
    sweep_nodes::FIGURE,
    sweep_policy::FIGURE,
    boston_fig2::FIGURE,
    boston_fig4::FIGURE,
    boston_fig5::FIGURE,
    boston_fig6::FIGURE,
    boston_choices::FIGURE,
    boston_sweep::FIGURE,
];

/// A figure that is measured on the wire, which this crate does not touch: the caller of the verbs
/// provides it.
#[derive(Clone, Copy)]
pub struct Measured {
    /// Name of the figure on the command line.
    pub id: &'static str,
    /// What the figure shows.
    pub title: &'static str,
    /// Function that measures and draws the figure.
    pub measure: fn(&Effort) -> anyhow::Result<Drawn>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// First seed of the load.
    pub seed: u64,
    /// Number of rounds; `None`: as many as the figure needs.
    pub rounds: Option<u64>,
    /// Whether one short round is enough, to see that the figure works.
    pub quick: bool,
}

/// Default number of seeds of a figure whose scenario is random even at seed 0.
const SEEDS_OF_CHANCE: u64 = 10;

impl Figure {
    /// Default number of seeds. The thesis' scenarios leave nothing to chance at seed 0; TCP
    /// Boston's sources start at random, and its grid is too large to repeat.
    #[must_use]
    pub fn seeds(&self) -> u64 {
        match self.id {
            "boston-fig4" | "boston-fig5" | "boston-fig6" | "boston-choices" => SEEDS_OF_CHANCE,
            _ => 1,
        }
    }
}

/// A figure drawn for one seed.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// Charts, one below the other.
    pub charts: Vec<Chart>,
    /// The figure's numbers, as columns.
    pub table: Table,
    /// Comparisons with what the paper says.
    pub checks: Vec<Check>,
}

/// Numbers in columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Names of the columns, with units.
    pub columns: Vec<String>,
    /// Rows; an empty cell is `NaN`.
    pub rows: Vec<Vec<f64>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|it| (*it).to_owned()).collect(), rows: Vec::new() }
    }

    /// The table as comma-separated values under a line of names.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = self.columns.join(",");
        csv.push('\n');
        for row in &self.rows {
            let cell = |it: &f64| if it.is_nan() { String::new() } else { format!("{it}") };
            csv.push_str(&row.iter().map(cell).collect::<Vec<_>>().join(","));
            csv.push('\n');
        }
        csv
    }
}

/// Comparison of one number with what the paper says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What the number is, with its unit.
    pub what: String,
    /// The paper's words about it.
    pub paper: String,
    /// The number found here.
    pub ours: f64,
    /// What the paper's words say of the number.
    pub said: Said,
    /// Range of values that agree with the paper's words, if not with its number.
    pub accepted: (f64, f64),
    /// Why the number differs, or where the range comes from.
    pub note: String,
}

impl Check {
    /// A number of which the paper says something.
    pub fn new(what: &str, paper: &str, ours: f64, accepted: (f64, f64)) -> Self {
        let (what, said, paper) = (what.to_owned(), Said::of(paper), paper.to_owned());
        Self { what, paper, ours, said, accepted, note: String::new() }
    }

    /// A number of which the paper says nothing; the words are those of this project.
    pub fn unsaid(what: &str, words: &str, ours: f64) -> Self {
        let anything = (f64::NEG_INFINITY, f64::INFINITY);
        Self { said: Said::Nothing, ..Self::new(what, words, ours, anything) }
    }

    /// Sets the paper's number where its words state it elsewhere, or where it follows from them.
    #[must_use]
    pub fn stating(self, number: f64) -> Self {
        Self { said: Said::Number(number, number), ..self }
    }

    /// Adds a reason.
    #[must_use]
    pub fn because(self, note: &str) -> Self {
        Self { note: note.to_owned(), ..self }
    }
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Equal to the paper's number, within [`EQUAL_PERCENT`].
    Equal,
    /// Not equal, or the paper gives no number; but its words hold.
    SameDirection,
    /// The paper's words do not hold.
    Differs,
    /// The paper says nothing of the number.
    NoNumber,
}

/// Comparison of a number over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What the number is, with its unit.
    pub what: String,
    /// The paper's words about it.
    pub paper: String,
    /// Mean over the seeds.
    pub ours: f64,
    /// Half the width of the mean's 95 % confidence interval; 0 with one seed.
    pub plus_minus: f64,
    /// Distance of the mean from the paper's number, in per cent of that.
    pub deviation_percent: Option<f64>,
    /// Range of values that agree with the paper's words; `None` if it says nothing.
    pub accepted: Option<(f64, f64)>,
    /// Result of the comparison.
    pub verdict: Verdict,
    /// Whether both ends of the interval lead to the same verdict.
    pub is_certain: bool,
    /// Why the number differs, or where the range comes from.
    pub note: String,
}

/// A figure over all seeds. Where the seeds' lines have the same places on the x axis, its charts
/// show their means with error bars; else the first seed's.
pub struct Finished {
    /// Name of the figure on the command line.
    pub id: &'static str,
    /// What the figure shows.
    pub title: &'static str,
    /// Options of `holdfast-lab` that repeat the figure.
    pub again: String,
    /// The figure: the numbers of its first seed, and charts over all; or as measured.
    pub drawn: Drawn,
    /// Comparisons over all seeds.
    pub findings: Vec<Finding>,
}

/// Simulates a figure for several seeds. Seed 0 is the thesis' scenario as it stands; the others
/// move arrivals by up to a step.
#[must_use]
pub fn finish(figure: Figure, first_seed: u64, seeds: u64) -> Finished {
    let draw = |seed| (figure.draw)(&Context::new(seed));
    let mut all: Vec<Drawn> = (first_seed..first_seed + seeds.max(1)).map(draw).collect();
    let findings = (0..all[0].checks.len())
        .map(|index| {
            let values: Vec<f64> =
                all.iter().filter_map(|it| it.checks.get(index)).map(|it| it.ours).collect();
            Finding::of(&all[0].checks[index], &values)
        })
        .collect();
    average(&mut all);
    let Figure { id, title, .. } = figure;
    let again = format!("run {id} --seed {first_seed} --seeds {seeds}");
    Finished { id, title, again, drawn: all.swap_remove(0), findings }
}

/// Puts means with their confidence intervals into the first seed's charts, where the lines of all
/// seeds have points at the same places.
fn average(all: &mut [Drawn]) {
    let [first, others @ ..] = all else { return };
    if others.is_empty() {
        return;
    }
    for (at, chart) in first.charts.iter_mut().enumerate() {
        for (number, line) in chart.lines.iter_mut().enumerate() {
            let same = |other: &&Line| {
                let pairs = || other.points.iter().zip(&line.points);
                other.points.len() == line.points.len() && pairs().all(|(a, b)| a.0 == b.0)
            };
            let theirs = others.iter().map(|it| it.charts.get(at)?.lines.get(number));
            let theirs: Option<Vec<&Line>> = theirs.map(|line| line.filter(same)).collect();
            let Some(theirs) = theirs else { continue };
            let mean = |index: usize| {
                let own = std::iter::once(line.points[index].1);
                Mean::of(&own.chain(theirs.iter().map(|it| it.points[index].1)).collect::<Vec<_>>())
            };
            let means: Vec<Mean> = (0..line.points.len()).map(mean).collect();
            line.errors = means.iter().map(|it| it.plus_minus).collect();
            line.points.iter_mut().zip(&means).for_each(|(point, it)| point.1 = it.mean);
        }
    }
}

/// Measures a figure.
///
/// # Errors
/// When the wire, a server or a load is not available.
pub fn measure(figure: &Measured, effort: &Effort) -> anyhow::Result<Finished> {
    let drawn = (figure.measure)(effort)?;
    let findings = drawn.checks.iter().map(|check| Finding::of(check, &[check.ours])).collect();
    let &Measured { id, title, .. } = figure;
    let quick = if effort.quick { " --quick" } else { "" };
    let seeds = effort.rounds.map_or_else(String::new, |rounds| format!(" --seeds {rounds}"));
    let again = format!("run {id} --seed {}{seeds}{quick}", effort.seed);
    Ok(Finished { id, title, again, drawn, findings })
}

impl Finding {
    fn of(check: &Check, values: &[f64]) -> Self {
        let Mean { mean, plus_minus } = Mean::of(values);
        let judge = |value| check.said.judge(value, check.accepted);
        let verdict = judge(mean);
        Self {
            what: check.what.clone(),
            paper: check.paper.clone(),
            ours: mean,
            plus_minus,
            deviation_percent: check.said.deviation_percent(mean),
            accepted: (check.said != Said::Nothing).then_some(check.accepted),
            verdict,
            is_certain: [mean - plus_minus, mean + plus_minus].map(judge) == [verdict; 2],
            note: check.note.clone(),
        }
    }
}
