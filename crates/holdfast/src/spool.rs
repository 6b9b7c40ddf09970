//! What a cold backup keeps of a server on its disk (decision 30): the image and the log
//! that follows it. A thread of its own writes, and another one reads when a takeover needs
//! them; the daemon that has the spool waits for neither.
//!
//! The files have no names, and each is sealed with a key that only this process has: without
//! it they are noise, and when it ends they are gone.

mod reading;
mod sealed;
#[cfg(test)]
mod tests;
mod writer;

pub use reading::{Image, Reading};
pub use sealed::SEAL_BYTES;

use holdfast_linux::snapshot::free_bytes;
use holdfast_wire::log::{HEADER_LEN, Header, record_len};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use writer::{Chunk, Files, Shared, Writer};
use zerocopy::IntoBytes;

/// Bytes of the log that are sealed and written together.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes that may wait for the disk.
const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// How long the queue may be full: the primary's output waits meanwhile.
const FULL_MAX: Duration = Duration::from_secs(1);
/// How long nothing may be written of what waits.
const STUCK_MAX: Duration = Duration::from_secs(5);

/// When what is written must be on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// When the kernel likes: the spool needs to outlive nothing but memory.
    #[default]
    None,
    /// At once, so that a disk that fails is noticed while it is not needed yet.
    Always,
}

/// Where a spool lies, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// It is made if it is not there.
    pub dir: PathBuf,
    pub bytes_max: u64,
    pub sync: Sync,
}

/// See the module.
pub struct Spool {
    settings: Settings,
    to: Sender<Chunk>,
    shared: std::sync::Arc<Shared>,
    writer: Writer,
    /// Records that are not handed on yet.
    records: Vec<u8>,
    image_bytes: u64,
    log_bytes: u64,
    /// Of both, as they lie on the disk.
    bytes: u64,
    /// Since when there is no room for more, and nothing is written of what waits.
    full_since: Option<Instant>,
    stuck_since: Option<(Instant, u64)>,
}

/// The folder itself, or of one that is to be made the nearest that is there.
pub fn standing(dir: &Path) -> &Path {
    dir.ancestors().find(|path| path.exists()).unwrap_or(dir)
}

/// Makes a file in a folder that is there, as a spool does; it is gone at once.
///
/// # Errors
/// As open(2).
pub fn try_out(dir: &Path) -> io::Result<()> {
    sealed::Sealed::make(dir).map(drop)
}

impl Spool {
    /// An empty one.
    ///
    /// # Errors
    /// If there can be no thread. What the disk says is told by [`Self::trouble`].
    pub fn begin(settings: Settings) -> io::Result<Self> {
        let (to, chunks) = channel();
        let shared = std::sync::Arc::new(Shared::default());
        let writer = writer::begin(settings.clone(), chunks, std::sync::Arc::clone(&shared))?;
        Ok(Self {
            settings,
            to,
            shared,
            writer,
            records: Vec::new(),
            image_bytes: 0,
            log_bytes: 0,
            bytes: 0,
            full_since: None,
            stuck_since: None,
        })
    }

    /// Why an image of so many bytes, and as much log as `log_bytes`, have no room in it, or on its
    /// disk, in words.
    ///
    /// # Errors
    /// Then.
    pub fn has_room_for(&self, image_bytes: u64, log_bytes: u64) -> Result<(), String> {
        if image_bytes > self.settings.bytes_max {
            return Err(format!(
                "the server's image has {} MB, and the spool may have {} MB (spool_max_mb)",
                image_bytes.div_ceil(1 << 20),
                self.settings.bytes_max >> 20
            ));
        }
        let dir = &self.settings.dir;
        let there = standing(dir);
        let needs = image_bytes.saturating_add(log_bytes.min(QUEUE_BYTES_MAX));
        // A disk that does not tell is asked by writing.
        let free = free_bytes(there).unwrap_or(u64::MAX);
        if needs > free {
            return Err(format!(
                "the spool in {} needs {} MB for the server's image and its log, and its file \
                 system has {} MB free",
                dir.display(),
                needs.div_ceil(1 << 20),
                free >> 20
            ));
        }
        Ok(())
    }

