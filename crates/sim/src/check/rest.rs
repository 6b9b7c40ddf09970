//! Nothing grows forever: some time after all clients have ended, every table must have freed what
//! their connections took.

/// The violation if more than `most` are left over.
pub fn exceeds(what: &str, count: usize, most: usize) -> Option<String> {
    (count > most).then(|| format!("{count} {what} are left over at rest, {most} may be"))
}
