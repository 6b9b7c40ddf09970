//! What a symbol is made of: packets, messages, cells of longer ones, pieces of streams.
//!
//! ```text
//! item    = kind 1 | fields | body
//! kind    = what, 4 bits | LAST, 1 bit | END, 1 bit
//! PACKET  = [length varint] | packet
//! MESSAGE = flow varint | [length varint] | message
//! CELL    = id 2 | index 1 | last index 1 | [length varint] | part of an encoded PACKET or MESSAGE
//! DATA    = stream varint | offset varint | [length varint] | bytes        (END: nothing follows)
//! DEFINE  = number varint | [length varint] | packet     (its header has this number from now on)
//! SHORT   = number varint | [identification 2] | [checksum 2] | [length varint] | packet's rest
//! CREDIT  = stream varint | offset varint
//! RESET   = stream varint
//! ```
//!
//! A body whose LAST bit is set extends to the end of the symbol.

use crate::wire::{Reader, put_varint, varint_len};

const PACKET: u8 = 1;
const MESSAGE: u8 = 2;
const CELL: u8 = 3;
const DATA: u8 = 4;
const CREDIT: u8 = 5;
const RESET: u8 = 6;
const DEFINE: u8 = 7;
const SHORT: u8 = 8;

const LAST: u8 = 0x08;
const END: u8 = 0x04;
const HAS_ID: u8 = 0x02;
const HAS_CHECKSUM: u8 = 0x01;
const KIND_SHIFT: u32 = 4;

/// Bytes of a CELL around its body when it is the last item.
pub(crate) const CELL_BYTES: usize = 5;

/// One item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Packet(&'a [u8]),
    Message { flow: u32, bytes: &'a [u8] },
    Cell { id: u16, index: u8, last: u8, part: &'a [u8] },
    Data { stream: u64, offset: u64, end: bool, bytes: &'a [u8] },
    Credit { stream: u64, offset: u64 },
    Reset { stream: u64 },
    Define { number: u64, packet: &'a [u8] },
    Short { number: u64, id: Option<u16>, checksum: Option<u16>, rest: &'a [u8] },
}

impl Item<'_> {
    /// Appends the item; only the last one of a symbol may be written as such.
    pub fn put(&self, out: &mut Vec<u8>, is_last: bool) {
        let head =
            |what: u8, flags: u8| what << KIND_SHIFT | flags | if is_last { LAST } else { 0 };
        let body = |out: &mut Vec<u8>, body: &[u8]| {
            if !is_last {
                put_varint(out, body.len() as u64);
            }
            out.extend_from_slice(body);
        };
        match *self {
            Self::Packet(packet) => {
                out.push(head(PACKET, 0));
                body(out, packet);
            }
            Self::Message { flow, bytes } => {
                out.push(head(MESSAGE, 0));
                put_varint(out, u64::from(flow));
                body(out, bytes);
            }
            Self::Cell { id, index, last, part } => {
                out.push(head(CELL, 0));
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&[index, last]);
                body(out, part);
            }
            Self::Data { stream, offset, end, bytes } => {
                out.push(head(DATA, if end { END } else { 0 }));
                put_varint(out, stream);
                put_varint(out, offset);
                body(out, bytes);
            }
            Self::Credit { stream, offset } => {
                out.push(CREDIT << KIND_SHIFT);
                put_varint(out, stream);
                put_varint(out, offset);
            }
            Self::Reset { stream } => {
                out.push(RESET << KIND_SHIFT);
                put_varint(out, stream);
            }
            Self::Define { number, packet } => {
                out.push(head(DEFINE, 0));
                put_varint(out, number);
                body(out, packet);
            }
            Self::Short { number, id, checksum, rest } => {
                let has_id = if id.is_some() { HAS_ID } else { 0 };
                let has_checksum = if checksum.is_some() { HAS_CHECKSUM } else { 0 };
                out.push(head(SHORT, has_id | has_checksum));
                put_varint(out, number);
                for field in id.into_iter().chain(checksum) {
                    out.extend_from_slice(&field.to_be_bytes());
                }
                body(out, rest);
            }
        }
    }

    /// Bytes of the item when it is not the last one.
    pub fn len(&self) -> usize {
        let body = |bytes: &[u8]| varint_len(bytes.len() as u64) + bytes.len();
        1 + match *self {
            Self::Packet(packet) => body(packet),
            Self::Message { flow, bytes } => varint_len(u64::from(flow)) + body(bytes),
            Self::Cell { part, .. } => CELL_BYTES - 1 + body(part),
            Self::Data { stream, offset, bytes, .. } => {
                varint_len(stream) + varint_len(offset) + body(bytes)
            }
            Self::Credit { stream, offset } => varint_len(stream) + varint_len(offset),
            Self::Reset { stream } => varint_len(stream),
            Self::Define { number, packet } => varint_len(number) + body(packet),
            Self::Short { number, id, checksum, rest } => {
                let fields = 2 * (usize::from(id.is_some()) + usize::from(checksum.is_some()));
                varint_len(number) + fields + body(rest)
            }
        }
    }
}

/// The items of a symbol; ends at the first fault.
pub(crate) struct Items<'a>(Reader<'a>);

impl<'a> Items<'a> {
    pub fn new(symbol: &'a [u8]) -> Self {
        Self(Reader::new(symbol))
    }

    fn body(&mut self, is_last: bool) -> Option<&'a [u8]> {
        if is_last {
            return Some(self.0.rest());
        }
        let len = usize::try_from(self.0.varint()?).ok()?;
        self.0.take(len)
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let kind = self.0.u8()?;
        let (is_last, end) = (kind & LAST != 0, kind & END != 0);
        Some(match kind >> KIND_SHIFT {
            PACKET => Item::Packet(self.body(is_last)?),
            MESSAGE => {
                let flow = u32::try_from(self.0.varint()?).ok()?;
                Item::Message { flow, bytes: self.body(is_last)? }
            }
            CELL => {
                let id = self.0.u16()?;
                let (index, last) = (self.0.u8()?, self.0.u8()?);
                if index > last {
                    return None;
                }
                Item::Cell { id, index, last, part: self.body(is_last)? }
            }
            DATA => {
                let (stream, offset) = (self.0.varint()?, self.0.varint()?);
                Item::Data { stream, offset, end, bytes: self.body(is_last)? }
            }
            CREDIT => Item::Credit { stream: self.0.varint()?, offset: self.0.varint()? },
            RESET => Item::Reset { stream: self.0.varint()? },
            DEFINE => Item::Define { number: self.0.varint()?, packet: self.body(is_last)? },
            SHORT => {
                let number = self.0.varint()?;
                let id = if kind & HAS_ID == 0 { None } else { Some(self.0.u16()?) };
                let checksum = if kind & HAS_CHECKSUM == 0 { None } else { Some(self.0.u16()?) };
                Item::Short { number, id, checksum, rest: self.body(is_last)? }
            }
            _ => return None,
        })
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, BadItem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let item = self.item();
        if item.is_none() {
            self.0.rest();
        }
        Some(item.ok_or(BadItem))
    }
}

