//! A backup that does not answer may only be cut off for a moment. The edge is asked to bar it, and
//! the primary serves on with it for a while: if it is heard again, it is a backup as before. What
//! the edge has granted by then holds (decision 20).

use super::apart::{Asked, Stage};
use super::{PrimaryHost, PrimaryMachine};
use crate::host::{MemberEvent, Turn, ask_for};
use crate::request::EpochRequest;
use crate::timing::primary::ASK_EVERY;
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Ground;
use holdfast_wire::message::Message;

pub(super) const SILENT: &str = "the backup does not answer";

/// The request to the edge because of a backup that does not answer.
#[derive(Debug)]
pub(super) struct Doubt {
    /// The request, kept when the backup is heard again, since an answer may be under way.
    request: EpochRequest,
    /// Since when the edge has been asked; `None`: the backup was heard again.
    since: Option<Nanos>,
}

impl Doubt {
    /// What the edge has been asked.
    pub(super) fn into_asked(self) -> Asked {
        Asked { request: Box::new(self.request), reason: SILENT.to_owned(), handing: None }
    }
}

impl PrimaryMachine {
    /// Hears the edge: whether its channel has just opened, and the epoch in which it
    /// lets this member run on alone, if it does.
    pub(super) fn hear_edge(&mut self, host: &mut impl PrimaryHost) -> (bool, Option<u64>) {
        match &mut self.doubt {
            None => (host.turn_edge(&mut |_| {}), None),
            Some(doubt) => {
                let opened = host.turn_edge(&mut |message| doubt.request.handle_message(message));
                (opened, doubt.request.granted())
            }
        }
    }

    /// Asks the edge while the backup is not heard; `opened`: its channel has just opened. Returns
    /// whether the doubt has lasted too long.
    pub(super) fn doubts_for_good(&mut self, opened: bool, host: &mut impl PrimaryHost) -> bool {
        let (now, epoch) = (host.now(), host.member().epoch);
        if host.member().watch.verdict(now) != Some(Ground::Silent) {
            if let Some(doubt) = &mut self.doubt {
                doubt.since = None;
            }
            return false;
        }
        let fresh = || Doubt { request: EpochRequest::new(epoch, ASK_EVERY, false), since: None };
        let doubt = self.doubt.get_or_insert_with(fresh);
        let since = *doubt.since.get_or_insert(now);
        if now >= host.member().watch.doubt_until(since) {
            return true;
        }
        ask_for(host, &mut doubt.request, opened);
        host.show(MemberEvent::Doubts { reason: SILENT });
        false
    }

    /// Whether the edge may bar the backup any moment.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| doubt.since.is_some())
    }

    /// Goes on alone because the edge has barred the backup, whether it is heard again or not.
    pub(super) fn bar_backup(&mut self, epoch: u64, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        self.leave_backup(SILENT, host);
        self.serve_alone(epoch, SILENT, host)
    }

    /// Drops the backup: from here on nothing that it says counts.
    pub(super) fn leave_backup(&mut self, reason: &str, host: &mut impl PrimaryHost) {
        self.drop_renewal(host);
        self.lose_backup(host);
        host.stop_watching();
        host.send(&Message::Refused { reason, again: false });
        host.flush();
        host.drop_peer();
    }
}
