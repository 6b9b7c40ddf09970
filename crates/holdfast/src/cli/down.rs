//! `holdfast down`: removes from this host what its daemons have put into it.

use super::args::DownArgs;
use super::group::load_of_daemon;
use super::{Failure, must_be_root, namespace, print};
use crate::admin::{self, AdminSocket, Request};
use crate::daemon::witness;
use crate::leavings::{self, Kind, Removed};
use crate::status::exit;
use holdfast_linux::process;
use serde_json::json;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The schema of the answer.
const SCHEMA: &str = "holdfast.down/1";
/// Waits for the end of a daemon that was told to end: one that hands over waits for the
/// backup and for the edge, and one that loads its programs on a busy machine for those.
const STOP_SOON: Duration = Duration::from_secs(15);
const STOP_MAX: Duration = Duration::from_secs(60);

pub(super) fn run(args: &DownArgs) -> Result<u8, Failure> {
    must_be_root()?;
    let (file, role) = load_of_daemon(&args.group)?;
    let socket = file.admin_socket(&role);
    if args.stop {
        keep_shared(&socket)?;
    }
    let stopped = args.stop && stop(&socket)?;
    let folder = socket.parent().unwrap_or(Path::new("/"));
    let mut removed = Vec::new();
    // While this is held no daemon of this role starts.
    let held = if folder.exists() { Some(hold(&socket, &role, &mut removed)?) } else { None };
    removed.extend(leavings::remove_all(&file, &role)?);
    drop(held);
    // Files that somebody else keeps there stay.
    let _not_empty = std::fs::remove_dir(folder);
    let text = if args.json {
        let answer = json!({
            "schema": SCHEMA, "group": file.name(), "role": role,
            "stopped": stopped, "removed": removed,
        });
        format!("{answer}\n")
    } else {
        shown(&role, stopped, &removed)
    };
    print(&text)?;
    if let Some(hint) = namespace::hint_after(&removed) {
        let _nobody_reads = writeln!(io::stderr(), "holdfast: {hint}");
    }
    Ok(exit::OK)
}

fn shown(role: &str, stopped: bool, removed: &[Removed]) -> String {
    let mut lines: Vec<String> = Vec::new();
    if stopped {
        lines.push(format!("stopped the daemon of `{role}`"));
    }
    lines.extend(removed.iter().map(|one| format!("removed {one}")));
    if removed.is_empty() {
        lines.push(format!("nothing of `{role}` was left on this host"));
    }
    lines.join("\n") + "\n"
}

/// Takes the place of the role's daemon; a socket that a dead one left is removed.
fn hold(socket: &Path, role: &str, removed: &mut Vec<Removed>) -> Result<AdminSocket, Failure> {
    let left = socket.exists();
    match AdminSocket::bind(socket) {
        Ok(held) => {
            if left {
                removed.push(Removed { kind: Kind::File, what: socket.display().to_string() });
            }
            Ok(held)
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Failure::degraded(format!(
            "a daemon of `{role}` runs on this host, and what it left is its own\n  \
             remedy: stop it first, or say `holdfast down --stop`"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to stop a witness that other groups need, too.
fn keep_shared(socket: &Path) -> Result<(), Failure> {
    let status = admin::ask(socket, Request::Status).unwrap_or_default();
    let groups = status["counters"][witness::GROUPS_SERVED].as_u64().unwrap_or(1);
    if groups <= 1 {
        return Ok(());
    }
    Err(Failure::degraded(format!(
        "this witness serves {} more groups\n  remedy: start it again with their files only, and \
         then say `holdfast down`",
        groups - 1
    )))
}

/// Stops the daemon that listens at `socket`, as SIGTERM does; false if there
/// was none.
fn stop(socket: &Path) -> Result<bool, Failure> {
    let Ok(stream) = UnixStream::connect(socket) else { return Ok(false) };
    let pid = process::peer(stream.as_fd())?;
    let daemon = process::pidfd_open(pid)?;
    process::signal(daemon.as_fd(), libc::SIGTERM)?;
    let wait = |long: Duration| process::poll_in(daemon.as_fd(), long.as_millis() as i32);
    if wait(STOP_SOON)? {
        return Ok(true);
    }
    let max = STOP_MAX.as_secs();
    let _nobody_reads = writeln!(
        io::stderr(),
        "holdfast: the daemon (process {pid}) has not ended yet: it may be loading its programs; \
         waiting for up to {max} s"
    );
    if wait(STOP_MAX.saturating_sub(STOP_SOON))? {
        return Ok(true);
    }
    Err(Failure::degraded(format!(
        "the daemon (process {pid}) has not ended after {max} s\n  remedy: kill -9 {pid}, and try again"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_was_removed() {
        let removed = [Removed { kind: Kind::Address, what: "10.9.0.100 of p0".to_owned() }];
        let text = shown("a", true, &removed);
        assert_eq!(text, "stopped the daemon of `a`\nremoved address 10.9.0.100 of p0\n");
        assert_eq!(shown("a", false, &[]), "nothing of `a` was left on this host\n");
    }
}
