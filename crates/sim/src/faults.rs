//! Faults: how each breaks the world, and how it is repaired.

use crate::packet::{ACK, Packet};
use crate::plan::{Fault, How, Mutation, Ways, When};
use crate::server::Mode;
use crate::world::{EDGE, Event, World};
use crate::{Ns, Rng};
use holdfast_wire::packet::Flags;

/// Factor by which a slow backup takes longer.
const SLOW: u64 = 10;
/// Longest time in ns after a host's death at which its last packets arrive: what a link takes,
/// without a retransmission.
const WAKE: Ns = 100_000;
/// Longest time in ns that a fault waits for a step that may never come.
const COMES_MAX: Ns = 8_000_000_000;
/// Time in ns between two attempts to open the edge by hand.
const BY_HAND_AGAIN: Ns = 100_000_000;

impl World {
    pub fn schedule_faults(&mut self) {
        if let Some((When::At(at), _)) = self.plan.faults.first() {
            let at = *at;
            self.schedule(at, Event::Strikes(0));
        }
        // In a run that never reaches the boundary, the fault strikes at the end.
        if let Some((When::Record(_) | When::Message(_) | When::Join(_), _)) =
            self.plan.faults.first()
        {
            let at = self.plan.load_until;
            self.schedule(at, Event::Strikes(0));
        }
    }

    /// Notes that the first primary's server has logged this many records.
    pub fn record_logged(&mut self, server: u32, records: u64) {
        if server == 1 {
            self.reached.records = records;
            self.crosses(When::Record(records));
        }
    }

    /// Notes that a message between the members has come.
    pub fn message_came(&mut self) {
        self.reached.messages += 1;
        self.crosses(When::Message(self.reached.messages));
    }

    /// Notes that a boundary was reached, at which the next fault may strike.
    pub fn crosses(&mut self, boundary: When) {
        let next = self.plan.faults.len() - self.pending;
        if self.plan.faults.get(next).map(|fault| fault.0) == Some(boundary) {
            self.schedule(0, Event::Strikes(next));
        }
    }

    pub fn strikes(&mut self, index: usize) {
        let struck = self.plan.faults.len() - self.pending;
        if struck != index {
            return;
        }
        self.pending -= 1;
        let fault = self.fault(index);
        self.say(|| format!("fault: {fault:?}"));
        let whom = self.blames(&fault);
        self.check.strikes(self.now, &fault, whom, self.edge.current);
        self.faults_over = self.faults_over.max(self.now + fault.lasts());
        if let Some((when, _)) = self.plan.faults.get(index + 1) {
            let after = if let When::After(after) = when { *after } else { COMES_MAX };
            self.schedule(after, Event::Strikes(index + 1));
        }
        if fault.lasts() > 0 {
            self.schedule(fault.lasts(), Event::Ends(index));
        }
        self.break_it(fault);
    }

    fn break_it(&mut self, fault: Fault) {
        match fault {
            Fault::FreezeHost { member, .. } => self.freeze(member),
            Fault::HostDies { member } => self.host_dies(member),
            Fault::Starts { member } => self.starts(member),
            Fault::Dies { speaks, how } => self.dies(speaks, how),
            Fault::KillDaemon { member, .. } => {
                // Nothing can be killed on a suspended machine.
                self.thaw(member);
                if !self.is_loose(member) {
                    self.check.state_lost(member);
                }
                self.daemon_dies(member);
            }
            Fault::KillServer { member } => {
                self.thaw(member);
                if self.hosts[member].daemon.as_ref().is_none_or(|daemon| !daemon.keeps) {
                    self.check.state_lost(member);
                }
                self.kill_server(member);
            }
            Fault::SlowBackup { .. } => self.hosts[1].slow = SLOW,
            Fault::HangReplica => self.hang_replica(),
            Fault::Mistake => self.mistake(),
            Fault::CutPair { ways, .. } => self.each_way(0, 1, ways, Self::cut),
            Fault::CutEdge { member, ways, .. } => self.each_way(EDGE, member, ways, Self::cut),
            Fault::TapLoss { .. } => self.links.copies_lost = true,
            Fault::SlowPair { .. } => self.links.pair_slow = true,
            Fault::AcceptsNobody { .. } => self.accepts_nobody = true,
            Fault::EdgeDaemon { .. } => self.edge_daemon_dies(),
            Fault::ShimBreaks { member } => self.shim_breaks(member),
            Fault::SetsClock { member, by } => self.hosts[member].clock.step(by),
            Fault::ClosedByHand { until_takeover, .. } => self.closed_by_hand(until_takeover),
            Fault::EdgeHost { .. } => {
                self.hosts[EDGE].alive = false;
                self.edge_daemon_dies();
                self.edge_forgets();
            }
        }
    }

