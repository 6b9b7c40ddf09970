//! The primary without its backup: its server has died, another member speaks,
//! or it runs on alone because the edge says so.

use super::{ASK_EVERY, CONTROL, Loop, PIDFD};
use crate::daemon::member::{End, Heard, Node, RESTART_BOTH};
use crate::daemon::pairing::{no_rejoin, turn_away};
use crate::status::{Role, State};
use holdfast_linux::bpf::Gate;
use holdfast_replica::Nanos;
use holdfast_wire::message::Message;
use holdfast_wire::shm::mode;
use std::time::{Duration, Instant};

impl Loop {
    /// The server is dead: everything it logged goes out, and nothing more is
    /// confirmed. The kernel's FINs and RSTs stay behind the gate.
    pub(super) fn server_died(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        let _ = self.gate.set_server_dead(true);
        self.log(node.nanos());
        let nanos = Nanos(node.nanos());
        self.act(|machine, hands| machine.handle_server_died(nanos, hands));
        let _ = self.peer.flush();
        node.set_state(
            Role::Primary,
            State::Ended,
            "the server's process has ended; the backup takes over",
            "look at the server's log",
        );
        self.stop_watching(node);
        loop {
            let (stop, tokens) = node.wait(Some(Instant::now() + Duration::from_millis(20)))?;
            if stop {
                return Ok(End::Stopped);
            }
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
            }
            if tokens.has(PIDFD) || tokens.has(CONTROL) {
                let _ = node.poll.remove(&self.server.pidfd());
                let _ = node.poll.remove(&self.server.control());
            }
            if self.messages(node.nanos()) || self.peer.flush().is_err() {
                let _ = node.poll.remove(&self.peer);
            }
        }
    }

    /// Another member speaks in a newer epoch: the server dies first (decision 21).
    pub(super) fn stand_down(&mut self, node: &mut Node<'_>, newer: &Heard) -> anyhow::Result<End> {
        self.server.kill();
        node.set_replaced(newer);
        self.machine.handle_backup_lost();
        self.idle(node)
    }

    /// The backup is lost, or can no longer follow. The edge decides whether this
    /// member may run on alone: a backup that is in step takes over instead
    /// (decisions 19 and 20). Until then the service waits.
    pub(super) fn go_alone(&mut self, node: &mut Node<'_>, reason: &str) -> anyhow::Result<End> {
        self.machine.handle_backup_lost();
        self.stop_watching(node);
        let remedy = "the edge must bar the backup first; check that its daemon runs";
        node.set_state(Role::Primary, State::Waiting, reason, remedy);
        let _ = node.poll.remove(&self.peer);
        let _ = self.peer.send(&Message::Refused { reason });
        let _ = self.peer.flush();
        let (mut ask_at, asked) = (Instant::now(), node.status.epoch);
        loop {
            let now = Instant::now();
            if now >= ask_at {
                ask_at = now + ASK_EVERY;
                node.edge.send(&Message::Promote { epoch: node.status.epoch + 1 });
                node.edge.flush(now, &node.poll);
            }
            let (stop, tokens) = node.wait(Some(ask_at))?;
            if stop {
                self.server.kill();
                return Ok(End::Stopped);
            }
            let mut granted = None;
            if node.edge_due(tokens) {
                node.turn_edge(|message| {
                    // One for the old epoch only opens an edge that has restarted.
                    if let Message::Granted { epoch } = message {
                        granted = Some(*epoch).filter(|epoch| *epoch > asked);
                    }
                });
            }
            if let Some(epoch) = granted {
                node.status.epoch = epoch;
                return self.serve_alone(node, reason);
            }
            if let Some(newer) = node.replaced_by() {
                return self.stand_down(node, &newer);
            }
            if tokens.has(CONTROL) || tokens.has(PIDFD) {
                return self.server_died(node);
            }
        }
    }

    /// From now on no death of ours touches the service: the gate goes, and the
    /// shim passes every call through.
    fn serve_alone(&mut self, node: &mut Node<'_>, reason: &str) -> anyhow::Result<End> {
        Gate::detach_stale(&node.me.interface, &node.pin_dir())?;
        self.beside.release(&self.server);
        self.server.memory.set_mode(mode::OFF);
        for conn in self.conns.values_mut().filter(|c| !c.synack.is_empty()) {
            let packet = std::mem::take(&mut conn.synack);
            let _ = self.raw.send(&packet);
        }
        let reason = format!("{reason}; running alone");
        node.set_state(Role::Primary, State::Unprotected, &reason, RESTART_BOTH);
        self.idle(node)
    }

    /// What nobody reads any more must not wake a real-time loop for ever.
    fn stop_watching(&self, node: &Node<'_>) {
        let _ = node.poll.remove(&self.server.wake());
        let _ = node.poll.remove(&self.gate.events_fd());
        let _ = node.poll.remove(&self.listener);
    }

    /// Nothing is left to do but to answer questions.
    fn idle(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        let _ = node.poll.remove(&self.peer);
        self.stop_watching(node);
        loop {
            let (stop, tokens) = node.wait(Some(Instant::now() + Duration::from_millis(200)))?;
            let reason = no_rejoin(node);
            turn_away(node, &mut self.listener, &reason);
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
            }
            if tokens.has(PIDFD) || tokens.has(CONTROL) {
                let _ = node.poll.remove(&self.server.pidfd());
                let _ = node.poll.remove(&self.server.control());
                let remedy = "look at the server's log and restart the group";
                node.set_state(
                    node.status.role,
                    State::Ended,
                    "the server's process has ended",
                    remedy,
                );
            }
            if stop {
                self.server.kill();
                return Ok(End::Stopped);
            }
        }
    }
}
