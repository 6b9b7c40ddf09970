//! What the simulator sees of its cluster from outside, for the checkers: from time to
//! time, whether the status that is shown is true; at the end, which resources were not
//! released.

use crate::check::{LOOK_EVERY, Said, Truth};
use crate::gate::Gate;
use crate::image::Copy;
use crate::member::Phase;
use crate::plan::{Fault, Mutation};
use crate::server::{Mode, Server};
use crate::world::{EDGE, Event, Host, NAMES, World};
use crate::{Ns, Reached};
use std::collections::VecDeque;

/// Most messages that may be in flight at any time: heartbeats, reports and probes,
/// both ways, on two channels to the edge and one between the members.
const BEATS: usize = 12;
/// Longest time for which a server may wait for room in the log during a join, in ns:
/// until its daemon has seen that the log is full.
const JOINER_WAIT_MAX: Ns = 4 * LOOK_EVERY;

impl World {
    /// The members whose failure this fault explains.
    pub fn blames(&self, fault: &Fault) -> [bool; 2] {
        match *fault {
            Fault::FreezeHost { member, .. }
            | Fault::HostDies { member }
            | Fault::KillDaemon { member, .. }
            | Fault::KillServer { member }
            | Fault::CutEdge { member, .. } => [member == 0, member == 1],
            Fault::HangReplica => [0, 1].map(|member| self.serves(member, true)),
            Fault::Mistake => [0, 1].map(|member| self.follows(1 - member)),
            Fault::CutPair { .. }
            | Fault::SlowPair { .. }
            | Fault::EdgeHost { .. }
            | Fault::ShimBreaks { .. } => [true; 2],
            Fault::Dies { speaks, .. } => {
                [0, 1].map(|m| self.edge.current.is_some_and(|current| (current == m) == speaks))
            }
            Fault::SlowBackup { .. }
            | Fault::Starts { .. }
            | Fault::TapLoss { .. }
            | Fault::AcceptsNobody { .. }
            | Fault::EdgeDaemon { .. }
            | Fault::SetsClock { .. }
            | Fault::ClosedByHand { .. } => [false; 2],
        }
    }

    fn follows(&self, member: usize) -> bool {
        let daemon = self.hosts[member].daemon.as_ref();
        daemon.is_some_and(|d| matches!(&d.phase, Phase::Backup(machine) if machine.follows()))
    }

    /// Whether a server lives there; with `replica`, whether a replica or its kept state does.
    fn serves(&self, member: usize, replica: bool) -> bool {
        let is_one = |server: &Server| {
            server.alive && server.diverged.is_none() && (server.mode == Mode::Replay) == replica
        };
        let Host { server, daemon, .. } = &self.hosts[member];
        let kept = daemon.as_ref().and_then(|daemon| daemon.copy.as_ref());
        let is_kept = replica && kept.is_some_and(Copy::is_kept);
        is_kept || server.as_ref().is_some_and(is_one)
    }

    fn is_heard(&self, from: usize, by: usize) -> bool {
        let up = |host: usize| self.hosts[host].alive && self.hosts[host].frozen.is_none();
        up(from) && up(by) && !self.links.is_cut(from, by)
    }

    fn is_whole(&self, one: usize, other: usize) -> bool {
        self.is_heard(one, other) && self.is_heard(other, one)
    }

    /// Whether primary and backup both run, are in step, and reach each other.
    fn is_protected(&self) -> bool {
        let Some(member) = self.edge.current else { return false };
        let records = |server: &Server| server.mode == Mode::Record && server.commits;
        self.is_whole(member, 1 - member)
            && self.serves(member, false)
            && self.hosts[member].server.as_ref().is_some_and(records)
            && self.serves(1 - member, true)
            && self.follows(1 - member)
            && self.hosts[member].daemon.is_some()
    }

