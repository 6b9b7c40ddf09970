//! Local recovery (HALR) at an edge of any group: the host of the state machine in `crates/edge`.
//! Packets that the edge's eBPF programs copy go into its cache. Resent packets leave by the path
//! that such packets take now, which may not be the one on which they were lost.

use super::clock::Clock;
use crate::config::recover::{Policy, Recover, Start};
use holdfast_cluster::Nanos;
use holdfast_edge::{
    Direction, Halr, HalrConfig, HalrHost, HalrLimits, Intake, Keeps, Passing, Recovery, Resend,
    Slabs, Slot,
};
use holdfast_linux::bpf::{BpfError, Copied, Copies, CopyPolicy, DRAINS_MAX};
use holdfast_linux::frame::{FrameError, FrameSender, Hop};
use holdfast_linux::inlet::Inlet;
use holdfast_linux::raw::{RawError, RawSender};
use holdfast_wire::packet::{Flags, Headers};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reason why there is no recovery.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Raw(#[from] RawError),
    #[error("no random number for the flows' names: {0}")]
    Random(getrandom::Error),
}

/// Where packets that were cached on one path are sent now.
pub struct Way {
    /// The eBPF program's number of the path: the string's, or 0 if there is only one path.
    pub way: u16,
    /// The last moment at which packets are known to have arrived.
    pub sound: Instant,
    pub exit: Rc<Exit>,
}

/// How resent packets leave.
pub enum Exit {
    /// In frames to this next hop, whatever the routes say.
    Host(Hop),
    /// By the routes through this interface.
    Routed { raw: RawSender, ifindex: u32 },
    /// Back into this host, where the eBPF program handles them like any packet.
    Inlet(Inlet),
}

/// The cache of one edge, and its retransmissions after an outage (HALR's kick-start). A
/// component of an event loop: it is readable at [`Recoverer::fd`], and due at
/// [`Recoverer::deadline`].
pub struct Recoverer {
    machine: Halr<DataPath>,
    path: DataPath,
    config: Recover,
    clock: Clock,
}

/// The eBPF programs that copy packets, and the sockets that send them.
struct DataPath {
    copies: Copies,
    policy: CopyPolicy,
    /// Key of the hash that names flows: without it nobody can make two flows collide.
    secret: [u8; 16],
    scratch: Vec<u8>,
    frames: FrameSender,
    raw: RawSender,
    exits: BTreeMap<u16, Rc<Exit>>,
    /// Number of packets that could not be resent.
    failed: u64,
    /// Whether somebody watches what is resent; asked once per turn, then remembered.
    is_watched: Option<bool>,
}

