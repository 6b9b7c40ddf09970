//! Which processor a daemon, and on the primary its server, runs on.
//!
//! The commit of an output is one chain: the server, its daemon, the backup's daemon, the daemon
//! and the server again, each waiting for the one before. On one processor every hand-over is a
//! context switch. Between two processors it is an interrupt to a processor that may sleep,
//! which costs more than all the work of the chain (measured in a virtual machine: 58 µs for a
//! round trip between two processors, 15 µs on one).
//!
//! So the primary's daemon keeps itself and the server's main thread on one
//! processor, the one that the scheduler has chosen for the server; and the
//! backup's daemon follows the primary's packets to where they arrive.

use holdfast_linux::affinity::{self, CpuSet};
use holdfast_linux::spawn::Server;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Release;
use std::time::{Duration, Instant};

/// The processors that this daemon was started with.
static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Remembers the processors that this daemon may use, before it keeps itself to one.
pub fn remember() {
    ALLOWED.get_or_init(|| affinity::of(0).ok());
}

/// Lets the calling thread, and what it starts, run on all of them: who begins it may be kept to
/// one, beside the server.
pub fn leave() {
    if let Some(Some(allowed)) = ALLOWED.get() {
        let _ = affinity::set(0, allowed);
    }
}

/// Shortest time that a chosen processor is kept.
const STAYS: Duration = Duration::from_secs(1);
/// Time that the scheduler gets to choose another processor when this one is crowded.
const LOOSE: Duration = Duration::from_millis(50);

/// Place of the server's main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where the scheduler wants it.
    Loose,
    /// On this processor, beside the daemon.
    Kept(usize),
    /// Where the operator or the server itself wants it.
    Theirs,
}

/// Keeps the primary's daemon beside its server.
pub struct ServerCpu {
    allowed: Option<CpuSet>,
    place: Place,
    look_at: Instant,
    looked: Instant,
    waited: Duration,
}

impl ServerCpu {
    /// `share`: whether the group wants it (`share_cpu`). With one processor there is nothing to
    /// choose, and nothing is done.
    #[must_use]
    pub fn new(share: bool, now: Instant) -> Self {
        Self {
            allowed: several(share),
            place: Place::Loose,
            look_at: now + LOOSE,
            looked: now,
            waited: Duration::ZERO,
        }
    }

    /// Checks the place from time to time.
    pub fn turn(&mut self, server: &Server, now: Instant) {
        let Some(allowed) = self.allowed.filter(|_| now >= self.look_at) else { return };
        let Ok(theirs) = affinity::of(server.pid()) else { return };
        let waited = affinity::waited(server.pid()).unwrap_or_default();
        // The server has waited for its processor for more than half of the time since then.
        let crowded = waited.saturating_sub(self.waited) > (now - self.looked) / 2;
        (self.looked, self.waited) = (now, waited);
        self.look_at = now + STAYS;
        match self.place {
            Place::Loose if theirs == allowed => self.keep(server),
            Place::Kept(cpu) if theirs == CpuSet::one(cpu) => {
                if crowded {
                    self.release(server);
                    self.look_at = now + LOOSE;
                }
            }
            // Somebody else has chosen; the daemon follows that choice.
            Place::Loose | Place::Kept(_) => {
                server.memory.header().kept.0.store(0, Release);
                let _ = affinity::set(0, if theirs.count() == 1 { &theirs } else { &allowed });
                self.place = Place::Theirs;
            }
            Place::Theirs => {}
        }
    }

    fn keep(&mut self, server: &Server) {
        let Ok(cpu) = affinity::last_cpu(server.pid()) else { return };
        let only = CpuSet::one(cpu);
        // The shim is told first: it lets the server's new threads run on all processors.
        server.memory.header().kept.0.store(1, Release);
        self.place = Place::Kept(cpu);
        if affinity::set(server.pid(), &only).is_err() || affinity::set(0, &only).is_err() {
            self.release(server);
        }
    }

    /// Leaves the server and the daemon to the scheduler.
    pub fn release(&mut self, server: &Server) {
        let Some(allowed) = self.allowed else { return };
        if let Place::Kept(_) = self.place {
            let _ = affinity::set(server.pid(), &allowed);
        }
        if self.place != Place::Theirs {
            self.place = Place::Loose;
        }
        server.memory.header().kept.0.store(0, Release);
        let _ = affinity::set(0, &allowed);
    }
}

/// Frees the daemon: it may begin another role on any processor that it may
/// use.
impl Drop for ServerCpu {
    fn drop(&mut self) {
        if let Some(allowed) = &self.allowed {
            let _ = affinity::set(0, allowed);
        }
    }
}

/// Keeps the backup's daemon where the primary's packets arrive.
pub struct PacketCpu {
    allowed: Option<CpuSet>,
    at: Option<usize>,
}

impl PacketCpu {
    /// `share`: whether the group wants it.
    #[must_use]
    pub fn new(share: bool) -> Self {
        Self { allowed: several(share), at: None }
    }

    /// Moves to the processor that handled the socket's last packet.
    pub fn turn(&mut self, socket: BorrowedFd<'_>) {
        let Some(allowed) = &self.allowed else { return };
        let Ok(cpu) = affinity::incoming_cpu(socket) else { return };
        if self.at != Some(cpu) && allowed.has(cpu) {
            self.at = affinity::set(0, &CpuSet::one(cpu)).is_ok().then_some(cpu);
        }
    }

    /// Leaves the daemon to the scheduler.
    pub fn release(&mut self) {
        if let (Some(allowed), Some(_)) = (&self.allowed, self.at.take()) {
            let _ = affinity::set(0, allowed);
        }
    }
}

impl Drop for PacketCpu {
    fn drop(&mut self) {
        self.release();
    }
}

/// The daemon's processors, if there is a choice.
fn several(share: bool) -> Option<CpuSet> {
    affinity::of(0).ok().filter(|cpus| share && cpus.count() > 1)
}
