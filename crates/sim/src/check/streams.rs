//! Law L5: every client reads the stream of one server that never crashed. Bytes that a client
//! could have read never change, replies are correct and in order, and all of them together come
//! from one counter that counts each request once.

use crate::app::{Clocks, Reply, digest};
use crate::client::Notice;
use crate::packet::{ACK, Packet};
use crate::plan::Manners;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that were released to the client on one connection.
#[derive(Debug)]
struct Released {
    iss: SeqNo,
    bytes: Vec<Option<u8>>,
    fin: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Reader {
    session: u16,
    replies: u32,
    digest: u64,
    counter: u64,
}

/// What clients could read; see the module.
#[derive(Debug)]
pub struct Streams {
    released: BTreeMap<ConnKey, Released>,
    readers: Vec<Reader>,
    /// For each value of the counter, the client that got it, and the server's clocks then.
    counters: BTreeMap<u64, (usize, Clocks)>,
    /// By how much the time of day was ever set back, in ns.
    set_back: i64,
    /// Handshakes that were ended by a primary whose listener is full, or by a kernel that got no
    /// answer.
    unanswered: BTreeSet<ConnKey>,
    /// Connections whose clients had not acknowledged what they were sent before a join.
    not_kept: BTreeSet<ConnKey>,
    replies: u64,
    begun: u32,
}

impl Streams {
    pub fn new(clients: usize) -> Self {
        Self {
            released: BTreeMap::new(),
            readers: vec![Reader::default(); clients],
            counters: BTreeMap::new(),
            set_back: 0,
            unanswered: BTreeSet::new(),
            not_kept: BTreeSet::new(),
            replies: 0,
            begun: 0,
        }
    }

    pub fn handshake_ended(&mut self, key: ConnKey) {
        self.unanswered.insert(key);
    }

    pub fn not_kept(&mut self, key: ConnKey) {
        self.not_kept.insert(key);
    }

    pub fn may_be_lost(&self, key: &ConnKey) -> bool {
        self.not_kept.contains(key)
    }

    /// Notes that the time of day of a host was set.
    pub fn clock_set(&mut self, by: i64) {
        self.set_back += by.min(0).abs();
    }

    pub fn server_begins(&mut self) {
        self.begun += 1;
    }

    /// The ISS of the connection whose server's FIN the client's packet acknowledges.
    pub fn has_all(&self, p: &Packet) -> Option<SeqNo> {
        let released = self.released.get(&p.key).filter(|_| p.is(ACK))?;
        let end = released.iss.plus(2 + released.fin?);
        (p.ack == end).then_some(released.iss)
    }

    pub fn replies(&self) -> u64 {
        self.replies
    }

    pub fn passed(&mut self, p: &Packet, expected: Option<SeqNo>) -> Option<String> {
        if p.is(Flags::RST) {
            return None;
        }
        if p.is(Flags::SYN) {
            let known = self.released.get(&p.key).is_some_and(|released| released.iss == p.seq);
            if !known {
                let released = Released { iss: p.seq, bytes: Vec::new(), fin: None };
                self.released.insert(p.key, released);
            }
            return None;
        }
        let released = self.released.get_mut(&p.key)?;
        let from = u64::try_from(p.seq.since(released.iss.plus(1))).ok()?;
        let Some(expected) = expected else {
            // The FIN is noted even for a client whose reading is not checked.
            if p.is(Flags::FIN) {
                released.fin.get_or_insert(from + p.payload.len() as u64);
            }
            return None;
        };
        for (byte, offset) in p.payload.iter().zip(from..) {
            // Bytes that the client has already are not checked again.
            if expected.after(released.iss.plus(1 + offset)) {
                continue;
            }
            if released.fin.is_some_and(|fin| offset >= fin) {
                return Some(format!("byte {offset} lies behind the end of the stream"));
            }
            let at = offset as usize;
            if released.bytes.len() <= at {
                released.bytes.resize(at + 1, None);
            }
            let known = *released.bytes[at].get_or_insert(*byte);
            if known != *byte {
                return Some(format!("byte {offset} was {known:#x}, and is {byte:#x} now"));
            }
        }
        if p.is(Flags::FIN) {
            let end = from + p.payload.len() as u64;
            let fin = *released.fin.get_or_insert(end);
            if fin != end {
                return Some(format!("the stream ended at {fin}, and ends at {end} now"));
            }
        }
        None
    }

    pub fn noticed(
        &mut self,
        client: usize,
        manners: Manners,
        gone: bool,
        notice: &Notice,
    ) -> Option<String> {
        match notice {
            Notice::Finished => None,
            // A service whose state is lost may reset. So may the stream of a client that sent
            // two values for one byte, since it is not known which one counts. And a hostile
            // client may have requested something else than it meant.
            Notice::Reset { key, heard } => {
                // A handshake that was given up may be reset, even late.
                let too_late = !heard && self.unanswered.contains(key);
                let wrong = !gone && manners == Manners::Good && !too_late;
                let wrong = wrong && !self.not_kept.contains(key);
                wrong.then(|| format!("client {client} was reset"))
            }
            Notice::Reply { request, reply, whole } => {
                self.replies += 1;
                let reader = &mut self.readers[client];
                if reader.session != request.session {
                    *reader = Reader { session: request.session, ..Reader::default() };
                }
                reader.replies += 1;
                reader.digest = digest(reader.digest, &request.bytes());
                let right = *whole
                    && (reply.client, reply.session, reply.index)
                        == (request.client, request.session, request.index)
                    && reply.count == reader.replies
                    && reply.counter > reader.counter
                    && (manners != Manners::Good || reply.digest == reader.digest);
                reader.counter = reply.counter;
                if !right && manners != Manners::Bad {
                    return Some(format!("client {client} asked {request:?}, was told {reply:?}"));
                }
                if gone { None } else { self.count(client, reply) }
            }
        }
    }

    /// At the end of a run in which every client has read all that it requested: judges whether
    /// each request was executed once.
    pub fn unread_counts(&self) -> Option<String> {
        let highest = self.counters.last_key_value().map_or(0, |(counter, _)| *counter);
        let replies = self.counters.len() as u64;
        (highest != replies).then(|| format!("{replies} replies were read, {highest} counted"))
    }

    /// Judges a value of the counter: each occurs once, and values rise with time.
    fn count(&mut self, client: usize, reply: &Reply) -> Option<String> {
        let now = (client, reply.clocks);
        if let Some((other, _)) = self.counters.insert(reply.counter, now) {
            return Some(format!("clients {other} and {client} both got {}", reply.counter));
        }
        let before = self.counters.range(..reply.counter).next_back();
        let after = self.counters.range(reply.counter + 1..).next();
        let is_back =
            |one: Clocks, other: Clocks| one[0] > other[0] || one[1] - other[1] > self.set_back;
        let wrong = before.is_some_and(|(_, (_, clocks))| is_back(*clocks, reply.clocks))
            || after.is_some_and(|(_, (_, clocks))| is_back(reply.clocks, *clocks));
        wrong.then(|| format!("a clock went back at {}", reply.counter))
    }
}
