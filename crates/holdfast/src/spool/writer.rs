//! Who writes a spool.

use super::sealed::Sealed;
use super::{Settings, Sync};
use holdfast_linux::priority;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Others on the backup's host come first; the queue bears it.
const NICE: i32 = 5;

/// What is to be written.
pub enum Chunk {
    Image(Vec<u8>),
    /// Whole records, each with its header and its payload right behind it.
    Records(Vec<u8>),
}

impl Chunk {
    pub fn len(&self) -> usize {
        match self {
            Self::Image(bytes) | Self::Records(bytes) => bytes.len(),
        }
    }
}

/// What the writer tells while it works.
#[derive(Default)]
pub struct Shared {
    handed_on: AtomicU64,
    written: AtomicU64,
    image_written: AtomicU64,
    failure: OnceLock<String>,
    is_closing: AtomicBool,
}

impl Shared {
    /// So many bytes more wait for the disk.
    pub fn waits(&self, bytes: u64) {
        self.handed_on.fetch_add(bytes, Relaxed);
    }

    /// Bytes that wait for it.
    pub fn waiting(&self) -> u64 {
        self.handed_on.load(Relaxed).saturating_sub(self.written())
    }

    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    pub fn image_written(&self) -> u64 {
        self.image_written.load(Relaxed)
    }

    /// Somebody waits for what is kept: records that still wait for the disk stay in memory.
    pub fn close(&self) {
        self.is_closing.store(true, Relaxed);
    }

    /// Why nothing is written any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

/// All that is kept.
pub struct Files {
    pub image: Sealed,
    pub log: Sealed,
    /// Records behind those of `log`, which were not written any more.
    pub unwritten: Vec<Vec<u8>>,
}

pub type Writer = JoinHandle<Result<Files, String>>;

/// Writes what comes, until nothing can come any more.
pub fn begin(
    settings: Settings,
    chunks: Receiver<Chunk>,
    shared: Arc<Shared>,
) -> io::Result<Writer> {
    let work = move || {
        priority::give_way(NICE);
        write(&settings, &chunks, &shared).map_err(|error| {
            let why = error.to_string();
            shared.failure.get_or_init(|| why).clone()
        })
    };
    std::thread::Builder::new().name("spool".to_owned()).spawn(work)
}

fn write(settings: &Settings, chunks: &Receiver<Chunk>, shared: &Shared) -> io::Result<Files> {
    let make = || Sealed::make(&settings.dir);
    let (mut image, mut log) = (make()?, make()?);
    let mut unwritten = Vec::new();
    let is_synced = settings.sync == Sync::Always;
    for chunk in chunks {
        let len = chunk.len() as u64;
        match chunk {
            Chunk::Image(bytes) => {
                image.add(bytes, is_synced)?;
                shared.image_written.fetch_add(len, Relaxed);
            }
            Chunk::Records(bytes) if shared.is_closing.load(Relaxed) => unwritten.push(bytes),
            Chunk::Records(bytes) => log.add(bytes, is_synced)?,
        }
        shared.written.fetch_add(len, Relaxed);
    }
    Ok(Files { image, log, unwritten })
}
