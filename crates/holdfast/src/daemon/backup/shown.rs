//! What the backup reports about itself: its events, its state, and its counters.

use super::{BackupDaemon, Cold, sockets};
use crate::daemon::advice;
use crate::daemon::direct::Listening;
use crate::daemon::member::{REJOINS, RESTART_BOTH, count};
use crate::daemon::said::{STOPPED, Said, kind_of};
use crate::leavings::Own;
use crate::status::{Lag, PastTakeover, Phases, Role, State, Takeover, counted, rfc3339};
use holdfast_cluster::Nanos;
use holdfast_linux::process::Ending;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::spawn::Server;
use holdfast_member::backup::{Cause, Kept, Phases as Times, Report, TWICE};
use holdfast_member::host::{Fault, MemberEvent};
use holdfast_wire::message::{ConnKey, clip};
use std::time::{Instant, SystemTime};

/// Remedy for a cold backup that has lost its spool.
const ROOM: &str = "give spool_dir a faster or larger disk, or raise spool_max_mb";

/// Reason why a server that was killed while it was being rebuilt stays down: the spool that it
/// was built from has been used up.
const KILLED: &str = "it was killed while it was being rebuilt";

fn state(fault: Fault) -> State {
    match fault {
        // These members join again by themselves.
        Fault::Unkept | Fault::Outgrown | Fault::Unreachable | Fault::Cut => State::Waiting,
        Fault::Diverged => State::Diverged,
        Fault::Hung => State::Hung,
        Fault::Fenced => State::Fenced,
        Fault::Ended => State::Ended,
    }
}

fn in_us(times: &Times) -> Phases {
    Phases {
        detect: times.detect.0 / 1000,
        fence: (times.fence.0 / 1000).max(1),
        drain: times.drain.0 / 1000,
        repair: times.repair.0 / 1000,
        probe: times.probe.0 / 1000,
        address: times.address.0 / 1000,
        kick: times.kick.0 / 1000,
    }
}

impl BackupDaemon<'_, '_> {
    pub(super) fn tell(&mut self, news: &MemberEvent<'_>) {
        self.node.status.epoch = self.node.member.epoch;
        match *news {
            MemberEvent::Promotes { cause, stopped } => {
                // From now on only what the primary says next counts.
                (self.refused, self.says, self.stopped) = (None, None, stopped);
                let why = self.why(cause);
                let what = if cause == Cause::Fallen { "rebuild" } else { "promote" };
                self.node.events.add(what, why);
            }
            MemberEvent::TakesOver { cause, builds } => self.tell_takeover(cause, builds),
            MemberEvent::Waits { reason } => self.refused = Some(reason.to_owned()),
            MemberEvent::TookOver { cause, phases, .. } => {
                let fell = cause == Cause::Fallen;
                self.tell_taken_over(self.why(cause), phases, fell);
            }
            MemberEvent::GaveUp { fault, reason, builds } if builds && fault != Fault::Fenced => {
                self.tell_unbuilt(fault, reason);
            }
            MemberEvent::GaveUp { fault: fault @ Fault::Unreachable, reason, .. } => {
                self.tell_unbuilt(fault, reason);
            }
            MemberEvent::GaveUp { fault, reason, .. } => self.tell_given_up(fault, reason),
            MemberEvent::Built { took } => self.tell_built(took),
            MemberEvent::GaveUpForGood => {
                let Said { role, state, reason, .. } = self.node.own().clone();
                let times = counted(self.node.member.rejoin_max.into(), "time");
                let reason = format!("{reason} (given up more than {times} in a row)");
                self.node.set_state(role, state, &reason, RESTART_BOTH);
            }
            MemberEvent::Replaced { newer } => self.node.set_replaced(newer),
            MemberEvent::EndedAlone => {
                self.node.set_ended(Role::Primary, advice::ENDED, advice::AFTER_END);
            }
            MemberEvent::Joins { image_bytes } => self.node.note_joins(image_bytes),
            MemberEvent::JoinFailed { reason } => {
                self.node.other_says = None;
                self.node.events.add("join failed", reason);
                let reason = format!("could not join {}: {}", self.node.other.name, clip(reason));
                let remedy = "it tries again; look at the reason if that does not help";
                self.node.set_put_off(&reason, &advice::not_joined(&reason, remedy));
            }
            MemberEvent::Joined { took } => self.node.note_joined(took),
            MemberEvent::Renewed { took } => {
                let what = format!("a new image, after {} ms", took.0 / 1_000_000);
                self.node.events.add("renewed", what);
            }
            MemberEvent::RenewedNot { reason } => self.node.events.add("not renewed", reason),
            MemberEvent::NotRebuilt { reason, input } => self.tell_not_rebuilt(reason, input),
            // Events of a primary only.
            MemberEvent::Keeps { .. } | MemberEvent::KeepsNot { .. } | MemberEvent::Fell { .. } => {
            }
            MemberEvent::HandsOver
            | MemberEvent::Stopped
            | MemberEvent::HandedOver { .. }
            | MemberEvent::ServerEnded(_)
            | MemberEvent::Doubts { .. }
            | MemberEvent::Asks { .. }
            | MemberEvent::Alone { .. } => {}
        }
    }

