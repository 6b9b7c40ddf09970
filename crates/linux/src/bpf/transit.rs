//! One edge of a transit group: its programs keep every flow on one string of
//! middleboxes, in both directions, and move it when that string dies
//! (`bpf/transit.bpf.c`). A restarted edge takes over the maps that it finds,
//! so the table of strings and the flows survive the daemon.

use super::batch;
use super::error::BpfError;
use super::layout::{
    REGULATE_FLOWS_DEFAULT, RawKey, RawRegulateFlow, RawRegulateString, RawString, RawTable,
    RawTraffic, RawTransitFlow, RawTransitKey, STRING_V4, STRING_V6, STRINGS_MAX, TRANSIT_CLOSED,
    TRANSIT_COUNTERS, TRANSIT_FROM_OUTSIDE, TRANSIT_FROM_STRING, TRANSIT_LEADS,
    TRANSIT_OUTSIDE_FIN, TRANSIT_RESET, TRANSIT_RETURN_ALL, TRANSIT_SLOTS, TRANSIT_STRING_FIN,
};
use super::loader::{Counters, Detached, Mended, Object};
use super::net;
use super::owner::{GROUP_NAME, Owner};
use super::pins::Pin;
use super::recover::Copies;
use super::regulate::Regulated;
use super::trace::{self, Question, Traced};
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::TcAttachType::Ingress;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

static OBJECT: Object = Object {
    name: "transit",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/transit.bpf.o")),
    maps: &[
        GROUP_NAME,
        "services",
        "addresses",
        "counters",
        "capture_credit",
        "captures",
        "recover_control",
        "recover_hold",
        "recover_packets",
        "recover_counts",
        "regulate_control",
        "regulate_flows",
        "regulate_strings",
        "regulate_counts",
        "transit_flows",
        "transit_table",
        "transit_traffic",
    ],
    counters: &TRANSIT_COUNTERS,
    priority: 106,
};

/// Silence after which a TCP flow is forgotten: 2 h 4 min (RFC 5382 REQ-5).
const TCP_AGE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
/// The same for UDP: 5 min (RFC 4787 REQ-5).
const UDP_AGE: Duration = Duration::from_secs(300);
/// Silence after which a flow that was closed, reset or never answered is forgotten, so that a
/// flood of unanswered packets fills the table for no longer.
const OVER_AGE: Duration = Duration::from_secs(30);

/// One string, as this edge sees it.
#[derive(Clone, Debug)]
pub struct StringPort {
    /// The interface behind which this string, and nothing else, begins.
    pub interface: String,
    /// The string's first host; packets of a family without one take their ordinary route.
    pub next_hop4: Option<Ipv4Addr>,
    pub next_hop6: Option<Ipv6Addr>,
}

/// What an edge of a transit group connects.
#[derive(Clone, Debug)]
pub struct TransitConfig {
    /// The group's name, by which its programs are told from another group's.
    pub group: String,
    /// Interfaces that face clients or servers.
    pub outside: Vec<String>,
    /// Strings in the order of the bits and slots of [`TransitState`].
    pub strings: Vec<StringPort>,
    /// Whether this edge chooses the strings, and the other edge follows.
    pub leads: bool,
    /// Whether moved flows go back when their first string works again.
    pub return_all: bool,
    /// Seed of the hash that spreads flows: the same at both edges, and secret.
    pub seed: u32,
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
    /// Most flows that are kept on their strings; see
    /// [`super::TRANSIT_FLOWS_DEFAULT`].
    pub flows_max: u32,
}

/// Which strings may be used, and which one each part of the flows uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitState {
    /// Number that grows with every change.
    pub epoch: u32,
    /// Mask of strings: bit `i` is string `i`.
    pub usable: u32,
    /// The string of each part of the flows.
    pub slots: [u8; TRANSIT_SLOTS],
    /// Whether an operator has closed the edge, which is why no string is usable.
    pub is_closed: bool,
}

