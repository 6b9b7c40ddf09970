//! Whether the edge's frames reach its members: signs are sent to the hardware
//! addresses that the file names, and the members tell which have come. The
//! backup tells of what its tap has brought.

use holdfast_linux::frame::{FrameError, FrameSender, Hop};
use holdfast_linux::way;
use std::time::{Duration, Instant};

/// Pause between two signs: to a member that has answered none yet, and later.
const SIGN_SOON: Duration = Duration::from_millis(50);
const SIGN_EVERY: Duration = Duration::from_millis(500);
/// Silence after which a way does not lead to the member.
const PATIENCE: Duration = Duration::from_secs(3);
/// Signs by which an answer may be late.
const LATE_MAX: u64 = 16;

/// The ways to all members.
pub(super) struct Ways {
    sender: FrameSender,
    slots: Vec<Way>,
}

/// The way to one member.
#[derive(Clone, Debug)]
struct Way {
    hop: Hop,
    /// The last sign, from a random start: nobody else can answer.
    number: u64,
    sign_at: Instant,
    /// When the member came, or was last heard to have seen a sign.
    since: Instant,
    proved: bool,
    /// The address that the member has, if it is another one.
    other: Option<[u8; 6]>,
}

/// What is known of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Proved,
    /// It has not been long enough to tell.
    Trying,
    /// The member has this hardware address instead.
    OtherAddress([u8; 6]),
    Silent,
}

impl Ways {
    pub fn new(hops: Vec<Hop>, now: Instant) -> Result<Self, FrameError> {
        let way = |hop| Way {
            hop,
            number: start(),
            sign_at: now,
            since: now,
            proved: false,
            other: None,
        };
        Ok(Self { sender: FrameSender::open()?, slots: hops.into_iter().map(way).collect() })
    }

    /// A member has come: its way has to prove itself anew.
    pub fn joined(&mut self, index: usize, now: Instant) {
        if let Some(way) = self.slots.get_mut(index) {
            (way.sign_at, way.since, way.proved, way.other) = (now, now, false, None);
        }
    }

    /// The member's port is another interface now.
    pub fn moved(&mut self, index: usize, hop: Hop) {
        if let Some(way) = self.slots.get_mut(index) {
            way.hop = hop;
        }
    }

    /// Sends what is due to a member, if it is here.
    pub fn turn(&mut self, index: usize, is_here: bool, now: Instant) {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.sign_at <= now) else {
            return;
        };
        if !is_here {
            slot.sign_at = now + SIGN_EVERY;
            return;
        }
        slot.sign_at = now + if slot.is_proved(now) { SIGN_EVERY } else { SIGN_SOON };
        slot.number = slot.number.wrapping_add(1);
        // One that cannot leave will be missed.
        let _ = way::send(slot.number, &slot.hop, &mut self.sender);
    }

    /// When [`Ways::turn`] is due.
    pub fn deadline(&self, now: Instant) -> Instant {
        self.slots.iter().map(|way| way.sign_at).min().unwrap_or(now + SIGN_EVERY)
    }

    /// The member says that a sign has come, and which address it has there.
    pub fn seen(&mut self, index: usize, number: u64, mac: [u8; 6], now: Instant) {
        let Some(way) = self.slots.get_mut(index) else { return };
        if way.number.wrapping_sub(number) > LATE_MAX {
            return;
        }
        way.other = (mac != way.hop.to).then_some(mac);
        if way.other.is_none() {
            (way.proved, way.since) = (true, now);
        }
    }

    pub fn verdict(&self, index: usize, now: Instant) -> Verdict {
        match self.slots.get(index) {
            Some(Way { other: Some(mac), .. }) => Verdict::OtherAddress(*mac),
            Some(way) if way.is_proved(now) => Verdict::Proved,
            Some(way) if now.saturating_duration_since(way.since) < PATIENCE => Verdict::Trying,
            _ => Verdict::Silent,
        }
    }
}

impl Way {
    fn is_proved(&self, now: Instant) -> bool {
        self.proved && now.saturating_duration_since(self.since) < PATIENCE
    }
}

fn start() -> u64 {
    // A host without random numbers cannot open a channel either.
    getrandom::u64().unwrap_or_default()
}
