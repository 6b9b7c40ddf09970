//! A spool that is read: its image by whoever builds the server, its log behind that by
//! the daemon. A thread reads ahead of both.

use super::writer::Files;
use holdfast_linux::priority;
use holdfast_wire::log::{HEADER_LEN, Header, read_header, record_len};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Chunks that are read ahead.
const AHEAD: usize = 16;

type Read1 = Result<Vec<u8>, String>;

/// See the module.
pub struct Reading {
    image: Option<Image>,
    image_read: Arc<AtomicU64>,
    chunks: Receiver<Read1>,
    /// The records that come next, and what of them was taken.
    chunk: Vec<u8>,
    at: usize,
    /// Bytes of the image, and of the log as a replica has it; of that, taken.
    image_bytes: u64,
    log_bytes: u64,
    log_taken: u64,
    /// Bytes of the log that come before what the image's server wants.
    skipped: u64,
    is_over: bool,
}

impl Reading {
    /// Reads what `files` gives: so many bytes of the image and of the log, of which the first
    /// ones are left out.
    pub(super) fn begin(
        files: impl FnOnce() -> Result<Files, String> + Send + 'static,
        (image_bytes, log_bytes, skipped): (u64, u64, u64),
        urgency: Option<i32>,
    ) -> io::Result<Self> {
        let (to_image, pieces) = sync_channel(AHEAD);
        let (to_log, chunks) = sync_channel(AHEAD);
        let image_read = Arc::new(AtomicU64::new(0));
        let image = Image { pieces, now: Vec::new(), at: 0, read: Arc::clone(&image_read) };
        let work = move || priority::urgently(urgency, || read(files, to_image, &to_log));
        std::thread::Builder::new().name("unspool".to_owned()).spawn(work)?;
        Ok(Self {
            image: Some(image),
            image_read,
            chunks,
            chunk: Vec::new(),
            at: 0,
            image_bytes,
            log_bytes,
            log_taken: 0,
            skipped,
            is_over: false,
        })
    }

    /// The image, once.
    pub fn image(&mut self) -> Option<Image> {
        self.image.take()
    }

    /// The next record, as often as it is asked for. `None`: it is not there yet, or
    /// [there is none](Self::is_over).
    ///
    /// # Errors
    /// In words: the log is not what was written.
    pub fn record(&mut self) -> Result<Option<(Header, &[u8])>, String> {
        while self.log_taken < self.skipped {
            let Some((header, _)) = self.next()? else { return Ok(None) };
            self.advance(header.payload_len as usize);
            if self.log_taken > self.skipped {
                return Err("no record begins where its image was taken".to_owned());
            }
        }
        self.next()
    }

    fn next(&mut self) -> Result<Option<(Header, &[u8])>, String> {
        while self.at == self.chunk.len() && !self.is_over {
            match self.chunks.try_recv() {
                Ok(chunk) => (self.chunk, self.at) = (chunk?, 0),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) if self.log_taken == self.log_bytes => {
                    self.is_over = true;
                }
                Err(TryRecvError::Disconnected) => return Err("it was cut off".to_owned()),
            }
        }
        if self.is_over {
            return Ok(None);
        }
        let rest = &self.chunk[self.at..];
        let (header, _) = read_header(rest).map_err(|error| error.to_string())?;
        let payload = rest.get(HEADER_LEN..HEADER_LEN + header.payload_len as usize);
        Ok(Some((header, payload.ok_or("a record is cut off")?)))
    }

    /// The record is taken, and the next one's turn.
    pub fn advance(&mut self, payload_len: usize) {
        self.at += HEADER_LEN + payload_len;
        self.log_taken += record_len(payload_len) as u64;
    }

    /// All of the log is taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes of the log that are not taken.
    #[must_use]
    pub fn log_left(&self) -> u64 {
        self.log_bytes - self.log_taken.max(self.skipped)
    }

    /// Bytes that are read and taken, of how many.
    #[must_use]
    pub fn done(&self) -> (u64, u64) {
        (self.image_read.load(Relaxed) + self.log_taken, self.image_bytes + self.log_bytes)
    }
}

fn read(
    files: impl FnOnce() -> Result<Files, String>,
    to_image: SyncSender<Read1>,
    to_log: &SyncSender<Read1>,
) {
    let files = match files() {
        Ok(files) => files,
        Err(why) => {
            // Who builds the server tells it.
            let _gone = to_image.send(Err(why));
            return;
        }
    };
    // Who wants no more is gone.
    let is_image = files.image.chunks().all(|piece| to_image.send(piece).is_ok());
    drop((to_image, files.image));
    if is_image {
        let unwritten = files.unwritten.into_iter().map(Ok);
        let _wanted = files.log.chunks().chain(unwritten).all(|chunk| to_log.send(chunk).is_ok());
    }
}

/// A server's image, read from a spool.
pub struct Image {
    pieces: Receiver<Read1>,
    now: Vec<u8>,
    at: usize,
    read: Arc<AtomicU64>,
}

impl Read for Image {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.now.len() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            let piece = piece.map_err(|why| io::Error::other(format!("the spool: {why}")))?;
            (self.now, self.at) = (piece, 0);
        }
        let len = into.len().min(self.now.len() - self.at);
        into[..len].copy_from_slice(&self.now[self.at..self.at + len]);
        self.at += len;
        self.read.fetch_add(len as u64, Relaxed);
        Ok(len)
    }
}
