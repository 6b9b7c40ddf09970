//! Laws L1 and L2: what must have reached the backup before a packet of its primary leaves, or
//! must be kept beside a server that runs alone and is to be rebuilt after a crash (decision 31).

use crate::packet::{ACK, Packet, Truth};
use holdfast_wire::log::{AcceptInfo, Header, Op, TAPPED};
use holdfast_wire::message::{Adopted, ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// A set of stream offsets.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, from: u64, until: u64) {
        if from >= until {
            return;
        }
        let (mut from, mut until) = (from, until);
        while let Some((start, end)) = self.0.range(..=until).next_back().map(|(s, e)| (*s, *e)) {
            if end < from {
                break;
            }
            self.0.remove(&start);
            from = from.min(start);
            until = until.max(end);
        }
        self.0.insert(from, until);
    }

    fn covers_up_to(&self, until: u64) -> bool {
        until == 0 || self.0.get(&0).is_some_and(|end| *end >= until)
    }
}

/// The part of one client's stream that has reached the backup.
#[derive(Debug, Default)]
struct Arrived {
    iss: Option<SeqNo>,
    ranges: Ranges,
    read: u64,
}

/// Who receives records and copies.
#[derive(Clone, Copy, Debug)]
pub enum Holder {
    /// The backup, from the other member's server.
    Backup,
    /// This member, from its own server.
    Itself(usize),
}

/// What is held; see the module.
#[derive(Debug, Default)]
pub struct Held {
    /// The protected member, its epoch, and the process that writes the log.
    pair: Option<(usize, u64, u32)>,
    streams: BTreeMap<(ConnKey, u32), Arrived>,
    /// Connections that the backup was told of: four-tuple and ISS.
    told: BTreeSet<(ConnKey, u32)>,
    accepts: BTreeMap<u32, (ConnKey, u32)>,
    newest: BTreeMap<ConnKey, (u32, u32)>,
    ids: BTreeMap<ConnId, (ConnKey, u32)>,
    /// Sequence numbers after clients' FINs; a hostile client sends several.
    ends: BTreeSet<(ConnKey, u32)>,
    /// Connections, by the server's ISS, whose server's FIN was acknowledged.
    has_all: BTreeSet<(ConnKey, u32)>,
    records: u64,
    /// Offsets up to which streams were acknowledged before a join although no server had
    /// accepted them: nobody could be asked for the bytes from before the joining member's tap.
    told_before: BTreeMap<(ConnKey, u32), u64>,
    /// While a member joins: copies that belong to connections of which it was not told yet.
    early: Option<Vec<Packet>>,
}

impl Held {
    pub fn pair_begins(&mut self, member: usize, epoch: u64, server: u32) {
        (self.pair, self.early) = (Some((member, epoch, server)), None);
        let streams = &self.streams;
        self.told_before.retain(|life, until| {
            !streams.get(life).is_some_and(|arrived| arrived.ranges.covers_up_to(*until))
        });
    }

    pub fn told_before(&mut self, key: ConnKey, irs: SeqNo, until: u64) {
        self.told_before.insert((key, irs.0), until);
    }

    pub fn pair_ends(&mut self) {
        self.pair = None;
    }

    /// Connections of which the new backup lacked bytes at the end of its join.
    pub fn left_out(&self) -> Vec<ConnKey> {
        self.told_before.keys().map(|(key, _)| *key).collect()
    }

    pub fn replica_begins(&mut self) {
        let pair = self.pair;
        *self = Self { pair, ..Self::default() };
    }

    /// A connection's four-tuple and its client's initial sequence number (irs).
    pub fn life_of(&self, conn: ConnId) -> Option<(ConnKey, SeqNo)> {
        self.ids.get(&conn).map(|(key, irs)| (*key, SeqNo(*irs)))
    }

    /// Starts afresh for a joining member; what clients themselves have ended stays known.
    pub fn joiner_begins(&mut self) {
        let (ends, has_all) = (std::mem::take(&mut self.ends), std::mem::take(&mut self.has_all));
        *self = Self { ends, has_all, early: Some(Vec::new()), ..Self::default() };
    }

    /// Notes that the copied server had logged this many records.
    pub fn copy_made(&mut self, records: u64) {
        self.records += records;
    }

    /// Notes that what the server had read of a connection is in its image.
    pub fn adopted(&mut self, adopted: &Adopted) {
        let Some((id, record)) = adopted.conn else { return };
        self.conn_taken(id, &record);
        let life = (record.key, record.irs.0);
        let arrived = self.streams.entry(life).or_default();
        arrived.read = adopted.in_bytes;
        arrived.ranges.insert(0, adopted.in_bytes + u64::from(adopted.eof));
        self.accepts.extend(adopted.accept.map(|accept| (accept, life)));
    }

