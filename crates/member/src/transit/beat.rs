//! Heartbeats through strings. A machine without sockets and without a key: it makes
//! heartbeats, and says which of those that arrive are fresh; the way they are sent
//! proves who made them.
//!
//! Every life of a daemon has a random session number and counts what it sends. A
//! heartbeat is fresh if its number is higher than any before on this string in
//! the other edge's session. A session is believed only after it has echoed a
//! number of this edge's that no session has echoed before, so that a recording from an
//! earlier life of either edge proves nothing.
//!
//! A heartbeat also says how long the echoed number has waited at its sender, so
//! that the echo tells the round trip through the string.

use super::Fresh;
use holdfast_edge::strings::STRINGS_MAX;

/// Number of heartbeats whose sending time is remembered.
const SENT_KEPT: u64 = 128;

/// The last heartbeat that came from the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    pub session: u64,
    pub number: u64,
}

/// A heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The edge that sends it.
    pub side: u8,
    pub string: u8,
    /// The strings that are dead at its sender.
    pub lost: u8,
    /// Session of its sender's life: random, not 0.
    pub session: u64,
    /// Number in the session, from 1.
    pub number: u64,
    pub echo: Echo,
    /// Time for which the echoed heartbeat has waited, in µs.
    pub waited_us: u32,
}

/// Why a heartbeat does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// It was not made for this edge and this string.
    Misdirected,
    /// It was, but it has been here before or belongs to an older life.
    Replayed,
    /// Its session has not proven yet that it is current.
    Unproven,
}