/// Traffic through a string, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

/// The attached edge. Dropping it leaves everything in place and working.
pub struct Transit {
    table: Array<MapData, RawTable>,
    raw: RawTable,
    traffic: PerCpuArray<MapData, RawTraffic>,
    counters: Counters,
    copies: Option<Copies>,
    regulated: Option<Regulated>,
    string_count: usize,
    interfaces: Vec<String>,
    pin_dir: PathBuf,
}

/// The places of an edge's programs; see [`Transit::programs`].
#[derive(Clone, Debug)]
pub struct TransitPrograms {
    strings: Vec<String>,
    outside: Vec<String>,
    pin_dir: PathBuf,
}

impl TransitPrograms {
    /// Attaches again the programs that somebody has removed, alone or with their interface, as far
    /// as the interfaces exist.
    #[must_use]
    pub fn mend(&self) -> Mended {
        let strings = self.strings.iter().map(|name| ("transit_string", name.as_str(), Ingress));
        let outside = self.outside.iter().map(|name| ("transit_outside", name.as_str(), Ingress));
        OBJECT.mend_each(&self.pin_dir, strings.chain(outside))
    }
}

impl Transit {
    /// Attaches the edge. Maps of an earlier edge in `pin_dir` keep their table
    /// and flows; a new edge forwards nothing into strings until
    /// [`Transit::set_state`].
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, an interface does not exist, a limit
    /// is exceeded, or pinned maps do not fit this configuration.
    pub fn attach(config: &TransitConfig) -> Result<Self, BpfError> {
        let string_count = config.strings.len();
        if string_count == 0 || string_count > STRINGS_MAX {
            return Err(BpfError::Strings(string_count));
        }
        let strings: Vec<&str> = config.strings.iter().map(|s| s.interface.as_str()).collect();
        let outside: Vec<&str> = config.outside.iter().map(String::as_str).collect();
        Self::is_free(&[&strings[..], &outside].concat(), &config.group, &config.pin_dir)?;
        check_pins(config)?;
        let mut loaded = OBJECT.load(&config.pin_dir, &[("transit_flows", config.flows_max)])?;
        loaded.set_group(&config.group)?;
        let mut table: Array<MapData, RawTable> = loaded.map("transit_table")?;
        let raw = take_over(&table, config)?;
        table.set(0, raw, 0).map_err(BpfError::map("transit_table"))?;
        let mut transit = Self {
            table,
            raw,
            traffic: loaded.map("transit_traffic")?,
            counters: loaded.counters()?,
            copies: Some(Copies::of(&mut loaded)?),
            regulated: Some(Regulated::of(&mut loaded)?),
            string_count,
            interfaces: Vec::new(),
            pin_dir: config.pin_dir.clone(),
        };
        loaded.attach("transit_string", &strings, Ingress)?;
        loaded.attach("transit_outside", &outside, Ingress)?;
        transit.interfaces = strings.iter().chain(&outside).map(|name| (*name).into()).collect();
        Ok(transit)
    }

    /// Its programs, to look after in another thread: the kernel may make that one wait.
    #[must_use]
    pub fn programs(&self) -> TransitPrograms {
        let (strings, outside) = self.interfaces.split_at(self.string_count);
        let (strings, outside) = (strings.to_vec(), outside.to_vec());
        TransitPrograms { strings, outside, pin_dir: self.pin_dir.clone() }
    }

