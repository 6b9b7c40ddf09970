//! What the backup says of itself.

use super::Follower;
use crate::daemon::member::{Node, count};
use crate::daemon::takeover;
use crate::leavings::Own;
use crate::status::{Lag, Role, State};
use std::time::Instant;

impl Follower {
    /// What this member is by itself, told to the primary too.
    fn judge(&mut self, node: &mut Node<'_>) {
        node.other_says.clone_from(&self.says);
        if let Some(cause) = self.promoting {
            takeover::report(node, cause);
        } else if !node.is_whole(Role::Backup, Own::TapDrop) {
            // It has said so.
        } else if self.replica.memory.is_attached() {
            node.set_state(Role::Backup, State::Protected, "", "");
        } else {
            let (reason, remedy) = ("the replica has not started yet", "look at the server's log");
            node.set_state(Role::Backup, State::Waiting, reason, remedy);
        }
        if self.repetition.is_due(node.own(), Instant::now()) {
            let link = &mut self.link;
            node.own().tell(|message| {
                link.send(message);
            });
        }
    }

    pub fn report(&mut self, node: &mut Node<'_>) {
        self.judge(node);
        node.report_lateness();
        let c = *self.machine.counters();
        let (frames, bytes) = self.machine.unresolved();
        node.status.lag = Lag {
            frames: frames as u64,
            bytes: bytes as u64,
            executed: self.replica.memory.unconsumed(),
        };
        let of = [
            ("segments", c.segments),
            ("unknown", c.segments_unknown),
            ("refused", c.segments_refused),
            ("refused_full", c.refused_full),
            ("needs", c.needs),
            ("conflicts", c.conflicts),
            ("contradicted", c.contradicted),
            ("unread_asked", c.unread_asked),
            ("unread_filled", c.unread_filled),
            ("malformed", self.malformed),
        ];
        count(&mut node.status.counters, "tap", &of);
        count(&mut node.status.counters, "tapdrop", &self.drop.counters());
    }
}
