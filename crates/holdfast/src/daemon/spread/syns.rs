//! SYNs on their way to a host server that died (HALR in front of a spread group):
//! they come in anew, and the redirector gives them to another one, or to the same
//! one if it was only away. Nothing else is kept: answers do not pass the edge, so
//! it never learns what has arrived, and an established connection ends with its
//! host server.

use crate::config::recover::Recover;
use crate::daemon::recover::{Exit, Recoverer, Way};
use anyhow::{Context, Result};
use holdfast_linux::bpf::Redirect;
use holdfast_linux::inlet::Inlet;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

/// See the module.
pub(super) struct Syns {
    recoverer: Recoverer,
    exit: Rc<Exit>,
    /// Host servers of which heartbeats are missing.
    silent: BTreeSet<String>,
    /// Slots whose SYNs may have been lost and can be delivered now.
    lost: BTreeSet<u8>,
}

impl Syns {
    /// The cache over a redirector that is attached to `inlet`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(config: &Recover, bpf: &mut Redirect, inlet: Inlet) -> Result<Self> {
        let copies = bpf.take_copies().context("the copies are taken")?;
        Ok(Self {
            recoverer: Recoverer::new(config, copies, Instant::now())?,
            exit: Exit::Inlet(inlet).into(),
            silent: BTreeSet::new(),
            lost: BTreeSet::new(),
        })
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

    /// Two heartbeats are missing.
    pub fn handle_suspected(&mut self, name: &str) {
        self.silent.insert(name.to_owned());
    }

    /// A heartbeat came from the one that has these slots.
    pub fn handle_beat(&mut self, name: &str, slots: &[u8]) {
        if self.silent.remove(name) {
            self.lost.extend(slots);
        }
    }

    /// Three are missing.
    pub fn handle_declared(&mut self, slots: &[u8]) {
        self.lost.extend(slots);
    }

    /// After the redirector knows who is there: what was on its way comes in anew.
    /// Says of how many connections, if there are any.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn turn(&mut self, now: Instant, is_readable: bool) -> Result<Option<usize>> {
        if is_readable {
            self.recoverer.on_readable(now);
        }
        let sound = now;
        let way = |slot| Way { way: u16::from(slot), sound, exit: Rc::clone(&self.exit) };
        let ways: Vec<Way> = std::mem::take(&mut self.lost).into_iter().map(way).collect();
        let flows = if ways.is_empty() { 0 } else { self.recoverer.restored(now, &ways) };
        self.recoverer.poll(now);
        if self.silent.is_empty() {
            self.recoverer.stop()?;
        } else {
            self.recoverer.start(now)?;
        }
        Ok(Some(flows).filter(|flows| *flows > 0))
    }
}
