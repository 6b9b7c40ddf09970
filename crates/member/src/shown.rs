//! The state of spread and transit daemons, as `status` shows it.

/// The state in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Another failure interrupts the service for a moment at most.
    Protected,
    /// The next failure ends the service.
    Unprotected,
    /// Something is missing.
    Waiting,
    /// The edge was closed by hand.
    Fenced,
}

/// The state of a daemon, why it is that one, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub protection: Protection,
    pub reason: String,
    pub remedy: String,
}

impl Shown {
    pub(crate) fn new(protection: Protection, reason: &str, remedy: &str) -> Self {
        Self { protection, reason: reason.to_owned(), remedy: remedy.to_owned() }
    }

    pub(crate) fn protected() -> Self {
        Self::new(Protection::Protected, "", "")
    }
}
