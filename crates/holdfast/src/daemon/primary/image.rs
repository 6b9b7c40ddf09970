//! The image of a server that speaks alone, for the member that joins it: a thread of its
//! own takes it, and writes it piece by piece. The daemon has other things to do, and
//! the server is to have the processor.

use holdfast_linux::priority;
use holdfast_linux::process;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::snapshot::{Options, Preparation, Snapshot, SnapshotError};
use holdfast_linux::spawn::{Server, Unacked};
use holdfast_member::primary::{Book, Image};
use holdfast_wire::hash::HashKey;
use holdfast_wire::message::IMAGE_BYTES_MAX;
use holdfast_wire::snapshot::{Books, Limits};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a server may stand still for its image; its clients wait.
const FREEZE_MAX: Duration = Duration::from_millis(100);
/// Rounds in which what has changed is copied while it runs, and how few pages end them.
const ROUNDS_MAX: usize = 6;
const FEW_PAGES: u64 = 256;
const FEW_STATE_BYTES: u64 = 1 << 20;
/// Of the memory that is free, the part that an image may take.
const FREE_PART: u64 = 3;
/// A quarter of the processor's time beside a server that wants all of it.
const NICE: i32 = 5;
/// Pieces that are written and not sent yet.
const PIECES_MAX: usize = 16;

/// An image that is taken, and on its way.
pub struct Outgoing {
    /// `None` only when this is dropped.
    steps: Option<Receiver<Step>>,
    /// Once it is taken.
    books: Option<Books>,
    pub stop: Option<Stop>,
    pub unacked: Vec<Unacked>,
    /// Nobody wants it any more.
    is_off: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How the server stood still for an image.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub pause: Duration,
    /// Of that, until its threads were quiet.
    pub until_quiet: Duration,
    /// Pages that were copied meanwhile.
    pub pages: u64,
    /// Bytes of its state folders' files.
    pub state_bytes: u64,
}

enum Step {
    /// The server's log begins, and with it the image, of at most so many bytes.
    Begun(Box<Begun>),
    Piece(Vec<u8>),
    End,
    Failed(String),
}

struct Begun {
    books: Books,
    bytes: u64,
    stop: Stop,
    unacked: Vec<Unacked>,
}

/// What is to be in an image.
pub struct Request {
    pub key: HashKey,
    pub state_dirs: Vec<PathBuf>,
    /// Sockets of clients that have not acknowledged all.
    pub slow: Vec<u64>,
    /// One of the server's threads is to run at a time from there on.
    pub takes_turns: bool,
}

impl Outgoing {
    /// Begins to take it.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn begin(server: Arc<Server>, request: Request) -> io::Result<Self> {
        let (to, steps) = sync_channel(PIECES_MAX);
        let is_off = Arc::new(AtomicBool::new(false));
        let taking = Taking { is_off: Arc::clone(&is_off), urgency: priority::realtime(), to };
        let work = move || {
            priority::give_way(NICE);
            let last = taking.take(server, request).map_or_else(Step::Failed, |()| Step::End);
            // Nobody waits for what nobody wants.
            let _off = taking.to.send(last);
        };
        let thread = std::thread::Builder::new().name("image".to_owned()).spawn(work)?;
        let (steps, thread) = (Some(steps), Some(thread));
        Ok(Self { steps, books: None, stop: None, unacked: Vec::new(), is_off, thread })
    }

    fn step(&self) -> Option<Step> {
        let steps = self.steps.as_ref()?;
        match steps.try_recv() {
            Ok(step) => Some(step),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Step::Failed("it is over".to_owned())),
        }
    }

    /// Whether it is taken by now: the server's log begins there. Or why it is not, and the
    /// server runs on as before.
    pub fn taken(&mut self) -> Option<Result<Image, String>> {
        Some(match self.step()? {
            Step::Begun(begun) => {
                let Begun { books, bytes, stop, unacked } = *begun;
                let log_from = books.log_from;
                (self.books, self.stop, self.unacked) = (Some(books), Some(stop), unacked);
                Ok(Image { log_from, bytes })
            }
            Step::Failed(reason) => Err(reason),
            Step::Piece(_) | Step::End => Err("it has no beginning".to_owned()),
        })
    }

    /// Its next bytes, `None` if they are not there yet; none at all behind the last ones.
    ///
    /// # Errors
    /// In words.
    pub fn piece(&self) -> Result<Option<Vec<u8>>, String> {
        match self.step() {
            None => Ok(None),
            Some(Step::Piece(bytes)) => Ok(Some(bytes)),
            Some(Step::End) => Ok(Some(Vec::new())),
            Some(Step::Failed(reason)) => Err(reason),
            Some(Step::Begun(_)) => Err("it begins twice".to_owned()),
        }
    }

    pub fn books(&self, memory: &SharedMemory) -> Vec<Book> {
        let book = |it: &holdfast_wire::snapshot::Connection| {
            let entry = memory.entry(it.conn);
            let socket = entry.socket.load(Relaxed);
            // Its place may have got another connection since, and with it its name.
            (entry.conn.load(Relaxed) == it.conn).then_some(Book {
                accept: it.conn,
                socket,
                in_bytes: it.in_bytes,
                out_bytes: it.out_bytes,
                eof: it.eof != 0,
                shut: it.shut & 1 != 0,
                closed: it.state != holdfast_wire::shm::conn_state::OPEN,
            })
        };
        self.books.iter().flat_map(|books| &books.connections).filter_map(book).collect()
    }
}

