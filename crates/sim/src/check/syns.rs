//! A client that connects during an outage is answered: a SYN that comes while the primary is dead
//! waits at the edge and at the backup, and is answered soon after the takeover, long before its
//! client would retransmit it.

use crate::Ns;
use crate::member::HEARTBEAT;
use crate::plan::Fault;
use holdfast_cluster::detector::{FIRST_PATIENCE, SUSPECT_AFTER};
use holdfast_wire::message::ConnKey;
use std::collections::BTreeMap;

/// Longest time after a takeover until a SYN is answered, in ns: the edge tries eight
/// times, 12 ms apart.
pub const ANSWER_MAX: Ns = 100_000_000;
/// Longest time in ns after its last heartbeat until a primary is suspected: from then on the edge
/// caches SYNs.
const SUSPECTED: Ns = SUSPECT_AFTER * HEARTBEAT + LATE;
/// Time in ns after it has become current for which a primary is not suspected.
const BEGUN: Ns = FIRST_PATIENCE.0 + LATE;
/// Margin for timers and links, in ns.
const LATE: Ns = 5_000_000;

/// The SYNs of an outage; see the module. Only one outage is judged, and only if nothing else
/// breaks.
#[derive(Debug, Default)]
pub struct Syns {
    /// When the primary became current.
    granted_at: Ns,
    /// When it died.
    since: Option<Ns>,
    /// Whether its death is noticed only by missing heartbeats.
    silent: bool,
    copies_lost: bool,
    spoilt: bool,
    live_at: Option<Ns>,
    waits: BTreeMap<ConnKey, Ns>,
}

impl Syns {
    /// `copies_lost`: copies to the backup may be lost from the beginning.
    pub fn new(copies_lost: bool) -> Self {
        Self { copies_lost, ..Self::default() }
    }

    /// Notes that a fault strikes; `speaker`: the current member.
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

    /// Notes that a member has become current.
    pub fn granted(&mut self, now: Ns) {
        if self.since.is_none() {
            self.granted_at = now;
        }
    }

    /// Notes that something else has happened that leaves SYNs unanswered.
    pub fn spoil(&mut self) {
        self.spoilt |= self.live_at.is_none() || !self.waits.is_empty();
    }

    /// Notes that a copy was lost.
    pub fn copy_lost(&mut self) {
        self.copies_lost = true;
    }

    /// Notes that a client's first SYN passes.
    pub fn comes(&mut self, now: Ns, key: ConnKey) {
        let Some(since) = self.since.filter(|_| self.live_at.is_none()) else { return };
        let suspected = (since + SUSPECTED).max(self.granted_at + BEGUN);
        let kept = self.silent && now > suspected;
        if kept || !self.copies_lost {
            self.waits.insert(key, now);
        }
    }

    /// Notes that the client is answered.
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
