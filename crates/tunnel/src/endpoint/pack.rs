//! How packets become symbols: several in one, one in one, or one in several.

use super::send::{Sender, symbol_bytes_max};
use crate::header::Encoded;
use crate::item::{CELL_BYTES, Item};
use crate::outbound::{Piece, PieceKind};
use crate::plan::Cells;
use crate::queue::Content;
use crate::{Class, Config};
use std::time::Duration;

/// A symbol's rest below this is not worth another item.
const REST_MIN: usize = 24;
/// Cells of one packet, whose index is a byte.
const CELLS_MAX: usize = 256;
/// Bytes of an item around its body, at most: kind, number or flow, length.
const AROUND_MAX: usize = 12;

/// A symbol that is made and not yet sent: a cell.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub bytes: Vec<u8>,
    /// The last cell of a packet that was cut for its protection: cells, and rows beyond them.
    pub closes: Option<(u8, usize)>,
    /// It belongs to such a packet.
    pub is_cut: bool,
}

/// A packet or message as it is sent.
enum Body {
    Packet(Encoded),
    Message { flow: u32, bytes: Vec<u8> },
}

impl Body {
    fn item(&self) -> Item<'_> {
        match self {
            Self::Packet(encoded) => encoded.item(),
            Self::Message { flow, bytes } => Item::Message { flow: *flow, bytes },
        }
    }
}

impl Sender {
    /// Fills a symbol with what is ready now, or makes cells of a packet that is longer.
    pub(super) fn pack(
        &mut self,
        class: Class,
        config: &Config,
        symbol: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
        now: Duration,
    ) {
        let symbol_max = symbol_bytes_max(config);
        let mut bodies: Vec<Body> = Vec::new();
        let mut used = 0;
        while let Some(len) = self.queue.peek_len(class) {
            let is_first = bodies.is_empty();
            let is_full = used + len + AROUND_MAX > symbol_max || symbol_max - used < REST_MIN;
            if !is_first && is_full {
                break;
            }
            let Some((content, _)) = self.queue.pop(class, now) else { break };
            let is_lone = is_first && self.queue.peek_len(class).is_none();
            let body = match content {
                Content::Packet(packet) => Body::Packet(self.headers.encode(packet)),
                Content::Message { flow, bytes } => Body::Message { flow, bytes },
            };
            let len = body.item().len();
            let cut = if is_lone { self.cut(class, len, config, now) } else { None };
            // What was peeked at may have been dropped, and a longer packet come in its place.
            if cut.is_some() || used + len > symbol_max {
                self.make_cells(class, &body, cut, symbol_max);
                break;
            }
            if let Body::Packet(Encoded::Defining(number, _)) = &body {
                pieces.push(Piece { stream: *number, kind: PieceKind::Header });
            }
            used += len;
            bodies.push(body);
        }
        let count = bodies.len();
        symbol.reserve(used);
        for (at, body) in bodies.iter().enumerate() {
            body.item().put(symbol, at + 1 == count);
        }
    }

    fn make_cells(&mut self, class: Class, body: &Body, cut: Option<Cells>, symbol_max: usize) {
        let mut encoded = Vec::new();
        body.item().put(&mut encoded, true);
        let part_max = symbol_max - CELL_BYTES;
        let even = |cells: Cells| encoded.len().div_ceil(cells.needed).clamp(1, part_max);
        let parts: Vec<&[u8]> = encoded.chunks(cut.map_or(part_max, even)).collect();
        let last = (parts.len().min(CELLS_MAX) - 1) as u8;
        let id = self.cell_id;
        self.cell_id = id.wrapping_add(1);
        for (index, part) in parts.iter().enumerate() {
            let mut bytes = Vec::new();
            Item::Cell { id, index: index as u8, last, part }.put(&mut bytes, true);
            let is_end = index == usize::from(last);
            let closes = cut.filter(|_| is_end).map(|cells| (last + 1, cells.extra));
            self.ready[class.index()].push_back(Ready { bytes, closes, is_cut: cut.is_some() });
        }
    }
}
