//! The gate on the primary's service interface: it holds back SYN-ACKs until their record is
//! replicated, ACKs until `stable` has reached them, and FIN and RST until the server has asked
//! for them. While the server runs alone (solo), the gate holds back nothing of a connection that
//! it knows. `bpf/gate.bpf.c` does the work; this type loads it and is its user-space half.

use super::error::BpfError;
use super::layout::{
    GATE_COUNTERS, GATE_DEFERS_RESETS, GATE_KEEPS_RESETS, GATE_LETS_RESETS, GateEvent, GateSlot,
    RawKey, ServiceKey,
};
use super::loader::{Counters, Detached, Object};
use super::owner::Owner;
use super::slots::Slots;
use super::{kept, qdisc};
use crate::clock::{kernel_ns, monotonic};
use aya::maps::{Array, HashMap, Map, MapData, MapError, Queue, RingBuf};
use aya::programs::TcAttachType::{self, Egress, Ingress};
use holdfast_wire::gate::{Adopted, SlotView};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::complete_checksum;
use holdfast_wire::seq::SeqNo;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

static OBJECT: Object = Object {
    name: "gate",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/gate.bpf.o")),
    maps: &[
        "services",
        "addresses",
        "counters",
        "gate_syns",
        "gate_conns",
        "gate_slots",
        "gate_free",
        "gate_events",
        "gate_dead",
        "gate_asked",
        "gate_unknown",
        "gate_solo",
        "gate_minded",
    ],
    counters: &GATE_COUNTERS,
    priority: 100,
};
const DIRECTIONS: [TcAttachType; 2] = [Ingress, Egress];

/// Lets a map take a new key only (linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

/// Where a gate is attached and what it protects.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The interface through which clients are answered.
    pub interface: String,
    pub services: Vec<(IpAddr, u16)>,
    /// Most connections protected at once; see [`super::GATE_SLOTS_DEFAULT`].
    pub slots: u32,
    /// Whether the server runs alone when the gate is attached; see [`Gate::set_solo`].
    pub solo: bool,
    /// Whether this host may be replaced without knowing it: then an RST leaves for a connection
    /// without a slot, while the server does not run alone, only after [`Gate::note_grant`] has
    /// shown that the other member does not have it.
    pub deposable: bool,
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
}

/// A SYN-ACK that the gate has caught. If it has not `passed`, the caller sends it after
/// [`Gate::open`]: the kernel's retransmission would come a second later at best.
#[derive(Debug)]
pub struct SynAck<'a> {
    pub conn: ConnId,
    /// The cookie of its socket (SO_COOKIE).
    pub socket: u64,
    pub record: ConnRecord,
    /// The packet from the IP header on, with complete checksums.
    pub packet: &'a [u8],
    /// Whether the packet has left and the connection is open, because the server ran alone.
    pub passed: bool,
}

/// An attached gate. Dropping it leaves the gate as it is: `stable` does not advance and nothing
/// more is released, or, if the server runs alone, everything passes.
pub struct Gate {
    slots: Slots,
    conns: HashMap<MapData, RawKey, u32>,
    free: Queue<MapData, u32>,
    events: RingBuf<MapData>,
    dead: Array<MapData, u32>,
    /// None in a gate that a daemon of an earlier version has left.
    asked: Option<Array<MapData, u64>>,
    solo: Array<MapData, u32>,
    minded: Array<MapData, u64>,
    counters: Counters,
    deposable: bool,
    interface: String,
    pin_dir: PathBuf,
}

