//! `holdfast-lab plan`: the effect of redundancy on a segment's delay, by the paper's equations and
//! by the exact chain, and the cheapest redundancy that keeps a deadline.

use anyhow::Result;
use clap::Args;
use holdfast_code::planner::{Loss, Outcome, Planner, equation_1, equation_2};
use holdfast_report::units;
use serde::Serialize;
use std::process::ExitCode;

/// Number of redundancies in the table, from 0 on.
const ROWS_SHOWN: usize = 11;
/// Share of the segment that Boston-FEC adds to a retransmission (TCP Boston
/// §3.2).
const PAPER_RETRANSMIT_SHARE: f64 = 0.10;

/// Options of the planner.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// Cells of a segment.
    #[arg(long, default_value_t = 30)]
    pub cells: usize,
    /// Share of cells that is lost.
    #[arg(long, default_value = "10%", value_parser = share)]
    pub loss: f64,
    /// Cells lost in a row, on average; without it each is lost by itself.
    #[arg(long)]
    pub burst: Option<f64>,
    /// Round trips until a segment must be there.
    #[arg(long, default_value_t = 3)]
    pub within: usize,
    /// Share of segments that may be later.
    #[arg(long, default_value = "1%", value_parser = share)]
    pub late: f64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn share(word: &str) -> Result<f64, String> {
    units::share(word).ok_or_else(|| format!("`{word}` is no percentage, for example 1%"))
}

/// Results for one redundancy of first transmissions.
#[derive(Clone, Debug, Serialize)]
struct Row {
    alpha: usize,
    /// Cells added per cell of the segment.
    overhead: f64,
    /// W of equation (1), the probability that a transmission fails.
    equation_1: f64,
    /// U of equation (2), in rounds.
    equation_2_rounds: f64,
    /// W to the power of the deadline, which is the share of late segments in equation (2)'s model.
    equation_2_late: f64,
    /// Results of the exact chain if only the missing cells are sent again.
    exact: Choice,
    /// Results of the exact chain with the paper's redundancy on retransmissions.
    exact_fec: Choice,
}

/// Results of a redundancy in the exact chain.
#[derive(Clone, Copy, Debug, Serialize)]
struct Choice {
    alpha_first: usize,
    alpha_retransmit: usize,
    rounds: f64,
    cells: f64,
    late: f64,
}

/// What the planner found.
#[derive(Clone, Debug, Serialize)]
struct PlanReport {
    cells: usize,
    loss: f64,
    burst_cells: Option<f64>,
    within_rounds: usize,
    late_max: f64,
    rows: Vec<Row>,
    /// Least redundancy with which equation (2) keeps the deadline on average.
    least_by_equation_2: Option<usize>,
    /// Least redundancy with which the exact chain keeps the deadline on average.
    least_exact: Option<usize>,
    /// Redundancy with the fewest cells for which at most `late_max` of the segments are late.
    cheapest: Option<Choice>,
    /// Where the paper's rule of thumb differs.
    remarks: Vec<String>,
}

impl From<Outcome> for Choice {
    fn from(outcome: Outcome) -> Self {
        let Outcome { alpha_first, alpha_retransmit, rounds, cells, late } = outcome;
        Self { alpha_first, alpha_retransmit, rounds, cells, late }
    }
}