impl Drop for Outgoing {
    /// From here on nobody has a hold of the server. It takes as long as a piece of its memory
    /// takes to be copied, or as a freeze that has begun.
    fn drop(&mut self) {
        self.is_off.store(true, Relaxed);
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _panicked = thread.join();
        }
    }
}

/// Who takes an image.
struct Taking {
    is_off: Arc<AtomicBool>,
    /// The daemon's real-time priority: the server's clients wait for the freeze.
    urgency: Option<i32>,
    to: SyncSender<Step>,
}

impl Taking {
    fn take(&self, server: Arc<Server>, request: Request) -> Result<(), String> {
        let Request { key, state_dirs, slow, takes_turns } = request;
        let said = |error: SnapshotError| error.to_string();
        let external = server.external().map_err(said)?;
        let free = process::memory_available().map_err(|error| error.to_string())?;
        let limits = Limits { memory_bytes: free / FREE_PART, ..Limits::default() };
        let options = Options {
            key,
            limits,
            freeze_max: FREEZE_MAX,
            shares_files: false,
            state_dirs,
            is_off: Arc::clone(&self.is_off),
            external,
        };
        let preparation = self.prepare(server.pid(), &options)?;
        let mut still = server.stand_still(takes_turns);
        still.copy_unacked(slow);
        let freeze = || preparation.freeze(&mut still);
        let snapshot = priority::urgently(self.urgency, freeze).map_err(said)?;
        self.begin_log(&snapshot, still.take_unacked()).inspect_err(|_| {
            // Nobody follows a log that has begun with it.
            still.call_off();
        })?;
        drop(server);
        let pieces = Pieces { to: &self.to, piece: Vec::new() };
        let mut pieces = snapshot.write(pieces, &options).map_err(said)?;
        pieces.flush().map_err(|error| error.to_string())
    }

    /// What a freeze begins with: most of the memory is copied.
    fn prepare<'a>(&self, pid: u32, options: &'a Options) -> Result<Preparation<'a>, String> {
        let said = |error: SnapshotError| error.to_string();
        let mut preparation = Preparation::begin(pid, options).map_err(said)?;
        for _ in 0..ROUNDS_MAX {
            // Files first: what their copies take of the time goes to the server's memory.
            let bytes = preparation.state_round().map_err(said)?;
            let pages = preparation.round().map_err(said)?;
            if bytes < FEW_STATE_BYTES && pages.is_none_or(|pages| pages < FEW_PAGES) {
                break;
            }
        }
        Ok(preparation)
    }

    fn begin_log(&self, snapshot: &Snapshot, unacked: Vec<Unacked>) -> Result<(), String> {
        let books = snapshot.description().books.clone();
        let books = books.ok_or("the server's memory says nothing of its connections")?;
        let bytes = snapshot.bytes_max().map_err(|error| error.to_string())?;
        let Snapshot { pause, until_quiet, frozen_pages, .. } = *snapshot;
        let state_bytes = snapshot.description().state.bytes;
        let stop = Stop { pause, until_quiet, pages: frozen_pages, state_bytes };
        let begun = Begun { books, bytes, stop, unacked };
        self.to
            .send(Step::Begun(Box::new(begun)))
            .map_err(|_| "nobody wants it any more".to_owned())
    }
}

/// Hands on what is written, piece by piece.
struct Pieces<'a> {
    to: &'a SyncSender<Step>,
    piece: Vec<u8>,
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(IMAGE_BYTES_MAX - self.piece.len());
        self.piece.extend_from_slice(&bytes[..len]);
        if self.piece.len() == IMAGE_BYTES_MAX {
            self.flush()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            // Nothing at all would mean the end.
            return Ok(());
        }
        let next = Vec::with_capacity(IMAGE_BYTES_MAX);
        let piece = std::mem::replace(&mut self.piece, next);
        self.to.send(Step::Piece(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
