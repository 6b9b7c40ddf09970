//! TCP Boston (Bestavros and Kim, RTAS 1997): a reliable byte stream whose
//! segments are coded cells, so that a lost cell costs a cell and not a
//! segment.
//!
//! One [`Endpoint`] is one end of one connection. It reads no clock and no socket
//! (law L7): frames, time and a seed come in as arguments, frames and deadlines
//! go out through [`Endpoint::poll`].
//!
//! The paper leaves open what is needed to make a protocol of it; this is how
//! the gaps are filled:
//!
//! * AAL5 cells carry no number, and *Pending* is a count, which does not say what
//!   is missing. So every cell names its segment and its row of the code, and a
//!   repair is made of rows that were not sent yet: any row helps.
//! * Cells are also numbered in the order of sending, repairs included. A receiver
//!   says how far it has seen and how many it has got; the sender then knows what
//!   is lost, what is on its way, and how long a round trip takes, without guessing
//!   (TCP Boston §2.2's success rate and round trip time).
//! * A cell that decoding made good for was lost all the same, and the window
//!   shrinks for it; repairs count against the window (RFC 9265, recommendation 1).
//! * A check of 32 bits lies inside the coded data. When it fails, some cell was
//!   corrupt: all cells are thrown away and asked for again, as the next *attempt*,
//!   so that late cells of the spoilt one are not mixed in.
//! * An end is identified by a number that it drew at its start. An end that died
//!   and came back has another one; frames for the earlier one are answered with a
//!   reset.
//!
//! Nothing here is secret or authenticated: on an open network every frame belongs
//! in an authenticated datagram.
#![forbid(unsafe_code)]

mod endpoint;
mod flow;
mod frame;
mod receiver;
mod redundancy;
mod rtt;
mod segment;
mod sender;

pub use endpoint::{Config, ConfigError, Endpoint, Event, Failure, Poll};
pub use flow::FlowControl;
pub use frame::{Ack, AckEntry, Cell, Frame, Opening, ParseError, Shape};
pub use holdfast_wire::time::Nanos;
pub use redundancy::Redundancy;
pub use sender::Counters;

/// Most segments that may be under way at once.
pub const WINDOW_SEGMENTS_MAX: usize = 64;
/// Longest segment, in bytes, with what is coded along with its data.
pub const SEGMENT_LEN_MAX: usize = 1 << 16;
/// Most cells of a segment: 64 rows are left for repairs before any row has to
/// be sent twice.
pub const CELLS_MAX: usize = 192;
/// Longest cell, in bytes: one datagram.
pub const CELL_LEN_MAX: usize = 1400;
/// Most bytes that were written and are not yet in a segment.
pub const SEND_BUFFER_MAX: usize = 256 << 10;

/// The example in the read-me is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
