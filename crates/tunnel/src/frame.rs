//! The frames inside a datagram's plaintext.
//!
//! ```text
//! frame   = kind 1 | fields | body
//! kind    = what, 4 bits | LAST, 1 bit | PATIENT, 1 bit | lane, 2 bits
//! DATA    = seq 3 | [length varint] | symbol
//! RIDER   = seq 3 | length varint | symbol           (an earlier symbol once more)
//! REPAIR  = first 3 | count 1 | row 1 | [length varint] | coded bytes
//! ACK     = flags 1 | highest 3 | unsettled varint | held varint | [loss] | [marks] | [bytes 4] | lanes
//!   loss  = settled 3 | lost 3 | runs 3 | burst varint
//!   marks = capable 3 | congested 3
//!   lane  = cumulative 3 | rows 1 | bitmap length 1 | bitmap
//! FLOOR   = seq 3                                    (older symbols are not sent any more)
//! PING    = token 4                                  (asks for an echo at once)
//! ECHO    = token 4
//! PROBE   = anything to the end of the datagram
//! CLOSE   =
//! ```
//!
//! A body whose LAST bit is set extends to the end of the datagram and has no length. Numbers are
//! big-endian and truncated; the receiver completes them with what it knows (RFC 9000 §A.3). The
//! parser is total: any bytes give frames or an error.

use crate::wire::{Reader, put_u24, put_varint};

/// Most bytes of an acknowledgement's bitmap: 2,040 symbols beyond the cumulative one. Nothing is said
/// of later ones.
pub(crate) const BITMAP_BYTES_MAX: usize = 255;
/// Most symbols that one repair covers: half of the field's elements name rows, the other half
/// columns.
pub(crate) const REPAIR_COUNT_MAX: usize = 128;
/// The first row that is not a column.
pub(crate) const ROW_MIN: u8 = 128;
/// Lanes: one per class.
pub(crate) const LANES: usize = 3;

/// Bytes of a DATA frame around its symbol when it is the last frame.
pub(crate) const DATA_BYTES: usize = 4;
/// Bytes of a REPAIR frame around its coded bytes when it is the last frame.
pub(crate) const REPAIR_BYTES: usize = 6;
/// Bytes that precede a symbol's own in coded bytes: its length.
pub(crate) const CODED_LENGTH_BYTES: usize = 2;

const DATA: u8 = 1;
const RIDER: u8 = 2;
const REPAIR: u8 = 3;
const ACK: u8 = 4;
const FLOOR: u8 = 5;
const PROBE: u8 = 6;
const PING: u8 = 7;
const CLOSE: u8 = 8;
const ECHO: u8 = 9;

const LAST: u8 = 0x08;
const PATIENT: u8 = 0x04;
const LANE_MASK: u8 = 0x03;
const KIND_SHIFT: u32 = 4;

const ACK_LOSS: u8 = 0x08;
const ACK_BYTES: u8 = 0x10;
const ACK_MARKS: u8 = 0x20;
const ACK_LANES: u8 = 0x07;

/// A frame whose bodies lie in the datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Data { lane: usize, patient: bool, seq: u32, symbol: &'a [u8] },
    Rider { lane: usize, seq: u32, symbol: &'a [u8] },
    Repair { lane: usize, patient: bool, first: u32, count: u8, row: u8, coded: &'a [u8] },
    Ack(Ack<'a>),
    Floor { lane: usize, seq: u32 },
    Probe,
    Ping { token: u32 },
    Echo { token: u32 },
    Close,
}

/// What an end has seen of the other's datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ack<'a> {
    /// The highest number seen, truncated to 24 bits.
    pub highest: u32,
    /// How many numbers below it may still come.
    pub unsettled: u64,
    /// For how long the datagram with the highest number was held, in units of 100 µs.
    pub held_100us: u64,
    pub loss: Option<LossCounts>,
    pub marks: Option<MarkCounts>,
    /// Bytes of plaintext received, truncated to 32 bits.
    pub bytes: Option<u32>,
    pub lanes: [Option<LaneAck<'a>>; LANES],
}

/// Cumulative counts of datagrams whose fate is decided, truncated to 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LossCounts {
    pub settled: u32,
    pub lost: u32,
    /// Runs of lost ones.
    pub runs: u32,
    /// Mean time that a run of more than one covers, in units of 100 µs.
    pub burst_100us: u64,
}

/// Cumulative counts of datagrams that came with a mark of ECN, and of those of them that had met
/// congestion, truncated to 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MarkCounts {
    pub capable: u32,
    pub congested: u32,
}

