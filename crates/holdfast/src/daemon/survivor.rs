//! A member whose server speaks alone: no backup, and no death of ours touches it
//! (decision 20). That holds for the daemon that is started again, too: it finds the
//! server running, leaves it as it is, and tells how things are.

use super::advice;
use super::member::{End, Node, RESTART_BOTH, ROLE, Tokens, mapped};
use super::pairing::{no_rejoin, turn_away};
use crate::channel::Listener;
use crate::leavings;
use crate::poll::Interest;
use crate::status::{Role, State};
use anyhow::Context as _;
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::spawn::Server;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const LISTENER: u64 = ROLE;
const PIDFD: u64 = ROLE + 1;
/// How often a member that comes back is answered, and how often connections are
/// counted: with ten thousand of them that takes milliseconds.
const ANSWER_EVERY: Duration = Duration::from_millis(20);
const COUNT_EVERY: Duration = Duration::from_secs(2);
const TURN_EVERY: Duration = Duration::from_millis(200);

/// What the daemon does beside a server that speaks alone.
pub struct Survivor {
    diag: Option<DiagSocket>,
    answer_at: Instant,
    count_at: Instant,
}

impl Survivor {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { diag: DiagSocket::open().ok(), answer_at: now, count_at: now }
    }

    /// The server of this life is not to die with this daemon.
    pub fn let_loose(node: &mut Node<'_>, server: &mut Server) {
        if node.loose || !server.let_loose() {
            return;
        }
        node.loose = true;
        if let Err(error) = leavings::note_loose(&node.config.group.run_dir, &node.me.name) {
            tracing::warn!("a daemon that is started again would end the server: {error:#}");
        }
    }

    /// Answers the edge, tells a member that comes back how things are, and counts.
    pub fn turn(&mut self, node: &mut Node<'_>, tokens: Tokens, listener: Option<&mut Listener>) {
        let now = Instant::now();
        if node.edge_due(tokens) {
            node.turn_edge(|_| {});
            if let Some(diag) = &mut self.diag {
                node.tell_vanished_by(diag);
            }
        }
        // Not with every packet of a tap.
        if let Some(listener) = listener.filter(|_| now >= self.answer_at) {
            self.answer_at = now + ANSWER_EVERY;
            let reason = no_rejoin(node);
            turn_away(node, listener, &reason);
        }
        if let Some(diag) = self.diag.as_mut().filter(|_| now >= self.count_at) {
            self.count_at = now + COUNT_EVERY;
            if node.own().state == State::Unprotected {
                node.mend_alone();
            }
            let ips: Vec<_> = node.config.service_ips().into_iter().map(mapped).collect();
            if let Ok(count) = diag.count_own(&ips, &node.config.service_ports()) {
                node.status.connections = count as u64;
            }
        }
    }
}

/// Watches a server that has outlived the daemon that started it.
///
/// # Errors
/// When the event loop fails, or a server that must end does not.
pub fn run(node: &mut Node<'_>, (pid, server): (u32, &OwnedFd)) -> anyhow::Result<End> {
    (node.server, node.loose) = (Some(pid), true);
    let mut listener = Listener::bind(node.me.address, node.pair_identity()).ok();
    if let Some(listener) = &mut listener {
        listener.prefer([node.other.address.ip()]);
        node.poll.add(&*listener, LISTENER, Interest::Read)?;
    }
    node.poll.add(server, PIDFD, Interest::Read)?;
    let reason = "the server has outlived an earlier daemon; running alone";
    node.set_state(Role::Primary, State::Unprotected, reason, RESTART_BOTH);
    let mut beside = Survivor::new(Instant::now());
    loop {
        let (stop, tokens) = node.wait(Some(Instant::now() + TURN_EVERY))?;
        beside.turn(node, tokens, listener.as_mut());
        if tokens.has(PIDFD) {
            let _ = node.poll.remove(server);
            node.set_ended(Role::Primary, advice::ENDED, advice::AFTER_END);
        }
        let newer = node.replaced_by();
        if newer.is_some() || stop {
            leavings::orphan(&node.config.group.run_dir, &node.me.name)
                .context("the server must not go on")?;
        }
        if let Some(newer) = newer {
            node.set_replaced(&newer);
            node.status.epoch = newer.epoch;
        }
        if stop {
            return Ok(End::Stopped);
        }
    }
}
