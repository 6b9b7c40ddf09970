//! The segments in flight: which have arrived, which are lost, and which were sent again (RFC 6675
//! §3; the counters are those of Linux).

use crate::Ns;
use crate::net::packet::SACK_BLOCKS;
use prefetch_index::prefetch_index;
use std::collections::VecDeque;

const SACKED: u8 = 1;
const LOST: u8 = 2;
/// Flag of a segment that was resent since it was lost.
const RESENT: u8 = 4;
/// Flag of a segment that was ever resent, so that its round trip is ambiguous (Karn).
const AMBIGUOUS: u8 = 8;

/// Number of bits of the flags; the others hold a time of up to 36 years.
const FLAG_BITS: u32 = 4;

/// A segment in flight: when it was sent, and its flags.
#[derive(Clone, Copy, Debug)]
struct Out(u64);

impl Out {
    fn new(sent_at: Ns, flags: u8) -> Self {
        Self(sent_at << FLAG_BITS | u64::from(flags))
    }

    fn sent_at(self) -> Ns {
        self.0 >> FLAG_BITS
    }

    fn is(self, flag: u8) -> bool {
        self.0 & u64::from(flag) != 0
    }

    fn set(&mut self, flags: u8) {
        self.0 |= u64::from(flags);
    }

    fn clear(&mut self, flags: u8) {
        self.0 &= !u64::from(flags);
    }
}

/// What an acknowledgement says was delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// Number of segments that were acknowledged or reported.
    pub count: u32,
    /// Sending time and number of the delivered segment that was sent last.
    pub newest: (Ns, u32),
    /// Sending time of the last-sent delivered segment of those that were sent once.
    pub sample_sent_at: Option<Ns>,
    /// Number of segments that were reported for the first time.
    pub reported: u32,
    /// Whether a resent segment was acknowledged without being reported.
    pub acked_resent: bool,
}

/// The segments from `snd_una` to `snd_nxt`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Flight {
    /// The segments' states; the first field, since it is looked at first.
    out: VecDeque<Out>,
    base: u32,
    sacked: u32,
    lost: u32,
    resent: u32,
    /// Number of segments that arrived behind a hole and are not known by number.
    unnamed: u32,
    /// Number of segments that were resent, have arrived, and still count as in flight.
    kept: u32,
    /// Highest segment that arrived behind a hole.
    highest: u32,
    /// Place before which every lost segment was resent.
    hint: u32,
}

impl Flight {
    /// Begins with nothing in flight; the next segment is `base`.
    pub fn begin(&mut self, base: u32) {
        *self = Self { base, ..Self::default() };
    }

    /// Prefetches the ends of the queue.
    #[inline]
    pub fn fetch(&self) {
        let (out, _) = self.out.as_slices();
        prefetch_index(out, 0);
        prefetch_index(out, out.len());
    }

    /// Notes that the next segment is sent.
    pub fn push(&mut self, now: Ns) {
        self.out.push_back(Out::new(now, 0));
    }

    /// Notes that a lost segment is sent again.
    pub fn resend(&mut self, now: Ns, seq: u32) {
        let Some(out) = self.out.get_mut(seq.wrapping_sub(self.base) as usize) else {
            return;
        };
        self.resent += u32::from(!out.is(RESENT));
        let known = (out.0 as u8) & (SACKED | LOST);
        *out = Out::new(now, known | RESENT | AMBIGUOUS);
    }

    /// Notes that everything before `ack` has arrived.
    pub fn ack_to(&mut self, ack: u32, delivered: &mut Delivered) {
        while self.base < ack
            && let Some(out) = self.out.pop_front()
        {
            self.base += 1;
            self.hint = self.hint.saturating_sub(1);
            let is_resent = u32::from(out.is(RESENT));
            if out.is(SACKED) {
                self.sacked -= 1;
                self.kept -= is_resent;
            } else {
                delivered.note(out, self.base - 1);
                delivered.acked_resent |= out.is(RESENT);
                self.resent -= is_resent;
            }
            self.lost -= u32::from(out.is(LOST));
        }
    }

    /// Notes that reported segments have arrived. With `keeps`, those that were resent count as in
    /// flight until they are acknowledged.
    pub fn sack(
        &mut self,
        blocks: &[(u32, u32); SACK_BLOCKS],
        keeps: bool,
        delivered: &mut Delivered,
    ) {
        for &(first, end) in blocks {
            for seq in first.max(self.base)..end.min(self.base + self.out.len() as u32) {
                self.sack_one((seq - self.base) as usize, keeps, delivered);
            }
        }
    }

    /// Notes a duplicate without blocks: some segment behind the first has arrived.
    pub fn sack_any(&mut self, delivered: &mut Delivered) {
        if self.unnamed + 1 < self.out.len() as u32 {
            self.unnamed += 1;
            delivered.count += 1;
        }
    }

    /// Notes, without blocks, that `acked` segments were acknowledged: all but the first of them
    /// are those that the duplicates were for.
    pub fn name(&mut self, acked: u32) {
        self.unnamed = self.unnamed.saturating_sub(acked.saturating_sub(1));
    }

    /// Number of duplicates without blocks whose segments are not acknowledged yet.
    #[must_use]
    pub fn unnamed(&self) -> u32 {
        self.unnamed
    }

