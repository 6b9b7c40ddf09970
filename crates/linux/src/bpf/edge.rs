//! The programs of a pair's edge: forwarding, tap and fence, and the sequence numbers that each
//! flow has reached (its bounds; `bpf/edge.bpf.c`). A restarted edge takes over the maps that it
//! finds, so fence and flows survive the daemon.

use super::batch;
use super::error::{BpfError, absent_is_fine};
use super::flows::{FLOW_CLOSED, Fate, Silence, look_at};
use super::layout::{
    EDGE_COUNTERS, FLOW_LEARNT, MEMBERS_MAX, NO_MEMBER, RawFence, RawFlow, RawKey, RawMember,
};
use super::loader::{Counters, Detached, Mended, Object, remove_pin_dir, remove_qdiscs};
use super::net;
use super::owner::Owner;
use super::pins::Pin;
use super::recover::Copies;
use super::trace::{self, Question, Traced};
use crate::frame::Hop;
use aya::maps::{Array, HashMap, MapData};
use aya::programs::TcAttachType::Ingress;
use holdfast_wire::message::{ConnKey, FlowBounds, KEYS_MAX};
use holdfast_wire::seq::SeqNo;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

static OBJECT: Object = Object {
    name: "edge",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/edge.bpf.o")),
    maps: &[
        "services",
        "addresses",
        "counters",
        "capture_credit",
        "captures",
        "edge_fence",
        "edge_members",
        "edge_flows",
        "recover_control",
        "recover_hold",
        "recover_packets",
        "recover_counts",
    ],
    counters: &EDGE_COUNTERS,
    priority: 102,
};

/// Where one member is connected to the edge.
#[derive(Clone, Debug)]
pub struct MemberPort {
    /// The edge's interface, behind which there is only this member.
    pub interface: String,
    /// The member's Ethernet address.
    pub mac: [u8; 6],
}

/// What an edge serves.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    pub client_interfaces: Vec<String>,
    /// Members in the order of the indices that [`Edge::set_current`] takes.
    pub members: Vec<MemberPort>,
    /// The bridge with the host's addresses, if the members' interfaces are its ports.
    pub l3_interface: Option<String>,
    pub services: Vec<(IpAddr, u16)>,
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
    /// Most flows whose bounds are kept; see [`super::EDGE_FLOWS_DEFAULT`].
    pub flows_max: u32,
}

/// The attached edge. Dropping it leaves everything in place and working.
pub struct Edge {
    fence: Array<MapData, RawFence>,
    members: Array<MapData, RawMember>,
    flows: HashMap<MapData, RawKey, RawFlow>,
    /// The same map again, for reading it in batches.
    flows_fd: MapData,
    counters: Counters,
    copies: Option<Copies>,
    flows_max: u32,
    /// Where [`Edge::age_flows`] continues in the table; `None`: at its beginning.
    place: Option<u32>,
    silence: Silence,
    member_count: usize,
    interfaces: Vec<String>,
    client_interface: Option<String>,
    pin_dir: PathBuf,
}

impl Edge {
    /// Attaches the edge. Maps of an earlier edge in `pin_dir` keep their fence
    /// and flows; a new edge is closed until [`Edge::set_current`].
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, an interface does not exist, a limit
    /// is exceeded, or pinned maps do not fit this configuration.
    pub fn attach(config: &EdgeConfig) -> Result<Self, BpfError> {
        let member_count = config.members.len();
        if member_count == 0 || member_count > MEMBERS_MAX {
            return Err(BpfError::Members(member_count));
        }
        check_pins(config)?;
        let mut loaded = OBJECT.load(&config.pin_dir, &[("edge_flows", config.flows_max)])?;
        loaded.set_services(&config.services)?;
        let mut edge = Self {
            fence: loaded.map("edge_fence")?,
            members: loaded.map("edge_members")?,
            flows: loaded.map("edge_flows")?,
            flows_fd: MapData::from_pin(OBJECT.directory(&config.pin_dir).join("edge_flows"))
                .map_err(BpfError::map("edge_flows"))?,
            counters: loaded.counters()?,
            copies: Some(Copies::of(&mut loaded)?),
            flows_max: config.flows_max,
            place: None,
            silence: Silence::default(),
            member_count,
            interfaces: Vec::new(),
            client_interface: config.client_interfaces.first().cloned(),
            pin_dir: config.pin_dir.clone(),
        };
        edge.seat_members(config)?;
        let ports: Vec<&str> = config.members.iter().map(|m| m.interface.as_str()).collect();
        let clients: Vec<&str> = config.client_interfaces.iter().map(String::as_str).collect();
        // The fence is attached before the program that lets clients' packets in: no answer may
        // pass unfenced. An absent interface gets it when it appears (see `Edge::mend`).
        let present = |port: &&str| net::ifindex(port).is_ok();
        let here: Vec<&str> = ports.iter().copied().filter(present).collect();
        loaded.attach("edge_member", &here, Ingress)?;
        loaded.attach("edge_client", &clients, Ingress)?;
        edge.interfaces = ports.iter().chain(&clients).map(|name| (*name).into()).collect();
        Ok(edge)
    }

