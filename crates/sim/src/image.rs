//! What a joining member takes over from one that speaks alone: the bytes of an image,
//! and the log that waits until the server made from them runs.

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
    /// At most `most` of its bytes from `at` on: first its name, then bytes that show
    /// whether they are in place.
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

/// A joiner's server, before it follows like any other replica.
#[derive(Debug, Default)]
pub struct Copy {
    all: u64,
    pub bytes: Vec<u8>,
    /// When the server of the complete image is made.
    pub due: Option<Nanos>,
    pub runs: bool,
    spool: VecDeque<(Header, Vec<u8>)>,
    pub spool_bytes: u64,
    acked: BTreeMap<u32, u64>,
    gone: BTreeSet<u32>,
    /// Set if it is made only when a takeover needs it (decision 30).
    pub cold: Option<Cold>,
}

/// How far a cold backup has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// The image comes, or is complete and the machine knows it.
    Arrives,
    Keeps,
    /// A takeover needs it.
    Builds,
}

impl Copy {
    pub fn new(all: u64, is_cold: bool) -> Self {
        Self { all, cold: is_cold.then_some(Cold::Arrives), ..Self::default() }
    }

    /// Whether everything that comes is kept, and nothing runs.
    pub fn is_kept(&self) -> bool {
        matches!(self.cold, Some(Cold::Arrives | Cold::Keeps))
    }

    /// Takes the next bytes of the image; returns whether half of it is there
    /// now.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        let has_half = |bytes: &Vec<u8>| bytes.len() as u64 * 2 >= self.all;
        let before = has_half(&self.bytes);
        self.bytes.extend_from_slice(bytes);
        !before && has_half(&self.bytes)
    }

    /// Keeps a record for later; false without room.
    pub fn keep(&mut self, header: &Header, payload: Vec<u8>) -> bool {
        let len = record_len(payload.len()) as u64;
        let has_room = self.cold.is_some() || self.spool_bytes + len <= SPOOL_MAX;
        if has_room {
            self.spool_bytes += len;
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
