//! The primary without its backup: its server has died, another member speaks,
//! or it runs on alone because the edge says so.

use super::{ASK_EVERY, CONTROL, Loop, PIDFD};
use crate::daemon::advice;
use crate::daemon::member::{End, Node, RESTART_BOTH, Tokens};
use crate::daemon::pairing::{no_rejoin, turn_away};
use crate::daemon::survivor::Survivor;
use crate::status::{Role, State};
use holdfast_linux::bpf::Gate;
use holdfast_linux::process;
use holdfast_member::request::EpochRequest;
use holdfast_member::standing::Heard;
use holdfast_replica::Nanos;
use holdfast_wire::message::Message;
use holdfast_wire::shm::mode;
use std::time::{Duration, Instant};

/// For what a planned switchover waits at most: until the backup holds all that the
/// server has logged, and until the edge has let it speak.
const CONFIRM_MAX: Duration = Duration::from_secs(1);
const GRANT_MAX: Duration = Duration::from_secs(3);
/// How often the one and the other are looked for.
const CONFIRM_LOOK: Duration = Duration::from_micros(200);
const GRANT_LOOK: Duration = Duration::from_millis(20);

impl Loop {
    /// The operator stops this member while its backup follows: a planned
    /// switchover. The server stands still while the backup gets all that it has
    /// logged, and is killed when the edge has let the backup speak.
    pub(super) fn hand_over(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        node.events
            .add("handing over", format!("to {}, for this member is stopped", node.other.name));
        let begun = Instant::now();
        let _ = self.peer.send(&Message::Stopping);
        // One that has ended already is handed over all the same.
        let _ended = process::signal(self.server.pidfd(), libc::SIGSTOP);
        let mut lost = false;
        while !lost && !self.is_all_confirmed() && begun.elapsed() < CONFIRM_MAX {
            let (again, tokens) = node.wait(Some(Instant::now() + CONFIRM_LOOK))?;
            if node.edge_due(tokens) {
                node.turn_edge(|_| {});
            }
            self.gate_events(node.nanos());
            self.log(node.nanos());
            lost = again || self.messages(node);
            self.settle(node);
        }
        self.announce_end(node);
        let reason = "this member is stopped; the backup takes over";
        node.set_state(Role::Primary, State::Ended, reason, "start this member again");
        self.await_takeover(node, begun)
    }

    /// All that the server has logged is in the backup.
    fn is_all_confirmed(&self) -> bool {
        self.machine.frames_unconfirmed() == 0 && self.server.memory.tail() == self.log_at
    }

    /// Until the edge lets the other member speak: then nothing that this kernel
    /// still says gets out, and the rest of the server may go.
    fn await_takeover(&mut self, node: &mut Node<'_>, begun: Instant) -> anyhow::Result<End> {
        self.stop_watching(node);
        let mut again = false;
        while node.replaced_by().is_none() && begun.elapsed() < GRANT_MAX && !again {
            let tokens;
            (again, tokens) = node.wait(Some(Instant::now() + GRANT_LOOK))?;
            self.answer_backup(node, tokens);
        }
        self.server.kill();
        match node.replaced_by() {
            Some(newer) => {
                let what = format!("{} is current in epoch {}", newer.current, newer.epoch);
                let took = begun.elapsed().as_micros();
                node.events.add("handed over", format!("{what} after {took} µs"));
                Ok(End::Stopped)
            }
            None => Ok(End::Silent),
        }
    }

    /// The server is dead: everything it logged goes out, and nothing more is
    /// confirmed. The kernel's FINs and RSTs stay behind the gate.
    pub(super) fn server_died(&mut self, node: &mut Node<'_>) -> anyhow::Result<End> {
        self.announce_end(node);
        // One that only says so must not go on beside its replica.
        let _ended = process::signal(self.server.pidfd(), libc::SIGKILL);
        let mut gone = None;
        self.tell_end(node, None);
        self.stop_watching(node);
        loop {
            let (stop, tokens) = node.wait(Some(Instant::now() + GRANT_LOOK))?;
            if stop {
                // The edge may be about to let the backup speak.
                return self.await_takeover(node, Instant::now());
            }
            self.answer_backup(node, tokens);
            gone = self.broken.take().or(gone);
            self.tell_end(node, gone.as_deref());
            // Strangers who were at the door have a time limit there as well.
            let reason = no_rejoin(node);
            turn_away(node, &mut self.listener, &reason);
        }
    }

