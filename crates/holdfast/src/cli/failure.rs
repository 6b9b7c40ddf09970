//! Errors of the verbs, each with its exit code.

use crate::config::ConfigErrors;
use crate::status::exit;
use std::fmt;
use std::io::{self, ErrorKind};

/// Why a verb failed.
#[derive(Debug)]
pub struct Failure {
    /// See [`exit`].
    pub code: u8,
    message: String,
}

impl Failure {
    /// Wrong usage.
    #[must_use]
    pub fn usage(message: String) -> Self {
        Self { code: exit::USAGE, message }
    }

    /// Somebody else may.
    #[must_use]
    pub fn not_permitted(message: String) -> Self {
        Self { code: exit::NOT_PERMITTED, message }
    }

    /// Nobody answers.
    #[must_use]
    pub fn unreachable(message: String) -> Self {
        Self { code: exit::UNREACHABLE, message }
    }

    /// The answer is no.
    #[must_use]
    pub fn degraded(message: String) -> Self {
        Self { code: exit::DEGRADED, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::usage(format!("the configuration is not usable\n{errors}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self { code: code_of(&error), message: error.to_string() }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let mut causes = error.chain();
        let code = causes.find_map(|cause| {
            let io = cause.downcast_ref::<io::Error>().map(code_of);
            let is_mistake = cause.is::<ConfigErrors>()
                || cause.is::<holdfast_lab::scenario::FileError>()
                || cause.is::<holdfast_lab::figures::NoFigure>();
            io.or_else(|| is_mistake.then_some(exit::USAGE))
        });
        Self { code: code.unwrap_or(exit::DEGRADED), message: format!("{error:#}") }
    }
}

fn code_of(error: &io::Error) -> u8 {
    match error.kind() {
        ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
        ErrorKind::ConnectionRefused | ErrorKind::TimedOut => exit::UNREACHABLE,
        _ => exit::DEGRADED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use holdfast_lab::scenario::Sweep;

    #[test]
    fn a_mistake_in_a_scenario_is_wrong_usage() {
        let text = "seed = 1\nend = \"1s\"\n[[link]]\nfrom = \"S\"\nto = \"D\"\ndelay = \"1ms\"\n\
             [[flow]]\nfrom = \"S\"\nto = \"D\"\nsegments = 1\n[sweep]\nseed = []\n";
        let error = Sweep::parse(text).map(|_| ()).context("file.toml").expect_err("no values");
        let failure = Failure::from(error);
        assert_eq!(failure.code, exit::USAGE, "{failure}");
        assert!(failure.message.contains("has no values"), "{failure}");
    }
}
