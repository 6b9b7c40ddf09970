//! One end of a tunnel: the parts, and how they are put together.
//!
//! A packet from the inside waits in the [`crate::queue`], becomes a symbol of its class's lane when
//! a datagram has room ([`send`]), stays in the lane's [`crate::outbound`] window until the peer knows
//! it, and is protected by rows that are sent ahead ([`guard`]) or behind a loss. At the other end the
//! [`crate::decoder`] gives symbols back, whose items go to the inside, TCP packets through the
//! [`crate::resequence`] machine ([`receive`]).

mod acks;
mod behaviour;
mod choose;
mod guard;
mod pack;
mod passage;
mod receive;
mod send;

use crate::api::{Ecn, Inside, Malformed, Outgoing, Refused, StreamError, StreamId};
use crate::assembly::Assembly;
use crate::config::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, INNER_MTU_MAX};
use crate::decoder::{Decoder, DecoderLimits};
use crate::ecn::Seen;
use crate::frame::LANES;
use crate::header::Learned;
use crate::inner::{Inner, message_flow};
use crate::loss::{Estimate, Observer};
use crate::outbound::Patience;
use crate::plan::{self, Path};
use crate::queue::Content;
use crate::resequence::{Origin, Resequencer};
use crate::stream::Streams;
use crate::{Class, Config, Receiving, Redundancy, Report, Sending};
pub(crate) use acks::ACK_EVERY;
use acks::{Acks, QUIET_DELAY};
use behaviour::Behaviour;
use send::Sender;
use std::collections::VecDeque;
use std::time::Duration;

/// Time beyond a round trip after which an answer that was asked for at once is missing.
const ANSWER_SLACK: Duration = Duration::from_millis(1);
/// Age of a packet, in halves of a round trip and beyond them, at which it is not sent again.
const GIVE_UP_HALF_ROUNDS: u32 = 5;
const GIVE_UP_SLACK: Duration = Duration::from_millis(100);
/// How long a TCP packet waits for an earlier one before anything was measured, and at most.
const RESEQUENCE_INITIAL: Duration = Duration::from_millis(100);
const RESEQUENCE_MAX: Duration = Duration::from_millis(400);

/// One end of a tunnel, see the crate's documentation for the contract.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    sender: Sender,
    decoders: [Decoder; LANES],
    observer: Observer,
    seen: Estimate,
    marks: Seen,
    acks: Acks,
    assembly: Assembly,
    headers: Learned,
    resequencer: Resequencer,
    streams: Streams,
    behaviour: Behaviour,
    inside: VecDeque<Inside>,
    inside_bytes: usize,
    /// The longest time that a hole stayed open lately.
    repair: Duration,
    /// Since when each lane has had a hole.
    hole_since: [Option<Duration>; LANES],
    /// Symbols that each lane's window has left behind, as far as streams were told.
    overrun: [u64; LANES],
    received: Received,
    is_closed_by_peer: bool,
    /// The symbol that is read now, of which only the room lasts.
    scratch: Vec<u8>,
}

/// Counts of what came.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    datagrams: u64,
    bytes: u64,
    /// With what is around the plaintext, for the peer's model of the path.
    wire_bytes: u64,
    /// Bytes of symbols that were news, and of rows, riders and symbols that came once more.
    data_bytes: [u64; LANES],
    redundant_bytes: [u64; LANES],
    ahead: u64,
    behind: u64,
    limited: u64,
}

