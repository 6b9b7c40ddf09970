//! Reasons that count in hundredths how far something is. The status says each of them; the log, which
//! is kept and read by people, only some.

use std::time::Duration;

/// Time between two lines about the same progress.
const EVERY: Duration = Duration::from_secs(1);
/// Hundredths between them.
const STEP: u64 = 10;
/// What stands behind a number of hundredths.
const SIGN: &str = " %";

/// Whether a reason differs from the one that was noted `ago` by less progress than is worth a line.
pub(super) fn is_small(noted: &str, now: &str, ago: Duration) -> bool {
    let ((words, done), (words_now, done_now)) = (parts(noted), parts(now));
    let steps = |of: &[u64]| of.iter().map(|percent| percent / STEP).collect::<Vec<_>>();
    words == words_now && !done.is_empty() && (ago < EVERY || steps(&done) == steps(&done_now))
}

/// The words of a reason without its hundredths, and these.
fn parts(reason: &str) -> (Vec<&str>, Vec<u64>) {
    let (mut words, mut done) = (Vec::new(), Vec::new());
    let mut pieces = reason.split(SIGN).peekable();
    while let Some(piece) = pieces.next() {
        let before = piece.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = piece[before.len()..].parse().ok();
        match number.filter(|_| pieces.peek().is_some()) {
            Some(percent) => {
                words.push(before);
                done.push(percent);
            }
            None => words.push(piece),
        }
    }
    (words, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hundredths_are_progress() {
        const LATER: Duration = Duration::from_secs(9);
        let small = |one: &str, two: &str| is_small(one, two, LATER);
        assert!(small("b joins: 11 % of it", "b joins: 19 % of it"));
        assert!(!small("b joins: 19 % of it", "b joins: 20 % of it"));
        assert!(!small("b joins: 90 % of it", "b joins: 3 % of it"), "it begins anew");
        assert!(is_small("b joins: 90 % of it", "b joins: 3 % of it", Duration::ZERO));
        assert!(!is_small("b joins: 9 % of it", "c joins: 9 % of it", Duration::ZERO));
        assert!(!is_small("3 clients wait", "4 clients wait", Duration::ZERO));
        assert!(!is_small("", "b joins: 0 % of it", Duration::ZERO));
        assert!(!is_small("b joins: 99 % of it", "", Duration::ZERO));
        // An edge shows both members' words.
        let two = |a, b| format!("a: b joins: {a} % is there; b: {b} % is here");
        assert!(small(&two(11, 12), &two(13, 14)));
        assert!(!small(&two(11, 12), &two(13, 24)));
    }
}
