//! Log records: what each intercepted call did on the primary.
//!
//! A record is a fixed little-endian header and a payload, padded to 8 bytes.
//! The shim of the primary appends records to shared memory; the daemon sends
//! them on, *without* the payload of tapped reads (the backup has those bytes
//! from the edge's copies); the backup puts the payload back before the replica
//! sees the record.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the record format; peers with another version are refused.
pub const LOG_VERSION: u32 = 3;

/// Alignment of records in the log, in bytes.
pub const ALIGN: usize = 8;

/// Largest payload of one record; longer reads are cut short by the shim.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// No log has a position like this, in bytes, or a later one: sums of two cannot overflow.
pub const POSITION_MAX: u64 = 1 << 62;

/// `conn` of a record that belongs to no protected connection.
pub const NO_CONN: u32 = 0;

/// Header of one record; see the field comments for units.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// Bytes of payload that follow, without padding.
    pub payload_len: u32,
    /// What was called: an [`Op`] as a number.
    pub op: u8,
    /// Bits: [`TAPPED`] | [`PEEKED`] | [`LAZY`] | [`BY_FILE`] | [`LATER`].
    pub flags: u8,
    /// Thread that made the call, numbered in order of creation; the main
    /// thread is 0.
    pub tid: u16,
    /// Descriptor (or another small argument that both members must agree on).
    pub fd: i32,
    /// Accept number of the protected connection, from 1; [`NO_CONN`] for none.
    pub conn: u32,
    /// What the kernel answered: a count, a descriptor, or `-errno`.
    pub ret: i64,
    /// Keyed hash of the bytes read or of the whole buffer written.
    pub hash: u64,
}

impl Header {
    /// Bytes that the record takes in the log.
    #[must_use]
    pub const fn len_in_log(&self) -> usize {
        record_len(self.payload_len as usize)
    }

    /// Bytes of the record that are sent: of a tapped one, the header alone.
    #[must_use]
    pub const fn len_sent(&self) -> usize {
        if self.flags & TAPPED != 0 { HEADER_LEN } else { self.len_in_log() }
    }
}

/// Size of [`Header`] in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();

/// The payload is `ret` bytes of the client's stream; it is not sent.
pub const TAPPED: u8 = 1;
/// A read that left the bytes in the socket (`MSG_PEEK`).
pub const PEEKED: u8 = 2;
/// A result that no output depends on yet: it need not be confirmed first.
pub const LAZY: u8 = 4;
/// An intent to send a part of a file: `hash` is of the parts of the file in which it lies, and the
/// payload is the file's size, a little-endian u64 (decision 36).
pub const BY_FILE: u8 = 8;
/// An intent to write more than a socket may take: it has no hash. The hash is in the result's
/// record, of what the kernel has taken (decision 36).
pub const LATER: u8 = 16;

/// Bytes that a record with this payload takes in the log.
#[must_use]
pub const fn record_len(payload_len: usize) -> usize {
    (HEADER_LEN + payload_len).next_multiple_of(ALIGN)
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The calls that have records. The number is part of the format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name),+ }
        impl Op {
            const ALL: &'static [Op] = &[$(Op::$name),+];
            /// The record's operation, if this version knows it.
            #[must_use]
            pub fn from_u8(n: u8) -> Option<Op> { Self::ALL.get(n as usize).copied() }
            /// Name for messages and traces.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name)),+ }
            }
        }
    };
}

ops! {
    /// Filler up to the end of the ring, skipped by readers.
    Pad,
    /// A descriptor came into being: `ret` is its number; payload is the hash of
    /// the file's content, if members compare it.
    NewFd,
    /// Two descriptors (pipe, socketpair): payload is `[i32; 2]`.
    NewPair,
    /// `fd` is the listener, `ret` the new descriptor, `conn` its accept number;
    /// payload is an [`AcceptInfo`].
    Accept,
    /// A call whose outcome is just `ret`.
    Result,
    /// `ret` plus an out-parameter in the payload, or the hash of a module's file.
    Data,
    /// Bytes read; payload is the bytes.
    Read,
    /// Bytes read together with something else (recvmsg, recvfrom): the payload
    /// is opaque.
    ReadMsg,
    /// The intent to write: `hash` and `ret` (length) of the whole buffer.
    Intent,
    /// The outcome of the last intent on `fd`.
    Written,
    /// The server ends its sending side or the whole connection.
    Close,
    /// Like `Close`, by `shutdown`: `ret` is how (0 read, 1 write, 2 both).
    Shutdown,
    /// A signal handler ran here: `ret` is the signal.
    Signal,
    /// A clock reading: `fd` is the clock id, `ret` nanoseconds, `hash` the call; the
    /// payload holds the [`Reading`]s that follow it, packed without gaps.
    Clock,
    /// A lock acquired (mutex, rwlock, semaphore, condition): `ret` is the result.
    /// With several threads, also the place where one begins to sleep.
    Lock,
    /// A thread was created; `ret` is its number.
    Thread,
    /// A process was forked; `ret` is its pid. In a family `fd` is the number of its first
    /// thread, and `conn` its place among the processes.
    Fork,
    /// The process exits with `ret`.
    Exit,
    /// A process of the family has ended without an [`Op::Exit`]; `fd` is its place. The
    /// connections that ended with it follow, as [`Op::Close`] with `fd` -1.
    Death,
}

