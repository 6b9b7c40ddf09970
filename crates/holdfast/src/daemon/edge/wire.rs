//! The edge's machine acts through this: the host's kernel, its disk, and the channels.

use super::disk::Disk;
use super::members::Links;
use crate::admin::Events;
use crate::daemon::clock::Clock;
use crate::daemon::recover::{Exit, Recoverer, Way};
use crate::poll::Poll;
use crate::status::counted;
use holdfast_cluster::Nanos;
use holdfast_cluster::state::EdgeState;
use holdfast_linux::bpf::Edge;
use holdfast_member::edge::EdgeHost;
use holdfast_wire::message::{ConnKey, FlowBounds, Message};
use std::time::Instant;

/// The parts of the daemon that the machine acts upon.
pub(super) struct Wire {
    pub poll: Poll,
    pub bpf: Edge,
    pub recoverer: Recoverer,
    pub disk: Disk,
    pub links: Links,
    pub events: Events,
    pub clock: Clock,
    /// Number of flows that were removed because their clients had vanished.
    pub vanished: u64,
    /// Channels that broke while something was sent, and why.
    pub failed: Vec<(usize, String)>,
    /// Set when the kernel's tables cannot be used any more.
    pub fatal: Option<anyhow::Error>,
}

impl EdgeHost for Wire {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn send(&mut self, member: usize, message: &Message<'_>) {
        if let Err(error) = self.links.send(member, message, &self.poll) {
            self.links.close(member);
            self.failed.push((member, error.to_string()));
        }
    }

    fn close(&mut self, member: usize) {
        self.links.close(member);
    }

    fn set_fence(&mut self, epoch: u64, current: Option<usize>) -> Result<(), String> {
        self.bpf.set_current(epoch, current).map_err(|error| error.to_string())
    }

    fn set_tap(&mut self, member: usize, on: bool) {
        if let Err(error) = self.bpf.set_tap(member, on) {
            tracing::error!("tap of {}: {error}", self.links.name(member));
        }
    }

    fn keep(&mut self, state: &EdgeState) -> u64 {
        self.disk.keep(state.clone(), Instant::now())
    }

    fn bounds(&mut self) -> Result<Vec<FlowBounds>, String> {
        // A second attempt, because the kernel may lack memory for a moment.
        let flows = self.bpf.all_bounds().or_else(|_| self.bpf.all_bounds());
        flows.map_err(|error| error.to_string())
    }

    fn set_cache(&mut self, member: usize, on: bool) {
        let changed = if on {
            self.recoverer.start(Instant::now()).map(|began| began.then_some("caching"))
        } else {
            self.recoverer.stop().map(|ended| ended.then_some("no more"))
        };
        match changed {
            Ok(None) => {}
            Ok(Some(what)) => {
                self.events.add("cache", format!("{}: {what}", self.links.name(member)));
            }
            Err(error) => tracing::error!("caching: {error}"),
        }
    }

    /// Begins to resend what the cache holds, which goes on for a while: the server may not
    /// listen yet.
    fn resend(&mut self, member: usize) {
        let name = self.links.name(member);
        let exit = match self.bpf.hop(member) {
            Ok(hop) => Exit::Host(hop).into(),
            Err(error) => return tracing::error!("resending to {name}: {error}"),
        };
        let now = Instant::now();
        let flows = self.recoverer.restored(now, &[Way { way: 0, sound: now, exit }]);
        if flows > 0 {
            self.events.add("resend", format!("{} to {name}", counted(flows as u64, "flow")));
        }
    }

    fn age_flows(&mut self, now: Nanos, can_ask: bool) -> Vec<ConnKey> {
        let quiet = self.bpf.age_flows(self.clock.instant(now), can_ask);
        quiet.unwrap_or_else(|error| {
            self.fatal = Some(error.into());
            Vec::new()
        })
    }

    fn forget_flows(&mut self, keys: &[ConnKey]) {
        match self.bpf.forget_vanished(keys) {
            Ok(forgotten) => self.vanished += forgotten as u64,
            Err(error) => tracing::warn!("forgetting flows: {error}"),
        }
    }

    fn note(&mut self, what: &'static str, words: String) {
        self.events.add(what, words);
    }
}
