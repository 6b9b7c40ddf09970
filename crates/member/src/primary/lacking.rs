//! Clients that have not acknowledged what the server sent before its image was taken. Only the
//! running kernel has those bytes, so a joiner waits until they are acknowledged.

use super::{Conn, PrimaryHost, Tables};
use crate::nanos;
use crate::timing::primary::{CLIENTS_MAX, CLOSING_EVERY, REPEATS_MAX, SLOW_MAX};
use holdfast_cluster::Nanos;
use holdfast_wire::message::{Adopted, ConnId, ConnKey, IMAGE_BYTES_MAX, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet};

/// What a client has not acknowledged, as the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unacked {
    pub bytes: u32,
    /// Number of the kernel's repetitions and window probes since the client last answered.
    pub repeats: u8,
    /// Whether the client's window is closed, so that the kernel can send nothing.
    pub window_closed: bool,
}

/// Unacknowledged output that the kernel held for a slow client when the image was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// The cookie of the kernel's socket.
    pub socket: u64,
    /// Sequence number of the first byte, which may be older than what the client lacks.
    pub from: SeqNo,
    pub bytes: Vec<u8>,
}

/// The clients that a joiner still waits for.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Position that each client has to acknowledge.
    ends: BTreeMap<ConnId, SeqNo>,
    /// Clients that are no longer waited for, with the position that each still has to acknowledge.
    given_up: BTreeMap<ConnId, SeqNo>,
    begun: Nanos,
    /// When to ask the kernel about the clients next: each question is a system call.
    ask_at: Nanos,
}

impl Lacking {
    fn new(adopted: &[Adopted], now: Nanos) -> Self {
        let open = adopted.iter().filter(|it| it.acked_bytes < it.out_bytes);
        let end = |it: &Adopted| it.conn.map(|(id, of)| (id, of.iss.plus(1).plus(it.out_bytes)));
        let ends = open.filter_map(end).collect();
        Self { ends, given_up: BTreeMap::new(), begun: now, ask_at: now }
    }

    /// As [`Self::new`], and of connections that the server has `ended`: it keeps nothing of those
    /// that it has closed since its image.
    pub(super) fn of(
        adopted: &[Adopted],
        ended: &[ConnId],
        now: Nanos,
        host: &impl PrimaryHost,
    ) -> Self {
        let known: BTreeSet<ConnId> =
            adopted.iter().filter_map(|it| it.conn.map(|(id, _)| id)).collect();
        let let_go = ended.iter().filter(|id| !known.contains(id));
        let mut this = Self::new(adopted, now);
        this.ends.extend(let_go.filter_map(|id| Some((*id, host.slot(*id)?.snd_nxt))));
        this
    }

    /// Hands the joiner what the kernel held for some clients, which are then no longer waited for.
    pub(super) fn hand_over(
        &mut self,
        tables: &mut Tables,
        adopted: &[Adopted],
        host: &mut impl PrimaryHost,
    ) {
        for held in host.earlier() {
            let conn = tables.conns.iter().find(|(_, conn)| conn.socket == held.socket);
            let conn = conn.map(|(id, _)| *id);
            let is_it = |adopted: &&Adopted| adopted.conn.is_some_and(|(id, _)| Some(id) == conn);
            let lacks = adopted.iter().find(is_it).and_then(|adopted| missing(adopted, &held));
            let Some((id, bytes, offset)) = lacks else { continue };
            for (number, bytes) in bytes.chunks(IMAGE_BYTES_MAX).enumerate() {
                let offset = offset + (number * IMAGE_BYTES_MAX) as u64;
                tables.say(&Message::Earlier { conn: id, offset, bytes }, host);
            }
            self.ends.remove(&id);
        }
    }

    /// Whether a client still lacks something that it may yet acknowledge. Clients that do not
    /// answer, or are slow, must not keep the group unprotected: a takeover ends their connections
    /// until they have acknowledged it.
    pub(super) fn waits(
        &mut self,
        conns: &mut BTreeMap<ConnId, Conn>,
        host: &mut impl PrimaryHost,
    ) -> bool {
        self.ends.retain(|conn, end| lacks(*conn, *end, host));
        let now = host.now();
        if now >= self.ask_at {
            self.ask_at = now.plus(nanos(CLOSING_EVERY));
            self.ask(conns, host);
        }
        !self.ends.is_empty() && now.since(self.begun) <= nanos(CLIENTS_MAX)
    }