/// One more reading of a clock within an [`Op::Clock`] record: servers read
/// clocks several times for each request, so a reading takes eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The clock call, as in the record's `hash`.
    pub call: u16,
    /// The clock's id.
    pub clock: u8,
    /// Nanoseconds since the last reading of the same clock id in the log.
    pub delta_ns: i64,
}

impl Reading {
    const DELTA_SHIFT: u32 = 24;

    /// `None` if the distance does not fit into 40 bits (9 minutes).
    #[must_use]
    pub const fn pack(self) -> Option<u64> {
        let delta = self.delta_ns << Self::DELTA_SHIFT;
        if delta >> Self::DELTA_SHIFT != self.delta_ns {
            return None;
        }
        Some(delta as u64 | ((self.clock as u64) << 16) | self.call as u64)
    }

    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self {
            call: word as u16,
            clock: (word >> 16) as u8,
            delta_ns: word as i64 >> Self::DELTA_SHIFT,
        }
    }
}

/// Payload of [`Op::Accept`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct AcceptInfo {
    /// Server side and client side addresses, IPv4 mapped into IPv6.
    pub local: [u8; 16],
    pub peer: [u8; 16],
    /// Ports in host order.
    pub local_port: u16,
    pub peer_port: u16,
    /// Bytes of `sockaddr` that the kernel returned (0 if the caller asked for none).
    pub addr_len: u32,
    /// The socket's cookie (SO_COOKIE) when it comes from the shim; the gate
    /// knows it too. The primary's daemon replaces it by the gate's connection
    /// id, or 0.
    pub conn_id: u64,
    /// The `sockaddr` that the caller got.
    pub addr: [u8; 32],
}

/// Why a log could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// The bytes end inside a record.
    Truncated,
    /// `payload_len` exceeds [`PAYLOAD_MAX`].
    TooLong(u32),
    /// An operation this version does not know.
    UnknownOp(u8),
}

impl core::fmt::Display for LogError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => write!(f, "log ends inside a record"),
            Self::TooLong(n) => write!(f, "record payload of {n} bytes exceeds {PAYLOAD_MAX}"),
            Self::UnknownOp(n) => {
                write!(f, "record operation {n} is not of log version {LOG_VERSION}")
            }
        }
    }
}

impl core::error::Error for LogError {}

/// Reads the header at the start of `bytes`, checked.
///
/// # Errors
/// If the header is cut off, too long, or of an unknown operation.
pub fn read_header(bytes: &[u8]) -> Result<(Header, Op), LogError> {
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| LogError::Truncated)?;
    if header.payload_len as usize > PAYLOAD_MAX {
        return Err(LogError::TooLong(header.payload_len));
    }
    let op = Op::from_u8(header.op).ok_or(LogError::UnknownOp(header.op))?;
    Ok((header, op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reading_is_what_was_packed(call: u16, clock: u8, delta_ns in -(1i64 << 39)..1 << 39) {
            let reading = Reading { call, clock, delta_ns };
            prop_assert_eq!(reading.pack().map(Reading::unpack), Some(reading));
        }

        #[test]
        fn a_long_distance_is_not_packed(delta_ns in 1i64 << 39..) {
            let reading = Reading { call: 1, clock: 1, delta_ns };
            prop_assert_eq!(reading.pack(), None);
            prop_assert_eq!(Reading { delta_ns: -delta_ns - 1, ..reading }.pack(), None);
        }
    }

    #[test]
    fn a_record_takes_its_header_and_payload_in_whole_words() {
        assert_eq!(HEADER_LEN, 32);
        assert_eq!([0, 1, 8, 9].map(record_len), [32, 40, 40, 48]);
    }

    #[test]
    fn a_header_is_refused_beyond_the_longest_payload() {
        let read = |payload_len: usize, op: Op| {
            let header =
                Header { payload_len: payload_len as u32, op: op as u8, ..Header::default() };
            read_header(header.as_bytes())
        };
        assert!(read(PAYLOAD_MAX, Op::Read).is_ok_and(|(_, op)| op == Op::Read));
        assert!(read(0, Op::Exit).is_ok());
        for beyond in [PAYLOAD_MAX + 1, PAYLOAD_MAX + 2] {
            assert_eq!(read(beyond, Op::Read), Err(LogError::TooLong(beyond as u32)));
        }
    }

    #[test]
    fn every_operation_is_found_by_its_number_and_has_its_name() {
        for (number, op) in Op::ALL.iter().enumerate() {
            assert_eq!(Op::from_u8(number as u8), Some(*op));
            assert_eq!((*op as usize, op.name()), (number, &format!("{op:?}")[..]));
        }
        assert_eq!(Op::from_u8(Op::ALL.len() as u8), None);
    }

    #[test]
    fn a_log_that_is_refused_says_why() {
        let beyond = Op::ALL.len() as u8;
        let header = Header { op: beyond, ..Header::default() };
        assert_eq!(read_header(header.as_bytes()), Err(LogError::UnknownOp(beyond)));
        let short = &header.as_bytes()[..HEADER_LEN - 1];
        assert_eq!(read_header(short), Err(LogError::Truncated));
        for (error, words) in [
            (LogError::Truncated, "inside a record"),
            (LogError::TooLong(77), "of 77 bytes"),
            (LogError::UnknownOp(200), "operation 200"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
