//! What the edge reports: its own state, the group's as seen from here, and the answers to
//! `edge show` and `edge trace`.

use super::ways::Verdict;
use super::{DOUBLE_LASTS, EdgeDaemon};
use crate::admin::{EDGE_SCHEMA, TraceRequest, refusal};
use crate::config::{Kind, Mac};
use crate::daemon::intact::Trouble;
use crate::daemon::said::Said;
use crate::daemon::trace;
use crate::daemon::{advice, kept};
use crate::status::{Peer, Role, State, Status};
use holdfast_cluster::Nanos;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Time after the edge's start for which a missing member is explained by that start: even on a
/// busy machine members reconnect within it.
const START_LASTS: Nanos = Nanos::from_ms(2000);

/// Remedy for that time.
const COMES_BACK: &str = "wait a moment: members look for their edge";

impl EdgeDaemon<'_> {
    /// The status without what is counted.
    pub(super) fn head(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, "edge");
        status.role = Role::Edge;
        status.epoch = self.machine.membership().handle_ask().epoch;
        let Said { state, reason, remedy, .. } = self.judge();
        (status.state, status.reason, status.remedy) = (state, reason, remedy);
        status
    }

    pub(super) fn status(&self) -> Status {
        let mut status = self.head();
        status.mode = self.config.group.mode.word().to_owned();
        status.buffering = self.config.group.buffering.word().to_owned();
        status.list_members(false);
        status.members.extend((0..self.machine.count()).map(|index| self.wire.links.listed(index)));
        status.last_takeover.clone_from(&self.last_takeover);
        status.connections = self.wire.bpf.flow_count() as u64;
        status.peers = (0..self.machine.count()).map(|index| self.peer(index)).collect();
        let counters = self.wire.bpf.counters();
        status.counters =
            counters.into_iter().map(|(name, count)| (format!("edge.{name}"), count)).collect();
        status.counters.insert("edge.grants".to_owned(), self.machine.grants());
        status.counters.insert("edge.vanished".to_owned(), self.wire.vanished);
        status.counters.insert("edge.last_grant_us".to_owned(), self.machine.last_grant().0 / 1000);
        status.counters.insert("edge.channels_refused".to_owned(), self.listener.refused());
        status.counters.insert("loop.overslept".to_owned(), self.machine.overslept());
        status.counters.insert("loop.deafened".to_owned(), self.machine.deafened());
        status.counters.insert("loop.stalls".to_owned(), self.processors.stalls());
        status.counters.extend(self.wire.links.lateness());
        status
    }

    /// The answer to `edge show`.
    pub(super) fn show(&self) -> Value {
        let current = self.machine.membership().handle_ask().current.clone();
        let members = (0..self.machine.count()).map(|index| {
            let name = self.machine.name(index);
            let state = match (current.as_deref() == Some(name), self.machine.is_here(index)) {
                (true, true) => "current",
                (true, false) => "current, away",
                (false, true) if self.machine.membership().is_ready(name) => "in step",
                (false, true) => "out of step",
                (false, false) => "away",
            };
            json!({ "name": name, "state": state })
        });
        let counters = self.wire.bpf.counters();
        let counters: BTreeMap<&str, u64> = counters.into_iter().collect();
        json!({
            "schema": EDGE_SCHEMA,
            "group": self.config.group.name,
            "kind": Kind::Replicated,
            "services": self.config.group.services,
            "members": members.collect::<Vec<_>>(),
            "flows": { "count": self.wire.bpf.flow_count(), "max": self.wire.bpf.flows_max() },
            "cache": self.wire.recoverer.show(),
            "regulate": null,
            "counters": counters,
        })
    }

    /// The answer to `edge trace`.
    pub(super) fn trace(&self, question: &TraceRequest) -> Value {
        if question.from.is_ipv4() != question.to.is_ipv4() {
            return refusal("both ends must be of one address family");
        }
        match self.wire.bpf.trace(&trace::question_of(question)) {
            Ok(traced) => {
                let mut answer = trace::answer(question, &traced, |i| self.machine.name(i.into()));
                // There is no choice to explain: it goes to the current member.
                answer["why"] = Value::Null;
                answer
            }
            Err(error) => refusal(&error.to_string()),
        }
    }

    /// The edge's own state, which the members are told.
    pub(super) fn own(&self) -> Said {
        if self.machine.is_closed_by_hand() {
            let remedy = "holdfast edge unfence --config FILE";
            return Said::new(Role::Edge, State::Fenced, "the edge was closed by hand", remedy);
        }
        if let Some(ended) = self.nobody_serves() {
            return ended;
        }
        if let Some((reason, remedy)) = &self.host.trouble {
            return says(State::Waiting, reason, remedy);
        }
        if let Some(lacking) = self.lacking() {
            return lacking;
        }
        if let Some(reason) = &self.host.torn {
            return says(
                State::Unprotected,
                reason,
                "look at the interface; then start the edge again",
            );
        }
        if let Some(reason) = self.host.kept.lost() {
            return says(State::Unprotected, reason, kept::REMEDY);
        }
        let now = Instant::now();
        let is_here = |index: &usize| self.machine.is_here(*index);
        let mut indices: Vec<usize> = (0..self.machine.count()).filter(is_here).collect();
        // Without the current member nobody is served; without the other, unprotected.
        indices.sort_by_key(|index| !self.machine.is_current(*index));
        let trouble = indices.iter().find_map(|index| self.way_trouble(*index, now));
        let file = || indices.iter().find_map(|index| self.file_trouble(*index));
        let disk = || self.disk_trouble();
        trouble
            .or_else(file)
            .or_else(disk)
            .or_else(|| self.distrust(now))
            .or_else(|| self.kept_out())
            .unwrap_or_else(|| Said::fine(Role::Edge))
    }

    /// The state if the servers of all members have ended, and all their daemons say so.
    fn nobody_serves(&self) -> Option<Said> {
        let all = (0..self.machine.count())
            .map(|index| self.wire.links.says(index).filter(|_| self.machine.is_here(index)));
        let first = self.machine.membership().handle_ask().current.as_deref();
        all_ended(all, first.and_then(|name| self.machine.index(name)))
    }

    /// Why a member that is not connected fails to connect: its handshakes fail.
    fn distrust(&self, now: Instant) -> Option<Said> {
        let it = self.distrust.fresh(now, |index| !self.machine.is_here(index))?;
        Some(says(State::Unprotected, &it.reason, it.remedy))
    }

    /// What this host lacks, which only its own configuration can give back.
    fn lacking(&self) -> Option<Said> {
        let Trouble { state, reason, remedy } = self.host.lacking.as_ref()?;
        Some(says(*state, reason, remedy))
    }

    /// Why the other member does not follow the current one, which serves alone and has not been
    /// told: the other one's own words.
    fn kept_out(&self) -> Option<Said> {
        let current = self.machine.membership().handle_ask().current.as_deref()?;
        let alone = self.says(current).filter(|said| said.state == State::Unprotected)?;
        let other = self.other(current)?;
        let theirs = self.says(other).filter(|_| self.is_connected(other))?;
        advice::adds_to(theirs, alone).then(|| {
            let state = State::Unprotected;
            Said { role: Role::Edge, state, ..theirs.quoted(&format!("`{other}`")) }
        })
    }

    /// How the member's file differs from the edge's. A service that the edge does not know is
    /// neither fenced nor copied, and the rest of the file is meant for all hosts, too.
    fn file_trouble(&self, index: usize) -> Option<Said> {
        let differs = self.wire.links.differs(index)?;
        let remedy = "copy one file to all hosts, and start the daemon anew where it was another";
        Some(says(State::Unprotected, differs, remedy))
    }

    fn disk_trouble(&self) -> Option<Said> {
        let failure = self.wire.disk.failure()?;
        let remedy = "look at the disk that holds edge.state_file, and at the room on it; the edge \
                      tries it again by itself";
        Some(says(State::Unprotected, &format!("nobody could take over: {failure}"), remedy))
    }

    /// `said`, for a moment at which a takeover is needed; with a failing disk its remedy is the
    /// disk's, since without the disk no epoch can be granted.
    fn unless_disk(&self, said: Said) -> Said {
        match self.disk_trouble() {
            None => said,
            Some(disk) => {
                // The asking member may have been told already.
                let is_said = self.wire.disk.failure().is_some_and(|why| said.reason.contains(why));
                let more = if is_said { String::new() } else { format!("; {}", disk.reason) };
                let reason = format!("{}{more}", said.reason);
                Said { reason, remedy: disk.remedy, ..said }
            }
        }
    }

    /// Why the edge's frames do not reach a member.
    fn way_trouble(&self, index: usize, now: Instant) -> Option<Said> {
        let member = self.config.members.get(index)?;
        let (name, mac) = (&member.name, member.port.as_ref()?.mac);
        let state =
            if self.machine.is_current(index) { State::Waiting } else { State::Unprotected };
        let verdict = self.ways.verdict(index, now);
        if verdict == Verdict::Proved {
            return None;
        }
        let remedy = format!(
            "write the hardware address that `ip link` shows on `{name}` as its `mac`, in the file \
             of every host; then start the edge again"
        );
        match verdict {
            Verdict::LeadsTo(other) => Some(self.misled(index, other, now)),
            Verdict::Proved => None,
            Verdict::Trying => {
                let reason = format!("the way to `{name}` has not proved itself yet");
                Some(says(state, &reason, "wait a few seconds"))
            }
            Verdict::OtherAddress(own) => {
                let own = Mac(own);
                let reason =
                    format!("the edge's frames go to {mac}, but `{name}` has the address {own}");
                Some(says(state, &reason, &remedy))
            }
            Verdict::Silent => {
                let reason = format!(
                    "the edge's frames to `{name}` ({mac}) do not arrive: is its `mac` right?"
                );
                let way = format!("{remedy}; or look at the link to it");
                Some(says(state, &reason, &way))
            }
        }
    }

    /// Reports that the port which the file gives to one member leads to
    /// another.
    fn misled(&self, index: usize, other: usize, now: Instant) -> Said {
        let serves = [index, other].into_iter().any(|index| self.machine.is_current(index));
        let is_swap = self.ways.verdict(other, now) == Verdict::LeadsTo(index);
        let of = |index: usize| {
            self.config
                .members
                .get(index)
                .and_then(|member| {
                    Some((member.name.as_str(), member.port.as_ref()?.edge_port.as_str()))
                })
                .unwrap_or(("?", "?"))
        };
        let (mut one, mut two) = (of(index), of(other));
        let state = if serves { State::Waiting } else { State::Unprotected };
        let again = "in the file of every host; then start the edge again";
        if !is_swap {
            let ((name, port), (there, _)) = (one, two);
            let reason =
                format!("{port}, the edge_port of `{name}` in the file, leads to `{there}`");
            let remedy = format!(
                "write the edge's interface that leads to `{name}` as its edge_port {again}"
            );
            return says(state, &reason, &remedy);
        }
        if other < index {
            std::mem::swap(&mut one, &mut two);
        }
        let ((a, port_of_a), (b, port_of_b)) = (one, two);
        let reason = format!(
            "the ports of `{a}` and `{b}` are swapped in the file: {port_of_a} leads to `{b}`, \
             and {port_of_b} to `{a}`"
        );
        says(state, &reason, &format!("exchange the edge_port of `{a}` and `{b}` {again}"))
    }

    /// The group's state, as seen from the edge: the worst of what it knows
    /// itself and of what the members say.
    fn judge(&self) -> Said {
        let own = self.own();
        if matches!(own.state, State::Fenced | State::Ended) {
            return own;
        }
        let on_disk = self.machine.membership().handle_ask();
        let is_open = self.wire.bpf.current().is_ok_and(|(_, current)| current.is_some());
        let Some(current) = on_disk.current.as_deref().filter(|_| is_open) else {
            let first = on_disk.current.as_deref().unwrap_or(&self.named.first);
            return self.unless_disk(self.closed(first));
        };
        let is_here = self.machine.index(current).is_some_and(|i| self.machine.is_here(i));
        if !is_here || !self.machine.membership().answers(current) {
            return self.unless_disk(self.away(current));
        }
        let Some(theirs) = self.says(current) else {
            let reason = format!("`{current}` has not said yet what it does");
            let remedy = format!("look at the status of `{current}`");
            return says(State::Waiting, &reason, &remedy);
        };
        let backup = self.backup(current);
        match theirs.state {
            State::Protected => {}
            // A takeover is under way.
            State::Ended if backup.state == State::Waiting && self.may_take_over(current) => {
                return self.unless_disk(backup);
            }
            // The edge may know why the current member's backup does not connect.
            State::Waiting if !own.is_fine() => {
                let reason = format!("{}; `{current}`: {}", own.reason, theirs.reason);
                return Said { state: State::Waiting, reason, ..own };
            }
            State::Unprotected if own.is_fine() || own.state == State::Unprotected => {
                let theirs = theirs.quoted(&format!("`{current}`"));
                return self.explained(&theirs).unwrap_or(theirs);
            }
            State::Unprotected => {}
            // The current member does not serve, whatever else is wrong.
            _ => return theirs.quoted(&format!("`{current}`")),
        }
        if !own.is_fine() {
            own
        } else if backup.is_fine()
            && self.wire.bpf.flow_count() >= self.wire.bpf.flows_max() as usize
        {
            says(
                State::Protected,
                "the flow table is full: new clients are refused",
                "raise edge.flows_max, or find out who opens so many connections",
            )
        } else {
            backup
        }
    }

    /// `theirs`, the state of a member that is alone or missing, with the reason why the other
    /// side does not connect; `None` if the edge knows no reason.
    fn explained(&self, theirs: &Said) -> Option<Said> {
        let distrust = || self.distrust(Instant::now());
        let known = self.lacking().or_else(distrust).or_else(|| self.kept_out())?;
        let reason = format!("{}; {}", theirs.reason, known.reason);
        Some(Said { reason, remedy: known.remedy, ..theirs.clone() })
    }

    /// The state if the current member's daemon does not answer.
    fn away(&self, current: &str) -> Said {
        let reason = format!("`{current}` is current, and its daemon does not answer");
        if let Some(explained) = self.explained(&says(State::Waiting, &reason, "")) {
            return explained;
        }
        if self.is_starting() {
            let reason = format!(
                "`{current}` is current, and has not come back to the edge yet, which has just started"
            );
            return says(State::Waiting, &reason, COMES_BACK);
        }
        // It has said so as it ended.
        if let Some(last) = self.says(current).filter(|last| last.state == State::Ended) {
            return says(State::Waiting, &format!("{reason}; {}", last.reason), &last.remedy);
        }
        let remedy = "look at its host: a server that spoke alone may still serve; if no backup \
                      takes over, start both members again";
        // A backup says that it builds the server, or why it could not.
        let backup = self.backup(current);
        match backup.state {
            State::Waiting | State::Diverged | State::Hung => {
                says(State::Waiting, &format!("{reason}; {}", backup.reason), &backup.remedy)
            }
            _ => says(State::Waiting, &reason, remedy),
        }
    }

    fn is_starting(&self) -> bool {
        self.wire.clock.now() < START_LASTS
    }

    /// The state if the edge is closed until this member asks to be current.
    fn closed(&self, member: &str) -> Said {
        let reason = format!("closed until member `{member}` asks to be current");
        let connected = self.is_connected(member);
        let explained = self.explained(&says(State::Waiting, &reason, ""));
        if let Some(explained) = explained.filter(|_| !connected) {
            return explained;
        }
        match self.says(member) {
            Some(theirs) if connected && !theirs.is_fine() => says(
                State::Waiting,
                &format!("{reason}; `{member}`: {}", theirs.reason),
                &theirs.remedy,
            ),
            _ if connected => {
                says(State::Waiting, &reason, &format!("look at the status of `{member}`"))
            }
            _ if self.is_starting() => {
                says(State::Waiting, &format!("{reason}; the edge has just started"), COMES_BACK)
            }
            _ => {
                let remedy = format!(
                    "start holdfast on `{member}`, whose server may live; docs/STATUS.md says what to \
                     do if it never comes back"
                );
                says(State::Waiting, &reason, &remedy)
            }
        }
    }

    /// Whether another member follows the current one in this epoch, and so may take over.
    fn may_take_over(&self, current: &str) -> bool {
        let mut others = self.config.members.iter().filter(|member| member.name != current);
        others.any(|member| self.machine.membership().is_in_step(&member.name))
    }

    /// The state of the group according to the other members.
    fn backup(&self, current: &str) -> Said {
        let Some(name) = self.other(current) else {
            return says(State::Unprotected, "the group has one member", "add another");
        };
        match self.says(name).filter(|_| self.is_connected(name)) {
            None => says(
                State::Unprotected,
                &format!("`{name}` is not connected"),
                &format!("start holdfast on `{name}`, or look at the way to it"),
            ),
            Some(theirs) if !theirs.is_fine() => {
                let state = match theirs.state {
                    State::Waiting | State::Diverged | State::Hung => theirs.state,
                    _ => State::Unprotected,
                };
                Said { role: Role::Edge, state, ..theirs.quoted(&format!("`{name}`")) }
            }
            Some(_) if self.machine.membership().is_ready(name) => Said::fine(Role::Edge),
            Some(_) if !self.machine.membership().answers(name) => says(
                State::Unprotected,
                &format!("the edge does not hear `{name}`"),
                "look at the link between them",
            ),
            Some(_) => says(
                State::Unprotected,
                &format!("`{name}` is not in step with `{current}`"),
                &format!("look at the status of `{name}`"),
            ),
        }
    }

    /// The name of the member beside `current`.
    fn other(&self, current: &str) -> Option<&str> {
        let mut names = self.config.members.iter().map(|member| member.name.as_str());
        names.find(|name| *name != current)
    }

    fn is_connected(&self, member: &str) -> bool {
        self.machine.index(member).is_some_and(|index| self.machine.is_here(index))
    }

    fn says(&self, member: &str) -> Option<&Said> {
        self.machine.index(member).and_then(|index| self.wire.links.says(index))
    }

    /// A note for the operator if two hosts use the member's name.
    fn double(&self, index: usize) -> Option<String> {
        let seen = self.doubles.get(&index)?;
        let note = format!("two hosts are called `{}`", self.machine.name(index));
        (seen.elapsed() < DOUBLE_LASTS).then_some(note)
    }

    fn peer(&self, index: usize) -> Peer {
        let name = self.machine.name(index);
        if let Some(note) = self.double(index) {
            return Peer { name: name.to_owned(), connected: self.machine.is_here(index), note };
        }
        let connected = self.machine.is_here(index);
        let is_silent =
            self.machine.membership().is_in_step(name) && !self.machine.membership().is_ready(name);
        let place = if self.machine.membership().handle_ask().current.as_deref() == Some(name) {
            "current"
        } else if is_silent {
            "in step, does not answer"
        } else if self.machine.membership().builds(name) {
            "in step, builds the server"
        } else if self.machine.membership().is_in_step(name) {
            "in step"
        } else {
            ""
        };
        let mut parts = vec![place.to_owned()];
        if let Some(theirs) = self.wire.links.says(index).filter(|it| connected && !it.is_fine()) {
            parts.push(theirs.to_string());
        }
        if let Some(distrusted) = self.distrust.of(index).filter(|_| !connected) {
            parts.push(distrusted.reason.clone());
        }
        parts.retain(|part| !part.is_empty());
        Peer { name: name.to_owned(), connected, note: parts.join("; ") }
    }
}

