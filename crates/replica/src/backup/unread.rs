//! Bytes that the tap lost and the primary's server has not read: its kernel has
//! them, and is asked (decision 4). Until the backup holds them too, their ACK
//! waits at the gate, at worst for the client's timeout.

use super::{Backup, BackupOutput, Phase};
use crate::Nanos;
use holdfast_wire::message::{ConnId, Message, UNREAD_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Time for which a stream stands at a hole before the primary is asked: copies
/// may arrive later than the primary's reports about the same packets.
pub const UNREAD_AFTER: Nanos = Nanos(1_000_000);
/// Longest pause between two questions that led to nothing; the pause is doubled each
/// time, since the primary's kernel may lack the bytes as well.
pub const UNREAD_PAUSE_MAX: Nanos = Nanos::from_ms(128);
/// Time without an answer after which the question is asked again.
pub const UNREAD_ANSWER: Nanos = Nanos::from_ms(100);
/// Most questions that wait for their answers; others come later. This bounds
/// how much the answers delay the log on the channel.
pub const UNREAD_ASKED_MAX: usize = 16;

/// A stream that stands at a hole.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Offset of the hole.
    at: u64,
    /// When to look at it again, and the length of the next pause.
    due: Nanos,
    pause: Nanos,
    asked: bool,
}

impl Gap {
    fn new(now: Nanos, at: u64) -> Self {
        Self { at, due: now, pause: UNREAD_AFTER, asked: false }.later(now)
    }

    fn later(self, now: Nanos) -> Self {
        let pause = Nanos(2 * self.pause.0).min(UNREAD_PAUSE_MAX);
        Self { due: now.plus(self.pause), pause, asked: false, ..self }
    }
}

/// The streams that stand at a hole, and when to look at them.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    gaps: BTreeMap<ConnId, Gap>,
    due: BTreeSet<(Nanos, ConnId)>,
    asked: usize,
}

impl Gaps {
    /// When [`Backup::ask_for_unread`] is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(super) fn remove(&mut self, id: ConnId) {
        self.take(id);
    }

    fn take(&mut self, id: ConnId) -> Option<Gap> {
        let gap = self.gaps.remove(&id)?;
        self.due.remove(&(gap.due, id));
        self.asked -= usize::from(gap.asked);
        Some(gap)
    }

    fn put(&mut self, id: ConnId, gap: Gap) {
        self.take(id);
        self.due.insert((gap.due, id));
        self.asked += usize::from(gap.asked);
        self.gaps.insert(id, gap);
    }

    fn take_asked(&mut self, id: ConnId) -> Option<Gap> {
        self.gaps.get(&id).filter(|gap| gap.asked)?;
        self.take(id)
    }

    fn take_due(&mut self, now: Nanos) -> Option<(ConnId, Gap)> {
        let (_, id) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.take(id).map(|gap| (id, gap))
    }
}

impl Backup {
    /// The tap lacks bytes of this connection, if what was just heard is right.
    pub(super) fn note_gap(&mut self, now: Nanos, id: ConnId, at: u64) {
        if self.phase == Phase::Following && !self.gaps.gaps.contains_key(&id) {
            self.gaps.put(id, Gap::new(now, at));
        }
    }

    /// Looks at the streams whose time has come.
    pub(super) fn ask_for_unread(&mut self, now: Nanos, out: &mut impl BackupOutput) {
        for _ in 0..self.gaps.due.len() {
            let Some((id, gap)) = self.gaps.take_due(now) else { return };
            let Some(conn) = self.conns.get(&id) else { continue };
            let Some((from, until)) = conn.tap.missing() else { continue };
            if from != gap.at {
                // The stream has moved: what is missing now may be on its way,
                // too.
                self.gaps.put(id, Gap::new(now, from));
                continue;
            }
            // Bytes that the server has read come with their record, which may wait
            // behind the one that is being repaired.
            let may = conn.accept.is_some() && !self.log.is_stalled();
            if may && self.gaps.asked < self.limits.unread_asked_max {
                self.ask(id, from, until, gap, now, out);
            } else {
                self.gaps.put(id, gap.later(now));
            }
        }
    }

    fn ask(
        &mut self,
        id: ConnId,
        from: u64,
        until: u64,
        gap: Gap,
        now: Nanos,
        out: &mut impl BackupOutput,
    ) {
        self.counters.unread_asked += 1;
        out.send(&Message::NeedUnread { conn: id, from, until });
        self.gaps.put(id, Gap { at: from, due: now.plus(UNREAD_ANSWER), asked: true, ..gap });
    }

    /// The primary's answer: what its kernel holds, whatever the tap said.
    pub(super) fn handle_unread(
        &mut self,
        now: Nanos,
        id: ConnId,
        offset: u64,
        bytes: &[u8],
        last: bool,
        out: &mut impl BackupOutput,
    ) {
        let following = self.phase == Phase::Following;
        let Some(gap) = self.gaps.take_asked(id).filter(|_| following) else {
            self.counters.payloads_late += 1;
            return;
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let before = conn.tap.usage();
        let has_room = self.pools.held.has_room(before.held, bytes.len());
        let was_contradicted = conn.tap.is_contradicted();
        let grown = has_room && conn.tap.note_unread(offset, bytes, last);
        self.pools.note(before, conn.tap.usage());
        self.counters.note_contradiction(was_contradicted, conn.tap.is_contradicted());
        let more = conn.tap.stream.next_piece().is_some() || bytes.len() >= UNREAD_BYTES_MAX;
        match conn.tap.missing() {
            Some(_) if !grown => self.gaps.put(id, gap.later(now)),
            // The next hole is asked for at once. For bytes beyond everything
            // here, copies may still be under way.
            Some((from, until)) if more => {
                self.ask(id, from, until, Gap::new(now, from), now, out);
            }
            Some((from, _)) => self.gaps.put(id, Gap::new(now, from)),
            None => {}
        }
        if grown {
            self.counters.unread_filled += 1;
            self.dirty.insert(id);
            if self.log.waits_for(id) {
                self.resume(now, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question that is put off waits for no answer, and makes room for others.
    #[test]
    fn what_is_put_off_is_no_open_question() {
        let id = ConnId(7);
        let mut gaps = Gaps::default();
        gaps.put(id, Gap { asked: true, ..Gap::new(Nanos(0), 3) });
        assert_eq!(gaps.asked, 1);
        let gap = gaps.take_asked(id).expect("an open question");
        gaps.put(id, gap.later(Nanos(9)));
        assert_eq!((gaps.asked, gaps.next()), (0, Some(Nanos(9).plus(gap.pause))));
        assert!(gaps.take_asked(id).is_none());
    }
}
