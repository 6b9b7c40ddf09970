//! When a host server's listeners are looked at: five times a second, and sooner
//! after a bind. A UDP socket serves from its bind on, a TCP socket from listen()
//! on, which follows within microseconds or, in servers that prepare themselves in
//! between, much later.

use crate::nanos;
use crate::timing::host_server::{AFTER_BIND_MS, LOOK_EVERY, REST};
use holdfast_cluster::Nanos;

/// The next look, and why.
#[derive(Debug)]
pub(super) struct Looks {
    due: Nanos,
    /// The end of the pause after the last look.
    not_before: Nanos,
    /// The last bind, until the looks after it are done.
    bound: Option<Nanos>,
}

impl Looks {
    /// Begins with a look that is due at once.
    pub fn new(now: Nanos) -> Self {
        Self { due: now, not_before: now, bound: None }
    }

    /// When to look next.
    pub fn due(&self) -> Nanos {
        self.due.max(self.not_before)
    }

    /// Notes that a bind was noticed.
    pub fn bind(&mut self, now: Nanos) {
        self.bound = Some(now);
        self.due = self.due.min(now.plus(Nanos::from_ms(AFTER_BIND_MS[0])));
    }

    /// Whether a look now is one of those after a bind.
    pub fn follow_a_bind(&self) -> bool {
        self.bound.is_some()
    }

    /// Notes that a look has taken from `began` to `now`.
    pub fn looked(&mut self, began: Nanos, now: Nanos) {
        self.not_before = now.plus(Nanos(now.since(began).0 * REST));
        let next = self.bound.and_then(|bound| {
            let looks = AFTER_BIND_MS.map(|ms| bound.plus(Nanos::from_ms(ms)));
            looks.into_iter().find(|at| *at > began)
        });
        if next.is_none() {
            self.bound = None;
        }
        self.due = next.unwrap_or(began.plus(nanos(LOOK_EVERY)));
    }
}
