//! A spread group's redirector (`bpf/redirect.bpf.c`): services, host servers
//! and flows. A restarted redirector takes over the maps that it finds, so no
//! established connection moves.

mod elsewhere;

use super::batch;
use super::cost::Cost;
use super::directory;
use super::error::{BpfError, absent_is_fine};
use super::layout::{
    FLOW_CLIENT_FIN, FLOW_ESTABLISHED, FLOW_RESET, MAGLEV_ENTRIES, RawKey, SPREAD_COUNTERS,
    SPREAD_DATAGRAMS_MAX, SPREAD_DIRECTORIES, SPREAD_EMBRYOS_MAX, SPREAD_FRAGMENT_BYTES,
    SPREAD_FRAGMENTS_MAX, SPREAD_HOSTS_MAX, SPREAD_TABLES, SpreadConfig, SpreadDirectory,
    SpreadFlow, SpreadHost, SpreadKey4, SpreadService, SpreadTable, SpreadWay, mapped, unmapped,
};
use super::loader::{Counters, Detached, Loaded, Mended, Object};
use super::net;
use super::owner::{GROUP_NAME, Owner};
use super::pins::Pin;
use super::recover::Copies;
use super::trace::{self, Question, Traced};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::TcAttachType::Ingress;
use holdfast_wire::packet::mapped_ipv4;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Inverse of the share of time that may go into counting flows.
const COUNT_SHARE: u32 = 20;
const FLOWS4: &str = "spread_flows4";
const FLOWS6: &str = "spread_flows6";

static OBJECT: Object = Object {
    name: "redirect",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o")),
    maps: &[
        GROUP_NAME,
        "counters",
        "capture_credit",
        "captures",
        "recover_control",
        "recover_hold",
        "recover_packets",
        "recover_counts",
        "spread_config",
        "spread_directories",
        "spread_tables",
        "spread_hosts",
        FLOWS4,
        FLOWS6,
        "spread_embryos4",
        "spread_embryos6",
        "spread_datagrams4",
        "spread_datagrams6",
        "spread_fragments",
        "spread_full",
    ],
    counters: &SPREAD_COUNTERS,
    priority: 103,
};

/// Silence in s after which a flow that was reset is forgotten.
const RESET_AGE: u32 = 10;
/// The same for a flow that the client has closed.
const CLOSED_AGE: u32 = 120;
/// The same for a flow whose client has said nothing after its handshake, nor for long enough.
const YOUNG_AGE: u32 = 600;
/// The same while the table is nearly full, closed or not: a few packets, which anybody can send
/// in another's name, hold such a place. What still comes goes on by its hash.
const YOUNG_AGE_CROWDED: u32 = 30;
/// The same for all other flows (RFC 5382 §5 asks for more than two hours). While the table is
/// nearly full, only as long as the flow has lived, and at least [`YOUNG_AGE`].
const IDLE_AGE: u32 = 3 * 3600;
/// Most flows of one family forgotten at a time, so that a tick stays short.
pub const FORGET_MAX: usize = 16_384;

/// Configuration of a redirector.
#[derive(Clone, Debug)]
pub struct RedirectConfig {
    /// The group's name, by which its programs are told from another group's.
    pub group: String,
    pub client_interfaces: Vec<String>,
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
    /// Most connections of each family that are kept on their hosts; one more is refused.
    pub flows_max: u32,
    /// Seed of the hash that chooses: the same on all edges of a group.
    pub seed: u64,
    /// Outer source addresses: a prefix and its length.
    pub outer4: (Ipv4Addr, u8),
    pub outer6: (Ipv6Addr, u8),
}

/// An address, a port, and whether the protocol is UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub address: IpAddr,
    pub port: u16,
    pub udp: bool,
}

/// One host server as the program knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub v4: Option<Way>,
    pub v6: Option<Way>,
    pub state: HostState,
    /// Whether packets are sent without encapsulation: the next hop is the host server itself.
    pub layer2: bool,
}

/// How a host server's packets of one family leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub address: IpAddr,
    pub next_hop: IpAddr,
    /// Index of the interface; 0 if there is no route at the moment.
    pub ifindex: u32,
    pub mtu: u32,
}

/// Whether a host server takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostState {
    /// The slot is unused.
    #[default]
    Free,
    Up,
    /// It keeps its flows and gets no new ones.
    Draining,
    /// A new or repeated SYN goes to another host server; established flows still go here.
    Dead,
    /// Dead, and still drained when it comes back.
    DeadDrained,
}

