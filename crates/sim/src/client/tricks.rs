//! Hostile clients: what a client sends in addition to, or instead of, what its TCP would. Its own
//! connections may end because of that, but nobody else's.

use super::{Client, FIRST_PORT, PORTS};
use crate::Ns;
use crate::Rng;
use crate::client::conn::Conn;
use crate::packet::{ACK, Packet};
use crate::plan::{Manners, Trick};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;

/// Most SYNs that a flood sends at a time.
const FLOOD_BURST: u64 = 8;
/// Longest time between two such bursts, in ns.
const FLOOD_PAUSE: Ns = 20_000_000;
/// Time in ns after which a hostile client gives a session up, since nobody owes it an end.
const PATIENCE: Ns = 1_500_000_000;
/// Most bytes beyond what was sent that a liar acknowledges.
const LIE_MAX: u64 = 50_000;
/// Most payload bytes of a stray segment.
const STRAY_MAX: u64 = 200;

impl Client {
    /// Whether it is hostile, so that nobody owes it the end of its sessions.
    pub fn is_hostile(&self) -> bool {
        self.plan.manners() == Manners::Bad
    }

    /// Adds what its trick demands to `out`; it has just received `heard`, or acts by itself.
    pub(super) fn misbehave(&mut self, now: Ns, heard: Option<&Packet>, out: &mut Vec<Packet>) {
        let Some(trick) = self.plan.trick else { return };
        if now >= self.load_until {
            return;
        }
        if trick == Trick::FloodsSyns {
            if heard.is_none() && self.act_at.is_none() {
                self.flood(now, out);
            }
            return;
        }
        let Some(conn) = self.conn.as_ref().filter(|conn| conn.iss.is_some()) else { return };
        match trick {
            Trick::AcksUnsent => acks_unsent(conn, now, &mut self.rng, out),
            Trick::ResetsBeside => {
                self.lies += resets_beside(conn, now, heard, &mut self.rng, out);
            }
            Trick::StraysOutside => strays(conn, now, &mut self.rng, out),
            Trick::EndsTwice => ends_twice(conn, now, &mut self.rng, out),
            Trick::Storms | Trick::FloodsSyns => {}
        }
        let conn_age = now.saturating_sub(conn.since);
        let storms = trick == Trick::Storms && conn.replies > 0;
        if storms || conn_age > PATIENCE {
            self.hang_up(now, out);
        }
    }

    /// Ends the connection at once by a reset that its server accepts.
    fn hang_up(&mut self, now: Ns, out: &mut Vec<Packet>) {
        if let Some(conn) = &self.conn {
            out.push(Packet { flags: Flags::RST | ACK, ..conn.ack(now) });
        }
        self.end_session(now);
    }

    /// Whether it floods, and begins no session of its own.
    pub(super) fn floods(&self, now: Ns) -> bool {
        self.plan.trick == Some(Trick::FloodsSyns) && now < self.load_until
    }

    /// Sends SYNs whose handshakes it will not complete.
    fn flood(&mut self, now: Ns, out: &mut Vec<Packet>) {
        for _ in 0..1 + self.rng.below(FLOOD_BURST) {
            self.session = self.session.wrapping_add(1);
            let key = self.key_of(self.session % PORTS);
            let conn = Conn::new(key, SeqNo(self.rng.draw() as u32), &self.plan, now);
            out.push(conn.syn(now, &self.plan));
        }
        self.act_at = Some(now + self.rng.below(FLOOD_PAUSE));
    }

    /// The four-tuple of one of its ports.
    pub(super) fn key_of(&self, port: u16) -> ConnKey {
        ConnKey {
            server: [1; 16],
            client: [2; 16],
            server_port: 7,
            client_port: FIRST_PORT + u16::from(self.number) * PORTS + port,
        }
    }
}

fn acks_unsent(conn: &Conn, now: Ns, rng: &mut Rng, out: &mut Vec<Packet>) {
    if rng.one_in(3) {
        let ack = conn.rcv_nxt().plus(1 + rng.below(LIE_MAX));
        let last = out.last().cloned().unwrap_or_else(|| conn.ack(now));
        out.push(Packet { ack, ..last });
    }
}

/// Sends a RST one beyond rcv_nxt, which RFC 5961 §3.2 answers with a challenge ACK. A probe (one
/// old byte) it answers with an ACK of more than was sent. Returns the number of such lies.
fn resets_beside(
    conn: &Conn,
    now: Ns,
    heard: Option<&Packet>,
    rng: &mut Rng,
    out: &mut Vec<Packet>,
) -> u64 {
    let asks = |p: &Packet| p.payload.len() == 1 && !p.seq_end().after(conn.rcv_nxt());
    let asked = heard.is_some_and(asks);
    if asked {
        let more = 1 + rng.below(LIE_MAX);
        out.iter_mut().for_each(|packet| packet.ack = packet.ack.plus(more));
    }
    if rng.one_in(6) {
        let seq = conn.ack(now).seq.plus(1);
        out.push(Packet { seq, flags: Flags::RST, ..conn.ack(now) });
    }
    u64::from(asked)
}

/// Sends stray segments: beyond the window, far before it, at random numbers, without an ACK, or a
/// SYN in the middle of the stream.
fn strays(conn: &Conn, now: Ns, rng: &mut Rng, out: &mut Vec<Packet>) {
    if !rng.one_in(3) {
        return;
    }
    let own = conn.ack(now);
    let edge = conn.irs.plus(1 + conn.edge);
    let seq = match rng.below(4) {
        0 => edge.plus(rng.below(2000)),
        1 => SeqNo(own.seq.0.wrapping_sub(rng.below(5000) as u32)),
        2 => SeqNo(rng.draw() as u32),
        _ => own.seq,
    };
    let flags = match rng.below(8) {
        0 => Flags::SYN,
        1 => Flags::default(),
        2 => Flags::FIN | ACK,
        _ => ACK,
    };
    // A SYN as of another connection on the four-tuple.
    let seq = if flags.has(Flags::SYN) { own.seq.plus(1 << 30) } else { seq };
    let len = if flags.has(Flags::SYN) { 0 } else { rng.below(STRAY_MAX) as usize };
    // No payload at the right place: those bytes would be part of the stream.
    let payload = if seq == own.seq { [].into() } else { vec![0xaa; len].into() };
    out.push(Packet { seq, flags, payload, ..own });
}

/// Sends a FIN in the middle of the stream, and later another one, with bytes
/// before it.
fn ends_twice(conn: &Conn, now: Ns, rng: &mut Rng, out: &mut Vec<Packet>) {
    if !rng.one_in(4) {
        return;
    }
    let own = conn.ack(now);
    let later = rng.below(3) * 10;
    let payload = vec![0xbb; later as usize].into();
    out.push(Packet { flags: Flags::FIN | ACK, payload, ..own });
}
