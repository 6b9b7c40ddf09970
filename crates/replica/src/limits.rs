//! How much the machines of a pair hold (law L6). A backup bounds clients' streams per
//! connection and in total; of the total, every connection keeps a share that no other
//! can use up. Refused bytes are not acknowledged: they come again, from the client or
//! from the primary.

use crate::CONNS_MAX;
use crate::backup::{ACCEPTS_MAX, EARLY_BYTES_MAX, FRAMES_QUEUED_MAX, SYNS_MAX, UNREAD_ASKED_MAX};
use crate::primary::{FRAME_BYTES_MAX, FRAMES_UNCONFIRMED_MAX};
use crate::promotion::{LATE_BYTES_MAX, LATE_SYNS_MAX};

/// Most bytes of one client held ahead of what the server has read. Segments
/// beyond it are refused.
pub const STREAM_BYTES_MAX: usize = 64 << 20;
/// Most pieces beyond a hole that one stream keeps, neighbours counted as one;
/// later ones are refused.
pub const BEYOND_PIECES_MAX: usize = 1024;
/// Most bytes beyond a hole that one stream keeps; later ones are refused.
pub const BEYOND_BYTES_MAX: usize = 8 << 20;
/// Most bytes of raw packets beyond a hole kept per connection for re-injection;
/// later ones are left to the client's retransmission.
pub const RAWS_BYTES_MAX: usize = 4 << 20;
/// Bytes that all streams together hold. The shares of [`CONNS_MAX`]
/// connections add 512 MiB.
pub const HELD: Share = Share { each: 32 << 10, common: 512 << 20 };
/// Bytes beyond holes in all streams together, raw packets included: one Ethernet
/// frame's segment for each connection, and 64 MiB more.
pub const ASIDE: Share = Share { each: 4 << 10, common: 64 << 20 };

/// Most bytes of output from before a join that all connections together keep; a
/// connection with more is not carried over before its client has acknowledged that
/// output.
pub const EARLIER_BYTES_MAX: usize = 64 << 20;

/// Memory shared by many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes that each connection may always have.
    pub each: usize,
    /// Bytes for what connections use above that.
    pub common: usize,
}

/// Every bound on what a backup holds. Tests and the simulator set them tiny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub stream_bytes_max: usize,
    pub beyond_pieces_max: usize,
    pub beyond_bytes_max: usize,
    pub raws_bytes_max: usize,
    /// Bounds for all streams together: what is held, wherever it lies.
    pub held: Share,
    /// Bounds for all streams together: what lies beyond a hole.
    pub aside: Share,
    /// Most connections that are known; one record more is not confirmed.
    pub conns_max: usize,
    /// See [`EARLIER_BYTES_MAX`].
    pub earlier_bytes_max: usize,
    /// See [`ACCEPTS_MAX`]; the others are named alike.
    pub accepts_max: usize,
    pub syns_max: usize,
    pub early_bytes_max: usize,
    pub frames_queued_max: usize,
    pub unread_asked_max: usize,
    pub late_syns_max: usize,
    pub late_bytes_max: usize,
}

impl Limits {
    /// The limits of a daemon.
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
    /// Most connections that are known; the SYN-ACK of one more is dropped.
    pub conns_max: usize,
    /// See [`FRAMES_UNCONFIRMED_MAX`] and [`FRAME_BYTES_MAX`].
    pub frames_unconfirmed_max: usize,
    pub frame_bytes_max: usize,
}

impl PrimaryLimits {
    /// The limits of a daemon.
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
    /// Bytes used of the common part.
    used: usize,
}

impl Pool {
    pub(crate) fn new(share: Share) -> Self {
        Self { share, used: 0 }
    }

    /// Whether a connection that has `has` bytes may have `more`.
    pub(crate) fn has_room(&self, has: usize, more: usize) -> bool {
        let more_common = self.above(has + more) - self.above(has);
        more_common == 0 || self.used + more_common <= self.share.common
    }

    /// Notes that a connection that had `before` bytes has `after` now.
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
