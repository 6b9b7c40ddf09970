//! How large a datagram the path takes (RFC 8899): padded questions, of which the largest that is
//! answered counts. The network's own word (ICMP) is not asked: it may be forged, and often is not
//! there. A size fails only while smaller ones are answered: what is lost in an outage says nothing of
//! sizes.

use std::net::SocketAddr;
use std::time::Duration;

/// UDP payload that every path takes: IPv6's least MTU of 1280 without its headers (RFC 8200 §5).
pub const UDP_BYTES_BASE: usize = 1280 - IPV6_BYTES;
/// Largest UDP payload that is looked for.
pub const UDP_BYTES_MAX: usize = MTUS[0] - IPV4_BYTES;

/// IP and UDP headers.
const IPV4_BYTES: usize = 20 + 8;
const IPV6_BYTES: usize = 40 + 8;
/// MTUs that are usual: jumbo frames, Ethernet, PPPoE, tunnels, mobile networks.
const MTUS: [usize; 8] = [9000, 1500, 1492, 1480, 1452, 1420, 1380, 1340];
/// Times that a size is tried. RFC 8899 §5.1.2 has 3; on a path that loses 30 % a good size fails
/// three times in 37 searches.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(300);
/// The least pause when data of this size does not come through: nothing else does meanwhile.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Time between two questions whether the size still passes, since a route may change (§4.3).
const VERIFY_AFTER: Duration = Duration::from_secs(15);
/// Time until a larger size is tried again (PMTU_RAISE_TIMER, §5.1.1).
const RAISE_AFTER: Duration = Duration::from_secs(600);

/// The search on one path.
#[derive(Debug)]
pub(super) struct Search {
    confirmed: usize,
    /// Sizes to try, the largest first.
    sizes: Vec<usize>,
    /// Which of them is being tried; past the end: none passes but the base.
    position: usize,
    is_settled: bool,
    tries: u32,
    /// Whether a question of any size was answered since the first of these tries.
    is_answered: bool,
    /// The question that every path takes is due beside a larger one.
    asks_base: bool,
    pause: Duration,
    at: Duration,
    raise_at: Duration,
}

impl Search {
    /// A search on the path to `peer`.
    pub(super) fn new(peer: SocketAddr, now: Duration) -> Self {
        let headers = if peer.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        Self {
            confirmed: UDP_BYTES_BASE,
            sizes: MTUS.map(|mtu| mtu - headers).to_vec(),
            position: 0,
            is_settled: false,
            tries: 0,
            is_answered: false,
            asks_base: false,
            pause: PAUSE,
            at: now,
            raise_at: now + RAISE_AFTER,
        }
    }

    /// The largest UDP payload that is known to pass.
    pub(super) fn confirmed(&self) -> usize {
        self.confirmed
    }

    /// When [`Self::due`] may have something.
    pub(super) fn wake_at(&self) -> Duration {
        self.at.min(self.raise_at)
    }

    /// The size of a question to send now.
    pub(super) fn due(&mut self, now: Duration) -> Option<usize> {
        if now >= self.raise_at {
            self.raise_at = now + RAISE_AFTER;
            (self.position, self.is_settled, self.at) = (0, false, now);
            self.begin_tries();
        }
        if std::mem::take(&mut self.asks_base) {
            return Some(UDP_BYTES_BASE);
        }
        if now < self.at {
            return None;
        }
        if self.tries == TRIES {
            if self.is_answered {
                self.fail();
            }
            self.begin_tries();
        }
        let Some(size) = self.sizes.get(self.position).copied() else {
            // Only the base passes: nothing to ask until the next raise.
            (self.is_settled, self.at) = (true, self.raise_at);
            return None;
        };
        // The first try says enough if it is answered, which is the rule; and so does one answer.
        self.asks_base = self.tries > 0 && !self.is_answered;
        self.tries += 1;
        self.at = now + self.pause;
        Some(size)
    }

    fn begin_tries(&mut self) {
        (self.tries, self.is_answered, self.pause) = (0, false, PAUSE);
    }

    /// Data of the confirmed size does not come through any more (§4.3): it is asked for at once. A
    /// question is answered after `round`.
    pub(super) fn doubt(&mut self, round: Duration, now: Duration) {
        if self.is_settled && self.tries == 0 {
            (self.pause, self.at) = ((round * 2).clamp(PAUSE_MIN, PAUSE), now);
        }
    }