    /// Connections that a takeover would end: clients lack output that the joiner does not have, up
    /// to the given position.
    pub(super) fn at_risk(self) -> BTreeMap<ConnId, SeqNo> {
        self.ends.into_iter().chain(self.given_up).collect()
    }

    /// Asks the kernel what was acknowledged. The gate sees only what the kernel sends, so of a
    /// connection on which the server is silent it does not know.
    fn ask(&mut self, conns: &mut BTreeMap<ConnId, Conn>, host: &mut impl PrimaryHost) {
        // A connection that the log's machine is done with still has a slot.
        let known = self.ends.keys().filter_map(|id| Some((*id, host.slot(*id)?.key)));
        let (ids, keys): (Vec<ConnId>, Vec<ConnKey>) = known.unzip();
        let unacked = host.unacked(&keys).unwrap_or_default();
        for (id, Unacked { bytes, repeats, .. }) in ids.iter().zip(unacked) {
            if bytes == 0 {
                let (end, conn) = (self.ends.remove(id), conns.get_mut(id));
                // The joiner must hear of this acknowledgement: it has nothing of what was sent
                // before.
                conn.into_iter().for_each(|conn| conn.acked = end);
            } else if repeats >= REPEATS_MAX {
                self.given_up.extend(self.ends.remove_entry(id));
            }
        }
    }
}

/// Whether a client has yet to acknowledge what comes before `end`. A connection whose tuple has a
/// newer one is not waited for.
pub(super) fn lacks(conn: ConnId, end: SeqNo, host: &impl PrimaryHost) -> bool {
    let slot = host.slot(conn).filter(|slot| host.conn_of(&slot.key) == Some(conn));
    slot.is_some_and(|slot| end.after(slot.snd_una))
}

/// What a connection's client lacks of the output from before the image, and its place in the
/// stream, if the kernel held all of it.
fn missing<'a>(adopted: &Adopted, held: &'a Earlier) -> Option<(ConnId, &'a [u8], u64)> {
    let (id, record) = adopted.conn?;
    let first = record.iss.plus(1).plus(adopted.acked_bytes);
    let start = usize::try_from(first.since(held.from)).ok()?;
    let len = usize::try_from(adopted.out_bytes.checked_sub(adopted.acked_bytes)?).ok()?;
    Some((id, held.bytes.get(start..start.checked_add(len)?)?, adopted.acked_bytes))
}

/// Sockets of clients that accept nothing: what they lack stays in the kernel until the image is
/// taken, and goes over with it.
pub(super) fn slow(conns: &BTreeMap<ConnId, Conn>, host: &mut impl PrimaryHost) -> Vec<u64> {
    let (sockets, keys): (Vec<u64>, Vec<ConnKey>) =
        conns.values().map(|conn| (conn.socket, conn.key)).unzip();
    let unacked = host.unacked(&keys).unwrap_or_default();
    let stands = |it: &Unacked| it.bytes > 0 && (it.window_closed || it.repeats > 0);
    let slow = (sockets.into_iter().zip(&keys).zip(unacked))
        .filter(|(_, unacked)| stands(unacked))
        .map(|((socket, key), unacked)| (unacked.bytes, key.client, socket));
    let mut in_turn = in_turn(slow.collect());
    in_turn.truncate(SLOW_MAX);
    in_turn
}

/// Sockets, from their bytes and the client's address, in the order in which they get room: from
/// each address first the one that lacks least, then from each the next, so that a client with many
/// connections does not take the room of others.
fn in_turn(mut slow: Vec<(u32, [u8; 16], u64)>) -> Vec<u64> {
    slow.sort_unstable();
    let mut places: BTreeMap<[u8; 16], usize> = BTreeMap::new();
    let mut place = |client| {
        let place = places.entry(client).or_default();
        *place += 1;
        *place
    };
    let mut in_turn: Vec<(usize, u32, u64)> =
        slow.into_iter().map(|(bytes, client, socket)| (place(client), bytes, socket)).collect();
    in_turn.sort_unstable();
    in_turn.into_iter().map(|(_, _, socket)| socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_opens_many_connections_takes_no_others_room() {
        let [greedy, modest] = [[7; 16], [9; 16]];
        let mut slow: Vec<(u32, [u8; 16], u64)> =
            (0..100).map(|socket| (10 + socket as u32, greedy, socket)).collect();
        slow.extend([(5000, modest, 200), (4000, modest, 201)]);
        assert_eq!(in_turn(slow)[..5], [0, 201, 1, 200, 2]);
    }
}