/// What is known of one lane's symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneAck<'a> {
    /// All symbols before this one are known or given up.
    pub cumulative: u32,
    /// Independent rows that wait for others: so many symbols fewer are needed.
    pub rows: u8,
    /// Bit i, from the lowest of the first byte on: symbol cumulative + 1 + i is known.
    pub bitmap: &'a [u8],
}

/// Where the datagram cannot be understood, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub usize);

/// The frames of a datagram; ends behind the first fault.
pub(crate) struct Frames<'a> {
    reader: Reader<'a>,
    len: usize,
}

impl<'a> Frames<'a> {
    pub fn new(plaintext: &'a [u8]) -> Self {
        Self { reader: Reader::new(plaintext), len: plaintext.len() }
    }

    fn frame(&mut self) -> Option<Frame<'a>> {
        let kind = self.reader.u8()?;
        let lane = usize::from(kind & LANE_MASK);
        let (is_last, patient) = (kind & LAST != 0, kind & PATIENT != 0);
        let what = kind >> KIND_SHIFT;
        if lane >= LANES {
            return None;
        }
        Some(match what {
            DATA => {
                let seq = self.reader.u24()?;
                Frame::Data { lane, patient, seq, symbol: self.body(is_last)? }
            }
            RIDER => {
                let seq = self.reader.u24()?;
                Frame::Rider { lane, seq, symbol: self.body(is_last)? }
            }
            REPAIR => self.repair(lane, patient, is_last)?,
            ACK => Frame::Ack(self.ack()?),
            FLOOR => Frame::Floor { lane, seq: self.reader.u24()? },
            PROBE => {
                // Padding: what it is made of does not matter.
                self.reader.rest();
                Frame::Probe
            }
            PING => Frame::Ping { token: self.reader.u32()? },
            ECHO => Frame::Echo { token: self.reader.u32()? },
            CLOSE => Frame::Close,
            _ => return None,
        })
    }

    fn repair(&mut self, lane: usize, patient: bool, is_last: bool) -> Option<Frame<'a>> {
        let (first, count, row) = (self.reader.u24()?, self.reader.u8()?, self.reader.u8()?);
        let coded = self.body(is_last)?;
        let is_possible = (1..=REPAIR_COUNT_MAX).contains(&usize::from(count))
            && row >= ROW_MIN
            && coded.len() > CODED_LENGTH_BYTES;
        is_possible.then_some(Frame::Repair { lane, patient, first, count, row, coded })
    }

    /// At least one byte.
    fn body(&mut self, is_last: bool) -> Option<&'a [u8]> {
        let body = if is_last {
            self.reader.rest()
        } else {
            let len = usize::try_from(self.reader.varint()?).ok()?;
            self.reader.take(len)?
        };
        (!body.is_empty()).then_some(body)
    }

    fn ack(&mut self) -> Option<Ack<'a>> {
        let reader = &mut self.reader;
        let flags = reader.u8()?;
        let mut ack = Ack {
            highest: reader.u24()?,
            unsettled: reader.varint()?,
            held_100us: reader.varint()?,
            ..Ack::default()
        };
        if flags & ACK_LOSS != 0 {
            let (settled, lost, runs) = (reader.u24()?, reader.u24()?, reader.u24()?);
            ack.loss = Some(LossCounts { settled, lost, runs, burst_100us: reader.varint()? });
        }
        if flags & ACK_MARKS != 0 {
            ack.marks = Some(MarkCounts { capable: reader.u24()?, congested: reader.u24()? });
        }
        if flags & ACK_BYTES != 0 {
            ack.bytes = Some(reader.u32()?);
        }
        for (lane, of_lane) in ack.lanes.iter_mut().enumerate() {
            if flags & ACK_LANES & (1 << lane) != 0 {
                let (cumulative, rows) = (reader.u24()?, reader.u8()?);
                let len = usize::from(reader.u8()?);
                *of_lane = Some(LaneAck { cumulative, rows, bitmap: reader.take(len)? });
            }
        }
        Some(ack)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let start = self.len - self.reader.left();
        match self.frame() {
            Some(frame) => Some(Ok(frame)),
            None => {
                self.reader.rest();
                Some(Err(Fault(start)))
            }
        }
    }
}

