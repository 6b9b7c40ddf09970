//! `holdfast demo`: the first step for a new user. The demonstration is a verb of
//! the laboratory, a program of its own, so that the program that serves clients
//! contains none of it.

use super::Failure;
use holdfast_program::{DemoArgs, LAB};
use std::convert::Infallible;
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Becomes `holdfast-lab demo`: the program beside this one, which was built with it.
pub fn run(args: &DemoArgs) -> Result<Infallible, Failure> {
    let lab = std::env::current_exe()?.with_file_name(LAB);
    let error = Command::new(&lab).arg("demo").args(args.words()).exec();
    Err(explain(&lab, error))
}

fn explain(lab: &Path, error: Error) -> Failure {
    let path = lab.display();
    if error.kind() != ErrorKind::NotFound {
        return Error::new(error.kind(), format!("cannot run {path}: {error}")).into();
    }
    Failure::degraded(format!(
        "{path} is missing, and the demonstration is a part of it\n  remedy: build it with \
         `cargo build --release -p holdfast-lab` (`make build` builds both) and put it beside \
         this program"
    ))
}

/// Says where a former verb of this program is now.
pub fn moved(words: &[String]) -> Failure {
    let command = [&[LAB.to_owned()], words].concat().join(" ");
    Failure::usage(format!("the laboratory is a program of its own\n  remedy: {command}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::exit;

    #[test]
    fn a_laboratory_that_is_missing_or_closed_is_explained() {
        let lab = Path::new("/usr/sbin/holdfast-lab");
        let missing = explain(lab, ErrorKind::NotFound.into());
        assert_eq!(missing.code, exit::DEGRADED);
        assert!(missing.to_string().contains("remedy: build it"), "{missing}");
        let closed = explain(lab, ErrorKind::PermissionDenied.into());
        assert_eq!(closed.code, exit::NOT_PERMITTED);
        assert!(closed.to_string().contains("cannot run /usr/sbin/holdfast-lab"), "{closed}");
    }

    #[test]
    fn the_former_verb_names_the_new_command() {
        let words = ["bench", "takeover", "--runs", "20"].map(str::to_owned);
        let told = moved(&words);
        assert_eq!(told.code, exit::USAGE);
        assert!(told.to_string().ends_with("holdfast-lab bench takeover --runs 20"), "{told}");
    }
}