/// The current flows.
#[derive(Clone, Debug)]
pub struct Flows {
    pub ipv4: usize,
    pub ipv6: usize,
    /// Most flows of each family, which has a table of its own.
    pub max: u32,
    /// Number of flows by slot, of both families.
    pub per_host: Vec<usize>,
}

impl Flows {
    /// Number of flows of both families.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ipv4 + self.ipv6
    }
}

/// The attached redirector. Dropping it leaves everything in place and working.
pub struct Redirect {
    config: Array<MapData, SpreadConfig>,
    directories: Array<MapData, SpreadDirectory>,
    tables: Array<MapData, SpreadTable>,
    hosts: Array<MapData, SpreadHost>,
    flows4: FlowTable<SpreadKey4>,
    flows6: FlowTable<RawKey>,
    counters: Counters,
    copies: Option<Copies>,
    /// Where the search for an unused table begins.
    next_table: u32,
    interfaces: Vec<String>,
    flows_max: u32,
    pin_dir: PathBuf,
    /// The last count of flows, and until when it is good enough.
    counted: RefCell<Option<(Flows, Instant)>>,
}

impl Redirect {
    /// Attaches the redirector. Services, host servers and flows of an earlier
    /// redirector in `pin_dir` are kept.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, an interface does not exist, or pinned
    /// maps do not fit this configuration.
    pub fn attach(config: &RedirectConfig) -> Result<Self, BpfError> {
        let sizes = [(FLOWS4, config.flows_max), (FLOWS6, config.flows_max)];
        let clients: Vec<&str> = config.client_interfaces.iter().map(String::as_str).collect();
        Self::is_free(&clients, &config.group, &config.pin_dir)?;
        check_pins(config)?;
        let mut loaded = OBJECT.load(&config.pin_dir, &sizes)?;
        loaded.set_group(&config.group)?;
        let mut redirect = Self {
            config: loaded.map("spread_config")?,
            directories: loaded.map("spread_directories")?,
            tables: loaded.map("spread_tables")?,
            hosts: loaded.map("spread_hosts")?,
            flows4: FlowTable::open(&mut loaded, FLOWS4)?,
            flows6: FlowTable::open(&mut loaded, FLOWS6)?,
            counters: loaded.counters()?,
            copies: Some(Copies::of(&mut loaded)?),
            next_table: 0,
            interfaces: config.client_interfaces.clone(),
            flows_max: config.flows_max,
            pin_dir: config.pin_dir.clone(),
            counted: RefCell::new(None),
        };
        redirect.write_config(config)?;
        loaded.pin_only("redirect_undone")?;
        loaded.attach("redirect", &clients, Ingress)?;
        Ok(redirect)
    }

    /// Attaches the program again where somebody has removed it, alone or with its interface, as
    /// far as the interfaces exist.
    #[must_use]
    pub fn mend(&self) -> Mended {
        let places = self.interfaces.iter().map(|name| ("redirect", name.as_str(), Ingress));
        OBJECT.mend_each(&self.pin_dir, places)
    }

    /// Copies of the SYNs that pass, each with the slot of its host server, for a
    /// cache; only the first call returns them.
    #[must_use]
    pub fn take_copies(&mut self) -> Option<Copies> {
        self.copies.take()
    }

    /// The slots in use.
    #[must_use]
    pub fn hosts(&self) -> Vec<(u8, Host)> {
        let host = |slot: u32| Some((slot as u8, host_of(&self.hosts.get(&slot, 0).ok()?)));
        let all = (0..SPREAD_HOSTS_MAX as u32).filter_map(host);
        all.filter(|(_, host)| host.state != HostState::Free).collect()
    }

    /// Sets the host server of a slot.
    ///
    /// # Errors
    /// [`BpfError::NoMember`] beyond the last slot, [`BpfError::Map`] if the kernel
    /// refuses.
    pub fn set_host(&mut self, slot: u8, host: &Host) -> Result<(), BpfError> {
        if usize::from(slot) >= SPREAD_HOSTS_MAX {
            return Err(BpfError::NoMember(slot.into()));
        }
        self.hosts.set(slot.into(), raw_host(host), 0).map_err(BpfError::map("spread_hosts"))
    }

