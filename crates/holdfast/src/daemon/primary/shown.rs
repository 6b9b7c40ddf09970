//! What the primary reports about itself, and what it tells members that cannot join.

use super::PrimaryDaemon;
use crate::daemon::advice;
use crate::daemon::member::{REJOINS, count};
use crate::daemon::pairing::{no_rejoin, turn_away};
use crate::daemon::said::Said;
use crate::daemon::services::Watched;
use crate::daemon::standstill::Heir;
use crate::daemon::survivor::Alone;
use crate::leavings::Own;
use crate::status::{Lag, Role, State, counted};
use holdfast_linux::spawn::Server;
use holdfast_member::host::{MemberEvent, Successor};
use holdfast_member::primary::Report;
use holdfast_member::standing::CurrentMember;
use holdfast_wire::message::clip;
use std::time::{Duration, Instant};

/// The reason for refusing a member while there is a backup.
const PAIR_STANDS: &str = "the pair stands already";
/// How long a member that has joined may take to say how it is.
const WORD_MAX: Duration = Duration::from_secs(2);

impl PrimaryDaemon<'_, '_> {
    /// Refuses members that connect while there is a backup.
    pub(super) fn turn_away(&mut self) {
        turn_away(self.node, &mut self.listener, PAIR_STANDS);
    }

    /// Refuses members that connect when nothing can be joined any more.
    pub(super) fn turn_away_for_good(&mut self) {
        let reason = no_rejoin(self.node);
        turn_away(self.node, &mut self.listener, &reason);
    }

    pub(super) fn tell(&mut self, news: &MemberEvent<'_>) {
        self.node.status.epoch = self.node.member.epoch;
        if !matches!(news, MemberEvent::Joined { .. }) {
            self.joins = None;
        }
        match *news {
            MemberEvent::HandsOver => {
                let what = format!("to {}, as the operator wishes", self.node.other.name);
                self.node.events.add("handing over", what);
                self.comes_back = true;
            }
            MemberEvent::Stopped => {
                let reason = "this member hands over; the backup takes over";
                let remedy = match self.comes_back {
                    true => REJOINS,
                    false => "a member that was stopped joins when it is started again",
                };
                self.node.set_state(Role::Primary, State::Ended, reason, remedy);
            }
            MemberEvent::HandedOver { newer, took } => {
                let what = format!("{} is current in epoch {}", newer.current, newer.epoch);
                self.node.events.add("handed over", format!("{what} after {} µs", took.0 / 1000));
            }
            MemberEvent::ServerEnded(ref next) => self.tell_end(next),
            // What was said of its end before, with why it could not be rebuilt, stands.
            MemberEvent::EndedAlone if self.node.own().state == State::Ended => {}
            MemberEvent::EndedAlone => {
                let role = self.node.status.role;
                self.say_ended(role, "", advice::AFTER_END);
            }
            MemberEvent::Replaced { newer } => {
                self.node.set_replaced(newer);
                self.alone.get_or_insert_with(Alone::new);
            }
            MemberEvent::Doubts { reason } => self.node.wait_for_edge(reason),
            MemberEvent::Asks { reason } => {
                self.node.other_says = None;
                self.node.wait_for_edge(reason);
            }
            MemberEvent::Alone { reason } => {
                (self.says, self.node.other_says) = (None, None);
                self.node.set_alone(&format!("{reason}; running alone"));
                self.node.begin_alone();
            }
            MemberEvent::Joins { image_bytes } => {
                self.node.note_joins(image_bytes);
                self.joins = Some(0);
            }
            MemberEvent::JoinFailed { reason } => {
                self.node.events.add("join failed", format!("{}: {reason}", self.node.other.name));
                let said = self.node.unjoined(clip(reason));
                self.say_alone(said);
            }
            MemberEvent::Joined { took } => self.node.note_joined(took),
            MemberEvent::Keeps { took } => self.node.note_kept(took),
            MemberEvent::KeepsNot { reason } => self.node.note_unkept(reason),
            MemberEvent::Fell { log_at } => {
                let how = self.with_server(Server::ending).flatten();
                self.node.note_fall(how, log_at);
            }
            MemberEvent::NotRebuilt { reason, input } => {
                let how = self.with_server(Server::ending).flatten();
                self.node.set_fallen(how, reason, input);
            }
            // Events of a backup only.
            MemberEvent::Renewed { .. }
            | MemberEvent::RenewedNot { .. }
            | MemberEvent::Promotes { .. }
            | MemberEvent::TakesOver { .. }
            | MemberEvent::Built { .. }
            | MemberEvent::Waits { .. }
            | MemberEvent::TookOver { .. }
            | MemberEvent::GaveUpForGood
            | MemberEvent::GaveUp { .. } => {}
        }
    }

