//! Nothing grows without end: when clients have ended and time has passed, everybody
//! has given back what connections took.

/// What is left over beyond `most`, if anything is.
pub fn exceeds(what: &str, count: usize, most: usize) -> Option<String> {
    (count > most).then(|| format!("{count} {what} are left over at rest, {most} may be"))
}
