//! Faults, and how they end.

use super::check::Cause;
use super::plan::{Fault, Lie, MS, Ways};
use super::world::{Event, World};
use crate::clock::Pause;

impl World {
    pub fn strikes(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        self.say(|| format!("fault: {fault:?}"));
        self.check.struck += 1;
        let lasts = self.strike(&fault);
        match lasts {
            Some(lasts) => self.schedule(lasts, Event::Ends(number)),
            None => self.fault_over(),
        }
    }

    fn fault_over(&mut self) {
        self.pending -= 1;
        self.faults_over = self.now;
    }

    /// Begins a fault; returns how long it lasts, in ns, if it ends.
    fn strike(&mut self, fault: &Fault) -> Option<u64> {
        let now = self.now;
        match *fault {
            Fault::HostDies { server, again } => {
                if self.servers[server].alive {
                    if self.servers[server].frozen.is_some() {
                        self.check.truth.cause(now, server, Cause::Frozen, false);
                    }
                    self.server_end_closes(server, false);
                    self.process_ends(server);
                    self.daemon_ends(server);
                    self.servers[server].dies();
                    self.check.truth.cause(now, server, Cause::Dead, true);
                }
                again
            }
            Fault::Freeze { server, lasts } => {
                if self.servers[server].is_up() {
                    self.servers[server].frozen = Some(now);
                    self.sticks(server);
                    self.check.truth.cause(now, server, Cause::Frozen, true);
                }
                Some(lasts)
            }
            Fault::KillDaemon { server, again } => {
                self.server_end_closes(server, true);
                self.daemon_ends(server);
                Some(again)
            }
            Fault::KillServer { server, again } => {
                self.process_ends(server);
                Some(again)
            }
            Fault::Hangs { server, lasts } => {
                self.servers[server].desk.hangs = true;
                self.check.truth.accepts(now, server, false);
                Some(lasts)
            }
            Fault::Cut { server, ways, lasts } => {
                self.cut_ways(server, ways, true);
                Some(lasts)
            }
            Fault::Drained { server, lasts } => {
                self.drain(server, false);
                Some(lasts)
            }
            Fault::Renamed { server } => {
                self.rename(server);
                None
            }
            Fault::Lies { server, lie, lasts } => {
                self.lies(server, Some(lie));
                Some(lasts)
            }
            Fault::EdgeDaemon { lasts } => {
                self.edge_dies();
                Some(lasts)
            }
            Fault::EdgeBoots { lasts } => {
                self.edge_dies();
                self.edge.boots(&self.plan);
                self.check.boots(now + self.plan.server_way);
                Some(lasts)
            }
            Fault::FreezeEdge { lasts } => {
                if self.edge.frozen.is_none() {
                    self.edge.frozen = Some(now);
                    (0..self.servers.len()).for_each(|server| self.sticks(server));
                    self.check.truth.edge_freezes(now, true);
                }
                Some(lasts)
            }
        }
    }

    pub fn ends(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        self.say(|| format!("over: {fault:?}"));
        self.fault_over();
        match fault {
            Fault::HostDies { server, .. } => self.boots(server),
            Fault::Freeze { server, .. } => self.thaws(server),
            Fault::KillDaemon { server, .. } => self.schedule(0, Event::DaemonStarts(server)),
            Fault::KillServer { server, .. } => {
                let boots = self.servers[server].boots;
                self.schedule(0, Event::Binds(server, boots));
            }
            Fault::Hangs { server, .. } => {
                self.servers[server].desk.hangs = false;
                self.check.truth.accepts(self.now, server, true);
            }
            Fault::Cut { server, ways, .. } => self.cut_ways(server, ways, false),
            Fault::Drained { server, .. } => self.drain(server, true),
            Fault::Lies { server, .. } => self.lies(server, None),
            Fault::EdgeDaemon { .. } | Fault::EdgeBoots { .. } => {
                if self.edge.daemon.is_none() {
                    self.edge_starts();
                }
            }
            Fault::FreezeEdge { .. } => self.edge_thaws(),
            Fault::Renamed { .. } => {}
        }
    }

    fn daemon_ends(&mut self, server: usize) {
        if self.servers[server].machine.is_some() {
            self.servers[server].daemon_dies();
            self.check.truth.cause(self.now, server, Cause::NoDaemon, true);
        }
    }

    fn process_ends(&mut self, server: usize) {
        self.servers[server].process_ends();
        self.check.truth.rebooted(server);
        self.check.truth.listens(self.now, server, false);
        self.check.truth.accepts(self.now, server, true);
    }

