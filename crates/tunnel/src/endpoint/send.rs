//! What is sent, in which order, in which datagram.

use super::Endpoint;
use super::acks::bitmap;
use super::acks::{ACK_EVERY, PATIENT_DELAY};
use super::choose::Main;
use super::guard::{Guard, TOKENS_FIRST, TOKENS_MAX};
use super::pack::Ready;
use super::passage::Passage;
use crate::api::Outgoing;
use crate::ecn::Marks;
use crate::frame::{Ack, CODED_LENGTH_BYTES, DATA_BYTES, Frame, LANES, LaneAck, REPAIR_BYTES};
use crate::header::Defined;
use crate::loss::Estimate;
use crate::outbound::{Due, Job, Outbound, Piece, Slack};
use crate::plan::{Condition, LOSS_MIN, Planner};
use crate::queue::Queue;
use crate::rate::Rate;
use crate::stream::Streams;
use crate::wire::{truncated, varint_len};
use crate::{Class, Config};
use holdfast_chance::Rng;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes around a plaintext on the wire: IPv4 and UDP 28, the sealing 24.
pub(super) const WIRE_BYTES: usize = 52;
/// Room that an acknowledgement without bitmaps needs.
const ACK_ROOM: usize = 54;
/// Bytes of packets that may wait as cells of a lane.
const BACKLOG_BYTES: usize = 3000;
/// Bytes of a frame that answers a question.
const ECHO_BYTES: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub bytes: u64,
    pub data_bytes: [u64; LANES],
    pub redundant_bytes: [u64; LANES],
    /// What the cap compares: symbols that were sent for the first time, and redundancy, both with the
    /// headers around them.
    pub capped_from: u64,
    pub capped: u64,
    pub retransmitted_bytes: u64,
    pub ack_bytes: u64,
}

/// The sending half of an endpoint.
#[derive(Debug)]
pub(super) struct Sender {
    pub rng: Rng,
    pub queue: Queue,
    pub lanes: [Outbound; LANES],
    pub guards: [Guard; LANES],
    pub planner: Planner,
    pub estimate: Estimate,
    pub rate: Rate,
    pub passage: Passage,
    pub marks: Marks,
    pub next_number: u64,
    pub highest_acked: Option<u64>,
    /// Bytes of redundancy that the cap allows.
    pub tokens: f64,
    pub counts: Counts,
    pub ready: [VecDeque<Ready>; LANES],
    /// Headers that the peer knows, or will.
    pub headers: Defined,
    pub cell_id: u16,
    /// Whose turn it is on a lane that has both.
    pub streams_next: bool,
    pub echo: Option<u32>,
    probe: Option<usize>,
    /// The probe that is on its way: its token and its size.
    pub probed: Option<(u32, usize)>,
    closing: Closing,
    /// When something was sent last that the receiver answers.
    pub elicited_at: Duration,
    last_bulk: Duration,
    /// When something urgent had to wait for the rate.
    pub held_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    Open,
    Wanted,
    Said,
}

impl Sender {
    pub(super) fn new(config: &Config, seed: u64, now: Duration) -> Self {
        Self {
            rng: Rng::new(seed, 0),
            queue: Queue::new(&config.limits),
            lanes: std::array::from_fn(|_| Outbound::new()),
            guards: Default::default(),
            planner: Planner::default(),
            estimate: Estimate::default(),
            rate: Rate::new(config.path_loss, now),
            passage: Passage::default(),
            marks: Marks::default(),
            next_number: 0,
            highest_acked: None,
            tokens: TOKENS_FIRST,
            counts: Counts::default(),
            ready: Default::default(),
            headers: Defined::default(),
            cell_id: 0,
            streams_next: false,
            echo: None,
            probe: None,
            probed: None,
            closing: Closing::Open,
            elicited_at: now,
            last_bulk: now,
            held_at: None,
        }
    }
}

/// The longest symbol: a row over it must fit into a datagram.
pub(super) fn symbol_bytes_max(config: &Config) -> usize {
    config.datagram_bytes_max - REPAIR_BYTES - CODED_LENGTH_BYTES
}

