//! The checkers of a transit group. They see the packets and know what was broken when.
//! They never see the machines' internal state; they compare what the machines show with
//! the truth.

mod truth;

pub use truth::Truth;

use super::packet::{Packet, Tuple};
use super::plan::MS;
use crate::Ns;
use crate::check::Violation;
use holdfast_member::shown::Protection;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// Most violations of one law that are kept.
const VIOLATIONS_MAX: usize = 5;
/// Longest time for which an acknowledgement may be held, in ns, with a margin.
const HELD_MAX: Ns = 15 * MS;
/// Age of an acknowledgement from which its bytes must not be resent, in ns.
const ACKED_MAX: Ns = 5 * MS;
/// Time for which the cache may keep a sender's retransmissions as new, in ns.
const REPEATED: Ns = 500 * MS;
/// Time after a restore within which a flow's lowest segment is resent first, in ns.
const HEADS: Ns = MS / 2;

/// What is known about one flow at an edge.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The highest acknowledgement that reached its sender, and when.
    acked: Option<(SeqNo, Ns)>,
    /// The furthest right edge of the window that reached its sender.
    edge: Option<SeqNo>,
    /// The string that it uses.
    string: Option<usize>,
    /// The string that it first used.
    home: Option<usize>,
    /// Whether its SYN found no usable string, so that the edge does not cap its window.
    left_alone: bool,
    /// Whether no acknowledgement has passed since its last SYN, at which the edge forgets
    /// the window: the first one is not capped.
    fresh: bool,
    /// When its sender last retransmitted bytes that had been acknowledged.
    repeated: Option<Ns>,
    /// Sequence number of the first packet resent after the last restore.
    first: Option<SeqNo>,
}

/// All checkers.
pub struct Checkers {
    pub violations: Vec<Violation>,
    pub truth: Truth,
    flows: BTreeMap<Tuple, Flow>,
    /// For each edge, the held acknowledgements, and when they arrived.
    held: [VecDeque<(Ns, Packet)>; 2],
    pub released: u64,
    pub dropped: u64,
    restored: Ns,
    pub capped: u64,
}

impl Checkers {
    pub fn new(truth: Truth) -> Self {
        Self {
            violations: Vec::new(),
            truth,
            flows: BTreeMap::new(),
            held: Default::default(),
            released: 0,
            dropped: 0,
            restored: 0,
            capped: 0,
        }
    }

    pub fn violation(&mut self, at: Ns, law: &'static str, what: String) {
        if self.violations.iter().filter(|it| it.law == law).count() < VIOLATIONS_MAX {
            self.violations.push(Violation { law, at, what });
        }
    }

    /// A sender begins a connection.
    pub fn begins(&mut self, tuple: Tuple) {
        // It keeps the string of the connection before on the same tuple.
        let Flow { string, home, .. } = self.flows.get(&tuple).copied().unwrap_or_default();
        self.flows.insert(tuple, Flow { string, home, ..Flow::default() });
    }

    /// Checks a flow's packet that the near edge sends into a string. `returns`: flows go
    /// back to their first string when it works again.
    pub fn goes_into(
        &mut self,
        at: Ns,
        packet: &Packet,
        string: usize,
        is_usable: impl Fn(usize) -> bool,
        returns: bool,
    ) {
        let flow = self.flows.entry(packet.tuple).or_default();
        let before = flow.string.replace(string);
        let home = *flow.home.get_or_insert(string);
        let Some(before) = before.filter(|before| *before != string && is_usable(*before)) else {
            return;
        };
        if !(returns && string == home) {
            let what = format!(
                "{:?} is on string {before}, which is in use, and goes into {string}",
                packet.tuple
            );
            self.violation(at, "order", what);
        }
    }

    /// A packet comes back through a string: a flow whose own string is not usable then
    /// follows it.
    pub fn comes_back(&mut self, tuple: Tuple, string: usize, is_usable: impl Fn(usize) -> bool) {
        let Some(flow) = self.flows.get_mut(&tuple) else { return };
        if is_usable(string) && flow.string.is_some_and(|before| !is_usable(before)) {
            flow.string = Some(string);
        }
    }

    /// A sender's packet arrives at the near edge. `has_way`: a usable string was found.
    pub fn comes(&mut self, at: Ns, packet: &Packet, has_way: bool) {
        let flow = self.flows.entry(packet.tuple).or_default();
        if packet.syn {
            (flow.left_alone, flow.fresh) = (!has_way, true);
        }
        if flow.acked.is_some_and(|(acked, _)| !packet.end().after(acked)) {
            flow.repeated = Some(at);
        }
    }

