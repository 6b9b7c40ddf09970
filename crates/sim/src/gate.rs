//! A model of the gate on the primary's interface (`bpf/gate.bpf.c`): it holds SYN-ACKs, clamps
//! ACKs to `stable`, keeps the right edge, and withholds FINs and RSTs that the server did not ask
//! for. While the server runs alone (solo) it only keeps its slots up to date. It goes on without
//! its daemon.

use crate::packet::{ACK, NO_SCALING, Packet, shift};
use crate::plan::{Limits, Mutation};
use holdfast_wire::gate::{Adopted, SlotView};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::{Flags, SackBlocks};
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// One protected connection.
#[derive(Clone, Debug)]
pub struct Slot {
    record: ConnRecord,
    pub key: ConnKey,
    iss: SeqNo,
    irs: SeqNo,
    pub open: bool,
    pub fin_allowed: bool,
    pub stable: SeqNo,
    pub snd_una: SeqNo,
    pub snd_nxt: SeqNo,
    pub rcv_nxt: SeqNo,
    pub last_ack: SeqNo,
    pub last_edge: SeqNo,
    pub right_edge: SeqNo,
    pub tsval: u32,
    pub rcv_wscale: u8,
}

/// Counts of what the gate did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// FINs and RSTs that the server did not ask for: packets withheld, and below it FINs that
    /// were removed from packets with payload.
    pub held_ends: u64,
    pub cleared_fins: u64,
    /// ACKs that were clamped to `stable`.
    pub clamped: u64,
    /// Among those, packets from which a D-SACK was removed.
    pub dsacks: u64,
    /// Clamped ACKs that were not sent because they repeat an earlier one, and below it those that
    /// were sent because they also carry SACK blocks, ECE or CWR.
    pub repeats: u64,
    pub telling_repeats: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.held_ends += other.held_ends;
        self.cleared_fins += other.cleared_fins;
        self.clamped += other.clamped;
        self.dsacks += other.dsacks;
        self.repeats += other.repeats;
        self.telling_repeats += other.telling_repeats;
    }
}

impl Slot {
    /// `fill_slot`: a slot from a SYN-ACK and the SYN that it answers.
    pub fn of(p: &Packet, offer: &Packet) -> Self {
        let (iss, irs) = (p.seq, p.ack.plus(u64::from(u32::MAX)));
        let record = ConnRecord {
            key: p.key,
            iss,
            irs,
            mss: 1460,
            peer_mss: 1460,
            rcv_wscale: p.wscale,
            // Both sides scale or neither does (RFC 7323 §2.2).
            snd_wscale: if p.wscale == NO_SCALING { NO_SCALING } else { offer.wscale },
            sack: p.sack_permitted,
            tsval: Some(p.tsval),
            window: p.window,
        };
        // Windows on SYNs are unscaled (RFC 7323 §2.2).
        let edge = p.ack.plus(u64::from(p.window));
        Self {
            record,
            key: p.key,
            iss,
            irs,
            open: false,
            fin_allowed: false,
            stable: p.ack,
            snd_una: p.seq.plus(1),
            snd_nxt: p.seq.plus(1),
            rcv_nxt: p.ack,
            last_ack: p.ack,
            last_edge: edge,
            right_edge: edge,
            tsval: p.tsval,
            rcv_wscale: p.wscale,
        }
    }

    /// A slot for a connection that existed before the gate.
    fn adopted(adopted: &Adopted) -> Self {
        let Adopted { record, snd_una, snd_nxt, rcv_nxt, right_edge, tsval, .. } = *adopted;
        Self {
            record,
            key: record.key,
            iss: record.iss,
            irs: record.irs,
            open: true,
            fin_allowed: adopted.fin_allowed,
            stable: rcv_nxt,
            snd_una,
            snd_nxt,
            rcv_nxt,
            last_ack: rcv_nxt,
            last_edge: right_edge,
            right_edge,
            tsval,
            rcv_wscale: record.rcv_wscale,
        }
    }

    /// Whether the packet's numbers are those of this connection's socket. A reset's may be those
    /// of the packet that it answers. A segment without payload beyond everything sent, FIN
    /// included, belongs to another connection on the four-tuple.
    fn is_own(&self, p: &Packet) -> bool {
        let is_known = !p.payload.is_empty() || !p.seq.after(self.snd_nxt.plus(1));
        !p.is(Flags::RST) && is_known
    }

    /// Whether a reset's number is one of this life of the tuple: it answers an acknowledgement,
    /// which covers nothing that was never sent.
    fn is_of_this_life(&self, p: &Packet) -> bool {
        p.seq.after(self.iss) && !p.seq.after(self.snd_nxt.plus(1))
    }

