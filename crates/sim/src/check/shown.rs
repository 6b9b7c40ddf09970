//! Whether the status that members and edge show is true. `protected` must be shown while the
//! primary serves and the backup follows it, and at no other time, except so shortly afterwards
//! that nobody can know better. Only the current member may show that it serves. Each daemon tells
//! the others what it knows by itself, and shows the worst of what it knows and hears; so a pair is
//! shown as protected when all say so.
//!
//! A replica that hangs counts as following: it is the matter of another check (`liveness`).

use crate::member::HEARTBEAT;
use crate::world::NAMES;
use crate::{Ns, ns};
use holdfast_cluster::detector::{DECLARE_AFTER, PATIENCE_MAX};
use holdfast_cluster::watch::ALONE_PERIODS;
use holdfast_member::timing::{primary, takeover};

/// Time between two looks, in ns.
pub const LOOK_EVERY: Ns = 25_000_000;
/// Longest time in ns for which `protected` may still be shown after it is over, while no
/// heartbeat has ever come late: the time in which a single witness misses the other member, and
/// the age of the last report.
pub const OVER_MAX: Ns =
    (DECLARE_AFTER + ALONE_PERIODS + 1) * HEARTBEAT + ns(primary::REPORT_EVERY) + LOOK_EVERY;
/// Like [`OVER_MAX`], in ns, once members have seen that heartbeats come late.
pub const OVER_LATE_MAX: Ns = OVER_MAX + (PATIENCE_MAX - DECLARE_AFTER) * HEARTBEAT;
/// Longest time in ns until all hosts show that a pair is protected, and for which a replaced
/// member, or one whose server has ended, may still show that it serves: a restarted edge is found
/// within a second, and a member that runs alone looks at its server every `IDLE_LOOK`.
pub const UNSAID_MAX: Ns = 1_000_000_000 + ns(takeover::IDLE_LOOK) + LOOK_EVERY;

/// The state that a member reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// It waits, has given up, or has just begun: nothing that could be wrong.
    #[default]
    Waits,
    Protected {
        speaks: bool,
    },
    /// It serves, unprotected.
    Alone,
}

impl Said {
    fn is_protected(self) -> bool {
        matches!(self, Self::Protected { .. })
    }

    fn speaks(self) -> bool {
        matches!(self, Self::Protected { speaks: true } | Self::Alone)
    }
}

/// The truth for a host that shows its status.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// The hosts that it hears.
    pub hears: [bool; 3],
    /// Whether it can know the truth: it runs, and its paths to all others work.
    pub can_know: bool,
    /// Whether the pair is protected.
    pub protected: bool,
    /// Whether it is the current member, and its server lives.
    pub speaks: bool,
}

/// Since when something is wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Wrong {
    over: Option<Ns>,
    unsaid: Option<Ns>,
    voice: Option<Ns>,
}

/// What each host shows; see the module. The edge is the last one, after the members.
#[derive(Debug, Default)]
pub struct Shown {
    said: [Said; 3],
    /// What each host has last heard from each other.
    heard: [[Said; 3]; 3],
    wrong: [Wrong; 3],
}

/// Notes since when `is` holds; returns for how long, in ns.
fn lasts(since: &mut Option<Ns>, is: bool, now: Ns) -> Ns {
    *since = is.then(|| since.unwrap_or(now));
    since.map_or(0, |since| now - since)
}

impl Shown {
    pub fn says(&mut self, who: usize, said: Said) {
        self.said[who] = said;
    }

    pub fn said(&self, who: usize) -> Said {
        self.said[who]
    }

    /// Compares what a host shows with the truth; `late`: heartbeats may have come
    /// late.
    pub fn look(&mut self, now: Ns, who: usize, truth: Truth, late: bool) -> Option<String> {
        let Truth { hears, can_know, protected, .. } = truth;
        for (other, said) in self.said.iter().enumerate().filter(|(other, _)| hears[*other]) {
            self.heard[who][other] = *said;
        }
        let shows = self.heard[who].iter().all(|said| said.is_protected());
        let speaks = self.said[who].speaks();
        let wrong = &mut self.wrong[who];
        let over = lasts(&mut wrong.over, can_know && shows && !protected, now);
        let unsaid = lasts(&mut wrong.unsaid, can_know && !shows && protected, now);
        let voice = lasts(&mut wrong.voice, can_know && speaks && !truth.speaks, now);
        let over_max = if late { OVER_LATE_MAX } else { OVER_MAX };
        let what = match () {
            () if over > over_max => "shows `protected`, and has no right to",
            () if unsaid > UNSAID_MAX => "does not show `protected`, though all is well",
            () if voice > UNSAID_MAX => "says that it speaks, and does not",
            () => return None,
        };
        // One complaint is enough.
        *wrong = Wrong::default();
        let lasted = over.max(unsaid).max(voice) / 1_000_000;
        Some(format!("{} {what}, for {lasted} ms", NAMES[who]))
    }
}
