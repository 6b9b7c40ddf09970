//! The session manager (TCP Boston §2.2): opening, closing, and the death of
//! either end. [`Sender`] and [`Receiver`] handle the stream in between.

use crate::frame::{Ack, Cell, Frame, Opening, Shape};
use crate::receiver::Receiver;
use crate::sender::{Counters, Sender};
use crate::{FlowControl, Nanos, Redundancy, WINDOW_SEGMENTS_MAX};
use holdfast_code::Dispersal;
use std::collections::VecDeque;

/// Wait between the first two unanswered openings.
const OPENING_WAIT: Nanos = Nanos::from_ms(1000);
/// Longest wait between two openings.
const OPENING_WAIT_MAX: Nanos = Nanos::from_ms(8000);
/// Most frames of the session itself that wait to be sent; more are not needed.
const CONTROL_FRAMES_MAX: usize = 8;

/// Configuration of an endpoint. Each direction is shaped by its sender.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// How this end cuts what it sends.
    pub shape: Shape,
    /// Most segments that this end takes ahead of what was read.
    pub window: usize,
    pub flow: FlowControl,
    pub redundancy: Redundancy,
    /// Whether cells of the window's segments are mixed on the line.
    pub is_interleaved: bool,
    pub dispersal: Dispersal,
    /// Silence after which a peer is asked whether it lives.
    pub ask_after: Nanos,
    /// Silence after which a peer is given up.
    pub dead_after: Nanos,
    /// Time for which a connection that ended well still answers a silent peer.
    pub linger: Nanos,
}

impl Default for Config {
    /// Boston-BP: 1,440 bytes in 30 cells of 48, as in ATM; 32 segments.
    fn default() -> Self {
        Self {
            shape: Shape { cells: 30, cell_len: 48 },
            window: 32,
            flow: FlowControl::Reno,
            redundancy: Redundancy::BandwidthPreserving,
            is_interleaved: false,
            dispersal: Dispersal::Systematic,
            ask_after: Nanos::from_ms(10_000),
            dead_after: Nanos::from_ms(90_000),
            linger: Nanos::from_ms(60_000),
        }
    }
}

impl Config {
    /// Boston-FEC as the paper measured it (§3.2): over Vegas, interleaved.
    #[must_use]
    pub fn paper_fec() -> Self {
        Self {
            flow: FlowControl::Vegas,
            redundancy: Redundancy::PAPER_FEC,
            is_interleaved: true,
            ..Self::default()
        }
    }
}

/// A configuration that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("no segment has {} cells of {} bytes: see CELLS_MAX, CELL_LEN_MAX, SEGMENT_LEN_MAX", .0.cells, .0.cell_len)]
    Shape(Shape),
    #[error("a window has 1 to {WINDOW_SEGMENTS_MAX} segments, not {0}")]
    Window(usize),
}

/// Why a connection ended abnormally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    #[error("nobody listens there: start the other end first")]
    Refused,
    #[error("the other end ended the connection, or died and came back: connect again")]
    Reset,
    #[error("this end aborted the connection")]
    Aborted,
    #[error("the other end does not answer: look at the path")]
    TimedOut,
    #[error("the path corrupts more cells than a segment survives: use fewer cells per segment")]
    Spoilt,
}

/// What the application should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    Connected,
    /// There is something to read.
    Readable,
    /// The peer's stream is delivered to its end.
    Ended,
    /// Both streams are delivered to their ends.
    Closed,
    /// No more bytes will come or go.
    Failed(Failure),
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    Transmit(Frame),
    Event(Event),
    /// Wait until then, or until something else happens.
    Wait(Option<Nanos>),
}

/// One end of one connection.
///
/// # Contract
/// * After every call of `handle_*`, `write`, `read`, `close` or `abort`, call
///   [`Endpoint::poll`] until it says [`Poll::Wait`].
/// * At the time that it names, call [`Endpoint::handle_timeout`].
/// * Time never runs backwards.
#[derive(Clone, Debug)]
pub struct Endpoint {
    config: Config,
    /// Tag that frames for this end must carry.
    tag: u32,
    phase: Phase,
    /// Sender and receiver, which stay after the end, so that what was
    /// delivered can be read.
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    control: VecDeque<Frame>,
    events: VecDeque<Event>,
    heard_at: Nanos,
    asked_at: Nanos,
    was_readable: bool,
    has_told_end: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Listening,
    /// A SYN (without a peer) or a SYN-ACK was sent, and is repeated.
    Opening {
        peer: Option<Opening>,
        repeat_at: Nanos,
        wait: Nanos,
    },
    Open {
        peer: u32,
    },
    /// Everything is delivered; the peer may not know yet.
    Lingering {
        peer: u32,
        until: Nanos,
    },
    Closed,
}

