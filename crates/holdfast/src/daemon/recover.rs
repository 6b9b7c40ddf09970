//! Local recovery (HALR) at any edge: the packets that its programs copy go
//! into the cache of `crates/edge`, and what an outage has swallowed goes out
//! again when the service is back.

use crate::config::recover::{Policy, Recover, Start};
use holdfast_edge::{Direction, Passing, Recovery, RecoveryConfig, Resend, Slabs, Slot};
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

/// What the programs have copied is looked at this often at least, so that its
/// age is known.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// And so often while acknowledgements may ask for more.
const FOLLOW_PERIOD: Duration = Duration::from_millis(1);
/// So long after what was resent, longer than a round trip behind the edge.
const FOLLOW: Duration = Duration::from_millis(200);
/// A flow that got no answer for so long after the outage has its head resent once
/// more: longer than a queue that has filled at once, and than its round trip.
const OVERDUE: Duration = Duration::from_millis(20);
/// Packets resent in one turn of the daemon's loop.
const RESENDS_PER_TURN: usize = 256;
/// Segments of a flow under the policy `all`: a window of 400 KB.
const ALL_SEGMENTS: usize = 256;
/// Segments of a flow that the policy `head+tail` keeps while there is room, so
/// that the lowest one is among them after every acknowledgement.
const SPARE_SEGMENTS: usize = 254;
/// Of a flow so many of the last segments that passed in the outage are resent
/// behind its head: senders probe with one or two of them (RFC 8985 §7).
const RECENT_SEGMENTS: usize = 8;
/// Acknowledgements are held for so long, that what they ask for overtakes what
/// they make the sender send, and while heads and tails are being resent.
const HOLD: Duration = Duration::from_millis(2);
/// And no longer than this.
const HOLD_MAX: Duration = Duration::from_millis(10);
/// So many of them at most: 2 MB.
const HELD_MAX: usize = 16_384;
/// A SYN is tried so often: the new server may need some time until it listens.
const SYN_TRIES: u32 = 8;
/// Time between two tries.
const SYN_RETRY: Duration = Duration::from_millis(12);
/// Packets of at least this size fill the cache.
const PACKET_BYTES_MIN: u64 = 64;

/// Why there is no recovery.
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

/// Where the packets go now that were cached on their way with this number.
pub struct Way {
    /// The program's number for it: the string; 0 where there is only one.
    pub way: u16,
    /// The last moment at which packets are known to have got through.
    pub sound: Instant,
    pub exit: Rc<Exit>,
}

/// How packets leave.
pub enum Exit {
    /// To this host, whatever the routes say.
    Host(Hop),
    /// By the routes that lead through an interface.
    Routed { raw: RawSender, ifindex: u32 },
    /// They come in again, and the program sends them where it now sends such.
    Inlet(Inlet),
}

/// The cache of one edge and its kick-start. A component of an event loop: it
/// is readable at [`Recoverer::fd`], and due at [`Recoverer::deadline`].
pub struct Recoverer {
    copies: Copies,
    notes: Notes,
    frames: FrameSender,
    raw: RawSender,
    config: Recover,
    origin: Instant,
    active: bool,
    looked: Instant,
    /// When what was cached began to go out again, while acknowledgements are held.
    holding: Option<Instant>,
    exits: BTreeMap<u16, Rc<Exit>>,
    /// Packets that could not be sent again.
    failed: u64,
    bytes_max: u64,
}

/// The cache, and what it takes to fill it.
struct Notes {
    cache: Recovery<u64, Slabs>,
    /// Flows are told apart by a keyed hash, so that nobody can make two of them
    /// look alike.
    secret: [u8; 16],
    scratch: Vec<u8>,
    /// Acknowledgements that the program did not forward, in their order.
    held: Vec<Box<[u8]>>,
    held_count: u64,
}

