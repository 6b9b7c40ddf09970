//! One daemon, asked once a second and whenever somebody wants to know.

use super::history::SAMPLE_EVERY;
use super::seen::Seen;
use anyhow::{Context as _, Result, ensure};
use holdfast::admin::Request;
use serde_json::Value;
use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

/// Least time between two rounds of questions, whoever wants to know.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Time for which somebody waits for a new answer, and then gets what is known.
const WAIT_MAX: Duration = Duration::from_millis(400);
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// A daemon and what is known of it.
#[derive(Debug)]
pub struct Source {
    stream: Mutex<BufReader<UnixStream>>,
    seen: RefCell<Seen>,
    /// Somebody wants to know.
    wanted: Notify,
    /// When all questions of a round were last answered.
    known: Cell<Option<Instant>>,
    /// There is an answer.
    answered: Notify,
}

impl Source {
    /// A daemon behind an open connection, which does not block.
    ///
    /// # Errors
    /// If the event loop does not take it.
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        let stream = Mutex::new(BufReader::new(UnixStream::from_std(stream)?));
        let (wanted, answered) = (Notify::new(), Notify::new());
        Ok(Self { stream, seen: RefCell::default(), known: Cell::new(None), wanted, answered })
    }

    /// What is known; hold it only for as long as nothing is awaited.
    pub fn seen(&self) -> Ref<'_, Seen> {
        self.seen.borrow()
    }

    /// Waits for what the daemon says now, but not for long, and not if that is known.
    pub async fn renew(&self) {
        if self.known.get().is_some_and(|at| at.elapsed() < ASK_EVERY) {
            return;
        }
        let answered = self.answered.notified();
        self.wanted.notify_one();
        // A daemon that does not answer is shown as such.
        let _late = timeout(WAIT_MAX, answered).await;
    }

    /// Asks again and again; ends only with the connection. An answer is waited for as long as it
    /// takes: what is known grows old meanwhile.
    ///
    /// # Errors
    /// When the daemon has ended, or says what cannot be understood.
    pub async fn follow(&self) -> Result<()> {
        let mut stream = self.stream.lock().await;
        loop {
            let begun = Instant::now();
            self.ask_all(&mut stream).await.context("the daemon's socket")?;
            self.known.set(Some(Instant::now()));
            self.answered.notify_waiters();
            tokio::time::sleep(ASK_EVERY.saturating_sub(begun.elapsed())).await;
            let rest = SAMPLE_EVERY.saturating_sub(begun.elapsed());
            let _nobody = timeout(rest, self.wanted.notified()).await;
        }
    }

    async fn ask_all(&self, stream: &mut BufReader<UnixStream>) -> Result<()> {
        let status = ask(stream, &Request::Status).await?;
        self.seen.borrow_mut().take_status(status)?;
        if self.seen().can_show() {
            let show = ask(stream, &Request::Show).await?;
            self.seen.borrow_mut().take_show(show);
        }
        let since = self.seen().next_event();
        let events = ask(stream, &Request::Events { since }).await?;
        self.seen.borrow_mut().take_events(events)?;
        Ok(())
    }
}

async fn ask(stream: &mut BufReader<UnixStream>, request: &Request) -> Result<Value> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer).await?;
    ensure!(answer.last() == Some(&b'\n'), "it has closed the connection");
    Ok(serde_json::from_slice(&answer)?)
}
