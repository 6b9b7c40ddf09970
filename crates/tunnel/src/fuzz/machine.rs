//! The whole machine: a peer that has keys and says what it likes, while this end sends and reads.

use super::Draw;
use crate::frame::{Ack, BITMAP_BYTES_MAX, Frame, LANES, LaneAck, LossCounts, ROW_MIN};
use crate::item::Item;
use crate::wire::truncated;
use crate::{Class, Config, Ecn, Endpoint, Inside, Limits, StreamId};
use std::time::Duration;

/// Limits that are reached soon.
const LIMITS: Limits = Limits {
    window_symbols: 48,
    window_bytes: 20_000,
    rows_waiting: 8,
    queue_bytes: 20_000,
    queue_packets: 60,
    flows: 4,
    resequence_bytes: 5000,
    assembly_bytes: 8000,
    streams: 4,
    stream_bytes: 300_000,
    streams_bytes: 400_000,
    inside_bytes: 20_000,
};
/// Times that an end may be polled at one moment before it is found to spin.
const POLLS_MAX: usize = 5000;

struct Run<'a> {
    draw: Draw<'a>,
    end: Endpoint,
    now: Duration,
    /// The peer's next number, and the numbers of the lanes' next symbols as it counts them.
    number: u64,
    seqs: [u64; LANES],
    sent: u64,
    given: usize,
}

/// Runs a machine through what `bytes` say; how many packets, messages and events it gave inside.
///
/// # Panics
/// If it spins, or gives what cannot be.
pub fn machine(bytes: &[u8]) -> usize {
    let mut draw = Draw(bytes);
    let seed = u64::from(draw.byte());
    let overhead_max = [0.0, 0.35, 3.0, f64::INFINITY][usize::from(draw.byte() % 4)];
    let config = Config { limits: LIMITS, overhead_max, ..Config::default() };
    let end = Endpoint::new(config, seed, Duration::ZERO);
    let now = Duration::ZERO;
    let mut run = Run { draw, end, now, number: 0, seqs: [0; LANES], sent: 0, given: 0 };
    while let Some(deed) = run.draw.deed() {
        run.step(deed);
        run.drain();
    }
    let _report = run.end.report();
    run.given
}

