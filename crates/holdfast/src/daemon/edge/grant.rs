//! Grants: who may speak, from a member's request to the fence. A grant is on disk
//! before it is in the fence, and in the fence before the member hears of it.

use super::EdgeDaemon;
use crate::admin::refusal;
use crate::config::Config;
use anyhow::Result;
use holdfast_cluster::membership::{Decision, Refusal};
use holdfast_cluster::state::EdgeState;
use holdfast_linux::bpf::Edge;
use holdfast_wire::message::Message;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Flows in one message; a flow takes less than 64 bytes.
const FLOWS_PER_MESSAGE: usize = 4096;
/// How long a fence by hand waits for the disk before it is answered.
const BY_HAND_MAX: Duration = Duration::from_millis(500);

/// A member whose grant is being written.
pub(super) struct Asked {
    index: usize,
    epoch: u64,
    at: Instant,
    /// The number of the write.
    write: u64,
    /// Its server starts anew, which takes its time.
    starts: bool,
}

/// What the disk and the fence in the kernel make of each other.
pub(super) struct Agreed {
    /// The fence is newer than the disk, which was lost or rolled back: this is to
    /// be written.
    pub newer: Option<EdgeState>,
    /// The fence is new, so nobody but the members knows whether the disk is old.
    pub booted: bool,
}

/// The fence in the kernel may be older than the disk (we died between the two),
/// new and closed (a reboot), or newer (the file was lost or rolled back). Only
/// where both say the same may it stay open; else the member named has to ask.
pub(super) fn agree(bpf: &mut Edge, config: &Config, disk: &EdgeState) -> Result<Agreed> {
    let (epoch, current) = bpf.current()?;
    let name = current.and_then(|index| Some(config.members.get(index)?.name.clone()));
    if epoch > disk.epoch {
        // Closed by hand, as far as anybody can tell.
        let newer = EdgeState { epoch, fenced: name.is_none(), current: name };
        return Ok(Agreed { newer: Some(newer), booted: false });
    }
    let is_same = epoch == disk.epoch && name == disk.current && !disk.fenced;
    if !is_same {
        bpf.set_current(disk.epoch, None)?;
    }
    Ok(Agreed { newer: None, booted: epoch == 0 })
}

