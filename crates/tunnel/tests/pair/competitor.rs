//! A plain TCP flow with CUBIC (RFC 9438) and endless data, as something to be fair to. Its losses
//! are answered by new data, since only its rate matters here.

use std::collections::BTreeSet;
use std::time::Duration;

pub const PACKET_BYTES: usize = 1500;
/// RFC 9438 §4.6 and §5.
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Packets behind one that is not lost yet (RFC 5681 §3.2).
const OVERTAKEN: u64 = 3;
const TIMEOUT: Duration = Duration::from_millis(300);

pub struct Competitor {
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Option<Duration>,
    next: u64,
    outstanding: BTreeSet<u64>,
    /// Losses of packets before this one were answered.
    recover: u64,
    last_ack: Duration,
    starts: Duration,
    pub received: u64,
}

impl Competitor {
    pub fn new(starts: Duration) -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            window_max: 10.0,
            epoch: None,
            next: 0,
            outstanding: BTreeSet::new(),
            recover: 0,
            last_ack: starts,
            starts,
            received: 0,
        }
    }

    /// The next packet, if one may be sent.
    pub fn poll(&mut self, now: Duration) -> Option<u64> {
        if now < self.starts {
            return None;
        }
        if now >= self.timeout_at() {
            self.outstanding.clear();
            (self.threshold, self.window) = ((self.window * BETA).max(2.0), 1.0);
            (self.last_ack, self.epoch) = (now, None);
        }
        if self.outstanding.len() as f64 >= self.window.floor().max(1.0) {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        self.outstanding.insert(seq);
        Some(seq)
    }

    pub fn timeout_at(&self) -> Duration {
        self.last_ack + TIMEOUT
    }

    /// An acknowledgement, perhaps of a packet that met congestion (RFC 3168 §6.1.2).
    pub fn acknowledged(&mut self, seq: u64, is_marked: bool, now: Duration) {
        self.last_ack = now;
        self.outstanding.remove(&seq);
        while let Some(&first) = self.outstanding.first().filter(|it| **it + OVERTAKEN <= seq) {
            self.outstanding.remove(&first);
            self.give_way(first);
        }
        if is_marked {
            self.give_way(seq);
        }
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let since = *self.epoch.get_or_insert(now);
        let k = (self.window_max * (1.0 - BETA) / C).cbrt();
        let at = (now - since).as_secs_f64() + 0.02;
        let cubic = C * (at - k).powi(3) + self.window_max;
        // As fast as Reno would at least (RFC 9438 §4.3), with the delay of the path.
        let reno = self.window_max * BETA + 3.0 * (1.0 - BETA) / (1.0 + BETA) * at / 0.03;
        let target = cubic.max(reno);
        if target > self.window {
            self.window += (target - self.window) / self.window;
        }
    }

    /// Answers what has happened to a packet, once per round trip.
    fn give_way(&mut self, seq: u64) {
        if seq >= self.recover {
            self.recover = self.next;
            self.window_max = self.window;
            self.window = (self.window * BETA).max(2.0);
            (self.threshold, self.epoch) = (self.window, None);
        }
    }
}