impl Recoverer {
    /// The cache over the copies of a loaded program. It copies at once if the
    /// configuration says `always`.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn new(config: &Recover, copies: Copies, now: Instant) -> Result<Self, RecoverError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(RecoverError::Random)?;
        let (machine, slabs_bytes) = machine(config);
        let cache = Recovery::new(machine, Slabs::new(slabs_bytes));
        let mut this = Self {
            copies,
            notes: Notes::new(cache, secret),
            frames: FrameSender::open()?,
            raw: RawSender::open(None)?,
            config: *config,
            origin: now,
            active: false,
            looked: now,
            holding: None,
            exits: BTreeMap::new(),
            failed: 0,
            bytes_max: config.memory_mb << 20,
        };
        // A daemon that died may have left it on; its copies are of no use.
        this.copies.discard()?;
        if config.start == Start::Always {
            this.begin(now)?;
        }
        Ok(this)
    }

    /// Readable when much was copied.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.copies.fd()
    }

    /// Starts caching; `true` if it does so from now on.
    ///
    /// # Errors
    /// [`RecoverError::Bpf`].
    pub fn start(&mut self, now: Instant) -> Result<bool, RecoverError> {
        if self.active || self.config.policy == Policy::Off {
            return Ok(false);
        }
        self.begin(now)?;
        Ok(true)
    }

    /// Ends caching and forgets everything, unless it is to go on always or until
    /// all is resent; `true` if it has ended now.
    ///
    /// # Errors
    /// [`RecoverError::Bpf`].
    pub fn stop(&mut self) -> Result<bool, RecoverError> {
        let is_resending = self.notes.cache.poll_timeout().is_some();
        if !self.active || self.config.start == Start::Always || is_resending {
            return Ok(false);
        }
        self.active = false;
        self.copies.discard()?;
        self.notes.cache.clear();
        Ok(true)
    }

    fn begin(&mut self, now: Instant) -> Result<(), RecoverError> {
        let policy = match self.config.policy {
            Policy::Off => return Ok(()),
            Policy::Syn => CopyPolicy::Syns,
            Policy::Head | Policy::HeadTail | Policy::All => CopyPolicy::Segments,
        };
        self.active = true;
        self.looked = now;
        Ok(self.copies.set(policy)?)
    }

    /// Takes a share of what was copied. What is left waits for the next turn.
    pub fn on_readable(&mut self, now: Instant) {
        self.take_share(now);
    }

    /// Whether nothing is left.
    fn take_share(&mut self, now: Instant) -> bool {
        self.looked = now;
        let at = self.nanos(now);
        let Self { copies, notes, .. } = self;
        let is_all = copies.drain(|copied| {
            notes.take(at, &copied);
            notes.held.len() < HELD_MAX
        });
        // Of another processor's program, which had begun before they were let go.
        if self.holding.is_none() || self.notes.held.len() >= HELD_MAX {
            self.let_go();
        }
        is_all
    }

    /// As [`Recoverer::on_readable`], if there may be anything.
    pub fn look(&mut self, now: Instant) {
        if self.active {
            self.on_readable(now);
        }
    }

    /// Where packets go that were cached on their way with this number, after an
    /// outage of another one.
    pub fn has_way(&mut self, way: u16, exit: &Rc<Exit>) {
        self.exits.insert(way, Rc::clone(exit));
    }

    /// The service is back behind these ways: what was cached on them goes out
    /// again with [`Recoverer::poll`], of which the first call is made here.
    /// Returns how many flows that are.
    pub fn restored(&mut self, now: Instant, ways: &[Way]) -> usize {
        // What came before the service was back is among what it lacks.
        let _all = (0..DRAINS_MAX).any(|_| self.take_share(now));
        let before = self.notes.cache.kept_flows();
        self.exits.extend(ways.iter().map(|way| (way.way, Rc::clone(&way.exit))));
        let sound: BTreeMap<u16, u64> =
            ways.iter().map(|way| (way.way, self.nanos(way.sound))).collect();
        let at = self.nanos(now);
        self.notes.cache.handle_restored_for(at, |slot: &Slot| sound.get(&slot.tag).copied());
        let flows = before - self.notes.cache.kept_flows();
        if flows > 0 && self.config.policy != Policy::Syn {
            self.hold(now);
        }
        self.poll(now);
        flows
    }

    /// From now on acknowledgements are held.
    fn hold(&mut self, now: Instant) {
        match self.copies.hold(HOLD_MAX) {
            Ok(()) => self.holding = Some(now),
            Err(error) => tracing::warn!("acknowledgements are not held: {error}"),
        }
    }

    /// When they go on: while packets are being resent, not too soon.
    fn held_until(&self) -> Option<Instant> {
        let longest = if self.notes.cache.is_kicking() { HOLD_MAX } else { HOLD };
        self.holding.map(|since| since + longest)
    }

    /// What was held goes on, and nothing is held any more.
    fn let_go(&mut self) {
        if self.holding.take().is_some()
            && let Err(error) = self.copies.release()
        {
            tracing::warn!("acknowledgements are held for some ms more: {error}");
        }
        for packet in self.notes.held.drain(..) {
            self.failed += u64::from(self.raw.send(&packet).is_err());
        }
    }

    /// When [`Recoverer::poll`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let resend = self.notes.cache.poll_timeout();
        let resend = resend.map(|at| self.origin + Duration::from_nanos(at));
        let look = self.active.then(|| self.looked + self.look_period());
        resend.into_iter().chain(look).chain(self.held_until()).min()
    }

    fn look_period(&self) -> Duration {
        let is_resending = self.notes.cache.poll_timeout().is_some();
        if is_resending { FOLLOW_PERIOD } else { LOOK_PERIOD }
    }

    /// Does what is due; returns how many packets were resent.
    pub fn poll(&mut self, now: Instant) -> usize {
        // What came since may have been acknowledged, and need not be sent again.
        if self.deadline() <= Some(now) {
            self.look(now);
        }
        let at = self.nanos(now);
        let count = self.resend(at);
        if self.held_until().is_some_and(|until| until <= now) {
            self.let_go();
            self.on_readable(now);
        }
        count
    }

    fn resend(&mut self, at: u64) -> usize {
        let mut is_watched = None;
        for count in 0..RESENDS_PER_TURN {
            let Some(resend) = self.notes.cache.poll_resend(at) else { return count };
            let Some(ifindex) = self.send(&resend) else {
                self.failed += 1;
                continue;
            };
            let Self { copies, notes, .. } = self;
            if *is_watched.get_or_insert_with(|| copies.is_watched()) {
                copies.show_resent(ifindex, notes.cache.shelf().get(resend.packet));
            }
        }
        RESENDS_PER_TURN
    }

    /// Sends a packet; answers the interface it left by, or 0 if that is the
    /// routes' choice.
    fn send(&mut self, resend: &Resend<Slot>) -> Option<u32> {
        let packet = self.notes.cache.shelf().get(resend.packet);
        if resend.direction == Direction::OutOfCluster {
            return self.raw.send(packet).ok().map(|()| 0);
        }
        match self.exits.get(&resend.packet.tag)?.as_ref() {
            Exit::Host(hop) => self.frames.send(hop, packet).ok().map(|()| hop.ifindex),
            Exit::Routed { raw, ifindex } => raw.send(packet).ok().map(|()| *ifindex),
            Exit::Inlet(inlet) => inlet.put(packet).ok().map(|()| inlet.ifindex()),
        }
    }

    /// The part `cache` of `holdfast edge show`.
    #[must_use]
    pub fn show(&self) -> Value {
        let cache = &self.notes.cache;
        let (counts, (copied, lost)) = (cache.counts(), self.copies.counts());
        json!({
            "policy": self.config.policy,
            "active": self.active,
            "flows": cache.flows(),
            "bytes": cache.memory_bytes() + cache.shelf().memory_bytes(),
            "bytes_max": self.bytes_max,
            "copied": copied,
            "kept": counts.kept,
            "resent": counts.resent,
            "refused": counts.refused,
            "lost": lost,
            "failed": self.failed,
            "held": self.notes.held_count,
        })
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }
}

