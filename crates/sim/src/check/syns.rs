//! Who knocks during an outage is let in: a SYN that comes while the primary is dead
//! waits at the edge and at the backup, and is answered soon after the takeover, long
//! before its client would repeat it.

use crate::Ns;
use crate::member::HEARTBEAT;
use crate::plan::Fault;
use holdfast_cluster::detector::{FIRST_PATIENCE, SUSPECT_AFTER};
use holdfast_wire::message::ConnKey;
use std::collections::BTreeMap;

/// So long after a takeover its SYN is answered at the latest, ns: the edge tries eight
/// times, 12 ms apart.
pub const ANSWER_MAX: Ns = 100_000_000;
/// How long after its last heartbeat a primary is suspected at the latest, ns: from then
/// on the edge keeps SYNs by itself. One that has just begun is not for a while.
const SUSPECTED: Ns = SUSPECT_AFTER * HEARTBEAT + LATE;
const BEGUN: Ns = FIRST_PATIENCE.0 + LATE;
const LATE: Ns = 5_000_000;

/// See the module. It judges one outage, of which nothing else that breaks makes another
/// matter.
#[derive(Debug, Default)]
pub struct Syns {
    /// When the primary was let speak, and when it died.
    granted_at: Ns,
    since: Option<Ns>,
    /// Its primary falls silent, and has to be missed.
    silent: bool,
    copies_lost: bool,
    spoilt: bool,
    live_at: Option<Ns>,
    waits: BTreeMap<ConnKey, Ns>,
}

impl Syns {
    /// Copies may be lost from the beginning on.
    pub fn new(copies_lost: bool) -> Self {
        Self { copies_lost, ..Self::default() }
    }

    /// A fault strikes; `speaker`: who is current.
    pub fn strikes(&mut self, now: Ns, fault: &Fault, speaker: Option<usize>) {
        let (who, silent) = match *fault {
            Fault::HostDies { member } | Fault::FreezeHost { member, .. } => (member, true),
            Fault::KillDaemon { member, .. } | Fault::KillServer { member } => (member, false),
            Fault::SetsClock { .. } => return,
            Fault::TapLoss { .. } => {
                self.copies_lost = true;
                return;
            }
            _ => return self.spoil(),
        };
        if self.since.is_some() || speaker != Some(who) {
            return self.spoil();
        }
        (self.since, self.silent) = (Some(now), silent);
    }

    /// A member may speak.
    pub fn granted(&mut self, now: Ns) {
        if self.since.is_none() {
            self.granted_at = now;
        }
    }

    /// Something else has happened that leaves SYNs unanswered.
    pub fn spoil(&mut self) {
        self.spoilt |= self.live_at.is_none() || !self.waits.is_empty();
    }

    /// A copy was lost.
    pub fn copy_lost(&mut self) {
        self.copies_lost = true;
    }

    /// A client's first SYN comes by.
    pub fn comes(&mut self, now: Ns, key: ConnKey) {
        let Some(since) = self.since.filter(|_| self.live_at.is_none()) else { return };
        let suspected = (since + SUSPECTED).max(self.granted_at + BEGUN);
        let kept = self.silent && now > suspected;
        if kept || !self.copies_lost {
            self.waits.insert(key, now);
        }
    }

    /// The client is answered.
    pub fn answered(&mut self, key: &ConnKey) {
        self.waits.remove(key);
    }

    pub fn took_over(&mut self, now: Ns) {
        self.live_at.get_or_insert(now);
    }

    pub fn look(&mut self, now: Ns) -> Option<String> {
        self.live_at.filter(|live_at| now > live_at + ANSWER_MAX)?;
        let (key, at) = self.waits.pop_first()?;
        let ms = (now - at) / 1_000_000;
        (!self.spoilt).then(|| format!("{}'s SYN has been unanswered for {ms} ms", key.client_port))
    }
}
