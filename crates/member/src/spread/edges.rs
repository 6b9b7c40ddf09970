//! Several edges of one spread group. Each redirects by itself, and all choose the same host server
//! for a connection, so what they must tell each other is little: which host servers an operator
//! drains, and which connections are not where new ones with their hash would be. Where clients'
//! packets reach all edges, one of them acts on these; two that do only send them twice, so nobody
//! has to decide between them.

use super::links::is_hello_of;
use super::{SpreadHost, SpreadMachine};
use crate::nanos;
use crate::shown::{Protection, Shown};
use crate::standing::hello;
use crate::timing::edges::{DUTY_EVERY, MISSED, REFRESH, WAIT};
use holdfast_cluster::Nanos;
use holdfast_wire::message::{EdgeFlow, FLOWS_MAX, Message};
use std::collections::{BTreeMap, VecDeque};

/// What the machine needs of its host: channels to the other edges, which are named by their place
/// in the file, and the redirector's table.
pub trait EdgesHost {
    /// Sends a message to another edge. If its channel fails, [`Edges::handle_closed`] follows.
    fn tell(&mut self, edge: usize, message: &Message<'_>);
    /// Whether more than signs of life can be sent to it now.
    fn has_room(&self, edge: usize) -> bool;
    /// Closes its channel.
    fn hang_up(&mut self, edge: usize);
    /// Whether clients' packets can come to this edge, and leave it.
    fn is_sound(&self) -> bool;
    /// The connections that are not where new ones with their hash would be.
    fn elsewhere(&mut self) -> Vec<Elsewhere>;
    /// Enters connections that another edge has at the host server in a slot, unless what is known
    /// of them here is newer.
    fn adopt(&mut self, slot: u8, flows: &[EdgeFlow]);
    /// Time since 1970 in ms, by this host's clock.
    fn unix_ms(&self) -> u64;
    /// From now on this edge acts on what reaches all edges. What came since that time may not have
    /// been acted on by anybody.
    fn serve(&mut self, since: Option<Nanos>);
    /// From now on another one does.
    fn rest(&mut self);
    /// How many packets that reach all edges have reached this one.
    fn seen(&mut self) -> u64;
    /// The edge is to have clients' packets, or no longer.
    fn show_able(&mut self, able: bool);
}

/// A connection, with the redirector's slot for its host server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    pub slot: u8,
    pub flow: EdgeFlow,
}

/// A message of another edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeWord {
    /// Who sends it. `fits`: whether that is the expected edge, of this release.
    Hello {
        fits: bool,
    },
    Duty {
        able: bool,
        serves: bool,
        seen: u64,
    },
    Drains {
        host: String,
        yes: bool,
        stamp: u64,
    },
    Flows {
        host: String,
        flows: Vec<EdgeFlow>,
        last: bool,
    },
    /// Why it hangs up.
    Refused(String),
    /// A message that no edge sends.
    Nonsense,
}

impl EdgeWord {
    /// The meaning of a message from the edge called `name`, in this group.
    #[must_use]
    pub fn of(message: Message<'_>, group: &str, name: &str) -> Self {
        match message {
            Message::Hello { .. } => Self::Hello { fits: is_hello_of(&message, group, name) },
            Message::Duty { able, serves, seen } => Self::Duty { able, serves, seen },
            Message::Drains { host, yes, stamp } => {
                Self::Drains { host: host.to_owned(), yes, stamp }
            }
            Message::Flows { host, flows, last } => {
                Self::Flows { host: host.to_owned(), flows, last }
            }
            Message::Refused { reason, .. } => Self::Refused(reason.to_owned()),
            _ => Self::Nonsense,
        }
    }
}

/// Configuration of one of several edges.
#[derive(Clone, Debug)]
pub struct EdgesSetup {
    pub group: String,
    /// Names of all edges, in the order of the file.
    pub names: Vec<String>,
    /// Which of them this is.
    pub me: usize,
    /// Whether clients' packets reach all edges, and one of them is to act.
    pub shared: bool,
    /// Time between two heartbeats where they do not.
    pub period: Nanos,
}

/// Packets that one edge must have seen, and another one none of them, until that one counts as cut
/// off from clients.
const FEW: u64 = 3;
/// Most connections that are kept for host servers that are not here yet, of each other edge.
const EARLY_MAX: usize = 1 << 18;

