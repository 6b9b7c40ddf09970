//! What is heard through each string, and what the edge concludes from it.

use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_edge::QueueDelay;
use holdfast_edge::strings::Strings;

/// What a fresh heartbeat means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// The strings that the other edge has declared dead, by its latest
    /// heartbeat.
    pub peer_lost: u32,
    /// Distance of its number from the number before on this string; 0 if there
    /// was none.
    pub step: u64,
    /// Round trip through the string, without the time that the other edge took, in ns; `None` if
    /// the echoed heartbeat is too old.
    pub round_trip_ns: Option<u64>,
    /// When the echoed heartbeat was sent, in ns: everything that had passed by
    /// then has arrived.
    pub echoed_ns: Option<u64>,
}

#[derive(Debug)]
struct Line {
    detector: Detector,
    delay: QueueDelay,
    /// Sending time of the last heartbeat that has certainly arrived.
    sound: Nanos,
    /// Packets of flows that have come through the string.
    traffic: u64,
    counted: Nanos,
}

/// What is heard through each string: a detector, and the packets that were counted.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
    period: Nanos,
}

impl Lines {
    pub fn new(count: usize, period: Nanos, now: Nanos) -> Self {
        let line = |_| Line {
            detector: Detector::new(now, period),
            delay: QueueDelay::default(),
            sound: now,
            traffic: 0,
            counted: now,
        };
        Self { lines: (0..count).map(line).collect(), period }
    }

    pub fn handle_beat(&mut self, string: usize, fresh: &Fresh, now: Nanos, to: &mut Strings) {
        // The other edge's count advances with every string.
        let round = self.lines.len() as u64;
        let Some(line) = self.lines.get_mut(string) else { return };
        line.sound = line.sound.max(Nanos(fresh.echoed_ns.unwrap_or(0)));
        if let Some(round_trip) = fresh.round_trip_ns {
            line.delay.handle_round_trip(now.0, round_trip);
        }
        if line.detector.peer() == Peer::Dead {
            line.detector = Detector::new(now, self.period);
        }
        line.detector.handle_received(now, &mut Verdicts::default());
        to.handle_beat(string, fresh.peer_lost, fresh.step > round);
    }

    pub fn queue_delay(&mut self, string: usize) -> Option<Nanos> {
        self.lines.get_mut(string)?.delay.take().map(Nanos)
    }

    /// The last moment at which packets are known to have got through a string.
    pub fn sound(&self, string: usize) -> Nanos {
        self.lines.get(string).map_or(Nanos(0), |line| line.sound)
    }

    /// Takes the number of flows' packets that have come through each string. A string that carries
    /// packets is not dead, even if its full queue has swallowed some heartbeats in a row. Packets
    /// prove no more than that, since they are not signed.
    pub fn count(&mut self, now: Nanos, traffic: &[u64], to: &mut Strings) {
        for (string, (line, packets)) in self.lines.iter_mut().zip(traffic).enumerate() {
            let (before, since) = (line.traffic, line.counted);
            (line.traffic, line.counted) = (*packets, now);
            if *packets > before && line.detector.peer() != Peer::Dead {
                // The packets came at any time since then.
                line.detector.handle_received(since, &mut Verdicts::default());
                to.handle_traffic(string);
            }
        }
    }

    /// Tells the judge which strings are silent.
    pub fn judge(&mut self, now: Nanos, to: &mut Strings) {
        let mut silent = 0u32;
        for (string, line) in self.lines.iter_mut().enumerate() {
            if line.detector.next_deadline().is_none_or(|due| due > now) {
                continue;
            }
            // Heartbeats have a time of their own, since dead strings get them too.
            let mut verdict = Verdicts::default();
            line.detector.handle_timeout(now, &mut verdict);
            if verdict.suspected {
                to.handle_suspected(string);
            }
            silent |= u32::from(verdict.declared) << string;
        }
        // All doubts come first: a string that is itself doubted is no evidence against another
        // one.
        for string in (0..self.lines.len()).filter(|string| silent >> string & 1 == 1) {
            to.handle_silent(string);
        }
    }

    /// When [`Lines::judge`] is due; `None` while all strings are silent.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.lines.iter().filter_map(|line| line.detector.next_deadline()).min()
    }

    /// Judges a string anew.
    pub fn renew(&mut self, string: usize, now: Nanos) {
        if let Some(line) = self.lines.get_mut(string) {
            line.detector = Detector::new(now, self.period);
        }
    }
}
