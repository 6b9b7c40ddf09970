//! An application at one end: writes a stream that names its writer, and checks every byte that it
//! reads.

use crate::profile::Side;
use holdfast_boston::{Endpoint, Event, Failure, Frame, Nanos, Poll};

/// Bytes at the start of a stream that name its writer.
const NAME_LEN: u64 = 8;

/// Number of times that a deadline may be obeyed and still be due; more mean that the endpoint
/// makes no progress.
const TIMEOUTS_MAX: usize = 100;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Closed,
    Failed(Failure),
}

pub struct App {
    pub endpoint: Endpoint,
    /// Name of this writer; no two applications of a run have the same.
    pub name: u64,
    side: Side,
    is_connected: bool,
    written: u64,
    read: u64,
    /// Name of the writer of the stream that is read, from its first bytes.
    peer: u64,
    has_seen_end: bool,
    pub outcome: Option<Outcome>,
    reads_at: Nanos,
}

/// The byte at `offset` of the stream of `name`.
fn byte(name: u64, offset: u64) -> u8 {
    match offset {
        0..NAME_LEN => name.to_le_bytes()[offset as usize],
        _ => ((name ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8,
    }
}

/// Length of a stream in bytes; the streams of one side differ a little.
pub fn stream_len(side: &Side, name: u64) -> u64 {
    side.bytes + name % 50
}

impl App {
    pub fn new(endpoint: Endpoint, name: u64, side: Side) -> Self {
        Self {
            endpoint,
            name,
            side,
            is_connected: false,
            written: 0,
            read: 0,
            peer: 0,
            has_seen_end: false,
            outcome: None,
            reads_at: Nanos::default(),
        }
    }

    /// Lets the endpoint and the application do all that they can; returns what has to be sent, and
    /// when to come back.
    ///
    /// # Errors
    /// When a byte is wrong.
    pub fn step(
        &mut self,
        now: Nanos,
        len_of: impl Fn(u64) -> Option<u64>,
        frames: &mut Vec<Frame>,
    ) -> Result<Option<Nanos>, String> {
        let mut timeouts = 0;
        loop {
            match self.endpoint.poll(now) {
                Poll::Transmit(frame) => frames.push(frame),
                Poll::Event(event) => self.note(event),
                Poll::Wait(deadline) => {
                    if timeouts < TIMEOUTS_MAX && deadline.is_some_and(|at| at <= now) {
                        timeouts += 1;
                        self.endpoint.handle_timeout(now);
                    } else if !(self.write() | self.read(now, &len_of)?) {
                        let reads_at = (self.reads_at > now).then_some(self.reads_at);
                        return Ok(deadline.into_iter().chain(reads_at).min());
                    }
                }
            }
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Connected => self.is_connected = true,
            Event::Readable => {}
            Event::Ended => self.has_seen_end = true,
            Event::Closed => self.outcome = Some(Outcome::Closed),
            Event::Failed(failure) => self.outcome = Some(Outcome::Failed(failure)),
            _ => panic!("what is {event:?}?"),
        }
    }

    /// Writes what fits; returns whether anything did.
    fn write(&mut self) -> bool {
        let len = stream_len(&self.side, self.name);
        if !self.is_connected || self.written == len {
            return false;
        }
        let until = len.min(self.written + 5000);
        let bytes: Vec<u8> = (self.written..until).map(|at| byte(self.name, at)).collect();
        let taken = self.endpoint.write(&bytes) as u64;
        self.written += taken;
        if self.written == len {
            self.endpoint.close();
        }
        taken > 0
    }

    /// Reads what there is; returns whether there was anything.
    fn read(&mut self, now: Nanos, len_of: &impl Fn(u64) -> Option<u64>) -> Result<bool, String> {
        if now < self.reads_at {
            return Ok(false);
        }
        let mut buffer = [0; 3000];
        let count = self.endpoint.read(now, &mut buffer);
        for got in &buffer[..count] {
            if self.read < NAME_LEN {
                self.peer |= u64::from(*got) << (8 * self.read);
            } else if *got != byte(self.peer, self.read) {
                return Err(format!("byte {} of the stream of {} is wrong", self.read, self.peer));
            }
            self.read += 1;
        }
        if count > 0 && self.side.reads_every.0 > 0 {
            self.reads_at = now.plus(self.side.reads_every);
        }
        if self.has_seen_end && count == 0 && len_of(self.peer) != Some(self.read) {
            return Err(format!("the stream of {} ended after {}", self.peer, self.read));
        }
        Ok(count > 0)
    }

    /// Whether all of the peer's stream has been read.
    pub fn has_read_all(&self, len_of: impl Fn(u64) -> Option<u64>) -> bool {
        self.has_seen_end && len_of(self.peer) == Some(self.read)
    }
}
