//! `holdfast report`: what somebody needs who helps from afar, in one file without secrets. A part
//! that cannot be had is named, and the others are there.

mod gather;
mod mask;
mod tar;

use super::args::ReportArgs;
use super::events::{Follower, json_of, known, takeovers};
use super::group::{self, Daemon};
use super::watch::{ask, fetch};
use super::{Failure, print};
use crate::admin::Request;
use crate::config::GroupFile;
use crate::remembered::Remembered;
use crate::status::{Style, exit, rfc3339};
use gather::{Part, file, tail, told_by};
use mask::Secrets;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Most of the server's log that is taken, in bytes: its end.
const SERVER_LOG_BYTES: u64 = 256 << 10;
/// Standard output, as the name of a file.
const STDOUT: &str = "-";

pub(super) fn run(args: &ReportArgs) -> Result<u8, Failure> {
    let group = group::file(&args.group)?;
    let roles = roles(&group, args.group.role.as_deref())?;
    let secrets = Secrets::of(&group);
    let mut parts = vec![Part::new("config.toml", Ok(secrets.config(&group)))];
    for role in &roles {
        parts.extend(of_role(&group, role, args));
    }
    parts.extend(gather::host());
    let output = args.output.clone().unwrap_or_else(|| default_name(&group, &roles[0]));
    parts.insert(0, index(&group, &roles, &parts));
    for part in &parts {
        if let Err(why) = &part.content {
            let _nobody_reads = writeln!(io::stderr(), "holdfast: without {}: {why}", part.name);
        }
    }
    write(&output, &archive(&parts, &secrets))?;
    if output.as_os_str() != STDOUT {
        print(&format!("{}\n", output.display()))?;
    }
    Ok(exit::OK)
}

/// The role that was asked for, or all that run here, or the one that this host has.
fn roles(group: &GroupFile, asked: Option<&str>) -> Result<Vec<String>, Failure> {
    let here = group.roles_here();
    match asked {
        None if !here.is_empty() => Ok(here),
        _ => Ok(vec![group.role(asked).map_err(Failure::usage)?]),
    }
}

fn default_name(group: &GroupFile, role: &str) -> PathBuf {
    let time: String = rfc3339(SystemTime::now()).chars().take(19).filter(|c| *c != ':').collect();
    format!("holdfast-{}-{role}-{time}Z.tar.gz", group.name()).into()
}

/// What is in the report, and what is not.
fn index(group: &GroupFile, roles: &[String], parts: &[Part]) -> Part {
    let mut text = format!(
        "Report of `holdfast` {} about the group `{}`, role {}, made at {}.\n\
         The key is not in it; *** stands for arguments, variables and passwords.\n\n",
        holdfast_program::BUILD,
        group.name(),
        roles.join(", "),
        rfc3339(SystemTime::now())
    );
    for part in parts {
        text += &match &part.content {
            Ok(content) => format!("{}: {} bytes\n", part.name, content.len()),
            Err(why) => format!("{}: MISSING: {why}\n", part.name),
        };
    }
    Part::new("README.txt", Ok(text))
}