    /// Attaches again the programs that somebody has removed, alone or with their interface (as
    /// when a virtual machine reboots), as far as their interfaces exist. An absent interface
    /// does not harm the other members. The tap of a member whose interface has moved is off until
    /// [`Edge::set_tap`].
    pub fn mend(&mut self, config: &EdgeConfig) -> Mended {
        let ports = config.members.iter().map(|it| ("edge_member", it.interface.as_str(), Ingress));
        let clients = config.client_interfaces.iter();
        let clients = clients.map(|it| ("edge_client", it.as_str(), Ingress));
        let mut mended = OBJECT.mend_each(&config.pin_dir, ports.chain(clients));
        match self.write_members(config) {
            Ok(moved) => mended.moved = moved,
            Err(error) => mended.failed = Some(error),
        }
        mended
    }

    /// Lets only `member` send from the service addresses from now on; `None` closes the edge.
    /// This is one map update, in force when the call returns.
    ///
    /// # Errors
    /// [`BpfError::NoMember`] for an unknown member, [`BpfError::Map`] if the
    /// kernel refuses.
    pub fn set_current(&mut self, epoch: u64, member: Option<usize>) -> Result<(), BpfError> {
        let current = match member {
            None => NO_MEMBER,
            Some(index) if index < self.member_count => index as u32,
            Some(index) => return Err(BpfError::NoMember(index)),
        };
        let fence = RawFence { epoch, current, armed: 1 };
        self.fence.set(0, fence, 0).map_err(BpfError::map("edge_fence"))
    }

