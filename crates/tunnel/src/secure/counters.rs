//! What has been counted, with the names that `holdfast tunnel status --json` has.

use super::Dropped;
use serde::{Deserialize, Serialize};

/// Datagrams and handshakes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Sessions that were agreed on.
    pub handshakes: u64,
    /// First messages that were sent.
    pub initiations_sent: u64,
    /// Replies with a cookie, to whom handshakes came too often from.
    pub cookies_sent: u64,
    /// How often the peer was heard at another address.
    pub roamed: u64,
    /// How often the peer was started again.
    pub peer_restarts: u64,
    /// Datagrams that were dropped, by the reason: see [`Dropped`].
    pub dropped_malformed: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_unknown_session: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_replayed: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_forged: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_wrong_mac: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_wrong_key: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_stale: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_flood: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_not_awaited: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_no_cipher: u64,
    #[expect(missing_docs, reason = "as above")]
    pub dropped_no_random: u64,
}

impl Counters {
    pub(super) fn drop(&mut self, why: Dropped) {
        let counter = match why {
            Dropped::Malformed => &mut self.dropped_malformed,
            Dropped::UnknownSession => &mut self.dropped_unknown_session,
            Dropped::Replayed => &mut self.dropped_replayed,
            Dropped::Forged => &mut self.dropped_forged,
            Dropped::WrongMac => &mut self.dropped_wrong_mac,
            Dropped::WrongKey => &mut self.dropped_wrong_key,
            Dropped::Stale => &mut self.dropped_stale,
            Dropped::Flood => &mut self.dropped_flood,
            Dropped::NotAwaited => &mut self.dropped_not_awaited,
            Dropped::NoCipher => &mut self.dropped_no_cipher,
            Dropped::NoRandom => &mut self.dropped_no_random,
        };
        *counter += 1;
    }
}