fn put_head(out: &mut Vec<u8>, what: u8, lane: usize, flags: u8) {
    out.push(what << KIND_SHIFT | lane as u8 | flags);
}

fn put_body(out: &mut Vec<u8>, body: &[u8], is_last: bool) {
    if !is_last {
        put_varint(out, body.len() as u64);
    }
    out.extend_from_slice(body);
}

impl Frame<'_> {
    /// Appends the frame. Only the last frame of a datagram may be written as such.
    pub fn put(&self, out: &mut Vec<u8>, is_last: bool) {
        let last = if is_last { LAST } else { 0 };
        let patience = |patient: bool| if patient { PATIENT } else { 0 };
        match *self {
            Self::Data { lane, patient, seq, symbol } => {
                put_head(out, DATA, lane, last | patience(patient));
                put_u24(out, seq);
                put_body(out, symbol, is_last);
            }
            Self::Rider { lane, seq, symbol } => {
                put_head(out, RIDER, lane, last);
                put_u24(out, seq);
                put_body(out, symbol, is_last);
            }
            Self::Repair { lane, patient, first, count, row, coded } => {
                put_head(out, REPAIR, lane, last | patience(patient));
                put_u24(out, first);
                out.extend_from_slice(&[count, row]);
                put_body(out, coded, is_last);
            }
            Self::Ack(ref ack) => ack.put(out),
            Self::Floor { lane, seq } => {
                put_head(out, FLOOR, lane, 0);
                put_u24(out, seq);
            }
            Self::Probe => put_head(out, PROBE, 0, 0),
            Self::Ping { token } => {
                put_head(out, PING, 0, 0);
                out.extend_from_slice(&token.to_be_bytes());
            }
            Self::Echo { token } => {
                put_head(out, ECHO, 0, 0);
                out.extend_from_slice(&token.to_be_bytes());
            }
            Self::Close => put_head(out, CLOSE, 0, 0),
        }
    }
}

impl Ack<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        put_head(out, ACK, 0, 0);
        let mut flags = 0;
        for (lane, of_lane) in self.lanes.iter().enumerate() {
            flags |= u8::from(of_lane.is_some()) << lane;
        }
        if self.loss.is_some() {
            flags |= ACK_LOSS;
        }
        if self.marks.is_some() {
            flags |= ACK_MARKS;
        }
        if self.bytes.is_some() {
            flags |= ACK_BYTES;
        }
        out.push(flags);
        put_u24(out, self.highest);
        put_varint(out, self.unsettled);
        put_varint(out, self.held_100us);
        if let Some(loss) = self.loss {
            put_u24(out, loss.settled);
            put_u24(out, loss.lost);
            put_u24(out, loss.runs);
            put_varint(out, loss.burst_100us);
        }
        if let Some(marks) = self.marks {
            put_u24(out, marks.capable);
            put_u24(out, marks.congested);
        }
        if let Some(bytes) = self.bytes {
            out.extend_from_slice(&bytes.to_be_bytes());
        }
        for of_lane in self.lanes.iter().flatten() {
            put_u24(out, of_lane.cumulative);
            let bitmap = &of_lane.bitmap[..of_lane.bitmap.len().min(BITMAP_BYTES_MAX)];
            out.extend_from_slice(&[of_lane.rows, bitmap.len() as u8]);
            out.extend_from_slice(bitmap);
        }
    }
}

#[cfg(test)]
mod tests;
