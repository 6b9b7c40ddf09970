//! Errors of the verbs, each with its exit code.

use crate::config::ConfigErrors;
use crate::status::exit;
use std::fmt;
use std::io;

/// Why a verb failed.
#[derive(Debug)]
pub struct Failure {
    /// Exit code; see [`exit`].
    pub code: u8,
    message: String,
}

impl Failure {
    /// A failure from wrong usage.
    #[must_use]
    pub fn usage(message: String) -> Self {
        Self { code: exit::USAGE, message }
    }

    /// A failure for lack of permission, which somebody else may have.
    #[must_use]
    pub fn not_permitted(message: String) -> Self {
        Self { code: exit::NOT_PERMITTED, message }
    }

    /// A failure because nobody answers.
    #[must_use]
    pub fn unreachable(message: String) -> Self {
        Self { code: exit::UNREACHABLE, message }
    }

    /// A failure because the answer is no.
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
        Self { code: exit::of(&error), message: error.to_string() }
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
            let io = cause.downcast_ref::<io::Error>().map(exit::of);
            let is_mistake = cause.is::<ConfigErrors>();
            io.or_else(|| is_mistake.then_some(exit::USAGE))
        });
        Self { code: code.unwrap_or(exit::DEGRADED), message: told(&error) }
    }
}

/// All causes, each once: some errors tell their cause, too.
fn told(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let mut text = causes.next().unwrap_or_default();
    for cause in causes {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GroupFile;
    use anyhow::Context as _;
    use std::io::ErrorKind;
    use std::path::Path;

    #[test]
    fn no_cause_is_told_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("there is no interface ec7: {source}")]
        struct Doubled {
            source: io::Error,
        }
        let source = io::Error::from_raw_os_error(19);
        let error = anyhow::Error::from(Doubled { source }).context("the edge");
        assert_eq!(told(&error).matches("os error 19").count(), 1, "{}", told(&error));
        assert!(told(&error).starts_with("the edge: there is no interface ec7: No such device"));
    }

    /// The codes are those of docs/STATUS.md.
    #[test]
    fn a_start_that_fails_has_the_code_of_its_cause() {
        let io = |kind: ErrorKind| {
            let error = Err::<(), _>(io::Error::from(kind));
            error.context("cannot listen").context("`a`").expect_err("an error")
        };
        let file = GroupFile::parse(Path::new("/nowhere"), "").expect_err("no group");
        let cases = [
            (io(ErrorKind::AddrInUse), exit::DEGRADED),
            (io(ErrorKind::NotFound), exit::DEGRADED),
            (anyhow::anyhow!("`server` is no program of this host"), exit::DEGRADED),
            (anyhow::Error::from(file), exit::USAGE),
            (io(ErrorKind::PermissionDenied), exit::NOT_PERMITTED),
        ];
        for (error, code) in cases {
            let shown = error.to_string();
            assert_eq!(Failure::from(error).code, code, "{shown}");
        }
    }
}