impl Endpoint {
    pub(super) fn send(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Outgoing> {
        out.clear();
        self.tick(now);
        if self.sender.put_special(out) {
            return Some(self.sender.leave(out, false, now));
        }
        let main = self.choose(now);
        let is_alone = matches!(main, Main::Nothing);
        let must_ack = self.acks.is_due(&self.decoders, now);
        if is_alone && !must_ack && self.sender.echo.is_none() {
            return None;
        }
        let mut room = self.config.datagram_bytes_max.saturating_sub(main.len(&self.sender));
        if room >= ECHO_BYTES
            && let Some(token) = self.sender.echo.take()
        {
            Frame::Echo { token }.put(out, false);
        }
        if must_ack || self.acks.may_ride(now) {
            self.put_ack(room.saturating_sub(out.len()), out, now);
        }
        room = room.saturating_sub(out.len());
        self.sender.put_floors(room, out);
        self.put_main(main, out, now);
        Some(self.sender.leave(out, !is_alone, now))
    }

    /// What time alone brings about.
    fn tick(&mut self, now: Duration) {
        self.settle(now);
        let patience = self.sender.patience(self.sender.elicited_at);
        for class in Class::ALL {
            let lane = class.index();
            let overdue = self.sender.lanes[lane].check(patience, now);
            if !overdue.is_empty() {
                self.sender.repair(class, &overdue, 0, &self.config, now);
            }
        }
        self.sender.close_groups(&self.config, now);
        let round = self.sender.rate.rtt().smoothed();
        let has_backlog = self.sender.queue.bytes_of(Class::Bulk) >= BACKLOG_BYTES
            || self.streams.has_something(Class::Bulk)
            || self.sender.held_at.is_some_and(|at| at + round > now);
        self.sender.rate.note_backlog(has_backlog);
    }

    fn put_ack(&mut self, room: usize, out: &mut Vec<u8>, now: Duration) {
        if room < ACK_ROOM {
            return;
        }
        let counts = self.acks.counts(self.observer.counts());
        let marks = self.acks.marks(self.marks.counts(), counts.is_some());
        let with_bytes = self.acks.tells_bytes || counts.is_some();
        let mut maps: [Vec<u8>; LANES] = Default::default();
        let lanes = (0..LANES).filter(|lane| self.acks.has_news(*lane));
        for lane in lanes {
            maps[lane] = bitmap(&self.decoders[lane]);
        }
        // A bitmap that is cut short would say that the rest is lost.
        if maps.iter().map(Vec::len).sum::<usize>() > room - ACK_ROOM {
            return;
        }
        let next = self.observer.next();
        let mut ack = Ack {
            highest: truncated(next.saturating_sub(1)),
            unsettled: next - self.observer.settled(),
            held_100us: now.saturating_sub(self.acks.highest_at).as_micros() as u64 / 100,
            loss: counts,
            marks,
            bytes: with_bytes.then_some(self.received.wire_bytes as u32),
            ..Ack::default()
        };
        for (lane, map) in maps.iter().enumerate().filter(|(lane, _)| self.acks.has_news(*lane)) {
            ack.lanes[lane] = Some(LaneAck {
                cumulative: truncated(self.decoders[lane].cumulative()),
                rows: self.decoders[lane].rows_waiting().min(usize::from(u8::MAX)) as u8,
                bitmap: map,
            });
        }
        let before = out.len();
        Frame::Ack(ack).put(out, false);
        self.sender.counts.ack_bytes += (out.len() - before) as u64;
        self.acks.told(counts, marks, now);
    }

    fn put_main(&mut self, main: Main, out: &mut Vec<u8>, now: Duration) {
        match main {
            Main::New { lane, symbol, pieces, closes, is_cut } => {
                self.put_new(Class::ALL[lane], symbol, pieces, out, now);
                if let Some((needed, extra)) = closes {
                    self.sender.sent_cells(Class::ALL[lane], needed, extra, now);
                } else if !is_cut {
                    self.protect(Class::ALL[lane], now);
                }
            }
            Main::Again { lane, seq, is_redundant } => {
                self.sender.put_again(lane, seq, is_redundant, out, now);
            }
            Main::Row { lane, first, count, row, coded, is_redundant } => {
                let sender = &mut self.sender;
                sender.note_spent(lane, coded.len(), is_redundant);
                // Spare rows come all the time: a loss must not wait for the last of them.
                if Class::ALL[lane] != Class::Bulk {
                    let number = sender.next_number;
                    sender.lanes[lane].carried(first, u64::from(count), number, now);
                }
                let patient = Class::ALL[lane] == Class::Now;
                let first = truncated(first);
                Frame::Repair { lane, patient, first, count, row, coded: &coded }.put(out, true);
            }
            Main::Nothing => {}
        }
    }

    fn put_new(
        &mut self,
        class: Class,
        symbol: Vec<u8>,
        pieces: Vec<Piece>,
        out: &mut Vec<u8>,
        now: Duration,
    ) {
        let (lane, sender) = (class.index(), &mut self.sender);
        let seq = sender.lanes[lane].next();
        let is_protected = match class {
            // What the cap leaves without redundancy needs its acknowledgement.
            Class::Now => sender.can_afford(symbol.len()),
            Class::Soon => sender.expects_rider(class, symbol.len(), &self.config, now),
            Class::Bulk => false,
        };
        let patient = is_protected || class != Class::Bulk && sender.path().loss < LOSS_MIN;
        let room = self.config.datagram_bytes_max - DATA_BYTES - symbol.len();
        for before in seq.saturating_sub(sender.riders(class, &self.config))..seq {
            if sender.may_ride(class, before, &self.config, now) {
                sender.put_rider(lane, before, room.saturating_sub(out.len()), out, now);
            }
        }
        Frame::Data { lane, patient, seq: truncated(seq), symbol: &symbol }.put(out, true);
        sender.counts.data_bytes[lane] += symbol.len() as u64;
        sender.counts.capped_from += (symbol.len() + WIRE_BYTES) as u64;
        let allowed = self.config.overhead_max * (symbol.len() + WIRE_BYTES) as f64;
        sender.tokens = (sender.tokens + allowed).min(TOKENS_MAX);
        let number = sender.next_number;
        let slack = sender.slack(class, patient, now);
        sender.lanes[lane].push(symbol, pieces, number, slack, now);
        let patience = sender.patience(now);
        sender.lanes[lane].expect_answer(patience, slack, now);
    }

    /// What follows a new symbol.
    fn protect(&mut self, class: Class, now: Duration) {
        let seq = self.sender.lanes[class.index()].next() - 1;
        match class {
            Class::Now => self.sender.guard(class, seq, &self.config, now),
            Class::Soon => self.sender.note_symbol(class, now),
            Class::Bulk => {
                // What a connection inside sends at once is no sign that the path is full.
                let has_stream = self.streams.has_something(class);
                if has_stream || self.sender.queue.bytes_of(class) >= BACKLOG_BYTES {
                    self.sender.last_bulk = now;
                }
                let rate = &self.sender.rate;
                let was_just = self.sender.last_bulk + rate.rtt().smoothed() * 2 > now;
                let is_backlogged = has_stream || was_just && !rate.has_spare();
                self.sender.spare(seq, is_backlogged, now);
            }
        }
    }
}

impl Sender {
    /// How much later than at once an acknowledgement may come: a patient one twice as late and
    /// more, for the first may be lost; others when the lane is busy, for they are not sent one by
    /// one. A lone message is answered at once.
    fn slack(&self, class: Class, patient: bool, now: Duration) -> Slack {
        let is_busy = self.guards[class.index()].is_busy(now);
        match (patient, class) {
            (true, _) => Slack::Patient(PATIENT_DELAY * 5 / 2),
            (false, Class::Bulk) => Slack::Asked(ACK_EVERY * 2),
            (false, _) if is_busy => Slack::Dense(ACK_EVERY * 2),
            (false, _) => Slack::Asked(Duration::ZERO),
        }
    }

