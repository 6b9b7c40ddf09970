//! Frames on the wire. A cell's frame has a check over its header only, as in
//! ATM: the payload is checked as part of its segment. All other frames are
//! checked whole.
//!
//! ```text
//! every frame   kind 1 | … | check 4
//! SYN           own tag 4 | cells 2 | cell bytes 2 | window 1 | dispersal 1
//! SYN-ACK       to 4 | as SYN
//! CELL          cells - 1  1 | row 1 | attempt 1 | last 1 | to 4 | segment 4 | order 4 | check 4 | payload
//! ACK           to 4 | seen 4 | received 4 | next 4 | limit 4 | held us 4 | count 1 | count × (offset 1, pending 1, attempt 1)
//! PING          to 4
//! RESET         tag 4 | reflected 1
//! ```

use crate::{CELL_LEN_MAX, CELLS_MAX, SEGMENT_LEN_MAX, WINDOW_SEGMENTS_MAX};
use holdfast_code::Dispersal;

const KIND_SYN: u8 = 1;
const KIND_SYN_ACK: u8 = 2;
const KIND_CELL: u8 = 3;
const KIND_ACK: u8 = 4;
const KIND_PING: u8 = 5;
const KIND_RESET: u8 = 6;
const CHECK_LEN: usize = 4;
/// Bytes of a cell's frame before its payload.
const CELL_HEADER_LEN: usize = 21;

/// How one direction cuts its stream: the code's m and the length of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Cells of a full segment; the last segment of a stream may have fewer.
    pub cells: usize,
    /// Bytes of a cell.
    pub cell_len: usize,
}

impl Shape {
    /// Whether it is within [`CELLS_MAX`], [`CELL_LEN_MAX`] and
    /// [`SEGMENT_LEN_MAX`], with room for data.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let len = self.cells.saturating_mul(self.cell_len);
        (1..=CELLS_MAX).contains(&self.cells)
            && (1..=CELL_LEN_MAX).contains(&self.cell_len)
            && (crate::segment::OVERHEAD + 1..=SEGMENT_LEN_MAX).contains(&len)
    }
}

/// What an end says about itself at the start (TCP Boston §2.2: "the value of
/// m").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Tag that frames for this end must carry.
    pub tag: u32,
    /// How this end will cut what it sends.
    pub shape: Shape,
    /// How this end will code it.
    pub dispersal: Dispersal,
    /// Most segments that this end takes beyond those that it has delivered.
    pub window: usize,
}

/// One coded cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of cells of this segment.
    pub cells: usize,
    /// Row of the code.
    pub row: u8,
    /// How often this segment was spoilt by corrupt cells before.
    pub attempt: u8,
    /// Whether this is the last cell of a burst: answer at once.
    pub is_last: bool,
    /// Number of the segment, modulo 2^32.
    pub segment: u32,
    /// Number of the cell in order of sending, modulo 2^32.
    pub order: u32,
    pub payload: Vec<u8>,
}

/// The state of one segment at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckEntry {
    /// Number of the segment, counted from the acknowledgement's `next` on.
    pub offset: u8,
    /// Number of different cells that are still needed: *Pending*. 0: it is
    /// complete.
    pub pending: u8,
    /// The attempt that these cells must belong to.
    pub attempt: u8,
}

/// An acknowledgement. Numbers are modulo 2^32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The highest order that came, plus 1.
    pub seen: u32,
    /// How many different cells came.
    pub received: u32,
    /// Number of the first segment that is not complete.
    pub next: u32,
    /// Number of the first segment that would not be taken.
    pub limit: u32,
    /// Time for which the cell of the order `seen` - 1 waited for this answer,
    /// in us.
    pub held_us: u32,
    /// Segments from `next` on with cells that came. All cells of the others
    /// are pending, in the first attempt.
    pub entries: Vec<AckEntry>,
}

/// A frame. `to` is the tag of the end that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Syn(Opening),
    SynAck {
        to: u32,
        opening: Opening,
    },
    Cell {
        to: u32,
        cell: Cell,
    },
    Ack {
        to: u32,
        ack: Ack,
    },
    /// Asks for an acknowledgement.
    Ping {
        to: u32,
    },
    /// The end is gone. With `is_reflected` the tag is that of the end which never
    /// existed or does not exist any more, as the answered frame named it.
    Reset {
        tag: u32,
        is_reflected: bool,
    },
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    #[error("the frame has too few or too many bytes for its kind")]
    Length,
    #[error("the frame's kind {0} is unknown: the peer speaks another version, or it is none")]
    Kind(u8),
    #[error("the frame's check is wrong: it was changed on its way")]
    Check,
    #[error("a number in the frame is out of its limits")]
    Limit,
}

