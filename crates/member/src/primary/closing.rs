//! The end of connections, as the primary's kernel knows it.

use super::{Conn, PrimaryHost, PrimaryMachine};
use crate::host::ConnState;
use crate::nanos;
use crate::timing::primary::{CLOSING_EVERY, LINGER, SCARCE_EVERY, STRAY_EVERY};
use holdfast_cluster::Nanos;
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey};

impl PrimaryMachine {
    /// Connections that are over in the kernel are over for everybody
    /// (decision 15); their slots stay a while for late packets.
    pub(super) fn reap(&mut self, now: Nanos, host: &mut impl PrimaryHost) {
        let conns = &self.tables.conns;
        let mut ids: Vec<ConnId> = self.tables.ending.iter().copied().collect();
        let every = nanos(if self.is_short_of_slots() { SCARCE_EVERY } else { STRAY_EVERY });
        if now.since(self.strays_looked) >= every {
            self.strays_looked = now;
            let old = |conn: &Conn| now.since(conn.opened) > every;
            let stray = |conn: &Conn| !conn.ending && old(conn);
            ids.extend(conns.iter().filter(|(_, conn)| stray(conn)).map(|(id, _)| *id));
        }
        let known = ids.into_iter().filter_map(|id| Some((id, conns.get(&id)?.key)));
        let (ids, keys): (Vec<ConnId>, Vec<ConnKey>) = known.unzip();
        let Some(states) = host.states(&keys) else { return };
        for ((id, key), state) in ids.into_iter().zip(keys).zip(states) {
            let replaced = self.is_replaced(id, &key, host);
            let over = replaced || state == ConnState::Over;
            if over && self.is_over(id, replaced, now, host) {
                self.let_refuse(id, host);
                self.let_go(id, now, host);
            } else if over {
                // While the server speaks alone, no record says that it ends this connection, so
                // the connection is looked at again as soon as those that the log has ended.
                self.tables.ending.insert(id);
            }
        }
        let late = |at: Nanos| now.since(at) > nanos(LINGER);
        while self.linger.front().is_some_and(|(at, _)| late(*at))
            || self.linger.len() > self.linger_max
            || self.lacks_reserve()
        {
            let Some((_, id)) = self.linger.pop_front() else { break };
            host.free(id);
        }
    }

    /// Whether the gate's slots run out. A client that comes while none is free is turned away or,
    /// while the server speaks alone, missing in the gate's table, so that no member can join. No
    /// record says then which connections have ended.
    fn is_short_of_slots(&self) -> bool {
        self.tables.conns.len() + self.linger.len() > self.linger_max + self.linger_max / 2
    }

    /// Whether fewer than an eighth of the gate's slots are free: a client that comes is worth more
    /// than late packets of one that has gone.
    fn lacks_reserve(&self) -> bool {
        let taken = self.tables.conns.len() + self.linger.len();
        taken > 2 * self.linger_max - self.linger_max / 4
    }

    /// Whether the kernel has been done with a connection long enough for the client's last packets
    /// to have come round through the backup. An ACK is not waited for if the tuple has a newer
    /// connection (`replaced`), or if no backup would allow it any more.
    fn is_over(&mut self, id: ConnId, replaced: bool, now: Nanos, host: &impl PrimaryHost) -> bool {
        let Some(conn) = self.tables.conns.get_mut(&id) else { return false };
        let since = *conn.over.get_or_insert(now);
        let waits = !replaced && self.log.follows(id);
        let paid = !waits || host.slot(id).is_none_or(|slot| slot.owed_ack().is_none());
        paid && now.since(since) >= nanos(CLOSING_EVERY)
    }

    /// Whether a newer connection has the tuple of one that the server has ended or that nobody
    /// follows. What the kernel says of the tuple, and what it sends, is then of the newer one,
    /// even if the gate has no slot for that.
    fn is_replaced(&self, id: ConnId, key: &ConnKey, host: &impl PrimaryHost) -> bool {
        let ended = self.tables.conns.get(&id).is_some_and(|conn| conn.ending);
        (ended || !self.log.follows(id)) && host.conn_of(key) != Some(id)
    }

    /// Lets the kernel's reset out for a handshake that it has given up. The client, whose ACKs
    /// were lost, may know of a connection; it hears that it is too late and can try again, while a
    /// gate that withholds the reset, because no server has asked for it, would let it wait until
    /// the slot is free. A connection that ended with its server is left alone: the backup
    /// continues it.
    fn let_refuse(&self, id: ConnId, host: &mut impl PrimaryHost) {
        if self.log.awaits_accept(id) && host.backlog().is_some() {
            host.allow_fin(id);
        }
    }

    pub(super) fn let_go(&mut self, id: ConnId, now: Nanos, host: &mut impl PrimaryHost) {
        // If the tap has lost the client's FIN, its repetition may be answered: nothing is left
        // that the backup would have to hold. What was acknowledged while the server spoke alone
        // was never stable, and the FIN comes behind it.
        if let Some(slot) = host.slot(id) {
            let SlotView { stable, last_ack, .. } = slot;
            let until = if last_ack.after(stable) { last_ack } else { stable };
            host.set_stable(id, until.plus(1));
        }
        self.tables.ending.remove(&id);
        self.tables.conns.remove(&id);
        self.linger.push_back((now, id));
        self.act(host, |log, out| log.handle_gone(now, id, out));
    }
}
