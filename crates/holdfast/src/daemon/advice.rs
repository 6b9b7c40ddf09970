//! Remedies for people: what to do when a replica cannot be promoted, or a server has ended.
//! The reasons come from the shim and the state machines; this file adds the remedy to each.

use super::member::{REJOINS, RESTART_BOTH};
use super::said::Said;
use crate::status::{NEVER_COPIED, Role, State};
use holdfast_linux::process::Ending;
use std::path::Path;

/// Remedy where nothing is to be done.
pub const WAIT: &str = "wait";
/// Remedy of a member whose primary has not answered yet.
pub const ASKS_AGAIN: &str =
    "it asks again and again; start the other member's daemon, if it does not run";

/// Whether the state of a member that waits names something to be done, and `current`, of the member
/// that serves alone, does not repeat it.
#[must_use]
pub fn adds_to(waiting: &Said, current: &Said) -> bool {
    let is_state = waiting.role == Role::Backup
        && matches!(waiting.state, State::Waiting | State::Diverged | State::Hung);
    let has_remedy = !matches!(waiting.remedy.as_str(), "" | WAIT | ASKS_AGAIN);
    // What it could not do, in words of its own, stands before the reason.
    let reason = waiting.reason.split_once(": ").map_or(&*waiting.reason, |(_, reason)| reason);
    is_state && has_remedy && !current.reason.contains(reason)
}

/// Reason of a server that has ended, and its remedy.
pub const ENDED: &str = "the server's process has ended";
pub const AFTER_END: &str = "look at the server's log, and start the group again";

/// Remedy when a server that has ended was not rebuilt.
pub const AFTER_FALL: &str = "look at the server's log, and at what that client sent; then start the \
    group again";
/// Reason, and below it remedy, when the servers of both members have ended.
pub const NOBODY_SERVES: &str = "nobody serves: the servers of both members have ended";
pub const START_ANEW: &str = "look at the servers' logs, and start both members anew";

/// The state of a member whose server has ended, as the other's has. A remedy that tells the
/// operator to wait for the other member is replaced by [`START_ANEW`].
#[must_use]
pub fn nobody_serves(own: &Said) -> Said {
    let waits = [REJOINS, AWAIT_BACKUP, AWAIT_UNHEARD];
    let waits = waits.iter().any(|remedy| own.remedy.contains(remedy));
    if !waits {
        return own.clone();
    }
    let reason = format!("{}; {NOBODY_SERVES}", own.reason);
    Said { reason, remedy: START_ANEW.to_owned(), ..own.clone() }
}

/// Remedy for a primary whose server has ended while a backup follows it.
pub const AWAIT_BACKUP: &str = "wait for the backup; it needs the edge's daemon to take over";
/// The same, when the edge does not hear the backup.
pub const AWAIT_UNHEARD: &str = "look at the backup's daemon: it takes over once the edge hears it; if it has ended, \
    start both members again";

/// Remedy for a server that ended before it ever served.
pub const AFTER_BAD_START: &str = "mend what the server's log says; then start both members again";

/// Cause of a takeover if nothing but the server's start is known.
pub const ENDED_AT_START: &str = "the primary's server ended at its start";

/// The reason when a server has ended before it served anybody: `how` it ended, if that is
/// known, and the file `log` with its output.
#[must_use]
pub fn ended_at_start(how: Option<Ending>, log: Option<&Path>) -> String {
    let how = how.map_or_else(String::new, |how| format!(", {how}"));
    let log = log.map_or_else(
        || "it has no log of its own: see its daemon's".to_owned(),
        |log| format!("its log is {}", log.display()),
    );
    format!("the server ended at its start{how}; {log}")
}

/// Reason, and below it remedy, for a server that forked and let its first process end. One that
/// somebody stops as soon after its start looks like it.
pub const IN_BACKGROUND: &str = "the server was stopped, or has gone into the background: its process has ended with exit \
     status 0 soon after its start";
pub const FOREGROUND: &str = "if nobody stopped it, start it in the foreground: nginx with `daemon off;`, redis without `daemonize yes`, others \
     with -f, -F, -D or -n; what ran on was ended, for nobody could have protected it";

