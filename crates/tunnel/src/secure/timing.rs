//! How long things last, and how often they may happen. The first four are WireGuard's (§6.1 of its
//! paper); the others are shorter, for a tunnel across a path that loses packets cannot wait five
//! seconds for each lost handshake.

use std::time::Duration;

/// Age at which the end that began a session begins the next one.
pub(super) const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Age at which the other end does, if the first one has not.
pub(super) const REKEY_AFTER_OF_ANSWERER: Duration = Duration::from_secs(130);
/// Age at which a session ends, and the longest time for which an older one overlaps.
pub(super) const REJECT_AFTER: Duration = Duration::from_secs(180);
/// How long a cookie counts.
pub(super) const COOKIE_LASTS: Duration = Duration::from_secs(120);

/// First pause before an initiation is sent again; it doubles.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(300);
/// Longest pause before an initiation is sent again.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(5);
/// Time between two handshakes that were begun at once.
pub(super) const AT_ONCE: Duration = Duration::from_secs(5);
/// How long an answered session waits for its first datagram.
pub(super) const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// Silence after something was sent, before the peer is asked whether it is there.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(2);
/// Pause between two such questions.
pub(super) const ASK_PAUSE: Duration = Duration::from_millis(200);
/// Most of them in a row.
pub(super) const ASK_TIMES: u32 = 5;
/// Silence after something was sent, before a new session is begun.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(4);

/// First messages a second that are answered without a cookie, and how many at once. Each costs four
/// agreements, about 0.2 ms.
pub(super) const HANDSHAKES_PER_S: u32 = 10;
pub(super) const HANDSHAKES_AT_ONCE: u32 = 10;
/// The same for those that bring a cookie.
pub(super) const PROVEN_HANDSHAKES_PER_S: u32 = 20;
pub(super) const PROVEN_HANDSHAKES_AT_ONCE: u32 = 10;
/// Cookies a second that are sent.
pub(super) const COOKIES_PER_S: u32 = 200;
pub(super) const COOKIES_AT_ONCE: u32 = 50;

/// What may happen so often a second and no more: the generic cell rate algorithm (ITU-T I.371),
/// which remembers a single time.
#[derive(Debug)]
pub(super) struct Rate {
    interval: Duration,
    burst: Duration,
    due: Duration,
}

impl Rate {
    pub(super) fn new(per_s: u32, at_once: u32) -> Self {
        let interval = Duration::from_secs(1) / per_s.max(1);
        Self { interval, burst: interval * at_once.saturating_sub(1), due: Duration::ZERO }
    }

    /// Whether it may happen now.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        if self.due > now + self.burst {
            return false;
        }
        self.due = self.due.max(now) + self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_happens_than_may() {
        let mut rate = Rate::new(10, 5);
        let mut taken = 0;
        for ms in 0..2000 {
            taken += u32::from(rate.take(Duration::from_millis(ms)));
        }
        assert!((24..=25).contains(&taken), "five at once and ten a second: {taken}");
        assert!(rate.take(Duration::from_secs(100)), "and not less");
    }
}
