//! A server that speaks alone: who comes to join it, and when the next attempt may be made.

use super::PrimaryHost;
use crate::host::{End, MemberEvent, Turn};
use crate::nanos;
use crate::pairing::{Pairing, Side};
use crate::timing::doubled;
use crate::timing::primary::{ALONE_LOOK, IN_STEP_LASTS, REJOIN_PAUSE, REJOIN_PAUSE_MAX};
use holdfast_cluster::Nanos;

/// Reason to refuse a member that comes too soon after a failed attempt.
pub const AGAIN: &str = "an attempt to join has failed; the next one may be made soon";

/// A server that speaks alone.
#[derive(Debug)]
pub(super) struct Alone {
    door: Pairing,
    /// Attempts to join that have failed in a row.
    pub(super) failed: u32,
    /// When the next attempt to join may be made.
    again_at: Nanos,
    /// Why the last attempt failed.
    why: String,
}

impl Alone {
    pub(super) fn new(now: Nanos) -> Self {
        Self { door: Pairing::new(Side::Alone), failed: 0, again_at: now, why: String::new() }
    }

    /// As [`new`](Self::new), after a backup that has given up. If it came by a join (`tried`),
    /// that counts as a failed attempt, unless it was in step for long enough.
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

    /// Notes that an attempt to join has failed, and sets when the next one may be made.
    pub(super) fn fail(&mut self, now: Nanos, why: &str) {
        self.why = why.to_owned();
        let pause = doubled(REJOIN_PAUSE, self.failed, REJOIN_PAUSE_MAX);
        self.failed += 1;
        self.again_at = now.plus(nanos(pause));
    }
}

/// The join by which the backup came, kept until the backup is lost.
#[derive(Debug)]
pub(super) struct Tried {
    /// Attempts in a row that had failed before this join.
    pub(super) failed: u32,
    /// Since when the backup has been in step, once it is.
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
