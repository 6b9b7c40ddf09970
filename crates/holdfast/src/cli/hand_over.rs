//! `switchover` and `move`: planned moves of the service, requested on the host
//! that serves; and `takeover`, an operator's word that the other host is off.

use super::args::{GroupArgs, MoveArgs, SwitchoverArgs, TakeoverArgs};
use super::failure::Failure;
use super::group::{Daemon, load};
use super::print;
use super::watch::{LOOK_PERIOD, ask, fetch};
use crate::admin::{Event, Request};
use crate::status::{NEVER_COPIED, Role, State, Status, exit};
use std::io::{self, Write as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time for which a primary that waits for something is not asked yet: most waits are
/// over in a moment.
const MOMENT: Duration = Duration::from_secs(3);

/// The two members, and the socket of this host's one.
struct Pair {
    role: String,
    other: String,
    daemon: Daemon,
}

impl Pair {
    fn of(group: &GroupArgs, to: Option<&str>) -> Result<Self, Failure> {
        let (file, role) = load(group)?;
        let daemon = Daemon::of(&file, &role);
        let config = file.replicated().map_err(Failure::usage)?;
        let other = config.members.iter().find(|member| member.name != role);
        let other = other.map(|member| member.name.clone()).unwrap_or_default();
        if let Some(to) = to.filter(|to| *to != other) {
            let names: Vec<&str> = config.members.iter().map(|it| it.name.as_str()).collect();
            return Err(Failure::usage(not_the_other(to, &role, &other, &names)));
        }
        Ok(Self { role, other, daemon })
    }
}

/// Why nobody can hand over to the member `to`.
fn not_the_other(to: &str, role: &str, other: &str, names: &[&str]) -> String {
    match names.contains(&to) {
        true => format!(
            "`{to}` is not the other member of `{role}`\n  remedy: ask on the host that serves; `{other}` \
             takes over"
        ),
        false => format!(
            "the group has no member `{to}`; its members are {}\n  remedy: --to {other}, on the host of the \
             other one",
            names.join(" and ")
        ),
    }
}

/// Asks the primary of this host to hand over, and waits until the group is protected again.
pub(super) fn switchover(args: &SwitchoverArgs) -> Result<u8, Failure> {
    let Pair { role, other, daemon } = Pair::of(&args.group, args.to.as_deref())?;
    let begun = Instant::now();
    wait_moment(&daemon);
    ask(&daemon, Request::Switchover { leaves: false })?;
    let until = begun + Duration::from_secs(args.timeout);
    loop {
        let backup = fetch(&daemon).ok().filter(|status| status.role == Role::Backup);
        if let Some(status) = backup {
            if status.state == State::Protected {
                break;
            }
            // It looks for the new primary, and is told that it can never join.
            if status.reason.contains(NEVER_COPIED) {
                return Err(Failure::degraded(format!(
                    "`{other}` has taken over, and `{role}` cannot join it: {}\n  remedy: {}",
                    status.reason, status.remedy
                )));
            }
        }
        if Instant::now() >= until {
            let text = format!(
                "`{other}` is asked to take over, and the group is not protected again yet"
            );
            return Err(Failure::degraded(format!("{text}\n  remedy: look at `holdfast status`")));
        }
        sleep(LOOK_PERIOD);
    }
    let ms = begun.elapsed().as_millis();
    let json = serde_json::json!({ "from": role, "to": other, "protected_after_ms": ms as u64 });
    let text =
        format!("{other} is the primary, and {role} its backup: protected again after {ms} ms");
    print(&format!("{}\n", if args.json { json.to_string() } else { text }))?;
    Ok(exit::OK)
}

/// Gives this host's member the operator's word, and waits until it serves.
pub(super) fn take_over(args: &TakeoverArgs) -> Result<u8, Failure> {
    let Pair { role, other, daemon } = Pair::of(&args.group, None)?;
    let (begun, before) = (Instant::now(), fetch(&daemon)?.epoch);
    ask(&daemon, Request::Takeover)?;
    let until = begun + Duration::from_secs(args.timeout);
    // A primary that was silenced already is one, and begins another epoch.
    let serves = |status: Status| {
        status.role == Role::Primary && status.server_pid != 0 && status.epoch > before
    };
    while !fetch(&daemon).is_ok_and(serves) {
        if Instant::now() >= until {
            return Err(Failure::degraded(format!(
                "`{role}` was told that the host of `{other}` is off, and does not serve yet\n  \
                 remedy: look at `holdfast status`"
            )));
        }
        sleep(LOOK_PERIOD);
    }
    let ms = begun.elapsed().as_millis();
    let json = serde_json::json!({ "primary": role, "after_ms": ms as u64 });
    let text =
        format!("{role} serves alone, after {ms} ms; {other} may be started again, and joins");
    print(&format!("{}\n", if args.json { json.to_string() } else { text }))?;
    Ok(exit::OK)
}

fn wait_moment(daemon: &Daemon) {
    let until = Instant::now() + MOMENT;
    let waits = |status: Status| status.role == Role::Primary && status.state == State::Waiting;
    while fetch(daemon).is_ok_and(waits) && Instant::now() < until {
        sleep(LOOK_PERIOD);
    }
}

/// Waits until the other member has joined, has it take over, and waits until the daemon of
/// this host has ended.
pub(super) fn relocate(args: &MoveArgs) -> Result<u8, Failure> {
    let Pair { role, other, daemon } = Pair::of(&args.group, Some(&args.to))?;
    let begun = Instant::now();
    let until = begun + Duration::from_secs(args.timeout);
    wait_joined(&daemon, &other, until)?;
    let before = events(&daemon, 0)?.last().map_or(0, |event| event.number + 1);
    ask(&daemon, Request::Switchover { leaves: true })?;
    if !has_handed_over(&daemon, before, until)? {
        return Err(Failure::degraded(format!(
            "the daemon of `{role}` has ended, and did not say that `{other}` has taken over\n  \
             remedy: look at `holdfast status` there, and at the edge"
        )));
    }
    let ms = begun.elapsed().as_millis();
    let json = serde_json::json!({ "from": role, "to": other, "moved_after_ms": ms as u64 });
    let text = format!("{other} serves, and {role} has ended: moved after {ms} ms");
    print(&format!("{}\n", if args.json { json.to_string() } else { text }))?;
    Ok(exit::OK)
}

fn wait_joined(daemon: &Daemon, other: &str, until: Instant) -> Result<(), Failure> {
    let mut told = String::new();
    loop {
        let status = fetch(daemon)?;
        if status.role != Role::Primary {
            return Err(Failure::degraded(format!(
                "this member is {}, and serves nobody\n  remedy: ask on the host that serves",
                status.role
            )));
        }
        if status.state == State::Protected {
            return Ok(());
        }
        if status.reason != told {
            told.clone_from(&status.reason);
            let _nobody_reads = writeln!(
                io::stderr(),
                "holdfast: waiting until `{other}` has joined: {told}\n  remedy: {}",
                status.remedy
            );
        }
        if Instant::now() >= until {
            return Err(Failure::degraded(format!(
                "`{other}` has not joined: {}\n  remedy: {}",
                status.reason, status.remedy
            )));
        }
        sleep(LOOK_PERIOD);
    }
}

fn events(daemon: &Daemon, since: u64) -> Result<Vec<Event>, Failure> {
    let mut answer = ask(daemon, Request::Events { since })?;
    Ok(serde_json::from_value(answer["events"].take())?)
}

/// Waits until the daemon is gone; returns whether it has said, from event `next` on,
/// that the other member took over.
fn has_handed_over(daemon: &Daemon, mut next: u64, until: Instant) -> Result<bool, Failure> {
    let mut said = false;
    loop {
        let events = match events(daemon, next) {
            Err(failure) if failure.code == exit::UNREACHABLE => return Ok(said),
            events => events?,
        };
        next = events.last().map_or(next, |event| event.number + 1);
        said |= events.iter().any(|event| event.what == "handed over");
        if Instant::now() >= until {
            return Err(Failure::degraded(
                "the daemon of this host goes on\n  remedy: look at `holdfast status`".to_owned(),
            ));
        }
        sleep(LOOK_PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_there_is_not_is_named() {
        let told = |to: &str| not_the_other(to, "a", "b", &["a", "b"]);
        assert!(told("c").starts_with("the group has no member `c`; its members are a and b\n"));
        assert!(told("a").starts_with("`a` is not the other member of `a`"));
    }
}