impl Gate {
    /// Attaches a fresh gate, in place of any earlier one on the interface. Connections that
    /// exist already have no slot until they are adopted: the gate holds back their packets,
    /// unless the server runs alone.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, the interface does not exist, or there
    /// are no or too many services.
    pub fn attach(config: &GateConfig) -> Result<Self, BpfError> {
        OBJECT.unpin(&config.pin_dir)?;
        let sizes = ["gate_conns", "gate_slots", "gate_free"].map(|map| (map, config.slots));
        let mut loaded = OBJECT.load(&config.pin_dir, &sizes)?;
        loaded.set_services(&config.services)?;
        let slots = loaded.array_data("gate_slots")?;
        let mut gate = Self {
            slots: Slots::new(slots.fd(), config.slots).map_err(BpfError::Slots)?,
            conns: loaded.map("gate_conns")?,
            free: loaded.map("gate_free")?,
            events: loaded.map("gate_events")?,
            dead: loaded.map("gate_dead")?,
            asked: Some(loaded.map("gate_asked")?),
            solo: loaded.map("gate_solo")?,
            minded: loaded.map("gate_minded")?,
            deposable: config.deposable,
            counters: loaded.counters()?,
            interface: config.interface.clone(),
            pin_dir: config.pin_dir.clone(),
        };
        for index in 0..gate.slots.count() {
            gate.free.push(index, 0).map_err(BpfError::map("gate_free"))?;
        }
        gate.set_solo(config.solo)?;
        gate.set_server_dead(false)?;
        loaded.attach("gate_ingress", &[&config.interface], Ingress)?;
        loaded.attach("gate_egress", &[&config.interface], Egress)?;
        Ok(gate)
    }

    /// Takes over the gate that an earlier daemon has left, with all that it knows. Its programs
    /// have run all the time; if they are gone, [`Gate::mend`] attaches them again.
    ///
    /// # Errors
    /// [`BpfError::Map`] if it is not there, [`BpfError::OtherGate`] if it is not one of
    /// this version, or for these services.
    pub fn reopen(config: &GateConfig) -> Result<Self, BpfError> {
        let pinned = |map| OBJECT.pinned(&config.pin_dir, map);
        let slots = pinned("gate_slots")?;
        let info = slots.info().map_err(BpfError::map("gate_slots"))?;
        let services = HashMap::<_, ServiceKey, u32>::try_from(Map::HashMap(pinned("services")?));
        let services = services.map_err(BpfError::map("services"))?;
        let known: Vec<ServiceKey> = services.keys().filter_map(Result::ok).collect();
        let wanted = config.services.iter().map(|(ip, port)| ServiceKey::new(*ip, *port));
        let same =
            known.len() == config.services.len() && wanted.clone().all(|it| known.contains(&it));
        if !same || info.value_size() as usize != size_of::<GateSlot>() {
            return Err(BpfError::OtherGate);
        }
        kept::keep(&OBJECT.directory(&config.pin_dir))?;
        qdisc::keep_marks(&config.pin_dir);
        let array = |map| {
            let found = Array::try_from(Map::Array(pinned(map)?));
            found.map_err(BpfError::map(map))
        };
        let minded = Array::try_from(Map::Array(pinned("gate_minded")?));
        let asked = pinned("gate_asked").ok();
        Ok(Self {
            slots: Slots::new(slots.fd(), info.max_entries()).map_err(BpfError::Slots)?,
            conns: HashMap::try_from(Map::HashMap(pinned("gate_conns")?))
                .map_err(BpfError::map("gate_conns"))?,
            free: Queue::try_from(Map::Queue(pinned("gate_free")?))
                .map_err(BpfError::map("gate_free"))?,
            events: RingBuf::try_from(Map::RingBuf(pinned("gate_events")?))
                .map_err(BpfError::map("gate_events"))?,
            dead: array("gate_dead")?,
            asked: asked.and_then(|map| Array::try_from(Map::Array(map)).ok()),
            solo: array("gate_solo")?,
            minded: minded.map_err(BpfError::map("gate_minded"))?,
            deposable: config.deposable,
            counters: OBJECT.pinned_counters(&config.pin_dir)?,
            interface: config.interface.clone(),
            pin_dir: config.pin_dir.clone(),
        })
    }

    /// All connections that the gate knows. The timestamp in a record is the latest one, not that
    /// of the handshake.
    #[must_use]
    pub fn known(&self) -> Vec<(ConnId, ConnRecord)> {
        let indices = self.conns.iter().filter_map(|entry| Some(entry.ok()?.1));
        let conns = indices.filter_map(|index| self.slots.current(index));
        conns.filter_map(|conn| Some((conn, self.slots.record(conn)?))).collect()
    }

