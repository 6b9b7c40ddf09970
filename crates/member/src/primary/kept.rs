//! A server that speaks alone, and can be rebuilt on its own host (decision 31): its output waits
//! for what is kept of it as it would for a backup. When a member comes to join, it is let in, and
//! nothing waits any more.

use super::alone::{Alone, knock};
use super::apart::{Stage, rest_replaced};
use super::join::ANOTHER;
use super::keeper::Keeper;
use super::{PrimaryHost, PrimaryMachine};
use crate::backup::{BackupMachine, TWICE};
use crate::host::{End, Fall, MemberEvent, Turn};
use crate::nanos;
use crate::timing::doubled;
use crate::timing::primary::{
    ALONE_LOOK, CONFIRM_LOOK, FALL_MAX, IDLE_LOOK, KEEP_AFTER, KEEP_LASTS, KEEP_PAUSE,
    KEEP_PAUSE_MAX,
};
use holdfast_cluster::Nanos;
use holdfast_wire::message::Message;

const COPIED: &str = "the server is being copied, to be rebuilt if it falls";
const LET_IN: &str = "another member joins";
const NOT_YET: &str = "not all was kept yet that it could be rebuilt of";

/// Attempts to keep what a server can be rebuilt from.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// Attempts that have failed in a row.
    failed: u32,
    /// When the next attempt may be made.
    again_at: Option<Nanos>,
    /// Whether the configuration wants nothing kept.
    is_off: bool,
    /// Since when everything is kept.
    since: Option<Nanos>,
    /// When to look next whether a member has come.
    door_at: Nanos,
}

impl Keeping {
    /// Notes that everything is kept from now on.
    pub(super) fn begins(&mut self, now: Nanos, took: Nanos) -> MemberEvent<'static> {
        self.since = Some(now);
        MemberEvent::Keeps { took }
    }

    /// Notes that an attempt has failed or nothing is kept any more, and sets when to try again.
    pub(super) fn fail(&mut self, reason: &str, now: Nanos, host: &mut impl PrimaryHost) {
        if self.since.take().is_some_and(|since| now.since(since) >= nanos(KEEP_LASTS)) {
            self.failed = 0;
        }
        let pause = doubled(KEEP_PAUSE, self.failed, KEEP_PAUSE_MAX);
        self.failed += 1;
        self.again_at = Some(now.plus(nanos(pause)));
        host.show(MemberEvent::KeepsNot { reason });
    }
}

impl PrimaryMachine {
    /// Begins to keep what the server can be rebuilt from, if nobody has come for a while.
    pub(super) fn keep_if_due(
        &mut self,
        alone: Box<Alone>,
        turn: Turn,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        let now = host.now();
        let due = *self.keeping.again_at.get_or_insert_with(|| now.plus(nanos(KEEP_AFTER)));
        if self.keeping.is_off || now < due || !host.is_attached() {
            return (Stage::Alone(alone), turn);
        }
        match host.begin_keeping() {
            Ok(Some(with)) => {
                self.tables.keeper = Some(Keeper::new(with, host));
                self.begin_image(*alone, host)
            }
            Ok(None) => {
                self.keeping.is_off = true;
                (Stage::Alone(alone), turn)
            }
            Err(reason) => {
                self.keeping.fail(&reason, now, host);
                (Stage::Alone(alone), turn)
            }
        }
    }

    /// Tells members that come while an image is taken whom it is for.
    pub(super) fn tell_others(&self, host: &mut impl PrimaryHost) {
        let is_own = self.tables.keeper.is_some();
        host.turn_away(if is_own { COPIED } else { ANOTHER });
    }

    /// Ends a join, or the keeping in this daemon; a joiner is told why.
    pub(super) fn part(&mut self, reason: &str, host: &mut impl PrimaryHost) {
        if self.tables.keeper.take().is_some() {
            return host.stop_keeping();
        }
        host.send(&Message::Refused { reason, again: true });
        host.flush();
        host.drop_peer();
    }

    /// Carries messages between primary and keeper until neither has more to say.
    pub(super) fn talk(&mut self, host: &mut impl PrimaryHost) {
        for _ in Keeper::talks() {
            let Some(mut keeper) = self.tables.keeper.take() else { return };
            let said = keeper.turn(host);
            self.tables.keeper = Some(keeper);
            let said = match said {
                Ok(said) => said,
                Err(reason) => {
                    self.tables.broken.get_or_insert(reason);
                    return;
                }
            };
            let mut outbox = Vec::new();
            let mut hearing = self.hearing(&mut outbox);
            for bytes in &said {
                if let Ok(message) = Message::decode(bytes) {
                    hearing.hear(&message, host);
                }
            }
            self.answer(&outbox, host);
            if said.is_empty() {
                return;
            }
        }
    }