    /// Restarts the host server's machine: only its files are left.
    fn boots(&mut self, server: usize) {
        if self.servers[server].alive {
            return;
        }
        self.servers[server].alive = true;
        self.servers[server].boots += 1;
        self.wires.server_waits[server].clear();
        self.loosens(server);
        self.check.truth.cause(self.now, server, Cause::Dead, false);
        let (boots, later) = (self.servers[server].boots, self.rng.spread(MS, 400 * MS));
        self.schedule(later / 2, Event::DaemonStarts(server));
        self.schedule(later, Event::Binds(server, boots));
    }

    fn thaws(&mut self, number: usize) {
        let Some(since) = self.servers[number].frozen.take() else { return };
        let pause = Pause::draw(&mut self.rng);
        self.servers[number].clock.paused(since, self.now, pause);
        self.check.truth.cause(self.now, number, Cause::Frozen, false);
        self.loosens(number);
        self.servers[number].wakes = None;
        for event in std::mem::take(&mut self.wires.server_waits[number]) {
            self.schedule(1000, event);
        }
        self.server_turns(number);
    }

    fn edge_thaws(&mut self) {
        let Some(since) = self.edge.frozen.take() else { return };
        let pause = Pause::draw(&mut self.rng);
        self.edge.clock.paused(since, self.now, pause);
        self.check.truth.edge_freezes(self.now, false);
        (0..self.servers.len()).for_each(|server| self.loosens(server));
        self.edge.wakes = None;
        // Data that waits in sockets is read first.
        for event in std::mem::take(&mut self.wires.edge_waits) {
            self.hand_over(event);
        }
        self.edge_turns();
    }

    fn hand_over(&mut self, event: Event) {
        match event {
            Event::ToEdge(channel, bytes) => self.edge_takes(channel, bytes),
            event => self.schedule(1000, event),
        }
    }

    fn cut_ways(&mut self, server: usize, ways: Ways, begins: bool) {
        let (to_server, to_edge) = (ways != Ways::ToEdge, ways != Ways::ToServer);
        if begins {
            self.cut(server, to_server, to_edge);
        } else {
            self.mend(server, to_server, to_edge);
        }
        for (cut, cause) in [(to_server, Cause::ToServer), (to_edge, Cause::ToEdge)] {
            if cut {
                self.check.truth.cause(self.now, server, cause, begins);
            }
        }
    }

    fn drain(&mut self, server: usize, end: bool) {
        let name = self.servers[server].name.clone();
        let ignored = self.ignores_drain();
        let super::edge::Edge { wire, daemon: Some(daemon), frozen: None, .. } = &mut self.edge
        else {
            return;
        };
        if ignored || daemon.machine.handle_drain(&name, end, wire).is_ok() {
            self.check.truth.drained(self.now, server, !end);
            self.reached.drained += 1;
        }
        self.edge_turns();
    }

    fn rename(&mut self, server: usize) {
        if !self.servers[server].is_up() || self.edge.daemon.is_none() || self.edge.frozen.is_some()
        {
            return;
        }
        self.server_end_closes(server, true);
        self.daemon_ends(server);
        let life = self.servers[server].life;
        self.servers[server].name = format!("n{server}x{life}");
        self.edge_dies();
        self.edge_starts();
        self.schedule(5 * MS, Event::DaemonStarts(server));
    }

    fn lies(&mut self, server: usize, lie: Option<Lie>) {
        let before = std::mem::replace(&mut self.servers[server].desk.lie, lie);
        self.reached.lies += u64::from(lie.is_some());
        match (before, lie) {
            (_, Some(Lie::Strangers)) => self.strangers_come(),
            (Some(Lie::Strangers), None) => self.strangers_go(),
            _ => {}
        }
        // Its earlier announcement stays, unless the lie was an invalid message.
        let nonsense = [before, lie].map(|lie| lie == Some(Lie::Nonsense));
        if nonsense[0] != nonsense[1] {
            self.check.truth.says_nonsense(self.now, server, nonsense[1]);
        }
        // It announces everything when its channel opens.
        self.announce_again(server);
    }

    fn announce_again(&mut self, server: usize) {
        if let super::server::Channel::Open(channel) = self.servers[server].channel
            && self.servers[server].is_up()
        {
            self.servers[server].opened(channel);
            self.server_turns(server);
        }
    }

    fn edge_dies(&mut self) {
        if self.edge.daemon.is_none() {
            return;
        }
        self.edge_ends_close();
        self.edge.dies();
        self.strangers.clear();
        self.check.truth.edge_daemon(self.now, false);
    }
}
