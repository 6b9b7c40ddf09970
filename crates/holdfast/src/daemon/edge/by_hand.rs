//! `edge fence` and `edge unfence`: what an operator has closed is opened neither by a member
//! nor by a restart.

use super::EdgeDaemon;
use crate::admin::refusal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest time that `edge fence` waits for the disk before it answers.
const BY_HAND_MAX: Duration = Duration::from_millis(500);

impl EdgeDaemon<'_> {
    /// Closes the edge at once, and keeps that on disk. With `until_takeover` it is not kept, and
    /// the next grant opens the edge again.
    pub(super) fn fence(&mut self, until_takeover: bool) -> Value {
        let write = match self.machine.handle_close(until_takeover, &mut self.wire) {
            Ok(write) => write,
            Err(error) => return refusal(&error),
        };
        match write.map_or(Ok(()), |_| self.wait_for_disk()) {
            Ok(()) => json!({ "epoch": self.machine.membership().handle_ask().epoch }),
            Err(why) => refusal(&format!(
                "it is closed, but will not stay so if this host is started again: {why}"
            )),
        }
    }

    pub(super) fn unfence(&mut self) -> Value {
        let write = self.machine.handle_opening(&mut self.wire);
        let remembered = write.map_or(Ok(()), |_| self.wait_for_disk());
        let at = self.wire.clock.now();
        let epoch = match self.machine.handle_open(at, &mut self.wire) {
            Ok(epoch) => epoch,
            Err(error) => return refusal(&error),
        };
        match remembered {
            Ok(()) => json!({ "epoch": epoch }),
            Err(why) => refusal(&format!(
                "it is open, but will be closed again if the daemon is started again: {why}"
            )),
        }
    }

    /// Waits, for at most [`BY_HAND_MAX`], until everything is written.
    fn wait_for_disk(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while self.wire.disk.is_busy() {
            let left = BY_HAND_MAX.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err("the disk of edge.state_file does not answer".to_owned());
            }
            self.wire.disk.wait(left);
            self.written(Instant::now());
        }
        self.wire.disk.failure().map_or(Ok(()), |why| Err(why.to_owned()))
    }
}
