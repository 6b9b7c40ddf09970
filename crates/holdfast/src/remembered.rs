//! The events of a daemon on its disk, so that they outlive it: two files that take turns, a JSON
//! object in each line.
//!
//! A thread of its own writes them. A disk that is full, slow or gone delays nobody: what does not
//! fit into the queue is counted, and what cannot be written is tried again.

mod reading;
mod store;

pub use reading::{Found, Remembered, read};
pub use store::FILE_KIND;

use crate::admin::{Level, Report};
use holdfast_linux::epoll::Signals;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use store::Store;

/// Most lines that wait for the thread; further ones are lost, and counted.
const LINES_MAX: usize = 4096;
/// Time after which a disk that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time for which the end of the daemon waits for its last events to be written.
const END_MAX: Duration = Duration::from_millis(500);

/// Where the events of a daemon are kept.
#[must_use]
pub fn file_of(dir: &Path, group: &str, role: &str) -> PathBuf {
    dir.join(format!("{group}.{role}.{FILE_KIND}"))
}

/// Takes events and never waits.
#[derive(Debug)]
pub struct Keeper {
    lines: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// Request to report when everything before it was tried.
    Flush(SyncSender<()>),
}

impl Keeper {
    /// Starts the thread, which keeps `bytes_max` in `path` and the file beside it, and reports
    /// trouble to `tell`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(path: PathBuf, bytes_max: u64, tell: Sender<Report>) -> io::Result<Self> {
        Self::start_with(Store::new(path, bytes_max), tell)
    }

    fn start_with(store: Store, tell: Sender<Report>) -> io::Result<Self> {
        // A signal that ends the daemon is for its loop, never for this thread.
        let _blocked = Signals::block()?;
        let (lines, waiting) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer { store, lost: Arc::clone(&lost), tell, is_failing: false };
        let work = move || writer.run(&waiting);
        std::thread::Builder::new().name("events".to_owned()).spawn(work)?;
        Ok(Self { lines, lost })
    }

    /// Has a line written, which ends with a newline.
    pub fn keep(&self, line: Vec<u8>) {
        if self.lines.try_send(Item::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Keeper {
    /// Waits until all lines were tried, but not for long.
    fn drop(&mut self) {
        let (done, tried) = sync_channel(1);
        if self.lines.try_send(Item::Flush(done)).is_ok() {
            let _late = tried.recv_timeout(END_MAX);
        }
    }
}

/// The thread's part.
struct Writer {
    store: Store,
    lost: Arc<AtomicU64>,
    tell: Sender<Report>,
    is_failing: bool,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Item>) {
        loop {
            let first = match self.store.is_done() {
                true => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => waiting.recv_timeout(RETRY),
            };
            let mut asked = Vec::new();
            match first {
                Err(RecvTimeoutError::Disconnected) => return self.write(),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(first) => [first]
                    .into_iter()
                    .chain(waiting.try_iter().take(LINES_MAX))
                    .for_each(|item| match item {
                        Item::Line(line) => self.store.take(line),
                        Item::Flush(done) => asked.push(done),
                    }),
            }
            self.write();
            for done in asked {
                let _gone = done.try_send(());
            }
        }
    }

    fn write(&mut self) {
        let failure = self.store.write(Instant::now(), RETRY).err();
        let path = self.store.path().display().to_string();
        let lost = self.store.take_dropped() + self.lost.swap(0, Ordering::Relaxed);
        let news = match (&failure, self.is_failing) {
            (Some(error), false) => Some((
                Level::Warn,
                format!("cannot be kept in {path}: {error}; they are tried again every second"),
            )),
            (None, true) => Some((Level::Info, format!("are kept in {path} again"))),
            _ => None,
        };
        self.is_failing = failure.is_some();
        let lost = (lost > 0).then(|| (Level::Warn, format!("{lost} were not kept in {path}")));
        for (level, detail) in news.into_iter().chain(lost) {
            // The daemon may be ending.
            let _gone = self.tell.send(Report { level, what: "events", detail });
        }
    }
}

#[cfg(test)]
mod tests;
