//! The host that the edge runs on: whether it forwards packets, and still has the programs.

use super::{EdgeDaemon, edge_config};
use crate::admin::Events;
use crate::check;
use crate::config::{self, Config};
use crate::daemon::clients::{deaf, unreached};
use crate::daemon::intact::{Trouble, lost_address, note_missing, note_torn};
use crate::daemon::kept::Kept;
use holdfast_linux::bpf::Mended;
use std::time::{Duration, Instant};

/// Time between two looks at the edge's own host.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is found wrong with the edge's host, checked every [`LOOK_EVERY`].
#[derive(Debug)]
pub(super) struct Host {
    /// When [`Host::look`] is due.
    pub look_at: Instant,
    /// Reason and remedy of what is wrong, if anything.
    pub trouble: Option<(String, String)>,
    /// What of the file's addresses this host has no more.
    pub lacking: Option<Trouble>,
    /// Why a program that was removed cannot be attached again.
    pub torn: Option<String>,
    pub kept: Kept,
    /// Names of the clients' interfaces that have no carrier.
    pub deaf: Vec<String>,
}

impl Host {
    pub fn new(now: Instant) -> Self {
        let (trouble, lacking, torn) = (None, None, None);
        Self { look_at: now, trouble, lacking, torn, kept: Kept::default(), deaf: Vec::new() }
    }

    pub fn look(
        &mut self,
        config: &Config,
        named: &config::Edge,
        now: Instant,
        events: &mut Events,
    ) {
        self.look_at = now + LOOK_EVERY;
        let lacking = lost_address("edge.listen", named.listen.ip(), None);
        note_torn(&mut self.lacking, lacking, events);
        let clients = &named.clients;
        self.deaf = deaf(clients);
        self.trouble =
            unreached("clients'", clients, &self.deaf).or_else(|| check::not_forwarded(config));
    }
}

impl EdgeDaemon<'_> {
    /// Attaches again the programs that somebody has removed, perhaps together with their
    /// interface.
    pub(super) fn mend(&mut self) {
        let has_changed = self.changes.take();
        if has_changed && self.announced.look(self.config, self.named) {
            self.wire.events.add("announced", "the neighbours are told where the edge is");
        }
        if !has_changed && self.host.torn.is_none() {
            return;
        }
        let Mended { missing, moved, failed } =
            self.wire.bpf.mend(&edge_config(self.config, self.named));
        note_missing(&missing, &mut self.wire.events);
        if moved || !missing.is_empty() {
            self.machine.update_taps(&mut self.wire);
            for index in 0..self.machine.count() {
                if let Ok(hop) = self.wire.bpf.hop(index) {
                    self.ways.moved(index, hop);
                }
            }
        }
        self.host.torn = failed.map(|error| format!("a program is gone: {error}"));
    }
}