/// The heartbeats of one life of a daemon, to and from the other edge.
pub struct Beats {
    /// Numbers of this edge and of the other one.
    sides: [u8; 2],
    session: u64,
    number: u64,
    /// The session that is believed; 0: none.
    peer: u64,
    /// Highest number of this edge's that was ever echoed.
    proven: u64,
    /// Number of the heartbeat with which the other edge last said what it
    /// lost.
    lost_number: u64,
    peer_lost: u8,
    strings: [PeerBeat; STRINGS_MAX],
    /// Time when number `n` was sent, at `n % SENT_KEPT`, in ns.
    sent: [u64; SENT_KEPT as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct PeerBeat {
    echo: Echo,
    /// Time when that came, in ns.
    came: u64,
    /// Highest number in the believed session.
    number: u64,
}

impl Beats {
    /// The heartbeats of one life, from this edge to the other. `session` is random and
    /// not 0.
    #[must_use]
    pub fn new(sides: [u8; 2], session: u64) -> Self {
        Self {
            sides,
            session,
            number: 0,
            peer: 0,
            proven: 0,
            lost_number: 0,
            peer_lost: 0,
            strings: [PeerBeat::default(); STRINGS_MAX],
            sent: [0; SENT_KEPT as usize],
        }
    }

    /// The next heartbeat for `string`; `lost` are the strings that this edge has
    /// declared dead; `now` is in ns.
    pub fn send(&mut self, now: u64, string: usize, lost: u32) -> Beat {
        self.number += 1;
        self.sent[(self.number % SENT_KEPT) as usize] = now;
        let PeerBeat { echo, came, .. } = self.strings[string];
        Beat {
            side: self.sides[0],
            string: string as u8,
            lost: lost as u8,
            session: self.session,
            number: self.number,
            echo,
            waited_us: u32::try_from(now.saturating_sub(came) / 1000).unwrap_or(u32::MAX),
        }
    }

    /// Takes a heartbeat that came through `string`.
    ///
    /// # Errors
    /// [`Reject`]; nothing has changed then but what is echoed.
    pub fn receive(&mut self, now: u64, string: usize, beat: &Beat) -> Result<Fresh, Reject> {
        if beat.side != self.sides[1] || usize::from(beat.string) != string {
            return Err(Reject::Misdirected);
        }
        let proof = if beat.echo.session == self.session { beat.echo.number } else { 0 };
        let heard = &mut self.strings[string];
        if beat.session != self.peer {
            heard.echo = Echo { session: beat.session, number: beat.number };
            heard.came = now;
            if proof <= self.proven {
                return Err(Reject::Unproven);
            }
            self.peer = beat.session;
            self.lost_number = 0;
            self.strings.iter_mut().for_each(|heard| heard.number = 0);
        } else if beat.number <= heard.number {
            return Err(Reject::Replayed);
        }
        // Nobody can have heard a heartbeat that was not sent yet.
        self.proven = self.proven.max(proof.min(self.number));
        let heard = &mut self.strings[string];
        let step = if heard.number == 0 { 0 } else { beat.number - heard.number };
        heard.number = beat.number;
        heard.echo = Echo { session: beat.session, number: beat.number };
        heard.came = now;
        if beat.number > self.lost_number {
            self.lost_number = beat.number;
            self.peer_lost = beat.lost;
        }
        let echoed_ns = self.sent_at(proof);
        let round_trip =
            |sent| now.checked_sub(sent)?.checked_sub(u64::from(beat.waited_us) * 1000);
        let round_trip_ns = echoed_ns.and_then(round_trip);
        Ok(Fresh { peer_lost: u32::from(self.peer_lost), step, round_trip_ns, echoed_ns })
    }

    /// When heartbeat `number` of this edge was sent, if that is still known.
    fn sent_at(&self, number: u64) -> Option<u64> {
        let is_known = number != 0 && self.number.checked_sub(number)? < SENT_KEPT;
        is_known.then(|| self.sent[(number % SENT_KEPT) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    trait LostBy {
        fn lost_by(&mut self, string: usize, beat: &Beat) -> Result<u32, Reject>;
    }

    impl LostBy for Beats {
        fn lost_by(&mut self, string: usize, beat: &Beat) -> Result<u32, Reject> {
            self.receive(0, string, beat).map(|fresh| fresh.peer_lost)
        }
    }

    fn edges() -> (Beats, Beats) {
        (Beats::new([0, 1], 11), Beats::new([1, 0], 22))
    }

    /// Two edges that have heard each other on every one of `strings`.
    fn acquainted(strings: usize) -> (Beats, Beats) {
        let (mut near, mut far) = edges();
        for _ in 0..2 {
            for string in 0..strings {
                let _first = far.lost_by(string, &near.send(0, string, 0));
                let _first = near.lost_by(string, &far.send(0, string, 0));
            }
        }
        (near, far)
    }

    #[test]
    fn two_edges_believe_each_other_after_one_exchange() {
        let (mut near, mut far) = edges();
        assert_eq!(far.lost_by(0, &near.send(0, 0, 0)), Err(Reject::Unproven));
        assert_eq!(near.lost_by(0, &far.send(0, 0, 0)), Ok(0));
        assert_eq!(far.lost_by(0, &near.send(0, 0, 2)), Ok(2));
    }

    #[test]
    fn a_heartbeat_counts_once_for_its_string_and_its_edge() {
        let (mut near, mut far) = acquainted(2);
        let beat = near.send(0, 0, 0);
        assert_eq!(far.lost_by(1, &beat), Err(Reject::Misdirected));
        assert_eq!(near.lost_by(0, &beat), Err(Reject::Misdirected));
        assert_eq!(far.lost_by(0, &beat), Ok(0));
        assert_eq!(far.lost_by(0, &beat), Err(Reject::Replayed));
        let older = near.send(0, 0, 0);
        assert_eq!(far.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        assert_eq!(far.lost_by(0, &older), Err(Reject::Replayed));
    }

    /// Each life counts from one, on every string.
    #[test]
    fn another_life_is_heard_on_all_strings() {
        let (mut near, mut far) = acquainted(2);
        for _ in 0..20 {
            assert_eq!(near.lost_by(1, &far.send(0, 1, 0)), Ok(0));
        }
        let mut reborn = Beats::new([1, 0], 33);
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Err(Reject::Unproven));
        assert_eq!(reborn.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        for string in [0, 1] {
            assert_eq!(near.lost_by(string, &reborn.send(0, string, 0)), Ok(0), "{string}");
        }
    }

    #[test]
    fn missing_numbers_are_noticed() {
        let (mut near, mut far) = acquainted(1);
        let step = |far: &mut Beats, beat: Beat| far.receive(0, 0, &beat).expect("fresh").step;
        assert_eq!(step(&mut far, near.send(0, 0, 0)), 1);
        let _lost = near.send(0, 0, 0);
        assert_eq!(step(&mut far, near.send(0, 0, 0)), 2);
    }

    #[test]
    fn an_echo_tells_the_round_trip() {
        const MS: u64 = 1_000_000;
        let (mut near, mut far) = acquainted(1);
        let there = near.send(100 * MS, 0, 0);
        far.receive(7, 0, &there).expect("fresh");
        let back = far.send(7 + 20 * MS, 0, 0);
        let fresh = near.receive(123 * MS, 0, &back).expect("fresh");
        assert_eq!(fresh.round_trip_ns, Some(3 * MS), "20 of 23 ms at the far edge");
        for _ in 0..SENT_KEPT {
            let _lost = near.send(200 * MS, 0, 0);
        }
        let fresh = near.receive(201 * MS, 0, &far.send(7 + 98 * MS, 0, 0)).expect("fresh");
        assert_eq!((fresh.round_trip_ns, fresh.echoed_ns), (None, None), "forgotten");
    }

    #[test]
    fn the_latest_word_on_lost_strings_counts() {
        let (mut near, mut far) = acquainted(2);
        let early = near.send(0, 0, 0b01);
        assert_eq!(far.lost_by(1, &near.send(0, 1, 0b10)), Ok(0b10));
        assert_eq!(far.lost_by(0, &early), Ok(0b10), "it was on its way for longer");
    }

    #[test]
    fn another_life_is_believed_and_the_old_one_is_not() {
        let (mut near, mut far) = acquainted(1);
        let recorded = far.send(0, 0, 0xff);
        let mut reborn = Beats::new([1, 0], 33);
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Err(Reject::Unproven));
        assert_eq!(reborn.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Ok(0));
        assert_eq!(near.lost_by(0, &recorded), Err(Reject::Unproven));
        // Now the recorded session is echoed; the next true heartbeat repairs it.
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Ok(0));
        assert_eq!(reborn.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        // A new life of this edge believes nothing that was sent to its earlier one.
        let mut newborn = Beats::new([0, 1], 44);
        for beat in [recorded, reborn.send(0, 0, 0)] {
            assert_eq!(newborn.lost_by(0, &beat), Err(Reject::Unproven));
        }
    }

    #[test]
    fn the_first_heartbeat_may_be_echoed_and_one_that_echoes_none_tells_nothing() {
        let (mut near, mut far) = edges();
        assert_eq!(far.receive(0, 0, &near.send(100, 0, 0)), Err(Reject::Unproven));
        let fresh = near.receive(300, 0, &far.send(0, 0, 0)).expect("fresh");
        assert_eq!((fresh.echoed_ns, fresh.step), (Some(100), 0));
        let fresh = near.receive(400, 1, &far.send(0, 1, 0)).expect("fresh");
        assert_eq!(fresh.echoed_ns, None, "nothing has come to it through this string");
    }

    /// Nobody would ever be believed again who starts anew.
    #[test]
    fn what_was_never_sent_proves_nothing() {
        let (mut near, mut far) = acquainted(1);
        let mut lie = far.send(0, 0, 0);
        lie.echo.number = u64::MAX;
        assert_eq!(near.lost_by(0, &lie), Ok(0));
        let mut reborn = Beats::new([1, 0], 33);
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Err(Reject::Unproven));
        assert_eq!(reborn.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Ok(0));
    }

    #[test]
    fn another_lifes_word_on_lost_strings_counts_from_its_first_on() {
        let (mut near, mut far) = acquainted(1);
        for _ in 0..20 {
            assert_eq!(near.lost_by(0, &far.send(0, 0, 0b01)), Ok(0b01));
        }
        let mut reborn = Beats::new([1, 0], 33);
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0)), Err(Reject::Unproven));
        assert_eq!(reborn.lost_by(0, &near.send(0, 0, 0)), Ok(0));
        assert_eq!(near.lost_by(0, &reborn.send(0, 0, 0b10)), Ok(0b10));
    }

    #[test]
    fn what_is_echoed_has_waited_since_it_came() {
        const US: u64 = 1000;
        let (mut near, mut far) = edges();
        assert_eq!(far.receive(1000 * US, 0, &near.send(0, 0, 0)), Err(Reject::Unproven));
        let back = far.send(1200 * US, 0, 0);
        assert_eq!(back.waited_us, 200, "whether it was believed or not");
        near.receive(0, 0, &back).expect("fresh");
        far.receive(2000 * US, 0, &near.send(0, 0, 0)).expect("fresh");
        assert_eq!(far.send(2300 * US, 0, 0).waited_us, 300);
    }
}
