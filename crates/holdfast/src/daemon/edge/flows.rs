//! The edge's flows: what clients say while nobody answers is kept and played to
//! who comes next, and what is over is forgotten.

use super::EdgeDaemon;
use crate::daemon::recover::{Exit, Way};
use anyhow::Result;
use holdfast_wire::message::{ConnKey, Message};
use std::time::Instant;

impl EdgeDaemon<'_> {
    /// From the second missed heartbeat of the current member on, what clients
    /// say may be lost; it is kept until somebody answers again (thesis §3.3).
    pub(super) fn cache_if_suspected(&mut self, index: usize, now: Instant) {
        if !self.is_current(index) {
            return;
        }
        let name = self.links.name(index);
        let result = if self.links.is_suspected(index) {
            self.recoverer.start(now).map(|began| began.then_some("caching"))
        } else if self.machine.answers(name) {
            self.recoverer.stop().map(|ended| ended.then_some("no more"))
        } else {
            Ok(None)
        };
        match result {
            Ok(None) => {}
            Ok(Some(what)) => self.events.add("cache", format!("{name}: {what}")),
            Err(error) => tracing::error!("caching: {error}"),
        }
    }

    /// Plays to a member what clients said while nobody answered. It is tried for
    /// a while: the server may not listen yet.
    pub(super) fn resend(&mut self, index: usize, name: &str) {
        let exit = match self.bpf.hop(index) {
            Ok(hop) => Exit::Host(hop).into(),
            Err(error) => return tracing::error!("resending to {name}: {error}"),
        };
        let now = Instant::now();
        let flows = self.recoverer.restored(now, &[Way { way: 0, sound: now, exit }]);
        if flows > 0 {
            self.events.add("resend", format!("{flows} flows to {name}"));
        }
    }

    /// Flows end on the wire, or their clients vanish without a word: then the
    /// current member knows.
    pub(super) fn age_flows(&mut self, now: Instant) -> Result<()> {
        let state = self.machine.handle_ask();
        let (epoch, current) = (state.epoch, state.current.as_deref());
        let member = current.and_then(|name| self.links.index(name));
        let member = member.filter(|&index| self.links.is_connected(index));
        let keys = self.bpf.age_flows(now, member.is_some())?;
        if let Some(index) = member.filter(|_| !keys.is_empty()) {
            self.links.send(index, &Message::AreAlive { epoch, keys });
            if let Err(error) = self.links.flush(index, &self.poll) {
                self.lose(index, &error.to_string(), now);
            }
        }
        Ok(())
    }

    /// Only who is current knows, and only of its own epoch.
    pub(super) fn forget_vanished(&mut self, index: usize, epoch: u64, keys: &[ConnKey]) {
        if !self.is_current(index) || epoch != self.machine.handle_ask().epoch {
            return;
        }
        match self.bpf.forget_vanished(keys) {
            Ok(forgotten) => self.vanished += forgotten as u64,
            Err(error) => tracing::warn!("forgetting flows: {error}"),
        }
    }
}