    /// The services that are redirected.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceKey> {
        self.rows().iter().map(key_of).collect()
    }

    /// Redirects a service by `table`, atomically between two packets: the table is written to a
    /// place that no service uses, and then made the service's.
    ///
    /// # Errors
    /// [`BpfError::SpreadServices`] if there are too many, [`BpfError::Map`] if the
    /// kernel refuses.
    ///
    /// # Panics
    /// If `table` has not [`MAGLEV_ENTRIES`] entries.
    pub fn set_service(&mut self, service: &ServiceKey, table: &[u8]) -> Result<(), BpfError> {
        let table: Box<SpreadTable> =
            table.to_vec().into_boxed_slice().try_into().unwrap_or_else(|wrong: Box<[u8]>| {
                panic!("a table has {MAGLEV_ENTRIES} entries, not {}", wrong.len())
            });
        let mut rows = self.rows();
        let used = |table: &u32| rows.iter().any(|row| row.table == *table);
        let spare = (0..SPREAD_TABLES)
            .map(|i| (self.next_table + i) % SPREAD_TABLES)
            .find(|table| !used(table))
            .ok_or(BpfError::SpreadServices(rows.len()))?;
        // Next time another place is taken first: a packet may still read the replaced table.
        self.next_table = (spare + 1) % SPREAD_TABLES;
        self.tables.set(spare, *table, 0).map_err(BpfError::map("spread_tables"))?;
        rows.retain(|row| key_of(row) != *service);
        rows.push(raw_service(service, spare));
        self.set_rows(&rows)
    }

    /// Lets packets of the service take their ordinary route again; a service that is not
    /// redirected is no error.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn remove_service(&mut self, service: &ServiceKey) -> Result<(), BpfError> {
        let mut rows = self.rows();
        rows.retain(|row| key_of(row) != *service);
        self.set_rows(&rows)
    }

    /// Counts one second. Flows age by these ticks, so that none ages while there is no daemon.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn tick(&mut self) -> Result<(), BpfError> {
        let mut row = self.config()?;
        row.tick = row.tick.wrapping_add(1);
        self.config.set(0, row, 0).map_err(BpfError::map("spread_config"))
    }

    /// Forgets flows that are over or were silent for too long. Returns their number; from
    /// [`FORGET_MAX`] on there may be more.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses.
    pub fn age_flows(&mut self) -> Result<usize, BpfError> {
        let now = self.config()?.tick;
        let crowded = self.flows_max / 4 * 3;
        let forgotten = self.flows4.forget(now, crowded, FORGET_MAX)?;
        Ok(forgotten + self.flows6.forget(now, crowded, FORGET_MAX)?)
    }

    /// As [`Redirect::flows`], or what it was a moment ago: large tables take long to read, so
    /// whoever asks often is told what was counted before, and counting takes a twentieth of the
    /// caller's time at most.
    #[must_use]
    pub fn recent_flows(&self) -> Flows {
        let begun = Instant::now();
        if let Some((known, until)) = &*self.counted.borrow()
            && begun < *until
        {
            return known.clone();
        }
        let flows = self.flows();
        let until = begun + begun.elapsed() * COUNT_SHARE;
        *self.counted.borrow_mut() = Some((flows.clone(), until));
        flows
    }

    /// Number of the current flows, and how many each host server has.
    #[must_use]
    pub fn flows(&self) -> Flows {
        let (four, six) = (self.flows4.hosts(), self.flows6.hosts());
        let mut per_host = vec![0; SPREAD_HOSTS_MAX + 1];
        for host in four.iter().chain(&six) {
            per_host[usize::from(*host)] += 1;
        }
        Flows { ipv4: four.len(), ipv6: six.len(), max: self.flows_max, per_host }
    }

    /// Counts since the maps were made.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Where a packet would go, as the loaded program says.
    ///
    /// # Errors
    /// [`BpfError::Trace`] if the program cannot be asked.
    pub fn trace(&self, question: &Question) -> Result<Traced, BpfError> {
        let pin = OBJECT.directory(&self.pin_dir).join("redirect");
        let ifindex = self.interfaces.first().map_or(Ok(0), |first| net::ifindex(first))?;
        trace::ask(&pin, "redirect", ifindex, question)
    }

    /// Mean time that the program takes for one packet, over `repeat` runs: parsing, looking the
    /// flow up, and rewriting, which is undone between the runs. The flow is entered first.
    ///
    /// # Errors
    /// [`BpfError`] if the programs cannot be loaded or asked.
    pub fn cost(&self, question: &Question, repeat: u32) -> Result<Cost, BpfError> {
        let directory = OBJECT.directory(&self.pin_dir);
        for syn in [true, false] {
            let question = Question { syn, ..*question };
            trace::time(&directory.join("redirect"), "redirect", &question, 1)?;
        }
        let question = Question { syn: false, ..*question };
        let pin = directory.join("redirect_undone");
        Cost::with(&self.pin_dir, &question, repeat, || {
            trace::time(&pin, "redirect_undone", &question, repeat)
        })
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

    fn config(&self) -> Result<SpreadConfig, BpfError> {
        self.config.get(&0, 0).map_err(BpfError::map("spread_config"))
    }

    fn rows(&self) -> Vec<SpreadService> {
        let current = self.config().and_then(|config| {
            self.directories.get(&config.directory, 0).map_err(BpfError::map("spread_directories"))
        });
        current.map(|current| directory::services(&current)).unwrap_or_default()
    }

    /// Writes the services into another directory than the last ones, which a packet may still
    /// read.
    fn set_rows(&mut self, rows: &[SpreadService]) -> Result<(), BpfError> {
        let next = directory::build(rows).ok_or(BpfError::SpreadServices(rows.len()))?;
        let mut config = self.config()?;
        config.directory = (config.directory + 1) % SPREAD_DIRECTORIES;
        self.directories
            .set(config.directory, *next, 0)
            .map_err(BpfError::map("spread_directories"))?;
        self.config.set(0, config, 0).map_err(BpfError::map("spread_config"))
    }

    /// Writes the configuration; ticks and services continue where an earlier
    /// redirector stopped.
    fn write_config(&mut self, config: &RedirectConfig) -> Result<(), BpfError> {
        let before = self.config()?;
        let mask4 = u32::MAX.checked_shr(config.outer4.1.into()).unwrap_or(0);
        // Outer sources vary in the last 32 bits, as far as these lie behind the prefix.
        let mask6 =
            u32::MAX.checked_shr(u32::from(config.outer6.1).saturating_sub(96)).unwrap_or(0);
        let base4 = u32::from(config.outer4.0) & !mask4;
        let base6 = u128::from(config.outer6.0) & !u128::from(mask6);
        let row = SpreadConfig {
            seed: config.seed,
            outer4: base4.to_be_bytes(),
            outer4_mask: mask4.to_be_bytes(),
            outer6: base6.to_be_bytes(),
            outer6_mask: mask6.to_be_bytes(),
            ..before
        };
        self.config.set(0, row, 0).map_err(BpfError::map("spread_config"))
    }
}