/// The machine's settings, and what its packets may take together.
fn machine(config: &Recover) -> (RecoveryConfig, u64) {
    let (segments_max, ack_copies) = match config.policy {
        Policy::Off | Policy::Syn => (1, 0),
        Policy::Head => (1, 3),
        Policy::HeadTail => (2, 3),
        Policy::All => (ALL_SEGMENTS, 3),
    };
    let syn_only = config.policy == Policy::Syn;
    let memory = config.memory_mb << 20;
    let per_flow = Recovery::<u64, Slabs>::flow_overhead_bytes() as u64;
    let per_packet = Recovery::<u64, Slabs>::packet_overhead_bytes() as u64;
    // So many flows that half of the memory is left for their packets.
    let flows = (config.flows_max as u64).min(memory / 2 / per_flow);
    let left = memory - flows * per_flow;
    let packets = flows * (segments_max as u64 + u64::from(ack_copies > 0));
    let packets = packets.min(left / (PACKET_BYTES_MIN + per_packet));
    let machine = RecoveryConfig {
        segments_max,
        syn_only,
        ack_copies,
        flows_max: flows as usize,
        bytes_max: left,
        age_max_ns: config.age_s * 1_000_000_000,
        pace_bytes_per_s: config.pace_mbit * 1_000_000 / 8,
        recent_max: RECENT_SEGMENTS,
        segments_spare: if config.policy == Policy::HeadTail { SPARE_SEGMENTS } else { 0 },
        // Before the senders: an acknowledgement of the head makes them send a whole
        // window, and what the receiver waits for would queue behind it.
        tail_delay_ns: 0,
        tries: if syn_only { SYN_TRIES } else { 1 },
        retry_ns: SYN_RETRY.as_nanos() as u64,
        follow_ns: if syn_only { 0 } else { FOLLOW.as_nanos() as u64 },
        overdue_ns: if syn_only { 0 } else { OVERDUE.as_nanos() as u64 },
        heaviest: config.heaviest,
        ..RecoveryConfig::default()
    };
    (machine, left - packets * per_packet)
}

