//! TCP Boston Fig. 2: the mean number of round trips by equation (2), and the number that the
//! protocol needs, since only missing cells are sent again.

use super::context::{Context, dashed, line};
use super::{Check, Drawn, Figure, Table};
use holdfast_code::planner::{Loss, Planner, equation_2};
use holdfast_report::plot::Chart;

pub const FIGURE: Figure =
    Figure { id: "boston-fig2", title: "TCP Boston: round trips by redundancy", draw };

/// Number of cells of a segment in the paper ("A 30-cell (i.e., 1.5-kB) packet").
const CELLS: usize = 30;
/// Number of cells of 1,500 bytes and AAL5's trailer.
const CELLS_AAL5: usize = 32;
const LOSSES_PERCENT: [u32; 5] = [1, 5, 10, 15, 20];
const ALPHA_MAX: usize = 10;
/// Deadline in the paper, in rounds ("On the average … within 3 round trip times").
const ROUNDS: f64 = 3.0;

fn draw(_: &Context) -> Drawn {
    let mut table =
        Table::new(&["loss_percent", "alpha", "equation_2_m30", "equation_2_m32", "exact_m30"]);
    let mut lines = Vec::new();
    for percent in LOSSES_PERCENT {
        let rate = f64::from(percent) / 100.0;
        let planner = Loss::new(rate, None).and_then(|it| Planner::new(CELLS, it, 3)).ok();
        let (mut printed, mut exact) = (Vec::new(), Vec::new());
        for alpha in 0..=ALPHA_MAX {
            let u = equation_2(CELLS, alpha, rate);
            let rounds = planner.as_ref().map_or(f64::NAN, |it| it.outcome(alpha, 0).rounds);
            let x = alpha as f64;
            printed.push((x, u.log10()));
            exact.push((x, rounds.log10()));
            let real = equation_2(CELLS_AAL5, alpha, rate);
            table.rows.push(vec![f64::from(percent), x, u, real, rounds]);
        }
        lines.push(line(&format!("{percent} %"), printed));
        if percent == 10 {
            lines.push(dashed("10 %, only missing cells again", exact));
        }
    }
    let chart = Chart {
        title: FIGURE.title.to_owned(),
        x_name: "alpha, cells added to 30".to_owned(),
        y_name: "mean round trips, log10".to_owned(),
        x_range: (0.0, ALPHA_MAX as f64),
        // The room above 1,000 is for the legend.
        y_range: Some((0.0, 4.5)),
        lines,
        ..Chart::default()
    };
    Drawn { charts: vec![chart], table, checks: checks() }
}

/// The least redundancy with which equation (2) keeps the deadline.
fn alpha_min(cells: usize, rate: f64) -> f64 {
    let meets = |alpha: &usize| equation_2(cells, *alpha, rate) <= ROUNDS;
    (0..=256 - cells).find(meets).map_or(f64::NAN, |it| it as f64)
}

fn checks() -> Vec<Check> {
    let value = |what, cells, alpha, rate, expected: f64| {
        let ours = equation_2(cells, alpha, rate);
        Check::new(what, "(equation 2)", ours, (0.999 * expected, 1.001 * expected))
            .stating(expected)
    };
    vec![
        Check::new(
            "alpha for 3 round trips at 5 %, m = 30",
            "1",
            alpha_min(CELLS, 0.05),
            (1.0, 1.0),
        ),
        Check::new(
            "alpha for 3 round trips at 10 %, m = 30",
            "3",
            alpha_min(CELLS, 0.10),
            (3.0, 3.0),
        )
        .because("By its own equation two cells are enough: 2.73 round trips."),
        Check::new(
            "alpha for 3 round trips at 10 %, m = 32",
            "3",
            alpha_min(CELLS_AAL5, 0.10),
            (3.0, 3.0),
        )
        .because("1,500 bytes and AAL5's trailer fill 32 cells; then the paper's 3 is exact."),
        value("round trips at 5 %, alpha 1", CELLS, 1, 0.05, 1.864),
        value("round trips at 10 %, alpha 3", CELLS, 3, 0.10, 1.733),
        value("round trips at 20 %, alpha 0", CELLS, 0, 0.20, 807.8),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One claim does not follow from its equation; all others do.
    #[test]
    fn only_the_claim_for_thirty_cells_and_ten_percent_differs() {
        let differs = |it: &&Check| !(it.accepted.0..=it.accepted.1).contains(&it.ours);
        let checks = checks();
        let found: Vec<(&str, f64)> =
            checks.iter().filter(differs).map(|it| (it.what.as_str(), it.ours)).collect();
        assert_eq!(found, [("alpha for 3 round trips at 10 %, m = 30", 2.0)]);
    }
}
