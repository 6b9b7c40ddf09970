//! Copies of a running server, made as its daemons make them: image, restore, log.

use super::{KEY, acknowledge, eventually, feed, promote, settings};
use holdfast_linux::snapshot::quiet::Quiescence;
use holdfast_linux::snapshot::restore::Loading;
use holdfast_linux::snapshot::{External, Options, Preparation, SnapshotError};
use holdfast_linux::spawn::{Copying, Making, Server};
use holdfast_wire::shm::mode;
use holdfast_wire::snapshot::{Books, Limits};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The image of a server that speaks alone, and what it cost.
pub struct Image {
    pub bytes: Vec<u8>,
    pub pause: Duration,
    pub until_quiet: Duration,
    pub frozen_pages: u64,
    pub books: Books,
}

/// Takes the image of a server that speaks alone: it is the copy's primary then.
pub fn image_of(server: &Server) -> Image {
    try_image_of(server, &mut server.stand_still(&server.processes(), false)).expect("an image")
}

/// As [`image_of`], with somebody between.
pub fn try_image_of(server: &Server, quiet: &mut dyn Quiescence) -> Result<Image, SnapshotError> {
    const ROUNDS: usize = 4;
    let options = options(server.external()?);
    let mut preparation = Preparation::begin(&server.processes(), &options)?;
    for _ in 0..ROUNDS {
        preparation.round()?;
    }
    let snapshot = preparation.freeze(quiet)?;
    let (pause, until_quiet) = (snapshot.pause, snapshot.until_quiet);
    let frozen_pages = snapshot.frozen_pages;
    let books = snapshot.description().books.clone().expect("books");
    let bytes = snapshot.write(Vec::new(), &options)?;
    Ok(Image { bytes, pause, until_quiet, frozen_pages, books })
}

pub fn options(external: External) -> Options {
    let freeze_max = Duration::from_millis(900);
    let (limits, is_off) = (Limits::default(), Arc::default());
    let state_dirs = Vec::new();
    Options { key: KEY, limits, freeze_max, shares_files: true, state_dirs, is_off, external }
}

/// A server made of it, which follows the log.
pub fn copy_of(image: &Image, port: u16, dir: &Path) -> Server {
    Server::copy(&image.bytes[..], &copying(port, dir)).expect("a copy")
}

/// Like [`copy_of`], while its log is taken: the ring would not hold all of it.
pub fn copy_beside(image: &Image, port: u16, dir: &Path, mut take: impl FnMut()) -> Server {
    let mut making = Making::begin(copying(port, dir)).expect("a thread");
    making.take(image.bytes.clone());
    making.end();
    loop {
        take();
        if let Some(made) = making.made() {
            return made.expect("a copy");
        }
        std::thread::yield_now();
    }
}

/// As [`copy_of`] makes it.
pub fn copying(port: u16, dir: &Path) -> Copying {
    let (limits, state_dirs) = (Limits::default(), Vec::new());
    let loading =
        Loading { key: KEY, limits, state_dirs, keeps_old: false, dies_with_parent: true };
    let log = Some(dir.join("log-copy"));
    Copying { loading, settings: settings(port, 0, mode::REPLAY), log }
}

/// A log on its way from a server to its copy.
#[derive(Default)]
pub struct Log {
    /// What the copy does not have yet.
    waits: Vec<u8>,
    /// How far it has been taken.
    pub at: u64,
    pub records: usize,
}

impl Log {
    pub fn from(at: u64) -> Self {
        Self { at, ..Self::default() }
    }

    /// Takes what the primary has and confirms it.
    pub fn take(&mut self, primary: &Server) {
        let Some(tail) = primary.memory.take_tail(self.at) else {
            let (mode, reason) = (primary.memory.mode(), primary.memory.reason());
            let (tail, stands) = (primary.memory.tail(), self.at);
            panic!("a log that grows: taken up to {stands} of {tail}, mode {mode}, {reason}");
        };
        self.waits.extend(primary.memory.copy(self.at, (tail - self.at) as usize));
        primary.memory.set_stable(tail);
        self.at = tail;
    }

    /// Forgets what is older than an image that was taken meanwhile.
    pub fn begin_at(&mut self, log_from: u64) {
        let first = self.at - self.waits.len() as u64;
        self.waits.drain(..(log_from - first) as usize);
    }

    /// As [`Self::take`], and gives the copy what it has room for.
    pub fn pass(&mut self, primary: &Server, copy: &Server) {
        self.take(primary);
        let (bytes, records) = feed(copy, &self.waits);
        self.waits.drain(..bytes);
        self.records += records;
        let state = (copy.memory.mode(), copy.memory.reason());
        assert_eq!(state, (mode::REPLAY, String::new()), "at {}", copy.memory.head());
    }

    /// Whether the copy has followed all that has been taken.
    pub fn is_followed(&self, copy: &Server) -> bool {
        self.waits.is_empty() && copy.memory.head() == self.at
    }

    /// Passes on until the copy has followed all of it.
    pub fn catch_up(&mut self, primary: &Server, copy: &Server) {
        let deadline = Instant::now() + Duration::from_secs(20);
        self.pass(primary, copy);
        while !self.is_followed(copy) {
            let (head, at) = (copy.memory.head(), self.at);
            assert!(Instant::now() < deadline, "the copy stands at {head} of {at}");
            std::thread::yield_now();
            self.pass(primary, copy);
        }
    }
}

/// The copy takes the place of its primary, which has ended.
pub fn promote_copy(copy: &Server) {
    acknowledge(copy);
    promote(copy);
    eventually("alone", || copy.memory.mode() == mode::SOLO);
}