impl Notes {
    fn new(cache: Recovery<u64, Slabs>, secret: [u8; 16]) -> Self {
        Self { cache, secret, scratch: Vec::new(), held: Vec::new(), held_count: 0 }
    }

    /// One that was damaged on its way is not sent on.
    fn hold(&mut self, headers: &Headers<'_>) {
        if headers.cut(0, &[], (0, 0), &mut self.scratch).is_ok() {
            self.held.push(self.scratch.as_slice().into());
            self.held_count += 1;
        }
    }

    fn take(&mut self, now: u64, copied: &Copied<'_>) {
        let Ok(headers) = Headers::parse(copied.headers) else { return };
        let key = self.key(&headers, copied.into);
        if copied.is_held {
            self.hold(&headers);
        }
        if copied.is_opened {
            return self.cache.forget(key);
        }
        if !copied.into {
            let passing = passing(&headers, copied, 0, copied.payload_bytes);
            let Self { cache, scratch, .. } = self;
            return cache.handle_packet(now, key, &passing, |slabs| {
                headers.bare_ack(copied.payload_bytes, scratch).ok()?;
                slabs.put(scratch, copied.way)
            });
        }
        self.segment(now, key, copied, &headers, (0, copied.head));
        if let Some(tail) = copied.tail {
            self.segment(now, key, copied, &headers, tail);
        }
    }

    /// Takes one segment of a packet.
    fn segment(
        &mut self,
        now: u64,
        key: u64,
        copied: &Copied<'_>,
        headers: &Headers<'_>,
        (at, payload): (u32, &[u8]),
    ) {
        let passing = passing(headers, copied, at, payload.len() as u32);
        let Self { cache, scratch, .. } = self;
        cache.handle_packet(now, key, &passing, |slabs| {
            let whole = (copied.payload_bytes, copied.gso_bytes);
            headers.cut(at, payload, whole, scratch).ok()?;
            slabs.put(scratch, copied.way)
        });
    }

    /// The flow's name: that of its data's direction.
    fn key(&self, headers: &Headers<'_>, into: bool) -> u64 {
        let from = (headers.source, headers.source_port);
        let to = (headers.destination, headers.destination_port);
        let mut hasher = DefaultHasher::new();
        self.secret.hash(&mut hasher);
        if into { (from, to) } else { (to, from) }.hash(&mut hasher);
        hasher.finish()
    }
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
        // A SYN only offers it; its answer says whether it is used (RFC 2018 §2).
        sack: match (flags.has(Flags::SYN), flags.has(Flags::SYN | Flags::ACK)) {
            (_, true) => Some(permitted),
            (true, _) if !permitted => Some(false),
            _ => None,
        },
        bytes: (place + Recovery::<u64, Slabs>::packet_overhead_bytes()) as u32,
    }
}
