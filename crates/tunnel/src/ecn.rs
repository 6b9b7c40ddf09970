//! Marks of the outer path (RFC 3168): whether it carries them, and which of them are news.
//!
//! The tunnel is a transport with an answer of its own to congestion, so its datagrams say that they
//! understand marks, whatever is in them, and the peer counts those that came (as in QUIC, RFC 9000
//! §13.4). A path that takes the mark off, drops what has it, or puts the worst one on everything is
//! found out and not asked again: until one is known to have come, only the first few have it
//! (§13.4.2). One that is silent may have begun to drop them: it is tried without, and then anew.

use crate::Ecn;
use crate::frame::MarkCounts;
use crate::wire::{completed_24, truncated};

/// Datagrams with a mark before any is known to have come (RFC 9000 §13.4.2).
const TRIED: u32 = 10;

/// What a receiver has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Datagrams that said that they understand marks, and those of them that have met congestion.
    capable: u64,
    congested: u64,
}

impl Seen {
    /// Notes a datagram; whether it has met congestion.
    pub fn note(&mut self, ecn: Ecn) -> bool {
        let is_congested = ecn == Ecn::Congested;
        self.capable += u64::from(ecn != Ecn::NotCapable);
        self.congested += u64::from(is_congested);
        is_congested
    }

    /// What the sender is told, if there is anything.
    pub fn counts(&self) -> Option<MarkCounts> {
        let (capable, congested) = (truncated(self.capable), truncated(self.congested));
        (self.capable > 0).then_some(MarkCounts { capable, congested })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// So many have a mark, the last of them with this number.
    Tried(u32, u64),
    Carries,
    Fails,
    /// Nothing is known of it. Datagrams from this number on have no mark, until one of them is settled.
    Unknown(u64),
}

/// The sender's side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    path: Path,
    /// What the peer has told.
    capable: u64,
    congested: u64,
    /// Marks that came without congestion, before this path was tried.
    plain: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self { path: Path::Tried(0, 0), capable: 0, congested: 0, plain: 0 }
    }
}

impl Marks {
    /// The mark of the datagram that is sent next.
    pub fn next(&mut self, number: u64) -> Ecn {
        match self.path {
            Path::Tried(TRIED.., _) | Path::Fails | Path::Unknown(_) => Ecn::NotCapable,
            Path::Tried(tried, _) => {
                self.path = Path::Tried(tried + 1, number);
                Ecn::Capable0
            }
            Path::Carries => Ecn::Capable0,
        }
    }

    /// Datagrams from `number` on take another path.
    pub fn path_changed(&mut self, number: u64) {
        self.path = Path::Unknown(number);
    }

    /// Before datagram `number` nothing has been heard for a while.
    pub fn doubt(&mut self, number: u64) {
        if self.path == Path::Carries {
            self.path = Path::Unknown(number);
        }
    }

    /// Datagrams that have met congestion so far.
    pub fn congested(&self) -> u64 {
        self.congested
    }

    /// Takes what the peer has counted, `None` if it has seen no mark; all datagrams before `settled`
    /// have come there or are lost. Whether congestion is new.
    pub fn told(&mut self, counts: Option<MarkCounts>, settled: u64) -> bool {
        let before = self.congested;
        if let Some(counts) = counts {
            // An older acknowledgement takes nothing back.
            self.capable = completed_24(counts.capable, self.capable).max(self.capable);
            self.congested = completed_24(counts.congested, self.congested).max(self.congested);
        }
        // A peer that lies may say that more have met congestion than came.
        let plain = self.capable.saturating_sub(self.congested);
        match self.path {
            Path::Tried(..) if plain > self.plain => self.path = Path::Carries,
            Path::Tried(TRIED, last) if last < settled => self.path = Path::Fails,
            Path::Unknown(first) if first < settled => {
                (self.path, self.plain) = (Path::Tried(0, 0), plain);
            }
            _ => {}
        }
        self.path == Path::Carries && self.congested > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried() -> Marks {
        let mut marks = Marks::default();
        for number in 0..20 {
            let is_tried = number < u64::from(TRIED);
            assert_eq!(marks.next(number) == Ecn::Capable0, is_tried, "{number}");
        }
        marks
    }

    #[test]
    fn a_path_that_carries_marks_is_used_and_each_congestion_is_news_once() {
        let (mut marks, mut seen) = (tried(), Seen::default());
        assert!(!seen.note(Ecn::Capable0) && seen.note(Ecn::Congested));
        assert!(marks.told(seen.counts(), 2));
        assert!(!marks.told(seen.counts(), 3));
        assert!(!marks.told(None, 30), "what is told late takes nothing back");
        assert_eq!((marks.next(20), marks.congested()), (Ecn::Capable0, 1));
        seen.note(Ecn::Congested);
        assert!(marks.told(seen.counts(), 31));
    }

    #[test]
    fn another_path_and_a_silent_one_are_tried_anew() {
        let (mut marks, mut seen) = (tried(), Seen::default());
        marks.told(seen.counts(), 30);
        assert_eq!(marks.path, Path::Fails);
        marks.doubt(30);
        assert_eq!(marks.path, Path::Fails, "it was so before");
        marks.path_changed(30);
        seen.note(Ecn::Capable0);
        assert!(!marks.told(seen.counts(), 30));
        assert_eq!(marks.next(31), Ecn::NotCapable, "that one may have come by the other path");
        marks.told(seen.counts(), 31);
        assert_eq!(marks.next(32), Ecn::Capable0);
        marks.told(seen.counts(), 32);
        assert_eq!(marks.path, Path::Tried(1, 32));
        seen.note(Ecn::Capable0);
        marks.told(seen.counts(), 33);
        assert_eq!(marks.path, Path::Carries);
        marks.doubt(40);
        assert_eq!(marks.next(40), Ecn::NotCapable);
    }

    #[test]
    fn a_path_that_takes_them_off_drops_them_or_marks_everything_is_not_used() {
        for ecn in [Ecn::NotCapable, Ecn::Congested] {
            let (mut marks, mut seen) = (tried(), Seen::default());
            for _ in 0..9 {
                seen.note(ecn);
            }
            assert!(!marks.told(seen.counts(), 9), "the last of them may still come");
            assert!(!marks.told(seen.counts(), 10));
            assert_eq!((marks.path, marks.next(20)), (Path::Fails, Ecn::NotCapable));
        }
    }
}