    /// Compares the status that all hosts show with the truth.
    pub fn looks(&mut self) {
        self.schedule(LOOK_EVERY, Event::Looks);
        let Reached { syns_dropped, refused_full, tap_lost, .. } = self.reached;
        let full = syns_dropped + refused_full + self.edge.refused > 0;
        self.check.look_at_syns(self.now, full, tap_lost > 0);
        (0..2).for_each(|member| self.look_at_joiner(member));
        let machine = self.edge.machine();
        let here = [0, 1].map(|m| machine.is_some_and(|machine| machine.is_here(m)));
        let there = [0, 1, EDGE].map(|host| match host {
            EDGE => machine.is_some(),
            member => self.hosts[member].daemon.is_some(),
        });
        if machine.is_some() {
            let said = Said::Protected { speaks: false };
            let agrees = self.edge_agrees() || self.plan.mutation == Some(Mutation::StaysProtected);
            self.check.says(EDGE, if agrees { said } else { Said::Waits });
        }
        let protected = self.is_protected();
        let all = here == [true; 2] && (0..2).all(|member| self.is_whole(EDGE, member));
        for who in (0..=EDGE).filter(|who| there[*who]) {
            let hears = [0, 1, EDGE]
                .map(|other| who == other || (there[other] && self.is_heard(other, who)));
            let knows = match who {
                EDGE => (0..2).any(|member| self.is_whole(EDGE, member)),
                member => here[member] && self.is_whole(EDGE, member),
            };
            // The group can be known to be protected only if all hosts hear each other.
            let can_know = knows && (all || !protected);
            let speaks =
                who == EDGE || (self.edge.current != Some(1 - who) && self.serves(who, false));
            self.check.look(self.now, who, Truth { hears, can_know, protected, speaks });
        }
    }

    /// Checks that no server waits for a member that is not in step.
    fn look_at_joiner(&mut self, member: usize) {
        let host = &self.hosts[member];
        let waits = |server: &Server| {
            server.alive && server.mode == Mode::Record && !server.commits && !server.has_room()
        };
        let waits = host.frozen.is_none() && host.server.as_ref().is_some_and(waits);
        let since = &mut self.full_since[member];
        *since = waits.then(|| since.unwrap_or(self.now));
        if since.is_some_and(|since| self.now - since > JOINER_WAIT_MAX) {
            let what = format!("{} waits for a member that joins", NAMES[member]);
            self.check.violation(self.now, "joiner", what);
        }
    }

    /// Whether the pair may be protected, by the edge's own state.
    fn edge_agrees(&self) -> bool {
        let (Some(machine), Some(member)) = (self.edge.machine(), self.edge.current) else {
            return false;
        };
        let known = machine.membership();
        let answers = machine.is_here(member) && known.answers(NAMES[member]);
        machine.is_current(member) && answers && known.is_ready(NAMES[1 - member])
    }

    /// Checks at the end that resources which nobody needs were released.
    pub fn left_over(&mut self) {
        let mut left = self.edge.left();
        for (member, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.alive) {
            let Some(daemon) = &host.daemon else { continue };
            if self.check.said(member) == Said::Waits {
                // It serves nobody, and starts afresh before it serves again.
                continue;
            }
            let living = host.sockets.values().filter(|socket| !socket.is_over()).count();
            left.push(("sockets", living));
            left.push(("gate slots", host.gate.as_ref().map_or(0, Gate::slots_used)));
            left.push(("server's connections", host.server.as_ref().map_or(0, Server::conns_held)));
            left.push(("copies not taken", host.tap.as_ref().map_or(0, VecDeque::len)));
            left.extend(daemon.left());
        }
        // A client that has vanished ends neither its connection nor the one before, whose
        // last packets it no longer answers.
        let silent =
            self.clients.iter().filter(|c| c.vanished || c.plan.comes_again || c.is_hostile());
        let vanished = 2 * silent.count();
        for (what, count) in left {
            self.check.at_rest(self.now, what, count, vanished);
        }
        self.check.at_rest(self.now, "messages under way", self.unacked(), BEATS);
    }
}