impl Recoverer {
    /// The cache over the copies of a loaded program. Copying begins at once if the configuration
    /// says `always`; `settings` makes the machine's configuration.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn new(
        config: &Recover,
        settings: fn(Keeps, bool, &HalrLimits) -> HalrConfig,
        copies: Copies,
        now: Instant,
    ) -> Result<Self, RecoverError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(RecoverError::Random)?;
        let (keeps, policy) = match config.policy {
            Policy::Off => (Keeps::Nothing, CopyPolicy::Off),
            Policy::Syn => (Keeps::Syns, CopyPolicy::Syns),
            Policy::Head => (Keeps::Head, CopyPolicy::Segments),
            Policy::HeadTail => (Keeps::HeadTail, CopyPolicy::Segments),
            Policy::All => (Keeps::All, CopyPolicy::Segments),
        };
        let settings = settings(keeps, config.start == Start::Always, &limits_of(config));
        let mut this = Self {
            machine: Halr::new(settings, Slabs::new(settings.slabs_bytes())),
            path: DataPath {
                copies,
                policy,
                secret,
                scratch: Vec::new(),
                frames: FrameSender::open()?,
                raw: RawSender::open(None)?,
                exits: BTreeMap::new(),
                failed: 0,
                is_watched: None,
            },
            config: *config,
            clock: Clock::new(now),
        };
        this.machine.handle_start(0, &mut this.path)?;
        Ok(this)
    }

    /// A descriptor that is readable when many copies wait.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.path.copies.fd()
    }

    /// Begins to cache packets because they may be lost; `true` if it did not before.
    ///
    /// # Errors
    /// [`RecoverError::Bpf`].
    pub fn start(&mut self, now: Instant) -> Result<bool, RecoverError> {
        Ok(self.machine.handle_suspected(self.nanos(now), &mut self.path)?)
    }

    /// Stops caching, because packets are not lost any more; `true` if no packet is cached from
    /// now on.
    ///
    /// # Errors
    /// [`RecoverError::Bpf`].
    pub fn stop(&mut self) -> Result<bool, RecoverError> {
        Ok(self.machine.handle_trusted(&mut self.path)?)
    }

    /// Takes some of the copies into the cache. The rest waits for the next turn.
    pub fn on_readable(&mut self, now: Instant) {
        self.machine.handle_copies(self.nanos(now), &mut self.path);
    }

    /// Like [`Recoverer::on_readable`], if there may be any copies.
    pub fn look(&mut self, now: Instant) {
        self.machine.look(self.nanos(now), &mut self.path);
    }

    /// Sets where packets that were cached on the path `way` go, if they must be resent after an
    /// outage of another path.
    pub fn has_way(&mut self, way: u16, exit: &Rc<Exit>) {
        self.path.exits.insert(way, Rc::clone(exit));
    }

    /// Begins to resend the packets that were cached on these paths, whose service is back.
    /// [`Recoverer::poll`] sends them, and is called here for the first time. Returns the number
    /// of flows.
    pub fn restored(&mut self, now: Instant, ways: &[Way]) -> usize {
        self.path.is_watched = None;
        self.path.exits.extend(ways.iter().map(|way| (way.way, Rc::clone(&way.exit))));
        let sound: BTreeMap<u16, u64> =
            ways.iter().map(|way| (way.way, self.nanos(way.sound))).collect();
        let lost_since = |slot: &Slot| sound.get(&slot.tag).copied();
        self.machine.handle_restored(self.nanos(now), lost_since, &mut self.path)
    }

    /// When [`Recoverer::poll`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.poll_timeout().map(|at| self.clock.instant(Nanos(at)))
    }

    /// Does what is due; returns how many packets were resent.
    pub fn poll(&mut self, now: Instant) -> usize {
        self.path.is_watched = None;
        self.machine.handle_timeout(self.nanos(now), &mut self.path)
    }

    /// The object `cache` of `holdfast edge show`.
    #[must_use]
    pub fn show(&self) -> Value {
        let cache = self.machine.cache();
        let (counts, (copied, lost)) = (cache.counts(), self.path.copies.counts());
        json!({
            "policy": self.config.policy,
            "active": self.machine.is_active(),
            "flows": cache.flows(),
            "bytes": cache.memory_bytes() + cache.shelf().memory_bytes(),
            "bytes_max": self.config.memory_mb << 20,
            "copied": copied,
            "kept": counts.kept,
            "resent": counts.resent,
            "refused": counts.refused,
            "lost": lost,
            "failed": self.path.failed,
            "held": self.machine.held_count(),
        })
    }

    fn nanos(&self, now: Instant) -> u64 {
        self.clock.nanos(now).0
    }
}

fn limits_of(config: &Recover) -> HalrLimits {
    HalrLimits {
        flows_max: config.flows_max,
        memory_bytes: config.memory_mb << 20,
        age_max_ns: config.age_s * 1_000_000_000,
        pace_bytes_per_s: config.pace_mbit * 1_000_000 / 8,
        heaviest: config.heaviest,
    }
}

impl HalrHost for DataPath {
    type Key = u64;
    type PacketStore = Slabs;
    type Held = Box<[u8]>;
    type Error = BpfError;
    const DRAINS_MAX: usize = DRAINS_MAX;

    fn set_copying(&mut self, on: bool) -> Result<(), BpfError> {
        if on { self.copies.set(self.policy) } else { self.copies.discard() }
    }

    fn drain(&mut self, now: u64, intake: &mut Intake<Self>) -> bool {
        let Self { copies, secret, scratch, .. } = self;
        copies.drain(|copied| {
            take(now, secret, scratch, &copied, intake);
            !intake.is_full()
        })
    }

    fn hold(&mut self, at_most_ns: u64) -> bool {
        let held = self.copies.hold(Duration::from_nanos(at_most_ns));
        held.inspect_err(|error| tracing::warn!("acknowledgements are not held: {error}")).is_ok()
    }

    fn lost(&mut self) -> u64 {
        self.copies.counts().1
    }

    fn release(&mut self) {
        if let Err(error) = self.copies.release() {
            tracing::warn!("acknowledgements are held for some ms more: {error}");
        }
    }

    fn forward(&mut self, packet: Box<[u8]>) {
        self.failed += u64::from(self.raw.send(&packet).is_err());
    }

