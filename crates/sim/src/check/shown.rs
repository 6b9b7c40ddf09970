//! Is what members and edge say of themselves true? `protected` is said only while
//! primary and backup serve and follow each other, or so shortly after that nobody can
//! know better; it is said while they do; and only who speaks says that it does. Each
//! daemon tells the others what it knows by itself, and shows the worst of what it knows
//! and hears: so a pair is shown as protected where both say so.
//!
//! A replica that hangs counts as following: that is another judge's (`liveness`).

use crate::member::HEARTBEAT;
use crate::world::NAMES;
use crate::{Ns, ns};
use holdfast_cluster::detector::{DECLARE_AFTER, PATIENCE_MAX};
use holdfast_cluster::watch::ALONE_PERIODS;
use holdfast_member::timing::{primary, takeover};

/// Time between two looks, ns.
pub const LOOK_EVERY: Ns = 25_000_000;
/// So long `protected` may be said of what is over, ns, before anything has come late:
/// one witness alone has to miss the other that long, and what is said is that old.
pub const OVER_MAX: Ns =
    (DECLARE_AFTER + ALONE_PERIODS + 1) * HEARTBEAT + ns(primary::REPORT_EVERY) + LOOK_EVERY;
/// As [`OVER_MAX`], ns, once members have seen that heartbeats come late.
pub const OVER_LATE_MAX: Ns = OVER_MAX + (PATIENCE_MAX - DECLARE_AFTER) * HEARTBEAT;
/// So long a pair may stand before all say so, ns, and so long who is replaced, or whose
/// server has ended, may say that it speaks: an edge that was started again is found
/// within a second, and who is alone looks at its server that seldom.
pub const UNSAID_MAX: Ns = 1_000_000_000 + ns(takeover::IDLE_LOOK) + LOOK_EVERY;

/// What a member says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// Nothing that could be wrong: it waits, gives up, or has just begun.
    #[default]
    Waits,
    Protected {
        speaks: bool,
    },
    /// It speaks, unprotected.
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

/// What is so, for one that shows something.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// Whom it hears.
    pub hears: [bool; 3],
    /// It can know: it runs, and its ways to all others are whole.
    pub can_know: bool,
    /// The pair stands.
    pub protected: bool,
    /// It is who speaks, and its server lives.
    pub speaks: bool,
}

/// Since when something is so that should not be.
#[derive(Clone, Copy, Debug, Default)]
struct Wrong {
    over: Option<Ns>,
    unsaid: Option<Ns>,
    voice: Option<Ns>,
}

/// See the module; the edge comes after the members.
#[derive(Debug, Default)]
pub struct Shown {
    said: [Said; 3],
    /// What each has heard last of each.
    heard: [[Said; 3]; 3],
    wrong: [Wrong; 3],
}

/// Notes since when something is; how long that is.
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

    /// Compares what one shows with what is so; `late`: heartbeats may have come late.
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
        // Once is enough.
        *wrong = Wrong::default();
        let lasted = over.max(unsaid).max(voice) / 1_000_000;
        Some(format!("{} {what}, for {lasted} ms", NAMES[who]))
    }
}
