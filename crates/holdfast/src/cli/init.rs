//! `init` and `join`: from three hosts to a group.

use super::args::{InitArgs, JoinArgs, SetUpArgs, service};
use super::{Failure, must_be_root, print};
use crate::check::{self, Finding, Verdict};
use crate::config::{GroupFile, Run};
use crate::init::{
    self, Applied, Begin, Changes, Code, HostRole, InitError, Join, Keys, Lack, Settings, Started,
    Told, Wish,
};
use crate::key::PublicKey;
use crate::status::exit;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Schema of `init --json` and `join --json`.
const SCHEMA: &str = "holdfast.init/1";
/// Most bytes of a line that a person types.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How often a question is asked.
const MISTAKES_MAX: usize = 10;

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
        public: made.public,
        more: json!({ "members": members, "unconfirmed": made.unconfirmed }),
    };
    for name in &made.unconfirmed {
        let remedy = match made.public {
            Some(_) => init::lost_key(&made.file, &made.key),
            None => format!(
                "look there; copy {} and {} to it if they are missing",
                made.file.display(),
                made.key.display()
            ),
        };
        let text = format!("{name} has not said that it has written its files\n  remedy: {remedy}");
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
        public: joined.public,
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
        let question = "Address and port that clients use, which no host has (10.9.0.100:6379): ";
        services.push(ask("--service is missing", question, |said| {
            service(said).map_err(|why| format!("`{said}` is no service\n  remedy: {why}"))
        })?);
    }
    let question = "Command of the server, as in a shell (/usr/bin/redis-server --bind *): ";
    let command = match args.command {
        Some(command) => words(&command).map_err(Failure::usage)?,
        None => ask("--command is missing", question, words)?,
    };
    let runs = [Run::Parallel, Run::OneAtATime];
    let run = runs.into_iter().find(|it| it.word() == args.server_run).unwrap_or_default();
    let host = if args.edge { HostRole::Edge } else { HostRole::Witness };
    let keys = if args.shared_key { Keys::Shared } else { Keys::OfEachHost };
    let (name, user, state_dirs, clients) = (args.name, args.user, args.state_dir, args.clients);
    Ok(Wish { name, services, command, user, state_dirs, run, host, clients, keys })
}

/// The words of a command.
fn words(text: &str) -> Result<Vec<String>, String> {
    init::words(text).map_err(|error| {
        format!("the command is no list of words: {error}\n  remedy: quote it as in a shell")
    })
}

/// The code from standard input, for which a person is asked.
fn typed_code() -> Result<Code, Failure> {
    ask("the code is missing", "Code that init prints: ", |said| {
        said.parse().map_err(|error| {
            format!("this is no code: {error}\n  remedy: compare it with what init prints")
        })
    })
}

/// Asks a person at a terminal, again after a mistake; elsewhere one line is read.
fn ask<T>(
    missing: &str,
    question: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    let to: Option<&mut dyn io::Write> = if stdin.is_terminal() { Some(&mut stderr) } else { None };
    answered(&mut stdin.lock(), to, question, read)?.ok_or_else(|| {
        Failure::usage(format!("{missing}\n  remedy: say it, or see `holdfast help init`"))
    })
}

/// The answer to a question from a line of `from`; none from an empty one. With `to`, where a person
/// reads, a mistake is said there, and the question comes again.
fn answered<T>(
    from: &mut impl io::BufRead,
    mut to: Option<&mut dyn io::Write>,
    question: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    for _ in 0..MISTAKES_MAX {
        if let Some(to) = &mut to {
            to.write_all(question.as_bytes()).and_then(|()| to.flush())?;
        }
        let mut line = String::new();
        let len = from.take(LINE_BYTES_MAX).read_line(&mut line)?;
        let said = line.trim();
        match (&mut to, read(said)) {
            (None, _) if said.is_empty() => return Ok(None),
            (Some(_), _) if len == 0 => return Ok(None),
            (_, Ok(answer)) if !said.is_empty() => return Ok(Some(answer)),
            (Some(to), Err(why)) if !said.is_empty() => writeln!(to, "{why}")?,
            (None, Err(why)) => return Err(Failure::usage(why)),
            _ => {}
        }
    }
    Ok(None)
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
    /// The public half of this host's own key; `None` where all hosts have the same.
    public: Option<PublicKey>,
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
            "key": written.key, "public_key": written.public, "settings": changes.applied, "settings_file": changes.kept_in,
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
    let Written { text, file, key, public, .. } = written;
    let whose = if public.is_some() { ": this host's own, which no other has" } else { "" };
    format!(
        "{text}\n  {} is written\n  {} is written, for root alone{whose}\n",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_at_a_question_is_asked_again() {
        let read = |said: &str| service(said).map_err(|why| format!("`{said}`: {why}"));
        let of = |typed: &str, to: Option<&mut dyn io::Write>| {
            answered(&mut typed.as_bytes(), to, "Service: ", read).map_err(|it| it.to_string())
        };
        let good = "10.9.0.100:80".parse().ok();
        let mut told = Vec::new();
        assert_eq!(of("x:1\n\n10.9.0.100:80\n", Some(&mut told)), Ok(good));
        let told = String::from_utf8(told).unwrap();
        assert_eq!(told.matches("Service: ").count(), 3, "{told}");
        assert!(told.contains("`x:1`: `x` is no address"), "{told}");
        assert_eq!(of("x:1\n", Some(&mut Vec::new())), Ok(None), "nobody types any more");
        assert_eq!(of("10.9.0.100:80\n", None), Ok(good));
        assert!(of("x:1\n10.9.0.100:80\n", None).is_err(), "nobody could read the question");
        assert_eq!(of("\n", None), Ok(None));
    }
}