impl Frame {
    /// The bytes of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Syn(opening) => {
                bytes.push(KIND_SYN);
                put_opening(&mut bytes, opening);
            }
            Self::SynAck { to, opening } => {
                bytes.push(KIND_SYN_ACK);
                bytes.extend(to.to_be_bytes());
                put_opening(&mut bytes, opening);
            }
            Self::Cell { to, cell } => return cell_to_bytes(*to, cell),
            Self::Ack { to, ack } => put_ack(&mut bytes, *to, ack),
            Self::Ping { to } => {
                bytes.push(KIND_PING);
                bytes.extend(to.to_be_bytes());
            }
            Self::Reset { tag, is_reflected } => {
                bytes.push(KIND_RESET);
                bytes.extend(tag.to_be_bytes());
                bytes.push(u8::from(*is_reflected));
            }
        }
        let check = crc32fast::hash(&bytes);
        bytes.extend(check.to_be_bytes());
        bytes
    }

    /// Reads a frame; its numbers are within the limits of this crate.
    ///
    /// # Errors
    /// If the bytes are no frame. Whatever they are, there is no panic.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let kind = *bytes.first().ok_or(ParseError::Length)?;
        if kind == KIND_CELL {
            return parse_cell(bytes);
        }
        let (body, check) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(ParseError::Length)?;
        if crc32fast::hash(body) != u32::from_be_bytes(*check) {
            return Err(ParseError::Check);
        }
        let mut fields = Fields(body.get(1..).ok_or(ParseError::Length)?);
        let frame = match kind {
            KIND_SYN => Self::Syn(fields.opening()?),
            KIND_SYN_ACK => Self::SynAck { to: fields.u32()?, opening: fields.opening()? },
            KIND_ACK => Self::Ack { to: fields.u32()?, ack: fields.ack()? },
            KIND_PING => Self::Ping { to: fields.u32()? },
            KIND_RESET => Self::Reset { tag: fields.u32()?, is_reflected: fields.u8()? != 0 },
            _ => return Err(ParseError::Kind(kind)),
        };
        if fields.0.is_empty() { Ok(frame) } else { Err(ParseError::Length) }
    }
}

fn put_opening(bytes: &mut Vec<u8>, opening: &Opening) {
    bytes.extend(opening.tag.to_be_bytes());
    bytes.extend((opening.shape.cells as u16).to_be_bytes());
    bytes.extend((opening.shape.cell_len as u16).to_be_bytes());
    bytes.extend([opening.window as u8, u8::from(opening.dispersal == Dispersal::Rabin)]);
}

fn put_ack(bytes: &mut Vec<u8>, to: u32, ack: &Ack) {
    bytes.push(KIND_ACK);
    for number in [to, ack.seen, ack.received, ack.next, ack.limit, ack.held_us] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.push(ack.entries.len() as u8);
    for entry in &ack.entries {
        bytes.extend([entry.offset, entry.pending, entry.attempt]);
    }
}

fn cell_to_bytes(to: u32, cell: &Cell) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CELL_HEADER_LEN + cell.payload.len());
    let cells = cell.cells.saturating_sub(1) as u8;
    bytes.extend([KIND_CELL, cells, cell.row, cell.attempt, u8::from(cell.is_last)]);
    for number in [to, cell.segment, cell.order] {
        bytes.extend(number.to_be_bytes());
    }
    let check = crc32fast::hash(&bytes);
    bytes.extend(check.to_be_bytes());
    bytes.extend(&cell.payload);
    bytes
}

fn parse_cell(bytes: &[u8]) -> Result<Frame, ParseError> {
    let (header, payload) = bytes.split_at_checked(CELL_HEADER_LEN).ok_or(ParseError::Length)?;
    let (header, check) = header.split_last_chunk::<CHECK_LEN>().ok_or(ParseError::Length)?;
    if crc32fast::hash(header) != u32::from_be_bytes(*check) {
        return Err(ParseError::Check);
    }
    let mut fields = Fields(&header[1..]);
    let cells = usize::from(fields.u8()?) + 1;
    let (row, attempt, is_last) = (fields.u8()?, fields.u8()?, fields.u8()? != 0);
    let (to, segment, order) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if cells > CELLS_MAX || !(1..=CELL_LEN_MAX).contains(&payload.len()) {
        return Err(ParseError::Limit);
    }
    let payload = payload.to_vec();
    Ok(Frame::Cell { to, cell: Cell { cells, row, attempt, is_last, segment, order, payload } })
}

/// The bytes that are left to read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(ParseError::Length)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, ParseError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_be_bytes)
    }

    fn opening(&mut self) -> Result<Opening, ParseError> {
        let tag = self.u32()?;
        let shape = Shape { cells: usize::from(self.u16()?), cell_len: usize::from(self.u16()?) };
        let window = usize::from(self.u8()?);
        let dispersal = match self.u8()? {
            0 => Dispersal::Systematic,
            1 => Dispersal::Rabin,
            _ => return Err(ParseError::Limit),
        };
        if !shape.is_possible() || !(1..=WINDOW_SEGMENTS_MAX).contains(&window) {
            return Err(ParseError::Limit);
        }
        Ok(Opening { tag, shape, dispersal, window })
    }

    fn ack(&mut self) -> Result<Ack, ParseError> {
        let (seen, received, next) = (self.u32()?, self.u32()?, self.u32()?);
        let (limit, held_us, count) = (self.u32()?, self.u32()?, self.u8()?);
        if usize::from(count) > WINDOW_SEGMENTS_MAX {
            return Err(ParseError::Limit);
        }
        let mut entries = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let [offset, pending, attempt] = self.array()?;
            entries.push(AckEntry { offset, pending, attempt });
        }
        Ok(Ack { seen, received, next, limit, held_us, entries })
    }
}

/// The number closest to `near` whose lowest 32 bits are `low`.
pub(crate) fn expand(low: u32, near: u64) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests;