    /// The epoch and the current member as the kernel has them.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn current(&self) -> Result<(u64, Option<usize>), BpfError> {
        let fence = self.fence.get(&0, 0).map_err(BpfError::map("edge_fence"))?;
        let open = fence.armed != 0 && fence.current != NO_MEMBER;
        Ok((fence.epoch, open.then_some(fence.current as usize)))
    }

    /// Copies clients' packets to `member` while it is not current.
    ///
    /// # Errors
    /// [`BpfError::NoMember`] for an unknown member, [`BpfError::Map`] if the
    /// kernel refuses.
    pub fn set_tap(&mut self, member: usize, tap: bool) -> Result<(), BpfError> {
        if member >= self.member_count {
            return Err(BpfError::NoMember(member));
        }
        let index = member as u32;
        let mut row = self.members.get(&index, 0).map_err(BpfError::map("edge_members"))?;
        row.tap = u32::from(tap);
        self.members.set(index, row, 0).map_err(BpfError::map("edge_members"))
    }

    /// The copies of clients' packets, and of the headers that acknowledge them; `None` after the
    /// first call.
    pub fn take_copies(&mut self) -> Option<Copies> {
        self.copies.take()
    }

    /// The next hop of clients' packets to `member`.
    ///
    /// # Errors
    /// [`BpfError::NoMember`] for an unknown member, [`BpfError::Map`] if the
    /// kernel refuses.
    pub fn hop(&self, member: usize) -> Result<Hop, BpfError> {
        if member >= self.member_count {
            return Err(BpfError::NoMember(member));
        }
        let row = self.members.get(&(member as u32), 0).map_err(BpfError::map("edge_members"))?;
        Ok(Hop { ifindex: row.ifindex, from: row.port_mac, to: row.mac })
    }

    /// Bounds of one flow, if the edge has seen a packet of its server.
    #[must_use]
    pub fn bounds(&self, key: &ConnKey) -> Option<FlowBounds> {
        let flow = self.flows.get(&RawKey::from(key), 0).ok()?;
        Some(bounds_of(*key, &flow))
    }

    /// Bounds of all flows that may go on (not closed by both ends); flows added or removed
    /// meanwhile may be missing.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all_bounds(&self) -> io::Result<Vec<FlowBounds>> {
        let flows: Vec<(RawKey, RawFlow)> = batch::entries(self.flows_fd.fd().as_fd())?;
        let wanted = flows.iter().filter(|(_, flow)| flow.flags & FLOW_CLOSED != FLOW_CLOSED);
        Ok(wanted.map(|(key, flow)| bounds_of(ConnKey::from(key), flow)).collect())
    }

    /// Looks at the next few flows. Forgets those that are over (reset, closed both ways, or never
    /// established) and were silent for a second. Returns those that may have vanished without a
    /// FIN or RST, for [`Edge::forget_vanished`]: at most [`KEYS_MAX`], and none unless the caller
    /// `may_ask` their servers.
    /// A flow that may go on is kept, however long it is silent.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn age_flows(&mut self, now: Instant, may_ask: bool) -> Result<Vec<ConnKey>, BpfError> {
        let mut flows = Vec::new();
        // Entries that cannot be read now are looked at in the next sweep.
        let share = look_at(self.flow_count());
        let _ = batch::some(self.flows_fd.fd().as_fd(), &mut self.place, share, &mut flows);
        let crowded = self.flow_count() * 4 > self.flows_max as usize * 3;
        let mut asked = Vec::new();
        for (key, flow) in &flows {
            // Who is asked about more than a message holds is asked at the next sweep.
            let may_ask = may_ask && asked.len() < KEYS_MAX;
            match self.silence.look(now, (key, flow), (crowded, may_ask)) {
                Fate::Keep => {}
                Fate::Forget => self.remove(key)?,
                Fate::Ask => asked.push(ConnKey::from(key)),
            }
        }
        if self.place.is_none() {
            self.silence.end_sweep();
        }
        Ok(asked)
    }

    /// Forgets flows that [`Edge::age_flows`] has returned and whose server does not know them.
    /// If a packet of such a flow was seen since, it may be a new connection, and stays. Returns
    /// the number of forgotten flows.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn forget_vanished(&mut self, keys: &[ConnKey]) -> Result<usize, BpfError> {
        let mut forgotten = 0;
        for key in keys.iter().map(RawKey::from) {
            let Ok(flow) = self.flows.get(&key, 0) else { continue };
            if self.silence.asked(&key) == Some(flow.seen_ns) {
                self.silence.forget(&key);
                self.remove(&key)?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    /// Flows in the table, by the latest result of [`Edge::age_flows`].
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.silence.count()
    }

    /// Most flows that the table has room for.
    #[must_use]
    pub fn flows_max(&self) -> u32 {
        self.flows_max
    }

    /// Counts since the edge's maps were made.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Packets from current members that the program has forwarded to clients.
    #[must_use]
    pub fn spoken(&self) -> u64 {
        self.counters.one("forwarded_out")
    }

    /// Where a client's packet would go, as the loaded program says.
    ///
    /// # Errors
    /// [`BpfError::Trace`] if the program cannot be asked.
    pub fn trace(&self, question: &Question) -> Result<Traced, BpfError> {
        let pin = OBJECT.directory(&self.pin_dir).join("edge_client");
        let ifindex = self.client_interface.as_deref().map_or(Ok(0), net::ifindex)?;
        trace::ask(&pin, "edge_client", ifindex, question)
    }

    /// Removes programs and pins: nothing is forwarded, copied or fenced.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach(self) -> Result<(), BpfError> {
        let interfaces: Vec<&str> = self.interfaces.iter().map(String::as_str).collect();
        Self::detach_stale(&interfaces, &[], &self.pin_dir).map(drop)
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has its place at one of the interfaces.
    pub fn is_free(
        interfaces: &[&str],
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<(), BpfError> {
        OBJECT.refuse_others(interfaces, &[Ingress], &Owner::of_services(services), pin_dir)
    }

    /// Removes what a failed start has made: the programs that are pinned below
    /// `config.pin_dir`, the pins and their file system. What an earlier daemon has left
    /// elsewhere, and still works, stays.
    ///
    /// # Errors
    /// [`BpfError`] if something cannot be removed.
    pub fn undo(config: &EdgeConfig) -> Result<(), BpfError> {
        let ports = config.members.iter().map(|it| ("edge_member", it.interface.as_str()));
        let clients = config.client_interfaces.iter().map(|it| ("edge_client", it.as_str()));
        for (program, interface) in ports.chain(clients) {
            OBJECT.detach_pinned(program, interface, Ingress, &config.pin_dir)?;
        }
        OBJECT.unpin(&config.pin_dir)?;
        let _empty = remove_qdiscs(&config.pin_dir);
        remove_pin_dir(&config.pin_dir).map(drop)
    }

    /// Removes what an earlier process left; nothing to remove is no error. Another
    /// group's programs, which serve none of `services`, stay.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach_stale(
        interfaces: &[&str],
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        let owner = (!services.is_empty()).then(|| Owner::of_services(services));
        OBJECT.detach_all(interfaces, &[Ingress], owner, pin_dir)
    }

    /// Writes the members' rows. The fence names the current member by its row. If that member
    /// has another index in the configuration now, the fence follows it; meanwhile the fence is
    /// closed, because its row may hold another member.
    fn seat_members(&mut self, config: &EdgeConfig) -> Result<(), BpfError> {
        let (epoch, current) = self.current()?;
        let Some(index) = current else { return self.write_members(config).map(drop) };
        let old = self.members.get(&(index as u32), 0).map_err(BpfError::map("edge_members"))?;
        let stands = |port: &MemberPort| {
            port.mac == old.mac && net::ifindex(&port.interface).is_ok_and(|it| it == old.ifindex)
        };
        let place = config.members.iter().position(stands);
        if place == Some(index) {
            return self.write_members(config).map(drop);
        }
        self.set_current(epoch, None)?;
        self.write_members(config)?;
        self.set_current(epoch, place)
    }

    /// Writes all rows; true if any of them has changed.
    fn write_members(&mut self, config: &EdgeConfig) -> Result<bool, BpfError> {
        let mut moved = false;
        for index in 0..MEMBERS_MAX {
            let old = self.members.get(&(index as u32), 0);
            let old = old.map_err(BpfError::map("edge_members"))?;
            let row = match config.members.get(index) {
                Some(port) => member_row(&old, port, config)?,
                None => NOWHERE,
            };
            if row != old {
                moved = true;
                self.members.set(index as u32, row, 0).map_err(BpfError::map("edge_members"))?;
            }
        }
        Ok(moved)
    }

    fn remove(&mut self, key: &RawKey) -> Result<(), BpfError> {
        absent_is_fine(self.flows.remove(key), "edge_flows")
    }
}

