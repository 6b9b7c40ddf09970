//! Whether what is longer than every path takes still comes through (RFC 8899 §4.3): a route may
//! change without a word.

use crate::config::DATAGRAM_BYTES_MIN;
use std::time::Duration;

/// Long datagrams in a row of which none is known to have arrived, and the round trips that they have
/// had for it. A path that loses half does that once in 4,000; a doubt costs one question.
const SILENT_MIN: u32 = 12;
const SILENT_ROUNDS: u32 = 4;
/// Beyond that: acknowledgements may be lost, or late.
const SILENT_FOR: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Passage {
    /// Long datagrams that were sent since one was known to have arrived, and when the first of them was.
    silent: u32,
    since: Duration,
}

impl Passage {
    /// A datagram with this much plaintext is sent.
    pub fn sent(&mut self, bytes: usize, now: Duration) {
        if bytes > DATAGRAM_BYTES_MIN {
            if self.silent == 0 {
                self.since = now;
            }
            self.silent += 1;
        }
    }

    /// One with this much plaintext, or more, has arrived.
    pub fn arrived(&mut self, bytes: usize) {
        if bytes > DATAGRAM_BYTES_MIN {
            self.silent = 0;
        }
    }

    /// Whether the path is to be asked now; not again before the same has happened anew.
    pub fn take_doubt(&mut self, round: Duration, now: Duration) -> bool {
        let is_doubtful =
            self.silent >= SILENT_MIN && now >= self.since + round * SILENT_ROUNDS + SILENT_FOR;
        if is_doubtful {
            self.silent = 0;
        }
        is_doubtful
    }
}