    /// Probes and goodbyes have datagrams of their own.
    fn put_special(&mut self, out: &mut Vec<u8>) -> bool {
        if self.closing == Closing::Wanted {
            self.closing = Closing::Said;
            Frame::Close.put(out, true);
            return true;
        }
        let Some(bytes) = self.probe.take() else { return false };
        let token = self.next_number as u32;
        self.probed = Some((token, bytes));
        Frame::Ping { token }.put(out, false);
        Frame::Probe.put(out, true);
        out.resize(bytes.max(out.len()), 0);
        true
    }

    fn leave(&mut self, out: &[u8], is_answered: bool, now: Duration) -> Outgoing {
        let number = self.next_number;
        self.next_number += 1;
        self.counts.bytes += out.len() as u64;
        self.rate.sent((out.len() + WIRE_BYTES) as u64, is_answered, now);
        self.passage.sent(out.len(), now);
        if is_answered {
            self.elicited_at = now;
        }
        if self.rate.is_silent(now) {
            self.marks.doubt(number);
        }
        Outgoing { number, ecn: self.marks.next(number) }
    }

    fn put_floors(&mut self, room: usize, out: &mut Vec<u8>) {
        const FLOOR_BYTES: usize = 4;
        for (lane, outbound) in self.lanes.iter().enumerate() {
            if let Some(floor) = outbound.floor().filter(|_| room >= LANES * FLOOR_BYTES) {
                Frame::Floor { lane, seq: truncated(floor) }.put(out, false);
            }
        }
    }

    /// Takes redundancy, with the headers around it, from what the cap allows.
    fn spend(&mut self, bytes: usize) {
        self.counts.capped += bytes as u64;
        self.tokens -= bytes as f64;
    }

    fn note_spent(&mut self, lane: usize, bytes: usize, is_redundant: bool) {
        if is_redundant {
            self.counts.redundant_bytes[lane] += bytes as u64;
            self.spend(bytes + WIRE_BYTES);
        } else {
            self.counts.retransmitted_bytes += bytes as u64;
        }
    }

