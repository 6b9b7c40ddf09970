//! The clock that a server shows to a client never goes back: the client would drop
//! its packets (RFC 7323 §5.3), as if they had not been sent.

use crate::packet::Packet;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

/// Distance below which numbers belong to one life of a tuple.
const LIFE: i32 = 1 << 19;

/// Window of a probe that asks a client where it stands.
const PROBE_WINDOW: u16 = 1000;

/// The shown clocks; see the module.
#[derive(Debug, Default)]
pub struct Clocks {
    newest: BTreeMap<ConnKey, u32>,
    /// Whether a member may know only an older clock than the other one's.
    is_behind: bool,
}

impl Clocks {
    /// A member's clock has leapt ahead, or one has stood still for longer than the margin
    /// of decision 18. Before the edge's bounds come, it may probe clients with an older
    /// clock than they have seen: they answer nevertheless (RFC 7323 §5.3).
    pub fn falls_behind(&mut self) {
        self.is_behind = true;
    }

    /// Judges a packet that passes, to a client that expects `expected` next.
    pub fn passed(&mut self, p: &Packet, expected: Option<SeqNo>) -> Option<String> {
        let is_of_this_life = |expected: SeqNo| p.seq_end().since(expected).abs() < LIFE;
        if p.is(Flags::RST) || !(p.is(Flags::SYN) || expected.is_some_and(is_of_this_life)) {
            return None;
        }
        let newest = self.newest.entry(p.key).or_insert(p.tsval);
        if p.is(Flags::SYN) {
            // Perhaps it is another life of the tuple.
            *newest = p.tsval;
        }
        let back = newest.wrapping_sub(p.tsval) as i32;
        if self.is_behind && p.window == PROBE_WINDOW && p.payload.len() <= 1 {
            return None;
        }
        *newest = if back > 0 { *newest } else { p.tsval };
        (back > 0).then(|| format!("the server's clock went back by {back} ms"))
    }
}