    /// Reports that this host's own server is not rebuilt and stays down.
    fn tell_not_rebuilt(&mut self, reason: &str, input: Option<ConnKey>) {
        let how = self.own_end;
        let is_killed = how == Some(Ending::Killed(libc::SIGKILL));
        let reason = if is_killed && reason == TWICE { KILLED } else { reason };
        let lost = self.put_back().err();
        let reason = lost.map_or_else(|| reason.to_owned(), |why| format!("{reason}; {why:#}"));
        self.node.set_fallen(how, &reason, input);
    }

    /// Reports that the server which a takeover needed could not be built, or could not be
    /// reached by clients. The edge was not asked, so a primary that still lives may go on.
    fn tell_unbuilt(&mut self, fault: Fault, reason: &str) {
        let node = &mut *self.node;
        node.other_says = None;
        let reason = format!("could not take over from {}: {reason}", node.other.name);
        let remedy = advice::after_not_building(&node.other.name);
        node.set_state(Role::Backup, state(fault), &reason, &remedy);
    }

    /// Reports that this member is no backup any more.
    fn tell_given_up(&mut self, fault: Fault, reason: &str) {
        let has_ended = fault == Fault::Ended;
        if has_ended && self.replica.as_mut().is_some_and(Server::is_in_background) {
            self.node.other_says = None;
            self.node.end_background();
            let (reason, remedy) = (advice::IN_BACKGROUND, advice::FOREGROUND);
            return self.node.set_state(Role::Backup, State::Ended, reason, remedy);
        }
        if has_ended && self.own_end.is_some() {
            return self.tell_replicas_end(reason);
        }
        let (node, state) = (&mut *self.node, state(fault));
        node.other_says = None;
        match fault {
            Fault::Unkept => {
                let reason = format!("gave up as a backup: {reason}");
                node.set_put_off(&reason, &format!("{ROOM}; {REJOINS}"));
            }
            Fault::Outgrown | Fault::Cut => node.set_put_off(reason, REJOINS),
            _ => {
                let remedy = advice::after_giving_up(state, reason);
                node.set_state(Role::Backup, state, reason, &remedy);
            }
        }
    }

    /// Reports that the replica has ended by itself.
    fn tell_replicas_end(&mut self, reason: &str) {
        self.node.other_says = None;
        let (reason, remedy) = match self.own_end {
            how if !self.has_served => {
                let log = self.node.config.server.log.as_deref();
                (advice::ended_at_start(how, log), advice::AFTER_BAD_START.to_owned())
            }
            how => {
                let how = how.map_or_else(String::new, |how| format!(", {how}"));
                (format!("{reason}{how}"), advice::after_giving_up(State::Ended, reason))
            }
        };
        self.node.set_state(Role::Backup, State::Ended, &reason, &remedy);
    }

    /// Reports that a cold backup's server is built, and now has to execute the log.
    fn tell_built(&mut self, took: Nanos) {
        let ms = took.0 / 1_000_000;
        self.node.events.add("built", format!("the server, of its image, after {ms} ms"));
        self.node.status.counters.insert("spool.built_us".to_owned(), took.0 / 1000);
    }

