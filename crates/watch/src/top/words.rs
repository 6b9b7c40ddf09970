//! Text that must fit: cut, broken into lines, and numbers in few characters.

use std::time::Duration;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Columns that a text takes.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text, cut to so many columns; an ellipsis stands where something was cut.
#[must_use]
pub fn short(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let kept = &text[..fitting(text, columns.saturating_sub(1))];
    if columns == 0 { String::new() } else { format!("{kept}…") }
}

/// The text, cut and filled with spaces to exactly so many columns.
#[must_use]
pub fn fill(text: &str, columns: usize) -> String {
    let cut = short(text, columns);
    // A text may be wider than its characters are one by one.
    let room = columns.saturating_sub(width(&cut));
    cut + &" ".repeat(room)
}

/// The text in lines of so many columns, broken between words, `lines_max` at most.
#[must_use]
pub fn wrap(text: &str, columns: usize, lines_max: usize) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() && columns > 0 {
        if lines.len() + 1 == lines_max {
            lines.push(short(rest, columns));
            break;
        }
        // One character at least, or there would be no end.
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let (mut line, mut next) = rest.split_at(fitting(rest, columns).max(first));
        let is_in_word = !next.is_empty() && !next.starts_with(' ');
        if let Some(space) = line.rfind(' ').filter(|_| is_in_word) {
            (line, next) = rest.split_at(space);
        }
        lines.push(line.trim_end().to_owned());
        rest = next.trim_start();
    }
    lines
}

/// Length in bytes of the longest beginning of a text that takes no more than so many columns.
fn fitting(text: &str, columns: usize) -> usize {
    let mut taken = 0;
    let beyond = text.char_indices().find(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > columns
    });
    beyond.map_or(text.len(), |(at, _)| at)
}

/// A count in at most six characters: 12,345 is `12.3k`.
#[must_use]
pub fn count(n: u64) -> String {
    const UNITS: [&str; 5] = ["k", "M", "G", "T", "P"];
    if n < 10_000 {
        return n.to_string();
    }
    let (mut value, mut unit) = (n as f64 / 1000.0, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let digits = usize::from(value < 100.0);
    format!("{value:.digits$}{}", UNITS[unit])
}

/// A time between two looks.
#[must_use]
pub fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// The time of day in a daemon's time (RFC 3339): its seconds, or what there is.
#[must_use]
pub fn clock(at: &str) -> &str {
    at.get(11..19).unwrap_or(at)
}

/// The day in a daemon's time.
#[must_use]
pub fn day(at: &str) -> &str {
    at.get(..10).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_visibly() {
        assert_eq!((short("abcdef", 4), short("abcd", 4)), ("abc…".to_owned(), "abcd".to_owned()));
        assert_eq!((short("abc", 1), short("abc", 0)), ("…".to_owned(), String::new()));
        assert_eq!((short("漢字", 2), short("漢字", 3)), ("…".to_owned(), "漢…".to_owned()));
        assert_eq!((fill("漢字漢字", 6), fill("ab", 4)), ("漢字… ".to_owned(), "ab  ".to_owned()));
    }

    #[test]
    fn lines_end_between_words_where_they_can() {
        let said = "the edge does not hear b; clients are served";
        assert_eq!(wrap(said, 16, 9), ["the edge does", "not hear b;", "clients are", "served"]);
        assert_eq!(wrap(said, 16, 2), ["the edge does", "not hear b; cli…"]);
        assert_eq!(wrap("abcdefghij", 4, 9), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("漢", 1, 9), ["漢"]);
        assert!(wrap("", 4, 9).is_empty() && wrap("abc", 0, 9).is_empty());
    }

    #[test]
    fn counts_are_short() {
        let shown = [0, 9999, 12_345, 123_456, 999_999, 4_500_000, u64::MAX].map(count);
        assert_eq!(shown, ["0", "9999", "12.3k", "123k", "1000k", "4.5M", "18447P"]);
    }

    #[test]
    fn times_of_any_shape_are_shown() {
        assert_eq!(clock("2026-11-29T12:08:15.123456Z"), "12:08:15");
        assert_eq!(day("2026-11-29T12:08:15.123456Z"), "2026-11-29");
        assert_eq!((clock("soon"), day("—"), clock("")), ("soon", "—", ""));
    }
}
