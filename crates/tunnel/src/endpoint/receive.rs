//! What a datagram brings.

use super::send::WIRE_BYTES;
use super::{Endpoint, RESEQUENCE_INITIAL, RESEQUENCE_MAX, Received, waits_for};
use crate::Class;
use crate::api::{Ecn, Inside, Malformed};
use crate::decoder::{Decoder, How};
use crate::frame::{Ack, DATA_BYTES, Fault, Frame, Frames, LANES};
use crate::inner::Inner;
use crate::item::{Item, Items};
use crate::outbound::PieceKind;
use crate::queue::decapsulated;
use crate::rate::News;
use crate::resequence::Origin;
use crate::wire::{VARINT_MAX, completed_24};
use std::time::Duration;

/// Weight of the past in the longest time that a repair took: an eighth is forgotten per repair.
const REPAIR_AGES: u32 = 8;

/// Datagrams without a loss that are averaged together: an average is dear.
const NOTED_TOGETHER: u64 = 16;

/// What the frames of one datagram are about.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    lanes: [bool; LANES],
    is_impatient: bool,
    is_malformed: Option<Malformed>,
}

impl Received {
    fn note_symbol(&mut self, lane: usize, bytes: usize, is_news: bool) {
        let kind = if is_news { &mut self.data_bytes } else { &mut self.redundant_bytes };
        kind[lane] += bytes as u64;
    }
}

impl Endpoint {
    pub(super) fn receive(
        &mut self,
        number: u64,
        plaintext: &[u8],
        ecn: Ecn,
        now: Duration,
    ) -> Result<(), Malformed> {
        if number > VARINT_MAX {
            return Err(Malformed::Number(number));
        }
        self.received.datagrams += 1;
        self.received.bytes += plaintext.len() as u64;
        self.received.wire_bytes += (plaintext.len() + WIRE_BYTES) as u64;
        if self.observer.arrives(number, now) {
            self.acks.highest_at = now;
        }
        if self.marks.note(ecn) {
            self.acks.congested(now);
        }
        let mut seen = Seen::default();
        for frame in Frames::new(plaintext) {
            match frame {
                Ok(frame) => self.frame(frame, &mut seen, now),
                Err(Fault(at)) => seen.is_malformed = Some(Malformed::Frame(at)),
            }
        }
        for lane in (0..LANES).filter(|lane| seen.lanes[*lane]) {
            self.learn(lane, ecn, now);
            self.acks.elicited(lane, !seen.is_impatient, plaintext.len(), now);
        }
        self.settle(now);
        let decoders = &self.decoders;
        self.resequencer.tick(now, |origin| waits_for(decoders, origin));
        self.collect_ready();
        seen.is_malformed.map_or(Ok(()), Err)
    }

    fn frame(&mut self, frame: Frame<'_>, seen: &mut Seen, now: Duration) {
        match frame {
            Frame::Data { lane, patient, seq, symbol } => {
                seen.lanes[lane] = true;
                seen.is_impatient |= !patient;
                let seq = completed_24(seq, self.decoders[lane].top());
                let is_news = self.decoders[lane].symbol_arrives(seq, symbol);
                self.received.note_symbol(lane, symbol.len(), is_news);
            }
            Frame::Rider { lane, seq, symbol } => {
                seen.lanes[lane] = true;
                let seq = completed_24(seq, self.decoders[lane].top());
                if self.decoders[lane].symbol_arrives(seq, symbol) {
                    self.received.ahead += 1;
                }
                self.received.note_symbol(lane, symbol.len(), false);
            }
            Frame::Repair { lane, patient, first, count, row, coded } => {
                seen.lanes[lane] = true;
                seen.is_impatient |= !patient;
                let first = completed_24(first, self.decoders[lane].top());
                self.decoders[lane].row_arrives(first, count, row, coded);
                self.received.note_symbol(lane, coded.len(), false);
            }
            Frame::Ack(ack) => {
                if let Err(malformed) = self.acknowledged(&ack, now) {
                    seen.is_malformed = Some(malformed);
                }
            }
            Frame::Floor { lane, seq } => {
                let seq = completed_24(seq, self.decoders[lane].top());
                self.decoders[lane].give_up_before(seq);
            }
            Frame::Ping { token } => self.sender.echo = Some(token),
            Frame::Echo { token } => {
                if let Some((_, bytes)) = self.sender.probed.take_if(|probed| probed.0 == token) {
                    self.inside.push_back(Inside::PathTakes(bytes));
                }
            }
            Frame::Probe => {}
            Frame::Close => self.is_closed_by_peer = true,
        }
    }

