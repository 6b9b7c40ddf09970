//! Which messages of the other member are fresh. As with heartbeats, every life of a member
//! has a random session and numbers what it sends; a message counts if its number is higher
//! than any before in the session that is believed, and a session is believed once it has
//! echoed a number of ours that none has echoed before. So what was recorded earlier proves
//! nothing.

use super::message::{Echo, Kind, Message};
use crate::Nanos;

/// Number of questions whose sending times are remembered. A grant that took longer counts
/// for nothing.
const ASKS_KEPT: usize = 16;

/// Why a message does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    #[error("it is not from the other member to this one")]
    Misdirected,
    #[error("it, or a later one, has been here before")]
    Replayed,
    #[error("its session has not proven yet that it is current")]
    Unproven,
}

/// The messages of one life, to and from the other member.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Numbers of this member and of the other one.
    sides: [u8; 2],
    session: u64,
    number: u64,
    /// The session that is believed (0: none), and the highest number in it.
    heard: Echo,
    /// Highest number of ours that was ever echoed.
    proven: u64,
    /// Number and sending time of the latest questions.
    asks: [(u64, Nanos); ASKS_KEPT],
    next_ask: usize,
    /// Number and time of a message that the other one has not echoed; about the oldest one.
    unheard: Option<(u64, Nanos)>,
}

impl Link {
    pub fn new(sides: [u8; 2], session: u64) -> Self {
        assert!(session != 0 && sides[0] != sides[1], "two members, each with a life");
        let (heard, asks) = (Echo::default(), [(0, Nanos(0)); ASKS_KEPT]);
        let (number, proven, next_ask, unheard) = (0, 0, 0, None);
        Self { sides, session, number, heard, proven, asks, next_ask, unheard }
    }

    /// The session that is believed; 0: none.
    pub fn believed(&self) -> u64 {
        self.heard.session
    }

    /// The next message; what it tells of the record is the caller's.
    pub fn send(&mut self, now: Nanos, kind: Kind) -> Message {
        let message = self.next(now, kind, self.heard);
        if kind == Kind::Ask {
            self.asks[self.next_ask] = (self.number, now);
            self.next_ask = (self.next_ask + 1) % ASKS_KEPT;
        }
        message
    }

    /// The answer to a message whose session is not believed yet, so that it can prove
    /// itself.
    pub fn answer(&mut self, now: Nanos, to: &Message) -> Message {
        self.next(now, Kind::Word, Echo { session: to.session, number: to.number })
    }

    fn next(&mut self, now: Nanos, kind: Kind, echo: Echo) -> Message {
        self.number += 1;
        self.unheard.get_or_insert((self.number, now));
        let ([from, to], session, number) = (self.sides, self.session, self.number);
        Message { from, to, kind, session, number, echo, ..Message::NOTHING }
    }

    /// Takes a message. Nothing has changed if it does not count. `keeps`: whether no other
    /// session is believed now.
    pub fn receive(&mut self, message: &Message, keeps: bool) -> Result<(), Reject> {
        if [message.to, message.from] != self.sides {
            return Err(Reject::Misdirected);
        }
        let Message { session, number, echo, .. } = *message;
        // Nobody can have heard what was not sent yet.
        let is_ours = echo.session == self.session && echo.number <= self.number;
        let proof = if is_ours { echo.number } else { 0 };
        if session != self.heard.session {
            if keeps || proof <= self.proven {
                return Err(Reject::Unproven);
            }
        } else if number <= self.heard.number {
            return Err(Reject::Replayed);
        }
        self.heard = Echo { session, number };
        self.proven = self.proven.max(proof);
        self.unheard = self.unheard.filter(|unheard| unheard.0 > proof);
        Ok(())
    }

    /// Since when what this member sends is not heard by the other one, as far as that says.
    pub fn unheard_since(&self) -> Option<Nanos> {
        self.unheard.map(|unheard| unheard.1)
    }

    /// Forgives the other one what it has not heard, up to this time.
    pub fn forgive(&mut self, until: Nanos) {
        self.unheard = self.unheard.map(|(number, at)| (number, at.max(until)));
    }

    /// When the question was sent that this message echoes; `None` if it echoes none that is
    /// still remembered.
    pub fn asked_at(&self, message: &Message) -> Option<Nanos> {
        let Echo { session, number } = message.echo;
        let is_it = |ask: &&(u64, Nanos)| number != 0 && ask.0 == number;
        self.asks.iter().find(is_it).filter(|_| session == self.session).map(|ask| ask.1)
    }

    /// When the latest question was sent.
    pub fn last_ask(&self) -> Nanos {
        self.asks[(self.next_ask + ASKS_KEPT - 1) % ASKS_KEPT].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        (Link::new([1, 2], 11), Link::new([2, 1], 22))
    }