    fn resend(&mut self, shelf: &Slabs, resend: &Resend<Slot>) {
        let packet = shelf.get(resend.packet);
        let Some(ifindex) = self.send(resend.direction, resend.packet.tag, packet) else {
            self.failed += 1;
            return;
        };
        if *self.is_watched.get_or_insert_with(|| self.copies.is_watched()) {
            self.copies.show_resent(ifindex, packet);
        }
    }
}

impl DataPath {
    /// Sends a packet; returns the index of the interface it left by, or 0 if the routes choose
    /// that. `None` if it could not be sent.
    fn send(&mut self, direction: Direction, way: u16, packet: &[u8]) -> Option<u32> {
        let Self { exits, frames, raw, .. } = self;
        if direction == Direction::OutOfCluster {
            return raw.send(packet).ok().map(|()| 0);
        }
        match exits.get(&way)?.as_ref() {
            Exit::Host(hop) => frames.send(hop, packet).ok().map(|()| hop.ifindex),
            Exit::Routed { raw, ifindex } => raw.send(packet).ok().map(|()| *ifindex),
            Exit::Inlet(inlet) => inlet.put(packet).ok().map(|()| inlet.ifindex()),
        }
    }
}

/// Gives a copied packet to the cache.
fn take(
    now: u64,
    secret: &[u8; 16],
    scratch: &mut Vec<u8>,
    copied: &Copied<'_>,
    intake: &mut Intake<DataPath>,
) {
    let Ok(headers) = Headers::parse(copied.headers) else { return };
    let key = key(secret, &headers, copied.into);
    // The program holds this packet back until it is sent on from here; not if it was damaged on
    // its way.
    if copied.is_held && headers.cut(0, &[], (0, 0), scratch).is_ok() {
        intake.hold(scratch.as_slice().into());
    }
    if copied.is_opened {
        return intake.cache.forget(key);
    }
    if !copied.into {
        let passing = passing(&headers, copied, 0, copied.payload_bytes);
        return intake.cache.handle_packet(now, key, &passing, |slabs| {
            headers.bare_ack(copied.payload_bytes, scratch).ok()?;
            slabs.put(scratch, copied.way)
        });
    }
    for (at, payload) in [(0, copied.head)].into_iter().chain(copied.tail) {
        let passing = passing(&headers, copied, at, payload.len() as u32);
        intake.cache.handle_packet(now, key, &passing, |slabs| {
            let whole = (copied.payload_bytes, copied.gso_bytes);
            headers.cut(at, payload, whole, scratch).ok()?;
            slabs.put(scratch, copied.way)
        });
    }
}

/// A hash that names the packet's flow, the same for both directions; `into`: the packet goes
/// into the cluster.
fn key(secret: &[u8; 16], headers: &Headers<'_>, into: bool) -> u64 {
    let from = (headers.source, headers.source_port);
    let to = (headers.destination, headers.destination_port);
    let mut hasher = DefaultHasher::new();
    secret.hash(&mut hasher);
    if into { (from, to) } else { (to, from) }.hash(&mut hasher);
    hasher.finish()
}

/// A packet, or a segment of it, as the machine sees it.
fn passing(headers: &Headers<'_>, copied: &Copied<'_>, at: u32, bytes: u32) -> Passing {
    let flags = headers.flags;
    let is_last_segment = at + bytes == copied.payload_bytes;
    let is_last = flags.has(Flags::FIN) && is_last_segment;
    let length = bytes + u32::from(flags.has(Flags::SYN)) + u32::from(is_last);
    let seq = headers.seq.plus(u64::from(at));
    let permitted = headers.options.sack_permitted;
    let packet = copied.headers.len() + if copied.into { bytes as usize } else { 0 };
    let place = Slabs::footprint(packet).unwrap_or(packet);
    Passing {
        direction: if copied.into { Direction::IntoCluster } else { Direction::OutOfCluster },
        seq,
        end: seq.plus(u64::from(length)),
        ack: flags.has(Flags::ACK).then_some(headers.ack),
        is_syn: flags.has(Flags::SYN),
        is_end: flags.has(Flags::RST),
        is_last,
        // A SYN only offers SACK; its answer says whether it is used (RFC 2018
        // §2).
        sack: match (flags.has(Flags::SYN), flags.has(Flags::SYN | Flags::ACK)) {
            (_, true) => Some(permitted),
            (true, _) if !permitted => Some(false),
            _ => None,
        },
        bytes: (place + Recovery::<u64, Slabs>::packet_overhead_bytes()) as u32,
    }
}