    /// Sends through the interfaces with these numbers, those of the strings, of which some may
    /// have been made anew. An absent one (`None`) keeps its number, which is nobody's.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn follow(
        &mut self,
        interfaces: impl IntoIterator<Item = Option<u32>>,
    ) -> Result<(), BpfError> {
        let before = self.raw.strings;
        for (row, index) in self.raw.strings.iter_mut().zip(interfaces) {
            row.ifindex = index.unwrap_or(row.ifindex);
        }
        if self.raw.strings == before {
            return Ok(());
        }
        self.table.set(0, self.raw, 0).map_err(BpfError::map("transit_table"))
    }

    /// Lets flows use only these strings from now on. One map update, in force
    /// when this returns.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn set_state(&mut self, state: &TransitState) -> Result<(), BpfError> {
        self.raw.epoch = state.epoch;
        self.raw.armed = 1;
        self.raw.usable = state.usable;
        self.raw.flags &= !TRANSIT_CLOSED;
        self.raw.flags |= if state.is_closed { TRANSIT_CLOSED } else { 0 };
        self.raw.slots = state.slots;
        self.table.set(0, self.raw, 0).map_err(BpfError::map("transit_table"))
    }

    /// The table as the kernel has it; `None` until it was set once.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn state(&self) -> Result<Option<TransitState>, BpfError> {
        let raw = self.table.get(&0, 0).map_err(BpfError::map("transit_table"))?;
        let RawTable { epoch, usable, slots, flags, .. } = raw;
        let is_closed = flags & TRANSIT_CLOSED != 0;
        Ok((raw.armed != 0).then_some(TransitState { epoch, usable, slots, is_closed }))
    }

    /// Traffic that went into each string here, and that came out of it.
    #[must_use]
    pub fn traffic(&self) -> Vec<(Traffic, Traffic)> {
        let read = |index: usize| {
            let values = self.traffic.get(&(index as u32), 0).ok();
            values.iter().flat_map(|values| values.iter()).fold(Traffic::default(), |sum, one| {
                Traffic { packets: sum.packets + one.packets, bytes: sum.bytes + one.bytes }
            })
        };
        (0..self.string_count).map(|string| (read(2 * string), read(2 * string + 1))).collect()
    }

    /// Counts since the edge's maps were made.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Asks the attached program where a packet from outside would go; the answer's `member` is
    /// the string. Nothing is counted, entered or sent.
    ///
    /// # Errors
    /// [`BpfError::Trace`] if the kernel does not run it.
    pub fn trace(&self, question: &Question) -> Result<Traced, BpfError> {
        let pin = OBJECT.directory(&self.pin_dir).join("transit_outside");
        let outside = self.interfaces.get(self.string_count).map_or("", String::as_str);
        trace::ask(&pin, "transit_outside", net::ifindex(outside)?, question)
    }

    /// Copies of the packets that pass, for a cache; only the first call returns
    /// them.
    #[must_use]
    pub fn take_copies(&mut self) -> Option<Copies> {
        self.copies.take()
    }

    /// The cap on windows; only the first call returns it.
    #[must_use]
    pub fn take_regulated(&mut self) -> Option<Regulated> {
        self.regulated.take()
    }

    /// A sweeper that forgets flows that are over; it works beside this object.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn sweeper(&self) -> Result<FlowSweeper, BpfError> {
        let pinned = || {
            let path = OBJECT.directory(&self.pin_dir).join("transit_flows");
            MapData::from_pin(path).map_err(BpfError::map("transit_flows"))
        };
        let map = aya::maps::Map::HashMap(pinned()?);
        let flows = HashMap::try_from(map).map_err(BpfError::map("transit_flows"))?;
        Ok(FlowSweeper { flows, flows_fd: pinned()? })
    }

    /// Removes programs and pins: every packet takes its ordinary route.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach(self) -> Result<(), BpfError> {
        let interfaces: Vec<&str> = self.interfaces.iter().map(String::as_str).collect();
        OBJECT.detach_all(&interfaces, &[Ingress], None, &self.pin_dir).map(drop)
    }

    /// Removes what an earlier process left; nothing to remove is no error. Another
    /// group's programs stay.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach_stale(
        interfaces: &[&str],
        group: &str,
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        OBJECT.detach_all(interfaces, &[Ingress], Some(Owner::Group(group.into())), pin_dir)
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has its place at one of the interfaces.
    pub fn is_free(interfaces: &[&str], group: &str, pin_dir: &Path) -> Result<(), BpfError> {
        OBJECT.refuse_others(interfaces, &[Ingress], &Owner::Group(group.into()), pin_dir)
    }
}