impl Endpoint {
    /// An endpoint that knows nothing of the path. Values of `config` beyond what is possible
    /// count as the nearest possible ones. `seed` decides the order of equals, nothing secret.
    #[must_use]
    pub fn new(mut config: Config, seed: u64, now: Duration) -> Self {
        config.datagram_bytes_max =
            config.datagram_bytes_max.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        config.inner_mtu = config.inner_mtu.clamp(1, INNER_MTU_MAX);
        config.overhead_max =
            if config.overhead_max.is_finite() { config.overhead_max.max(0.0) } else { 0.0 };
        let limits = config.limits;
        let of_decoder = DecoderLimits {
            symbols: limits.window_symbols.max(1),
            bytes: limits.window_bytes,
            rows: limits.rows_waiting,
        };
        Self {
            sender: Sender::new(&config, seed, now),
            decoders: std::array::from_fn(|_| Decoder::new(of_decoder)),
            observer: Observer::default(),
            seen: Estimate::default(),
            marks: Seen::default(),
            acks: Acks::default(),
            headers: Learned::default(),
            assembly: Assembly::new(limits.assembly_bytes),
            resequencer: Resequencer::new(limits.resequence_bytes),
            streams: Streams::new(&limits),
            behaviour: Behaviour::default(),
            inside: VecDeque::new(),
            inside_bytes: 0,
            repair: Duration::ZERO,
            hole_since: [None; LANES],
            overrun: [0; LANES],
            received: Received::default(),
            is_closed_by_peer: false,
            scratch: Vec::new(),
            config,
        }
    }

    /// Takes an IP packet from the inside.
    ///
    /// # Errors
    /// If it is none, is too long, or the queue is full; it is dropped then.
    pub fn handle_packet(&mut self, packet: &[u8], now: Duration) -> Result<(), Refused> {
        self.check_taking(packet)?;
        let inner = Inner::parse(packet).ok_or(Refused::NotIp(packet.len()))?;
        let rate = self.sender.rate.delivery();
        let rtt = self.sender.rate.rtt().smoothed();
        let rules = &self.config.rules;
        let class = self.behaviour.class_of(&inner, packet.len(), rules, rate, rtt, now);
        self.enqueue(class, inner.flow, Content::Packet(packet.to_vec()), now)
    }