    fn put_again(
        &mut self,
        lane: usize,
        seq: u64,
        is_redundant: bool,
        out: &mut Vec<u8>,
        now: Duration,
    ) {
        let number = self.next_number;
        self.lanes[lane].carried(seq, 1, number, now);
        let Some(symbol) = self.lanes[lane].symbol(seq) else { return };
        let (len, patient) = (symbol.bytes.len(), is_redundant && Class::ALL[lane] == Class::Now);
        Frame::Data { lane, patient, seq: truncated(seq), symbol: &symbol.bytes }.put(out, true);
        self.note_spent(lane, len, is_redundant);
        let slack = self.slack(Class::ALL[lane], patient, now);
        let patience = self.patience(now);
        if !matches!(slack, Slack::Dense(_)) {
            self.lanes[lane].set_slack(seq, slack);
        }
        self.lanes[lane].expect_answer(patience, slack, now);
    }

    fn put_rider(&mut self, lane: usize, seq: u64, room: usize, out: &mut Vec<u8>, now: Duration) {
        let number = self.next_number;
        let Some(symbol) = self.lanes[lane].symbol(seq) else { return };
        let len = symbol.bytes.len();
        let around = DATA_BYTES + varint_len(len as u64);
        if room < len + around || !self.can_afford(len + around) {
            return;
        }
        Frame::Rider { lane, seq: truncated(seq), symbol: &symbol.bytes }.put(out, false);
        self.lanes[lane].carried(seq, 1, number, now);
        self.counts.redundant_bytes[lane] += len as u64;
        self.spend(len + around);
    }

    /// Sends again what is lost, and for classes with a deadline a little more, of which any will
    /// do. `rows` of the symbols the peer can restore as soon as the others are there.
    pub(super) fn repair(
        &mut self,
        class: Class,
        lost: &[u64],
        rows: usize,
        config: &Config,
        now: Duration,
    ) {
        let (path, mut rows) = (self.path(), rows);
        for span in Outbound::spans(lost) {
            let held = rows.min(span.len());
            rows -= held;
            let needed = span.len() - held;
            if needed == 0 {
                continue;
            }
            let extra = if class == Class::Bulk || path.loss < LOSS_MIN {
                None
            } else {
                self.planner.extra(path, needed, config.budgets.late_max, Condition::Lost)
            };
            let extra =
                extra.map_or(0, |extra| extra.rows + usize::from(self.rng.chance(extra.one_more)));
            let (first, last) = (span[0], span[span.len() - 1]);
            let lane = &mut self.lanes[class.index()];
            lane.queue(&span[..needed]);
            for seq in &span[..needed] {
                lane.schedule(Due { at: now, job: Job::Symbol(*seq), is_redundant: false });
            }
            let job = if needed == 1 && held == 0 {
                Job::Symbol(first)
            } else {
                Job::Row { first, count: (last - first + 1) as u8 }
            };
            for _ in 0..extra {
                lane.schedule(Due { at: now, job, is_redundant: true });
            }
        }
    }

    pub(super) fn drop_longer(&mut self, symbol_max: usize) -> Vec<Piece> {
        for ready in &mut self.ready {
            ready.retain(|ready| ready.bytes.len() <= symbol_max);
        }
        self.lanes.iter_mut().flat_map(|lane| lane.drop_longer(symbol_max)).collect()
    }

    pub(super) fn probe(&mut self, bytes: usize) {
        self.probe = Some(bytes);
    }

    pub(super) fn close(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Wanted;
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing != Closing::Open
    }

    /// Redundancy as the cap counts it.
    pub(super) fn overhead(&self) -> f64 {
        self.counts.capped as f64 / self.counts.capped_from.max(1) as f64
    }

    /// Redundancy per byte of data, both without the headers around them.
    pub(super) fn share(&self, class: Class) -> f64 {
        let lane = class.index();
        self.counts.redundant_bytes[lane] as f64 / self.counts.data_bytes[lane].max(1) as f64
    }

    pub(super) fn wake_at(&self, config: &Config, streams: &Streams) -> Option<Duration> {
        let mut at = self.guards[Class::Now.index()].wake_at(config.budgets.now);
        let mut want = |time: Option<Duration>| at = at.into_iter().chain(time).min();
        for class in Class::ALL {
            let lane = &self.lanes[class.index()];
            let may = self.may_send_at(class);
            want(lane.due_at().map(|due| due.max(may)));
            want(lane.check_at());
            let is_open = lane.is_open_for_new(&config.limits);
            let wants_new = is_open && self.has_new(class, streams);
            want(wants_new.then(|| self.may_send_new_at(class)));
        }
        let is_special =
            self.echo.is_some() || self.probe.is_some() || self.closing == Closing::Wanted;
        want(is_special.then_some(Duration::ZERO));
        at
    }
}
