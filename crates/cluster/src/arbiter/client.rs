//! A member's side of the arbiter: one request at a time, to its addresses in turn.
//!
//! A try that is not answered in time may have done its work, or may do it later. So it is
//! never taken for lost: the record is read, and the change asked for again only if the
//! record is still the expected one. Asking again is harmless, because a change is won by
//! whoever finds itself in the record. Answers are matched by number: one that comes after
//! its try was given up says nothing.
//!
//! A change needs a ticket, which is a proof that this member hears the arbiter. Who wants one
//! says since when the arbiter must have been heard: since it began to doubt what it hears. If
//! it was not, the change is asked for without a ticket, and refused with one: that takes as
//! long as to read first, and an arbiter that gives such a change away is at fault.

use super::{Arbiter, Asker, Call, Record, Refusal, Reply, rank_of};
use crate::Nanos;

/// How a member asks its arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Number of addresses of the arbiter, at least one.
    pub endpoints: usize,
    /// Time that each try has. A compare-and-swap that was sent to a member of etcd without
    /// a leader just hangs.
    pub try_out: Nanos,
    /// Time between a refusal and the next try.
    pub pause: Nanos,
    /// Time between two reads when nothing is to be changed: somebody has to notice that the
    /// arbiter is away before it is needed.
    pub poll: Nanos,
}

impl ClientSettings {
    /// For an arbiter that answers within 100 ms. Its tickets are good for half a second
    /// ([`super::witness::WitnessLimits`]): who reads more often needs no other one for a change.
    pub const STANDARD: Self = Self {
        endpoints: 1,
        try_out: Nanos::from_ms(100),
        pause: Nanos::from_ms(10),
        poll: Nanos::from_ms(350),
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    expected: Option<Record>,
    next: Record,
    /// Whether a try was not answered, so that the record is to be read first.
    in_doubt: bool,
    /// Whether a try was refused for want of a ticket.
    unproven: bool,
}

#[derive(Clone, Copy, Debug)]
struct Try {
    number: u64,
    until: Nanos,
    swaps: bool,
}

/// The machine; see the module.
///
/// # Contract
/// Call `handle_timeout` at `next_deadline`, and after `change` and `poll_now`; give every
/// answer to `handle_answer`.
#[derive(Clone, Debug)]
pub struct Client {
    settings: ClientSettings,
    asker: Asker,
    number: u64,
    endpoint: usize,
    waits: Option<Try>,
    next_at: Nanos,
    wish: Option<Wish>,
    unanswered: u32,
    answered: Option<Nanos>,
    /// Whether the last answer was a refusal that may pass, other than one that brings a ticket.
    refused: bool,
}

impl Client {
    /// A client that reads the record at once.
    #[must_use]
    pub fn new(now: Nanos, settings: ClientSettings, asker: Asker) -> Self {
        assert!(settings.endpoints > 0, "an arbiter has an address");
        Self {
            settings,
            asker,
            number: 0,
            endpoint: 0,
            waits: None,
            next_at: now,
            wish: None,
            unanswered: 0,
            answered: None,
            refused: false,
        }
    }

    /// What this client says of itself.
    #[must_use]
    pub fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Notes the newest record.
    pub fn set_known(&mut self, known: Record) {
        assert!(known.rank() > rank_of(self.asker.known.as_ref()), "ranks only grow");
        self.asker.known = Some(known);
    }

    /// Notes which arbiter is meant from now on.
    pub fn set_lineage(&mut self, lineage: u64) {
        self.asker.lineage = lineage;
    }

    /// Wants the record to become `next`, and nothing else that was wanted before. What a try
    /// for that does, or has done, will be read. `since`: what was heard of the arbiter before
    /// proves nothing.
    pub fn change(&mut self, now: Nanos, since: Nanos, expected: Option<Record>, next: Record) {
        if !self.is_heard_since(since) {
            self.asker.ticket = 0;
        }
        self.wish = Some(Wish { expected, next, in_doubt: false, unproven: false });
        (self.waits, self.next_at) = (None, now);
    }

    /// Wants nothing changed any more. A try that is under way may still be granted.
    pub fn give_up(&mut self, now: Nanos) {
        if self.wish.take().is_some() {
            self.waits = None;
            self.poll_now(now);
        }
    }

    /// Wants to know the record soon.
    pub fn poll_now(&mut self, now: Nanos) {
        if self.waits.is_none() {
            self.next_at = self.next_at.min(now);
        }
    }

    /// Whether a change is wanted.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.wish.is_some()
    }

    /// Number of tries since the last answer, but for one that still has time.
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Whether the arbiter has refused what is wanted, and may grant it later.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.wish.is_some() && self.refused
    }

    /// Whether the arbiter was heard since the last read was due.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.answered.is_some() && self.unanswered == 0
    }

    /// Whether the arbiter has answered since then.
    #[must_use]
    pub fn is_heard_since(&self, since: Nanos) -> bool {
        self.answered >= Some(since)
    }

    /// Whether a try is under way.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.waits.is_some()
    }

    /// When [`Client::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.waits.map_or(self.next_at, |waits| waits.until)
    }

    /// Gives up a try that was not answered, and begins the next one that is due.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut impl Arbiter) {
        if let Some(waits) = self.waits.filter(|waits| waits.until <= now) {
            self.waits = None;
            self.unanswered = self.unanswered.saturating_add(1);
            self.endpoint = (self.endpoint + 1) % self.settings.endpoints;
            self.next_at = now;
            if let Some(wish) = self.wish.as_mut().filter(|_| waits.swaps) {
                wish.in_doubt = true;
            }
        }
        if self.waits.is_some() || now < self.next_at {
            return;
        }
        self.number += 1;
        let call = Call { endpoint: self.endpoint, number: self.number };
        let wish = self.wish.as_ref().filter(|wish| !wish.in_doubt);
        let until = now.plus(self.settings.try_out);
        self.waits = Some(Try { number: self.number, until, swaps: wish.is_some() });
        match wish {
            Some(Wish { expected, next, .. }) => {
                out.compare_and_swap(call, &self.asker, expected.as_ref(), next);
            }
            None => out.read(call, &self.asker),
        }
    }

    /// Takes an answer. False if it is none to the try that is under way: then it says
    /// nothing.
    pub fn handle_answer(&mut self, now: Nanos, number: u64, reply: &Reply) -> bool {
        if self.waits.is_none_or(|waits| waits.number != number) {
            return false;
        }
        (self.waits, self.unanswered, self.answered) = (None, 0, Some(now));
        self.next_at = now.plus(self.settings.poll);
        self.asker.ticket = reply.ticket;
        let may_pass = |it: &Refusal| it.may_pass() && *it != Refusal::Unproven;
        self.refused = reply.outcome.as_ref().is_err_and(may_pass);
        match (&mut self.wish, &reply.outcome) {
            (None, Ok(_)) => {}
            (Some(wish), Ok(record)) if *record == wish.expected => {
                // The swap was not done: it is asked for, for the first time or again.
                wish.in_doubt = false;
                self.next_at = now;
            }
            (Some(_), Ok(_)) => self.wish = None,
            // The reply brings the ticket; once, so that no arbiter makes this a storm.
            (Some(wish), Err(Refusal::Unproven)) if !wish.unproven => {
                (wish.unproven, self.next_at) = (true, now);
            }
            (_, Err(refusal)) => {
                let ClientSettings { pause, poll, .. } = self.settings;
                self.next_at = now.plus(if refusal.may_pass() { pause } else { poll });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
