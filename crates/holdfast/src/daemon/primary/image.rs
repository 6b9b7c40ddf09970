//! The image of a server that runs alone, for a member that joins it. A thread of its own takes
//! it and writes it piece by piece, with low priority, so that daemon and server go on meanwhile.

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

/// Longest time that a server may be frozen for its image; its clients wait meanwhile. What the
/// processes of a family have of their own, or share, is all copied in it: 85 ms were measured with
/// ten of PostgreSQL's on a busy machine.
const FREEZE_MAX: Duration = Duration::from_millis(250);
/// Most rounds in which what has changed is copied while the server runs (pre-copy).
const ROUNDS_MAX: usize = 6;
/// Most attempts at an image of a server whose processes come and go meanwhile.
const TRIES: u32 = 10;
/// Number of changed pages below which no further round is worth it: 1 MiB.
const FEW_PAGES: u64 = 256;
/// The same for changed bytes of the state folders' files.
const FEW_STATE_BYTES: u64 = 1 << 20;
/// Divisor of the free memory that gives an image's largest size.
const FREE_PART: u64 = 3;
/// Nice value of the thread: a quarter of a processor beside a server that wants all of it.
const NICE: i32 = 5;
/// Most pieces that are written and not sent yet: a bound on memory.
const PIECES_MAX: usize = 16;

/// An image that is being taken and sent.
pub struct Outgoing {
    /// `None` only when this is dropped.
    steps: Option<Receiver<Step>>,
    /// What the shim knew of the server's connections at the freeze; `None` before it.
    books: Option<Books>,
    pub stop: Option<Stop>,
    pub unacked: Vec<Unacked>,
    /// Set when nobody wants the image any more: the thread then gives up.
    is_off: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How the server was frozen for an image.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub pause: Duration,
    /// The part of `pause` until all threads were quiet.
    pub until_quiet: Duration,
    /// Pages that were copied during the freeze.
    pub pages: u64,
    /// Bytes of the files in its state folders.
    pub state_bytes: u64,
}

enum Step {
    /// The image is taken, and the server's log begins there.
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
    /// Sockets, by the kernel's cookies, whose clients have not acknowledged all output.
    pub slow: Vec<u64>,
    /// Whether the server's threads are to run one at a time from the image on.
    pub takes_turns: bool,
}

impl Outgoing {
    /// Begins to take an image of `server`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin(server: Arc<Server>, request: Request) -> io::Result<Self> {
        let (to, steps) = sync_channel(PIECES_MAX);
        let is_off = Arc::new(AtomicBool::new(false));
        let taking = Taking { is_off: Arc::clone(&is_off), urgency: priority::realtime(), to };
        let work = move || {
            priority::give_way(NICE);
            let last = taking.take(server, request).map_or_else(Step::Failed, |()| Step::End);
            // It fails only if the image is not wanted any more.
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

    /// The image's beginning, once it is taken: the server's log begins there. An error says why
    /// it could not be taken; the server then runs on as before. `None`: not yet.
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

    /// The image's next bytes, `None` if they are not there yet. An empty piece is the end.
    ///
    /// # Errors
    /// A text: why the image could not be written.
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
            // The table's entry, and the socket in it, may belong to another connection by now.
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
    /// Ends the thread, which then holds the server no longer. That may take as long as copying
    /// a piece of the server's memory, or as a freeze that has begun.
    fn drop(&mut self) {
        self.is_off.store(true, Relaxed);
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _panicked = thread.join();
        }
    }
}

/// The thread that takes an image.
struct Taking {
    is_off: Arc<AtomicBool>,
    /// The daemon's real-time priority, which the thread has during the freeze, because clients
    /// wait for its end.
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
        let mut tries = 0;
        let snapshot = loop {
            let processes = server.processes();
            tries += 1;
            match self.begin((&server, &processes), &options, (&slow, takes_turns)) {
                // Some have come or gone meanwhile. There may be a quieter moment.
                Err(_) if tries < TRIES && !self.is_off() && server.processes() != processes => {}
                other => break other?,
            }
        };
        drop(server);
        let pieces = Pieces { to: &self.to, piece: Vec::new() };
        let mut pieces = snapshot.write(pieces, &options).map_err(said)?;
        pieces.flush().map_err(|error| error.to_string())
    }

    fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    /// Takes the image of these processes, with which the log begins.
    fn begin(
        &self,
        (server, processes): (&Server, &[u32]),
        options: &Options,
        (slow, takes_turns): (&[u64], bool),
    ) -> Result<Snapshot, String> {
        let preparation = self.prepare(processes, options)?;
        let mut still = server.stand_still(processes, takes_turns);
        still.copy_unacked(slow.iter().copied());
        let freeze = || preparation.freeze(&mut still);
        let snapshot = priority::urgently(self.urgency, freeze);
        let snapshot = snapshot.map_err(|error| error.to_string())?;
        self.begin_log(&snapshot, still.take_unacked()).inspect_err(|_| {
            // The log that begins with this image has no reader: it is ended again.
            still.call_off();
        })?;
        Ok(snapshot)
    }

    /// Copies most of the memory and files while the server runs, so that the freeze is short.
    fn prepare<'a>(
        &self,
        processes: &[u32],
        options: &'a Options,
    ) -> Result<Preparation<'a>, String> {
        let said = |error: SnapshotError| error.to_string();
        let mut preparation = Preparation::begin(processes, options).map_err(said)?;
        for _ in 0..ROUNDS_MAX {
            // Files first: what the server changes in its memory meanwhile, the round of pages
            // copies afterwards.
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

/// A writer that passes on what is written, piece by piece.
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
            // An empty piece would mean the end.
            return Ok(());
        }
        let next = Vec::with_capacity(IMAGE_BYTES_MAX);
        let piece = std::mem::replace(&mut self.piece, next);
        self.to.send(Step::Piece(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
