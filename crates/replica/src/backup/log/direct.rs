//! What the primary's server sends of its log itself, beside the frames (decision 35).

use super::{Log, Stop};
use crate::Broken;
use crate::backup::{Backup, BackupOutput, Phase};
use holdfast_wire::direct::{RECORDS_MAX, len_of};
use holdfast_wire::log::{Header, POSITION_MAX, read_header};
use holdfast_wire::message::ConnId;

/// What was confirmed of the log beside its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    /// End of what the server has sent itself. It hears of nothing behind that: the gate has to hear
    /// of the end of a stream first, from the daemon.
    sent: u64,
    to_server: u64,
    to_daemon: u64,
}

/// What could not be replayed yet of what the server has sent last.
#[derive(Debug)]
pub(super) struct Rest {
    position: u64,
    records: Vec<u8>,
    /// The connection of which the tap may still bring bytes.
    missing: Option<ConnId>,
}

impl Log {
    /// Whether the server waits for a word on what it has sent itself.
    pub(in crate::backup) fn owes_server(&self) -> bool {
        self.direct.is_some_and(|direct| direct.to_server < direct.sent.min(self.replayed))
    }

    /// Whether something that the server has sent itself waits for the tap, or for room.
    pub(in crate::backup) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// The position to confirm to the server, if there is a new one.
    pub(in crate::backup) fn take_held(&mut self) -> Option<u64> {
        let direct = self.direct.as_mut()?;
        let held = direct.sent.min(self.replayed);
        let is_new = direct.to_server < held;
        direct.to_server = direct.to_server.max(held);
        is_new.then_some(held)
    }

    /// The position to confirm to the server's daemon, if there is one that the frames do not tell.
    pub(in crate::backup) fn take_held_for_daemon(&mut self) -> Option<u64> {
        let direct = self.direct.as_mut().filter(|direct| direct.to_daemon < self.replayed)?;
        direct.to_daemon = self.replayed;
        Some(self.replayed)
    }
}

impl Backup {
    /// The last frame ended here in the primary's log; those that follow say where they begin.
    pub(in crate::backup) fn handle_log_at(&mut self, position: u64, out: &mut impl BackupOutput) {
        if !self.log.queue.is_empty() || position > POSITION_MAX {
            return self.break_off(&Broken::LogGap { expected: self.log.end, got: position }, out);
        }
        (self.log.end, self.log.replayed) = (position, position);
        self.log.direct = Some(Direct { sent: position, to_server: position, to_daemon: position });
    }

    /// Takes whole records of the primary's log from `position` on, which its server has sent itself
    /// (decision 35).
    pub fn handle_direct(&mut self, position: u64, records: &[u8], out: &mut impl BackupOutput) {
        let replayed = self.log.replayed;
        let fits = self.phase == Phase::Following && self.log.queue.is_empty() && !self.joins;
        let Some(direct) = self.log.direct.as_mut().filter(|_| fits && position <= replayed) else {
            self.counters.direct_ignored += 1;
            return;
        };
        // The word on what was sent before may be lost.
        direct.to_server = direct.to_server.min(position);
        let records = records.get(..RECORDS_MAX).unwrap_or(records);
        self.replay_direct(position, records, out);
    }

    /// Replays what the server has sent itself, as far as the tap and the replica's ring allow; the
    /// rest waits for them.
    fn replay_direct(&mut self, position: u64, records: &[u8], out: &mut impl BackupOutput) {
        let (mut at, mut begins, mut rest) = (0, position, None);
        while let Some((header, len)) = direct_record(&records[at..]) {
            let ends = begins + header.len_in_log() as u64;
            if ends > self.log.replayed && rest.is_none() {
                match self.step_direct(begins, &records[at..], out) {
                    Ok(()) => self.log.replayed = ends,
                    Err(missing) => rest = Some((begins, at, missing)),
                }
            }
            (at, begins) = (at + len, ends);
        }
        self.counters.direct_cut += u64::from(rest.is_some());
        self.log.rest = rest.map(|(position, from, missing)| {
            let records = records[from..at].to_vec();
            Rest { position, records, missing }
        });
        self.log.end = self.log.replayed;
        if let Some(direct) = &mut self.log.direct {
            direct.sent = direct.sent.max(begins);
        }
    }

    /// Replays one record, which begins there; if that cannot be, the connection of which the tap
    /// may still bring bytes.
    fn step_direct(
        &mut self,
        begins: u64,
        bytes: &[u8],
        out: &mut impl BackupOutput,
    ) -> Result<(), Option<ConnId>> {
        if begins != self.log.replayed {
            return Err(None);
        }
        match self.step(self.log.received, bytes, out) {
            Ok(_) => Ok(()),
            Err(Stop::Missing(conn)) => Err(conn),
            Err(Stop::Conflict | Stop::Room | Stop::Broken(_)) => Err(None),
        }
    }

    /// Goes on with what the server has sent itself, after more has come of this client's stream, or
    /// there is room again.
    pub(in crate::backup) fn resume_direct(
        &mut self,
        grown: Option<ConnId>,
        out: &mut impl BackupOutput,
    ) {
        let rest = self.log.rest.take_if(|rest| grown.is_none() || grown == rest.missing);
        let Some(Rest { position, records, .. }) = rest else { return };
        if self.phase == Phase::Following && self.log.queue.is_empty() {
            self.replay_direct(position, &records, out);
        }
    }
}

/// The record at the start of what a server has sent itself, with its length there; `None`: there is
/// none that it may send.
fn direct_record(bytes: &[u8]) -> Option<(Header, usize)> {
    let (header, _) = read_header(bytes).ok()?;
    let len = len_of(&header)?;
    (bytes.len() >= len).then_some((header, len))
}
