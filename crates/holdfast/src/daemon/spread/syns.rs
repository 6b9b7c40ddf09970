//! The cache of SYNs on their way to host servers (HALR in front of a spread group). If a host
//! server dies, they are re-injected, and the redirector sends them to another one, or to the
//! same one if it was only away. Nothing else is cached: answers do not pass the edge, so it
//! never learns what has arrived, and an established connection ends with its host server.

use crate::config::recover::Recover;
use crate::daemon::recover::{Exit, Recoverer, Way};
use anyhow::{Context, Result};
use holdfast_edge::HalrConfig;
use holdfast_linux::bpf::Redirect;
use holdfast_linux::inlet::Inlet;
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

/// The cache of SYNs; see the module.
pub(super) struct Syns {
    recoverer: Recoverer,
    exit: Rc<Exit>,
}

impl Syns {
    /// The cache over a redirector that is attached to `inlet`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(config: &Recover, bpf: &mut Redirect, inlet: Inlet) -> Result<Self> {
        let copies = bpf.take_copies().context("the copies are taken")?;
        let settings = HalrConfig::in_front_of_host_servers;
        let recoverer = Recoverer::new(config, settings, copies, Instant::now())?;
        Ok(Self { recoverer, exit: Exit::Inlet(inlet).into() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.recoverer.fd()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.recoverer.deadline()
    }

    pub fn show(&self) -> Value {
        self.recoverer.show()
    }

    /// Takes some of the copies into the cache.
    pub fn on_readable(&mut self, now: Instant) {
        self.recoverer.on_readable(now);
    }

    /// Re-injects the SYNs that were on their way to the host servers in these slots. Returns
    /// the number of connections.
    pub fn resend(&mut self, now: Instant, slots: &[u8]) -> usize {
        let way =
            |slot: &u8| Way { way: u16::from(*slot), sound: now, exit: Rc::clone(&self.exit) };
        let ways: Vec<Way> = slots.iter().map(way).collect();
        self.recoverer.restored(now, &ways)
    }

    /// Does what is due. `is_in_doubt`: SYNs that pass now may be lost, and are cached.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn turn(&mut self, now: Instant, is_in_doubt: bool) -> Result<()> {
        self.recoverer.poll(now);
        if is_in_doubt {
            self.recoverer.start(now)?;
        } else {
            self.recoverer.stop()?;
        }
        Ok(())
    }
}
