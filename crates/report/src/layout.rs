//! Places for the names of moments above a drawing, so that no name lies on another one, and no
//! moment's line runs through a name.

/// Average width of a character, as a share of the size of its font: sans-serif fonts have less.
const CHARACTER_EM: f64 = 0.58;

/// Width of a text in a font of `font_px`, as far as that can be known without the font.
#[must_use]
pub fn text_width(text: &str, font_px: f64) -> f64 {
    text.chars().count() as f64 * font_px * CHARACTER_EM
}

/// A name to place: it stands beside the line of its moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Label {
    /// Where the line is.
    pub at: f64,
    /// Width of the name.
    pub width: f64,
}

/// Where a name stands: its box is as wide as the name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// Left end of the box.
    pub left: f64,
    /// Number of the row, from the top.
    pub row: usize,
}

/// Places names, whose moments ascend, in as few rows as the rule allows: the line of a moment
/// begins at its name and leads down, and neither crosses a name nor do names touch. A name stands
/// at the right of its line or, where that would leave `range`, at the left of it.
#[must_use]
pub fn place(labels: &[Label], range: (f64, f64), gap: f64) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::with_capacity(labels.len());
    for label in labels {
        let left = beside(*label, range, gap);
        let (from, to) = (left - gap, left + label.width + gap);
        let is_free = |row: usize| {
            placed.iter().zip(labels).all(|(other, of)| {
                let (begin, end) = (other.left, other.left + of.width);
                let touches = other.row == row && begin < to && from < end;
                // This line leads through the rows below its own, others' through those below theirs.
                let crosses = other.row > row && begin < label.at && label.at < end;
                let is_crossed = other.row < row && left < of.at && of.at < left + label.width;
                !touches && !crosses && !is_crossed
            })
        };
        // A row below all others has nobody to touch and nobody to cross; only a name at the left
        // of its line may be crossed there, and then no row is better.
        let last = placed.iter().map(|it| it.row + 1).max().unwrap_or(0);
        let row = (0..last).find(|row| is_free(*row)).unwrap_or(last);
        placed.push(Placed { left, row });
    }
    placed
}

/// The left end of a name beside its line, within the range if it is not wider than that.
fn beside(label: Label, range: (f64, f64), gap: f64) -> f64 {
    let right_of = label.at + gap;
    if right_of + label.width <= range.1 {
        return right_of;
    }
    let left_of = label.at - gap - label.width;
    if left_of >= range.0 { left_of } else { (range.1 - label.width).max(range.0) }
}

/// Places names one after the other in lines of `width`, as a legend has them. Each takes
/// its width and `gap`; one that is wider than the line has it for itself.
#[must_use]
pub fn wrap(widths: &[f64], width: f64, gap: f64) -> Vec<Placed> {
    let (mut left, mut row) = (0.0, 0);
    let one = |own: &f64| {
        if left > 0.0 && left + own > width {
            (left, row) = (0.0, row + 1);
        }
        let placed = Placed { left, row };
        left += own + gap;
        placed
    };
    widths.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random and are the same each time.
    fn drawn(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn overlapping(labels: &[Label], placed: &[Placed]) -> Option<(usize, usize)> {
        let box_of = |at: usize| (placed[at].left, placed[at].left + labels[at].width);
        let pairs = (0..placed.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        pairs.into_iter().find(|(a, b)| {
            let (one, other) = (box_of(*a), box_of(*b));
            placed[*a].row == placed[*b].row && one.0 < other.1 && other.0 < one.1
        })
    }

    #[test]
    fn no_name_lies_on_another_one() {
        for seed in 0..400 {
            let mut draw = drawn(seed);
            let count = 1 + (draw() * 14.0) as usize;
            // Most moments of a takeover are within a few per cent of the axis.
            let near = if seed % 2 == 0 { 30.0 } else { 600.0 };
            let mut labels: Vec<Label> = (0..count)
                .map(|_| Label { at: draw() * near, width: 20.0 + draw() * 150.0 })
                .collect();
            labels.sort_by(|a, b| a.at.total_cmp(&b.at));
            let placed = place(&labels, (0.0, 600.0), 4.0);
            assert_eq!(placed.len(), count);
            assert_eq!(overlapping(&labels, &placed), None, "seed {seed}: {placed:?}");
            for (label, place) in labels.iter().zip(&placed) {
                assert!(place.left >= 0.0 && place.left + label.width <= 600.0, "seed {seed}");
            }
        }
    }

    /// Names at the right of their lines are crossed by none of the lines.
    #[test]
    fn no_line_runs_through_a_name() {
        for seed in 0..200 {
            let mut draw = drawn(seed);
            let mut labels: Vec<Label> = (0..9)
                .map(|_| Label { at: draw() * 200.0, width: 20.0 + draw() * 100.0 })
                .collect();
            labels.sort_by(|a, b| a.at.total_cmp(&b.at));
            let placed = place(&labels, (0.0, 1000.0), 4.0);
            for (own, name) in labels.iter().zip(&placed) {
                for (other, line) in labels.iter().zip(&placed) {
                    let inside = name.left < other.at && other.at < name.left + own.width;
                    assert!(!(inside && line.row < name.row), "seed {seed}: {placed:?}");
                }
            }
        }
    }

    #[test]
    fn what_would_overlap_is_noticed() {
        let labels = [Label { at: 0.0, width: 50.0 }, Label { at: 10.0, width: 50.0 }];
        let same_row = [Placed { left: 0.0, row: 0 }, Placed { left: 10.0, row: 0 }];
        assert_eq!(overlapping(&labels, &same_row), Some((1, 0)));
        let rows: Vec<usize> = place(&labels, (0.0, 600.0), 4.0).iter().map(|it| it.row).collect();
        assert_eq!(rows, [0, 1]);
    }

    #[test]
    fn a_legend_has_lines() {
        let placed = wrap(&[40.0, 40.0, 40.0, 200.0], 100.0, 8.0);
        let places: Vec<(f64, usize)> = placed.iter().map(|it| (it.left, it.row)).collect();
        assert_eq!(places, [(0.0, 0), (48.0, 0), (0.0, 1), (0.0, 2)]);
    }
}
