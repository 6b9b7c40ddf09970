//! What an endpoint takes and gives.

/// Congestion marks of an IP header (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not know about marks.
    #[default]
    NotCapable,
    /// Capable, code point 0.
    Capable0,
    /// Capable, code point 1.
    Capable1,
    /// Congestion experienced.
    Congested,
}

impl Ecn {
    /// From the low two bits of the traffic class.
    #[must_use]
    pub fn of_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Congested,
        }
    }

    /// The low two bits of the traffic class.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::NotCapable => 0,
            Self::Capable1 => 1,
            Self::Capable0 => 2,
            Self::Congested => 3,
        }
    }
}

/// A datagram to seal and send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its number: 0, 1, 2, … without gaps; the nonce.
    pub number: u64,
    /// The mark for its outer IP header.
    pub ecn: Ecn,
}

/// A stream, by the number that it has at this end: even if it was opened here, odd
/// if the peer opened it. The other end has the other number of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What happened to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The peer opened it.
    Opened,
    /// There are bytes to read, or the end of them.
    Readable,
    /// There is room for writing again.
    Writable,
    /// It is gone: the peer reset it, or bytes of it were lost for good.
    Reset,
}

/// Something for the inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inside {
    /// An IP packet.
    Packet(Vec<u8>),
    /// An opaque datagram.
    Message {
        /// The number that the peer gave to its flow.
        flow: u32,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// News of a stream.
    Stream(StreamId, StreamEvent),
    /// The path has taken a probe of [`crate::Endpoint::probe_path`] with so many bytes.
    PathTakes(usize),
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is no IPv4 or IPv6 packet, or its header contradicts its length.
    #[error("{0} bytes that are no IP packet: only IPv4 and IPv6 are carried")]
    NotIp(usize),
    /// It is empty or longer than the inner MTU.
    #[error("a packet of {bytes} bytes, between 1 and {max} can be carried: lower the MTU")]
    Length {
        /// Its length.
        bytes: usize,
        /// The longest possible.
        max: usize,
    },
    /// The queue is full.
    #[error("the queue is full: {0} bytes wait")]
    Full(usize),
    /// The tunnel was closed.
    #[error("the tunnel is closed")]
    Closed,
}

/// Why a datagram was not understood; what came before the fault in it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It ends within a frame, or a frame contradicts itself.
    #[error("a malformed frame at byte {0}: the peer speaks another version or is broken")]
    Frame(usize),
    /// A number that no datagram has.
    #[error("datagram {0}: no tunnel lasts that long")]
    Number(u64),
    /// An acknowledgement of what was never sent.
    #[error("an acknowledgement of datagram {0}, which was never sent")]
    AckOfUnsent(u64),
}

/// Why nothing was done with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is none of that number, or no longer.
    #[error("there is no stream {0}")]
    Unknown(u64),
    /// As many are open as the limits allow.
    #[error("{0} streams are open: that is the limit")]
    TooMany(usize),
    /// Its end was already written.
    #[error("stream {0} was finished: nothing can follow")]
    Finished(u64),
}
