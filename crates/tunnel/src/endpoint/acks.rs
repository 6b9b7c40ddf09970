//! When to acknowledge, and what.
//!
//! An acknowledgement of its own for every small message costs half as much as the message. So it
//! rides on what is sent anyway; a sender that has time for a retransmission asks for it at once, one
//! that has sent redundancy instead lets it wait, and a loss that redundancy did not cover is told
//! without being asked.

use crate::Class;
use crate::decoder::Decoder;
use crate::frame::{BITMAP_BYTES_MAX, LANES, LossCounts, MarkCounts};
use std::time::Duration;

/// Least time between acknowledgements, but for those of many datagrams.
pub(crate) const ACK_EVERY: Duration = Duration::from_millis(2);
/// How long an acknowledgement waits that the sender does not wait for.
pub(super) const PATIENT_DELAY: Duration = Duration::from_millis(100);
/// And if nothing more comes: the last of them may be what is missing, which nothing that follows tells.
pub(super) const QUIET_DELAY: Duration = Duration::from_millis(40);
/// Datagrams after which it is due all the same.
const PATIENT_DATAGRAMS: u32 = 256;
/// Datagrams of others after which it does not wait: on a fast path 2 ms are thousands.
const BUSY_DATAGRAMS: u32 = 64;
/// How long redundancy that is on its way may take to fill a gap.
const GAP_PATIENCE: Duration = Duration::from_micros(2500);
/// How often news of a lane are told.
const TOLD: u8 = 2;
/// Datagrams with a mark of ECN of which the sender is told though nothing was congested: it has to
/// learn that marks arrive.
const MARKS_TOLD: u32 = 256;
/// Datagrams that follow each other within this time, or are so long, are of a flow that may be limited
/// by the rate: its sender is told how much has come.
const DENSE_GAP: Duration = Duration::from_millis(15);
const LONG_BYTES: usize = 512;
/// Settled datagrams after which the counts are told again though nothing was lost.
const COUNTS_EVERY: u32 = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Acks {
    due: Option<Duration>,
    /// When it is due if nothing more comes.
    quiet_due: Option<Duration>,
    /// When to tell of symbols that are still missing then.
    gap_due: Option<Duration>,
    last: Duration,
    /// How often the news of each lane are still to be told.
    news: [u8; LANES],
    told: LossCounts,
    told_marks: Option<MarkCounts>,
    /// Datagrams since the last acknowledgement.
    datagrams: u32,
    /// When the last of them came.
    elicited_at: Duration,
    /// How much has come is worth telling.
    pub tells_bytes: bool,
    /// When the datagram with the highest number came.
    pub highest_at: Duration,
}

impl Acks {
    fn want(due: &mut Option<Duration>, at: Duration) {
        *due = Some(due.map_or(at, |due| due.min(at)));
    }

    /// A datagram with symbols or rows of a lane came.
    pub fn elicited(&mut self, lane: usize, patient: bool, bytes: usize, now: Duration) {
        self.news[lane] = TOLD;
        self.datagrams += 1;
        let is_dense = now.saturating_sub(self.elicited_at) < DENSE_GAP;
        self.tells_bytes |= is_dense || bytes >= LONG_BYTES || lane == Class::Bulk.index();
        self.elicited_at = now;
        let may_wait = patient && self.datagrams < PATIENT_DATAGRAMS;
        let at = match may_wait {
            true => now + PATIENT_DELAY,
            false if self.datagrams >= BUSY_DATAGRAMS => now,
            false => now.max(self.last + ACK_EVERY),
        };
        Self::want(&mut self.due, at);
        self.quiet_due = Some(now + QUIET_DELAY);
    }

    /// A datagram turned out to be lost.
    pub fn gap(&mut self, patient: bool, now: Duration) {
        if patient {
            Self::want(&mut self.gap_due, now.max(self.last + ACK_EVERY) + GAP_PATIENCE);
        } else {
            Self::want(&mut self.due, now);
        }
    }

    /// A datagram has met congestion: the sender has to hear of it before its next round.
    pub fn congested(&mut self, now: Duration) {
        Self::want(&mut self.due, now.max(self.last + ACK_EVERY));
    }

    /// Whether an acknowledgement must be sent now, alone if need be.
    pub fn is_due(&mut self, decoders: &[Decoder; LANES], now: Duration) -> bool {
        if self.gap_due.is_some_and(|at| at <= now) {
            self.gap_due = None;
            if decoders.iter().any(|it| it.cumulative() < it.top()) {
                self.due = Some(now);
            }
        }
        [self.due, self.quiet_due].into_iter().flatten().any(|at| at <= now)
    }

    /// Whether there is anything worth riding on a datagram that is sent anyway.
    pub fn may_ride(&self, now: Duration) -> bool {
        self.news.iter().any(|news| *news > 0) && now >= self.last + ACK_EVERY
    }

    pub fn wake_at(&self) -> Option<Duration> {
        [self.due, self.quiet_due, self.gap_due].into_iter().flatten().min()
    }

    /// Whether the lane has news.
    pub fn has_news(&self, lane: usize) -> bool {
        self.news[lane] > 0
    }

    /// The counts, if they say something new.
    pub fn counts(&self, counts: LossCounts) -> Option<LossCounts> {
        let passed = counts.settled.wrapping_sub(self.told.settled);
        (counts.lost != self.told.lost || passed >= COUNTS_EVERY).then_some(counts)
    }

    /// The marks that go along: at once if congestion is new, and with the counts as long as the
    /// sender may not know what it has to, since acknowledgements get lost.
    pub fn marks(&self, marks: Option<MarkCounts>, has_counts: bool) -> Option<MarkCounts> {
        let congested = |marks: Option<MarkCounts>| marks.map_or(0, |it| it.congested);
        let is_new = congested(marks) != congested(self.told_marks);
        marks.filter(|it| {
            let is_of_use = it.congested > 0 || it.capable < MARKS_TOLD;
            is_new || has_counts && is_of_use
        })
    }

    /// Notes what was told.
    pub fn told(&mut self, counts: Option<LossCounts>, marks: Option<MarkCounts>, now: Duration) {
        (self.due, self.quiet_due, self.gap_due) = (None, None, None);
        (self.last, self.datagrams) = (now, 0);
        self.tells_bytes = false;
        self.told = counts.unwrap_or(self.told);
        self.told_marks = marks.or(self.told_marks);
        for news in &mut self.news {
            *news = news.saturating_sub(1);
        }
    }
}

/// The bitmap behind the cumulative symbol, without the zeros at its end.
pub(super) fn bitmap(decoder: &Decoder) -> Vec<u8> {
    let start = decoder.cumulative() + 1;
    let count = (decoder.top().saturating_sub(start) as usize).min(BITMAP_BYTES_MAX * 8);
    let mut bitmap = vec![0; count.div_ceil(8)];
    for at in (0..count).filter(|at| decoder.is_known(start + *at as u64)) {
        bitmap[at / 8] |= 1 << (at % 8);
    }
    while bitmap.last() == Some(&0) {
        bitmap.pop();
    }
    bitmap
}
