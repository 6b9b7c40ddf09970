//! Nothing grows without end: when clients have ended and time has passed, every
//! table has given back what connections took.

/// A complaint about what is left over beyond `most`.
pub fn exceeds(what: &str, count: usize, most: usize) -> Option<String> {
    (count > most).then(|| format!("{count} {what} are left over at rest, {most} may be"))
}