    pub fn is_protected(&self, member: usize, epoch: u64) -> bool {
        self.pair.is_some_and(|(m, e, _)| (m, e) == (member, epoch))
    }

    /// Notes a client's FIN.
    pub fn client_ends(&mut self, p: &Packet) {
        self.ends.insert((p.key, p.seq_end().0));
    }

    /// Notes that a client has acknowledged its server's FIN.
    pub fn client_has_all(&mut self, key: ConnKey, iss: SeqNo) {
        self.has_all.insert((key, iss.0));
    }

    pub fn copy_taken(&mut self, p: &Packet) {
        if p.is(Flags::SYN) || p.is(Flags::RST) {
            if p.is(Flags::SYN) {
                self.streams.entry((p.key, p.seq.0)).or_default();
            }
            return;
        }
        if let Some(early) = self.early.as_mut().filter(|_| self.pair.is_none()) {
            early.push(p.clone());
        }
        // Sequence numbers of successive connections of one four-tuple lie far apart: the copy
        // belongs to the connection with the nearest irs below.
        let lives = self.streams.range_mut((p.key, 0)..=(p.key, u32::MAX));
        let near = |irs: u32| p.seq.since(SeqNo(irs).plus(1));
        let life = lives.filter(|((_, irs), _)| near(*irs) > -1000);
        let Some(((_, irs), arrived)) = life.min_by_key(|((_, irs), _)| near(*irs).unsigned_abs())
        else {
            return;
        };
        let from = i64::from(near(*irs));
        let until = from + p.len() as i64;
        let at = |offset: i64| u64::try_from(offset).unwrap_or(0);
        arrived.ranges.insert(at(from), at(until));
    }

    pub fn conn_taken(&mut self, conn: ConnId, record: &ConnRecord) {
        self.ids.insert(conn, (record.key, record.irs.0));
        self.told.insert((record.key, record.iss.0));
        self.newest.insert(record.key, (record.iss.0, record.irs.0));
        let arrived = self.streams.entry((record.key, record.irs.0)).or_default();
        arrived.iss = Some(record.iss);
        if let Some(early) = self.early.take() {
            let own = early.iter().filter(|packet| packet.key == record.key);
            own.for_each(|packet| self.copy_taken(packet));
            self.early = Some(early);
        }
    }

    pub fn unread_taken(&mut self, conn: ConnId, offset: u64, len: u64) {
        let arrived = self.ids.get(&conn).and_then(|life| self.streams.get_mut(life));
        if let Some(arrived) = arrived {
            arrived.ranges.insert(offset, offset + len);
        }
    }

    pub fn record_taken(&mut self, header: &Header, payload: &[u8]) {
        self.records += 1;
        match Op::from_u8(header.op) {
            Some(Op::Accept) => {
                let Ok((info, _)) = AcceptInfo::read_from_prefix(payload) else { return };
                let key = ConnKey {
                    server: info.local,
                    client: info.peer,
                    server_port: info.local_port,
                    client_port: info.peer_port,
                };
                if let Some((_, irs)) = self.newest.get(&key) {
                    self.accepts.insert(header.conn, (key, *irs));
                }
            }
            Some(Op::Read) if header.flags & TAPPED != 0 => {
                let stream = self.accepts.get(&header.conn);
                if let Some(arrived) = stream.and_then(|life| self.streams.get_mut(life)) {
                    // A read of 0 bytes is the client's FIN.
                    let until = arrived.read + payload.len() as u64;
                    let end = until + u64::from(header.ret == 0);
                    arrived.ranges.insert(arrived.read, end);
                    arrived.read = until;
                }
            }
            _ => {}
        }
    }

    /// L1: every byte that the packet acknowledges has reached the backup.
    pub fn acknowledges(&self, p: &Packet) -> Option<String> {
        if !p.is(ACK) || p.is(Flags::RST) || p.is(Flags::SYN) {
            return None;
        }
        let (iss, irs) = self.newest.get(&p.key)?;
        let acked = u64::try_from(p.ack.since(SeqNo(*irs).plus(1))).ok()?;
        let arrived = self.streams.get(&(p.key, *irs))?;
        // A FIN is no byte of the stream: once both ends are closed, its ACK may leave early.
        let ended = self.ends.contains(&(p.key, p.ack.0));
        let over = ended && self.has_all.contains(&(p.key, *iss));
        let acked = acked.saturating_sub(u64::from(over));
        let told = self.told_before.get(&(p.key, *irs)).is_some_and(|told| *told >= acked);
        (!told && !arrived.ranges.covers_up_to(acked))
            .then(|| format!("{acked} bytes are acknowledged, and not all of them are held"))
    }

