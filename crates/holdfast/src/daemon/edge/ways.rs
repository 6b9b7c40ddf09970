//! Whether the edge's frames reach its members. The edge sends numbered test frames (signs) to
//! the hardware address of each member in the file, and the members report which have arrived; a
//! backup reports those that its tap has seen. Through the port of a member that answers no
//! sign, broadcast frames (calls) are sent, too: they tell whether that port leads to another
//! member.

use holdfast_linux::frame::{FrameError, FrameSender, Hop};
use holdfast_linux::way;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Pause between two signs to a member that does not answer them.
const SIGN_SOON: Duration = Duration::from_millis(50);
/// Pause between two signs to a member that does.
const SIGN_EVERY: Duration = Duration::from_millis(500);
/// Silence after which a path counts as not leading to the member.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many signs (or calls) may have been sent since the one that an answer names.
const LATE_MAX: u64 = 16;
/// One frame in this many to a member that does not answer is a call.
const CALL_EVERY: u64 = 4;
/// The broadcast address of Ethernet.
const EVERYBODY: [u8; 6] = [0xff; 6];

/// The paths to all members.
pub(super) struct Ways {
    sender: FrameSender,
    slots: Vec<Way>,
}

/// The path to one member.
#[derive(Clone, Debug)]
struct Way {
    hop: Hop,
    /// Number of the last sign. It starts at random, so that only a host that has received a
    /// sign can answer it.
    number: u64,
    sign_at: Instant,
    /// When the member connected, or last answered a sign.
    since: Instant,
    proved: bool,
    /// The member's real hardware address, if the file has another one.
    other: Option<[u8; 6]>,
    /// Number of the last call through its port, from a random start.
    call: u64,
    /// Members that have answered a call through this port, and when each last did.
    answered: BTreeMap<usize, Instant>,
}

/// What is known about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Proved,
    /// Too little time has passed to tell.
    Trying,
    /// The member has this hardware address instead.
    OtherAddress([u8; 6]),
    /// Its port leads to the member of this index instead.
    LeadsTo(usize),
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
            call: start(),
            answered: BTreeMap::new(),
        };
        Ok(Self { sender: FrameSender::open()?, slots: hops.into_iter().map(way).collect() })
    }

    /// Notes that a member has connected: its path has to prove itself again.
    pub fn joined(&mut self, index: usize, now: Instant) {
        if let Some(way) = self.slots.get_mut(index) {
            (way.sign_at, way.since, way.proved, way.other) = (now, now, false, None);
            way.answered.clear();
        }
    }

    /// Notes that the member's port is another interface now.
    pub fn moved(&mut self, index: usize, hop: Hop) {
        if let Some(way) = self.slots.get_mut(index) {
            way.hop = hop;
        }
    }

    /// Sends the sign or call that is due to a member, if it is connected. One that `answers`
    /// nothing else now (its daemon stands still) is no reason to doubt its path.
    pub fn turn(&mut self, index: usize, (is_here, answers): (bool, bool), now: Instant) {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.sign_at <= now) else {
            return;
        };
        if !answers && slot.is_proved(now) {
            slot.since = now;
        }
        if !is_here {
            slot.sign_at = now + SIGN_EVERY;
            return;
        }
        let is_proved = slot.is_proved(now);
        slot.sign_at = now + if is_proved { SIGN_EVERY } else { SIGN_SOON };
        slot.number = slot.number.wrapping_add(1);
        // If the frame cannot be sent, its answer is missing, and that is noticed.
        let _ = if is_proved || !slot.number.is_multiple_of(CALL_EVERY) {
            way::send(slot.number, &slot.hop, &mut self.sender)
        } else {
            slot.call = slot.call.wrapping_add(1);
            let everybody = Hop { to: EVERYBODY, ..slot.hop };
            way::send(slot.call, &everybody, &mut self.sender)
        };
    }

    /// When [`Ways::turn`] is due.
    pub fn deadline(&self, now: Instant) -> Instant {
        self.slots.iter().map(|way| way.sign_at).min().unwrap_or(now + SIGN_EVERY)
    }

    /// Notes that the member has received the sign or call `number`, at an interface with the
    /// hardware address `mac`.
    pub fn seen(&mut self, index: usize, number: u64, mac: [u8; 6], now: Instant) {
        let called = |way: &Way| way.call.wrapping_sub(number) <= LATE_MAX;
        if let Some(at) = self.slots.iter().position(called) {
            return self.heard_call(at, (index, mac), now);
        }
        let Some(way) = self.slots.get_mut(index) else { return };
        if way.number.wrapping_sub(number) > LATE_MAX {
            return;
        }
        way.other = (mac != way.hop.to).then_some(mac);
        if way.other.is_none() {
            (way.proved, way.since) = (true, now);
        }
    }

    /// Notes that a call through the port of the member `port` has come to the
    /// member `index`.
    fn heard_call(&mut self, port: usize, (index, mac): (usize, [u8; 6]), now: Instant) {
        let Some(way) = self.slots.get_mut(port) else { return };
        way.answered.insert(index, now);
        // A network card drops signs to another address than its own, but takes broadcasts.
        if port == index && mac != way.hop.to {
            way.other = Some(mac);
        }
    }

    pub fn verdict(&self, index: usize, now: Instant) -> Verdict {
        match self.slots.get(index) {
            Some(Way { other: Some(mac), .. }) => Verdict::OtherAddress(*mac),
            Some(way) if way.is_proved(now) => Verdict::Proved,
            Some(way) if now.saturating_duration_since(way.since) < PATIENCE => Verdict::Trying,
            Some(way) => way.leads_to(index, now).map_or(Verdict::Silent, Verdict::LeadsTo),
            None => Verdict::Silent,
        }
    }
}