impl EdgeDaemon<'_> {
    /// The one moment in which speed matters: write, flip, answer.
    pub(super) fn promote(&mut self, index: usize, name: &str, epoch: u64, asked: Instant) {
        match self.machine.handle_promote(name, epoch) {
            Decision::Refuse(refusal) => {
                if refusal == Refusal::BackupInStep {
                    self.tell_of_lone(index, asked);
                }
                self.refuse(index, epoch, &refusal.to_string(), !refusal.is_final());
            }
            Decision::Reopen { epoch } if self.held => {
                self.refuse(index, epoch, &Refusal::Fenced.to_string(), true);
            }
            Decision::Reopen { epoch } => self.open(index, epoch, asked),
            Decision::Grant { persist } => {
                let starts = !self.machine.is_in_step(name);
                let write = self.disk.keep(persist, Instant::now());
                self.asked = Some(Asked { index, epoch, at: asked, write, starts });
            }
        }
    }

    /// What the disk has done, and the grant that waited for it.
    pub(super) fn written(&mut self, now: Instant) {
        let before = self.disk.failure().map(str::to_owned);
        while let Some((number, outcome)) = self.disk.take(now) {
            let Some(asked) = self.asked.take_if(|asked| asked.write == number) else { continue };
            match outcome {
                Ok(()) => {
                    self.machine.handle_persisted();
                    if asked.starts {
                        self.links.excuse_start(asked.index, self.nanos(asked.at));
                    }
                    self.open(asked.index, asked.epoch, asked.at);
                }
                Err(reason) => {
                    self.machine.handle_persist_failed();
                    self.refuse(asked.index, asked.epoch, &reason, true);
                }
            }
        }
        match (before, self.disk.failure()) {
            (None, Some(why)) => self.events.add("disk", why.to_owned()),
            (Some(_), None) => {
                self.events.add("disk", "it takes writes again");
                self.adopt_claim(now);
            }
            _ => {}
        }
        let current = self.machine.handle_ask().current.clone();
        let index = current.and_then(|name| self.links.index(&name));
        let is_calm = index.is_none_or(|index| !self.links.is_suspected(index));
        self.disk.try_again(self.machine.handle_ask(), is_calm, now);
    }

    /// A living primary whose epoch the disk does not know goes on.
    pub(super) fn adopt_claim(&mut self, now: Instant) {
        let Some((name, epoch)) = self.machine.claim() else { return };
        let name = name.to_owned();
        if let Some(index) = self.links.index(&name).filter(|i| self.links.is_connected(*i)) {
            self.promote(index, &name, epoch, now);
        }
    }

    /// It is said each time it is asked, and remembered once.
    fn refuse(&mut self, index: usize, epoch: u64, reason: &str, again: bool) {
        self.links.send(index, &Message::Refused { reason, again });
        let _ = self.links.flush(index, &self.poll);
        let refused = Some((index, epoch, reason.to_owned()));
        if self.refused != refused {
            let name = self.links.name(index);
            self.events.add("refused", format!("{name}, epoch {epoch}: {reason}"));
            self.refused = refused;
        }
    }

    /// The fence opens for a member, and it hears of it. An edge that was closed by
    /// hand while the grant was written stays closed.
    fn open(&mut self, index: usize, epoch: u64, asked: Instant) {
        self.held = false;
        let current = Some(index).filter(|_| !self.machine.handle_ask().fenced);
        if let Err(error) = self.bpf.set_current(epoch, current) {
            return self.refuse(index, epoch, &error.to_string(), true);
        }
        self.links.send(index, &Message::Granted { epoch });
        let _ = self.links.flush(index, &self.poll);
        self.last_grant = asked.elapsed();
        self.refused = None;
        self.send_bounds(index);
        let _ = self.links.flush(index, &self.poll);
        self.grants += 1;
        self.update_taps();
        self.tell_others(index, asked);
        let (name, took) = (self.links.name(index).to_owned(), self.last_grant.as_micros());
        // Both are one update of one map.
        self.events.add("fence", format!("epoch {epoch}: nobody but {name} speaks"));
        self.events.add("switch", format!("clients' packets go to {name}"));
        self.events.add("granted", format!("{name}, epoch {epoch}, {took} µs"));
        self.resend(index, &name);
    }

    /// What the wire has seen of every flow: where a silent client stands.
    fn send_bounds(&mut self, index: usize) {
        // Once more: it is memory that the kernel may lack for a moment.
        let flows = self.bpf.all_bounds().or_else(|_| self.bpf.all_bounds());
        let flows = flows.unwrap_or_else(|error| {
            self.events.add("bounds", format!("unknown, the takeover guesses: {error}"));
            Vec::new()
        });
        let mut chunks = flows.chunks(FLOWS_PER_MESSAGE).peekable();
        if chunks.peek().is_none() {
            self.links.send(index, &Message::Bounds { flows: Vec::new(), last: true });
        }
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            self.links.send(index, &Message::Bounds { flows: chunk.to_vec(), last });
        }
    }

    /// Closed by hand, by either kind.
    pub(super) fn is_fenced_by_hand(&self) -> bool {
        self.held || self.machine.handle_ask().fenced
    }

    /// Closes the edge at once, and remembers it: neither a member nor a restart
    /// opens it again. With `until_takeover` it is not remembered.
    pub(super) fn fence(&mut self, until_takeover: bool) -> Value {
        let epoch = self.machine.handle_ask().epoch;
        if let Err(error) = self.bpf.set_current(epoch, None) {
            return refusal(&error.to_string());
        }
        self.events.add("fenced", "by hand");
        if until_takeover {
            self.held = true;
            return json!({ "epoch": epoch });
        }
        match self.remember(true) {
            Ok(()) => json!({ "epoch": epoch }),
            Err(why) => refusal(&format!(
                "it is closed, but will not stay so if this host is started again: {why}"
            )),
        }
    }

    pub(super) fn unfence(&mut self) -> Value {
        let was_fenced = self.machine.handle_ask().fenced;
        let remembered = if was_fenced { self.remember(false) } else { Ok(()) };
        self.held = false;
        let state = self.machine.handle_ask();
        let (epoch, index) =
            (state.epoch, state.current.as_deref().and_then(|name| self.links.index(name)));
        if let Err(error) = self.bpf.set_current(epoch, index) {
            return refusal(&error.to_string());
        }
        self.events.add("unfenced", "by hand");
        self.adopt_claim(Instant::now());
        match remembered {
            Ok(()) => json!({ "epoch": epoch }),
            Err(why) => refusal(&format!(
                "it is open, but will be closed again if the daemon is started again: {why}"
            )),
        }
    }

    /// Writes whether the edge is closed by hand, and waits a little for the disk.
    fn remember(&mut self, fenced: bool) -> Result<(), String> {
        let begun = Instant::now();
        let state = self.machine.handle_fenced(fenced).clone();
        self.disk.keep(state, begun);
        while self.disk.is_busy() {
            let left = BY_HAND_MAX.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err("the disk of edge.state_file does not answer".to_owned());
            }
            self.disk.wait(left);
            self.written(Instant::now());
        }
        self.disk.failure().map_or(Ok(()), |why| Err(why.to_owned()))
    }
}
