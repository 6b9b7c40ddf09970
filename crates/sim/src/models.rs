//! The simulator's models of the gate and of the edges' data paths, packet by packet, for
//! tests that compare them with the programs that they model (`bpf/gate.bpf.c`,
//! `bpf/edge.bpf.c`, `bpf/redirect.bpf.c`, `bpf/transit.bpf.c`); and the two ends of the
//! tap: a primary's kernel, and the backup that must hold the same input. Packets are
//! bytes from the IP header on.

mod tap;

use crate::Ns;
use crate::edge::{Edge, Flow};
use crate::gate::{Counts, Gate, Held};
use crate::packet::{NO_SCALING, Packet, Truth};
use crate::plan::Limits;
use holdfast_wire::gate::{Adopted, SlotView};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};
use holdfast_wire::seq::SeqNo;

pub use crate::spread::model::{Became, PlaceWords, RedirectModel, Shown, State};
pub use crate::transit::model::{StringShown, StringWords, TransitModel};
pub use tap::{KernelModel, TapModel};

/// Most flows that the edge's model tracks; further ones are refused.
pub const FLOWS_MAX: usize = Limits::WIDE.edge_flows;

/// Time of all events, in ns: no time passes, so entries leave the tables only when the
/// caller removes them.
const NOW: Ns = 0;

/// Fields of a packet that the gate let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub ack: SeqNo,
    pub window: u16,
    pub flags: Flags,
    /// Whether its SACK blocks are still there.
    pub has_sack: bool,
}

/// The gate of one member.
#[derive(Debug)]
pub struct GateModel(Gate);

impl GateModel {
    #[must_use]
    pub fn new(slots_max: usize) -> Self {
        Self(Gate::new(&Limits { gate_slots: slots_max, ..Limits::WIDE }, None))
    }

    /// Handles a packet from a client.
    pub fn ingress(&mut self, bytes: &[u8]) {
        if let Some(packet) = packet(bytes, false, |_| None) {
            self.0.ingress(&packet);
        }
    }

    /// Handles a packet that the member's kernel sends; `None` if the gate holds or drops it.
    pub fn egress(&mut self, bytes: &[u8]) -> Option<Passed> {
        let last = |key: &ConnKey| Some(self.0.view(self.0.conn_of(key)?)?.tsval);
        let packet = packet(bytes, true, last)?;
        let passed = self.0.egress(packet, None, &mut Counts::default())?;
        let Packet { ack, window, flags, .. } = passed;
        let has_sack = !passed.sack.as_slice().is_empty();
        Some(Passed { ack, window, flags, has_sack })
    }

    /// The SYN-ACKs seen since the last call, and whether each one has passed.
    pub fn drain_held(&mut self) -> Vec<(ConnId, ConnRecord, bool)> {
        let told = |Held { id, record, passed, .. }| (id, record, passed);
        self.0.events.drain(..).map(told).collect()
    }

    /// The connection that has a slot under this four-tuple.
    #[must_use]
    pub fn conn(&self, key: &ConnKey) -> Option<ConnId> {
        self.0.conn_of(key)
    }

    #[must_use]
    pub fn view(&self, id: ConnId) -> Option<SlotView> {
        self.0.view(id)
    }

    pub fn open(&mut self, id: ConnId) {
        if let Some(slot) = self.0.slot_mut(id) {
            slot.open = true;
        }
    }

    pub fn allow_fin(&mut self, id: ConnId) {
        if let Some(slot) = self.0.slot_mut(id) {
            slot.fin_allowed = true;
        }
    }

    pub fn set_stable(&mut self, id: ConnId, stable: SeqNo) {
        if let Some(slot) = self.0.slot_mut(id) {
            slot.stable = stable;
        }
    }

    pub fn free(&mut self, id: ConnId) {
        self.0.free(id);
    }

    pub fn set_server_dead(&mut self, dead: bool) {
        self.0.server_dead = dead;
    }

    pub fn set_solo(&mut self, solo: bool) {
        self.0.solo = solo;
    }

