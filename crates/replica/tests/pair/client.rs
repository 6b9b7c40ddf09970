//! A model client: its TCP (go-back-N, one timer) and what it asks and checks.

use crate::rng::Rng;
use crate::server::{self, REPLY_LEN};
use holdfast_replica::{Nanos, TapSegment};
use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;

pub const RTO: Nanos = Nanos::from_ms(30);
const SEGMENT_MAX: usize = 40;
const WINDOW: u16 = 60000;

/// A packet from a client.
#[derive(Clone, Debug)]
pub struct Segment {
    pub key: ConnKey,
    pub seq: SeqNo,
    pub ack: Option<SeqNo>,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub tsval: u32,
    pub payload: Vec<u8>,
    /// Stands for the raw packet: where the world keeps it.
    pub id: u64,
}

impl Segment {
    pub fn with_view<R>(&self, f: impl FnOnce(&TapSegment<'_>) -> R) -> R {
        let raw = self.id.to_le_bytes();
        f(&TapSegment {
            key: self.key,
            seq: self.seq,
            ack: self.ack.unwrap_or_default(),
            syn: self.syn,
            ack_flag: self.ack.is_some(),
            fin: self.fin,
            rst: self.rst,
            window: WINDOW,
            tsval: Some(self.tsval),
            mss: self.syn.then_some(1460),
            wscale: None,
            sack_permitted: self.syn,
            payload: &self.payload,
            raw: &raw,
        })
    }
}

/// A packet to a client.
#[derive(Clone, Debug)]
pub struct Packet {
    pub key: ConnKey,
    pub seq: SeqNo,
    pub ack: SeqNo,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    pub payload: Vec<u8>,
    /// Log records that must be held elsewhere before this may leave.
    pub depends: u64,
}

#[derive(Debug)]
pub struct Client {
    pub key: ConnKey,
    pub number: u8,
    pub irs: SeqNo,
    iss: Option<SeqNo>,
    /// Everything it will send; request `i` ends at `ends[i]`.
    outgoing: Vec<u8>,
    ends: Vec<usize>,
    streaming: bool,
    una: usize,
    nxt: usize,
    pub received: Vec<u8>,
    pub server_fin: bool,
    pub reset: bool,
}

impl Client {
    pub fn new(number: u8, requests: u32, streaming: bool, rng: &mut Rng) -> Self {
        let (mut outgoing, mut ends) = (Vec::new(), Vec::new());
        for index in 0..requests {
            let len = rng.below(70) as usize;
            outgoing.extend(server::request(number, index, len));
            ends.push(outgoing.len());
        }
        let key = ConnKey {
            server: [1; 16],
            client: [2; 16],
            server_port: 7,
            client_port: 1000 + u16::from(number),
        };
        Self {
            key,
            number,
            irs: SeqNo(rng.next() as u32),
            iss: None,
            outgoing,
            ends,
            streaming,
            una: 0,
            nxt: 0,
            received: Vec::new(),
            server_fin: false,
            reset: false,
        }
    }

    pub fn requests(&self) -> usize {
        self.ends.len()
    }

    pub fn replies(&self) -> usize {
        self.received.len() / REPLY_LEN
    }

    pub fn is_done(&self) -> bool {
        self.server_fin && self.replies() == self.requests() && self.una == self.outgoing.len() + 1
    }

    /// How far it may send now; one beyond the bytes is the FIN.
    fn may_send(&self) -> usize {
        match self.ends.get(self.replies()) {
            None => self.outgoing.len() + 1,
            Some(_) if self.streaming => self.outgoing.len(),
            Some(end) => *end,
        }
    }

    fn segment(&self, now: Nanos, from: usize, until: usize) -> Segment {
        let fin = until > self.outgoing.len();
        let bytes = from.min(self.outgoing.len())..until.min(self.outgoing.len());
        Segment {
            key: self.key,
            seq: self.irs.plus(1 + from as u64),
            ack: self
                .iss
                .map(|iss| iss.plus(1 + self.received.len() as u64 + u64::from(self.server_fin))),
            syn: false,
            fin,
            rst: false,
            tsval: now.as_ms() as u32,
            payload: self.outgoing[bytes].to_vec(),
            id: 0,
        }
    }

    fn syn(&self, now: Nanos) -> Segment {
        Segment {
            seq: self.irs,
            ack: None,
            syn: true,
            fin: false,
            payload: Vec::new(),
            ..self.segment(now, 0, 0)
        }
    }

    /// New data, as far as the request discipline allows.
    pub fn send(&mut self, now: Nanos, rng: &mut Rng, out: &mut Vec<Segment>) {
        while self.iss.is_some() && self.nxt < self.may_send() {
            let len = 1 + rng.below(SEGMENT_MAX as u64) as usize;
            let until = (self.nxt + len).min(self.may_send());
            out.push(self.segment(now, self.nxt, until));
            self.nxt = until;
        }
    }

    pub fn timer(&mut self, now: Nanos, rng: &mut Rng, out: &mut Vec<Segment>) {
        if self.iss.is_none() {
            out.push(self.syn(now));
        } else if self.una < self.nxt {
            // Other cuts than the first time, so that copies overlap.
            let until = (self.una + 1 + rng.below(2 * SEGMENT_MAX as u64) as usize).min(self.nxt);
            out.push(self.segment(now, self.una, until));
        }
    }

    pub fn receive(&mut self, now: Nanos, packet: &Packet, rng: &mut Rng, out: &mut Vec<Segment>) {
        if packet.rst {
            // In LAST_ACK a reset only says that the other side has finished.
            let last_ack = self.server_fin && self.nxt == self.outgoing.len() + 1;
            self.reset |= !last_ack;
            self.una = if last_ack { self.nxt } else { self.una };
            return;
        }
        if packet.syn && self.iss.is_none() {
            self.iss = Some(packet.seq);
        }
        let Some(iss) = self.iss else { return };
        let acked = packet.ack.since(self.irs.plus(1));
        self.una = self.una.max(usize::try_from(acked).unwrap_or(0).min(self.nxt));
        let next = self.received.len() as i32 + i32::from(self.server_fin);
        let offset = packet.seq.since(iss.plus(1));
        let end = offset + packet.payload.len() as i32 + i32::from(packet.fin);
        if offset <= next && end > next {
            let skip = (next - offset) as usize;
            self.received.extend(packet.payload.get(skip..).unwrap_or_default());
            self.server_fin |= packet.fin;
        }
        if packet.syn || packet.fin || !packet.payload.is_empty() {
            out.push(self.segment(now, self.nxt, self.nxt));
            if let Some(ack) = out.last_mut() {
                ack.fin = false;
            }
        }
        self.send(now, rng, out);
    }
}
