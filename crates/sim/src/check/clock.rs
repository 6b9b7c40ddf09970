//! TCP timestamps that a client sees from its server never go back: the client would drop such
//! packets (PAWS, RFC 7323 §5.3).

use crate::packet::Packet;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

/// Distance of sequence numbers below which they belong to one connection of a four-tuple.
const LIFE: i32 = 1 << 19;

/// The newest timestamps; see the module.
#[derive(Debug, Default)]
pub struct Clocks {
    newest: BTreeMap<ConnKey, u32>,
    /// Whether a member may know only an older timestamp than the other one has sent.
    is_behind: bool,
}

impl Clocks {
    /// Notes that a member's clock has leapt ahead, or has stood still for longer than the margin
    /// of decision 18, or that a daemon goes on with connections of an earlier one. Before the
    /// edge's bounds come, the member may probe clients with an older timestamp than they have
    /// seen; they answer nevertheless (RFC 7323 §5.3).
    pub fn falls_behind(&mut self) {
        self.is_behind = true;
    }

    /// Judges a packet to a client whose rcv_nxt is `expected`.
    pub fn passed(&mut self, p: &Packet, expected: Option<SeqNo>) -> Option<String> {
        let is_of_this_life = |expected: SeqNo| p.seq_end().since(expected).abs() < LIFE;
        if p.is(Flags::RST) || !(p.is(Flags::SYN) || expected.is_some_and(is_of_this_life)) {
            return None;
        }
        let newest = self.newest.entry(p.key).or_insert(p.tsval);
        if p.is(Flags::SYN) {
            // It may begin another connection of the four-tuple.
            *newest = p.tsval;
        }
        let back = newest.wrapping_sub(p.tsval) as i32;
        // A probe repeats one byte that the client has.
        let is_probe =
            p.payload.len() == 1 && expected.is_some_and(|expected| !p.seq_end().after(expected));
        if self.is_behind && is_probe {
            return None;
        }
        *newest = if back > 0 { *newest } else { p.tsval };
        (back > 0).then(|| format!("the server's clock went back by {back} ms"))
    }
}