    /// Sets whether a daemon is there to free slots.
    pub fn set_minded(&mut self, minded: bool) {
        self.0.minded = minded;
    }

    /// Sets whether the ring of events is full.
    pub fn set_events_full(&mut self, full: bool) {
        self.0.events_full = full;
    }

    /// Adopts a connection; `None` if no slot is free.
    pub fn adopt(&mut self, adopted: &Adopted) -> Option<ConnId> {
        self.0.adopt(adopted)
    }

    /// Number of SYN-ACKs that passed while the member ran alone, and that have no slot.
    #[must_use]
    pub fn unknown_alone(&self) -> u64 {
        self.0.unknown_alone
    }
}

/// What the edge remembers about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowWords {
    pub iss: SeqNo,
    pub seq_end: SeqNo,
    pub right_edge: SeqNo,
    pub tsval: u32,
    pub client_ack: SeqNo,
    pub server_ack: SeqNo,
    /// Window scale; 255 without the option.
    pub wscale: u8,
    pub established: bool,
    pub client_fin: bool,
    pub server_fin: bool,
    pub reset: bool,
    /// Whether its SYN-ACK was not seen.
    pub learnt: bool,
}

impl From<&Flow> for FlowWords {
    fn from(flow: &Flow) -> Self {
        Self {
            iss: flow.iss,
            seq_end: flow.seq_end,
            right_edge: flow.right_edge,
            tsval: flow.tsval,
            client_ack: flow.client_ack,
            server_ack: flow.server_ack,
            wscale: flow.wscale,
            established: flow.established,
            client_fin: flow.client_fin,
            server_fin: flow.server_fin,
            reset: flow.reset,
            learnt: flow.learnt,
        }
    }
}

/// The edge's data path, except for the fence.
pub struct EdgeModel(Edge);

impl Default for EdgeModel {
    fn default() -> Self {
        Self(Edge::new(FLOWS_MAX, None))
    }
}

impl EdgeModel {
    /// Handles a packet from a client; true if the backup gets a copy.
    pub fn client_sends(&mut self, bytes: &[u8]) -> bool {
        packet(bytes, false, |_| None).is_some_and(|packet| self.0.copies(NOW, &packet))
    }

    /// Handles a packet of the current member; false if the edge drops it.
    pub fn member_sends(&mut self, bytes: &[u8]) -> bool {
        let last = |key: &ConnKey| self.0.flow(key).map(|flow| flow.tsval);
        packet(bytes, true, last).is_some_and(|packet| self.0.track_server(NOW, &packet))
    }

    #[must_use]
    pub fn flow(&self, key: &ConnKey) -> Option<FlowWords> {
        self.0.flow(key).map(FlowWords::from)
    }
}

/// Parses a packet into the simulator's form, where every segment carries timestamps. A
/// segment without the option gets its sender's `last` timestamp, which changes no state.
fn packet(bytes: &[u8], of_server: bool, last: impl Fn(&ConnKey) -> Option<u32>) -> Option<Packet> {
    let p = TcpPacket::parse(bytes, Checksum::Verify).ok()?;
    let key = p.client_to_server_key();
    let key = if of_server { turned(&key) } else { key };
    let tsval = p.options.timestamps.map(|(tsval, _)| tsval);
    Some(Packet {
        key,
        seq: p.seq,
        ack: p.ack,
        flags: p.flags,
        window: p.window,
        wscale: p.options.wscale.unwrap_or(NO_SCALING),
        sack_permitted: p.options.sack_permitted,
        sack: p.options.sack,
        tsval: tsval.or_else(|| last(&key)).unwrap_or(0),
        payload: p.payload.into(),
        id: 0,
        truth: Truth::default(),
        fin_truth: Truth::default(),
        ce: false,
        is_dsack: false,
    })
}

fn turned(key: &ConnKey) -> ConnKey {
    ConnKey {
        server: key.client,
        client: key.server,
        server_port: key.client_port,
        client_port: key.server_port,
    }
}
