//! The judges of a transit group. They see packets that pass and know what was broken
//! when; they never see what the machines believe, and compare what those show with
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
/// Time longer than any acknowledgement may be held, in ns.
const HELD_MAX: Ns = 15 * MS;
/// Age of an acknowledgement from which its bytes must not be resent.
const ACKED_MAX: Ns = 5 * MS;
/// Time for which a sender's repeats may be taken for new.
const REPEATED: Ns = 500 * MS;
/// Time after a restore in which a flow's lowest segment comes first.
const HEADS: Ns = MS / 2;

/// What is known about one flow at an edge.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The highest acknowledgement that went to its sender, when it did, and the
    /// right edge.
    acked: Option<(SeqNo, Ns)>,
    edge: Option<SeqNo>,
    /// The string that it is on, and the one that it began on.
    string: Option<usize>,
    home: Option<usize>,
    /// Whether its handshake was not seen on its way, so that nobody caps its
    /// windows.
    left_alone: bool,
    /// Whether promises from before its last SYN are forgotten: one acknowledgement
    /// passes.
    fresh: bool,
    /// When its sender last repeated what was acknowledged.
    repeated: Option<Ns>,
    /// What was resent first after the last restore.
    first: Option<SeqNo>,
}

/// All judges.
pub struct Checkers {
    pub violations: Vec<Violation>,
    pub truth: Truth,
    flows: BTreeMap<Tuple, Flow>,
    /// For each edge, acknowledgements that are held, and when they came.
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

    /// Notes that a sender begins a connection.
    pub fn begins(&mut self, tuple: Tuple) {
        // Its place is that of the tuple.
        let Flow { string, home, .. } = self.flows.get(&tuple).copied().unwrap_or_default();
        self.flows.insert(tuple, Flow { string, home, ..Flow::default() });
    }

    /// Judges a flow's packet that goes into a string at the leading edge. `stays`: its
    /// string before is in use, and the edge knows the flow.
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

    /// Notes a packet that comes back through a string: a flow that has lost
    /// its own string follows.
    pub fn comes_back(&mut self, tuple: Tuple, string: usize, is_usable: impl Fn(usize) -> bool) {
        let Some(flow) = self.flows.get_mut(&tuple) else { return };
        if is_usable(string) && flow.string.is_some_and(|before| !is_usable(before)) {
            flow.string = Some(string);
        }
    }

    /// Notes a sender's packet that comes to the edge beside it. `has_way`: a string was
    /// left for it.
    pub fn comes(&mut self, at: Ns, packet: &Packet, has_way: bool) {
        let flow = self.flows.entry(packet.tuple).or_default();
        if packet.syn {
            (flow.left_alone, flow.fresh) = (!has_way, true);
        }
        if flow.acked.is_some_and(|(acked, _)| !packet.end().after(acked)) {
            flow.repeated = Some(at);
        }
    }

    /// Judges an acknowledgement that goes to its sender. `cap`: the largest window,
    /// unless more was promised; `offered` is the receiver's window.
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

    /// Notes that an acknowledgement is released. `late`: the edge has stood
    /// still meanwhile.
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

    /// Notes that an edge's daemon dies, and what it held with it.
    pub fn drops_held(&mut self, edge: usize) {
        self.dropped += self.held[edge].len() as u64;
        self.held[edge].clear();
    }

    pub fn restores(&mut self, at: Ns) {
        self.restored = at;
        self.flows.values_mut().for_each(|flow| flow.first = None);
    }

    /// Judges a resent packet. `knows`: the cache has seen all
    /// acknowledgements.
    pub fn resends(&mut self, at: Ns, packet: &Packet, knows: bool) {
        let (restored, flow) = (self.restored, self.flows.entry(packet.tuple).or_default());
        let first = *flow.first.get_or_insert(packet.seq);
        // For a flow that it did not know yet, the cache keeps such repeats.
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

    /// Judges that `used` is in use of what may be at most `most`.
    pub fn limit(&mut self, at: Ns, name: &str, used: usize, most: usize) {
        if used > most {
            self.violation(at, "limit", format!("{name}: {used} of {most}"));
        }
    }

    // What edges decide and show.

    /// Judges that an edge which misses its heartbeats declares a string dead.
    pub fn declared(&mut self, at: Ns, edge: usize, string: usize) {
        if self.truth.is_blameless(at, string) {
            let what = format!("edge {edge} declares string {string} dead, which is well");
            self.violation(at, "cause", what);
        }
    }

    /// What an operator has closed, only an operator opens: no daemon that starts.
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

    /// Judges the end: everything that was held has gone on.
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