impl Way {
    /// The only member that answers calls through the port of the member `index`, if it is
    /// another one. If several answer, all are on one Ethernet, and that tells nothing.
    fn leads_to(&self, index: usize, now: Instant) -> Option<usize> {
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < PATIENCE;
        let mut answer = self.answered.iter().filter(|(_, at)| fresh(at)).map(|(who, _)| *who);
        let only = answer.next()?;
        (only != index && answer.next().is_none()).then_some(only)
    }

    fn is_proved(&self, now: Instant) -> bool {
        self.proved && now.saturating_duration_since(self.since) < PATIENCE
    }
}

fn start() -> u64 {
    // 0 is good enough: a host without random numbers cannot open a channel anyway.
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// Two paths; nothing that is sent leaves.
    fn ways(now: Instant) -> Ways {
        let hop = Hop { ifindex: u32::MAX, from: [2; 6], to: OWN };
        Ways::new(vec![hop; 2], now).expect("a packet socket; run the tests as root")
    }

    /// Sends signs and calls for a while, which the members `who` answer.
    fn call(ways: &mut Ways, who: &[usize], from: Instant) -> Instant {
        let mut now = from;
        while now < from + PATIENCE {
            now += SIGN_SOON;
            ways.turn(0, (true, true), now);
            let call = ways.slots[0].call;
            who.iter().for_each(|index| ways.seen(*index, call, OWN, now));
        }
        now
    }

    #[test]
    fn a_port_leads_to_the_only_member_that_answers_there() {
        let begun = Instant::now();
        let cases: [(&[usize], Verdict); 4] = [
            (&[1], Verdict::LeadsTo(1)),
            (&[], Verdict::Silent),
            (&[0], Verdict::Silent),
            // An Ethernet that leads to both.
            (&[0, 1], Verdict::Silent),
        ];
        for (who, verdict) in cases {
            let mut ways = ways(begun);
            let now = call(&mut ways, who, begun);
            assert_eq!(ways.verdict(0, now), verdict, "{who:?}");
        }
        let mut ways = ways(begun);
        let now = call(&mut ways, &[1], begun);
        ways.seen(0, ways.slots[0].call, [4; 6], now);
        assert_eq!(ways.verdict(0, now), Verdict::OtherAddress([4; 6]));
        ways.seen(0, ways.slots[0].number, OWN, now);
        assert_eq!(ways.verdict(0, now), Verdict::Proved);
        ways.joined(0, now);
        assert_eq!(ways.verdict(0, now + PATIENCE), Verdict::Silent, "that was another life");
    }

    #[test]
    fn a_member_that_stood_still_has_kept_its_way() {
        let begun = Instant::now();
        let mut ways = ways(begun);
        ways.seen(0, ways.slots[0].number, OWN, begun);
        let mut now = begun;
        while now < begun + PATIENCE * 2 {
            now += SIGN_EVERY;
            ways.turn(0, (true, false), now);
        }
        assert_eq!(ways.verdict(0, now), Verdict::Proved);
        // It answers again, but not this.
        ways.turn(0, (true, true), now + PATIENCE);
        assert_eq!(ways.verdict(0, now + PATIENCE), Verdict::Silent);
    }

    #[test]
    fn calls_are_made_only_while_a_way_is_not_proved() {
        let begun = Instant::now();
        let mut ways = ways(begun);
        let calls = |ways: &Ways| ways.slots[0].call;
        let before = calls(&ways);
        let now = call(&mut ways, &[], begun);
        let made = calls(&ways).wrapping_sub(before);
        assert!((10..=20).contains(&made), "{made}");
        for turn in 1..50 {
            let at = now + SIGN_EVERY * turn;
            ways.seen(0, ways.slots[0].number, OWN, at);
            ways.turn(0, (true, true), at);
        }
        assert_eq!(calls(&ways).wrapping_sub(before), made);
    }
}
