//! One end of a tunnel.

use crate::{Class, Config, Report};
use std::time::Duration;

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

/// A stream. The two ends never give the same number to two streams: those of the
/// one are even, those of the other odd.
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
    /// The peer reset it; it is gone.
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

/// One end of a tunnel, see the crate's documentation for the contract.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
}

impl Endpoint {
    /// An endpoint that knows nothing of the path. Values of `config` beyond what is possible
    /// count as the nearest possible ones. `seed` decides the order of equals, nothing secret.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Duration) -> Self {
        let _ = (seed, now);
        Self { config }
    }

    /// Takes an IP packet from the inside.
    ///
    /// # Errors
    /// If it is none, is too long, or the queue is full; it is dropped then.
    pub fn handle_packet(&mut self, packet: &[u8], now: Duration) -> Result<(), Refused> {
        let _ = (packet, now, &self.config);
        Ok(())
    }

    /// Takes an opaque datagram of the flow `flow` from the inside.
    ///
    /// # Errors
    /// If it is empty or too long, or the queue is full; it is dropped then.
    pub fn handle_message(
        &mut self,
        flow: u32,
        class: Class,
        message: &[u8],
        now: Duration,
    ) -> Result<(), Refused> {
        let _ = (flow, class, message, now);
        Ok(())
    }

    /// Takes the opened plaintext of a datagram with its 64-bit number, authenticated and not
    /// replayed, and the mark of its outer header.
    ///
    /// # Errors
    /// If it cannot be understood.
    pub fn handle_datagram(
        &mut self,
        number: u64,
        plaintext: &[u8],
        ecn: Ecn,
        now: Duration,
    ) -> Result<(), Malformed> {
        let _ = (number, plaintext, ecn, now);
        Ok(())
    }

    /// The next datagram to seal and send, if one is due: `out` is overwritten with its plaintext.
    pub fn poll_datagram(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Outgoing> {
        let _ = (now, out);
        None
    }

    /// The next thing for the inside.
    pub fn poll_inside(&mut self, now: Duration) -> Option<Inside> {
        let _ = now;
        None
    }

    /// When to poll again without input; `None` if only input can change anything.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        None
    }

    /// The path takes datagrams with this much plaintext from now on.
    pub fn set_datagram_bytes_max(&mut self, bytes: usize) {
        self.config.datagram_bytes_max = bytes;
    }

    /// Says goodbye: a last datagram with a CLOSE frame goes out, nothing is taken any more.
    pub fn close(&mut self) {}

    /// Whether the peer said goodbye.
    #[must_use]
    pub fn is_closed_by_peer(&self) -> bool {
        false
    }

    /// Opens a stream to the peer.
    ///
    /// # Errors
    /// If there are too many.
    pub fn stream_open(&mut self, class: Class, now: Duration) -> Result<StreamId, StreamError> {
        let _ = (class, now);
        Err(StreamError::TooMany(0))
    }

    /// Appends to a stream; the number of bytes that were taken, which may be 0: then
    /// [`StreamEvent::Writable`] follows when there is room.
    ///
    /// # Errors
    /// If there is no such stream, or it was finished.
    pub fn stream_write(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        now: Duration,
    ) -> Result<usize, StreamError> {
        let _ = (bytes, now);
        Err(StreamError::Unknown(id.0))
    }

    /// Says that no more bytes follow (FIN).
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_finish(&mut self, id: StreamId, now: Duration) -> Result<(), StreamError> {
        let _ = now;
        Err(StreamError::Unknown(id.0))
    }

    /// Forgets a stream at both ends (RST); its bytes are lost.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_reset(&mut self, id: StreamId, now: Duration) -> Result<(), StreamError> {
        let _ = now;
        Err(StreamError::Unknown(id.0))
    }

    /// Moves at most `bytes_max` bytes of a stream behind those of `out`. `Some(n)`: n bytes,
    /// where 0 means that there are none yet; `None`: the stream's end.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_read(
        &mut self,
        id: StreamId,
        out: &mut Vec<u8>,
        bytes_max: usize,
        now: Duration,
    ) -> Result<Option<usize>, StreamError> {
        let _ = (out, bytes_max, now);
        Err(StreamError::Unknown(id.0))
    }

    /// State, for people and for programs.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::default()
    }
}