    /// Notes rcv_nxt and the timestamp from a packet of the kernel, whether it leaves or not: an
    /// owed ACK is made from them.
    fn learn(&mut self, p: &Packet) {
        self.rcv_nxt = self.rcv_nxt.max(p.ack);
        self.learn_clock(p);
    }

    /// Notes the newest timestamp that the client has seen or will see.
    fn learn_clock(&mut self, p: &Packet) {
        if !SeqNo(self.tsval).after(SeqNo(p.tsval)) {
            self.tsval = p.tsval;
        }
    }

    /// Notes that the packet leaves in this form.
    fn track_sent(&mut self, p: &Packet, seq_end: SeqNo) {
        self.snd_nxt = self.snd_nxt.max(seq_end);
        self.last_ack = self.last_ack.max(p.ack);
        self.last_edge = self.last_edge.max(self.edge(p));
    }

    /// Notes the kernel's snd_una.
    fn track_snd_una(&mut self, snd_una: Option<SeqNo>) {
        let is_news = |una: &SeqNo| una.after(self.snd_una) && !una.after(self.snd_nxt);
        self.snd_una = snd_una.filter(is_news).unwrap_or(self.snd_una);
    }

    fn edge(&self, p: &Packet) -> SeqNo {
        p.ack.plus(u64::from(p.window) << shift(self.rcv_wscale))
    }

    /// What may be acknowledged: what is stable, or what was acknowledged already while the server
    /// ran alone, which the client does not keep any more.
    fn stable(&self) -> SeqNo {
        self.stable.max(self.last_ack)
    }

    /// The slot as a daemon sees it.
    fn view(&self) -> SlotView {
        SlotView {
            key: self.key,
            iss: self.iss,
            irs: self.irs,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            stable: self.stable,
            right_edge: self.right_edge,
            rcv_nxt: self.rcv_nxt,
            last_ack: self.last_ack,
            last_edge: self.last_edge,
            rcv_wscale: self.rcv_wscale,
            tsval: self.tsval,
            tsecr: 0,
            has_ts: true,
            held_synack: !self.open,
        }
    }
}

/// A SYN-ACK, for the daemon: it is held, or has passed because the server ran alone.
#[derive(Clone, Debug)]
pub struct Held {
    pub id: ConnId,
    pub record: ConnRecord,
    pub packet: Packet,
    pub passed: bool,
}

/// The gate; see the module.
#[derive(Debug)]
pub struct Gate {
    slots: BTreeMap<ConnId, Slot>,
    conns: BTreeMap<ConnKey, ConnId>,
    /// SYNs, the newest last.
    syns: VecDeque<Packet>,
    pub events: VecDeque<Held>,
    slots_max: usize,
    syns_max: usize,
    generation: u64,
    pub server_dead: bool,
    /// Whether the server runs alone, so that everything passes.
    pub solo: bool,
    /// Whether slots of ended connections are being freed: then a new connection without a slot is
    /// refused even while `solo`.
    pub minded: bool,
    /// Whether the ring of events is full, because the daemon does not take them.
    pub events_full: bool,
    mutation: Option<Mutation>,
    pub refused: u64,
    /// Number of SYN-ACKs that passed while `solo` and have no slot.
    pub unknown_alone: u64,
}

impl Gate {
    pub fn new(limits: &Limits, mutation: Option<Mutation>) -> Self {
        Self {
            slots: BTreeMap::new(),
            conns: BTreeMap::new(),
            syns: VecDeque::new(),
            events: VecDeque::new(),
            slots_max: limits.gate_slots,
            syns_max: limits.gate_syns,
            generation: 0,
            server_dead: false,
            solo: false,
            minded: false,
            events_full: false,
            mutation,
            refused: 0,
            unknown_alone: 0,
        }
    }

    pub fn view(&self, id: ConnId) -> Option<SlotView> {
        self.slots.get(&id).map(Slot::view)
    }

    pub fn conn_of(&self, key: &ConnKey) -> Option<ConnId> {
        self.conns.get(key).copied()
    }

    pub fn slot_mut(&mut self, id: ConnId) -> Option<&mut Slot> {
        self.slots.get_mut(&id)
    }

    /// ACKs (rcv_nxt) that the kernel has sent and no client has got.
    pub fn withheld(&self) -> Vec<(ConnKey, SeqNo)> {
        let newest = self.conns.values().filter_map(|id| self.slots.get(id));
        let withheld = newest.filter(|slot| slot.rcv_nxt.after(slot.last_ack));
        withheld.map(|slot| (slot.key, slot.rcv_nxt)).collect()
    }

    /// Whether a FIN or RST of the connection may leave.
    pub fn may_end(&self, key: &ConnKey) -> bool {
        let slot = self.conns.get(key).and_then(|id| self.slots.get(id));
        slot.is_some_and(|slot| slot.fin_allowed)
    }