    pub(super) fn turn_kept(
        &mut self,
        mut alone: Box<Alone>,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if !stop && host.has_server_ended() {
            return match host.fall() {
                Some(fall) => self.fall(fall, host),
                // The clients hear of the server's end, as they would if nothing had been kept.
                None => self.keep_no_more(*alone, None, host),
            };
        }
        if let Some(over) = self.speak_on(stop, host) {
            return over;
        }
        if self.is_attached(host) {
            self.take_held(host);
        }
        self.take_log(host);
        self.take_messages(host);
        self.settle_closing(host);
        self.settle(host);
        if let Some(reason) = self.tables.broken.take().or_else(|| host.log_fault()) {
            return self.keep_no_more(*alone, Some(&reason), host);
        }
        let now = host.now();
        if now >= self.keeping.door_at {
            self.keeping.door_at = now.plus(nanos(ALONE_LOOK));
            if knock(&mut alone, host).is_none() {
                let (stage, turn) = self.keep_no_more(*alone, None, host);
                return match stage {
                    Stage::Alone(alone) => self.begin_join(*alone, host),
                    over => (over, turn),
                };
            }
        }
        let turn = match host.may_sleep(self.log_at) {
            true => Turn::Until(self.deadline(host)),
            false => Turn::Busy,
        };
        (Stage::Kept(alone), turn)
    }

    /// Stops keeping: the server speaks alone, and nothing waits. With a `reason` keeping is tried
    /// again later.
    fn keep_no_more(
        &mut self,
        alone: Alone,
        reason: Option<&str>,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.lose_backup(host);
        host.stop_watching();
        if let Err(error) = self.open_gate(host) {
            return (Stage::Idle, Turn::End(End::Failed(error)));
        }
        self.part(reason.unwrap_or(LET_IN), host);
        (self.closing, self.joins) = (None, None);
        let now = host.now();
        if let Some(reason) = reason {
            self.keeping.fail(reason, now, host);
        } else {
            self.keeping = Keeping::default();
            host.show(MemberEvent::KeepsNot { reason: LET_IN });
        }
        (Stage::Alone(Box::new(alone)), Turn::after(ALONE_LOOK, now))
    }

    /// Handles the fall of the server: the rest of its log is kept, and it is rebuilt. Its kernel
    /// does not tell clients of its end.
    fn fall(&mut self, fall: Fall, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        let since = host.now();
        if self.closing.is_some() {
            self.tables.broken.get_or_insert_with(|| NOT_YET.to_owned());
        }
        self.announce_end(host);
        host.strike_server();
        host.stop_watching();
        self.end_kept((fall, since), false, host)
    }

    /// Waits until all of the fallen server's log is kept; then it is rebuilt. A server that fell
    /// at the same position before is not, if it would only fall again.
    pub(super) fn end_kept(
        &mut self,
        (fall, since): (Fall, Nanos),
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        host.turn_edge(&mut |_| {});
        self.talk(host);
        let (now, log_at) = (host.now(), self.log_at);
        // Nothing is confirmed any more behind the log's end.
        let has_all = self.tables.keeper.as_ref().is_none_or(Keeper::has_all);
        let waits = !has_all && self.tables.broken.is_none();
        if waits && !stop && now.since(since) < nanos(FALL_MAX) {
            return (Stage::Falling { fall, since }, Turn::after(CONFIRM_LOOK, now));
        }
        let before = host.member().fallen_at.filter(|(at, _)| *at == log_at);
        let repeats = before.map_or(0, |(_, repeats)| repeats + 1);
        host.member().fallen_at = Some((log_at, repeats));
        let reason = match self.tables.broken.take() {
            Some(reason) => reason,
            None if repeats > fall.repeats_max() => TWICE.to_owned(),
            None => {
                self.tables.keeper.iter_mut().for_each(|keeper| keeper.note_fall(since));
                host.show(MemberEvent::Fell { log_at });
                return (Stage::Down, Turn::End(End::Fallen));
            }
        };
        let input = self.tables.keeper.as_ref().and_then(Keeper::last_input);
        self.part(&reason, host);
        // Clients hear from this host's kernel that their connections are over.
        if let Err(error) = host.go_alone() {
            return (Stage::Down, Turn::End(End::Failed(error)));
        }
        host.stop_watching();
        host.show(MemberEvent::NotRebuilt { reason: &reason, input });
        stay_down(stop, host)
    }

    /// Takes the machine that holds what the fallen server is rebuilt from.
    pub fn take_kept(&mut self) -> Option<BackupMachine> {
        self.tables.keeper.take().map(Keeper::into_backup)
    }
}

/// Stays without a server, which has fallen and is not rebuilt.
pub(super) fn stay_down(stop: bool, host: &mut impl PrimaryHost) -> (Stage, Turn) {
    host.turn_edge(&mut |_| {});
    host.stand_by();
    let now = host.now();
    if host.member().is_behind_another() {
        return rest_replaced(now, stop, host);
    }
    let turn = if stop { Turn::End(End::Stopped) } else { Turn::after(IDLE_LOOK, now) };
    (Stage::Down, turn)
}