/// The table of flows, for counting and forgetting them.
pub struct FlowSweeper {
    flows: HashMap<MapData, RawTransitKey, RawTransitFlow>,
    /// The same map again, for reading it in batches.
    flows_fd: MapData,
}

impl FlowSweeper {
    /// Forgets flows that are over or were silent for too long. Returns the
    /// number of flows on each string now.
    ///
    /// The programs' clock is the host's, which a time namespace may hide from this process. So
    /// the latest stamp counts as now, and while no packet passes, no flow ages.
    #[must_use]
    pub fn sweep(&mut self) -> [u64; STRINGS_MAX] {
        let flows: Vec<(RawTransitKey, RawTransitFlow)> =
            batch::entries(self.flows_fd.fd().as_fd()).unwrap_or_default();
        let now = flows.iter().map(|(_, flow)| flow.seen_ns).max().unwrap_or(0);
        let mut counts = [0; STRINGS_MAX];
        for (key, flow) in &flows {
            if now - flow.seen_ns > age_max(key, flow).as_nanos() as u64 {
                // It may be gone already.
                let _absent = self.flows.remove(key);
            } else if let Some(count) = counts.get_mut(usize::from(flow.string)) {
                *count += 1;
            }
        }
        counts
    }
}

fn age_max(key: &RawTransitKey, flow: &RawTransitFlow) -> Duration {
    const ANSWERED: u8 = TRANSIT_FROM_OUTSIDE | TRANSIT_FROM_STRING;
    const CLOSED: u8 = TRANSIT_OUTSIDE_FIN | TRANSIT_STRING_FIN;
    let over = flow.flags & CLOSED == CLOSED
        || flow.flags & TRANSIT_RESET != 0
        || flow.flags & ANSWERED != ANSWERED;
    match key.protocol as i32 {
        _ if over => OVER_AGE,
        libc::IPPROTO_TCP => TCP_AGE,
        _ => UDP_AGE,
    }
}

/// The table as an earlier daemon has left it, with this configuration's strings.
fn take_over(
    table: &Array<MapData, RawTable>,
    config: &TransitConfig,
) -> Result<RawTable, BpfError> {
    let mut raw = table.get(&0, 0).map_err(BpfError::map("transit_table"))?;
    raw.seed = config.seed;
    raw.flags = raw.flags & TRANSIT_CLOSED
        | if config.leads { TRANSIT_LEADS } else { 0 }
        | if config.return_all { TRANSIT_RETURN_ALL } else { 0 };
    raw.strings = [RawString::default(); STRINGS_MAX];
    for (row, port) in raw.strings.iter_mut().zip(&config.strings) {
        *row = RawString {
            ifindex: net::ifindex(&port.interface)?,
            families: if port.next_hop4.is_some() { STRING_V4 } else { 0 }
                | if port.next_hop6.is_some() { STRING_V6 } else { 0 },
            next_hop4: port.next_hop4.map_or([0; 4], |hop| hop.octets()),
            next_hop6: port.next_hop6.map_or([0; 16], |hop| hop.octets()),
        };
    }
    Ok(raw)
}

fn check_pins(config: &TransitConfig) -> Result<(), BpfError> {
    let strings = STRINGS_MAX as u32;
    let lasting = [
        Pin::of::<u32, RawTable>("transit_table", 1),
        Pin::of::<RawTransitKey, RawTransitFlow>("transit_flows", config.flows_max),
        Pin::of::<u32, RawTraffic>("transit_traffic", 2 * strings),
        Pin::of::<RawKey, RawRegulateFlow>("regulate_flows", REGULATE_FLOWS_DEFAULT),
        Pin::of::<u32, RawRegulateString>("regulate_strings", strings),
    ];
    OBJECT.check_pins(&config.pin_dir, &lasting, Pin::common(&OBJECT))
}