    pub fn ends(&mut self, index: usize) {
        let fault = self.fault(index);
        self.say(|| format!("mended: {fault:?}"));
        match fault {
            Fault::FreezeHost { member, .. } => self.thaw(member),
            Fault::KillDaemon { member, .. } => {
                if self.hosts[member].alive && self.hosts[member].daemon.is_none() {
                    self.daemon_starts(member);
                }
            }
            Fault::SlowBackup { .. } => self.hosts[1].slow = 1,
            Fault::CutPair { ways, .. } => self.each_way(0, 1, ways, Self::mend),
            Fault::CutEdge { member, ways, .. } => self.each_way(EDGE, member, ways, Self::mend),
            Fault::TapLoss { .. } => self.links.copies_lost = false,
            Fault::SlowPair { .. } => self.links.pair_slow = false,
            Fault::AcceptsNobody { .. } => {
                self.accepts_nobody = false;
                (0..2).for_each(|member| self.wake_server(member));
            }
            Fault::EdgeDaemon { .. } | Fault::EdgeHost { .. } => {
                self.hosts[EDGE].alive = true;
                if self.edge.daemon.is_none() {
                    self.edge_starts();
                }
            }
            Fault::ClosedByHand { .. } => {
                if self.plan.mutation != Some(Mutation::StaysClosed) && !self.opened_by_hand() {
                    // The operator tries to open it until it is open.
                    self.faults_over = self.faults_over.max(self.now + BY_HAND_AGAIN);
                    self.schedule(BY_HAND_AGAIN, Event::Ends(index));
                }
            }
            Fault::HostDies { .. }
            | Fault::Starts { .. }
            | Fault::Dies { .. }
            | Fault::KillServer { .. }
            | Fault::ShimBreaks { .. }
            | Fault::SetsClock { .. }
            | Fault::HangReplica
            | Fault::Mistake => {}
        }
    }

    fn each_way(&mut self, from: usize, to: usize, ways: Ways, f: fn(&mut Self, usize, usize)) {
        if ways != Ways::From {
            f(self, from, to);
        }
        if ways != Ways::To {
            f(self, to, from);
        }
    }

    fn host_dies(&mut self, member: usize) {
        self.check.state_lost(member);
        self.hosts[member].alive = false;
        // Some of what it has just sent is still under way.
        let behind = Rng::new(self.plan.seed, 6).below(WAKE);
        self.hosts[member].heard_until = self.now + behind;
        self.daemon_dies(member);
        let host = &mut self.hosts[member];
        host.sockets.clear();
        host.gate = None;
        if let Some(server) = &mut host.server {
            server.alive = false;
        }
    }

    /// Kills the current member (`speaks`), or the other one.
    fn dies(&mut self, speaks: bool, how: How) {
        let Some(speaker) = self.edge.current else { return };
        let member = if speaks { speaker } else { 1 - speaker };
        self.break_it(match how {
            How::Daemon => Fault::KillDaemon { member, again: None },
            How::Server => Fault::KillServer { member },
            How::Host => Fault::HostDies { member },
        });
    }

    /// Starts a host, or only its daemon, again, if it is not there.
    fn starts(&mut self, member: usize) {
        let host = &mut self.hosts[member];
        if !std::mem::replace(&mut host.alive, true) {
            (host.address, host.tap_drop, host.listening) = (false, None, false);
            (host.heard_until, host.server, host.kernel_timer) = (Ns::MAX, None, None);
            host.backlog.clear();
        }
        if host.daemon.is_none() {
            self.daemon_starts(member);
        }
    }

    /// A mutation: if a client lies, another one may be reset for it.
    pub fn neighbour_pays(&mut self, mut packet: Packet) -> Packet {
        let pays = self.plan.mutation == Some(Mutation::NeighbourPays)
            && self.clients.iter().any(|client| client.plan.lies)
            && self.rng.one_in(50);
        if pays && !packet.is(Flags::SYN) {
            (packet.flags, packet.payload) = (Flags::RST | ACK, [].into());
        }
        packet
    }

    /// Breaks the shim: its server's calls wait until the daemon has decided.
    fn shim_breaks(&mut self, member: usize) {
        let server = self.hosts[member].server.as_mut();
        if let Some(server) = server.filter(|s| s.alive && s.mode == Mode::Record) {
            (server.broken, server.hung) = (true, true);
            self.wake_daemon_soon(member);
        }
    }

    fn hang_replica(&mut self) {
        for member in 0..2 {
            let server = self.hosts[member].server.as_mut();
            if let Some(server) = server.filter(|s| s.alive && s.mode == Mode::Replay) {
                server.hung = true;
                if server.executed == 0 {
                    // A replica that has not begun may still be loading for 30 s.
                    self.faults_over = self.faults_over.max(self.now + 30_000_000_000);
                }
                self.check.state_lost(member);
            }
        }
    }

    /// Makes a backup believe that its primary is dead, without a reason.
    fn mistake(&mut self) {
        for member in 0..self.hosts.len() {
            let Some(mut daemon) = self.hosts[member].daemon.take() else { continue };
            if self.hosts[member].frozen.is_none() {
                self.mistakes(&mut daemon);
            }
            self.hosts[member].daemon = Some(daemon);
        }
    }
}
