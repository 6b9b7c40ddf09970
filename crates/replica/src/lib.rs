//! The machines of a replica pair: what the daemon of the primary and the
//! daemon of the backup decide, packet by packet and record by record.
//!
//! Nothing here reads a clock, a socket, a thread or the environment. Inputs
//! come in through `handle_*(now, input, out)`, effects leave through the
//! `out` argument before the call returns, and `next_deadline()` says when
//! `handle_timeout(now, out)` is due. The same input always has the same effect.
#![forbid(unsafe_code)]

pub mod backup;
mod earlier;
mod lag;
pub mod limits;
pub mod primary;
pub mod promotion;
mod segment;
mod stream;
mod tap;

pub use holdfast_wire::time::Nanos;
pub use lag::{LAG_MAX, Lag};
pub use stream::{Inserted, Stream};
pub use tap::{ACK_SLACK_BYTES, Verdict};

use holdfast_wire::message::ConnId;

/// Most connections that a pair can know at a time; the bound is the shared
/// table's.
pub const CONNS_MAX: usize = holdfast_wire::shm::CONNS_MAX;

/// Why protection ended: a member can no longer follow or be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the log cannot be parsed: {0}")]
    Log(#[from] holdfast_wire::log::LogError),
    #[error("the log continues at byte {got}, expected {expected}")]
    LogGap { expected: u64, got: u64 },
    #[error("the log can no longer be read back at byte {pos}")]
    LogLost { pos: u64 },
    #[error("a tapped read returned {ret} but carries {payload_len} bytes of payload")]
    TappedLength { ret: i64, payload_len: u32 },
    #[error("the record of accept number {accept} carries no address")]
    AcceptInfo { accept: u32 },
    #[error("accept number {accept} was bound before")]
    AcceptTwice { accept: u32 },
    #[error("accept number {accept} names a connection that was never announced")]
    AcceptUnknown { accept: u32 },
    #[error("connection {conn:?} was taken up before")]
    AdoptedTwice { conn: ConnId },
    #[error(
        "the primary says of a connection what cannot be ({conn:?}: {read} bytes read, {written} \
         written, {acked} acknowledged)"
    )]
    AdoptedWrong { conn: Option<ConnId>, read: u64, written: u64, acked: u64 },
    #[error("more than {max} connections are to be taken up")]
    AdoptedFull { max: usize },
    #[error("more than {max} accepted connections are open")]
    AcceptsFull { max: usize },
    #[error("frame {got} arrived, expected {expected}")]
    FrameGap { expected: u64, got: u64 },
    #[error("frames waiting for the tap exceed {max} bytes")]
    FramesFull { max: usize },
    #[error(
        "the server writes to a client by a way that its shim does not see: dprintf, a stream made \
         with fdopen, or a system call of its own ({conn:?}: {sent} bytes left, {known} are known); \
         it must use write or send"
    )]
    Unlogged { conn: ConnId, sent: u64, known: u64 },
    #[error("the payload of frame {frame} record {index} does not have the recorded hash")]
    PayloadHash { frame: u64, index: u32 },
}
