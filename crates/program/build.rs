//! Names the commit that is built, so that the line which replays a run also says with which
//! program.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    // A source archive has no commit, so its version is used.
    let build = match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=HOLDFAST_BUILD={build}");
    println!("cargo::rerun-if-changed=build.rs");
    // Every commit and every checkout adds a line to this file.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).map(PathBuf::from)
        && log.exists()
    {
        println!("cargo::rerun-if-changed={}", log.display());
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
