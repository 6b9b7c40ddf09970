//! Remedies for a replica that will not be promoted. Reasons come from the shim
//! and from the machines; here they meet their remedy.

use super::member::REJOINS;
use crate::status::State;
use holdfast_linux::process::Ending;
use std::path::Path;

/// Reason of a server that has ended, and its remedy.
pub const ENDED: &str = "the server's process has ended";
pub const AFTER_END: &str = "look at the server's log, and start the group again";

/// What helps after a server that was not rebuilt.
pub const AFTER_FALL: &str = "look at the server's log, and at what that client sent; then start the \
    group again";

/// What helps a server that has never served.
pub const AFTER_BAD_START: &str = "mend what the server's log says; then start both members again";

/// Cause of a takeover if nothing but the server's start is known.
pub const ENDED_AT_START: &str = "the primary's server ended at its start";

/// Reason for a server that has ended before it has served anybody: `how`, if that is
/// known, and where its output is.
#[must_use]
pub fn ended_at_start(how: Option<Ending>, log: Option<&Path>) -> String {
    let how = how.map_or_else(String::new, |how| format!(", {how}"));
    let log = log.map_or_else(
        || "it has no log of its own: see its daemon's".to_owned(),
        |log| format!("its log is {}", log.display()),
    );
    format!("the server ended at its start{how}; {log}")
}

/// Reason for a server that has forked and left.
pub const IN_BACKGROUND: &str = "the server has gone into the background: its process has ended";
pub const FOREGROUND: &str = "end what runs on and keeps the port; then start it in the foreground: nginx with `daemon off;`, \
     redis without `daemonize yes`, others with -f, -F, -D or -n";

/// Parts of reasons, each with the remedy before it joins again.
const REMEDIES: [(&str, &str); 8] = [
    (
        "child process of the server",
        "change the setting of the server that the reason names, on both members",
    ),
    (
        "did Lock",
        "threads of the server race outside the locks that are replayed: run it with one thread, or \
         see `holdfast support`",
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
    ("has not moved", "look at the load of the backup's host"),
    ("the primary did", "look for that call in `holdfast support`"),
];

/// The remedy of a backup that gives up.
#[must_use]
pub fn after_giving_up(state: State, reason: &str) -> String {
    if state == State::Ended {
        return format!(
            "look at the server's log on both members; {REJOINS} if the other one serves on"
        );
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
        assert!(after_giving_up(State::Diverged, lock).starts_with("threads of the server race"));
        let call = "the primary did NewFd open_device on descriptor 3";
        assert!(after_giving_up(State::Diverged, call).contains("holdfast support"));
        assert_eq!(after_giving_up(State::Fenced, "told so"), REJOINS);
        assert!(after_giving_up(State::Ended, lock).contains("the server's log"));
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
