//! Law L4: the right edge of the window that a client was shown never moves left by a unit of its
//! window scale (2^wscale bytes) or more.

use crate::packet::{ACK, Packet, shift};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

/// Bound on windows, in bytes: no client of the simulation has a larger one.
const WINDOW_MAX: i32 = 1 << 17;

#[derive(Debug)]
struct Promised {
    iss: SeqNo,
    wscale: u8,
    edge: SeqNo,
    known: bool,
}

/// The right edges that were shown; see the module.
#[derive(Debug, Default)]
pub struct Windows {
    conns: BTreeMap<ConnKey, Promised>,
}

impl Windows {
    /// The ISS of the newest connection on the packet's four-tuple.
    pub fn iss_of(&self, p: &Packet) -> Option<SeqNo> {
        self.conns.get(&p.key).map(|promised| promised.iss)
    }

    /// Forgets the right edges of the existing connections, because no member knows them any more.
    pub fn forget(&mut self) {
        self.conns.values_mut().for_each(|promised| promised.known = false);
    }

    pub fn passed(&mut self, p: &Packet, expected: Option<SeqNo>) -> Option<String> {
        if !p.is(ACK) || p.is(Flags::RST) {
            return None;
        }
        if p.is(Flags::SYN) {
            let new = self.conns.get(&p.key).is_none_or(|promised| promised.iss != p.seq);
            if new {
                let edge = p.ack.plus(u64::from(p.window));
                self.conns
                    .insert(p.key, Promised { iss: p.seq, wscale: p.wscale, edge, known: true });
            }
            return None;
        }
        let promised = self.conns.get_mut(&p.key)?;
        // A packet that the client does not accept does not move its window
        // (RFC 9293 §3.10.7.4).
        let expected = expected?;
        let ahead = p.seq_end().since(expected);
        let accepted = if p.len() == 0 { ahead >= 0 } else { ahead > 0 };
        if !accepted || ahead > WINDOW_MAX {
            return None;
        }
        let unit = 1_i32 << shift(promised.wscale);
        let edge = p.ack.plus(u64::from(p.window) << shift(promised.wscale));
        let left = promised.edge.since(edge);
        promised.edge = promised.edge.max(edge);
        (left >= unit && promised.known)
            .then(|| format!("the right edge moved left by {left}, a unit is {unit}"))
    }
}
