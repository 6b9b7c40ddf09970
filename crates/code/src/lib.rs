//! AIDA, the adaptive information dispersal of TCP Boston §2.1: a segment of `m`
//! cells becomes up to 256 cells, **any** `m` of which give the segment back.
//!
//! ```
//! use holdfast_code::{Code, Decoder, Progress};
//!
//! let code = Code::new(30, 48)?; // 30 cells of 48 bytes
//! let segment = [7; 30 * 48];
//! let mut extra = [0; 3 * 48];
//! code.encode(&segment, &[30, 31, 32], &mut extra)?; // any rows, whenever they are needed
//! let mut decoder = Decoder::new(code);
//! let sent = (0..30).zip(segment.chunks(48)).chain((30..33).zip(extra.chunks(48)));
//! for (row, cell) in sent.filter(|(row, _)| ![2, 3, 29].contains(row)) {
//!     decoder.insert(row, cell)?; // in any order, with duplicates
//! }
//! assert_eq!(decoder.progress(), Progress::Complete);
//! assert_eq!(decoder.segment(), Some(&segment[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * A cell is named by its *row*, 0 to 255. In a systematic code the rows below
//!   `m` are the cells of the segment themselves. A retransmission is a row that
//!   was not sent before; so `m` + redundancy ≤ 256.
//! * Cells have 1 byte to 64 KiB and need no alignment. Encoding and decoding
//!   allocate nothing; a [`Decoder`] allocates once, when it is made.
//! * The work is done by the fastest [`Kernel`] that the processor has; all of
//!   them give the same bytes. The rows of the systematic code are those of
//!   ISA-L's `gf_gen_cauchy1_matrix`.
//! * Nothing here is secret: dispersal is not encryption, and a forged cell
//!   spoils a segment. Cells must be authenticated, or the segment checked.
//!
//! [`planner`] says how much redundancy buys which delay.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod code;
mod decoder;
mod field;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod inverse;
mod kernel;
mod single;

pub mod planner;

pub use code::{
    CELL_LEN_MAX, Code, CodeError, DecodeError, Dispersal, EncodeError, KEPT_MAX, ROWS,
};
pub use decoder::{Decoder, InsertError, Progress};
pub use kernel::Kernel;
pub use single::{product, quotient};

/// The example of the README is run as a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