/// Flows of one host server, to be sent.
#[derive(Debug)]
struct Part {
    host: String,
    flows: Vec<EdgeFlow>,
    last: bool,
}

/// What two edges have seen of that which reaches all: its own count when it last grew, and since
/// when and where the other one's stands.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    seen: u64,
    grew_at: Nanos,
    /// This edge's count when the other one's last grew, and the other way round.
    own_then: u64,
    then: u64,
}

#[derive(Debug, Default)]
struct Peer {
    /// Whether its channel is open.
    here: bool,
    greeted: bool,
    heard_at: Nanos,
    able: bool,
    serves: bool,
    sight: Sight,
    /// Whether everything that it has was received.
    synced: bool,
    /// Its connections at host servers that are not here yet, by their names.
    early: BTreeMap<String, Vec<EdgeFlow>>,
    /// Whether what comes next begins a new list.
    ended: bool,
    to_send: VecDeque<Part>,
}

/// One edge among several: the machine beside [`SpreadMachine`]. A group with one edge has it,
/// too, with nobody to talk to.
///
/// # Contract
/// * [`Edges::handle_timeout`] ends every turn, after that of the [`SpreadMachine`].
#[derive(Debug)]
pub struct Edges {
    setup: EdgesSetup,
    peers: Vec<Peer>,
    /// An operator's last word on each host server, by its name, with its stamp.
    drains: BTreeMap<String, (u64, bool)>,
    serves: bool,
    /// Packets that reach all edges which have reached this one, and when that last grew.
    seen: u64,
    grew_at: Nanos,
    able: bool,
    /// What the host was last told of that.
    shown: Option<bool>,
    began: Nanos,
    turned_at: Nanos,
    beat_at: Nanos,
    refresh_at: Nanos,
}

impl Edges {
    /// `serves`: whether an earlier life has left the kernel acting.
    #[must_use]
    pub fn new(setup: EdgesSetup, serves: bool, now: Nanos) -> Self {
        let peers = setup.names.iter().map(|_| Peer::default()).collect();
        Self {
            setup,
            peers,
            drains: BTreeMap::new(),
            serves,
            seen: 0,
            grew_at: now,
            able: false,
            shown: None,
            began: now,
            turned_at: now,
            beat_at: now,
            refresh_at: now.plus(nanos(REFRESH)),
        }
    }

    /// Takes over which host servers an earlier life has left drained. Any word that is said counts
    /// more.
    pub fn handle_start(&mut self, spread: &SpreadMachine) {
        let drained = spread.placed.iter().filter(|it| spread.roster.condition(it.slot).draining);
        self.drains.extend(drained.map(|it| (it.name.clone(), (0, true))));
    }

    /// A channel to another edge has opened; an earlier one of it is closed.
    pub fn handle_opened<H: SpreadHost + EdgesHost>(
        &mut self,
        edge: usize,
        spread: &SpreadMachine,
        host: &mut H,
    ) {
        let name = self.setup.names[edge].clone();
        self.peers[edge] = Peer { here: true, ..Peer::default() };
        let (group, me) = (&self.setup.group, &self.setup.names[self.setup.me]);
        host.tell(edge, &hello(group, me, (0, false), Vec::new()));
        host.tell(edge, &self.duty());
        for (name, (stamp, yes)) in &self.drains {
            host.tell(edge, &Message::Drains { host: name, yes: *yes, stamp: *stamp });
        }
        let flows = host.elsewhere();
        self.peers[edge].to_send = parts(&flows, spread);
        host.note("joined", name);
    }

    /// A channel is gone.
    pub fn handle_closed(&mut self, edge: usize, why: &str, host: &mut impl SpreadHost) {
        let peer = &mut self.peers[edge];
        if std::mem::take(&mut peer.here) {
            peer.to_send.clear();
            host.note("left", format!("{}: {why}", self.setup.names[edge]));
        }
    }