    /// Everything that was logged goes out, and then that nothing more comes.
    fn announce_end(&mut self, node: &Node<'_>) {
        let _ = self.gate.set_server_dead(true);
        self.log(node.nanos());
        let nanos = Nanos(node.nanos());
        self.act(|machine, hands| machine.handle_server_died(nanos, hands));
        let _ = self.peer.flush();
    }

    /// The backup still asks for what the tap lacks, and the edge tells who speaks.
    fn answer_backup(&mut self, node: &mut Node<'_>, tokens: Tokens) {
        if node.edge_due(tokens) {
            node.turn_edge(|_| {});
        }
        if tokens.has(PIDFD) || tokens.has(CONTROL) {
            let _ = node.poll.remove(&self.server.pidfd());
            let _ = node.poll.remove(&self.server.control());
        }
        if self.messages(node) || self.peer.flush().is_err() {
            let _ = node.poll.remove(&self.peer);
            node.other_says = None;
        }
    }

    /// The server has ended: who goes on?
    fn tell_end(&mut self, node: &mut Node<'_>, gone: Option<&str>) {
        let (role, then, remedy) = match (gone, node.replaced_by()) {
            (Some(gone), _) => (Role::Primary, format!(", and {gone}"), advice::AFTER_END),
            (None, Some(Heard { epoch, current })) => {
                (Role::None, format!("; {current} is current in epoch {epoch}"), RESTART_BOTH)
            }
            (None, None) => {
                let remedy = "wait for the backup; it needs the edge's daemon to take over";
                (Role::Primary, "; the backup takes over".to_owned(), remedy)
            }
        };
        self.say_ended(node, role, &then, remedy);
    }

    /// The server has ended, and `then`.
    fn say_ended(&mut self, node: &mut Node<'_>, role: Role, then: &str, remedy: &str) {
        if self.server.is_in_background() {
            let reason =
                format!("the server has gone into the background: its process has ended{then}");
            let remedy = "end what runs on and keeps the port; then start it in the foreground: nginx with `daemon off;`, redis without \
                 `daemonize yes`, others with -f, -F, -D or -n";
            return node.set_ended(role, &reason, remedy);
        }
        node.set_ended(role, &format!("{}{then}", advice::ENDED), remedy);
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
        node.other_says = None;
        self.machine.handle_backup_lost();
        self.stop_watching(node);
        let _ = node.poll.remove(&self.peer);
        let _ = self.peer.send(&Message::Refused { reason, again: false });
        let _ = self.peer.flush();
        let mut request = EpochRequest::new(node.status.epoch, ASK_EVERY, false);
        let mut opened = false;
        loop {
            node.ask_for(&mut request, std::mem::take(&mut opened));
            node.wait_for_edge(reason);
            let (stop, tokens) = node.wait(Some(Instant::now() + ASK_EVERY))?;
            if stop {
                // The backup may be in step, and take over.
                return self.await_takeover(node, Instant::now());
            }
            if node.edge_due(tokens) {
                opened = node.turn_edge(|message| request.handle_message(message));
            }
            if let Some(epoch) = request.granted() {
                node.status.epoch = epoch;
                return self.serve_alone(node, reason);
            }
            if let Some(newer) = node.replaced_by() {
                return self.stand_down(node, &newer);
            }
            if tokens.has(PIDFD) || tokens.has(CONTROL) && self.server.has_hung_up() {
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
        let remedy = advice::after_giving_up(State::Unprotected, reason);
        let reason = format!("{reason}; running alone");
        node.set_state(Role::Primary, State::Unprotected, &reason, &remedy);
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
        let mut beside = Survivor::new(Instant::now());
        loop {
            Survivor::let_loose(node, &mut self.server);
            let (stop, tokens) = node.wait(Some(Instant::now() + Duration::from_millis(200)))?;
            beside.turn(node, tokens, Some(&mut self.listener));
            if tokens.has(CONTROL) {
                // It says nothing that matters now.
                let _ = node.poll.remove(&self.server.control());
            }
            if tokens.has(PIDFD) {
                let _ = node.poll.remove(&self.server.pidfd());
                let role = node.status.role;
                self.say_ended(node, role, "", advice::AFTER_END);
            }
            if stop {
                self.server.kill();
                return Ok(End::Stopped);
            }
        }
    }
}