    /// The next bytes of the image.
    pub fn take_image(&mut self, bytes: Vec<u8>) {
        self.image_bytes += bytes.len() as u64;
        self.hand_on(Chunk::Image(bytes));
    }

    /// Bytes of the image that are written.
    #[must_use]
    pub fn image_written(&self) -> u64 {
        self.shared.image_written()
    }

    /// A record of the log; whether there was room.
    #[must_use]
    pub fn take_record(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        if self.shared.waiting() > QUEUE_BYTES_MAX {
            return false;
        }
        let len: usize = payload.iter().map(|part| part.len()).sum();
        let header = Header { payload_len: len as u32, ..*header };
        self.records.extend_from_slice(header.as_bytes());
        payload.iter().for_each(|part| self.records.extend_from_slice(part));
        self.log_bytes += record_len(len) as u64;
        if self.records.len() >= CHUNK_BYTES {
            self.hand_on_records();
        }
        true
    }

    /// Half of what may wait for the disk does not.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.waiting() < QUEUE_BYTES_MAX / 2
    }

    fn hand_on_records(&mut self) {
        if !self.records.is_empty() {
            let next = Vec::with_capacity(CHUNK_BYTES + HEADER_LEN);
            let records = std::mem::replace(&mut self.records, next);
            self.hand_on(Chunk::Records(records));
        }
    }

    fn hand_on(&mut self, chunk: Chunk) {
        self.bytes += (chunk.len() + SEAL_BYTES) as u64;
        self.shared.waits(chunk.len() as u64);
        // A writer that has failed says why.
        let _failed = self.to.send(chunk);
    }

    /// Bytes of the image, and of the log as a replica has it.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// See [`Self::image_bytes`].
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Bytes on the disk, those that wait for it included, and how many there may be.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        (self.bytes, self.settings.bytes_max)
    }

    /// Why it cannot go on, in words.
    pub fn trouble(&mut self, now: Instant) -> Option<String> {
        let dir = self.settings.dir.display();
        if let Some(failure) = self.shared.failure() {
            return Some(format!("the spool in {dir}: {failure}"));
        }
        if self.bytes > self.settings.bytes_max {
            let max = self.settings.bytes_max >> 20;
            return Some(format!("the spool in {dir} is full: spool_max_mb = {max}"));
        }
        let (waiting, written) = (self.shared.waiting(), self.shared.written());
        let is_full = waiting > QUEUE_BYTES_MAX;
        self.full_since = is_full.then(|| self.full_since.unwrap_or(now));
        if self.full_since.is_some_and(|since| now - since > FULL_MAX) {
            return Some(format!("the disk of the spool in {dir} is slower than the log"));
        }
        let goes_on = waiting == 0 || self.stuck_since.is_none_or(|(_, then)| then != written);
        if goes_on {
            self.stuck_since = (waiting > 0).then_some((now, written));
        }
        let is_stuck = self.stuck_since.is_some_and(|(since, _)| now - since > STUCK_MAX);
        is_stuck.then(|| format!("the disk of the spool in {dir} does not answer"))
    }

    /// Nothing more comes: what is kept is read, with a real-time priority if somebody waits for
    /// it. Records that are not written yet are read from memory, since a disk may take seconds for
    /// what is written beside others; only what the writer has just begun is waited for. Of the log
    /// the first `skipped` bytes are left out: they are older than the image.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn read(self, skipped: u64, urgency: Option<i32>) -> io::Result<Reading> {
        self.shared.close();
        let Self { to, writer, records, image_bytes, log_bytes, .. } = self;
        drop(to);
        let files = move || -> Result<Files, String> {
            let joined = writer.join();
            let mut files = joined.unwrap_or_else(|_| Err("its writer has panicked".to_owned()))?;
            files.unwritten.push(records);
            Ok(files)
        };
        Reading::begin(files, (image_bytes, log_bytes, skipped), urgency)
    }
}
