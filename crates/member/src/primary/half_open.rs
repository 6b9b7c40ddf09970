//! Handshakes that nobody finishes must not shut others out. A kernel without SYN
//! cookies (what only a cookie knows cannot be replicated) takes no SYN while its
//! listener's queue is full, and keeps an unanswered one for seconds: a few hundred
//! strangers' SYNs each second are enough. So the oldest make room for the newest.

use super::{PrimaryHost, PrimaryMachine};
use crate::host::ConnState;
use crate::nanos;
use crate::timing::primary::{BACKLOG_EVERY, HALF_OPEN_LOOK_MAX, YOUNG};
use holdfast_cluster::Nanos;
use holdfast_wire::message::{ConnId, ConnKey};
use std::collections::VecDeque;

/// Handshakes, oldest first.
#[derive(Debug)]
pub(super) struct HalfOpen {
    young: VecDeque<(Nanos, ConnId)>,
    /// Handshakes that were not answered by the age of [`YOUNG`].
    old: VecDeque<ConnId>,
    /// Most old handshakes: half of the smallest listener's backlog, and never more than `share` of
    /// the gate's slots.
    old_max: usize,
    share: usize,
    backlog_at: Nanos,
    ended: u64,
}

impl HalfOpen {
    pub(super) fn new(share: usize, now: Nanos) -> Self {
        let (young, old) = (VecDeque::new(), VecDeque::new());
        Self { young, old, old_max: share, share, backlog_at: now, ended: 0 }
    }

    pub(super) fn begun(&mut self, conn: ConnId, now: Nanos) {
        self.young.push_back((now, conn));
    }

    /// Number of handshakes that nobody has looked at yet.
    #[cfg(test)]
    pub(super) fn young(&self) -> usize {
        self.young.len()
    }

    /// Number of handshakes that had to make room.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Takes the handshakes that are no longer young, to be looked at. A connection that is over
    /// by then costs no look: short ones may come faster than the kernel is asked.
    fn grown(&mut self, now: Nanos, lives: impl Fn(ConnId) -> bool) -> Vec<ConnId> {
        let mut grown = Vec::new();
        while grown.len() < HALF_OPEN_LOOK_MAX {
            let is_due = |&mut (at, _): &mut (Nanos, ConnId)| now.since(at) >= nanos(YOUNG);
            let Some((_, conn)) = self.young.pop_front_if(is_due) else { break };
            if lives(conn) {
                grown.push(conn);
            }
        }
        grown
    }

    /// Takes the oldest handshakes, as many as are too many.
    fn oldest(&mut self) -> Vec<ConnId> {
        let many = self.old.len().saturating_sub(self.old_max).min(HALF_OPEN_LOOK_MAX);
        self.old.drain(..many).collect()
    }

    fn ask_backlog(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        if now >= self.backlog_at {
            self.backlog_at = now.plus(nanos(BACKLOG_EVERY));
            self.old_max =
                host.backlog().map_or(self.share, |backlog| (backlog / 2).min(self.share)).max(1);
        }
    }
}

impl PrimaryMachine {
    /// Ends the oldest handshakes where too many are not finished.
    pub(super) fn make_room(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        let conns = &self.tables.conns;
        let grown = self.half_open.grown(now, |conn| conns.contains_key(&conn));
        let Some(grown) = self.unanswered(&grown, host) else { return };
        self.half_open.ask_backlog(now, host);
        self.half_open.old.extend(grown.into_iter().map(|(conn, _)| conn));
        let oldest = self.half_open.oldest();
        let Some(oldest) = self.unanswered(&oldest, host) else { return };
        let (conns, keys): (Vec<ConnId>, Vec<ConnKey>) = oldest.into_iter().unzip();
        for conn in &conns {
            // A client that answers now hears that it is too late, and can try again.
            host.allow_fin(*conn);
        }
        if !host.destroy(&keys) {
            return;
        }
        self.half_open.ended += conns.len() as u64;
        for conn in conns {
            self.let_go(conn, now, host);
        }
    }

    /// Those whose clients have not answered the SYN-ACK; `None`: the kernel does not tell. The
    /// kernel knows only the newest connection of a tuple, so older ones are left out.
    fn unanswered(
        &self,
        conns: &[ConnId],
        host: &mut impl PrimaryHost,
    ) -> Option<Vec<(ConnId, ConnKey)>> {
        let known = conns.iter().filter_map(|id| Some((*id, self.tables.conns.get(id)?.key)));
        let known: Vec<(ConnId, ConnKey)> =
            known.filter(|(id, key)| host.conn_of(key) == Some(*id)).collect();
        if known.is_empty() {
            return Some(known);
        }
        let keys: Vec<ConnKey> = known.iter().map(|(_, key)| *key).collect();
        let all = known.into_iter().zip(host.states(&keys)?);
        let waits = all.filter(|(_, state)| *state == ConnState::SynReceived);
        Some(waits.map(|(conn, _)| conn).collect())
    }
}