    /// Decides which datagrams are lost, and sees to it that the peer hears of them.
    pub(super) fn settle(&mut self, now: Duration) {
        let before = self.seen.lost();
        self.observer.settle(now);
        let passed = self.observer.settled() - self.seen.settled();
        if self.observer.lost() != before || passed >= NOTED_TOGETHER {
            self.seen.note(self.observer.counts(), false);
        }
        if self.seen.lost() > before {
            let is_bulk = self.acks.has_news(Class::Bulk.index());
            let is_soon = self.acks.has_news(Class::Soon.index());
            self.acks.gap(!is_bulk && !is_soon, now);
        }
    }

    /// Takes the symbols that became known.
    fn learn(&mut self, lane: usize, ecn: Ecn, now: Duration) {
        if self.decoders[lane].counts.overrun > self.overrun[lane] {
            // Whatever was in it: a stream of which bytes are missing must not go on.
            self.overrun[lane] = self.decoders[lane].counts.overrun;
            self.streams.reset_all(Class::ALL[lane]);
        }
        // In their order: what was decoded together is not a hole any more for what follows it.
        let mut learned: Vec<_> =
            std::iter::from_fn(|| self.decoders[lane].poll_learned()).collect();
        learned.sort_unstable_by_key(|(seq, _)| *seq);
        let mut symbol = std::mem::take(&mut self.scratch);
        for (seq, how) in learned {
            self.received.ahead += u64::from(how == How::Decoded);
            symbol.clear();
            symbol.extend_from_slice(self.decoders[lane].symbol(seq).unwrap_or_default());
            let mut before = self.decoders.each_ref().map(Decoder::top);
            before[lane] = seq;
            self.symbol(Origin { lane, seq, before }, &symbol, ecn, now);
        }
        self.scratch = symbol;
        self.decoders[lane].prune();
        let has_hole = self.decoders[lane].cumulative() < self.decoders[lane].top();
        match (has_hole, self.hole_since[lane]) {
            (true, None) => self.hole_since[lane] = Some(now),
            (false, Some(since)) => {
                let took = now.saturating_sub(since);
                self.received.behind += u64::from(took > self.config.budgets.now);
                self.repair = took.max(self.repair - self.repair / REPAIR_AGES);
                self.hole_since[lane] = None;
            }
            _ => {}
        }
    }

    fn symbol(&mut self, origin: Origin, symbol: &[u8], ecn: Ecn, now: Duration) {
        for item in Items::new(symbol) {
            match item {
                Ok(Item::Cell { id, index, last, part }) => {
                    if let Some(encoded) = self.assembly.cell(id, index, last, part)
                        && let Some(Ok(item)) = Items::new(&encoded).next()
                    {
                        self.item(origin, item, ecn, now);
                    }
                }
                Ok(item) => self.item(origin, item, ecn, now),
                Err(_) => self.received.limited += 1,
            }
        }
    }

    fn item(&mut self, origin: Origin, item: Item<'_>, ecn: Ecn, now: Duration) {
        let class = Class::ALL[origin.lane];
        match item {
            Item::Packet(packet) => self.packet(origin, packet.to_vec(), ecn, now),
            Item::Define { number, packet } => {
                self.headers.learn(number, packet);
                self.packet(origin, packet.to_vec(), ecn, now);
            }
            Item::Short { number, id, checksum, rest } => {
                match self.headers.restore(number, id, checksum, rest) {
                    Some(packet) => self.packet(origin, packet, ecn, now),
                    None => self.received.limited += 1,
                }
            }
            Item::Message { flow, bytes } => {
                self.hand_in(Inside::Message { flow, bytes: bytes.to_vec() });
            }
            Item::Data { stream, offset, end, bytes } => {
                self.streams.data(class, stream, offset, end, bytes);
            }
            Item::Credit { stream, offset } => self.streams.credit(class, stream, offset),
            Item::Reset { stream } => self.streams.reset_by_peer(class, stream),
            // A cell within a cell: nobody sends that.
            Item::Cell { .. } => self.received.limited += 1,
        }
    }