    fn acquainted() -> (Link, Link) {
        let (mut one, mut other) = pair();
        let first = one.send(Nanos(0), Kind::Word);
        assert_eq!(other.receive(&first, false), Err(Reject::Unproven));
        let answer = other.answer(Nanos(0), &first);
        assert_eq!(one.receive(&answer, false), Ok(()));
        let proof = one.send(Nanos(0), Kind::Word);
        assert_eq!(other.receive(&proof, false), Ok(()));
        assert_eq!((one.believed(), other.believed()), (22, 11));
        (one, other)
    }

    #[test]
    fn a_message_counts_once_in_order_and_for_its_receiver() {
        let (mut one, mut other) = acquainted();
        let early = one.send(Nanos(0), Kind::Ask);
        let late = one.send(Nanos(0), Kind::Ask);
        assert_eq!(one.receive(&late, false), Err(Reject::Misdirected));
        let stranger = Message { from: 3, ..late };
        assert_eq!(other.receive(&stranger, false), Err(Reject::Misdirected));
        assert_eq!(other.receive(&late, false), Ok(()));
        assert_eq!(other.receive(&late, false), Err(Reject::Replayed));
        assert_eq!(other.receive(&early, false), Err(Reject::Replayed));
    }

    #[test]
    fn what_an_earlier_life_said_proves_nothing() {
        let (mut one, mut other) = acquainted();
        let recorded = one.send(Nanos(0), Kind::Resign);
        let mut reborn = Link::new([1, 2], 33);
        assert_eq!(other.receive(&reborn.send(Nanos(0), Kind::Word), false), Err(Reject::Unproven));
        assert_eq!(reborn.receive(&other.send(Nanos(0), Kind::Word), false), Err(Reject::Unproven));
        let ask = reborn.send(Nanos(0), Kind::Word);
        let answer = other.answer(Nanos(0), &ask);
        assert_eq!(reborn.receive(&answer, false), Ok(()));
        assert_eq!(other.receive(&reborn.send(Nanos(0), Kind::Word), false), Ok(()));
        assert_eq!(other.receive(&recorded, false), Err(Reject::Unproven));
    }

    #[test]
    fn what_was_never_sent_proves_nothing() {
        let (_, mut other) = acquainted();
        let mut stranger = Link::new([1, 2], 44);
        let mut guess = stranger.send(Nanos(0), Kind::Word);
        guess.echo = Echo { session: 22, number: 1000 };
        assert_eq!(other.receive(&guess, false), Err(Reject::Unproven));
    }

    #[test]
    fn a_grant_is_for_the_time_at_which_its_own_question_was_sent() {
        let (mut one, mut other) = acquainted();
        let ask = one.send(Nanos(70), Kind::Ask);
        other.receive(&ask, false).expect("fresh");
        let grant = other.send(Nanos(5), Kind::Grant);
        assert_eq!(one.send(Nanos(90), Kind::Ask).number, ask.number + 1);
        assert_eq!((one.asked_at(&grant), one.last_ask()), (Some(Nanos(70)), Nanos(90)));
        let others = Message { echo: Echo { session: 12, ..grant.echo }, ..grant };
        assert_eq!(one.asked_at(&others), None, "another life's");
        let none = Message { echo: Echo { session: 11, number: 0 }, ..grant };
        assert_eq!(one.asked_at(&none), None);
        let word = one.send(Nanos(0), Kind::Word).number;
        let of_word = Message { echo: Echo { session: 11, number: word }, ..grant };
        assert_eq!(one.asked_at(&of_word), None, "that was no question");
        let last = (0..ASKS_KEPT).map(|_| one.send(Nanos(99), Kind::Ask).number).last();
        assert_eq!(last, Some(word + ASKS_KEPT as u64));
        assert_eq!(one.asked_at(&grant), None, "forgotten");
    }

    #[test]
    fn what_the_other_one_has_not_heard_is_known_by_what_it_echoes() {
        let (mut one, mut other) = acquainted();
        assert_eq!(other.unheard_since(), None);
        let ask = one.send(Nanos(10), Kind::Ask);
        other.receive(&ask, false).expect("fresh");
        assert_eq!(other.unheard_since(), None);
        let grant = other.send(Nanos(11), Kind::Grant);
        assert_eq!(other.unheard_since(), Some(Nanos(11)));
        other.send(Nanos(21), Kind::Grant);
        // Its questions come, and echo nothing of these.
        for at in [20, 30] {
            other.receive(&one.send(Nanos(at), Kind::Ask), false).expect("fresh");
            assert_eq!(other.unheard_since(), Some(Nanos(11)));
        }
        other.forgive(Nanos(5));
        assert_eq!(other.unheard_since(), Some(Nanos(11)), "no more than it was");
        other.forgive(Nanos(15));
        assert_eq!(other.unheard_since(), Some(Nanos(15)));
        one.receive(&grant, false).expect("fresh");
        other.receive(&one.send(Nanos(40), Kind::Ask), false).expect("fresh");
        assert_eq!(other.unheard_since(), None, "it hears, though not each of them");
        other.forgive(Nanos(50));
        assert_eq!(other.unheard_since(), None);
    }
}