/// Row of a member without an interface: nothing is sent to it, and nothing from it passes.
const NOWHERE: RawMember =
    RawMember { ifindex: 0, l3_ifindex: 0, mac: [0; 6], port_mac: [0; 6], tap: 0 };

/// A member's row. If interface and hardware address are as before it keeps its tap, because it
/// may be a backup in step. If the interface is absent, the row keeps the hardware address.
fn member_row(
    old: &RawMember,
    port: &MemberPort,
    config: &EdgeConfig,
) -> Result<RawMember, BpfError> {
    let found = net::ifindex(&port.interface).and_then(|i| Ok((i, net::mac(&port.interface)?)));
    let Ok((ifindex, port_mac)) = found else {
        return Ok(RawMember { mac: port.mac, ..NOWHERE });
    };
    let l3_ifindex = match &config.l3_interface {
        Some(interface) => net::ifindex(interface)?,
        None => ifindex,
    };
    let same = old.ifindex == ifindex && old.mac == port.mac;
    let tap = if same { old.tap } else { 0 };
    Ok(RawMember { ifindex, l3_ifindex, mac: port.mac, port_mac, tap })
}

fn check_pins(config: &EdgeConfig) -> Result<(), BpfError> {
    let lasting = [
        Pin::of::<u32, RawFence>("edge_fence", 1),
        Pin::of::<u32, RawMember>("edge_members", MEMBERS_MAX as u32),
        Pin::of::<RawKey, RawFlow>("edge_flows", config.flows_max),
    ];
    let others = Pin::common(&OBJECT).into_iter().chain(Pin::recover()).chain(Pin::services());
    OBJECT.check_pins(&config.pin_dir, &lasting, others)
}

fn bounds_of(key: ConnKey, flow: &RawFlow) -> FlowBounds {
    FlowBounds {
        key,
        iss: (flow.flags & FLOW_LEARNT == 0).then_some(SeqNo(flow.iss)),
        seq_end: SeqNo(flow.seq_end),
        right_edge: SeqNo(flow.right_edge),
        tsval: flow.tsval,
        client_ack: SeqNo(flow.client_ack),
    }
}