/// Texts that occur in reasons, each with what to do before the member can join again.
const REMEDIES: [(&str, &str); 8] = [
    (
        "did Lock",
        "if the server has read its files again (a reload), look whether they are equal on both \
         members: files are compared only while it starts; else its threads race outside the locks \
         that are replayed: after the next join one of them runs at a time, unless `run`, `mode` or \
         `rebuild` in the file forbid it; or run it with one thread",
    ),
    (
        "the replica writes other bytes",
        "the server's output depends on what differs between the hosts, as random bytes, addresses \
         or files: see `holdfast support`",
    ),
    (
        "on the primary and",
        "make that file equal on both members; if a child of the server makes it, switch that off",
    ),
    ("differs", "make equal what the reason names"),
    ("does not have the recorded hash", "the copies of clients' packets are changed on their way"),
    (
        "is stopped (SIGSTOP",
        "leave the replica's processes alone: it is killed, and a new one made",
    ),
    ("has not moved", "look at the load of the backup's host"),
    (
        "the primary did",
        "look for that call in `holdfast support`; if the server has read its files again (a \
         reload), look whether they are equal on both members",
    ),
];

/// Texts that occur in reasons for which no attempt to join will ever succeed, because of what
/// the server itself does.
const FOR_GOOD: [&str; 2] = ["child process of the server", NEVER_COPIED];

/// The remedy when this server can never be copied; `None` for any other reason. It is another
/// setting of the server, and a new start.
fn for_good(reason: &str) -> Option<String> {
    let is_child = reason.contains("child process of the server");
    let what = if is_child {
        "change the setting of the server on both members, so that no child process of it serves \
         clients, as the reason says"
    } else {
        "look for what the reason names in `holdfast support`"
    };
    let is_known = FOR_GOOD.iter().any(|part| reason.contains(part));
    is_known.then(|| format!("{what}; then {RESTART_BOTH}"))
}

/// The remedy when a cold backup has lost what it keeps in `spool_dir`; `None` for any other
/// reason. Every host may say it.
fn room(reason: &str) -> Option<String> {
    let (_, rest) = reason.split_once("the spool in ")?;
    let dir = rest.split([' ', ':', ';']).next().unwrap_or_default();
    Some(format!(
        "free space at {dir} on the backup's host, give spool_dir a faster or larger disk, or raise \
         spool_max_mb"
    ))
}

/// The remedy for a member whose server runs alone for `reason`: `other` may join.
#[must_use]
pub fn alone(reason: &str, other: &str) -> String {
    let tries = |help: String| format!("{help}; {other} tries again by itself");
    let known = for_good(reason).or_else(|| room(reason).map(tries));
    known.unwrap_or_else(|| {
        format!(
            "start {other}'s daemon, if it does not run, or look at the way to it: it joins by \
             itself"
        )
    })
}

/// The remedy for a member whose server runs alone because an attempt of `other` to join it
/// has failed.
#[must_use]
pub fn unjoined(reason: &str, other: &str) -> String {
    let tries = |help: String| format!("{help}; {other} tries again by itself");
    for_good(reason).or_else(|| room(reason).map(tries)).unwrap_or_else(|| {
        format!(
            "{other} tries again, after growing pauses; if the reason stands, mend what it names, on \
             the host that it names: folders and disks while the server runs; what the server itself \
             has done goes only with a restart of both members, and with it go the open connections"
        )
    })
}

/// The remedy for a member that was turned away, or whose attempt to join has failed; `else_`
/// if nothing better is known.
#[must_use]
pub fn not_joined(reason: &str, else_: &str) -> String {
    let room = || room(reason).map(|help| format!("{help}; it tries again by itself"));
    for_good(reason).or_else(room).unwrap_or_else(|| else_.to_owned())
}

/// The remedy for a cold backup that could not build the server with which it was to take over
/// from `other`.
#[must_use]
pub fn after_not_building(other: &str) -> String {
    format!(
        "look at {other}'s host and the way to it: a server that lives there goes on alone as soon as \
         its daemon reaches the edge, and this member joins it; if it is dead, what it held is lost: \
         start both members again"
    )
}

