//! A record that is not finished although bytes come: nobody with the key leaves one so. Its length
//! travels in clear, and a stranger on the way who forges a piece of the TCP stream could have the
//! receiver wait for as many bytes as a length can say, while everything else looks well.

use std::time::{Duration, Instant};

/// Time in which a record has to be whole, once it has begun and bytes come.
pub(super) const RECORD_LIMIT: Duration = Duration::from_secs(1);

/// How long the record that has begun is unfinished.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    since: Option<Instant>,
    heard: Option<Instant>,
}

impl Unfinished {
    /// A record was finished.
    pub fn finish(&mut self) {
        self.since = None;
    }

    /// Bytes have come, and have left a record unfinished; true if that has been so for too long. A
    /// network that was silent for as long does not count.
    pub fn is_stuck(&mut self, now: Instant) -> bool {
        let before = self.heard.replace(now);
        let was_silent = before.is_none_or(|at| now.saturating_duration_since(at) >= RECORD_LIMIT);
        let since = *self.since.get_or_insert(now);
        if was_silent {
            self.since = Some(now);
            return false;
        }
        now.saturating_duration_since(since) >= RECORD_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_slowly_is_stuck_and_what_stood_still_is_not() {
        let (begun, mut record) = (Instant::now(), Unfinished::default());
        let at = |record: &mut Unfinished, ms| record.is_stuck(begun + Duration::from_millis(ms));
        for ms in (0..1000).step_by(20) {
            assert!(!at(&mut record, ms), "{ms}");
        }
        assert!(at(&mut record, 1000));
        record.finish();
        assert!(!at(&mut record, 1020), "the next one");
        assert!(!at(&mut record, 1900));
        // The network is cut, and heals.
        assert!(!at(&mut record, 9000));
        assert!(!at(&mut record, 9100));
        assert!(at(&mut record, 10_000));
    }
}
