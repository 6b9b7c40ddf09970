//! A daemon's log: lines go to standard error from a thread of their own. Their
//! reader may stop reading; a loop that sends heartbeats must not wait for that.

pub(super) mod format;

use crate::status::counted;
use holdfast_linux::epoll::Signals;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Most lines that wait for the reader; further ones are lost, and counted.
const LINES_MAX: usize = 4096;
/// Longest time for which the end of the daemon waits for its last lines to be
/// written.
const END_MAX: Duration = Duration::from_millis(500);

/// Takes lines and never waits.
#[derive(Clone)]
pub(super) struct Log {
    lines: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// Request to report when everything before it is written.
    Flush(SyncSender<()>),
}

impl Log {
    /// Starts the thread, which writes to `to`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        // A signal that ends the daemon is for its loop, never for this thread.
        let _blocked = Signals::block()?;
        let (lines, waiting) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let work = move || write(to, &waiting, &counted);
        std::thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok(Self { lines, lost })
    }

    /// Waits until all lines are written, but not forever.
    pub fn flush_all(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Item::Flush(done)).is_ok() {
            let _ = written.recv_timeout(END_MAX);
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Item::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(mut to: impl Write, waiting: &Receiver<Item>, lost: &AtomicU64) {
    while let Ok(item) = waiting.recv() {
        match item {
            Item::Line(line) => {
                // A reader that has gone is no reason to stop.
                let _ = to.write_all(&line);
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let were = if lost == 1 { "was" } else { "were" };
                    let lines = counted(lost, "line");
                    let _ = writeln!(to, "{lines} {were} lost: nobody read the log in time");
                }
            }
            Item::Flush(done) => {
                let _ = to.flush();
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    /// A writer that writes nothing until it is released.
    struct Stuck {
        go: Receiver<()>,
        is_free: bool,
        written: Sender<Vec<u8>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_free = self.is_free || self.go.recv().is_ok();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_hangs_stops_nobody() {
        let ((go, stuck), (written, read)) = (channel(), channel());
        let mut log = Log::start(Stuck { go: stuck, is_free: false, written }).unwrap();
        let begun = Instant::now();
        for line in 0..3 * LINES_MAX {
            // In one piece, as the subscriber writes.
            log.write_all(format!("line {line}\n").as_bytes()).unwrap();
        }
        assert!(log.lost.load(Ordering::Relaxed) >= LINES_MAX as u64);
        log.flush_all();
        assert!(begun.elapsed() < Duration::from_secs(10), "it waited for the reader");
        go.send(()).unwrap();
        drop(log);
        let text = read.iter().flatten().collect::<Vec<u8>>();
        let text = String::from_utf8(text).unwrap();
        let all: Vec<&str> = text.lines().collect();
        assert!(
            all[0] == "line 0" && all[1].ends_with("lines were lost: nobody read the log in time")
        );
        assert!((LINES_MAX..=LINES_MAX + 3).contains(&all.len()), "{} lines", all.len());
    }

    #[test]
    fn what_was_said_is_written_at_the_end() {
        let ((go, stuck), (written, read)) = (channel(), channel());
        go.send(()).unwrap();
        let mut log = Log::start(Stuck { go: stuck, is_free: false, written }).unwrap();
        writeln!(log, "the end").unwrap();
        log.flush_all();
        let text: Vec<u8> = read.try_iter().flatten().collect();
        assert_eq!(text, b"the end\n");
    }
}