    /// Becomes readable when SYN-ACKs wait for [`Gate::drain_events`].
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Passes every SYN-ACK that was caught since the last call to `handle`.
    pub fn drain_events(&mut self, mut handle: impl FnMut(SynAck<'_>)) {
        while let Some(item) = self.events.next() {
            let Ok((event, _)) = GateEvent::read_from_prefix(&item) else { continue };
            let mut packet = event.packet;
            let len = usize::from(event.packet_len).min(packet.len());
            // The network card would have completed the checksum (offload). A packet where that
            // fails goes as it is.
            let _ = complete_checksum(&mut packet[..len]);
            let conn = ConnId(u64::from(event.generation) << 32 | u64::from(event.index));
            let (socket, record) = (event.socket, record_of(&event));
            let passed = event.passed != 0;
            handle(SynAck { conn, socket, record, packet: &packet[..len], passed });
        }
    }

    /// Lets the connection's SYN-ACK and what follows pass, by the gate's other rules. `false` if
    /// the connection is gone.
    pub fn open(&self, conn: ConnId) -> bool {
        self.slots.open(conn)
    }

    /// Lets ACKs up to and including `stable` pass: a store to shared memory.
    /// `stable` is a sequence number of the client's stream and must not go back.
    /// `false` if the connection is gone.
    pub fn set_stable(&self, conn: ConnId, stable: SeqNo) -> bool {
        self.slots.set_stable(conn, stable)
    }

    /// Lets the connection's FIN (or RST) leave, because the server has closed it. `false` if the
    /// connection is gone.
    pub fn allow_fin(&self, conn: ConnId) -> bool {
        self.slots.allow_fin(conn)
    }

    /// Sets whether the server runs alone, with one store. While it does (`solo`), everything
    /// passes unchanged, with or without a slot, except for new connections without a slot while
    /// [`Gate::mind_slots`] is in force. The gate still gives new connections a slot and keeps it
    /// up to date. Afterwards a connection whose packets have passed is open, and may end if a
    /// FIN has passed; what was acknowledged stays acknowledged.
    ///
    /// Before `solo` ends, every connection needs a slot ([`Gate::adopt`]) and its own `stable`,
    /// because a `stable` that lags by 2^31 bytes counts as ahead. A packet that is under way at
    /// that moment may still pass, so look at `last_ack` afterwards.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn set_solo(&mut self, solo: bool) -> Result<(), BpfError> {
        self.solo.set(0, u32::from(solo), 0).map_err(BpfError::map("gate_solo"))
    }

