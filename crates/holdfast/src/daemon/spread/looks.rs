//! When a host server's listeners are looked at: five times a second, and sooner
//! after a bind. A UDP socket serves from its bind on, a TCP socket from listen()
//! on, which follows within microseconds or, in servers that prepare themselves in
//! between, much later.

use std::time::{Duration, Instant};

/// How often without a bind: how soon a service that leaves is withdrawn.
const EVERY: Duration = Duration::from_millis(200);
/// After a bind, so many milliseconds.
const AFTER_BIND_MS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];
/// A look that took long is followed by so many times its duration of rest, whatever
/// is bound: a daemon that only looked would miss its heartbeats.
const REST: u32 = 4;

/// The next look, and why.
#[derive(Debug)]
pub(super) struct Looks {
    due: Instant,
    /// None before it.
    not_before: Instant,
    /// The last bind, until the looks after it are over.
    bound: Option<Instant>,
}

impl Looks {
    /// The first look is due at once.
    pub fn new(now: Instant) -> Self {
        Self { due: now, not_before: now, bound: None }
    }

    /// When to look next.
    pub fn due(&self) -> Instant {
        self.due.max(self.not_before)
    }

    /// A bind was noticed.
    pub fn bind(&mut self, now: Instant) {
        self.bound = Some(now);
        self.due = self.due.min(now + Duration::from_millis(AFTER_BIND_MS[0]));
    }

    /// Whether a look now is one of those after a bind.
    pub fn follow_a_bind(&self) -> bool {
        self.bound.is_some()
    }

    /// A look has taken from `began` to `now`.
    pub fn looked(&mut self, began: Instant, now: Instant) {
        self.not_before = now + (now - began) * REST;
        let next = self.bound.and_then(|bound| {
            let looks = AFTER_BIND_MS.map(|ms| bound + Duration::from_millis(ms));
            looks.into_iter().find(|at| *at > began)
        });
        if next.is_none() {
            self.bound = None;
        }
        self.due = next.unwrap_or(began + EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds at which it is looked from `from` until `to`, each look
    /// taking so long.
    fn looks(looks: &mut Looks, start: Instant, to: u64, took: Duration) -> Vec<u128> {
        let mut at = Vec::new();
        while looks.due() <= start + Duration::from_millis(to) {
            let began = looks.due();
            looks.looked(began, began + took);
            at.push((began - start).as_millis());
        }
        at
    }

    #[test]
    fn a_bind_brings_looks_forward_for_a_while() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut plan = Looks::new(start);
        assert_eq!(looks(&mut plan, start, 450, Duration::ZERO), [0, 200, 400]);
        plan.bind(ms(450));
        assert!(plan.follow_a_bind());
        let after = looks(&mut plan, start, 800, Duration::ZERO);
        assert_eq!(after, [451, 452, 455, 460, 470, 500, 550, 750]);
        assert!(!plan.follow_a_bind());
    }

    #[test]
    fn a_bind_while_looking_begins_anew() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut plan = Looks::new(start);
        plan.bind(ms(0));
        assert_eq!(looks(&mut plan, start, 20, Duration::ZERO), [0, 1, 2, 5, 10, 20]);
        plan.bind(ms(30));
        assert_eq!(looks(&mut plan, start, 50, Duration::ZERO), [31, 32, 35, 40, 50]);
    }

    #[test]
    fn however_much_is_bound_there_is_time_for_other_work() {
        let start = Instant::now();
        let took = Duration::from_millis(10);
        let mut plan = Looks::new(start);
        let mut looked = 0;
        for at in (0..1000).map(Duration::from_millis) {
            plan.bind(start + at);
            if plan.due() <= start + at {
                plan.looked(start + at, start + at + took);
                looked += 1;
            }
        }
        assert!((15..=20).contains(&looked), "{looked} looks of 10 ms in a second");
    }
}
