//! Grants: from a member's request to speak up to the fence. A grant is on disk
//! before it is in the fence, and in the fence before the member hears of it.

use super::{EdgeHost, EdgeMachine};
use holdfast_cluster::Nanos;
use holdfast_cluster::membership::{Decision, Refusal};
use holdfast_wire::message::Message;

/// Most flows in one message, so that it stays below 256 KiB: a flow takes less than 64 bytes.
const FLOWS_PER_MESSAGE: usize = 4096;

/// A member whose grant is being written.
#[derive(Debug)]
pub(super) struct Asked {
    index: usize,
    epoch: u64,
    at: Nanos,
    /// The number of the write.
    write: u64,
    /// Whether the member's server starts anew, during which its silence is excused.
    starts: bool,
}

impl EdgeMachine {
    /// Handles a request to become current; `lives`: it is, and its server lives. The service waits for this, so nothing comes between
    /// the write, the fence and the answer.
    pub(super) fn promote(
        &mut self,
        index: usize,
        (epoch, lives): (u64, bool),
        now: Nanos,
        host: &mut impl EdgeHost,
    ) {
        let name = &self.names[index];
        let decision = match lives {
            true => self.membership.handle_alone(name, epoch),
            false => self.membership.handle_promote(name, epoch),
        };
        match decision {
            Decision::Refuse(refusal) => {
                if refusal == Refusal::BackupInStep {
                    // A member in step hears that the current member has lost it.
                    self.tell_all_but(index, &Message::Alone { member: name }, host);
                }
                self.refuse(index, epoch, &refusal.to_string(), !refusal.is_final(), host);
            }
            Decision::Reopen { epoch } if self.held => {
                self.refuse(index, epoch, &Refusal::Fenced.to_string(), true, host);
            }
            Decision::Reopen { epoch } => self.open(index, epoch, now, host),
            Decision::Grant { persist } => {
                let starts = !self.membership.is_in_step(name);
                let write = host.keep(&persist);
                self.asked = Some(Asked { index, epoch, at: now, write, starts });
            }
        }
    }

    /// Handles the end of a write; `Err` has the reason of a failure.
    pub fn handle_written(
        &mut self,
        number: u64,
        outcome: Result<(), String>,
        host: &mut impl EdgeHost,
    ) {
        let Some(asked) = self.asked.take_if(|asked| asked.write == number) else { return };
        match outcome {
            Ok(()) => {
                self.membership.handle_persisted();
                if asked.starts {
                    self.excuse_start(asked.index, asked.at);
                }
                self.open(asked.index, asked.epoch, asked.at, host);
            }
            Err(reason) => {
                self.membership.handle_persist_failed();
                self.refuse(asked.index, asked.epoch, &reason, true, host);
            }
        }
    }

    /// Lets a living primary go on whose epoch the disk does not know. Call it when
    /// the disk takes writes again; everything else that may allow it is known here.
    pub fn adopt_claim(&mut self, now: Nanos, host: &mut impl EdgeHost) {
        let Some((name, epoch)) = self.membership.claim() else { return };
        if let Some(index) = self.index(name).filter(|index| self.is_here(*index)) {
            self.promote(index, (epoch, false), now, host);
        }
    }

    /// Refuses; the refusal is sent each time the member asks, and noted once.
    fn refuse(
        &mut self,
        index: usize,
        epoch: u64,
        reason: &str,
        again: bool,
        host: &mut impl EdgeHost,
    ) {
        host.send(index, &Message::Refused { reason, again });
        let refused = Some((index, epoch, reason.to_owned()));
        if self.refused != refused {
            host.note("refused", format!("{}, epoch {epoch}: {reason}", self.name(index)));
            self.refused = refused;
        }
    }