    fn sack_one(&mut self, at: usize, keeps: bool, delivered: &mut Delivered) {
        let out = &mut self.out[at];
        if out.is(SACKED) {
            return;
        }
        let seq = self.base + at as u32;
        delivered.note(*out, seq);
        delivered.reported += 1;
        self.highest = self.highest.max(seq);
        self.lost -= u32::from(out.is(LOST));
        let is_resent = u32::from(out.is(RESENT));
        self.resent -= is_resent;
        out.clear(LOST);
        if keeps {
            self.kept += is_resent;
        } else {
            out.clear(RESENT);
        }
        out.set(SACKED);
        self.sacked += 1;
    }

    /// Marks segments lost of which three later ones have arrived, as RFC 6675 §4 `IsLost`.
    pub fn mark_lost_by_count(&mut self, dup_acks: u32) -> u32 {
        if self.sacked < dup_acks {
            return 0;
        }
        let mut above = self.sacked;
        let mut found = 0;
        for at in 0..self.out.len() {
            if self.out[at].is(SACKED) {
                above -= 1;
            } else if above < dup_acks {
                break;
            } else {
                found += self.lose(at);
            }
        }
        found
    }

    /// Marks segments lost that were sent `patience_ns` earlier than a delivered one, even if they
    /// were resent (RFC 8985 §6.2).
    pub fn mark_lost_by_time(&mut self, newest: (Ns, u32), patience_ns: Ns) -> u32 {
        let mut found = 0;
        for at in 0..self.out.len() {
            let seq = self.base + at as u32;
            let out = &mut self.out[at];
            if !out.is(SACKED) && (out.sent_at() + patience_ns, seq) < newest {
                if out.is(RESENT) {
                    out.clear(RESENT);
                    self.resent -= 1;
                    self.hint = self.hint.min(at as u32);
                    found += 1;
                }
                found += self.lose(at);
            }
        }
        found
    }

    /// Marks everything lost that is not known to have arrived, after a timeout.
    pub fn mark_all_lost(&mut self) {
        for at in 0..self.out.len() {
            if !self.out[at].is(SACKED) {
                self.lose(at);
            }
            self.out[at].clear(RESENT);
        }
        (self.resent, self.kept, self.unnamed, self.hint) = (0, 0, 0, 0);
    }

    /// Takes all losses back, because nothing was lost after all.
    pub fn unmark_lost(&mut self) {
        self.out.iter_mut().for_each(|out| out.clear(LOST | RESENT));
        (self.lost, self.resent, self.kept, self.hint) = (0, 0, 0, 0);
    }

    fn lose(&mut self, at: usize) -> u32 {
        let out = &mut self.out[at];
        if out.is(LOST) {
            return 0;
        }
        out.set(LOST);
        self.lost += 1;
        self.hint = self.hint.min(at as u32);
        1
    }

    /// Marks the first segment lost, if nothing else is known about it.
    pub fn lose_first(&mut self) {
        if self.out.front().is_some_and(|out| !out.is(SACKED)) {
            self.lose(0);
        }
    }

    /// The first segment that is lost and was not sent again.
    pub fn next_lost(&mut self) -> Option<u32> {
        if self.lost == self.resent {
            return None;
        }
        while let Some(out) = self.out.get(self.hint as usize) {
            if out.is(LOST) && !out.is(RESENT) {
                return Some(self.base + self.hint);
            }
            self.hint += 1;
        }
        None
    }

    /// Marks the first segment lost, even if it was resent already.
    pub fn lose_first_again(&mut self) {
        if let Some(out) = self.out.front_mut()
            && out.is(RESENT)
        {
            out.clear(RESENT);
            self.resent -= 1;
            self.hint = 0;
        }
        self.lose_first();
    }

    /// Whether nothing behind this segment has arrived, although something behind another has.
    #[must_use]
    pub fn is_beyond_reports(&self, seq: u32) -> bool {
        self.highest > self.base && seq >= self.highest
    }

    /// RFC 6675 §4 `NextSeg` rule 3: the first segment that neither arrived nor
    /// was sent again, with something behind it that arrived.
    #[must_use]
    pub fn next_doubtful(&self) -> Option<u32> {
        let below = self.highest.saturating_sub(self.base) as usize;
        let at = self.out.iter().take(below).position(|out| !out.is(SACKED | RESENT))?;
        Some(self.base + at as u32)
    }

    /// Whether the first segment is known to be lost.
    #[must_use]
    pub fn is_first_lost(&self) -> bool {
        self.out.front().is_some_and(|out| out.is(LOST))
    }

    /// Whether a repetition of the first segment is in flight.
    #[must_use]
    pub fn is_first_resent(&self) -> bool {
        self.out.front().is_some_and(|out| out.is(RESENT))
    }

    /// Number of segments in flight, as far as is known.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let sent = self.out.len() as u32 + self.resent + self.kept;
        sent.saturating_sub(self.sacked + self.lost + self.unnamed)
    }

    /// Number of segments that arrived behind a hole.
    #[must_use]
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Whether the first segment is lost and resent.
    #[must_use]
    pub fn first_was_resent(&self) -> bool {
        self.out.front().is_some_and(|out| out.is(AMBIGUOUS))
    }
}

impl Delivered {
    fn note(&mut self, out: Out, seq: u32) {
        self.count += 1;
        self.newest = self.newest.max((out.sent_at(), seq));
        if !out.is(AMBIGUOUS) {
            self.sample_sent_at = self.sample_sent_at.max(Some(out.sent_at()));
        }
    }
}