    /// Sets the state of a server that runs alone. While it serves no new client, that is
    /// reported instead.
    fn say_alone(&mut self, said: Said) {
        let said = match &mut self.alone {
            Some(alone) => alone.put_off(said),
            None => Some(said),
        };
        if let Some(said) = said {
            self.node.set_said(&said);
        }
    }

    /// Reports that the server has ended, and who goes on.
    fn tell_end(&mut self, next: &Successor<'_>) {
        let (role, then, remedy) = match next {
            Successor::Nobody(gone) => (Role::Primary, format!(", and {gone}"), advice::AFTER_END),
            Successor::Current(CurrentMember { epoch, current }) => {
                (Role::None, format!("; {current} is current in epoch {epoch}"), REJOINS)
            }
            Successor::Unheard => {
                let unheard = format!("; the edge does not hear {}", self.node.other.name);
                (Role::Primary, unheard, advice::AWAIT_UNHEARD)
            }
            Successor::Backup => {
                (Role::Primary, "; the backup takes over".to_owned(), advice::AWAIT_BACKUP)
            }
        };
        self.say_ended(role, &then, remedy);
    }

    /// Sets the state to ended, with the reason why the server ended, and `then` behind it.
    fn say_ended(&mut self, role: Role, then: &str, remedy: &str) {
        // Whether it went into the background can be told only soon after its start, so the
        // reason that was found first stays.
        let was_known = self.node.own().reason.starts_with(advice::IN_BACKGROUND);
        if was_known || self.with_server(Server::is_in_background) == Some(true) {
            self.node.end_background();
            let reason = format!("{}{then}", advice::IN_BACKGROUND);
            let remedy = advice::FOREGROUND;
            return self.node.set_ended(role, &reason, remedy);
        }
        let how = self.with_server(Server::ending).flatten();
        if !self.has_served {
            // The replica executes the same, so it ends at its start, too.
            let log = self.node.config.server.log.as_deref();
            let reason = advice::ended_at_start(how, log);
            return self.node.set_ended(role, &reason, advice::AFTER_BAD_START);
        }
        let how = how.map_or_else(String::new, |how| format!(", {how}"));
        let why = if then.is_empty() { self.node.why_unkept() } else { String::new() };
        self.node.set_ended(role, &format!("{}{how}{then}{why}", advice::ENDED), remedy);
    }

    /// Why the server serves no new client; `None`: it does.
    fn missing(&mut self, report: &Report<'_>) -> Option<String> {
        if !report.is_attached {
            return Some("the server has not started yet".to_owned());
        }
        let (services, pid) = (&self.node.config.group.services, self.server.pid());
        let memory = &self.server.memory;
        let watched = Watched { pid, is_family: memory.is_family(), moved: Some(memory.tail()) };
        self.services.missing(services, watched, Instant::now()).map(str::to_owned)
    }