    /// All connections that it knows, as the real gate tells them to a daemon that takes it over.
    pub fn known(&self) -> Vec<(ConnId, ConnRecord)> {
        let of = |id: &ConnId| Some((*id, self.slots.get(id)?.record));
        self.conns.values().filter_map(of).collect()
    }

    pub fn slots_used(&self) -> usize {
        self.slots.len()
    }

    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.slots_max
    }

    pub fn free(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.remove(&id)
            && self.conns.get(&slot.key) == Some(&id)
        {
            self.conns.remove(&slot.key);
        }
    }

    /// Makes a slot for a connection that exists already, in place of an earlier one with its
    /// four-tuple; `None` if there is no room.
    pub fn adopt(&mut self, adopted: &Adopted) -> Option<ConnId> {
        if let Some(former) = self.conn_of(&adopted.record.key) {
            self.free(former);
        }
        (!self.is_full()).then(|| self.insert(Slot::adopted(adopted)))
    }

    fn insert(&mut self, slot: Slot) -> ConnId {
        self.generation += 1;
        let id = ConnId(self.generation << 32 | self.slots.len() as u64);
        self.conns.insert(slot.key, id);
        self.slots.insert(id, slot);
        id
    }

    /// `gate_ingress`: remembers a client's SYN, for its options. A RST at what the client was shown
    /// is aimed at what the kernel has acknowledged: the number that it gets.
    pub fn ingress(&mut self, p: &Packet) -> Option<SeqNo> {
        if p.is(Flags::RST) && !p.is(Flags::SYN) {
            let slot = self.slots.get(self.conns.get(&p.key)?)?;
            return (slot.last_ack == p.seq).then_some(slot.rcv_nxt);
        }
        if p.is(Flags::SYN) && !p.is(ACK) && !p.is(Flags::RST) {
            self.syns.retain(|syn| syn.key != p.key);
            self.syns.push_back(p.clone());
            if self.syns.len() > self.syns_max {
                self.syns.pop_front();
            }
        }
        None
    }

    /// `gate_egress`: the packet that leaves, if one does; `snd_una` is what the
    /// kernel holds acknowledged.
    pub fn egress(
        &mut self,
        p: Packet,
        snd_una: Option<SeqNo>,
        counts: &mut Counts,
    ) -> Option<Packet> {
        if p.is(Flags::SYN | ACK) {
            return self.on_syn_ack(p);
        }
        match self.conns.get(&p.key).and_then(|id| self.slots.get_mut(id)) {
            Some(slot) if self.solo => {
                follow(slot, &p, snd_una);
                Some(p)
            }
            Some(slot) => on_segment(slot, p, snd_una, self.mutation, counts),
            None => self.on_no_slot(p),
        }
    }

    fn on_syn_ack(&mut self, p: Packet) -> Option<Packet> {
        let slot = self.conns.get(&p.key).and_then(|id| self.slots.get_mut(id));
        if let Some(slot) = slot.filter(|s| s.iss == p.seq && s.irs.plus(1) == p.ack) {
            slot.open |= self.solo;
            if slot.open {
                slot.learn_clock(&p);
            }
            return slot.open.then_some(p);
        }
        let known = self.make_slot(&p).is_some();
        if self.solo && !known && self.minded {
            return None;
        }
        if self.solo && !known {
            // The slot is that of an earlier connection on the four-tuple.
            self.conns.remove(&p.key);
            self.unknown_alone += 1;
        }
        let at_once = known && self.mutation == Some(Mutation::SynAckAtOnce);
        (self.solo || at_once).then_some(p)
    }

    /// Makes a slot for a SYN-ACK; `None` if the gate does not know its SYN, or
    /// has no room.
    fn make_slot(&mut self, p: &Packet) -> Option<ConnId> {
        let is_offer = |syn: &&Packet| syn.key == p.key && syn.seq.plus(1) == p.ack;
        let offer = self.syns.iter().find(is_offer)?.clone();
        if self.events_full {
            return None;
        }
        let limited = self.mutation != Some(Mutation::NoLimit);
        if limited && self.slots.len() >= self.slots_max {
            self.refused += 1;
            let oldest = self.slots.keys().next().copied();
            match oldest.filter(|_| self.mutation == Some(Mutation::EvictOldest)) {
                Some(oldest) => self.free(oldest),
                None => return None,
            }
        }
        let slot = Slot { open: self.solo, ..Slot::of(p, &offer) };
        let record = slot.record;
        let id = self.insert(slot);
        self.events.push_back(Held { id, record, packet: p.clone(), passed: self.solo });
        Some(id)
    }

    fn on_no_slot(&self, p: Packet) -> Option<Packet> {
        if self.solo {
            return Some(p);
        }
        let stray = !p.is(Flags::RST) || (p.is(ACK) && p.seq == SeqNo(0)) || self.server_dead;
        (!stray).then_some(p)
    }
}