    /// Tells the gate that for the time `lasts` the slots of ended connections are being freed.
    /// For that time new connections without a slot are refused even while the server runs alone.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn mind_slots(&mut self, lasts: Duration) -> Result<(), BpfError> {
        let until = monotonic() + lasts;
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.minded.set(0, until_ns, 0).map_err(BpfError::map("gate_minded"))
    }

    /// Empties the gate: it then knows no connection, and the server behind it runs alone.
    /// Attaching a fresh gate instead would cost a system call for each of its slots.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses a map update.
    pub fn begin_anew(&mut self) -> Result<(), BpfError> {
        self.drain_events(|_| {});
        for index in 0..self.slots.count() {
            if let Some(conn) = self.slots.current(index) {
                self.free(conn)?;
            }
        }
        self.set_server_dead(false)?;
        self.set_solo(true)
    }

    /// Gives a slot to a connection that exists already: open, with `stable` at its rcv_nxt. An
    /// earlier connection with the same four-tuple loses its slot.
    ///
    /// # Errors
    /// [`BpfError::NoSlot`] if none is free, [`BpfError::Map`] if the kernel refuses a
    /// map update. Nothing is left of the connection then.
    pub fn adopt(&mut self, adopted: &Adopted) -> Result<ConnId, BpfError> {
        let key = RawKey::from(&adopted.record.key);
        let mut popped = self.free.pop(0);
        if matches!(popped, Err(MapError::ElementNotFound)) {
            self.free_former(&adopted.record.key)?;
            popped = self.free.pop(0);
        }
        let index = match popped {
            Err(MapError::ElementNotFound) => return Err(BpfError::NoSlot),
            popped => popped.map_err(BpfError::map("gate_free"))?,
        };
        // No packet finds the slot before its four-tuple is in the map.
        let conn = self.slots.adopt(index, adopted);
        // There hardly ever is a former one, and asking would be one more system call for each of
        // the ten thousand connections of a takeover.
        let mut inserted = self.conns.insert(key, index, BPF_NOEXIST);
        if inserted.is_err() {
            self.free_former(&adopted.record.key)?;
            inserted = self.conns.insert(key, index, 0);
        }
        if let Err(error) = inserted {
            self.free(conn)?;
            return Err(BpfError::map("gate_conns")(error));
        }
        Ok(conn)
    }

    /// Frees the slot that a connection has under this four-tuple.
    fn free_former(&mut self, key: &ConnKey) -> Result<(), BpfError> {
        self.conn(key).map_or(Ok(()), |former| self.free(former).map(drop))
    }

    /// Frees the connection's slot; later packets of it are held back, unless the server runs
    /// alone. `false` if it was free already.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses a map update.
    pub fn free(&mut self, conn: ConnId) -> Result<bool, BpfError> {
        let Some(key) = self.slots.release(conn) else { return Ok(false) };
        let (key, index) = (RawKey::from(&key), conn.0 as u32);
        // A newer connection with the same four-tuple has a slot of its own in the map.
        if self.conns.get(&key, 0).is_ok_and(|slot| slot == index) {
            self.conns.remove(&key).map_err(BpfError::map("gate_conns"))?;
        }
        self.free.push(index, 0).map_err(BpfError::map("gate_free"))?;
        Ok(true)
    }

    /// The connection as the gate sees it; `None` if it is gone.
    #[must_use]
    pub fn slot(&self, conn: ConnId) -> Option<SlotView> {
        self.slots.view(conn)
    }

    /// The connection that has a slot under this four-tuple.
    #[must_use]
    pub fn conn(&self, key: &ConnKey) -> Option<ConnId> {
        self.slots.current(self.conns.get(&RawKey::from(key), 0).ok()?)
    }

    /// While `dead`, no RST leaves for four-tuples without a slot (decision 11).
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn set_server_dead(&mut self, dead: bool) -> Result<(), BpfError> {
        let resets = match (dead, self.deposable) {
            (true, _) => GATE_KEEPS_RESETS,
            (false, true) => GATE_DEFERS_RESETS,
            (false, false) => GATE_LETS_RESETS,
        };
        self.dead.set(0, resets, 0).map_err(BpfError::map("gate_dead"))
    }

    /// Tells a deposable host's gate that this host was the one that speaks, and was so later than
    /// `asked`: a connection that had no slot before then, and has none now, is nobody's.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn note_grant(&mut self, asked: Instant) -> Result<(), BpfError> {
        let Some(map) = &mut self.asked else { return Ok(()) };
        map.set(0, kernel_ns(asked), 0).map_err(BpfError::map("gate_asked"))
    }

    /// Attaches again the programs that somebody has removed from the interface; returns which
    /// they were.
    ///
    /// # Errors
    /// [`BpfError::Attach`].
    pub fn mend(interface: &str, pin_dir: &Path) -> Result<Vec<Detached>, BpfError> {
        let places = [("gate_ingress", interface, Ingress), ("gate_egress", interface, Egress)];
        OBJECT.mend(pin_dir, &places)
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has its place at the interface.
    pub fn is_free(
        interface: &str,
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<(), BpfError> {
        let own = Owner::of_services(services);
        OBJECT.refuse_others(&[interface], &DIRECTIONS, &own, pin_dir)
    }

    /// Counts since the gate was attached.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Removes programs and pins: the service is no longer gated.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach(self) -> Result<(), BpfError> {
        Self::detach_stale(&self.interface, &[], &self.pin_dir).map(drop)
    }

    /// Removes what an earlier process left; nothing to remove is no error. Another
    /// group's programs, which serve none of `services`, stay.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach_stale(
        interface: &str,
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        let owner = (!services.is_empty()).then(|| Owner::of_services(services));
        OBJECT.detach_all(&[interface], &DIRECTIONS, owner, pin_dir)
    }
}

fn record_of(event: &GateEvent) -> ConnRecord {
    ConnRecord {
        key: ConnKey::from(&event.key),
        iss: SeqNo(event.iss),
        irs: SeqNo(event.irs),
        mss: event.mss,
        peer_mss: event.peer_mss,
        rcv_wscale: event.rcv_wscale,
        snd_wscale: event.snd_wscale,
        sack: event.sack != 0,
        tsval: (event.has_ts != 0).then_some(event.tsval),
        window: event.window,
    }
}
