//! What the backup's machine ignored or repaired, for status and tests.

use crate::Verdict;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments seen.
    pub segments: u64,
    /// Segments of no known connection.
    pub segments_unknown: u64,
    /// Segments outside the window, too old, or with an impossible ACK.
    pub segments_refused: u64,
    /// Segments, connections and SYNs refused at a limit.
    pub refused_full: u64,
    /// RSTs and SYNs that the primary answers with a challenge ACK.
    pub challenges: u64,
    /// Frames that came again.
    pub frames_repeated: u64,
    /// What a server has sent itself that did not follow what was here, and that could not be
    /// replayed at once.
    pub direct_ignored: u64,
    pub direct_cut: u64,
    /// Reads that the tap did not bring in time.
    pub needs: u64,
    /// Reads whose hash contradicts the tap.
    pub conflicts: u64,
    /// Connections for which the tap had held other bytes than the primary's
    /// kernel handed out: a takeover drops them.
    pub contradicted: u64,
    /// Requests for bytes that the server may not have read.
    pub unread_asked: u64,
    /// Answers to such requests that made a stream grow.
    pub unread_filled: u64,
    /// Payloads and answers that were no longer needed.
    pub payloads_late: u64,
    /// Messages that came after the end, or that are not for a backup.
    pub messages_late: u64,
}

impl Counters {
    pub(super) fn note_contradiction(&mut self, before: bool, after: bool) {
        self.contradicted += u64::from(!before && after);
    }

    pub(super) fn note(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Full => self.refused_full += 1,
            Verdict::Challenge => self.challenges += 1,
            Verdict::Window | Verdict::Paws | Verdict::AckRange => self.segments_refused += 1,
            Verdict::Grown | Verdict::Kept | Verdict::Nothing | Verdict::Old | Verdict::Reset => {}
        }
    }
}
