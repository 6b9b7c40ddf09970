//! A server that speaks alone, and attempts to join it: who has come, and when the next one
//! may be made.

use super::PrimaryHost;
use crate::host::{End, MemberEvent, Turn};
use crate::nanos;
use crate::pairing::{Pairing, Side};
use crate::timing::doubled;
use crate::timing::primary::{ALONE_LOOK, IN_STEP_LASTS, REJOIN_PAUSE, REJOIN_PAUSE_MAX};
use holdfast_cluster::Nanos;

/// What a member hears that comes too soon.
pub const AGAIN: &str = "an attempt to join has failed; the next one may be made soon";

/// A server that speaks alone.
#[derive(Debug)]
pub(super) struct Alone {
    door: Pairing,
    /// Attempts to join that have failed in a row, and when the next one may be.
    pub(super) failed: u32,
    again_at: Nanos,
    /// Why the last one has.
    why: String,
}

impl Alone {
    pub(super) fn new(now: Nanos) -> Self {
        Self { door: Pairing::new(Side::Alone), failed: 0, again_at: now, why: String::new() }
    }

    /// As [`new`](Self::new), after a backup that has given up, and that had joined if it
    /// was `tried`: then nothing has come of it, unless it has lasted.
    pub(super) fn after(tried: Option<Tried>, now: Nanos) -> Self {
        let lasted = |since: Nanos| now.since(since) >= nanos(IN_STEP_LASTS);
        match tried.filter(|tried| !tried.in_step.is_some_and(lasted)) {
            Some(Tried { failed, .. }) => {
                let mut alone = Self { failed, ..Self::new(now) };
                alone.fail(now, "");
                alone
            }
            None => Self::new(now),
        }
    }

    /// An attempt has failed: when the next one may be.
    pub(super) fn fail(&mut self, now: Nanos, why: &str) {
        self.why = why.to_owned();
        let pause = doubled(REJOIN_PAUSE, self.failed, REJOIN_PAUSE_MAX);
        self.failed += 1;
        self.again_at = now.plus(nanos(pause));
        self.door = Pairing::new(Side::Alone);
    }
}

/// The join that the backup has come by, until that is lost.
#[derive(Debug)]
pub(super) struct Tried {
    /// Attempts that had failed before it.
    pub(super) failed: u32,
    /// Since when the backup is in step, once it is.
    pub(super) in_step: Option<Nanos>,
}

/// Whether somebody has come that may join (`None`), or when to look again.
pub(super) fn knock(alone: &mut Box<Alone>, host: &mut impl PrimaryHost) -> Option<Turn> {
    let now = host.now();
    if now < alone.again_at {
        host.turn_away(&match alone.why.as_str() {
            "" => AGAIN.to_owned(),
            why => format!("{AGAIN}: {why}"),
        });
        return Some(Turn::after(ALONE_LOOK, now));
    }
    match alone.door.turn(false, host) {
        Turn::End(End::Met { .. }) => None,
        Turn::End(End::Failed(reason)) => {
            host.show(MemberEvent::JoinFailed { reason: &reason });
            alone.fail(now, &reason);
            Some(Turn::after(ALONE_LOOK, now))
        }
        turn => Some(turn),
    }
}