/// The connections of one family.
struct FlowTable<K> {
    map: HashMap<MapData, K, SpreadFlow>,
    /// The same map again, for reading it in batches.
    fd: MapData,
    name: &'static str,
}

impl<K: aya::Pod> FlowTable<K> {
    fn open(loaded: &mut Loaded, name: &'static str) -> Result<Self, BpfError> {
        Ok(Self { fd: loaded.pinned(name)?, map: loaded.map(name)?, name })
    }

    fn read(&self) -> Vec<(K, SpreadFlow)> {
        batch::entries(self.fd.fd().as_fd()).unwrap_or_default()
    }

    fn hosts(&self) -> Vec<u8> {
        self.read().iter().map(|(_, flow)| flow.host).collect()
    }

    /// Removes at most `most` flows that are over at tick `now`; returns their number. With
    /// more than `crowded` flows the table is nearly full.
    fn forget(&mut self, now: u32, crowded: u32, most: usize) -> Result<usize, BpfError> {
        let flows = self.read();
        let is_crowded = flows.len() > crowded as usize;
        let flows = flows.into_iter().filter(|(_, flow)| is_over(flow, now, is_crowded));
        let dead: Vec<K> = flows.map(|(key, _)| key).take(most).collect();
        for key in &dead {
            absent_is_fine(self.map.remove(key), self.name)?;
        }
        Ok(dead.len())
    }
}

/// Whether a flow may be forgotten at tick `now`.
fn is_over(flow: &SpreadFlow, now: u32, is_crowded: bool) -> bool {
    now.wrapping_sub(flow.tick) > age_of(flow, is_crowded)
}

