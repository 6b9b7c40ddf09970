//! A model client: sessions of requests, each on its own connection, and what a hostile client
//! does in addition.

mod conn;
mod tricks;

use crate::Ns;
use crate::Rng;
use crate::app::{END, Reply, Request};
use crate::packet::Packet;
use crate::plan::{ClientPlan, Stage, Trick};
use conn::{Conn, Took};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;

const FIRST_PORT: u16 = 1000;
/// For a client that leaves sessions in the middle: instead of one request in this many it leaves.
const LEAVES_ONE_IN: u64 = 8;
/// Longest time in ns that it then stays away.
const AWAY_MAX: Ns = 2_000_000;
/// Number of ports of one client.
const PORTS: u16 = 1000;

/// What a client noticed, for the checkers.
#[derive(Clone, Debug)]
pub enum Notice {
    Reply {
        request: Request,
        reply: Reply,
        whole: bool,
    },
    /// A reset; `heard`: the server had sent something before.
    Reset {
        key: ConnKey,
        heard: bool,
    },
    Finished,
}

/// What a client would do with a packet of one of its server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ear {
    /// It does not know the connection, or nobody can tell.
    Unknown,
    /// This is its rcv_nxt.
    Expects(SeqNo),
    /// It has given the connection up, and begins the next one on the same four-tuple.
    Elsewhere,
}

/// The client; see the module.
pub struct Client {
    pub number: u8,
    pub plan: ClientPlan,
    rng: Rng,
    pub session: u16,
    pub conn: Option<Conn>,
    over: Vec<Conn>,
    next_port: u16,
    /// When it next acts by itself.
    pub act_at: Option<Ns>,
    pub load_until: Ns,
    pub vanished: bool,
    pub finished: bool,
    pub notices: Vec<Notice>,
    /// Bytes of replies, which show progress.
    pub received: u64,
    /// How often it has answered a member's probe with a lie.
    pub lies: u64,
}

impl Client {
    pub fn new(number: u8, plan: ClientPlan, load_until: Ns, rng: Rng) -> Self {
        let act_at = Some(plan.start);
        Self {
            number,
            plan,
            rng,
            session: 0,
            conn: None,
            over: Vec::new(),
            next_port: 0,
            act_at,
            load_until,
            vanished: false,
            finished: false,
            notices: Vec::new(),
            received: 0,
            lies: 0,
        }
    }

    /// What it would do with a packet, other than a SYN-ACK, of this connection of its server.
    pub fn ear(&self, key: &ConnKey, iss: SeqNo) -> Ear {
        let begins = |conn: &Conn| conn.key == *key && conn.iss.is_none();
        if self.conn.as_ref().is_some_and(begins) {
            return Ear::Elsewhere;
        }
        if matches!(self.plan.trick, Some(Trick::AcksUnsent | Trick::ResetsBeside)) {
            // A liar may not have what it has acknowledged.
            return Ear::Unknown;
        }
        let mut conns = self.conn.iter().chain(&self.over).filter(|c| c.key == *key);
        let known = conns.find(|c| c.iss == Some(iss));
        known.map_or(Ear::Unknown, |conn| Ear::Expects(conn.rcv_nxt()))
    }

    /// Whether it waits for the first answer on a four-tuple that it uses only once.
    pub fn begins(&self, key: &ConnKey) -> bool {
        let again = self.plan.reuse_port || self.plan.comes_again || self.is_hostile();
        !again && self.conn.as_ref().is_some_and(|c| c.key == *key && c.iss.is_none())
    }

    pub fn owns(&self, key: &ConnKey) -> bool {
        (key.client_port - FIRST_PORT) / PORTS == u16::from(self.number)
    }

    /// When [`Self::act`] is due.
    pub fn timer(&self) -> Option<Ns> {
        let rto = self.conn.as_ref().and_then(|conn| conn.rto_at);
        let end = self.plan.vanishes_at.filter(|_| !self.vanished);
        [rto, self.act_at, end].into_iter().flatten().min()
    }

