//! The pictures: how many messages are later than a time, and the rates of bulk.

use super::cell::Delays;
use super::{Cell, Row, TunnelReport};
use holdfast_report::Summary;
use holdfast_report::plot::{Bar, Chart, Line, stacked};

/// How far after the second deadline times are shown, as a factor.
const BEYOND: f64 = 2.0;
/// Part of a group's width that its bars fill.
const FILLED: f64 = 0.8;

/// All charts as one SVG document.
pub fn draw(report: &TunnelReport) -> String {
    let delays = report.cells.iter().filter(|cell| cell.rows.iter().any(has_delays));
    let mut charts: Vec<Chart> = delays.map(of_delays).collect();
    for workload in ["B", "B+M"] {
        let cells: Vec<&Cell> =
            report.cells.iter().filter(|cell| cell.workload == workload).collect();
        if !cells.is_empty() {
            charts.push(of_rates(&cells));
        }
    }
    stacked(&charts)
}

fn has_delays(row: &Row) -> bool {
    row.rounds.iter().any(|it| it.delays.is_some())
}

/// Of each lane's first round.
fn of_delays(cell: &Cell) -> Chart {
    let line = |row: &Row| {
        let delays = row.rounds.first()?.delays.as_ref()?;
        Some(Line { name: row.lane.to_owned(), points: later(delays), ..Line::default() })
    };
    Chart {
        title: format!("{}: {}, {}", cell.workload, cell.about, cell.path),
        x_name: "one way, ms".to_owned(),
        y_name: "share of the messages that are later, %".to_owned(),
        x_range: (0.0, cell.deadlines_ms[1] * BEYOND),
        y_range: Some((0.0, 20.0)),
        lines: cell.rows.iter().filter_map(line).collect(),
        ..Chart::default()
    }
}

/// Points (ms, share later in %): what was lost is later than everything.
fn later(delays: &Delays) -> Vec<(f64, f64)> {
    let (points, come) = (delays.curve_ms.len().max(1) as f64, 1.0 - delays.lost);
    let share = |index: usize| (1.0 - (index + 1) as f64 / points * come) * 100.0;
    delays.curve_ms.iter().enumerate().map(|(index, ms)| (*ms, share(index).max(0.0))).collect()
}

fn of_rates(cells: &[&Cell]) -> Chart {
    let mut names: Vec<String> = Vec::new();
    for row in cells.iter().flat_map(|cell| &cell.rows) {
        if !names.iter().any(|name| name == row.lane) {
            names.push(row.lane.to_owned());
        }
    }
    let mut bars = Vec::new();
    for (group, cell) in cells.iter().enumerate() {
        for row in &cell.rows {
            let rates: Vec<f64> =
                row.rounds.iter().filter_map(|it| it.goodput_mbit_per_s).collect();
            let Some(name) = names.iter().position(|name| name == row.lane) else { continue };
            let width = FILLED / names.len() as f64;
            let from = group as f64 + (1.0 - FILLED) / 2.0 + width * name as f64;
            bars.push(Bar { x: (from, from + width), y: (0.0, Summary::of(&rates).median), name });
        }
    }
    Chart {
        title: format!("{}: {}", cells[0].workload, cells[0].about),
        x_name: "path".to_owned(),
        y_name: "goodput, Mbit/s".to_owned(),
        x_range: (0.0, cells.len() as f64),
        x_names: cells.iter().map(|cell| cell.path.clone()).collect(),
        bars,
        bar_names: names,
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_never_there() {
        let delays = Delays { curve_ms: vec![10.0, 30.0], lost: 0.1, ..Delays::default() };
        let points = later(&delays);
        assert_eq!(points[0].0, 10.0);
        assert!((points[0].1 - 55.0).abs() < 1e-9 && (points[1].1 - 10.0).abs() < 1e-9);
    }
}