impl Run<'_> {
    fn step(&mut self, deed: u8) {
        match deed % 16 {
            // The peer speaks.
            0..=8 => {
                let mut plaintext = Vec::new();
                for at in 0..=deed / 64 {
                    self.frame(at == deed / 64, &mut plaintext);
                }
                if deed % 16 == 8 {
                    plaintext = self.draw.body();
                }
                let number = if deed & 16 == 0 { self.number } else { self.draw.near(self.number) };
                self.number = self.number.max(number.wrapping_add(1));
                let ecn = Ecn::of_bits(deed >> 4);
                let _refused = self.end.handle_datagram(number, &plaintext, ecn, self.now);
            }
            9 => self.now += Duration::from_micros(1 << (self.draw.byte() % 22)),
            10 => {
                let bytes = self.draw.body();
                let class = Class::ALL[usize::from(deed / 16) % LANES];
                let _refused = self.end.handle_message(u32::from(deed), class, &bytes, self.now);
            }
            11 => {
                let mut packet = self.draw.body();
                if let Some(first) = packet.first_mut() {
                    *first = if deed & 16 == 0 { 0x45 } else { 0x60 };
                }
                let _refused = self.end.handle_packet(&packet, self.now);
            }
            12 => self.stream(deed / 16),
            13 => self.end.set_datagram_bytes_max(usize::from(self.draw.u16())),
            14 => self.end.probe_path(usize::from(self.draw.u16())),
            _ if deed == u8::MAX => self.end.close(),
            _ => self.now += Duration::from_millis(u64::from(deed)),
        }
    }

    fn frame(&mut self, is_last: bool, out: &mut Vec<u8>) {
        let kind = self.draw.byte();
        let lane = usize::from(kind >> 4) % LANES;
        let patient = kind & 128 != 0;
        let seq = self.draw.near(self.seqs[lane]) & (u64::MAX >> 2);
        let short = truncated(seq);
        match kind % 16 {
            0..=5 => {
                self.seqs[lane] = self.seqs[lane].max(seq + 1);
                let symbol = self.symbol();
                Frame::Data { lane, patient, seq: short, symbol: &symbol }.put(out, is_last);
            }
            6 => {
                let symbol = self.symbol();
                Frame::Rider { lane, seq: short, symbol: &symbol }.put(out, is_last);
            }
            7..=8 => {
                let (count, row) = (1 + self.draw.byte() % 128, self.draw.byte() | ROW_MIN);
                let mut coded = self.draw.body();
                coded.resize(coded.len().max(3), 0);
                Frame::Repair { lane, patient, first: short, count, row, coded: &coded }
                    .put(out, is_last);
            }
            9..=12 => self.ack(kind, out),
            13 => Frame::Floor { lane, seq: short }.put(out, is_last),
            14 => Frame::Ping { token: u32::from(kind) }.put(out, is_last),
            _ if kind == u8::MAX => Frame::Close.put(out, is_last),
            // Tokens are the numbers of the datagrams that had them.
            _ => Frame::Echo { token: self.draw.near(self.sent) as u32 }.put(out, is_last),
        }
    }

    fn symbol(&mut self) -> Vec<u8> {
        let mut symbol = Vec::new();
        let kinds = self.draw.byte();
        for _ in 0..=kinds / 64 {
            let (kind, body) = (self.draw.byte(), self.draw.body());
            let (stream, offset) = (u64::from(kind >> 4), u64::from(self.draw.u16()));
            match kind % 8 {
                0 => Item::Packet(&body),
                1 => Item::Message { flow: u32::from(kind), bytes: &body },
                2 => {
                    let (index, last) = (self.draw.byte() % 8, self.draw.byte() % 8);
                    Item::Cell { id: stream as u16, index, last: last.max(index), part: &body }
                }
                3 | 4 => Item::Data { stream, offset, end: offset % 32 == 1, bytes: &body },
                5 => Item::Credit { stream, offset: offset << 8 },
                6 => Item::Reset { stream },
                _ => Item::Define { number: stream, packet: &body },
            }
            .put(&mut symbol, false);
        }
        if kinds & 1 == 1 {
            symbol.extend(self.draw.body());
        }
        symbol.push(0);
        symbol
    }

    /// An acknowledgement that may say anything of what was sent and of what was not.
    fn ack(&mut self, kind: u8, out: &mut Vec<u8>) {
        let bitmaps: [Vec<u8>; LANES] = std::array::from_fn(|_| {
            let mut bitmap = self.draw.body();
            bitmap.truncate(BITMAP_BYTES_MAX);
            bitmap
        });
        let mut ack = Ack {
            highest: truncated(self.draw.near(self.sent)),
            unsettled: self.draw.near(0) >> 1,
            held_100us: self.draw.near(0) >> 1,
            bytes: self.draw.flag().then(|| self.draw.near(1 << 16) as u32),
            ..Ack::default()
        };
        if kind & 64 == 0 {
            let settled = truncated(self.draw.near(self.sent));
            let (lost, runs) = (self.draw.u24(), self.draw.u24());
            let burst_100us = self.draw.near(0) >> 1;
            ack.loss = Some(LossCounts { settled, lost, runs, burst_100us });
        }
        for (lane, bitmap) in bitmaps.iter().enumerate() {
            if self.draw.flag() {
                let cumulative = truncated(self.draw.near(u64::from(self.draw.0.len() as u8)));
                ack.lanes[lane] = Some(LaneAck { cumulative, rows: self.draw.byte(), bitmap });
            }
        }
        Frame::Ack(ack).put(out, false);
    }

    /// What is done with a stream at this end.
    fn stream(&mut self, deed: u8) {
        let (id, mut out) = (StreamId(u64::from(self.draw.byte() % 16)), Vec::new());
        let class = Class::ALL[usize::from(deed) % LANES];
        match deed % 5 {
            0 => drop(self.end.stream_open(class)),
            1 => drop(self.end.stream_write(id, &vec![deed; usize::from(self.draw.u16())])),
            2 => drop(self.end.stream_finish(id)),
            3 => drop(self.end.stream_reset(id)),
            _ => drop(self.end.stream_read(id, &mut out, usize::from(self.draw.u16()))),
        }
    }

    /// Everything that is due goes out and inside.
    fn drain(&mut self) {
        let mut out = Vec::new();
        for polls in 0.. {
            assert!(polls < POLLS_MAX, "it spins: {:?} at {:?}", self.end.wake_at(), self.now);
            let sent = self.end.poll_datagram(self.now, &mut out);
            if let Some(outgoing) = sent {
                assert_eq!(outgoing.number, self.sent, "numbers have no gaps");
                self.sent += 1;
            }
            let given = self.end.poll_inside(self.now);
            if let Some(Inside::Packet(bytes) | Inside::Message { bytes, .. }) = &given {
                assert!(bytes.len() <= LIMITS.inside_bytes);
            }
            self.given += usize::from(given.is_some());
            let is_due = self.end.wake_at().is_some_and(|at| at <= self.now);
            if sent.is_none() && given.is_none() && !is_due {
                break;
            }
        }
    }
}
