//! The end of connections, as the primary's kernel knows it.

use super::{CLOSING_EVERY, LINGER, Loop, STRAY_EVERY};
use holdfast_linux::diag::TcpState;
use holdfast_replica::Nanos;
use holdfast_wire::message::{ConnId, ConnKey};
use std::time::Instant;

impl Loop {
    /// Connections that are over in the kernel are over for everybody
    /// (decision 15); their slots stay a while for late packets.
    pub(super) fn reap(&mut self, nanos: u64, now: Instant) {
        let mut ids: Vec<ConnId> = self.ending.iter().copied().collect();
        if now >= self.stray_at {
            self.stray_at = now + STRAY_EVERY;
            ids.extend(
                self.conns
                    .iter()
                    .filter(|(_, c)| !c.ending && now - c.opened > STRAY_EVERY)
                    .map(|(id, _)| *id),
            );
        }
        let keys: Vec<ConnKey> =
            ids.iter().filter_map(|id| self.conns.get(id)).map(|c| c.key).collect();
        let Ok(states) = self.diag.states(&keys) else { return };
        for (id, state) in ids.into_iter().zip(states) {
            if matches!(state, None | Some(TcpState::TimeWait)) && self.is_over(id, now) {
                self.let_go(id, nanos, now);
            }
        }
        while self.linger.front().is_some_and(|(at, _)| now - *at > LINGER)
            || self.linger.len() > self.linger_max
        {
            if let Some((_, id)) = self.linger.pop_front() {
                let _ = self.gate.free(id);
            }
        }
    }

    /// Whether the kernel has been done with a connection long enough for the
    /// client's last packets to have come round through the backup.
    fn is_over(&mut self, id: ConnId, now: Instant) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let since = *conn.over.get_or_insert(now);
        let paid = self.gate.slot(id).is_none_or(|slot| slot.owed_ack().is_none());
        paid && now - since >= CLOSING_EVERY
    }

    pub(super) fn let_go(&mut self, id: ConnId, nanos: u64, now: Instant) {
        // Should the tap have lost the client's FIN, its repeat may be answered:
        // there is nothing left that the backup would have to hold.
        if let Some(slot) = self.gate.slot(id) {
            self.gate.set_stable(id, slot.stable.plus(1));
        }
        self.ending.remove(&id);
        self.conns.remove(&id);
        self.linger.push_back((now, id));
        self.act(|machine, hands| machine.handle_gone(Nanos(nanos), id, hands));
    }
}
