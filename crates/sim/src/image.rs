//! What a joining member gets from a server that runs alone: the bytes of an image, and the log
//! that waits until the server made from the image runs.

use crate::server::Server;
use crate::world::World;
use holdfast_cluster::Nanos;
use holdfast_wire::log::{Header, record_len};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most bytes of log that a joiner keeps for a server that does not run yet.
const SPOOL_MAX: u64 = 256 << 10;

/// An image that a primary sends.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub id: u64,
    pub bytes: u64,
}

impl Image {
    /// At most `most` of its bytes from `at` on. The first eight are its id; the others depend on
    /// their position, so that misplaced ones are noticed.
    pub fn part(&self, at: u64, most: usize) -> Vec<u8> {
        let until = self.bytes.min(at + most as u64);
        (at..until).map(|at| self.byte(at)).collect()
    }

    fn byte(&self, at: u64) -> u8 {
        match self.id.to_le_bytes().get(at as usize) {
            Some(byte) => *byte,
            None => (at as u8) ^ (at >> 8) as u8 ^ self.id as u8,
        }
    }

    /// The image that consists of these bytes, complete and in order.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let id = u64::from_le_bytes(*bytes.first_chunk()?);
        let image = Self { id, bytes: bytes.len() as u64 };
        bytes.iter().enumerate().all(|(at, byte)| image.byte(at as u64) == *byte).then_some(image)
    }
}

/// A second image of a cold backup, and the log for it, which is kept from before the image on.
#[derive(Debug)]
pub struct Next {
    all: u64,
    bytes: Vec<u8>,
    is_whole: bool,
    /// Position from which the log is kept.
    from: u64,
    /// Position of the image.
    log_from: Option<u64>,
    spool: VecDeque<(Header, Vec<u8>)>,
}

/// A joining member's server, before it follows like any other replica.
#[derive(Debug, Default)]
pub struct Copy {
    all: u64,
    /// Position of the log at which the image was taken.
    log_from: u64,
    pub next: Option<Next>,
    pub bytes: Vec<u8>,
    /// When the server is made from the complete image.
    pub due: Option<Nanos>,
    pub runs: bool,
    spool: VecDeque<(Header, Vec<u8>)>,
    pub spool_bytes: u64,
    acked: BTreeMap<u32, u64>,
    gone: BTreeSet<u32>,
    /// Set if the server is made only when a takeover needs it (decision 30).
    pub cold: Option<Cold>,
}

/// How far a cold backup has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// The image is arriving.
    Arrives,
    /// The image is complete, and the machine knows it.
    Keeps,
    /// A takeover needs the server, which is being built.
    Builds,
}

impl Copy {
    pub fn new(log_from: u64, all: u64, is_cold: bool) -> Self {
        Self { all, log_from, cold: is_cold.then_some(Cold::Arrives), ..Self::default() }
    }

    /// Begins to keep the log a second time.
    pub fn begin_renewal(&mut self) {
        let from = self.log_from + self.spool_bytes;
        let (bytes, spool) = (Vec::new(), VecDeque::new());
        self.next = Some(Next { all: 0, bytes, is_whole: false, from, log_from: None, spool });
    }

    /// Accepts a second image; false if the log was not kept from its position on.
    pub fn begin_new_image(&mut self, log_from: u64, all: u64) -> bool {
        let Some(next) = self.next.as_mut().filter(|next| next.from <= log_from) else {
            return false;
        };
        (next.log_from, next.all) = (Some(log_from), all);
        true
    }

    /// Bytes of the arriving image that are here.
    pub fn image_bytes(&self) -> u64 {
        self.next.as_ref().map_or(&self.bytes, |next| &next.bytes).len() as u64
    }

    /// Notes that the arriving image is complete, if it is the second one; false if it is the
    /// first.
    pub fn end_second(&mut self) -> bool {
        self.next.as_mut().map(|next| next.is_whole = true).is_some()
    }

