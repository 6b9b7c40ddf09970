//! The image of a server that speaks alone, for the member that joins it.

use holdfast_linux::process;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::snapshot::{Options, Preparation, SnapshotError};
use holdfast_linux::spawn::Server;
use holdfast_member::primary::{Book, Image};
use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::{Books, Limits};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a server may stand still for its image; its clients wait.
const FREEZE_MAX: Duration = Duration::from_millis(100);
/// Rounds in which what has changed is copied while it runs, and how few pages end them.
const ROUNDS_MAX: usize = 6;
const FEW_PAGES: u64 = 256;
/// Of the memory that is free, the part that an image may take: it is held twice for a
/// moment.
const FREE_PART: u64 = 3;

/// An image on its way.
pub struct Outgoing {
    pub bytes: Vec<u8>,
    books: Books,
}

/// Takes it: the server's log begins there.
///
/// # Errors
/// In words; the server runs on as before.
pub fn take(server: &Server, key: HashKey) -> Result<Outgoing, String> {
    let said = |error: SnapshotError| error.to_string();
    let external = server.external().map_err(said)?;
    let free = process::memory_available().map_err(|error| error.to_string())?;
    let limits = Limits { memory_bytes: free / FREE_PART, ..Limits::default() };
    let options = Options { key, limits, freeze_max: FREEZE_MAX, shares_files: false, external };
    // All but the freeze is done at leisure: meanwhile the server serves.
    let preparation = process::at_leisure(|| prepare(server.pid(), &options)).map_err(said)?;
    let snapshot = preparation.freeze(&mut server.stand_still()).map_err(said)?;
    let begun = || {
        let books = snapshot.description().books.clone();
        let books = books.ok_or("the server's memory says nothing of its connections")?;
        let write = || snapshot.write(Vec::new(), &options);
        let bytes = process::at_leisure(write).map_err(said)?;
        Ok(Outgoing { bytes, books })
    };
    // Nobody follows the log.
    begun().inspect_err(|_: &String| server.memory.go_solo())
}

/// What a freeze begins with: most of the memory is copied.
fn prepare(pid: u32, options: &Options) -> Result<Preparation<'_>, SnapshotError> {
    let mut preparation = Preparation::begin(pid, options)?;
    for _ in 0..ROUNDS_MAX {
        if preparation.round()?.is_none_or(|pages| pages < FEW_PAGES) {
            break;
        }
    }
    Ok(preparation)
}

impl Outgoing {
    pub fn image(&self) -> Image {
        Image { log_from: self.books.log_from, bytes: self.bytes.len() as u64 }
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
        self.books.connections.iter().filter_map(book).collect()
    }
}
