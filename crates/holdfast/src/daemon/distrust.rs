//! Handshakes that fail: they explain why a peer that has an address of the file does not connect.

use crate::channel::ChannelError;
use crate::status::{State, Status};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a failed handshake is forgotten: a peer that still fails tries again all the
/// time.
const LASTS: Duration = Duration::from_secs(10);

/// Why a peer is not trusted.
pub(super) struct Distrusted {
    pub reason: String,
    pub remedy: &'static str,
    seen: Instant,
}

/// The peers that are not trusted, or do not trust this host, by their place in the file. A failure
/// that says nothing of trust, as a connection that is closed too early, changes nothing.
#[derive(Default)]
pub(super) struct Distrust(BTreeMap<usize, Distrusted>);

impl Distrust {
    /// Takes note of a failed handshake; returns the reason if it is news.
    pub fn note(
        &mut self,
        peer: usize,
        name: &str,
        why: &ChannelError,
        now: Instant,
    ) -> Option<String> {
        let (reason, remedy) = why.distrust(name)?;
        let is_known = self.of(peer).is_some_and(|known| known.reason == reason);
        let news = (!is_known).then(|| reason.clone());
        self.0.insert(peer, Distrusted { reason, remedy, seen: now });
        news
    }

    /// The peer has proved itself.
    pub fn forget(&mut self, peer: usize) {
        self.0.remove(&peer);
    }

    /// What was last wrong with the peer.
    pub fn of(&self, peer: usize) -> Option<&Distrusted> {
        self.0.get(&peer)
    }

    /// Why the first of the peers that are away fails to connect.
    pub fn fresh(&self, now: Instant, is_away: impl Fn(usize) -> bool) -> Option<&Distrusted> {
        let fresh = |(peer, it): &(&usize, &Distrusted)| {
            is_away(**peer) && now.saturating_duration_since(it.seen) < LASTS
        };
        self.0.iter().find(fresh).map(|(_, it)| it)
    }
}

/// Adds to the reason of a state that lacks something why a handshake has failed, which is what to
/// mend first.
pub(super) fn explain(status: &mut Status, why: Option<(&str, &str)>) {
    let lacks = matches!(status.state, State::Waiting | State::Unprotected);
    let Some((reason, remedy)) = why.filter(|_| lacks) else { return };
    status.reason = format!("{}; {reason}", status.reason);
    remedy.clone_into(&mut status.remedy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_is_news_once_and_stands_while_it_is_tried() {
        let (mut distrust, now) = (Distrust::default(), Instant::now());
        let reason = "handshake failed: the key of `hb` differs, or its group.name";
        let why = ChannelError::WrongKey;
        assert_eq!(distrust.note(1, "hb", &why, now).as_deref(), Some(reason));
        assert_eq!(distrust.note(1, "hb", &why, now), None);
        assert_eq!(distrust.note(0, "ha", &ChannelError::Closed, now), None);
        let fresh = |distrust: &Distrust, s, away| {
            let found = distrust.fresh(now + Duration::from_secs(s), |peer| away && peer == 1);
            found.map(|it| it.reason.clone())
        };
        assert_eq!(fresh(&distrust, 9, true).as_deref(), Some(reason));
        assert_eq!((fresh(&distrust, 9, false), fresh(&distrust, 10, true)), (None, None));
        distrust.forget(1);
        assert!(fresh(&distrust, 0, true).is_none() && distrust.of(1).is_none());
    }

    #[test]
    fn what_is_lacking_is_explained_and_what_is_well_is_not() {
        let explained = |state| {
            let (reason, remedy) = ("only ha serves".to_owned(), "start another".to_owned());
            let mut status = Status { state, reason, remedy, ..Status::new("g", "edge") };
            explain(&mut status, Some(("its key differs", "copy it")));
            (status.reason, status.remedy)
        };
        let with_key = ("only ha serves; its key differs".to_owned(), "copy it".to_owned());
        let as_it_was = ("only ha serves".to_owned(), "start another".to_owned());
        assert_eq!(explained(State::Unprotected), with_key);
        assert_eq!(explained(State::Waiting), with_key);
        assert_eq!(explained(State::Protected), as_it_was);
    }
}