fn age_of(flow: &SpreadFlow, is_crowded: bool) -> u32 {
    let has = |flag: u32| u32::from(flow.flags) & flag != 0;
    if has(FLOW_RESET) {
        RESET_AGE
    } else if is_crowded && !has(FLOW_ESTABLISHED) {
        YOUNG_AGE_CROWDED
    } else if has(FLOW_CLIENT_FIN) {
        CLOSED_AGE
    } else if has(FLOW_ESTABLISHED) && is_crowded {
        u32::from(flow.lived).clamp(YOUNG_AGE, IDLE_AGE)
    } else if has(FLOW_ESTABLISHED) {
        IDLE_AGE
    } else {
        YOUNG_AGE
    }
}

fn raw_service(service: &ServiceKey, table: u32) -> SpreadService {
    let protocol = if service.udp { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
    SpreadService::new(mapped(service.address), service.port, protocol as u16, table)
}

fn key_of(row: &SpreadService) -> ServiceKey {
    let udp = i32::from(row.protocol) == libc::IPPROTO_UDP;
    ServiceKey { address: row.address(), port: row.port, udp }
}

fn raw_way(way: Option<&Way>) -> SpreadWay {
    let nowhere = SpreadWay { address: [0; 16], next_hop: [0; 16], ifindex: 0, mtu: 0 };
    way.map_or(nowhere, |way| SpreadWay {
        address: mapped(way.address),
        next_hop: mapped(way.next_hop),
        ifindex: way.ifindex,
        mtu: way.mtu,
    })
}

fn raw_host(host: &Host) -> SpreadHost {
    let state = match host.state {
        HostState::Free => 0,
        HostState::Up => 1,
        HostState::Draining => 2,
        HostState::Dead => 3,
        HostState::DeadDrained => 4,
    };
    SpreadHost {
        v4: raw_way(host.v4.as_ref()),
        v6: raw_way(host.v6.as_ref()),
        state,
        layer2: host.layer2.into(),
    }
}

fn way_of(way: &SpreadWay) -> Option<Way> {
    (way.address != [0; 16]).then(|| Way {
        address: unmapped(way.address),
        next_hop: unmapped(way.next_hop),
        ifindex: way.ifindex,
        mtu: way.mtu,
    })
}

pub(super) fn host_of(host: &SpreadHost) -> Host {
    let state = match host.state {
        1 => HostState::Up,
        2 => HostState::Draining,
        3 => HostState::Dead,
        4 => HostState::DeadDrained,
        _ => HostState::Free,
    };
    let is_v4 = |way: &Way| mapped_ipv4(&mapped(way.address)).is_some();
    Host {
        v4: way_of(&host.v4).filter(is_v4),
        v6: way_of(&host.v6),
        state,
        layer2: host.layer2 != 0,
    }
}

fn check_pins(config: &RedirectConfig) -> Result<(), BpfError> {
    let hosts = SPREAD_HOSTS_MAX as u32;
    let lasting = [
        Pin::of::<u32, SpreadConfig>("spread_config", 1),
        Pin::of::<u32, SpreadDirectory>("spread_directories", SPREAD_DIRECTORIES),
        Pin::of::<u32, SpreadTable>("spread_tables", SPREAD_TABLES),
        Pin::of::<u32, SpreadHost>("spread_hosts", hosts),
        Pin::of::<SpreadKey4, SpreadFlow>(FLOWS4, config.flows_max),
        Pin::of::<RawKey, SpreadFlow>(FLOWS6, config.flows_max),
    ];
    // If these are lost, a handshake is repeated, or a datagram goes to another host server.
    let others = [
        Pin::of::<SpreadKey4, SpreadFlow>("spread_embryos4", SPREAD_EMBRYOS_MAX),
        Pin::of::<RawKey, SpreadFlow>("spread_embryos6", SPREAD_EMBRYOS_MAX),
        Pin::of::<SpreadKey4, SpreadFlow>("spread_datagrams4", SPREAD_DATAGRAMS_MAX),
        Pin::of::<RawKey, SpreadFlow>("spread_datagrams6", SPREAD_DATAGRAMS_MAX),
        Pin::of::<[u8; SPREAD_FRAGMENT_BYTES], SpreadFlow>(
            "spread_fragments",
            SPREAD_FRAGMENTS_MAX,
        ),
        Pin::of::<u32, u32>("spread_full", 2),
    ];
    let others = Pin::common(&OBJECT).into_iter().chain(Pin::recover()).chain(others);
    OBJECT.check_pins(&config.pin_dir, &lasting, others)
}
