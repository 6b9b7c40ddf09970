//! `init` and `join`: from three hosts to a group.

use super::args::{InitArgs, JoinArgs, SetUpArgs};
use super::{Failure, must_be_root, print};
use crate::check::{self, Finding, Verdict};
use crate::config::{GroupFile, Run};
use crate::init::{
    self, Applied, Begin, Changes, Code, HostRole, InitError, Join, Lack, Settings, Started, Told,
    Wish,
};
use crate::status::exit;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Schema of `init --json` and `join --json`.
const SCHEMA: &str = "holdfast.init/1";
/// Most bytes of a line with a code.
const CODE_BYTES_MAX: u64 = 256;

pub(super) fn init(args: InitArgs) -> Result<u8, Failure> {
    must_be_root()?;
    let set_up = args.set_up.clone();
    let timeout = Duration::from_secs(args.timeout);
    let asked = Begin {
        listen: args.listen.map(|it| it.address),
        port: args.listen.and_then(|it| it.port).unwrap_or(init::PORT),
        directory: set_up.directory.clone(),
        force: set_up.force,
        timeout,
        wish: wish(args)?,
    };
    let mut tell = |told: Told| tell(&told, set_up.json);
    let waits = |at: SocketAddr, code: &Code| invite(at, code, timeout, set_up.json);
    let made = init::begin(&asked, waits, &mut tell)?;
    let members: Vec<Value> = made
        .members
        .iter()
        .map(|(name, address)| json!({ "name": name, "address": address }))
        .collect();
    let names: Vec<&str> = made.members.iter().map(|it| it.0.as_str()).collect();
    let role = asked.wish.host.name();
    let group = asked.wish.name.as_str();
    let written = Written {
        group,
        role,
        text: format!("{group}: {} are its members, this host is its {role}", names.join(" and ")),
        file: &made.file,
        key: &made.key,
        more: json!({ "members": members, "unconfirmed": made.unconfirmed }),
    };
    for name in &made.unconfirmed {
        let text = format!(
            "{name} has not said that it has written its files\n  remedy: look there; copy {} and {} to \
             it if they are missing",
            made.file.display(),
            made.key.display()
        );
        tell(Told { event: "unconfirmed", host: name.clone(), text });
    }
    let code = finish(&written, &set_up)?;
    Ok(if made.unconfirmed.is_empty() { code } else { exit::DEGRADED })
}

pub(super) fn join(args: JoinArgs) -> Result<u8, Failure> {
    must_be_root()?;
    let JoinArgs { address, code, interface, set_up } = args;
    let code = code.map_or_else(typed_code, Ok)?;
    let (directory, force) = (set_up.directory.clone(), set_up.force);
    let asked = Join { address, code, interface, directory, force };
    let joined = init::join(&asked, &mut |told| tell(&told, set_up.json))?;
    let written = Written {
        group: &joined.group,
        role: &joined.role,
        text: format!("{}: this host is its member {}", joined.group, joined.role),
        file: &joined.file,
        key: &joined.key,
        more: json!({}),
    };
    finish(&written, &set_up)
}

impl From<InitError> for Failure {
    fn from(error: InitError) -> Self {
        match error {
            InitError::Usage(lack) => Self::usage(lack.to_string()),
            InitError::Misfit(lack) => Self::degraded(lack.to_string()),
            InitError::Unreachable(lack) => Self::unreachable(lack.to_string()),
            InitError::Config(errors) => {
                // Nobody has such a file: its places mean nothing.
                let all =
                    errors.0.into_iter().map(|it| Lack::new(it.message, it.remedy).to_string());
                Self::usage(all.collect::<Vec<_>>().join("\n"))
            }
            InitError::Io(error) => error.into(),
        }
    }
}

/// What a person wants, who is asked for what is missing if there is one.
fn wish(args: InitArgs) -> Result<Wish, Failure> {
    let mut services = args.service;
    if services.is_empty() {
        let said = ask(
            "service",
            "Address and port that clients use, which no host has (10.9.0.100:6379): ",
        )?;
        let service = said.parse().map_err(|_| {
            Failure::usage(format!(
                "`{said}` is no address with a port\n  remedy: write 10.9.0.100:6379 or [fd09::100]:6379"
            ))
        })?;
        services.push(service);
    }
    let command = match args.command {
        Some(command) => command,
        None => ask(
            "command",
            "Command of the server, as in a shell (/usr/bin/redis-server --bind *): ",
        )?,
    };
    let command = init::words(&command).map_err(|error| {
        Failure::usage(format!(
            "the command is no list of words: {error}\n  remedy: quote it as in a shell"
        ))
    })?;
    let runs = [Run::Parallel, Run::OneAtATime];
    let run = runs.into_iter().find(|it| it.word() == args.server_run).unwrap_or_default();
    let host = if args.edge { HostRole::Edge } else { HostRole::Witness };
    let (name, user, state_dirs, clients) = (args.name, args.user, args.state_dir, args.clients);
    Ok(Wish { name, services, command, user, state_dirs, run, host, clients })
}

/// The code from standard input, for which a person is asked.
fn typed_code() -> Result<Code, Failure> {
    let (mut line, stdin) = (String::new(), io::stdin());
    if stdin.is_terminal() {
        let mut to = io::stderr();
        to.write_all(b"Code that init prints: ").and_then(|()| to.flush())?;
    }
    stdin.lock().take(CODE_BYTES_MAX).read_line(&mut line)?;
    line.trim().parse().map_err(|error| {
        Failure::usage(format!(
            "this is no code: {error}\n  remedy: compare it with what init prints"
        ))
    })
}

