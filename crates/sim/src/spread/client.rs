//! Clients: each opens one connection after the other, sends some requests on each, and
//! retransmits what is not answered.

use super::packet::{Answer, Conn, Packet, Said, Tuple};
use super::plan::{ClientPlan, MS, Trick};
use crate::{Ns, Rng};

/// Time until a SYN is retransmitted, in ns (RFC 6298 §2.1).
pub const SYN_AGAIN: Ns = 1000 * MS;
/// Time until any other packet is first retransmitted, in ns.
const AGAIN: Ns = 250 * MS;
/// Longest time between two retransmissions, in ns.
const AGAIN_MAX: Ns = 1000 * MS;
/// Number of retransmissions after which a connection is given up.
const TRIES_MAX: u32 = 6;
/// Time between two SYNs of a flooding client, in ns.
const FLOOD_EVERY: Ns = 2 * MS;
/// Time between two connections of a hoarding client, in ns.
const HOARD_EVERY: Ns = 20 * MS;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the answer to its SYN.
    Opens,
    /// It waits for a reply, or (not `waits`) pauses before the next request.
    Asks { number: u32, waits: bool },
    /// It waits for the answer to its FIN.
    Ends,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// The SYN was answered by an RST.
    Refused,
    /// It was reset after the handshake.
    Reset,
    /// It was given up without an answer.
    Lost,
}

/// A connection's state at its client.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub conn: Conn,
    pub stage: Stage,
    /// When its first SYN left.
    pub began: Ns,
    pub established: bool,
    again: Ns,
    tries: u32,
}

/// What a client wants done.
#[derive(Default)]
pub struct Wants {
    pub says: Vec<Packet>,
    /// Connection whose SYN was not answered in time.
    pub repeats_syn: Option<Conn>,
    pub ended: Option<(Open, End)>,
    /// When to wake it.
    pub wake: Option<Ns>,
}

/// The client; see the module.
pub struct Client {
    pub number: u16,
    pub plan: ClientPlan,
    pub open: Option<Open>,
    until: Ns,
    next: Ns,
    port: u16,
    rng: Rng,
    pub done: u64,
    pub replies: u64,
}

impl Client {
    pub fn new(number: u16, plan: ClientPlan, until: Ns, seed: u64) -> Self {
        let next = plan.start;
        let rng = Rng::new(seed, 600 + u64::from(number));
        Self { number, plan, open: None, until, next, port: 1024, rng, done: 0, replies: 0 }
    }

    pub fn is_hostile(&self) -> bool {
        self.plan.trick.is_some()
    }

    /// Whether no connection is open, and none will be opened.
    pub fn is_done(&self, now: Ns) -> bool {
        self.open.is_none() && now >= self.until
    }

    fn conn(&mut self) -> Conn {
        if !self.plan.reuses_port || self.is_hostile() {
            self.port = self.port.wrapping_add(1).max(1024);
        }
        let tuple = Tuple { client: self.number, port: self.port, service: self.plan.service };
        Conn { tuple, isn: self.rng.draw() as u32 }
    }

    /// Wakes the client at the time that it asked for.
    pub fn wake(&mut self, now: Ns) -> Wants {
        let mut wants = Wants::default();
        if let Some(trick) = self.plan.trick {
            self.play(now, trick, &mut wants);
        } else if self.open.is_some() {
            self.carry_on(now, &mut wants);
        } else if now >= self.next && now < self.until {
            self.begin(now, &mut wants);
        }
        if !self.is_hostile() {
            wants.wake = match &self.open {
                Some(open) => Some(open.again),
                None => (self.next < self.until).then_some(self.next.max(now + 1)),
            };
        }
        wants
    }

    fn begin(&mut self, now: Ns, wants: &mut Wants) {
        let conn = self.conn();
        wants.says.push(Packet { conn, said: Said::Syn });
        let (again, stage) = (now + SYN_AGAIN, Stage::Opens);
        self.open = Some(Open { conn, stage, began: now, established: false, again, tries: 0 });
    }

    fn play(&mut self, now: Ns, trick: Trick, wants: &mut Wants) {
        if now >= self.until {
            return;
        }
        let conn = self.conn();
        wants.says.push(Packet { conn, said: Said::Syn });
        let every = if trick == Trick::FloodsSyns { FLOOD_EVERY } else { HOARD_EVERY };
        wants.wake = Some(now + every);
    }

    fn carry_on(&mut self, now: Ns, wants: &mut Wants) {
        let Some(open) = self.open.as_mut().filter(|open| now >= open.again) else { return };
        let conn = open.conn;
        if let Stage::Asks { number, waits: false } = open.stage {
            if self.plan.vanishes && number > self.plan.requests / 2 {
                self.open = None;
                self.next = now + self.plan.think;
                return;
            }
            open.stage = if number >= self.plan.requests || now >= self.until {
                Stage::Ends
            } else {
                Stage::Asks { number, waits: true }
            };
            (open.tries, open.again) = (0, now + AGAIN);
        } else {
            open.tries += 1;
            let doubled = (AGAIN << open.tries.min(4)).min(AGAIN_MAX);
            open.again = now + if open.stage == Stage::Opens { SYN_AGAIN } else { doubled };
            if open.tries > TRIES_MAX {
                return self.end(now, End::Lost, wants);
            }
            if open.stage == Stage::Opens {
                wants.repeats_syn = Some(conn);
            }
        }
        let said = match open.stage {
            Stage::Opens => Said::Syn,
            Stage::Asks { number, .. } => Said::Data(number),
            Stage::Ends => Said::Fin,
        };
        wants.says.push(Packet { conn, said });
    }

    fn end(&mut self, now: Ns, end: End, wants: &mut Wants) {
        if let Some(open) = self.open.take() {
            wants.ended = Some((open, end));
        }
        self.done += u64::from(end == End::Done);
        self.next = now + self.plan.think;
        wants.wake = Some(self.next.max(now + 1)).filter(|next| *next < self.until);
    }

    /// Handles an answer from a host server.
    pub fn hear(&mut self, now: Ns, conn: Conn, answer: Answer) -> Wants {
        let mut wants = Wants::default();
        if self.plan.trick == Some(Trick::Hoards) && answer == Answer::SynAck {
            wants.says.push(Packet { conn, said: Said::Ack });
            return wants;
        }
        let Some(open) = self.open.as_mut().filter(|open| open.conn == conn) else {
            // An answer to a connection that has ended.
            if !self.is_hostile() && answer != Answer::Rst && answer != Answer::FinAck {
                wants.says.push(Packet { conn, said: Said::Rst });
            }
            return wants;
        };
        match (answer, open.stage) {
            (Answer::SynAck, Stage::Opens) => {
                open.stage = Stage::Asks { number: 0, waits: false };
                (open.established, open.again) = (true, now + MS);
                wants.says.push(Packet { conn, said: Said::Ack });
            }
            (Answer::Reply(to), Stage::Asks { number, waits: true }) if to == number => {
                open.stage = Stage::Asks { number: number + 1, waits: false };
                open.again = now + self.plan.think;
                self.replies += 1;
            }
            (Answer::FinAck, Stage::Ends) => self.end(now, End::Done, &mut wants),
            (Answer::Rst, Stage::Ends) => self.end(now, End::Done, &mut wants),
            (Answer::Rst, _) => {
                let end = if open.established { End::Reset } else { End::Refused };
                self.end(now, end, &mut wants);
            }
            _ => {}
        }
        if let Some(open) = &self.open {
            wants.wake = Some(open.again);
        }
        wants
    }
}