    /// Judges a D-SACK (a first SACK block for duplicates). Above the ACK it would read as a SACK
    /// of received bytes, which nobody but the kernel may hold (L1).
    pub fn misreports(p: &Packet) -> Option<String> {
        let (_, right) = p.sack.as_slice().first().filter(|_| p.is_dsack)?;
        right.after(p.ack).then(|| "a D-SACK looks like a SACK of bytes that are not held".into())
    }

    /// L2: every event on which the packet depends has reached the backup.
    pub fn depends(&self, p: &Packet) -> Option<String> {
        if p.is(Flags::SYN) {
            let told = self.told.contains(&(p.key, p.seq.0));
            return (!told).then(|| "a SYN-ACK left before its record".to_owned());
        }
        if p.is(Flags::RST) && !self.newest.contains_key(&p.key) {
            // Not a connection of the protected pair.
            return None;
        }
        let (_, _, server) = self.pair?;
        let payload = (!p.payload.is_empty() || p.is(Flags::RST)).then_some(p.truth);
        let fin = p.is(Flags::FIN).then_some(p.fin_truth);
        // Connections of an earlier server, whose state is lost, may end as its kernel likes.
        let known = |truth: &Truth| truth.server == server;
        let truths = payload.into_iter().chain(fin).filter(known);
        let depends = truths.map(|truth| truth.depends).max()?;
        let records = self.records;
        (depends > records).then(|| match depends {
            u64::MAX => "an end that the server did not ask for".to_owned(),
            _ => format!("output of record {depends} left, {records} are held"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::NO_SCALING;
    use holdfast_wire::packet::SackBlocks;

    const KEY: ConnKey =
        ConnKey { server: [1; 16], client: [2; 16], server_port: 7, client_port: 1 };

    fn packet(seq: u32, ack: u32, flags: Flags, len: usize) -> Packet {
        Packet {
            key: KEY,
            seq: SeqNo(seq),
            ack: SeqNo(ack),
            flags: flags | ACK,
            window: 1000,
            wscale: NO_SCALING,
            sack_permitted: false,
            sack: SackBlocks::default(),
            tsval: 0,
            ce: false,
            payload: vec![0; len].into(),
            id: 0,
            truth: Truth::default(),
            fin_truth: Truth::default(),
            is_dsack: false,
        }
    }

    /// A client has sent ten bytes, from 1001 on, that reached the backup, and its FIN,
    /// which did not. Its server has sent nothing, from 501 on.
    fn ended() -> Held {
        let record = ConnRecord {
            key: KEY,
            iss: SeqNo(500),
            irs: SeqNo(1000),
            mss: 1460,
            peer_mss: 1460,
            rcv_wscale: NO_SCALING,
            snd_wscale: NO_SCALING,
            sack: false,
            tsval: None,
            window: 1000,
        };
        let mut held = Held::default();
        held.conn_taken(ConnId(1), &record);
        held.copy_taken(&packet(1001, 501, ACK, 10));
        held.client_ends(&packet(1011, 501, Flags::FIN, 0));
        held
    }

    #[test]
    fn a_fin_is_no_byte_once_both_have_ended_whatever_a_client_says_besides() {
        let mut held = ended();
        let ack_of_fin = packet(501, 1012, ACK, 0);
        assert!(held.acknowledges(&packet(501, 1011, ACK, 0)).is_none());
        assert!(held.acknowledges(&ack_of_fin).is_some(), "its server has not ended");
        held.client_has_all(KEY, SeqNo(9));
        assert!(held.acknowledges(&ack_of_fin).is_some(), "another life's server has");
        held.client_has_all(KEY, SeqNo(500));
        assert!(held.acknowledges(&ack_of_fin).is_none());
        // A stray far outside, and another end.
        held.client_ends(&packet(70_000, 502, Flags::FIN, 160));
        assert!(held.acknowledges(&ack_of_fin).is_none());
    }

    #[test]
    fn a_last_byte_is_one_where_no_end_was_said() {
        let mut held = ended();
        held.client_has_all(KEY, SeqNo(500));
        assert!(held.acknowledges(&packet(501, 1013, ACK, 0)).is_some());
    }
}