/// Asks a person at a terminal.
fn ask(flag: &str, question: &str) -> Result<String, Failure> {
    let (mut answer, stdin) = (String::new(), io::stdin());
    if stdin.is_terminal() {
        let mut to = io::stderr();
        to.write_all(question.as_bytes()).and_then(|()| to.flush())?;
        stdin.read_line(&mut answer)?;
    }
    match answer.trim() {
        "" => Err(Failure::usage(format!(
            "--{flag} is missing\n  remedy: see `holdfast init --help`"
        ))),
        said => Ok(said.to_owned()),
    }
}

/// Prints what is to be typed on the other hosts.
fn invite(at: SocketAddr, code: &Code, timeout: Duration, json: bool) {
    let command = format!("holdfast join {at} {code}");
    let text = match json {
        true => {
            let code = code.to_string();
            let timeout_s = timeout.as_secs();
            let all = json!({ "event": "waiting", "address": at, "code": code, "command": command, "timeout_s": timeout_s });
            line(all)
        }
        false => format!("Type this on the two other hosts, as root:\n\n  {command}\n\n"),
    };
    // Who has closed standard output waits in vain, and is told so by the timeout.
    let _ = print(&text);
    if !json {
        let _ = writeln!(
            io::stderr(),
            "waiting for two members, for {} s; until they are here nothing is written",
            timeout.as_secs()
        );
    }
}

fn tell(told: &Told, json: bool) {
    let _nobody_reads = match json {
        true => print(&line(serde_json::to_value(told).unwrap_or_default())).map(drop),
        false => writeln!(io::stderr(), "{}", told.text).map_err(Failure::from),
    };
}

/// An object of the schema, as a line.
fn line(mut object: Value) -> String {
    object["schema"] = SCHEMA.into();
    format!("{object}\n")
}

/// What was written on this host.
struct Written<'a> {
    group: &'a str,
    role: &'a str,
    /// One sentence that says so.
    text: String,
    file: &'a Path,
    key: &'a Path,
    /// More for the JSON object.
    more: Value,
}

/// Looks what this host lacks, sets what may be set, and has the daemon run.
fn finish(written: &Written<'_>, set_up: &SetUpArgs) -> Result<u8, Failure> {
    let file = GroupFile::load(written.file)?;
    let mut report = check::run(Some((&file, written.role)));
    let mut changes = Changes::default();
    if set_up.apply {
        let mut look = || check::run(Some((&file, written.role)));
        (changes, report) = Settings::new(written.group).apply(report, &mut look);
    }
    report.findings.retain(|it| it.verdict != Verdict::Ok);
    let verdict = report.verdict();
    if !set_up.json {
        let changes = shown_settings(&changes);
        let could = init::applicable(&report);
        print(
            &(shown_files(written)
                + &changes
                + &shown_findings(&report.findings, could.len(), written)),
        )?;
    }
    let started = match set_up.run {
        true => None,
        false => Some(init::start(written.group, written.file)?),
    };
    let command = format!("holdfast run --config {}", written.file.display());
    let status = format!("holdfast status --config {} --wait protected", written.file.display());
    if set_up.json {
        let unit = match &started {
            Some(Started::Unit(unit)) => Some(unit.as_str()),
            _ => None,
        };
        let mut all = json!({
            "event": "written", "group": written.group, "role": written.role, "file": written.file,
            "key": written.key, "settings": changes.applied, "settings_file": changes.kept_in,
            "settings_failed": changes.failed,
            "findings": report.findings, "unit": unit, "run": command, "status": status,
        });
        if let (Some(all), Some(more)) = (all.as_object_mut(), written.more.as_object()) {
            all.extend(more.clone());
        }
        print(&line(all))?;
    } else {
        print(&match &started {
            None => String::new(),
            Some(Started::Unit(unit)) => format!("systemd runs {unit}, and does so at each boot\n"),
            Some(Started::ByHand) => format!("start this host's daemon:\n  {command}\n"),
        })?;
        print(&format!("is it protected?\n  {status}\n"))?;
    }
    if set_up.run {
        crate::daemon::run(&file, written.role)?;
        return Ok(exit::OK);
    }
    let is_fine = verdict != Verdict::Fail && changes.failed.is_empty();
    Ok(if is_fine { exit::OK } else { exit::DEGRADED })
}

fn shown_files(written: &Written<'_>) -> String {
    let Written { text, file, key, .. } = written;
    format!(
        "{text}\n  {} is written\n  {} is written, for root alone\n",
        file.display(),
        key.display()
    )
}

fn shown_settings(changes: &Changes) -> String {
    let mut text = String::new();
    for Applied { name, before, now } in &changes.applied {
        text += &format!("  {name} is {now} now; it was {before}\n");
    }
    if let Some(file) = &changes.kept_in {
        text += &format!("  {} sets that at each boot\n", file.display());
    }
    for Lack { what, remedy } in &changes.failed {
        text += &format!("FAIL  --apply: {what}\n      remedy: {remedy}\n");
    }
    text
}

fn shown_findings(findings: &[Finding], could: usize, written: &Written<'_>) -> String {
    let mut text = String::new();
    for Finding { name, verdict, found, remedy } in findings {
        let mark = if *verdict == Verdict::Fail { "FAIL" } else { "warn" };
        text += &format!("{mark}  {name}: {found}\n      remedy: {remedy}\n");
    }
    if could > 0 {
        text += &format!(
            "{could} of that {} by --apply; `holdfast check --config {}` looks again\n",
            if could == 1 { "is a setting, changed" } else { "are settings, changed" },
            written.file.display()
        );
    }
    text
}
