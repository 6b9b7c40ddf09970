//! Means over the seeds of each combination, with 95 % confidence intervals.

use super::output::{PointRow, cell, joined};
use holdfast_report::Mean;

/// The means of all combinations.
pub struct Means<'a>(Vec<Point<'a>>);

/// The means of one combination.
struct Point<'a> {
    /// One of its rows, which says what varies.
    row: &'a PointRow,
    /// Number of its seeds.
    seeds: usize,
    /// Its numbers, by name.
    means: Vec<(&'static str, Mean)>,
}

impl<'a> Means<'a> {
    /// The means of rows, of which those of a combination follow each other.
    pub fn of(rows: &'a [PointRow]) -> Self {
        let points = rows.chunk_by(|a, b| a.point == b.point);
        let one = |rows: &'a [PointRow]| {
            let (row, seeds, means) = (rows.first()?, rows.len(), means(rows));
            Some(Point { row, seeds, means })
        };
        Self(points.filter_map(one).collect())
    }

    /// A row for each combination: what varies, how many seeds, and each number with its interval.
    pub fn csv(&self) -> String {
        let mut csv = String::new();
        for (index, Point { row, seeds, means }) in self.0.iter().enumerate() {
            if index == 0 {
                let names =
                    row.swept.keys().cloned().chain(["point".to_owned(), "seeds".to_owned()]);
                let results = means
                    .iter()
                    .flat_map(|(name, _)| [format!("{name}_mean"), format!("{name}_ci95")]);
                csv.push_str(&joined(names.chain(results)));
            }
            let of = row.swept.values().map(cell).chain([row.point.to_string(), seeds.to_string()]);
            let results =
                means.iter().flat_map(|(_, it)| [it.mean.to_string(), it.plus_minus.to_string()]);
            csv.push_str(&joined(of.chain(results)));
        }
        csv
    }

    /// A few lines for each combination.
    pub fn print(&self) {
        for Point { row, seeds, means } in &self.0 {
            let varied = row.varied();
            println!("point {}, {seeds} seeds, mean ± 95 % confidence  {varied}", row.point);
            let shown = means.iter().filter(|(_, it)| it.mean != 0.0);
            let words: Vec<String> = shown
                .map(|(name, it)| format!("{name} {:.3} ± {:.3}", it.mean, it.plus_minus))
                .collect();
            words.chunks(3).for_each(|words| println!("  {}", words.join(", ")));
        }
    }
}

fn means(rows: &[PointRow]) -> Vec<(&'static str, Mean)> {
    let names = rows[0].numbers().into_iter().enumerate();
    names
        .map(|(index, (name, _))| {
            let values: Vec<f64> = rows.iter().map(|row| row.numbers()[index].1).collect();
            (name, Mean::of(&values))
        })
        .collect()
}
