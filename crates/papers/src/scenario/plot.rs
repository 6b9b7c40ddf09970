//! A sweep as a chart: what varies along the axis, one line for each combination of the rest.

use super::output::PointRow;
use holdfast_report::Mean;
use holdfast_report::plot::{Chart, Line, stacked};
use std::collections::{BTreeMap, BTreeSet};

/// Most lines of one chart: more could not be told apart.
const LINES_MAX: usize = 7;

/// The chart of a sweep's completion times, as SVG; `None` if no numbers vary.
pub fn plot(rows: &[PointRow]) -> Option<String> {
    let axis = axis(rows)?;
    let mut lines: BTreeMap<String, Vec<(f64, Vec<f64>)>> = BTreeMap::new();
    for row in rows {
        let Some(x) = row.swept.get(&axis).and_then(serde_json::Value::as_f64) else { continue };
        let points = lines.entry(row.varied_but(&axis)).or_default();
        match points.iter_mut().find(|point| point.0 == x) {
            Some(point) => point.1.push(row.completion_median_s),
            None => points.push((x, vec![row.completion_median_s])),
        }
    }
    let xs = || lines.values().flatten().map(|point| point.0);
    let range = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    // Error bars and dots at the ends are inside.
    let spare = ((range.1 - range.0) * 0.03).max(1e-9);
    let lines: Vec<Line> = lines.into_iter().map(|(name, points)| line(name, points)).collect();
    let highest = |line: &Line| {
        let ends = line.points.iter().zip(&line.errors).map(|(point, error)| point.1 + error);
        ends.fold(0.0, f64::max)
    };
    let top = lines.iter().map(highest).fold(1e-9, f64::max) * 1.05;
    let chart = |lines: &[Line]| Chart {
        title: "Completion time of flows, median".to_owned(),
        x_name: axis.clone(),
        y_name: "completion time, s".to_owned(),
        x_range: (range.0 - spare, range.1 + spare),
        y_range: Some((0.0, top)),
        lines: lines.to_vec(),
        ..Chart::default()
    };
    Some(stacked(&lines.chunks(LINES_MAX).map(chart).collect::<Vec<_>>()))
}

/// What varies most among numbers.
fn axis(rows: &[PointRow]) -> Option<String> {
    let mut values: BTreeMap<&String, BTreeSet<u64>> = BTreeMap::new();
    for (name, value) in rows.iter().flat_map(|row| &row.swept) {
        if let Some(number) = value.as_f64() {
            values.entry(name).or_default().insert(number.to_bits());
        }
    }
    let most = values.into_iter().max_by_key(|(_, values)| values.len())?;
    Some(most.0.clone())
}

fn line(name: String, mut points: Vec<(f64, Vec<f64>)>) -> Line {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let means: Vec<(f64, Mean)> = points.iter().map(|it| (it.0, Mean::of(&it.1))).collect();
    Line {
        name,
        points: means.iter().map(|(x, it)| (*x, it.mean)).collect(),
        errors: means.iter().map(|(_, it)| it.plus_minus).collect(),
        ..Line::default()
    }
}