    /// Does what is due: begins a session, makes a request, or retransmits.
    pub fn act(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if self.plan.vanishes_at.is_some_and(|at| at <= now) {
            self.vanish();
        }
        if self.act_at.is_some_and(|at| at <= now) {
            self.act_at = None;
            match &self.conn {
                None if self.floods(now) => {}
                None if now < self.load_until || self.session == 0 => self.connect(now),
                None => self.finish(),
                Some(_) => self.ask(now),
            }
        }
        self.look(now, out);
        if let Some(conn) = &mut self.conn {
            conn.push(now, out);
            if conn.rto_at.is_some_and(|at| at <= now) {
                conn.on_timer(now, &self.plan, &mut self.rng, out);
                if conn.is_done() {
                    self.end_session(now);
                }
            }
        }
        self.misbehave(now, None, out);
        self.vanish_in_time();
    }

    /// Whether this is its current connection, with this initial sequence number.
    pub fn has(&self, key: &ConnKey, irs: SeqNo) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.key == *key && conn.irs == irs)
    }

    /// The stage at which it vanishes in this session, if it does.
    fn stage(&self) -> Option<Stage> {
        self.plan.vanishes_in.filter(|_| self.session > 1)
    }

    /// Makes the client vanish once it has sent all that it will ever send.
    fn vanish_in_time(&mut self) {
        let ended = self.conn.as_ref().is_some_and(Conn::has_ended);
        if ended && self.stage() == Some(Stage::Ended) {
            self.vanish();
        }
    }

    fn vanish(&mut self) {
        self.vanished = true;
        self.act_at = None;
        self.conn = None;
    }

    fn finish(&mut self) {
        self.finished = true;
        self.notices.push(Notice::Finished);
    }

    fn connect(&mut self, now: Ns) {
        self.session += 1;
        let reuse = (self.plan.reuse_port || self.plan.comes_again) && self.session > 1;
        if !reuse {
            self.next_port = (self.next_port + 1) % PORTS;
        }
        let key = self.key_of(self.next_port);
        let near = (self.rng.below(4000) as u32).wrapping_neg();
        let mut irs = if self.plan.near_wrap { near } else { self.rng.draw() as u32 };
        if reuse && let Some(last) = self.over.last() {
            // A new connection on the four-tuple starts above the old one (RFC 9293 §3.4.1).
            irs = last.irs.0.wrapping_add(1_000_000);
        }
        self.over.retain(|conn| conn.key != key);
        self.conn = Some(Conn::new(key, SeqNo(irs), &self.plan, now));
    }

    /// Makes the next request, or ends the session.
    fn ask(&mut self, now: Ns) {
        if self.plan.comes_again && now < self.load_until && self.rng.one_in(LEAVES_ONE_IN) {
            self.over.extend(self.conn.take());
            self.act_at = Some(now + 1 + self.rng.below(AWAY_MAX));
            return;
        }
        let (number, session) = (self.number, self.session);
        let Some(conn) = self.conn.as_mut().filter(|conn| !conn.finishing) else { return };
        let last = conn.requests.len() >= usize::from(self.plan.requests)
            || (now >= self.load_until && !conn.requests.is_empty());
        if last {
            if conn.replies == conn.requests.len() || self.plan.half_close {
                conn.finishing = true;
                conn.ended_first = !conn.server_fin;
            }
            return;
        }
        let open = conn.requests.len() - conn.replies;
        if open >= usize::from(self.plan.pipeline) {
            return;
        }
        let ends =
            self.plan.server_ends && conn.requests.len() + 1 == usize::from(self.plan.requests);
        let request = Request {
            client: number,
            session,
            index: conn.requests.len() as u32,
            filler: self.rng.below(u64::from(self.plan.filler_max) + 1) as u16,
            bulk: self.rng.below(u64::from(self.plan.bulk_max) + 1) as u16,
            flags: if ends { END } else { 0 },
        };
        conn.outgoing.extend(request.bytes());
        conn.requests.push(request);
        let pause = self.rng.below(self.plan.think);
        self.act_at = Some(now + pause);
    }

    /// Lets the client's program stop reading, so that its window closes, or read again, so that
    /// the window opens.
    fn look(&mut self, now: Ns, out: &mut Vec<Packet>) {
        let away = self.plan.looks_away.is_some_and(|(from, until)| (from..until).contains(&now));
        let Some(conn) = &mut self.conn else { return };
        let back = conn.away && !away;
        conn.away = away;
        if away {
            self.act_at.get_or_insert(now + 10_000_000);
        }
        if back {
            self.act_at = Some(now + 1_000_000);
            self.read();
            if let Some(conn) = self.conn.as_ref().filter(|conn| conn.iss.is_some()) {
                out.push(conn.ack(now));
            }
        }
    }

    pub fn receive(&mut self, now: Ns, p: &Packet, out: &mut Vec<Packet>) {
        if self.vanished || self.plan.vanishes_at.is_some_and(|at| at <= now) {
            return;
        }
        self.look(now, out);
        if self.conn.as_ref().is_none_or(|conn| conn.key != p.key) {
            return self.answer_for_ended(now, p, out);
        }
        if self.stage() == Some(Stage::HalfOpen) && p.is(Flags::SYN | Flags::ACK) {
            return self.vanish();
        }
        self.take(now, p, out);
        self.misbehave(now, Some(p), out);
        self.vanish_in_time();
    }

    fn take(&mut self, now: Ns, p: &Packet, out: &mut Vec<Packet>) {
        let Some(conn) = &mut self.conn else { return };
        match conn.receive(now, p, out) {
            Took::Reset => {
                let heard = conn.rx > 0;
                self.notices.push(Notice::Reset { key: conn.key, heard });
                self.end_session(now);
                return;
            }
            Took::Nothing => {}
            Took::Bytes => self.read(),
        }
        let pending = self.act_at.is_none();
        let Some(conn) = &mut self.conn else { return };
        if pending && conn.iss.is_some() && !conn.finishing {
            let pause = if conn.requests.len() > conn.replies { 0 } else { self.plan.think };
            self.act_at = Some(now + self.rng.below(pause + 1));
        }
        if conn.server_fin && !conn.finishing {
            conn.finishing = true;
        }
        conn.push(now, out);
        if conn.is_done() {
            self.end_session(now);
        }
    }

    fn end_session(&mut self, now: Ns) {
        self.over.extend(self.conn.take());
        self.act_at = Some(now + 1 + self.rng.below(self.plan.think));
    }

    /// Lets the client's program read what has arrived.
    fn read(&mut self) {
        let Some(conn) = self.conn.as_mut().filter(|conn| !conn.away) else { return };
        while let Some(reply) = Reply::parse(&conn.unparsed) {
            let len = reply.len();
            if conn.unparsed.len() < len {
                return;
            }
            let Some(request) = conn.requests.get(conn.replies).copied() else {
                // An answer that was never asked for: the checker must say so.
                let request = Request { index: u32::MAX, ..conn.requests[0] };
                self.notices.push(Notice::Reply { request, reply, whole: true });
                conn.unparsed.clear();
                return;
            };
            let bulk = &conn.unparsed[crate::app::REPLY_HEADER..len];
            let right = bulk.iter().enumerate();
            let whole =
                right.fold(true, |ok, (i, b)| ok && *b == crate::app::bulk(reply.counter, i));
            conn.unparsed.drain(..len);
            conn.replies += 1;
            self.received += len as u64;
            self.notices.push(Notice::Reply { request, reply, whole });
        }
    }

    /// Answers a packet of a connection that is over here: in TIME-WAIT with an ACK, else with a
    /// reset (RFC 9293 §3.10.7.1).
    fn answer_for_ended(&mut self, now: Ns, p: &Packet, out: &mut Vec<Packet>) {
        if p.is(Flags::RST) {
            return;
        }
        let Some(conn) = self.over.iter_mut().find(|conn| conn.key == p.key) else { return };
        if !conn.ended_first || p.is(Flags::SYN) {
            out.push(Packet { seq: p.ack, flags: Flags::RST, ..conn.ack(now) });
        } else if p.len() > 0 {
            out.push(conn.ack(now));
        }
    }
}
