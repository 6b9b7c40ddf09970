//! Verbs of the programs beside this one: `demo` is the laboratory's, `top` that of the program
//! that looks at groups, `tunnel` a program by itself. They are programs of their own, so that the one
//! that serves clients contains nothing of them.

use super::Failure;
use holdfast_program::{DemoArgs, LAB, TUNNEL, TopArgs, TunnelArgs, WATCH};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::iter::once;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Becomes `holdfast-lab demo`.
pub fn demo(args: &DemoArgs) -> Result<Infallible, Failure> {
    become_program(LAB, "demo", once("demo".into()).chain(args.words()))
}

/// Becomes `holdfast-watch top`.
pub fn top(args: &TopArgs) -> Result<Infallible, Failure> {
    become_program(WATCH, "top", once("top".into()).chain(args.words()))
}

/// Becomes `holdfast-tunnel`, whose verbs are those behind `tunnel`.
pub fn tunnel(args: TunnelArgs) -> Result<Infallible, Failure> {
    become_program(TUNNEL, "tunnel", args.words)
}

/// Becomes the program beside this one, which was built with it.
fn become_program(
    name: &str,
    verb: &str,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Infallible, Failure> {
    let program = std::env::current_exe()?.with_file_name(name);
    let error = Command::new(&program).args(words).exec();
    Err(explain(&program, name, verb, error))
}

fn explain(program: &Path, name: &str, verb: &str, error: Error) -> Failure {
    let path = program.display();
    if error.kind() != ErrorKind::NotFound {
        return Error::new(error.kind(), format!("cannot run {path}: {error}")).into();
    }
    Failure::degraded(format!(
        "{path} is missing, and `{verb}` is a part of it\n  remedy: install its package, or \
         build it with `cargo build --release --bin {name}` (`make build` builds all) and put it \
         beside this program"
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
    fn a_program_that_is_missing_or_closed_is_explained() {
        let lab = Path::new("/usr/sbin/holdfast-lab");
        let missing = explain(lab, LAB, "demo", ErrorKind::NotFound.into());
        assert_eq!(missing.code, exit::DEGRADED);
        let told = missing.to_string();
        assert!(told.contains("`demo` is a part of it\n  remedy: install its package"), "{told}");
        assert!(told.contains("--bin holdfast-lab`"), "{told}");
        let closed = explain(lab, LAB, "demo", ErrorKind::PermissionDenied.into());
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