/// What the daemon with this role says, and what its process is allowed.
fn of_role(group: &GroupFile, role: &str, args: &ReportArgs) -> Vec<Part> {
    let daemon = Daemon::of(group, role);
    let told = |failure: Failure| failure.to_string();
    let status = fetch(&daemon).map_err(told);
    let kept = known(group, role, &mut Follower::default()).map_err(told);
    let name = |what: &str| format!("{role}/{what}");
    let mut parts = vec![
        Part::new(name("status.json"), status.clone().map(|it| lines([&it]))),
        Part::new(name("status.txt"), status.clone().map(|it| it.render(Style::Plain))),
        Part::new(name("events.jsonl"), kept.clone().map(lines::<Remembered>)),
        Part::new(
            name("history.jsonl"),
            kept.map(|kept| lines(takeovers(kept).iter().map(json_of))),
        ),
    ];
    // Who is no edge has nothing to show.
    if let Ok(shown) = ask(&daemon, Request::Show) {
        parts.push(Part::new(name("edge.json"), Ok(lines([shown]))));
    }
    let process = daemon_of(&daemon.socket).map_err(|error| error.to_string());
    parts.extend(of_process(&name("daemon"), process));
    let server = status.as_ref().map(|it| it.server_pid).map_err(Clone::clone);
    if server != Ok(0) {
        parts.extend(of_process(&name("server"), server));
    }
    let config = group.path().as_os_str();
    parts.push(Part::new(name("check.json"), check(config, role)));
    if let (GroupFile::Replicated(config), true) = (group, args.with_server_log) {
        let log = config.server.log.as_deref().ok_or_else(|| "the file names none".to_owned());
        let log = log.and_then(|path| tail(path, SERVER_LOG_BYTES));
        parts.push(Part::new(name("server.log"), log));
    }
    parts
}

fn check(config: &std::ffi::OsStr, role: &str) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let words = ["check".as_ref(), "--config".as_ref(), config, "--role".as_ref(), role.as_ref()];
    told_by(&own, words.iter().copied().chain(["--json".as_ref()]))
}

/// The process that listens at the socket.
fn daemon_of(socket: &Path) -> io::Result<u32> {
    holdfast_linux::process::peer(std::os::fd::AsFd::as_fd(&UnixStream::connect(socket)?))
}

/// Nothing of its environment or its arguments.
fn of_process(name: &str, pid: Result<u32, String>) -> Vec<Part> {
    let part = |what: &str| {
        let path = pid.clone().map(|pid| PathBuf::from(format!("/proc/{pid}/{what}")));
        Part::new(format!("{name}.{what}"), path.and_then(|path| file(&path)))
    };
    ["limits", "status", "cgroup"].map(part).into()
}

fn lines<T: serde::Serialize>(all: impl IntoIterator<Item = T>) -> String {
    // What is given here is always written.
    let line = |it: T| serde_json::to_string(&it).unwrap_or_default() + "\n";
    all.into_iter().map(line).collect()
}

/// The parts, without secrets, as a tar file.
fn archive(parts: &[Part], secrets: &Secrets) -> Vec<u8> {
    let mut archive = tar::Archive::new("holdfast-report");
    for part in parts {
        if let Ok(content) = &part.content {
            archive.add(&part.name, secrets.scrub(content).as_bytes());
        }
    }
    archive.finish()
}

/// Writes the archive, compressed unless the name ends in `.tar`.
fn write(output: &Path, archive: &[u8]) -> Result<(), Failure> {
    let is_plain = output.extension().is_some_and(|kind| kind == "tar");
    let file = if output.as_os_str() == STDOUT { None } else { Some(make(output)?) };
    match (file, is_plain) {
        (Some(mut file), true) => Ok(file.write_all(archive)?),
        (file, _) => compress(archive, file.map_or_else(Stdio::inherit, Stdio::from)),
    }
}

/// Makes a file that only its owner reads.
fn make(path: &Path) -> Result<File, Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AlreadyExists => "name another file with -o, or remove that one",
            _ => "name a file in a folder that you may write to, with -o",
        };
        Failure::degraded(format!("{}: {error}\n  remedy: {remedy}", path.display()))
    })
}

fn compress(archive: &[u8], to: Stdio) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::degraded(format!(
            "gzip: {error}\n  remedy: name a file that ends in .tar, with -o"
        ))
    };
    let mut gzip = Command::new("gzip");
    let mut gzip = gzip.arg("-c").stdin(Stdio::piped()).stdout(to).spawn().map_err(failed)?;
    let written = gzip.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(archive));
    let status = gzip.wait().map_err(failed)?;
    match (written, status.success()) {
        (Ok(()), true) => Ok(()),
        (Err(error), _) => Err(failed(error)),
        (Ok(()), false) => Err(failed(io::Error::other(format!("it ended with {status}")))),
    }
}

#[cfg(test)]
mod tests;