    /// Puts the size of a cold backup's spool into the status.
    fn count_spool(&mut self) {
        let Some(cold) = &self.cold else { return };
        let Some((bytes, bytes_max)) = cold.used() else { return };
        let Kept { image, log } = cold.kept();
        let of = [
            ("image_bytes", image),
            ("log_bytes", log),
            ("bytes", bytes),
            ("bytes_max", bytes_max),
        ];
        count(&mut self.node.status.counters, "spool", &of);
    }

    /// The cause of a takeover as a text.
    fn why(&self, cause: Cause) -> &'static str {
        match cause {
            _ if self.stopped => STOPPED,
            Cause::ServerDied if !self.has_served => advice::ENDED_AT_START,
            _ => cause.text(),
        }
    }

    /// Reports a takeover that is under way. Until it is over this member protects nobody, and
    /// without the edge it cannot succeed.
    fn tell_takeover(&mut self, cause: Cause, builds: bool) {
        let why = self.why(cause);
        if builds {
            return self.tell_building(why);
        }
        let fell = cause == Cause::Fallen;
        let role = if fell { Role::Primary } else { Role::Backup };
        let (would, does) = match fell {
            true => ("is to be rebuilt", "it is rebuilt on this host"),
            false => ("wants to take over", "takes over"),
        };
        let wants = format!("{would}: {why}");
        let (reason, remedy) = if !self.node.edge.is_open() {
            let remedy =
                "start the edge's daemon, or look at the way to it: nobody else may decide";
            (format!("{wants}; the edge does not answer"), remedy)
        } else if let Some(refused) = &self.refused {
            let reason = format!("{wants}; the edge does not let it yet: {refused}");
            (reason, "look at the edge's status; this member asks again and again")
        } else if let Some(progress) = self.progress() {
            (format!("{does}: {why}; {progress}"), advice::WAIT)
        } else {
            (format!("{does}: {why}"), "")
        };
        self.node.set_state(role, State::Waiting, &reason, remedy);
    }

    /// How far a server is that is built from what this member keeps; `None`: none is built.
    fn progress(&self) -> Option<String> {
        let percent = self.cold.as_ref().and_then(Cold::percent)?;
        let left = self.replica.as_ref().map_or(0, |replica| replica.memory.unconsumed());
        Some(match percent {
            100 => format!("the server is rebuilt, with {} KiB of its log left to run", left >> 10),
            _ => format!("{percent} % of the server is rebuilt"),
        })
    }

    /// Reports how much of the server that a takeover needs is built.
    fn tell_building(&mut self, why: &str) {
        let progress =
            self.progress().map_or_else(String::new, |progress| format!("{progress}, and "));
        let other = &self.node.other.name;
        let reason = format!(
            "builds the server to take over: {why}; {progress}{other} goes on if it comes back before"
        );
        let (reason, remedy) = match self.node.edge.is_open() {
            true => (reason, advice::WAIT),
            false => (
                format!("{reason}; the edge does not answer"),
                "start the edge's daemon, or look at the way to it: nobody else may decide",
            ),
        };
        self.node.set_state(Role::Backup, State::Waiting, &reason, remedy);
    }

    fn tell_taken_over(&mut self, why: &str, times: &Times, fell: bool) {
        let node = &mut *self.node;
        node.other_says = None;
        let takeover = Takeover {
            cause: why.into(),
            phases_us: in_us(times),
            total_us: times.total.0 / 1000,
            connections: self.restorer.sockets.len() as u64,
            at: rfc3339(SystemTime::now()),
        };
        let (to, epoch) = (node.me.name.clone(), node.member.epoch);
        let from = if fell { to.clone() } else { node.other.name.clone() };
        let (kind, lost) = (kind_of(why), Some(self.restorer.errors.len() as u64));
        let past = PastTakeover { kind, from, to, epoch, lost, takeover: takeover.clone() };
        node.status.last_takeover = Some(takeover);
        node.events.add_takeover(past);
        for error in &self.restorer.errors {
            node.events.add("connection lost", error.clone());
        }
        let lost = match self.restorer.errors.len() {
            0 => String::new(),
            1 => "; 1 connection is lost, which `holdfast events` names".to_owned(),
            n => format!("; {n} connections are lost, which `holdfast events` names"),
        };
        let reason = match fell {
            true => format!("{why}, and was rebuilt on this host; there is no backup{lost}"),
            false => format!("took over from {}: {why}; there is no backup{lost}", node.other.name),
        };
        node.set_alone(&reason);
    }

    /// Sets this member's own state, and tells it to the primary, too.
    fn judge(&mut self, report: &Report<'_>) {
        self.node.other_says.clone_from(&self.says);
        self.has_served |= self.ports.is_listening();
        if let Some(cause) = report.promoting {
            self.tell_takeover(cause, report.builds);
        } else if let Some(percent) = report.joins {
            let reason =
                format!("joins {}: {percent} % of the server is here", self.node.other.name);
            self.node.set_state(Role::Backup, State::Waiting, &reason, advice::WAIT);
        } else if !self.node.is_whole(Role::Backup, Own::TapDrop) {
            // `is_whole` has set the state.
        } else {
            self.judge_replica();
        }
        let told = self.node.told();
        if self.repetition.is_due(&told, Instant::now())
            && let Some(link) = &mut self.link
        {
            told.tell(|message| {
                link.send(message);
            });
        }
    }

    /// Judges whether the replica could listen where its server does.
    fn judge_replica(&mut self) {
        let services = &self.node.config.group.services;
        // Each look duplicates the server's sockets for a moment, so `taken` does not look at
        // every report. Without a replica only the group's services are looked at.
        let replica = self.replica.as_ref();
        if replica.is_none() && self.cold.is_none() {
            return;
        }
        let listed = replica.map_or(0, |replica| replica.memory.listeners().len());
        let listeners = (listed, || replica.map_or_else(Vec::new, sockets::listeners));
        let taken = self.ports.taken(services, listeners, Instant::now()).map(str::to_owned);
        let node = &mut *self.node;
        if let Some(reason) = taken {
            let remedy =
                "stop that process, perhaps a service of the distribution: `ss -ltnp` names it";
            return node.set_state(Role::Backup, State::Unprotected, &reason, remedy);
        }
        let Some(replica) = &self.replica else {
            return node.set_state(Role::Backup, State::Protected, "", "");
        };
        // Before the replica listens, nobody knows which ports it will need.
        let missing = match (replica.memory.is_attached(), self.ports.is_listening()) {
            (false, _) => "the replica has not started yet",
            (true, false) => "the replica does not listen yet",
            (true, true) => return node.set_state(Role::Backup, State::Protected, "", ""),
        };
        node.set_state(Role::Backup, State::Waiting, missing, "look at the server's log");
    }

    pub(super) fn tell_status(&mut self, report: &Report<'_>) {
        self.judge(report);
        self.node.report_lateness();
        let (c, (frames, bytes)) = (report.counters, report.unresolved);
        let status = &mut self.node.status;
        status.lag = Lag {
            frames: frames as u64,
            bytes: bytes as u64,
            executed: self.replica.as_ref().map_or(0, |replica| replica.memory.unconsumed()),
        };
        let memory = self.replica.as_ref().map(|replica| &replica.memory);
        status.one_at_a_time = memory.is_some_and(SharedMemory::takes_turns);
        status.overlaps = memory.map_or(0, SharedMemory::overlaps);
        let of = [
            ("segments", c.segments),
            ("unknown", c.segments_unknown),
            ("refused", c.segments_refused),
            ("refused_full", c.refused_full),
            ("needs", c.needs),
            ("conflicts", c.conflicts),
            ("contradicted", c.contradicted),
            ("unread_asked", c.unread_asked),
            ("unread_filled", c.unread_filled),
            ("malformed", self.malformed),
        ];
        count(&mut status.counters, "tap", &of);
        let refused = self.direct.as_ref().map_or(0, Listening::refused);
        let of = [("ignored", c.direct_ignored), ("cut", c.direct_cut), ("refused", refused)];
        count(&mut status.counters, "direct", &of);
        self.count_spool();
        let status = &mut self.node.status;
        count(&mut status.counters, "tapdrop", &self.drop.counters());
        // Not while a server is being made from an image: the thread that makes it would be
        // kept on that processor, too.
        let link = self.link.as_ref().filter(|_| self.incoming.is_none());
        if let Some(socket) = link.and_then(|link| link.socket()) {
            self.place.turn(socket);
        }
    }
}