    /// Takes a message of another edge; false if its channel was closed for it.
    pub fn handle_word<H: SpreadHost + EdgesHost>(
        &mut self,
        edge: usize,
        word: EdgeWord,
        now: Nanos,
        spread: &mut SpreadMachine,
        host: &mut H,
    ) -> bool {
        let peer = &mut self.peers[edge];
        if !peer.here {
            return false;
        }
        if let EdgeWord::Refused(why) = word {
            host.note("refused", format!("{}: {why}", self.setup.names[edge]));
            return true;
        }
        let fits = matches!(word, EdgeWord::Hello { fits: true });
        let is_bad = matches!(word, EdgeWord::Nonsense | EdgeWord::Hello { fits: false });
        if is_bad || !(peer.greeted || fits) {
            let why = "it is of another release, group or name, or said what no edge says";
            host.tell(edge, &Message::Refused { reason: why, again: false });
            host.hang_up(edge);
            self.handle_closed(edge, why, host);
            return false;
        }
        peer.greeted = true;
        peer.heard_at = now;
        match word {
            EdgeWord::Duty { able, serves, seen } => {
                (peer.able, peer.serves) = (able, serves);
                if peer.sight.seen != seen {
                    let own_then = self.seen;
                    peer.sight = Sight { seen, grew_at: now, own_then, ..peer.sight };
                }
            }
            EdgeWord::Drains { host: name, yes, stamp } => {
                self.hear_drain(&name, yes, stamp, spread, host);
            }
            EdgeWord::Flows { host: name, flows, last } => {
                if std::mem::replace(&mut peer.ended, last) {
                    peer.early.clear();
                }
                peer.synced |= last;
                match spread.slots_of(&name).first() {
                    Some(&slot) => host.adopt(slot, &flows),
                    None if spread.setup.given(&name).is_some() => {
                        let kept: usize = peer.early.values().map(Vec::len).sum();
                        let room = EARLY_MAX.saturating_sub(kept);
                        peer.early.entry(name).or_default().extend(flows.into_iter().take(room));
                    }
                    None => {}
                }
            }
            EdgeWord::Hello { .. } | EdgeWord::Refused(_) | EdgeWord::Nonsense => {}
        }
        true
    }

    /// Where two operators spoke at once, a host server is rather drained than not.
    fn hear_drain(
        &mut self,
        name: &str,
        yes: bool,
        stamp: u64,
        spread: &mut SpreadMachine,
        host: &mut impl SpreadHost,
    ) {
        if spread.setup.given(name).is_none()
            || self.drains.get(name).is_some_and(|known| *known >= (stamp, yes))
        {
            return;
        }
        self.drains.insert(name.to_owned(), (stamp, yes));
        spread.drain(name, !yes, host);
    }

    /// An operator has drained a host server here, or (`end`) no longer drains it.
    pub fn handle_drained(&mut self, name: &str, end: bool, host: &mut impl EdgesHost) {
        let known = self.drains.values().map(|(stamp, _)| stamp.saturating_add(1)).max();
        // By the clock, so that a word of another life that nobody here has heard is older.
        let stamp = known.unwrap_or(1).max(host.unix_ms());
        self.drains.insert(name.to_owned(), (stamp, !end));
        for edge in self.here() {
            host.tell(edge, &Message::Drains { host: name, yes: !end, stamp });
        }
    }