/// The remedy for a backup that gives up in this `state`, for this `reason`.
#[must_use]
pub fn after_giving_up(state: State, reason: &str) -> String {
    if state == State::Ended {
        return format!(
            "look at the server's log on both members; {REJOINS} if the other one serves on"
        );
    }
    if let Some(help) = for_good(reason) {
        return help;
    }
    let known = REMEDIES.iter().find(|(part, _)| reason.contains(part));
    known.map_or_else(|| REJOINS.to_owned(), |(_, help)| format!("{help}; {REJOINS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_meets_its_remedy() {
        let lock = "the primary did Lock pthread_mutex on descriptor or from place 3871 (result 0)";
        assert!(after_giving_up(State::Diverged, lock).contains("its threads race"));
        for reason in [lock, "the primary did NewFd open_device on descriptor 3"] {
            let remedy = after_giving_up(State::Diverged, reason);
            assert!(remedy.contains("(a reload), look whether they are equal"), "{remedy}");
        }
        let stopped = "the replica's process 7 is stopped (SIGSTOP, or a debugger)";
        assert!(after_giving_up(State::Hung, stopped).starts_with("leave the replica's processes"));
        let call = "the primary did NewFd open_device on descriptor 3";
        assert!(after_giving_up(State::Diverged, call).contains("holdfast support"));
        assert_eq!(after_giving_up(State::Fenced, "told so"), REJOINS);
        assert!(after_giving_up(State::Ended, lock).contains("the server's log"));
    }

    #[test]
    fn where_nobody_serves_nobody_is_waited_for() {
        let said = |remedy: &str| Said::new(Role::Backup, State::Ended, "it has ended", remedy);
        for remedy in [&after_giving_up(State::Ended, "x"), AWAIT_BACKUP, AWAIT_UNHEARD, REJOINS] {
            let told = nobody_serves(&said(remedy));
            assert_eq!(told.reason, format!("it has ended; {NOBODY_SERVES}"));
            assert_eq!(told.remedy, START_ANEW);
        }
        for remedy in [AFTER_BAD_START, FOREGROUND, AFTER_END] {
            assert_eq!(nobody_serves(&said(remedy)), said(remedy), "that is enough");
        }
    }

    #[test]
    fn who_can_never_join_is_told_to_try_nothing() {
        let child = "a child process of the server (\"python3\") accepts connections";
        let never = format!("it can never be copied: {child}");
        let told = [
            alone(&format!("{child}; running alone"), "b"),
            unjoined(&never, "b"),
            not_joined(&never, "it tries again"),
            after_giving_up(State::Diverged, child),
        ];
        for remedy in told {
            assert!(remedy.starts_with("change the setting of the server"), "{remedy}");
            assert!(remedy.contains(RESTART_BOTH), "{remedy}");
            assert!(!remedy.contains("tries again") && !remedy.contains(REJOINS), "{remedy}");
        }
        assert!(alone("no backup has come", "b").starts_with("start b's daemon"));
        assert!(unjoined("the channel was lost", "b").starts_with("b tries again"));
        assert_eq!(not_joined("the channel was lost", "it tries again"), "it tries again");
    }

    #[test]
    fn what_a_waiting_member_says_of_itself_is_added_once() {
        let alone = |reason: &str| Said::new(Role::Primary, State::Unprotected, reason, "look");
        let waits =
            |reason: &str, remedy: &str| Said::new(Role::Backup, State::Waiting, reason, remedy);
        let full = waits("could not join a: the spool in /s needs 9 MB", "free space");
        assert!(adds_to(&full, &alone("the backup has ended; running alone")));
        let known = "running alone; b could not join: the spool in /s needs 9 MB";
        assert!(!adds_to(&full, &alone(known)));
        for remedy in ["", WAIT, ASKS_AGAIN] {
            assert!(!adds_to(&waits("joins a: 3 % is here", remedy), &alone("running alone")));
        }
        assert!(!adds_to(&Said::fine(Role::Backup), &alone("running alone")));
        let begins = Said { role: Role::None, ..full };
        assert!(!adds_to(&begins, &alone("running alone")), "it has just been started");
    }

    #[test]
    fn a_full_spool_is_mended_where_it_is() {
        let full = "gave up as a backup: the spool in /var/spool/hf: No space left on device";
        for remedy in [alone(full, "b"), unjoined(full, "b"), not_joined(full, "x")] {
            assert!(
                remedy.starts_with("free space at /var/spool/hf on the backup's host"),
                "{remedy}"
            );
            assert!(remedy.contains("tries again"), "{remedy}");
        }
    }

    #[test]
    fn a_bad_start_says_how_it_ended_and_where_to_look() {
        let said = ended_at_start(Some(Ending::Exited(1)), Some(Path::new("/var/log/x")));
        assert_eq!(
            said,
            "the server ended at its start, with exit status 1; its log is /var/log/x"
        );
        let killed = ended_at_start(Some(Ending::Killed(11)), None);
        assert!(killed.contains("by signal 11") && killed.contains("its daemon's"), "{killed}");
        assert!(ended_at_start(None, None).starts_with("the server ended at its start; "));
    }
}
