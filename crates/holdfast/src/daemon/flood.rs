//! Whether the segment still brings frames to the service's hardware address to every member: each
//! sends a numbered frame there now and then, which the other one has to see. A switch that has
//! learnt the address, or floods no more, is noticed by that.

use holdfast_linux::frame::{FrameSender, Hop};
use holdfast_linux::link::Link;
use holdfast_linux::way;
use std::time::{Duration, Instant};

/// Time between two frames.
const SIGN_EVERY: Duration = Duration::from_millis(500);
/// Time without one after which the segment counts as broken.
const PATIENCE: Duration = Duration::from_secs(3);

/// See the module.
pub struct Flood {
    sender: FrameSender,
    interface: String,
    /// The service's hardware address.
    mac: [u8; 6],
    number: u64,
    sign_at: Instant,
    /// When the last frame of the other member came.
    seen: Option<Instant>,
    /// Since when that one has been heard by other ways.
    heard: Option<Instant>,
}

impl Flood {
    /// # Errors
    /// When the socket cannot be opened.
    pub fn new(interface: &str, mac: [u8; 6], now: Instant) -> anyhow::Result<Self> {
        let (sender, interface) = (FrameSender::open()?, interface.to_owned());
        Ok(Self { sender, interface, mac, number: 0, sign_at: now, seen: None, heard: None })
    }

    /// A frame of the other member has come.
    pub fn note_seen(&mut self, now: Instant) {
        self.seen = Some(now);
    }

    /// Sends a frame when it is time. `hears`: whether the other member is heard by other ways.
    pub fn turn(&mut self, hears: bool, now: Instant) {
        self.heard = if hears { self.heard.or(Some(now)) } else { None };
        if now < self.sign_at {
            return;
        }
        self.sign_at = now + SIGN_EVERY;
        let Ok(link) = Link::by_name(&self.interface) else { return };
        self.number += 1;
        let hop = Hop { ifindex: link.index, from: link.mac, to: self.mac };
        // One that cannot be sent is missed at the other end.
        let _ = way::send(self.number, &hop, &mut self.sender);
    }

    /// Whether frames should have come by now, and have not.
    #[must_use]
    pub fn is_broken(&self, now: Instant) -> bool {
        let since = self.heard.map(|heard| self.seen.map_or(heard, |seen| seen.max(heard)));
        since.is_some_and(|since| now.saturating_duration_since(since) > PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_one_who_is_heard_are_missed() {
        let now = Instant::now();
        let mut flood = Flood::new("nowhere0", [2, 0, 0, 0, 0, 1], now).unwrap();
        let at = |ms: u64| now + Duration::from_millis(ms);
        flood.turn(false, at(0));
        assert!(!flood.is_broken(at(60_000)));
        flood.turn(true, at(60_000));
        assert!(!flood.is_broken(at(62_900)));
        assert!(flood.is_broken(at(63_100)));
        flood.note_seen(at(63_100));
        assert!(!flood.is_broken(at(66_000)) && flood.is_broken(at(66_200)));
        flood.turn(false, at(66_200));
        assert!(!flood.is_broken(at(66_200)), "nobody is there");
        flood.turn(true, at(66_300));
        assert!(!flood.is_broken(at(69_000)), "it has just come back");
    }
}