    /// Sets this member's own state.
    fn judge(&mut self, report: &Report<'_>) {
        let pid = self.server.pid();
        let missing = self.missing(report);
        self.has_served |= missing.is_none();
        if !self.node.is_whole(Role::Primary, Own::Gate) {
            return;
        }
        match (self.services.stands().filter(|_| report.is_attached), missing) {
            (Some(stands), _) => {
                let (reason, remedy) = stands.words(pid, Heir::Backup);
                self.node.set_state(Role::Primary, State::Waiting, &reason, &remedy);
            }
            (None, None) if report.at_risk > 0 => {
                let reason = format!(
                    "a takeover would end {}, until all clients have taken what they were sent \
                     before {} joined",
                    counted(report.at_risk as u64, "connection"),
                    self.node.other.name
                );
                self.node.set_state(Role::Primary, State::Protected, &reason, "");
            }
            (None, None) => self.node.judge_pair(),
            (None, Some(reason)) => {
                let remedy = "look at the server's log, and whether its addresses and ports are \
                              those of `services`";
                self.node.set_state(Role::Primary, State::Waiting, &reason, remedy);
            }
        }
    }

    /// Tells this member's own state to the backup.
    fn say(&mut self) {
        let told = self.node.told();
        if self.repetition.is_due(&told, Instant::now())
            && let Some(peer) = &mut self.peer
        {
            told.tell(|message| drop(peer.send(message)));
        }
    }

    /// How much of the server a joining member has, in percent. One that has joined counts as such
    /// until it says how it is, for a while: it may do its part, or be kept from it.
    fn joins_still(&mut self, report: &Report<'_>, now: Instant) -> Option<u8> {
        let (None, Some(before)) = (report.joins, self.joins) else {
            self.joined_at = None;
            return report.joins;
        };
        let joined_at = *self.joined_at.get_or_insert(now);
        let waits = self.says.as_ref().is_none_or(|said| said.state == State::Waiting);
        (waits && now - joined_at < WORD_MAX).then_some(before)
    }

    pub(super) fn tell_status(&mut self, report: &Report<'_>) {
        self.node.other_says.clone_from(&self.says);
        self.joins = self.joins_still(report, Instant::now());
        // The joining member's state is `waiting`, but the service is served.
        let serves =
            self.joins.is_some() && (self.alone.is_some() || self.missing(report).is_none());
        if let Some(percent) = self.joins.filter(|_| serves) {
            // What is missing on this host must not wait for the join's end.
            self.node.mend(Own::Gate);
            let reason =
                format!("{} joins: {percent} % of the server is there", self.node.other.name);
            self.say_alone(Said::new(Role::Primary, State::Unprotected, &reason, advice::WAIT));
        } else if !report.is_in_doubt && !report.keeps {
            self.judge(report);
        }
        self.node.report_lateness();
        self.say();
        let status = &mut self.node.status;
        status.connections = report.connections as u64;
        let is_protected = status.state == State::Protected;
        status.at_risk = if is_protected { report.at_risk as u64 } else { 0 };
        status.one_at_a_time = self.server.memory.takes_turns();
        status.overlaps = self.server.memory.overlaps();
        status.lag = Lag {
            frames: report.frames_unconfirmed as u64,
            bytes: report.log_at.saturating_sub(self.server.memory.head()),
            executed: report.unexecuted,
        };
        count(&mut status.counters, "gate", &self.gate.counters());
        let c = report.counters;
        let of = [
            ("bytes", report.log_at),
            ("repairs", c.repairs),
            ("peeked_bytes", c.peeked),
            ("refused_full", c.refused_full),
            ("accepts_unknown", c.accepts_unknown),
            ("handshakes_ended", report.handshakes_ended),
        ];
        count(&mut status.counters, "log", &of);
        if self.is_direct {
            self.server.memory.set_direct_wait(self.direct_wait());
        }
        let status = &mut self.node.status;
        let (confirmed, lost) = self.server.memory.direct_counts();
        count(&mut status.counters, "direct", &[("confirmed", confirmed), ("lost", lost)]);
        // A server that runs alone does not wait for its daemon, so they need not share a
        // processor; and while a member joins, the daemon is busy with the image.
        if (self.alone.is_none() || self.node.is_kept()) && self.image.is_none() {
            self.place.turn(&self.server, Instant::now());
        }
        // While the log is kept here, the machine decides about members that connect.
        if !report.keeps {
            self.turn_away();
        }
    }
}
