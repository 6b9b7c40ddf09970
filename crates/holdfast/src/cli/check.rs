//! `check` and `config check`: what is wrong with a file, and with this host.

use super::args::CheckArgs;
use super::{Failure, group, print};
use crate::check::{self, Finding, Report, Verdict};
use crate::config::{ConfigErrors, GroupFile};
use crate::status::exit;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

pub(super) fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let asked = args.role.as_deref();
    let loaded = match args.config.clone().or_else(group::only_here) {
        None => None,
        Some(path) => {
            let file = usable(args.json, asked, GroupFile::load(&path))?;
            let role = file.role(asked).or_else(|error| {
                let finding = Finding::fail("role", error.as_str(), "choose one with --role");
                refuse(args.json, asked, vec![finding])?;
                Err(Failure::usage(error))
            })?;
            Some((file, role))
        }
    };
    let mut report = check::run(loaded.as_ref().map(|(file, role)| (file, role.as_str())));
    if let Some(seconds) = args.pauses {
        let file = loaded.as_ref().map(|(file, _)| file);
        let time = Duration::from_secs(seconds.into());
        report.findings.push(check::measure_pauses(file, time, tell_left));
    }
    let text = if args.json { in_json(&report)? } else { report.render() };
    print(&text)?;
    Ok(code(&report))
}

/// Tells a person who waits how long it still takes.
fn tell_left(left: Duration) {
    let mut to = std::io::stderr();
    if to.is_terminal() {
        // A terminal that is gone needs no news.
        let _ = write!(to, "\rpauses: {} s left \r", left.as_secs());
    }
}

/// Reads a file and its key.
pub(super) fn file(path: &Path, json: bool) -> Result<u8, Failure> {
    let group = usable(json, None, GroupFile::load(path))?;
    usable(json, None, group.key_lines())?;
    let (name, summary) = (group.name().to_owned(), group.summary());
    // The member's own `holdfast check` looks at more than the command.
    let known = group.replicated().map(|config| check::program::by_command(&config.server));
    let report = Report::of(None, known.unwrap_or_default());
    let head = format!("{}: group {name} {summary}\n", path.display());
    print(&if json { in_json(&report)? } else { head + &report.render() })?;
    Ok(code(&report))
}

/// What was read. Whoever asked for JSON gets the mistakes as findings, too.
fn usable<T>(json: bool, role: Option<&str>, found: Result<T, ConfigErrors>) -> Result<T, Failure> {
    found.or_else(|errors| {
        refuse(json, role, mistakes(&errors))?;
        Err(errors.into())
    })
}

fn refuse(json: bool, role: Option<&str>, findings: Vec<Finding>) -> Result<(), Failure> {
    match json {
        true => print(&in_json(&Report::of(role, findings))?).map(drop),
        false => Ok(()),
    }
}

fn mistakes(errors: &ConfigErrors) -> Vec<Finding> {
    errors.0.iter().map(|it| Finding::fail("config", it.placed(), it.remedy.as_str())).collect()
}

fn in_json(report: &Report) -> Result<String, Failure> {
    Ok(serde_json::to_string(report)? + "\n")
}

fn code(report: &Report) -> u8 {
    if report.verdict() == Verdict::Fail { exit::DEGRADED } else { exit::OK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mistakes_of_a_file_are_findings() {
        let errors = GroupFile::parse(Path::new("/etc/x.toml"), "[group]\nnmae = \"x\"\n");
        let findings = mistakes(&errors.expect_err("a mistake"));
        let told = in_json(&Report::of(None, findings)).expect("JSON");
        let told: serde_json::Value = serde_json::from_str(&told).expect("one object");
        assert_eq!((&told["schema"], &told["role"]), (&check::SCHEMA.into(), &"any".into()));
        let first = &told["findings"][0];
        assert_eq!(first["verdict"], "fail");
        let found = first["found"].as_str().expect("text");
        assert!(found.starts_with("/etc/x.toml:2:1: unknown key `nmae`"), "{found}");
        assert_eq!(first["remedy"], "did you mean `name`?");
    }
}