    /// Opens the fence for a member, and tells it. An edge that was closed by hand
    /// while the grant was written stays closed.
    fn open(&mut self, index: usize, epoch: u64, asked: Nanos, host: &mut impl EdgeHost) {
        self.held = false;
        let current = Some(index).filter(|_| !self.membership.handle_ask().fenced);
        if let Err(error) = self.set_fence(epoch, current, host) {
            return self.refuse(index, epoch, &error, true, host);
        }
        host.send(index, &Message::Granted { epoch });
        self.last_grant = host.now().since(asked);
        self.refused = None;
        self.send_bounds(index, host);
        self.grants += 1;
        self.update_taps(host);
        // A member that learns of a newer epoch steps down.
        let state = self.membership.handle_ask();
        let said = state.current.as_deref().unwrap_or("");
        self.tell_all_but(index, &Message::Epoch { epoch: state.epoch, current: said }, host);
        let (name, took_us) = (self.name(index), self.last_grant.0 / 1000);
        // Fence and switch are two events of one update of one map.
        host.note("fence", format!("epoch {epoch}: nobody but {name} speaks"));
        host.note("switch", format!("clients' packets go to {name}"));
        host.note("granted", format!("{name}, epoch {epoch}, {took_us} µs"));
        host.resend(index);
    }

    /// # Panics
    /// If the epoch is older than one that was there before: two members would speak.
    pub(super) fn set_fence(
        &mut self,
        epoch: u64,
        current: Option<usize>,
        host: &mut impl EdgeHost,
    ) -> Result<(), String> {
        assert!(epoch >= self.fenced_epoch, "L3: epoch {epoch} after {}", self.fenced_epoch);
        let on_disk = self.membership.handle_ask().epoch;
        assert!(epoch == on_disk, "decision 22: epoch {epoch}, and on disk {on_disk}");
        host.set_fence(epoch, current)?;
        self.fenced_epoch = epoch;
        Ok(())
    }

    /// Sends what the wire has seen of every flow: it tells where a silent
    /// client stands.
    fn send_bounds(&self, index: usize, host: &mut impl EdgeHost) {
        let flows = host.bounds().unwrap_or_else(|error| {
            host.note("bounds", format!("unknown, the takeover guesses: {error}"));
            Vec::new()
        });
        let mut chunks = flows.chunks(FLOWS_PER_MESSAGE).peekable();
        if chunks.peek().is_none() {
            host.send(index, &Message::Bounds { flows: Vec::new(), last: true });
        }
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            host.send(index, &Message::Bounds { flows: chunk.to_vec(), last });
        }
    }

    /// Whether it is closed by hand, in either way.
    #[must_use]
    pub fn is_closed_by_hand(&self) -> bool {
        self.held || self.membership.handle_ask().fenced
    }

    /// Closes the edge at once. Once the write with the returned number is done,
    /// neither a member nor a restart opens it again. With `until_takeover` nothing
    /// is written, and the next grant opens it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn handle_close(
        &mut self,
        until_takeover: bool,
        host: &mut impl EdgeHost,
    ) -> Result<Option<u64>, String> {
        self.set_fence(self.membership.handle_ask().epoch, None, host)?;
        host.note("fenced", "by hand".to_owned());
        self.held |= until_takeover;
        Ok((!until_takeover).then(|| self.remember(true, host)))
    }

    /// Starts opening the edge by hand: this is written first; `None` if
    /// nothing needs to be.
    pub fn handle_opening(&mut self, host: &mut impl EdgeHost) -> Option<u64> {
        self.membership.handle_ask().fenced.then(|| self.remember(false, host))
    }

    /// Opens the edge for the current member.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn handle_open(&mut self, now: Nanos, host: &mut impl EdgeHost) -> Result<u64, String> {
        self.held = false;
        let state = self.membership.handle_ask();
        let (epoch, index) =
            (state.epoch, state.current.as_deref().and_then(|name| self.index(name)));
        self.set_fence(epoch, index, host)?;
        host.note("unfenced", "by hand".to_owned());
        self.adopt_claim(now, host);
        Ok(epoch)
    }

    fn remember(&mut self, fenced: bool, host: &mut impl EdgeHost) -> u64 {
        let state = self.membership.handle_fenced(fenced).clone();
        host.keep(&state)
    }
}
