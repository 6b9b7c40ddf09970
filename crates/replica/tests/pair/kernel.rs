//! The model of a member's TCP, with the gate's clamp: takes segments in order,
//! acknowledges up to what is stable, sends at once and repeats on a timer.

use crate::client::{Packet, Segment};
use holdfast_replica::primary::Peeked;
use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;

const SEGMENT_MAX: usize = 50;

#[derive(Clone, Debug)]
pub struct Socket {
    pub key: ConnKey,
    pub iss: SeqNo,
    pub irs: SeqNo,
    pub accept: Option<u32>,
    /// Stream offset of the first byte in `unread`.
    pub read: u64,
    pub unread: Vec<u8>,
    pub client_fin: bool,
    /// Acknowledge no further than this; `None` without a gate.
    pub clamp: Option<u64>,
    pub established: bool,
    pub snd_nxt: u64,
    pub snd_una: u64,
    /// Output from stream offset `sent_from` on.
    pub sent: Vec<u8>,
    pub sent_from: u64,
    pub fin_sent: bool,
    pub eof_read: bool,
    pub closed: bool,
}

impl Socket {
    pub fn new(syn: &Segment, iss: SeqNo) -> Self {
        Self {
            key: syn.key,
            iss,
            irs: syn.seq,
            accept: None,
            read: 0,
            unread: Vec::new(),
            client_fin: false,
            clamp: Some(0),
            established: false,
            snd_nxt: 0,
            snd_una: 0,
            sent: Vec::new(),
            sent_from: 0,
            fin_sent: false,
            eof_read: false,
            closed: false,
        }
    }

    pub fn received(&self) -> u64 {
        self.read + self.unread.len() as u64 + u64::from(self.client_fin)
    }

    pub fn is_readable(&self) -> bool {
        !self.closed && (!self.unread.is_empty() || (self.client_fin && !self.eof_read))
    }

    pub fn ack(&self) -> Packet {
        let received = self.received();
        Packet {
            key: self.key,
            seq: self.iss.plus(1 + self.snd_nxt + u64::from(self.fin_sent)),
            ack: self.irs.plus(1 + self.clamp.map_or(received, |clamp| clamp.min(received))),
            syn: false,
            fin: false,
            rst: false,
            payload: Vec::new(),
            depends: 0,
        }
    }

    pub fn syn_ack(&self) -> Packet {
        Packet { seq: self.iss, syn: true, ..self.ack() }
    }

    /// Takes one segment; true if an ACK is due.
    pub fn receive(&mut self, segment: &Segment) -> bool {
        let Some(ack) = segment.ack else { return false };
        self.established = true;
        let acked = ack.since(self.iss.plus(1));
        let sent = self.snd_nxt + u64::from(self.fin_sent);
        self.snd_una = self.snd_una.max(u64::try_from(acked).unwrap_or(0).min(sent));
        let next = self.received();
        let offset = i64::from(segment.seq.since(self.irs.plus(1)));
        let len = segment.payload.len() as i64;
        if self.client_fin
            || offset > next as i64
            || offset + len + i64::from(segment.fin) <= next as i64
        {
            return len > 0 || segment.fin;
        }
        let skip = (next as i64 - offset) as usize;
        self.unread.extend(segment.payload.get(skip..).unwrap_or_default());
        self.client_fin |= segment.fin;
        true
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.unread.drain(..len).collect();
        self.read += bytes.len() as u64;
        bytes
    }

    /// What is unread of `[from, until)`; a FIN counts as one byte.
    pub fn peek(&self, from: u64, until: u64, into: &mut Vec<u8>) -> Peeked {
        let end = self.read + self.unread.len() as u64;
        if self.closed || from < self.read || from > end {
            return Peeked::Nothing;
        }
        let until = until.clamp(from, end);
        into.clear();
        into.extend(&self.unread[(from - self.read) as usize..(until - self.read) as usize]);
        match (self.client_fin && until == end, into.is_empty()) {
            (true, _) => Peeked::Last,
            (false, true) => Peeked::Nothing,
            (false, false) => Peeked::Bytes,
        }
    }

    pub fn write(&mut self, bytes: &[u8], depends: u64, out: &mut Vec<Packet>) {
        self.sent.extend(bytes);
        for chunk in bytes.chunks(SEGMENT_MAX) {
            let packet = Packet { payload: chunk.to_vec(), depends, ..self.ack() };
            self.snd_nxt += chunk.len() as u64;
            out.push(packet);
        }
    }

    pub fn send_fin(&mut self, depends: u64, out: &mut Vec<Packet>) {
        if !self.fin_sent {
            out.push(Packet { fin: true, depends, ..self.ack() });
            self.fin_sent = true;
        }
    }

    /// Repeats what the client has not acknowledged.
    pub fn repeat(&self, out: &mut Vec<Packet>) {
        let from = self.snd_una.max(self.sent_from).min(self.snd_nxt);
        let ack = self.ack();
        let bytes = &self.sent[(from - self.sent_from) as usize..];
        for (n, chunk) in bytes.chunks(SEGMENT_MAX).enumerate() {
            let seq = self.iss.plus(1 + from + (n * SEGMENT_MAX) as u64);
            out.push(Packet { seq, payload: chunk.to_vec(), ..ack.clone() });
        }
        if self.fin_sent && self.snd_una <= self.snd_nxt {
            out.push(Packet { seq: self.iss.plus(1 + self.snd_nxt), fin: true, ..ack });
        }
    }

    /// Both ends of stream are acknowledged, on the wire.
    pub fn is_over(&self) -> bool {
        let released = self.clamp.is_none_or(|clamp| clamp >= self.received());
        self.client_fin && released && self.fin_sent && self.snd_una > self.snd_nxt
    }
}
