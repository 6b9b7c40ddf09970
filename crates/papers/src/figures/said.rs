//! What a paper says of a number, and how far the number found is from it.

use super::Verdict;

/// Largest difference from the paper's number that still counts as equal, in per cent.
pub const EQUAL_PERCENT: f64 = 5.0;

/// Share of a bound beyond it that counts as rounding.
const ROUNDING: f64 = 0.001;

/// What a paper says of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// Nothing; the words in parentheses are those of this project.
    Nothing,
    /// Words without a number.
    Words,
    /// A number, or a range from one to another.
    Number(f64, f64),
    AtMost(f64),
    AtLeast(f64),
}

/// Makes a bound from the paper's number.
type Bound = fn(f64) -> Said;

impl Said {
    /// Reads the paper's words: `40 %`, `about 0.6`, `11.2 to 11.5`, `less than 5.3`,
    /// `2: grows linearly`, `none`. Words that are wholly in parentheses are not the paper's.
    pub fn of(paper: &str) -> Self {
        if paper.starts_with('(') && paper.ends_with(')') {
            return Self::Nothing;
        }
        if paper == "none" {
            return Self::Number(0.0, 0.0);
        }
        let bounds: [(&str, Bound); 4] = [
            ("less than ", Self::AtMost),
            ("at most ", Self::AtMost),
            ("more than ", Self::AtLeast),
            ("at least ", Self::AtLeast),
        ];
        for (prefix, bound) in bounds {
            if let Some(rest) = paper.strip_prefix(prefix) {
                return number(rest).filter(|it| ends(it.1)).map_or(Self::Words, |it| bound(it.0));
            }
        }
        let rest = ["about ", "around "].iter().find_map(|word| paper.strip_prefix(word));
        let Some((low, rest)) = number(rest.unwrap_or(paper)) else { return Self::Words };
        match rest.strip_prefix(" to ").and_then(number) {
            Some((high, rest)) if ends(rest) => Self::Number(low, high),
            None if ends(rest) => Self::Number(low, low),
            _ => Self::Words,
        }
    }

    /// Distance of `ours` from the paper's number, in per cent of that; positive above it. `None`
    /// if there is no number.
    pub fn deviation_percent(self, ours: f64) -> Option<f64> {
        let nearest = match self {
            Self::Nothing | Self::Words => return None,
            Self::Number(low, high) => ours.clamp(low, high),
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        };
        let apart = 100.0 * (ours - nearest) / nearest.abs();
        if ours == nearest { Some(0.0) } else { Some(apart).filter(|it| it.is_finite()) }
    }

    /// The verdict on `ours`, if the figure accepts values in `accepted`.
    pub fn judge(self, ours: f64, accepted: (f64, f64)) -> Verdict {
        let is_accepted = (accepted.0..=accepted.1).contains(&ours);
        let holds = match self {
            Self::Nothing => return Verdict::NoNumber,
            Self::Words => is_accepted,
            Self::Number(..) => {
                let apart = self.deviation_percent(ours);
                if apart.is_some_and(|it| it.abs() <= EQUAL_PERCENT) {
                    return Verdict::Equal;
                }
                is_accepted
            }
            Self::AtMost(bound) => is_accepted && ours <= bound + bound.abs() * ROUNDING,
            Self::AtLeast(bound) => is_accepted && ours >= bound - bound.abs() * ROUNDING,
        };
        if holds { Verdict::SameDirection } else { Verdict::Differs }
    }
}

/// The number at the start of a text, and the rest.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    let rest = &text[end..];
    Some(rest.strip_prefix(" %").map_or((value, rest), |rest| (value / 100.0, rest)))
}

/// Whether only an explanation follows.
fn ends(rest: &str) -> bool {
    rest.is_empty() || [":", ";", " ("].iter().any(|begin| rest.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_taken_as_words() {
        let cases = [
            ("8", Said::Number(8.0, 8.0)),
            ("40 %", Said::Number(0.4, 0.4)),
            ("about 0.6", Said::Number(0.6, 0.6)),
            ("11.2 to 11.5", Said::Number(11.2, 11.5)),
            ("2: grows linearly", Said::Number(2.0, 2.0)),
            ("4.01 (4.1 in the figure)", Said::Number(4.01, 4.01)),
            ("about 10: 3 + 6 s later", Said::Number(10.0, 10.0)),
            ("none", Said::Number(0.0, 0.0)),
            ("less than 5.3", Said::AtMost(5.3)),
            ("at most 1", Said::AtMost(1.0)),
            ("more than 0", Said::AtLeast(0.0)),
            ("(not given)", Said::Nothing),
            ("(3 + 6) - 5", Said::Words),
            ("also for N > 2", Said::Words),
            ("2 or more", Said::Words),
            ("higher ([23])", Said::Words),
            ("less than before", Said::Words),
            ("", Said::Words),
        ];
        for (words, said) in cases {
            assert_eq!(Said::of(words), said, "{words}");
        }
    }

    #[test]
    fn only_what_the_paper_gives_can_be_equal() {
        let judge = |words, ours, accepted| Said::of(words).judge(ours, accepted);
        assert_eq!(judge("2", 2.09, (2.0, 2.0)), Verdict::Equal);
        assert_eq!(judge("3", 2.0, (2.0, 4.0)), Verdict::SameDirection);
        assert_eq!(judge("3", 5.0, (2.0, 4.0)), Verdict::Differs);
        assert_eq!(judge("none", 0.0, (0.0, 0.0)), Verdict::Equal);
        assert_eq!(judge("none", 1.0, (0.0, 0.0)), Verdict::Differs);
        assert_eq!(judge("less than 5.3", 5.403, (5.0, 5.5)), Verdict::Differs);
        assert_eq!(judge("less than 5.3", 5.2, (5.0, 5.5)), Verdict::SameDirection);
        assert_eq!(judge("more than 0", 0.1, (0.001, 1.0)), Verdict::SameDirection);
        assert_eq!(judge("smoother", 0.5, (0.0, 0.9)), Verdict::SameDirection);
        assert_eq!(judge("smoother", 0.95, (0.0, 0.9)), Verdict::Differs);
        assert_eq!(judge("(not given)", 7.0, (0.0, 1.0)), Verdict::NoNumber);
        let apart = |words, ours| Said::of(words).deviation_percent(ours);
        assert_eq!((apart("2", 1.5), apart("11.2 to 11.5", 11.3)), (Some(-25.0), Some(0.0)));
        assert_eq!((apart("none", 1.0), apart("smoother", 1.0)), (None, None));
    }
}