/// The state if every member (`said`) reports that its server has ended: that of the `current`
/// one.
fn all_ended<'s>(
    said: impl Iterator<Item = Option<&'s Said>>,
    current: Option<usize>,
) -> Option<Said> {
    let all: Option<Vec<&Said>> =
        said.map(|said| said.filter(|said| said.state == State::Ended)).collect();
    let all = all?;
    let first = all.get(current.unwrap_or_default())?;
    let told = advice::nobody_serves(first);
    let reason = match told.reason.contains(advice::NOBODY_SERVES) {
        true => told.reason,
        false => format!("{}; {}", told.reason, advice::NOBODY_SERVES),
    };
    Some(says(State::Ended, &reason, &told.remedy))
}

fn says(state: State, reason: &str, remedy: &str) -> Said {
    Said::new(Role::Edge, state, reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_serves_only_if_all_servers_have_ended() {
        let said = |state| Said::new(Role::Backup, state, "killed", advice::AWAIT_BACKUP);
        let (ended, waits) = (said(State::Ended), said(State::Waiting));
        let told = |a, b| all_ended([a, b].into_iter(), Some(1));
        assert_eq!(told(Some(&ended), Some(&waits)), None);
        assert_eq!(told(Some(&ended), None), None, "it is not known");
        let all = told(Some(&ended), Some(&ended)).expect("nobody serves");
        assert_eq!((all.state, all.remedy.as_str()), (State::Ended, advice::START_ANEW));
        assert!(all.reason.starts_with("killed; nobody serves"), "{}", all.reason);
    }
}