/// Runs the verb. If no redundancy keeps the deadline, the exit code is 1.
///
/// # Errors
/// When there is nothing to plan.
pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let report = plan(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(if report.cheapest.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(args: &PlanArgs) -> Result<PlanReport> {
    let planner = Planner::new(args.cells, Loss::new(args.loss, args.burst)?, args.within)?;
    let alphas = 0..=planner.alpha_max();
    let deadline = args.within as f64;
    let fec = (args.cells as f64 * PAPER_RETRANSMIT_SHARE).ceil() as usize;
    let row = |alpha| Row {
        alpha,
        overhead: alpha as f64 / args.cells as f64,
        equation_1: equation_1(args.cells, alpha, args.loss),
        equation_2_rounds: equation_2(args.cells, alpha, args.loss),
        equation_2_late: equation_1(args.cells, alpha, args.loss).powf(deadline),
        exact: planner.outcome(alpha, 0).into(),
        exact_fec: planner.outcome(alpha, fec).into(),
    };
    let mut report = PlanReport {
        cells: args.cells,
        loss: args.loss,
        burst_cells: args.burst,
        within_rounds: args.within,
        late_max: args.late,
        rows: alphas.clone().take(ROWS_SHOWN).map(row).collect(),
        least_by_equation_2: alphas
            .clone()
            .find(|alpha| equation_2(args.cells, *alpha, args.loss) <= deadline),
        least_exact: alphas.clone().find(|alpha| planner.outcome(*alpha, 0).rounds <= deadline),
        cheapest: planner.choose(args.late).map(Choice::from),
        remarks: Vec::new(),
    };
    report.remarks = report.remarks();
    Ok(report)
}

impl PlanReport {
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let rounds = self.within_rounds;
        if let Some(said) = self.papers_word()
            && let Some(least) = self.least_by_equation_2
            && said != least
        {
            remarks.push(format!(
                "The paper (§2.1) says alpha = {said} for {rounds} rounds on average at this loss. By its own equation (2), {least} is enough for {} cells (U = {:.3}); {said} is the least for 32, which 1,500 B and an AAL5 trailer make (U = {:.3}, with {least} {:.3}).",
                self.cells,
                equation_2(self.cells, least, self.loss),
                equation_2(32, said, self.loss),
                equation_2(32, least, self.loss),
            ));
        }
        if self.least_by_equation_2 != self.least_exact {
            remarks.push(format!(
                "Equation (2) lets every retransmission fail like a first transmission. Only the missing cells are sent again, so {} is enough for {rounds} rounds on average, not {}.",
                alpha_text(self.least_exact),
                alpha_text(self.least_by_equation_2),
            ));
        }
        if self.burst_cells.is_some() {
            remarks.push("Equations (1) and (2) know no bursts; the exact columns do.".to_owned());
        }
        if let Some(row) = self.least_by_equation_2.and_then(|alpha| self.rows.get(alpha)) {
            remarks.push(format!(
                "A mean is no guarantee: with alpha = {}, {} are later than {rounds} rounds by equation (2)'s model, {} in fact.",
                row.alpha,
                share_text(row.equation_2_late),
                share_text(row.exact.late),
            ));
        }
        remarks
    }

    /// The redundancy that the paper names for this case, if it is one of the two examples of §2.1
    /// (30 cells, 3 rounds).
    fn papers_word(&self) -> Option<usize> {
        let is_close = |rate: f64| (self.loss - rate).abs() < 1e-9;
        match (self.cells, self.within_rounds) {
            (30, 3) if is_close(0.10) => Some(3),
            (30, 3) if is_close(0.05) => Some(1),
            _ => None,
        }
    }

    fn print(&self) {
        let burst =
            self.burst_cells.map_or(String::new(), |cells| format!(" in bursts of {cells}"));
        let loss = share_text(self.loss);
        println!("{} cells, {loss} lost{burst}, {} rounds", self.cells, self.within_rounds);
        println!();
        let fec = self.rows.first().map_or(0, |row| row.exact_fec.alpha_retransmit);
        println!(
            "                    equations (1), (2)          exact         exact, +{fec} on resends"
        );
        println!("alpha  overhead      W        U     late     rounds    late     rounds    late");
        for row in &self.rows {
            println!(
                "{:5}  {:>8}  {:.4}  {:>7.3}  {:>7}    {:7.3}  {:>7}    {:7.3}  {:>7}",
                row.alpha,
                share_text(row.overhead),
                row.equation_1,
                row.equation_2_rounds,
                share_text(row.equation_2_late),
                row.exact.rounds,
                share_text(row.exact.late),
                row.exact_fec.rounds,
                share_text(row.exact_fec.late),
            );
        }
        println!();
        match &self.cheapest {
            Some(best) => println!(
                "Cheapest with at most {} late: alpha = {} at first, {} on resends: {:.2} cells on average, {:.3} rounds, {} late.",
                share_text(self.late_max),
                best.alpha_first,
                best.alpha_retransmit,
                best.cells,
                best.rounds,
                share_text(best.late),
            ),
            None => println!(
                "No redundancy up to 256 cells keeps the late ones at {}.",
                share_text(self.late_max)
            ),
        }
        for remark in &self.remarks {
            println!("{remark}");
        }
    }
}

fn alpha_text(alpha: Option<usize>) -> String {
    alpha.map_or("no alpha".to_owned(), |alpha| format!("alpha = {alpha}"))
}

/// A share as a percentage, with an exponent where decimals would show nothing.
fn share_text(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 0.01 {
        format!("{}%", (percent * 100.0).round() / 100.0)
    } else {
        format!("{percent:.1e}%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(cells: usize, loss: f64) -> PlanReport {
        let args = PlanArgs { cells, loss, burst: None, within: 3, late: 0.01, json: false };
        plan(&args).expect("a plan")
    }

    #[test]
    fn the_papers_example_is_contradicted_where_it_must_be() {
        let report = planned(30, 0.10);
        assert_eq!((report.least_by_equation_2, report.least_exact), (Some(2), Some(0)));
        assert!(report.remarks[0].starts_with("The paper (§2.1) says alpha = 3"));
        assert!(report.remarks[0].ends_with("(U = 1.883, with 2 3.072)."), "{:?}", report.remarks);
        assert!(report.remarks[1].contains("so alpha = 0 is enough"));
        let report = planned(30, 0.05);
        assert!(!report.remarks.iter().any(|remark| remark.contains("paper")));
        assert_eq!(planned(32, 0.10).least_by_equation_2, Some(3));
    }

    #[test]
    fn shares_are_readable() {
        assert_eq!([0.1, 0.0, 0.0333, 1.6e-9].map(share_text), ["10%", "0%", "3.33%", "1.6e-7%"]);
    }
}