    /// When [`Edges::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let patience = self.patience();
        let heard = self.peers.iter().filter(|peer| peer.here);
        let silences = heard.map(|peer| peer.heard_at.plus(patience));
        silences.filter(|at| *at > self.turned_at).fold(self.beat_at, Nanos::min)
    }

    /// Sends signs of life and flows, and says whether this edge acts.
    pub fn handle_timeout<H: SpreadHost + EdgesHost>(
        &mut self,
        now: Nanos,
        spread: &mut SpreadMachine,
        host: &mut H,
    ) {
        self.turned_at = now;
        self.adopt_early(spread, host);
        let moved = std::mem::take(&mut spread.moved);
        let peers = self.here();
        if (moved || self.refresh_at <= now) && !peers.is_empty() {
            let flows = host.elsewhere();
            for &edge in &peers {
                self.peers[edge].to_send = parts(&flows, spread);
            }
        }
        if self.refresh_at <= now {
            self.refresh_at = now.plus(nanos(REFRESH));
        }
        if self.setup.shared && self.beat_at <= now {
            self.look(now, host.seen());
        }
        let was = (self.able, self.serves);
        self.able = self.is_able(now, spread, host);
        self.decide(now, host);
        // What an earlier life has said stands until it is clear that this one says otherwise.
        let is_late = now >= self.began.plus(nanos(2 * WAIT));
        let is_clear = self.able || self.shown.is_some() || is_late && spread.is_settled();
        if is_clear && self.shown.replace(self.able) != Some(self.able) {
            host.show_able(self.able);
        }
        if self.beat_at <= now || was != (self.able, self.serves) {
            self.beat_at = now.plus(self.period());
            for &edge in &peers {
                host.tell(edge, &self.duty());
            }
        }
        for edge in peers {
            self.send_flows(edge, host);
        }
    }

    /// Enters the connections of host servers that have come since they were told.
    fn adopt_early(&mut self, spread: &SpreadMachine, host: &mut impl EdgesHost) {
        for peer in &mut self.peers {
            peer.early.retain(|name, flows| match spread.slots_of(name).first() {
                Some(&slot) => {
                    host.adopt(slot, flows);
                    false
                }
                None => true,
            });
        }
    }

    fn send_flows(&mut self, edge: usize, host: &mut impl EdgesHost) {
        while host.has_room(edge) {
            let Some(Part { host: name, flows, last }) = self.peers[edge].to_send.pop_front()
            else {
                return;
            };
            host.tell(edge, &Message::Flows { host: &name, flows, last });
        }
    }

    /// Whether this edge could have clients' packets: it hears a host server, and knows what the
    /// other edges know, as far as they are there. One that starts waits for all host servers, too:
    /// by a table without one of them, it would take that one's connections elsewhere.
    fn is_able(
        &self,
        now: Nanos,
        spread: &SpreadMachine,
        host: &(impl SpreadHost + EdgesHost),
    ) -> bool {
        let knows = |edge: usize| {
            let peer = &self.peers[edge];
            !peer.here || (peer.synced && peer.early.is_empty())
        };
        let others = || (0..self.peers.len()).filter(|edge| *edge != self.setup.me);
        let has_waited = now >= self.began.plus(nanos(WAIT));
        let is_here = |edge: usize| self.peers[edge].here;
        let all_here = || others().all(is_here) && (others().count() == 0 || spread.hears_all());
        let is_told = others().all(knows) && (has_waited || all_here());
        host.is_sound()
            && spread.is_settled()
            && spread.hears_somebody()
            && (self.able || self.serves || is_told || now >= self.began.plus(nanos(2 * WAIT)))
    }

    fn look(&mut self, now: Nanos, seen: u64) {
        if self.seen != seen {
            (self.seen, self.grew_at) = (seen, now);
            self.peers.iter_mut().for_each(|peer| peer.sight.then = peer.sight.seen);
        }
    }

    /// Whether clients' packets come here, and not to another edge that all of them should reach:
    /// it is cut off on that side alone.
    fn is_deaf(&self, edge: usize, now: Nanos) -> bool {
        let sight = self.peers[edge].sight;
        self.seen.saturating_sub(sight.own_then) >= FEW
            && now >= sight.grew_at.plus(self.patience())
    }

    /// The same of this edge, as another one's count tells.
    fn am_deaf(&self, now: Nanos) -> bool {
        let mut heard = self.peers.iter().enumerate().filter(|(edge, _)| self.is_heard(*edge, now));
        let misses = |peer: &Peer| peer.sight.seen.saturating_sub(peer.sight.then) >= FEW;
        now >= self.grew_at.plus(self.patience()) && heard.any(|(_, peer)| misses(peer))
    }

    fn decide(&mut self, now: Nanos, host: &mut (impl SpreadHost + EdgesHost)) {
        if !self.setup.shared {
            return;
        }
        let able: Vec<usize> = (0..self.peers.len())
            .filter(|edge| self.is_heard(*edge, now) && self.peers[*edge].able)
            .filter(|edge| !self.is_deaf(*edge, now))
            .collect();
        let serving = able.iter().find(|edge| self.peers[**edge].serves);
        let first = able.first();
        let name = |edge: &usize| self.setup.names[*edge].clone();
        if self.serves {
            // Who hears no host server leaves it to one that does; of two, the first one goes on.
            let can = self.able && !self.am_deaf(now);
            let other = if can { serving.filter(|it| **it < self.setup.me) } else { first };
            if let Some(other) = other {
                host.note("rests", format!("{} acts", name(other)));
                self.serves = false;
                host.rest();
            }
        } else if self.able
            && !self.am_deaf(now)
            && serving.is_none()
            && first.is_none_or(|it| *it > self.setup.me)
        {
            let acted = (0..self.peers.len()).filter(|edge| self.peers[*edge].serves);
            let last = acted.max_by_key(|edge| self.peers[*edge].heard_at);
            let why = last.map_or("nobody did".to_owned(), |edge| {
                let is_heard = self.is_heard(edge, now);
                let what = match (is_heard, self.is_deaf(edge, now)) {
                    (true, true) => "gets nothing of clients",
                    (true, false) => "hears no host server",
                    (false, _) => "is silent",
                };
                format!("{} {what}", name(&edge))
            });
            host.note("acts", why);
            let since = last.map(|edge| self.last_acted(edge, now)).filter(|at| *at > Nanos(0));
            self.serves = true;
            host.serve(since);
        }
    }

    /// Until when another edge is known to have acted on what reached it.
    fn last_acted(&self, edge: usize, now: Nanos) -> Nanos {
        let peer = &self.peers[edge];
        let is_deaf = self.is_heard(edge, now) && self.is_deaf(edge, now);
        if is_deaf { peer.sight.grew_at } else { peer.heard_at }
    }

    fn is_heard(&self, edge: usize, now: Nanos) -> bool {
        let peer = &self.peers[edge];
        peer.greeted && peer.here && now < peer.heard_at.plus(self.patience())
    }

    fn here(&self) -> Vec<usize> {
        (0..self.peers.len()).filter(|edge| self.peers[*edge].here).collect()
    }

    fn period(&self) -> Nanos {
        if self.setup.shared { nanos(DUTY_EVERY) } else { self.setup.period }
    }

    fn patience(&self) -> Nanos {
        Nanos(self.period().0 * MISSED)
    }

    fn duty(&self) -> Message<'static> {
        Message::Duty { able: self.able, serves: self.serves, seen: self.seen }
    }

    /// Whether clients' packets should come to this edge.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.able
    }

    /// Whether another edge is heard that could act in this one's place.
    #[must_use]
    pub fn has_company(&self, now: Nanos) -> bool {
        (0..self.peers.len()).any(|edge| self.is_heard(edge, now) && self.peers[edge].able)
    }

    /// Whether it acts on what reaches all edges; `None` where nothing does.
    #[must_use]
    pub fn serves(&self) -> Option<bool> {
        self.setup.shared.then_some(self.serves)
    }

    /// The other edges: their names, and whether each is heard.
    pub fn others(&self, now: Nanos) -> impl Iterator<Item = (&str, bool)> {
        let others = (0..self.peers.len()).filter(|edge| *edge != self.setup.me);
        others.map(move |edge| (self.setup.names[edge].as_str(), self.is_heard(edge, now)))
    }

    /// What the group's state is, given what the host servers make of it: protected only while
    /// another edge is there, where the file has several.
    #[must_use]
    pub fn shown(&self, now: Nanos, spread: Shown) -> Shown {
        let away = self.others(now).find(|(_, heard)| !heard);
        match (away, spread.protection) {
            (Some((name, _)), Protection::Protected) => Shown::new(
                Protection::Unprotected,
                &format!("the edge {name} does not answer"),
                &format!("start holdfast on its host: holdfast run --role {name} --config FILE"),
            ),
            _ => spread,
        }
    }
}

/// The messages for these flows, by host server. The last one ends them, also where there is none.
fn parts(flows: &[Elsewhere], spread: &SpreadMachine) -> VecDeque<Part> {
    let mut by_slot: BTreeMap<u8, Vec<EdgeFlow>> = BTreeMap::new();
    for it in flows {
        by_slot.entry(it.slot).or_default().push(it.flow);
    }
    let mut parts = VecDeque::new();
    for (slot, flows) in &by_slot {
        let host = spread.name_of(*slot);
        let part =
            |flows: &[EdgeFlow]| Part { host: host.to_owned(), flows: flows.to_vec(), last: false };
        parts.extend(flows.chunks(FLOWS_MAX).map(part));
    }
    parts.push_back(Part { host: String::new(), flows: Vec::new(), last: true });
    parts
}

#[cfg(test)]
mod tests;
