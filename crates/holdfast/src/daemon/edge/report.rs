//! What the edge says of itself.

use super::EdgeDaemon;
use crate::admin::{EDGE_SCHEMA, TraceRequest, refusal};
use crate::config::Kind;
use crate::daemon::trace;
use crate::status::{Peer, Role, State, Status};
use holdfast_linux::bpf::EDGE_FLOWS_DEFAULT;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl EdgeDaemon<'_> {
    pub(super) fn status(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, "edge");
        let state = self.machine.handle_ask();
        status.role = Role::Edge;
        status.epoch = state.epoch;
        (status.state, status.reason, status.remedy) = self.judge();
        status.connections = self.bpf.all_bounds().len() as u64;
        status.peers = (0..self.links.count()).map(|index| self.peer(index)).collect();
        let counters = self.bpf.counters();
        status.counters =
            counters.into_iter().map(|(name, count)| (format!("edge.{name}"), count)).collect();
        status.counters.insert("edge.grants".to_owned(), self.grants);
        status.counters.insert("edge.last_grant_us".to_owned(), self.last_grant.as_micros() as u64);
        status.counters.insert("edge.channels_refused".to_owned(), self.listener.refused());
        status
    }

    /// The answer to `edge show`.
    pub(super) fn show(&self) -> Value {
        let current = self.machine.handle_ask().current.clone();
        let members = (0..self.links.count()).map(|index| {
            let name = self.links.name(index);
            let state = match (current.as_deref() == Some(name), self.links.is_connected(index)) {
                (true, true) => "current",
                (true, false) => "current, away",
                (false, true) if self.machine.is_ready(name) => "in step",
                (false, true) => "out of step",
                (false, false) => "away",
            };
            json!({ "name": name, "state": state })
        });
        let counters = self.bpf.counters();
        let counters: BTreeMap<&str, u64> = counters.into_iter().collect();
        json!({
            "schema": EDGE_SCHEMA,
            "group": self.config.group.name,
            "kind": Kind::Replicated,
            "services": self.config.group.services,
            "members": members.collect::<Vec<_>>(),
            "flows": { "count": self.bpf.all_bounds().len(), "max": EDGE_FLOWS_DEFAULT },
            "cache": self.recoverer.show(),
            "regulate": null,
            "counters": counters,
        })
    }

    /// The answer to `edge trace`.
    pub(super) fn trace(&self, question: &TraceRequest) -> Value {
        if question.from.is_ipv4() != question.to.is_ipv4() {
            return refusal("both ends must be of one address family");
        }
        match self.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => {
                let mut answer = trace::answer(question, &traced, |i| self.links.name(i.into()));
                // There is no choice to explain: it is whoever is current.
                answer["why"] = Value::Null;
                answer
            }
            Err(error) => refusal(&error.to_string()),
        }
    }

    fn judge(&self) -> (State, String, String) {
        let says =
            |state, reason: &str, remedy: &str| (state, reason.to_owned(), remedy.to_owned());
        if self.fenced_by_hand {
            return says(
                State::Fenced,
                "the edge was closed by hand",
                "holdfast edge unfence --config FILE",
            );
        }
        let on_disk = self.machine.handle_ask();
        let open = self.bpf.current().is_ok_and(|(_, current)| current.is_some());
        let Some(current) = on_disk.current.as_deref().filter(|_| open) else {
            let first = on_disk.current.as_deref().unwrap_or(&self.config.edge.first);
            return says(
                State::Waiting,
                &format!("closed until member `{first}` asks to be current"),
                &format!("start holdfast on `{first}`"),
            );
        };
        if !self.machine.answers(current) {
            return says(
                State::Waiting,
                &format!("`{current}` is current, and its daemon does not answer"),
                "look at its host; if no backup takes over, start both members again",
            );
        }
        let others = || self.config.members.iter().filter(|m| m.name != current);
        if others().any(|m| self.machine.is_ready(&m.name)) {
            return says(State::Protected, "", "");
        }
        let names: Vec<&str> = others().map(|m| m.name.as_str()).collect();
        says(
            State::Unprotected,
            &format!("no backup is in step with `{current}`"),
            &format!("start holdfast on `{}`, or look at its status", names.join(", ")),
        )
    }

    fn peer(&self, index: usize) -> Peer {
        let name = self.links.name(index);
        let is_silent = self.machine.is_in_step(name) && !self.machine.is_ready(name);
        let note = if self.machine.handle_ask().current.as_deref() == Some(name) {
            "current"
        } else if is_silent {
            "in step, does not answer"
        } else if self.machine.is_in_step(name) {
            "in step"
        } else {
            ""
        };
        Peer {
            name: name.to_owned(),
            connected: self.links.is_connected(index),
            note: note.to_owned(),
        }
    }
}
