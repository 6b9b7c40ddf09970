//! What the daemons of a group tell.

use super::Group;
use crate::testbed::Role;
use anyhow::{Context as _, Result};
use serde_json::Value;
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

    fn all_events(&self, role: Role) -> Vec<Value> {
        let asked = self.cli(role, &["events"]).and_then(|mut command| {
            Ok(command.arg("--json").stdin(Stdio::null()).stderr(Stdio::null()).output()?)
        });
        let text = asked.map(|done| done.stdout).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}
