//! How much the machines of a pair hold (law L6). Of clients' streams a backup has
//! bounds for each connection, and for all of them together, of which every connection
//! keeps a share that no other can use up. What is refused is not acknowledged: it comes
//! again, from the client or from the primary.

use crate::CONNS_MAX;
use crate::backup::{ACCEPTS_MAX, EARLY_BYTES_MAX, FRAMES_QUEUED_MAX, SYNS_MAX, UNREAD_ASKED_MAX};
use crate::primary::{FRAME_BYTES_MAX, FRAMES_UNCONFIRMED_MAX};
use crate::promotion::{LATE_BYTES_MAX, LATE_SYNS_MAX};

/// Bytes of one client that may be held ahead of what the server has read.
/// Beyond it segments are refused.
pub const STREAM_BYTES_MAX: usize = 64 << 20;
/// Pieces beyond a hole that one stream keeps, neighbours counted as one; later
/// ones are refused.
pub const BEYOND_PIECES_MAX: usize = 1024;
/// Bytes beyond a hole that one stream keeps; later ones are refused.
pub const BEYOND_BYTES_MAX: usize = 8 << 20;
/// Bytes of raw packets beyond a hole kept per connection for re-injection; later
/// ones are left to the client's retransmission.
pub const RAWS_BYTES_MAX: usize = 4 << 20;
/// Bytes that all streams together hold. A share for each of
/// [`CONNS_MAX`] connections makes 512 MiB more.
pub const HELD: Share = Share { each: 32 << 10, common: 512 << 20 };
/// Bytes beyond holes in all streams together, raw packets included: a segment of
/// an Ethernet frame for each connection, and 64 MiB more.
pub const ASIDE: Share = Share { each: 4 << 10, common: 64 << 20 };

/// Bytes of output from before a join that all connections together keep; a connection of
/// which more came is not carried over before its client has acknowledged that.
pub const EARLIER_BYTES_MAX: usize = 64 << 20;

/// Memory for many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes that each connection may always have.
    pub each: usize,
    /// Bytes for what connections have above that.
    pub common: usize,
}

/// Every bound on what a backup holds. Tests and the simulator set them tiny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub stream_bytes_max: usize,
    pub beyond_pieces_max: usize,
    pub beyond_bytes_max: usize,
    pub raws_bytes_max: usize,
    /// Of all streams: what is held, wherever it lies.
    pub held: Share,
    /// Of all streams: what lies beyond a hole.
    pub aside: Share,
    /// Connections that are known; a record more is not confirmed.
    pub conns_max: usize,
    /// See [`EARLIER_BYTES_MAX`].
    pub earlier_bytes_max: usize,
    /// See [`ACCEPTS_MAX`], and so on.
    pub accepts_max: usize,
    pub syns_max: usize,
    pub early_bytes_max: usize,
    pub frames_queued_max: usize,
    pub unread_asked_max: usize,
    pub late_syns_max: usize,
    pub late_bytes_max: usize,
}

impl Limits {
    /// The limits that a daemon has.
    pub const DEFAULT: Self = Self {
        stream_bytes_max: STREAM_BYTES_MAX,
        beyond_pieces_max: BEYOND_PIECES_MAX,
        beyond_bytes_max: BEYOND_BYTES_MAX,
        raws_bytes_max: RAWS_BYTES_MAX,
        held: HELD,
        aside: ASIDE,
        conns_max: CONNS_MAX,
        earlier_bytes_max: EARLIER_BYTES_MAX,
        accepts_max: ACCEPTS_MAX,
        syns_max: SYNS_MAX,
        early_bytes_max: EARLY_BYTES_MAX,
        frames_queued_max: FRAMES_QUEUED_MAX,
        unread_asked_max: UNREAD_ASKED_MAX,
        late_syns_max: LATE_SYNS_MAX,
        late_bytes_max: LATE_BYTES_MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Every bound on what a primary holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimaryLimits {
    /// Connections that are known; the SYN-ACK of one more is dropped.
    pub conns_max: usize,
    /// See [`FRAMES_UNCONFIRMED_MAX`] and [`FRAME_BYTES_MAX`].
    pub frames_unconfirmed_max: usize,
    pub frame_bytes_max: usize,
}

impl PrimaryLimits {
    /// The limits that a daemon has.
    pub const DEFAULT: Self = Self {
        conns_max: CONNS_MAX,
        frames_unconfirmed_max: FRAMES_UNCONFIRMED_MAX,
        frame_bytes_max: FRAME_BYTES_MAX,
    };
}

/// How much of a [`Share`] is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    share: Share,
    /// Of the common part.
    used: usize,
}

impl Pool {
    pub(crate) fn new(share: Share) -> Self {
        Self { share, used: 0 }
    }

    /// May a connection that has `has` bytes have `more`?
    pub(crate) fn has_room(&self, has: usize, more: usize) -> bool {
        let more_common = self.above(has + more) - self.above(has);
        more_common == 0 || self.used + more_common <= self.share.common
    }

    /// A connection that had `before` bytes has `after` now.
    pub(crate) fn note(&mut self, before: usize, after: usize) {
        let (took, gave) = (self.above(after), self.above(before));
        assert!(self.used + took >= gave, "L6: a connection gives back what it never took");
        self.used = self.used + took - gave;
    }

    fn above(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.share.each)
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}