    /// Whether the second image is complete, and the log has reached its position.
    pub fn has_second(&self) -> bool {
        let at = self.log_from + self.spool_bytes;
        let is_kept = |next: &Next| next.is_whole && next.log_from.is_some_and(|it| it <= at);
        self.next.as_ref().is_some_and(is_kept)
    }

    /// Puts the second image in the first one's place.
    pub fn replace(&mut self) {
        let Some(Next { all, bytes, from, log_from: Some(log_from), mut spool, .. }) =
            self.next.take()
        else {
            return;
        };
        let len = |payload: &[u8]| record_len(payload.len()) as u64;
        let mut at = from;
        while at < log_from {
            let (_, payload) = spool.pop_front().expect("it is kept up to there");
            at += len(&payload);
        }
        assert_eq!(at, log_from, "an image is taken between two records");
        self.spool_bytes = spool.iter().map(|(_, payload)| len(payload)).sum();
        (self.all, self.bytes, self.spool, self.log_from) = (all, bytes, spool, log_from);
    }

    /// Whether everything that comes is only kept, and no server runs.
    pub fn is_kept(&self) -> bool {
        matches!(self.cold, Some(Cold::Arrives | Cold::Keeps))
    }

    /// Takes the next bytes of the image; returns whether half of it is there
    /// now.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        let (into, all) = match &mut self.next {
            Some(next) => (&mut next.bytes, next.all),
            None => (&mut self.bytes, self.all),
        };
        let has_half = |bytes: &Vec<u8>| bytes.len() as u64 * 2 >= all;
        let before = has_half(into);
        into.extend_from_slice(bytes);
        !before && has_half(into)
    }

    /// Keeps a record for later; false without room.
    pub fn keep(&mut self, header: &Header, payload: Vec<u8>) -> bool {
        let len = record_len(payload.len()) as u64;
        let has_room = self.cold.is_some() || self.spool_bytes + len <= SPOOL_MAX;
        if has_room {
            self.spool_bytes += len;
            if let Some(next) = &mut self.next {
                next.spool.push_back((*header, payload.clone()));
            }
            self.spool.push_back((*header, payload));
        }
        has_room
    }

    /// Whether half of its room is free.
    pub fn has_room(&self) -> bool {
        self.cold.is_some() || self.spool_bytes < SPOOL_MAX / 2
    }

    pub fn acked(&mut self, accept: u32, bytes: u64) {
        self.acked.insert(accept, bytes);
    }

    pub fn gone(&mut self, accept: u32) {
        self.gone.insert(accept);
    }

    /// Gives the waiting records to the server; true if nothing waits any more.
    pub fn feed(&mut self, server: &mut Server) -> bool {
        while let Some((header, payload)) = self.spool.front() {
            if !server.replay(header, &[payload]) {
                break;
            }
            self.spool_bytes -= record_len(payload.len()) as u64;
            self.spool.pop_front();
        }
        let done = self.spool.is_empty() && server.executed == server.appended;
        let is_there = |accept: &u32| done || server.conns.contains_key(accept);
        let acked = self.acked.extract_if(.., |accept, _| is_there(accept)).collect::<Vec<_>>();
        let gone = self.gone.extract_if(.., is_there).collect::<Vec<_>>();
        acked.into_iter().for_each(|(accept, bytes)| server.acked(accept, bytes));
        gone.into_iter().for_each(|accept| server.gone(accept));
        done
    }
}

impl World {
    /// Number of records that the server of this image had logged.
    pub fn records_of(&self, bytes: &[u8]) -> Option<u64> {
        self.images.get(&Image::of(bytes)?.id).map(|server| server.records)
    }

    /// Takes the server of this image, which a joining member needs no more.
    pub fn image_of(&mut self, bytes: &[u8]) -> Option<Server> {
        self.images.remove(&Image::of(bytes)?.id)
    }
}