    /// Whether so much waits that an inside which can hold packets back should, until this is false:
    /// what does not fit into the rest is dropped, whatever its class.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.sender.queue.bytes() > self.config.limits.queue_bytes / 2
    }

    /// Takes an opaque datagram of the flow `flow` from the inside.
    ///
    /// # Errors
    /// If it is empty or too long, or the queue is full; it is dropped then.
    pub fn handle_message(
        &mut self,
        flow: u32,
        class: Class,
        message: &[u8],
        now: Duration,
    ) -> Result<(), Refused> {
        self.check_taking(message)?;
        let content = Content::Message { flow, bytes: message.to_vec() };
        self.enqueue(class, message_flow(flow), content, now)
    }

    fn check_taking(&self, bytes: &[u8]) -> Result<(), Refused> {
        let max = self.config.inner_mtu;
        if self.sender.is_closing() || self.is_closed_by_peer {
            Err(Refused::Closed)
        } else if bytes.is_empty() || bytes.len() > max {
            Err(Refused::Length { bytes: bytes.len(), max })
        } else {
            Ok(())
        }
    }

    fn enqueue(
        &mut self,
        class: Class,
        flow: u64,
        content: Content,
        now: Duration,
    ) -> Result<(), Refused> {
        let queue = &mut self.sender.queue;
        if queue.push(class, flow, content, now) {
            Ok(())
        } else {
            Err(Refused::Full(queue.bytes()))
        }
    }

    /// The next thing for the inside.
    pub fn poll_inside(&mut self, now: Duration) -> Option<Inside> {
        let decoders = &self.decoders;
        self.resequencer.tick(now, |origin| waits_for(decoders, origin));
        self.collect_ready();
        let next = self.inside.pop_front();
        match &next {
            Some(Inside::Packet(bytes) | Inside::Message { bytes, .. }) => {
                self.inside_bytes -= bytes.len()
            }
            Some(_) => {}
            None => return self.streams.poll().map(|(id, event)| Inside::Stream(id, event)),
        }
        next
    }

    /// When to poll again without input; `None` if only input can change anything.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let mut at = [
            self.acks.wake_at(),
            self.observer.settles_at(),
            self.resequencer.wake_at(),
            self.sender.wake_at(&self.config, &self.streams),
        ];
        at.sort_unstable();
        at.into_iter().flatten().min()
    }

    /// The path takes datagrams with this much plaintext from now on.
    pub fn set_datagram_bytes_max(&mut self, bytes: usize) {
        self.config.datagram_bytes_max = bytes.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        for piece in self.sender.drop_longer(send::symbol_bytes_max(&self.config)) {
            self.streams.again(piece);
        }
    }

    /// The peer is elsewhere now: what was measured of the path to it says nothing of the new one.
    pub fn path_changed(&mut self) {
        self.sender.rate.path_changed();
        self.sender.marks.path_changed(self.sender.next_number);
    }

    /// The smoothed round trip if no datagram above [`DATAGRAM_BYTES_MIN`] seems to come through any
    /// more: the path is to be asked what it takes. Once for each time that it seems so.
    pub fn take_path_doubt(&mut self, now: Duration) -> Option<Duration> {
        let round = self.sender.rate.rtt().smoothed();
        self.sender.passage.take_doubt(round, now).then_some(round)
    }

    /// Sends a datagram with `bytes` bytes of plaintext that does nothing but ask for an echo;
    /// [`Inside::PathTakes`] follows if it and the echo arrive. A later probe replaces one that was
    /// not answered.
    pub fn probe_path(&mut self, bytes: usize) {
        self.sender.probe(bytes.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX));
    }

    /// Says goodbye: a last datagram with a CLOSE frame goes out, nothing is taken any more.
    pub fn close(&mut self) {
        self.sender.close();
    }

    /// Whether the peer said goodbye.
    #[must_use]
    pub fn is_closed_by_peer(&self) -> bool {
        self.is_closed_by_peer
    }

    /// Opens a stream to the peer.
    ///
    /// # Errors
    /// If there are too many.
    pub fn stream_open(&mut self, class: Class) -> Result<StreamId, StreamError> {
        self.streams.open(class)
    }

    /// Appends to a stream; the number of bytes that were taken, which may be 0: then
    /// [`crate::StreamEvent::Writable`] follows when there is room.
    ///
    /// # Errors
    /// If there is no such stream, or it was finished.
    pub fn stream_write(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, StreamError> {
        self.streams.write(id, bytes)
    }

    /// Says that no more bytes follow (FIN).
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.streams.finish(id)
    }

    /// Forgets a stream at both ends (RST); its bytes are lost.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_reset(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.streams.reset(id)
    }

    /// Moves at most `bytes_max` bytes of a stream behind those of `out`. `Some(n)`: n bytes,
    /// where 0 means that there are none yet; `None`: the stream's end.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn stream_read(
        &mut self,
        id: StreamId,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<usize>, StreamError> {
        self.streams.read(id, out, bytes_max)
    }

    /// State, for people and for programs.
    #[must_use]
    pub fn report(&self) -> Report {
        let rtt = self.sender.rate.rtt();
        let ms = |time: Duration| if rtt.is_measured() { time.as_secs_f64() * 1e3 } else { 0.0 };
        Report {
            sending: self.report_sending(),
            receiving: self.report_receiving(),
            rtt_min_ms: ms(rtt.least()),
            rtt_ms: ms(rtt.smoothed()),
        }
    }

    /// When the rate of the report was measured: with too little to send, the last one stays. `None`
    /// before the first time, when it is a guess.
    #[must_use]
    pub fn rate_measured_at(&self) -> Option<Duration> {
        self.sender.rate.measured_at()
    }

    fn report_sending(&self) -> Sending {
        let sender = &self.sender;
        let path = sender.path();
        Sending {
            loss: path.loss,
            path_loss: sender.rate.path_loss(),
            burst_packets: path.burst_packets,
            burst_ms: sender.estimate.burst_ms(),
            classes: redundancy(path, |class| sender.share(class)),
            overhead: sender.overhead(),
            rate_bytes_per_s: sender.rate.pacing(),
            queue_bytes: sender.queue.bytes(),
            datagrams: sender.next_number,
            bytes: sender.counts.bytes,
            data_bytes: sender.counts.data_bytes.iter().sum(),
            redundant_bytes: sender.counts.redundant_bytes.iter().sum(),
            retransmitted_bytes: sender.counts.retransmitted_bytes,
            ack_bytes: sender.counts.ack_bytes,
            given_up: sender.lanes.iter().map(|lane| lane.given_up).sum(),
            dropped: sender.queue.dropped,
            marked: sender.queue.marked,
            congested: sender.marks.congested(),
        }
    }

    fn report_receiving(&self) -> Receiving {
        let counts = || self.decoders.iter().map(|decoder| decoder.counts);
        let path = Path { loss: self.seen.loss(), burst_packets: self.seen.burst_packets() };
        let share = |class: Class| {
            let [data, more] = [&self.received.data_bytes, &self.received.redundant_bytes]
                .map(|bytes| bytes[class.index()] as f64);
            more / data.max(1.0)
        };
        Receiving {
            classes: redundancy(path, share),
            loss: self.seen.loss(),
            burst_packets: self.seen.burst_packets(),
            burst_ms: self.seen.burst_ms(),
            datagrams: self.received.datagrams,
            bytes: self.received.bytes,
            recovered_ahead: self.received.ahead,
            recovered_behind: self.received.behind,
            missed: counts().map(|counts| counts.missed).sum(),
            wasted_bytes: counts().map(|counts| counts.useless_bytes).sum(),
            reordered: self.observer.reordered,
            skipped: self.resequencer.skipped,
            limited: self.received.limited
                + self.assembly.dropped
                + counts().map(|counts| counts.limited + counts.contradictory).sum::<u64>(),
        }
    }

    /// Takes the opened plaintext of a datagram with its 64-bit number, authenticated and not
    /// replayed, and the mark of its outer header.
    ///
    /// # Errors
    /// If it cannot be understood.
    pub fn handle_datagram(
        &mut self,
        number: u64,
        plaintext: &[u8],
        ecn: Ecn,
        now: Duration,
    ) -> Result<(), Malformed> {
        self.receive(number, plaintext, ecn, now)
    }

    /// The next datagram to seal and send, if one is due: `out` is overwritten with its plaintext.
    pub fn poll_datagram(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Outgoing> {
        self.send(now, out)
    }
}

