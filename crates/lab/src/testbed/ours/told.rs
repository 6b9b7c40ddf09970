//! What the daemons of a group tell.

use super::{Group, MEMBERS, PROTECTED_MAX, name};
use crate::testbed::Role;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::fs;
use std::process::Stdio;

impl Group<'_> {
    /// What `holdfast status --json` says on a host.
    ///
    /// # Errors
    /// When the daemon does not answer or its answer is not JSON.
    pub fn status(&self, role: Role) -> Result<Value> {
        let done = self
            .cli(role, &["status"])?
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        serde_json::from_slice(&done.stdout).context("status is not JSON")
    }

    /// The events that `holdfast events --json` shows on a host, oldest first: the time of day, and
    /// the kind.
    #[must_use]
    pub fn events(&self, role: Role) -> Vec<(String, String)> {
        let word = |event: &Value, name| event[name].as_str().unwrap_or_default().to_owned();
        self.all_events(role).iter().map(|event| (word(event, "at"), word(event, "what"))).collect()
    }

    /// The details of a host's events of one kind, oldest first.
    #[must_use]
    pub fn details(&self, role: Role, what: &str) -> Vec<String> {
        let events = self.all_events(role).into_iter().filter(|event| event["what"] == what);
        events.filter_map(|event| event["detail"].as_str().map(str::to_owned)).collect()
    }

    /// The member for which the edge's fence is open, whatever the member says.
    ///
    /// # Errors
    /// When the edge does not answer, or names no member.
    pub fn current(&self) -> Result<Role> {
        if !self.has_third() {
            return self.primary().context("no member says that it serves");
        }
        if self.options.segment.is_some() {
            let status = self.status(Role::Edge)?;
            return owner_of(&status).with_context(|| format!("nobody owns the service: {status}"));
        }
        let shown = self.verb(Role::Edge, &["edge", "show", "--json"])?.stdout;
        let show: Value = serde_json::from_slice(&shown).context("`edge show` is not JSON")?;
        current_of(&show).with_context(|| format!("the edge names no current member: {show}"))
    }

    fn all_events(&self, role: Role) -> Vec<Value> {
        let asked = self.cli(role, &["events"]).and_then(|mut command| {
            Ok(command.arg("--json").stdin(Stdio::null()).stderr(Stdio::null()).output()?)
        });
        let text = asked.map(|done| done.stdout).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// The member that `edge show` calls `current`, connected or not.
pub(super) fn current_of(show: &Value) -> Option<Role> {
    let is_current =
        |member: &&Value| matches!(member["state"].as_str(), Some("current" | "current, away"));
    let current = show["members"].as_array()?.iter().find(is_current)?;
    MEMBERS.into_iter().find(|role| current["name"] == name(*role))
}

/// The member that owns the service by the witness's status.
pub(super) fn owner_of(status: &Value) -> Option<Role> {
    let peers = status["peers"].as_array()?;
    let owner = peers.iter().find(|peer| peer["note"] == "owns the service")?;
    MEMBERS.into_iter().find(|role| owner["name"] == name(*role))
}

/// Says what a group lacks that should be protected by now: the daemons' words, and the machine's
/// load.
pub(super) fn unprotected_yet(statuses: &[Value], load: f64) -> String {
    let says = |status: &&Value| status["reason"].as_str().is_some_and(|it| !it.is_empty());
    // The reason that a primary gives is the group's.
    let primary = statuses.iter().filter(|status| status["role"] == "primary").find(says);
    let said = primary.or_else(|| statuses.iter().find(says));
    let reason = said.and_then(|it| it["reason"].as_str()).unwrap_or("no daemon answers");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = match load > processors as f64 {
        true => format!("; this machine is busy (load {load:.1} of {processors}): try again"),
        false => String::new(),
    };
    format!("the group is not protected after {} s: {reason}{busy}", PROTECTED_MAX.as_secs())
}

/// Number of processes that ran, or waited for a processor or a disk, in the last minute.
pub(super) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Whether this is the status of a primary that is protected.
pub(super) fn is_protected(status: &Value) -> bool {
    status["role"] == "primary" && status["state"] == "protected"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::config::{BACKUP_NAME, PRIMARY_NAME};
    use serde_json::json;

    #[test]
    fn a_group_that_is_not_protected_says_why_in_words() {
        let status = |role, reason| json!({"role": role, "reason": reason});
        let both = [status("backup", "waits"), status("primary", "the server is slow")];
        let told = unprotected_yet(&both, 1e6);
        let after =
            "the group is not protected after 120 s: the server is slow; this machine is busy";
        assert!(told.starts_with(after), "{told}");
        assert!(!unprotected_yet(&both, 0.0).contains("busy"));
        assert!(unprotected_yet(&[Value::Null], 0.0).ends_with("no daemon answers"));
    }

    #[test]
    fn whoever_is_current_may_be_away() {
        let show = |a, b| {
            let members = [
                json!({"name": PRIMARY_NAME, "state": a}),
                json!({"name": BACKUP_NAME, "state": b}),
            ];
            json!({ "members": members })
        };
        assert_eq!(current_of(&show("current", "in step")), Some(Role::Primary));
        assert_eq!(current_of(&show("away", "current, away")), Some(Role::Backup));
        assert_eq!(current_of(&show("out of step", "away")), None);
        assert_eq!(current_of(&json!({})), None);
    }
}