    fn packet(&mut self, origin: Origin, packet: Vec<u8>, ecn: Ecn, now: Duration) {
        let inner = Inner::parse(&packet);
        let packet = decapsulated(packet, ecn);
        let Some((flow, order)) = inner.and_then(|inner| Some((inner.flow, inner.tcp?))) else {
            self.hand_in(Inside::Packet(packet));
            return;
        };
        let rtt = self.sender.rate.rtt();
        let usual = if rtt.is_measured() { rtt.smoothed() * 3 / 2 } else { RESEQUENCE_INITIAL };
        let until = now + usual.max(self.repair + self.repair / 4).min(RESEQUENCE_MAX);
        let decoders = &self.decoders;
        let is_waited_for = |origin| waits_for(decoders, origin);
        self.resequencer.segment(flow, order, origin, until, packet, is_waited_for);
    }

    pub(super) fn collect_ready(&mut self) {
        while let Some(packet) = self.resequencer.poll() {
            self.hand_in(Inside::Packet(packet));
        }
    }

    fn hand_in(&mut self, inside: Inside) {
        let len = match &inside {
            Inside::Packet(bytes) | Inside::Message { bytes, .. } => bytes.len(),
            _ => 0,
        };
        if self.inside_bytes + len > self.config.limits.inside_bytes {
            self.received.limited += 1;
            return;
        }
        self.inside_bytes += len;
        self.inside.push_back(inside);
    }

    fn acknowledged(&mut self, ack: &Ack<'_>, now: Duration) -> Result<(), Malformed> {
        let sender = &mut self.sender;
        let highest = completed_24(ack.highest, sender.next_number);
        if highest >= sender.next_number {
            return Err(Malformed::AckOfUnsent(highest));
        }
        let is_new = sender.highest_acked.is_none_or(|before| highest >= before);
        let settled = (highest + 1).saturating_sub(ack.unsettled);
        let mut told = ack.loss.map_or((0.0, 0.0), |counts| sender.estimate.news(counts));
        let before = sender.estimate.settled();
        let is_outage = is_new && sender.rate.takes_outage(highest, before, told, now);
        if let Some(counts) = ack.loss {
            sender.estimate.note(counts, is_outage);
        }
        if is_outage {
            told = (0.0, 0.0);
        }
        // Without counts of losses those of marks are left out, too, while nothing is new.
        let is_told = ack.loss.is_some() || ack.marks.is_some();
        let is_congested = is_told && sender.marks.told(ack.marks, settled);
        if is_new {
            sender.highest_acked = Some(highest);
            sender.passage.arrived(sender.rate.sent_bytes(highest).saturating_sub(WIRE_BYTES));
            let news = News {
                highest,
                held: Duration::from_micros(ack.held_100us.saturating_mul(100)),
                bytes: ack.bytes,
                settled: told.0,
                lost: told.1,
                loss: sender.estimate.loss(),
                is_congested,
            };
            sender.rate.acknowledged(&news, now);
        }
        let patience = sender.patience(sender.elicited_at);
        for class in Class::ALL {
            let Some(of_lane) = ack.lanes[class.index()] else { continue };
            let lane = &mut sender.lanes[class.index()];
            let verdict = lane.acknowledged(&of_lane, settled, is_new, patience, now);
            sender.passage.arrived(verdict.longest + DATA_BYTES);
            for piece in verdict.arrived {
                match piece.kind {
                    PieceKind::Header => sender.headers.confirm(piece.stream),
                    _ => self.streams.arrived(piece),
                }
            }
            sender.repair(class, &verdict.lost, verdict.rows, &self.config, now);
        }
        Ok(())
    }
}