/// What is done per class on a path, and why.
fn redundancy(path: Path, share: impl Fn(Class) -> f64) -> Vec<Redundancy> {
    let of_class = |class| {
        let share = share(class);
        Redundancy { class, share, why: plan::why(class, path, share) }
    };
    Class::ALL.map(of_class).to_vec()
}

/// Whether a lane misses something that was sent before: one that a flow has just left, too, or what is
/// repaired there would come behind what follows it here.
fn waits_for(decoders: &[Decoder; LANES], origin: Origin) -> bool {
    decoders.iter().zip(origin.before).any(|(decoder, before)| decoder.waits_before(before))
}

impl Sender {
    /// How the path to the peer loses.
    fn path(&self) -> Path {
        Path { loss: self.estimate.loss(), burst_packets: self.estimate.burst_packets() }
    }

    /// How long to wait for answers, if what asked for the last one was sent at `elicited_at`.
    fn patience(&self, elicited_at: Duration) -> Patience {
        let rtt = self.rate.rtt();
        let answer = rtt.overdue() + ANSWER_SLACK;
        Patience {
            answer,
            give_up: rtt.smoothed() * GIVE_UP_HALF_ROUNDS / 2 + GIVE_UP_SLACK,
            quiet_at: elicited_at + QUIET_DELAY + answer,
        }
    }
}

#[cfg(test)]
mod tests;
