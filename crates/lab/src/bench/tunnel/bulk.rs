//! One connection in bulk.

use super::bed::Bed;
use super::talk::connect;
use anyhow::Result;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

const CHUNK_BYTES: usize = 64 << 10;
/// The object whose time is told.
const OBJECT_BYTES: u64 = 1_000_000;

/// A sender who never ends, and who receives it; dropping it ends both.
pub struct Bulk {
    seen: Arc<Seen>,
    near: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    bytes: AtomicU64,
    /// 0 while it is not complete.
    object_us: AtomicU64,
    is_over: AtomicBool,
}

impl Bulk {
    /// Connects and begins.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn start(bed: &Bed, target: SocketAddr, control: &str) -> Result<Self> {
        let [near, far] = connect(bed, target, control)?;
        let seen = Arc::new(Seen::default());
        let (sender, receiver) = (near.try_clone()?, Arc::clone(&seen));
        let threads = vec![
            std::thread::spawn(move || {
                let chunk = vec![0x5a; CHUNK_BYTES];
                while (&sender).write_all(&chunk).is_ok() {}
            }),
            std::thread::spawn(move || receiver.receive(&far)),
        ];
        Ok(Self { seen, near, threads })
    }

    /// Bytes that have come so far.
    pub fn bytes(&self) -> u64 {
        self.seen.bytes.load(Ordering::Relaxed)
    }

    /// How long the first megabyte took, ms, if it is complete.
    pub fn object_ms(&self) -> Option<f64> {
        let us = self.seen.object_us.load(Ordering::Relaxed);
        (us > 0).then_some(us as f64 / 1e3)
    }
}

impl Seen {
    fn receive(&self, far: &TcpStream) {
        let (mut buffer, begun) = (vec![0; CHUNK_BYTES], Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let length = match (&*far).read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => length as u64,
                Err(_) => continue,
            };
            let before = self.bytes.fetch_add(length, Ordering::Relaxed);
            if before < OBJECT_BYTES && before + length >= OBJECT_BYTES {
                let us = begun.elapsed().as_micros() as u64;
                self.object_us.store(us.max(1), Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        // It may be closed already.
        let _ = self.near.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