    /// The path is another one, which may take more. If it takes less, data finds that out.
    pub(super) fn begin_again(&mut self, now: Duration) {
        self.raise_at = now;
    }

    /// A size did not pass: the next smaller one may.
    fn fail(&mut self) {
        if self.is_settled || self.sizes.get(self.position) == Some(&self.confirmed) {
            self.confirmed = UDP_BYTES_BASE;
        }
        self.position += 1;
        self.is_settled = false;
    }

    /// A question of this size was answered.
    pub(super) fn answered(&mut self, size: usize, now: Duration) {
        self.is_answered = true;
        let Some(position) = self.sizes.iter().position(|it| *it == size) else { return };
        if position > self.position {
            return;
        }
        (self.confirmed, self.position) = (size, position);
        (self.is_settled, self.at) = (true, now + VERIFY_AFTER);
        self.begin_tries();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs a search for so long on a path that takes `path` bytes of UDP payload; how many questions
    /// were sent.
    fn run(search: &mut Search, path: usize, from: Duration, to: Duration) -> u32 {
        let (mut now, mut asked) = (from, 0);
        while now < to {
            while let Some(size) = search.due(now) {
                asked += 1;
                if size <= path {
                    search.answered(size, now);
                }
            }
            let next = search.wake_at();
            assert!(next > now, "it would never sleep");
            now = next;
        }
        asked
    }

    #[test]
    fn the_largest_size_that_passes_is_found() {
        let v4: SocketAddr = "192.0.2.1:9".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        for (peer, path, found) in [
            (v4, 1472, 1472),
            (v4, 8972, 8972),
            (v4, 1400, 1392),
            (v6, 1452, 1452),
            (v6, 1300, 1292),
            (v4, 1250, UDP_BYTES_BASE),
        ] {
            let mut search = Search::new(peer, SECOND);
            run(&mut search, path, SECOND, 20 * SECOND);
            assert_eq!(search.confirmed(), found, "{peer} {path}");
        }
    }

    #[test]
    fn a_path_that_shrinks_is_noticed_and_one_that_grows_is_used() {
        let mut search = Search::new("192.0.2.1:9".parse().unwrap(), Duration::ZERO);
        run(&mut search, 1472, Duration::ZERO, 30 * SECOND);
        let asked = run(&mut search, 1400, 30 * SECOND, 60 * SECOND);
        assert_eq!(search.confirmed(), 1392);
        assert!(asked < 60, "{asked} questions");
        let quiet = run(&mut search, 1400, 60 * SECOND, 500 * SECOND);
        assert!(quiet <= 31, "{quiet} questions in 440 s");
        run(&mut search, 1472, 500 * SECOND, 1300 * SECOND);
        assert_eq!(search.confirmed(), 1472);
    }

    #[test]
    fn a_doubt_is_answered_at_once() {
        let mut search = Search::new("192.0.2.1:9".parse().unwrap(), Duration::ZERO);
        let mut now = 6 * SECOND;
        run(&mut search, 1472, Duration::ZERO, now);
        search.doubt(Duration::from_millis(20), now);
        run(&mut search, 1472, now, now + SECOND);
        assert_eq!(search.confirmed(), 1472, "nothing is wrong");
        now += SECOND;
        search.doubt(Duration::from_millis(20), now);
        run(&mut search, 1400, now, now + SECOND / 3);
        assert_eq!(search.confirmed(), UDP_BYTES_BASE);
        now += SECOND;
        run(&mut search, 1400, now, now + 11 * SECOND);
        assert_eq!(search.confirmed(), 1392);
        now += 11 * SECOND;
        search.begin_again(now);
        run(&mut search, 8972, now, now + SECOND);
        assert_eq!(search.confirmed(), 8972);
    }

    #[test]
    fn an_outage_says_nothing_of_sizes() {
        let mut search = Search::new("192.0.2.1:9".parse().unwrap(), Duration::ZERO);
        run(&mut search, 8972, Duration::ZERO, 10 * SECOND);
        search.doubt(Duration::from_millis(20), 10 * SECOND);
        let asked = run(&mut search, 0, 10 * SECOND, 70 * SECOND);
        assert_eq!(search.confirmed(), 8972);
        assert!(asked < 410, "{asked} questions in 60 s");
        run(&mut search, 8972, 70 * SECOND, 71 * SECOND);
        assert_eq!(search.confirmed(), 8972);
    }
}