/// Follows a segment that passes while the server runs alone. What has left cannot be taken back:
/// the connection is open from then on, and a FIN may be repeated.
fn follow(slot: &mut Slot, p: &Packet, snd_una: Option<SeqNo>) {
    slot.open = true;
    if p.is(Flags::RST) || !p.is(ACK) {
        return;
    }
    let seq_end = p.seq.plus(p.payload.len() as u64 + u64::from(p.is(Flags::FIN)));
    slot.fin_allowed |= p.is(Flags::FIN);
    if slot.is_own(p) {
        slot.learn(p);
        slot.right_edge = slot.right_edge.max(slot.edge(p));
        slot.track_sent(p, seq_end);
    }
    slot.track_snd_una(snd_una);
}

/// Handles a segment of a connection that has a slot; returns what leaves, if anything does. The
/// result depends only on slot and packet.
pub fn on_segment(
    slot: &mut Slot,
    mut p: Packet,
    snd_una: Option<SeqNo>,
    mutation: Option<Mutation>,
    counts: &mut Counts,
) -> Option<Packet> {
    if !slot.open {
        return None;
    }
    if p.is(Flags::RST) && !(slot.fin_allowed && slot.is_of_this_life(&p)) {
        counts.held_ends += 1;
        return None;
    }
    if !p.is(ACK) {
        return p.is(Flags::RST).then_some(p);
    }
    let is_own = slot.is_own(&p);
    if is_own {
        slot.learn(&p);
    }
    let seq_end = end_allowed(slot, &mut p, mutation, counts)?;
    let edge = slot.edge(&p);
    if is_own {
        slot.right_edge = slot.right_edge.max(edge);
    }
    let beyond = p.ack.after(slot.stable()) && mutation != Some(Mutation::AckBeyondStable);
    let goes = !beyond || clamp(slot, &mut p, edge, seq_end, mutation, counts);
    if goes && is_own {
        slot.track_sent(&p, seq_end);
    }
    slot.track_snd_una(snd_una);
    goes.then_some(p)
}

/// The sequence number after the segment, after a FIN was removed that the server did not ask
/// for; `None` if there was nothing but that FIN.
fn end_allowed(
    slot: &Slot,
    p: &mut Packet,
    mutation: Option<Mutation>,
    counts: &mut Counts,
) -> Option<SeqNo> {
    let payload_end = p.seq.plus(p.payload.len() as u64);
    if slot.fin_allowed {
        return Some(payload_end.plus(u64::from(p.is(Flags::FIN))));
    }
    // One beyond snd_nxt: the segment counts a FIN that was withheld.
    let counts_fin = p.seq == slot.snd_nxt.plus(1);
    if p.payload.is_empty() && (p.is(Flags::FIN) || counts_fin) {
        counts.held_ends += 1;
        return None;
    }
    if p.is(Flags::FIN) && mutation != Some(Mutation::LeaveFin) {
        p.flags = Flags(p.flags.0 & !Flags::FIN.0);
        counts.cleared_fins += 1;
    }
    Some(payload_end)
}

/// Clamps the ACK to `stable`, and rewrites the window so that the right edge stays; false if the
/// result only repeats an earlier ACK and need not leave.
fn clamp(
    slot: &Slot,
    p: &mut Packet,
    edge: SeqNo,
    seq_end: SeqNo,
    mutation: Option<Mutation>,
    counts: &mut Counts,
) -> bool {
    let (unit, stable) = (shift(slot.rcv_wscale), slot.stable());
    let window = (edge.since(stable).max(0) as u32 >> unit).min(65535);
    let shown = stable.plus(u64::from(window) << unit);
    // Above the rewritten ACK a D-SACK would read as a SACK (decision 12).
    let first = p.sack.as_slice().first();
    if first.is_some_and(|(_, right)| !right.after(p.ack) && right.after(stable))
        && mutation != Some(Mutation::KeepDsack)
    {
        p.sack = SackBlocks::default();
        counts.dsacks += 1;
    }
    let notices = [Flags::RST, Flags::ECE, Flags::CWR];
    let repeats = seq_end == p.seq && stable == slot.last_ack && !shown.after(slot.last_edge);
    if repeats {
        if p.sack.as_slice().is_empty() && !notices.iter().any(|flag| p.is(*flag)) {
            counts.repeats += 1;
            return false;
        }
        counts.telling_repeats += 1;
    }
    counts.clamped += 1;
    p.ack = stable;
    // The mutation moves the right edge left (law L4).
    p.window = if mutation == Some(Mutation::ShrinkWindow) { p.window } else { window as u16 };
    true
}