/// A symbol that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadItem;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn an_item(bytes: &[u8], what: u8, a: u64, b: u64) -> Item<'_> {
        match what {
            0 => Item::Packet(bytes),
            1 => Item::Message { flow: a as u32, bytes },
            2 => Item::Cell { id: a as u16, index: b as u8 / 2, last: b as u8, part: bytes },
            3 => Item::Data { stream: a, offset: b, end: a.is_multiple_of(2), bytes },
            4 => Item::Credit { stream: a, offset: b },
            5 => Item::Define { number: a, packet: bytes },
            6 => {
                let field = |value: u64| (value > 1 << 20).then_some(value as u16);
                Item::Short { number: a, id: field(a), checksum: field(b), rest: bytes }
            }
            _ => Item::Reset { stream: a },
        }
    }

    proptest! {
        #[test]
        fn items_are_read_as_they_were_written(
            raw in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..200), 0u8..8, 0u64..1 << 62, 0u64..1 << 62),
                1..6,
            ),
            is_last: bool,
        ) {
            let items: Vec<_> =
                raw.iter().map(|(bytes, what, a, b)| an_item(bytes, *what, *a, *b)).collect();
            let mut out = Vec::new();
            for (i, item) in items.iter().enumerate() {
                let (before, is_last) = (out.len(), is_last && i + 1 == items.len());
                item.put(&mut out, is_last);
                prop_assert!(out.len() - before <= item.len());
                prop_assert!(is_last || out.len() - before == item.len());
            }
            let read: Vec<_> = Items::new(&out).collect();
            let written: Vec<_> = items.into_iter().map(Ok).collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn any_bytes_give_items_or_one_fault(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let read: Vec<_> = Items::new(&bytes).collect();
            prop_assert!(read.iter().rev().skip(1).all(Result::is_ok));
        }
    }
}