impl Endpoint {
    /// An end that waits for a connection. The seed must differ from those of
    /// all earlier ends that this peer may still remember.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn listen(now: Nanos, config: Config, seed: u64) -> Result<Self, ConfigError> {
        if !config.shape.is_possible() {
            return Err(ConfigError::Shape(config.shape));
        }
        if !(1..=WINDOW_SEGMENTS_MAX).contains(&config.window) {
            return Err(ConfigError::Window(config.window));
        }
        Ok(Self {
            config,
            tag: tag_of(seed),
            phase: Phase::Listening,
            sender: None,
            receiver: None,
            control: VecDeque::new(),
            events: VecDeque::new(),
            heard_at: now,
            asked_at: now,
            was_readable: false,
            has_told_end: false,
        })
    }

    /// An end that connects. For the seed see [`Endpoint::listen`].
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn connect(now: Nanos, config: Config, seed: u64) -> Result<Self, ConfigError> {
        let mut endpoint = Self::listen(now, config, seed)?;
        endpoint.open(now, None);
        Ok(endpoint)
    }

    /// Takes bytes to send, as many as there is room for; none before
    /// [`Event::Connected`] and after [`Endpoint::close`].
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        match self.phase {
            Phase::Open { .. } => self.sender.as_mut().map_or(0, |sender| sender.write(bytes)),
            _ => 0,
        }
    }

    /// Reads what was delivered; 0 if nothing was.
    pub fn read(&mut self, now: Nanos, out: &mut [u8]) -> usize {
        let Some(receiver) = &mut self.receiver else { return 0 };
        let count = receiver.read(now, out);
        self.was_readable = receiver.is_readable();
        count
    }

    /// Counts of what this end sent so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.sender.as_ref().map(Sender::counters).unwrap_or_default()
    }

    /// The tag that frames for this end carry, where several share a socket. A
    /// SYN is for the listening end, a reflected RESET for all.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Ends this end's stream; the peer's goes on until it ends it too.
    pub fn close(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.end();
        }
    }

    /// Gives the connection up at once.
    pub fn abort(&mut self) {
        if let Phase::Open { peer } = self.phase {
            self.say(Frame::Reset { tag: peer, is_reflected: false });
        }
        self.fail(Failure::Aborted);
    }

    /// Takes a frame that has come.
    pub fn handle_frame(&mut self, now: Nanos, frame: &Frame) {
        match frame {
            Frame::Syn(opening) => self.handle_syn(now, opening),
            Frame::SynAck { to, opening } => self.handle_syn_ack(now, *to, opening),
            Frame::Reset { tag, is_reflected } => self.handle_reset(*tag, *is_reflected),
            Frame::Cell { to, cell } if self.is_mine(now, *to) => self.handle_cell(now, cell),
            Frame::Ack { to, ack } if self.is_mine(now, *to) => self.handle_ack(now, ack),
            Frame::Ping { to } if self.is_mine(now, *to) => {
                if let Some(receiver) = &mut self.receiver {
                    receiver.handle_ping(now);
                }
            }
            Frame::Cell { to, .. } | Frame::Ack { to, .. } | Frame::Ping { to } => {
                self.say(Frame::Reset { tag: *to, is_reflected: true });
            }
        }
        self.settle(now);
    }

    /// Notes that time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        match self.phase {
            Phase::Opening { peer, repeat_at, wait } => {
                if self.is_dead(now) {
                    match peer {
                        // The peer that asked has gone away again.
                        Some(_) => self.phase = Phase::Listening,
                        None => self.fail(Failure::TimedOut),
                    }
                } else if repeat_at <= now {
                    let wait = Nanos(wait.0 * 2).min(OPENING_WAIT_MAX);
                    self.phase = Phase::Opening { peer, repeat_at: now.plus(wait), wait };
                    self.say_opening(peer);
                }
            }
            Phase::Open { .. } if self.is_dead(now) => self.fail(Failure::TimedOut),
            Phase::Open { peer } => {
                if let Some(sender) = &mut self.sender {
                    sender.handle_timeout(now);
                }
                if self.ask_at().is_some_and(|at| at <= now) {
                    self.asked_at = now;
                    self.say(Frame::Ping { to: peer });
                }
            }
            Phase::Lingering { until, .. } if until <= now => self.phase = Phase::Closed,
            Phase::Lingering { .. } | Phase::Listening | Phase::Closed => {}
        }
        self.settle(now);
    }

    /// The next thing to do; see the contract.
    pub fn poll(&mut self, now: Nanos) -> Poll {
        if let Some(event) = self.events.pop_front() {
            return Poll::Event(event);
        }
        if let Some(frame) = self.control.pop_front() {
            return Poll::Transmit(frame);
        }
        if let Phase::Open { peer } | Phase::Lingering { peer, .. } = self.phase {
            if let Some(ack) = self.receiver.as_mut().and_then(|receiver| receiver.poll(now)) {
                return Poll::Transmit(Frame::Ack { to: peer, ack });
            }
            if let Some(cell) = self.sender.as_mut().and_then(|sender| sender.poll(now)) {
                return Poll::Transmit(Frame::Cell { to: peer, cell });
            }
        }
        Poll::Wait(self.next_deadline())
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let receiver = self.receiver.as_ref().and_then(Receiver::next_deadline);
        match self.phase {
            Phase::Listening | Phase::Closed => None,
            Phase::Opening { repeat_at, .. } => Some(repeat_at.min(self.dead_at())),
            Phase::Open { .. } => {
                let sender = self.sender.as_ref().and_then(Sender::next_deadline);
                [receiver, sender, self.ask_at(), Some(self.dead_at())].into_iter().flatten().min()
            }
            Phase::Lingering { until, .. } => receiver.into_iter().chain([until]).min(),
        }
    }

    /// Sends the first opening to `peer`, or to the listening end.
    fn open(&mut self, now: Nanos, peer: Option<Opening>) {
        let repeat_at = now.plus(OPENING_WAIT);
        self.phase = Phase::Opening { peer, repeat_at, wait: OPENING_WAIT };
        self.heard_at = now;
        self.say_opening(peer);
    }

    fn say_opening(&mut self, peer: Option<Opening>) {
        let Config { shape, window, dispersal, .. } = self.config;
        let opening = Opening { tag: self.tag, shape, dispersal, window };
        self.say(match peer {
            None => Frame::Syn(opening),
            Some(peer) => Frame::SynAck { to: peer.tag, opening },
        });
    }

    fn handle_syn(&mut self, now: Nanos, opening: &Opening) {
        match self.phase {
            Phase::Listening => self.open(now, Some(*opening)),
            // The last peer that asks is served: no byte has been taken from the
            // other.
            Phase::Opening { peer: Some(_), .. } => self.open(now, Some(*opening)),
            // The frame may be forged, so the peer is asked whether it still
            // lives (as in RFC 9293 §3.10.7.4). If it has died and come back it
            // will not know the tag, and say so.
            Phase::Open { peer } | Phase::Lingering { peer, .. } => {
                self.say(Frame::Ping { to: peer });
            }
            Phase::Opening { peer: None, .. } | Phase::Closed => {
                self.say(Frame::Reset { tag: opening.tag, is_reflected: false });
            }
        }
    }

    fn handle_syn_ack(&mut self, now: Nanos, to: u32, opening: &Opening) {
        if to != self.tag {
            self.say(Frame::Reset { tag: opening.tag, is_reflected: false });
            return;
        }
        if let Phase::Opening { peer: None, .. } = self.phase {
            self.start(now, opening);
        }
        // A repeated frame means that the answer was lost.
        if let (Phase::Open { peer }, Some(receiver)) = (self.phase, &mut self.receiver)
            && peer == opening.tag
        {
            self.heard_at = now;
            receiver.handle_ping(now);
        }
    }

    fn handle_reset(&mut self, tag: u32, is_reflected: bool) {
        let is_meant = |peer: u32| if is_reflected { tag == peer } else { tag == self.tag };
        match self.phase {
            Phase::Opening { peer: None, .. } if !is_reflected && tag == self.tag => {
                self.fail(Failure::Refused);
            }
            Phase::Opening { peer: Some(peer), .. } if is_meant(peer.tag) => {
                self.phase = Phase::Listening;
            }
            Phase::Open { peer } if is_meant(peer) => self.fail(Failure::Reset),
            Phase::Lingering { peer, .. } if is_meant(peer) => self.phase = Phase::Closed,
            _ => {}
        }
    }

    fn handle_cell(&mut self, now: Nanos, cell: &Cell) {
        let Some(receiver) = &mut self.receiver else { return };
        if receiver.handle_cell(now, cell).is_err() {
            if let Phase::Open { peer } = self.phase {
                self.say(Frame::Reset { tag: peer, is_reflected: false });
            }
            self.fail(Failure::Spoilt);
        }
    }

    fn handle_ack(&mut self, now: Nanos, ack: &Ack) {
        if let Some(sender) = &mut self.sender {
            sender.handle_ack(now, ack);
        }
    }

    /// Whether a frame is for this end, and there is a connection. A peer that
    /// names the tag has received the SYN-ACK.
    fn is_mine(&mut self, now: Nanos, to: u32) -> bool {
        if to != self.tag {
            return false;
        }
        if let Phase::Opening { peer: Some(peer), .. } = self.phase {
            self.start(now, &peer);
        }
        self.heard_at = now;
        if let Phase::Lingering { until, .. } = &mut self.phase {
            // The peer still does not know: stay as long again.
            *until = now.plus(self.config.linger);
        }
        matches!(self.phase, Phase::Open { .. } | Phase::Lingering { .. })
    }

    fn start(&mut self, now: Nanos, peer: &Opening) {
        self.phase = Phase::Open { peer: peer.tag };
        self.sender = Some(Sender::new(&self.config, peer.window));
        self.receiver = Some(Receiver::new(peer.shape, peer.dispersal, self.config.window));
        (self.heard_at, self.asked_at) = (now, now);
        self.events.push_back(Event::Connected);
    }

    /// Draws the consequences of everything that happened: tells the
    /// application, and ends the connection when both streams have ended.
    fn settle(&mut self, now: Nanos) {
        let Some(receiver) = &self.receiver else { return };
        if receiver.is_readable() && !self.was_readable {
            self.events.push_back(Event::Readable);
        }
        self.was_readable = receiver.is_readable();
        let Phase::Open { peer } = self.phase else { return };
        if receiver.is_ended() && !self.has_told_end {
            self.has_told_end = true;
            self.events.push_back(Event::Ended);
        }
        if receiver.is_ended() && self.sender.as_ref().is_some_and(Sender::is_done) {
            self.phase = Phase::Lingering { peer, until: now.plus(self.config.linger) };
            self.events.push_back(Event::Closed);
        }
    }

    fn fail(&mut self, failure: Failure) {
        let had_ended = matches!(self.phase, Phase::Closed | Phase::Lingering { .. });
        self.phase = Phase::Closed;
        if !had_ended {
            self.events.push_back(Event::Failed(failure));
        }
    }

    fn say(&mut self, frame: Frame) {
        if self.control.len() < CONTROL_FRAMES_MAX {
            self.control.push_back(frame);
        }
    }

    fn dead_at(&self) -> Nanos {
        self.heard_at.plus(self.config.dead_after)
    }

    fn is_dead(&self, now: Nanos) -> bool {
        self.dead_at() <= now
    }

    /// When to ask the peer for a sign of life, or for room.
    fn ask_at(&self) -> Option<Nanos> {
        let sender = self.sender.as_ref()?;
        let patience = if sender.is_blocked() { sender.timeout() } else { self.config.ask_after };
        Some(self.heard_at.max(self.asked_at).plus(patience))
    }
}

/// SplitMix64's finish (Steele, Lea, Flood 2014): neighbouring seeds, distant tags.
fn tag_of(seed: u64) -> u32 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 32) as u32
}

#[cfg(test)]
mod tests;