    /// Checks an acknowledgement that goes to its sender. `cap`: the largest window, unless
    /// more was advertised before; `offered`: the receiver's window.
    pub fn acknowledges(&mut self, at: Ns, packet: &Packet, offered: u32, cap: Option<u32>) {
        if packet.syn {
            return;
        }
        let flow = self.flows.entry(packet.tuple).or_default();
        let edge = packet.ack.plus(u64::from(packet.window));
        let newest = flow.acked.is_none_or(|(acked, _)| !acked.after(packet.ack));
        if !newest {
            return;
        }
        if flow.acked.is_none_or(|(acked, _)| packet.ack.after(acked)) {
            flow.acked = Some((packet.ack, at));
        }
        let promised = flow.edge;
        let is_fresh = std::mem::take(&mut flow.fresh);
        let is_capped = promised.is_some() && !flow.left_alone && !is_fresh;
        flow.edge = Some(promised.map_or(edge, |promised| promised.max(edge)));
        let kept = promised.map_or(0, |promised| promised.since(packet.ack).max(0).unsigned_abs());
        if promised.is_some_and(|promised| promised.after(edge)) {
            let what = format!("{packet:?}: {kept} bytes were promised");
            self.violation(at, "L4", what);
        }
        let Some(cap) = cap.filter(|_| is_capped) else { return };
        self.capped += u64::from(packet.window < offered);
        if packet.window > cap.max(kept) || packet.window < offered.min(cap) {
            let what = format!(
                "{packet:?}: everybody's window is {cap}, and {kept} were promised of {offered}"
            );
            self.violation(at, "share", what);
        }
    }

    // What is held and resent.

    pub fn holds(&mut self, at: Ns, edge: usize, packet: &Packet) {
        self.held[edge].push_back((at, *packet));
    }

    /// A held acknowledgement is released. `late`: the edge was suspended meanwhile.
    pub fn releases(&mut self, at: Ns, edge: usize, packet: &Packet, late: bool) {
        let known = self.held[edge].iter().position(|(_, held)| held == packet);
        let Some((since, _)) = known.and_then(|index| self.held[edge].remove(index)) else {
            return self.violation(at, "held", format!("{packet:?} was not held"));
        };
        self.released += 1;
        if at > since + HELD_MAX && !late {
            let what = format!("{packet:?} was held for {} µs", (at - since) / 1000);
            self.violation(at, "held", what);
        }
    }

    /// An edge's daemon dies, and loses the acknowledgements that it held.
    pub fn drops_held(&mut self, edge: usize) {
        self.dropped += self.held[edge].len() as u64;
        self.held[edge].clear();
    }

    pub fn restores(&mut self, at: Ns) {
        self.restored = at;
        self.flows.values_mut().for_each(|flow| flow.first = None);
    }

    /// Checks a resent packet. `knows`: the cache has seen all acknowledgements.
    pub fn resends(&mut self, at: Ns, packet: &Packet, knows: bool) {
        let (restored, flow) = (self.restored, self.flows.entry(packet.tuple).or_default());
        let first = *flow.first.get_or_insert(packet.seq);
        // The cache keeps such retransmissions of a flow that it did not know yet.
        let repeated = flow.repeated.is_some_and(|since| at < since + REPEATED);
        let over = flow.acked.filter(|(acked, _)| !packet.end().after(*acked));
        let over = over.is_some_and(|(_, since)| at > since + ACKED_MAX);
        if first.after(packet.seq) && at < restored + HEADS {
            let what = format!(
                "{packet:?} is resent behind {first:?}, which its receiver cannot use before it"
            );
            self.violation(at, "order", what);
        }
        if over && knows && !packet.syn && !repeated {
            self.violation(at, "resend", format!("{packet:?} was acknowledged"));
        }
    }

    /// Checks that `used` is at most `most`.
    pub fn limit(&mut self, at: Ns, name: &str, used: usize, most: usize) {
        if used > most {
            self.violation(at, "limit", format!("{name}: {used} of {most}"));
        }
    }

    // What edges decide and show.

    /// An edge declares a string dead; checks that its heartbeats could be missing.
    pub fn declared(&mut self, at: Ns, edge: usize, string: usize) {
        if self.truth.is_blameless(at, string) {
            let what = format!("edge {edge} declares string {string} dead, which is well");
            self.violation(at, "cause", what);
        }
    }

    /// Checks that an edge is closed by hand exactly if an operator has closed it: a daemon
    /// that starts does not open it.
    pub fn by_hand(&mut self, at: Ns, edge: usize, ordered: bool, is_closed: bool) {
        if ordered != is_closed {
            let what =
                format!("edge {edge} was to be closed by hand: {ordered}; it is: {is_closed}");
            self.violation(at, "by hand", what);
        }
    }

    pub fn look(&mut self, at: Ns, edge: usize, usable: u32, shown: Protection) {
        let count = self.truth.strings();
        for string in 0..count {
            let is_used = usable >> string & 1 == 1;
            if is_used && self.truth.must_be_out(at, string) {
                let what = format!("edge {edge} uses string {string}, which is dead");
                self.violation(at, "table", what);
            }
            if !is_used && self.truth.must_be_in(at, string) {
                let what = format!("edge {edge} does not use string {string}, which is well");
                self.violation(at, "table", what);
            }
        }
        let out = (0..count).filter(|string| self.truth.must_be_out(at, *string)).count();
        let well = (0..count).filter(|string| self.truth.must_be_in(at, *string)).count();
        let is_true = match shown {
            Protection::Protected => count - out >= 2,
            Protection::Unprotected => well <= 1,
            Protection::Waiting => well == 0,
            Protection::Fenced => false,
        };
        if !is_true {
            let what = format!(
                "edge {edge} shows {shown:?}; of {count} strings {out} are dead, {well} well"
            );
            self.violation(at, "status", what);
        }
    }

    /// Checks at the end that no acknowledgement is still held.
    pub fn ends(&mut self, at: Ns) {
        for edge in 0..2 {
            if let Some((since, packet)) = self.held[edge].front().copied()
                && at > since + HELD_MAX
            {
                self.violation(at, "held", format!("{packet:?} is still held"));
            }
        }
    }
}
