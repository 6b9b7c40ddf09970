//! The gate on the primary's interface, as `bpf/gate.bpf.c` has it: holds
//! SYN-ACKs, clamps ACKs to what is stable, keeps the right edge, withholds
//! FINs and RSTs that the server did not ask for. Lives on without its daemon.

use crate::Ns;
use crate::packet::{ACK, NO_SCALING, Packet, shift};
use crate::plan::Mutation;
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

/// One protected connection.
#[derive(Clone, Debug)]
pub struct Slot {
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

impl Slot {
    /// As a daemon sees it.
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

/// A SYN-ACK that is held, for the daemon.
#[derive(Clone, Debug)]
pub struct Held {
    pub id: ConnId,
    pub record: ConnRecord,
    pub packet: Packet,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    slots: BTreeMap<ConnId, Slot>,
    conns: BTreeMap<ConnKey, ConnId>,
    syns: BTreeMap<ConnKey, Packet>,
    pub events: VecDeque<Held>,
    slots_max: usize,
    generation: u64,
    pub server_dead: bool,
    mutation: Option<Mutation>,
    pub refused: u64,
}

impl Gate {
    pub fn new(slots_max: usize, mutation: Option<Mutation>) -> Self {
        Self {
            slots: BTreeMap::new(),
            conns: BTreeMap::new(),
            syns: BTreeMap::new(),
            events: VecDeque::new(),
            slots_max,
            generation: 0,
            server_dead: false,
            mutation,
            refused: 0,
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

    pub fn slots_used(&self) -> usize {
        self.slots.len()
    }

    pub fn free(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.remove(&id)
            && self.conns.get(&slot.key) == Some(&id)
        {
            self.conns.remove(&slot.key);
        }
    }

    /// `gate_ingress`: what the client offered.
    pub fn ingress(&mut self, p: &Packet) {
        if p.is(Flags::SYN) && !p.is(ACK) && !p.is(Flags::RST) {
            self.syns.insert(p.key, p.clone());
        }
    }

    /// `gate_egress`: the packet that leaves, if one does; `snd_una` is what the
    /// kernel holds acknowledged.
    pub fn egress(&mut self, p: Packet, snd_una: Option<SeqNo>, now: Ns) -> Option<Packet> {
        let slot = self.conns.get(&p.key).and_then(|id| self.slots.get_mut(id));
        if p.is(Flags::SYN) {
            return self.on_syn_ack(p, now);
        }
        match slot {
            Some(slot) => on_segment(slot, p, snd_una, self.mutation),
            None => self.on_no_slot(p),
        }
    }

    fn on_syn_ack(&mut self, p: Packet, _now: Ns) -> Option<Packet> {
        let slot = self.conns.get(&p.key).and_then(|id| self.slots.get(id));
        if let Some(slot) = slot.filter(|s| s.iss == p.seq && s.irs.plus(1) == p.ack) {
            return slot.open.then_some(p);
        }
        let offer = self.syns.get(&p.key).filter(|syn| syn.seq.plus(1) == p.ack)?.clone();
        let limited = self.mutation != Some(Mutation::NoLimit);
        if limited && self.slots.len() >= self.slots_max {
            self.refused += 1;
            return None;
        }
        self.generation += 1;
        let id = ConnId(self.generation << 32 | self.slots.len() as u64);
        let edge = p.ack.plus(u64::from(p.window));
        let slot = Slot {
            key: p.key,
            iss: p.seq,
            irs: p.ack.plus(u64::from(u32::MAX)),
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
        };
        let record = ConnRecord {
            key: p.key,
            iss: slot.iss,
            irs: slot.irs,
            mss: 1460,
            peer_mss: 1460,
            rcv_wscale: p.wscale,
            // Both sides scale or neither does (RFC 7323 §2.2).
            snd_wscale: if p.wscale == NO_SCALING { NO_SCALING } else { offer.wscale },
            sack: true,
            tsval: Some(p.tsval),
            window: p.window,
        };
        self.conns.insert(p.key, id);
        self.slots.insert(id, slot);
        self.events.push_back(Held { id, record, packet: p.clone() });
        (self.mutation == Some(Mutation::SynAckAtOnce)).then_some(p)
    }

    fn on_no_slot(&self, p: Packet) -> Option<Packet> {
        let stray = !p.is(Flags::RST) || (p.is(ACK) && p.seq == SeqNo(0)) || self.server_dead;
        (!stray).then_some(p)
    }
}

fn on_segment(
    slot: &mut Slot,
    mut p: Packet,
    snd_una: Option<SeqNo>,
    mutation: Option<Mutation>,
) -> Option<Packet> {
    if !slot.open || (p.is(Flags::RST) && !slot.fin_allowed) {
        return None;
    }
    if !p.is(ACK) {
        return p.is(Flags::RST).then_some(p);
    }
    if !p.is(Flags::RST) {
        slot.rcv_nxt = slot.rcv_nxt.max(p.ack);
    }
    let withheld = p.payload.is_empty() && p.seq == slot.snd_nxt.plus(1);
    if !slot.fin_allowed && ((p.is(Flags::FIN) && p.payload.is_empty()) || withheld) {
        return None;
    }
    slot.tsval = p.tsval;
    let edge = p.ack.plus(u64::from(p.window) << shift(slot.rcv_wscale));
    slot.right_edge = slot.right_edge.max(edge);
    let seq_end = p.seq_end();
    let beyond = p.ack.after(slot.stable) && mutation != Some(Mutation::AckBeyondStable);
    let result = if beyond { clamp(slot, &mut p, edge, mutation).then_some(p) } else { Some(p) };
    if let Some(p) = &result {
        slot.snd_nxt = slot.snd_nxt.max(seq_end);
        slot.last_ack = slot.last_ack.max(p.ack);
        let shown = p.ack.plus(u64::from(p.window) << shift(slot.rcv_wscale));
        slot.last_edge = slot.last_edge.max(shown);
    }
    if let Some(una) = snd_una.filter(|una| una.after(slot.snd_una) && !una.after(slot.snd_nxt)) {
        slot.snd_una = una;
    }
    result
}

/// Rewrites ACK and window so that the right edge stays; false: a repeat that
/// need not go.
fn clamp(slot: &Slot, p: &mut Packet, edge: SeqNo, mutation: Option<Mutation>) -> bool {
    let unit = shift(slot.rcv_wscale);
    let window = (edge.since(slot.stable).max(0) as u32 >> unit).min(65535);
    let shown = slot.stable.plus(u64::from(window) << unit);
    if p.is_pure() && slot.stable == slot.last_ack && !shown.after(slot.last_edge) {
        return false;
    }
    p.ack = slot.stable;
    // The mutation moves the right edge left (law L4).
    p.window = if mutation == Some(Mutation::ShrinkWindow) { p.window } else { window as u16 };
    true
}
