//! The programs of a member of a pair without an edge: clients' frames, which go to a hardware
//! address that no host has, reach this host's stack only while it may speak for the service, and
//! only then does anything leave that speaks for it. That time is set ahead; it ends by itself when
//! the daemon stands still or dies. Where the switch sends such frames to one member alone, its
//! program brings them to the other one. See `bpf/speak.bpf.c`.

use super::error::BpfError;
use super::layout::{RawSpeakMacs, RawSpeakRelay, SPEAK_COUNTERS};
use super::loader::{Counters, Detached, Object};
use super::owner::Owner;
use crate::clock::kernel_ns;
use aya::maps::{Array, Map, MapData};
use aya::programs::TcAttachType::{self, Egress, Ingress};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Behind the gate: what that keeps back was not sent.
const MEMBER_PRIORITY: u16 = 110;
/// Before the redirector: what is not for this edge is not for that either.
const EDGE_PRIORITY: u16 = 101;

const fn object(priority: u16) -> Object {
    Object {
        name: "speak",
        bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/speak.bpf.o")),
        maps: &["services", "addresses", "counters", "speak_until", "speak_macs", "speak_relay"],
        counters: &SPEAK_COUNTERS,
        priority,
    }
}

static OBJECT: Object = object(MEMBER_PRIORITY);
/// The same for one of several edges that share a gateway.
static EDGE_OBJECT: Object = object(EDGE_PRIORITY);
const DIRECTIONS: [TcAttachType; 2] = [Ingress, Egress];

/// Until when a member may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Not at all.
    Silent,
    At(Instant),
    /// Until it is told otherwise, whether its daemon lives or not.
    Told,
}

/// What becomes of frames to the service's hardware address besides, for the other member, which
/// has this one for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    #[default]
    Nothing,
    /// It gets them while this member is silent.
    HandOn([u8; 6]),
    /// It gets copies while this member speaks.
    Copy([u8; 6]),
}

/// Where the programs are attached, and for what.
#[derive(Clone, Debug)]
pub struct SpeakConfig {
    pub interface: String,
    pub services: Vec<(IpAddr, u16)>,
    /// The hardware address to which clients' frames go.
    pub service_mac: [u8; 6],
    /// That of the interface itself.
    pub own_mac: [u8; 6],
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
    /// Whether this is an edge, whose redirector takes what the programs let through.
    pub is_edge: bool,
}

impl SpeakConfig {
    fn object(&self) -> &'static Object {
        if self.is_edge { &EDGE_OBJECT } else { &OBJECT }
    }
}

/// The attached programs. Dropping it leaves them as they are.
pub struct Speak {
    counters: Counters,
    interface: String,
    pin_dir: PathBuf,
}

impl Speak {
    /// Attaches to the interface, in place of any earlier ones: this member is silent then.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, the interface does not exist, or there are no or too
    /// many services.
    pub fn attach(config: &SpeakConfig) -> Result<Self, BpfError> {
        config.object().unpin(&config.pin_dir)?;
        let mut loaded = config.object().load(&config.pin_dir, &[])?;
        loaded.set_services(&config.services)?;
        let mut macs: Array<MapData, RawSpeakMacs> = loaded.map("speak_macs")?;
        let known = RawSpeakMacs { service: config.service_mac, own: config.own_mac };
        macs.set(0, known, 0).map_err(BpfError::map("speak_macs"))?;
        loaded.attach("speak_ingress", &[&config.interface], Ingress)?;
        loaded.attach("speak_egress", &[&config.interface], Egress)?;
        Ok(Self {
            counters: loaded.counters()?,
            interface: config.interface.clone(),
            pin_dir: config.pin_dir.clone(),
        })
    }

    /// Takes over what an earlier daemon has left, whose server speaks alone: it goes on to.
    ///
    /// # Errors
    /// [`BpfError::Map`] if it is not there.
    pub fn reopen(config: &SpeakConfig) -> Result<Self, BpfError> {
        OBJECT.pinned(&config.pin_dir, "speak_until")?;
        Ok(Self {
            counters: OBJECT.pinned_counters(&config.pin_dir)?,
            interface: config.interface.clone(),
            pin_dir: config.pin_dir.clone(),
        })
    }

    /// What sets the time, for the thread that knows it.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the map is gone.
    pub fn deadline(&self) -> Result<Deadline, BpfError> {
        Deadline::pinned(&self.pin_dir)
    }

    /// From the next frame on this holds. A daemon that stands still or dies changes nothing of it.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn set_relay(&self, relay: Relay) -> Result<(), BpfError> {
        let map = Map::Array(OBJECT.pinned(&self.pin_dir, "speak_relay")?);
        let mut map = Array::try_from(map).map_err(BpfError::map("speak_relay"))?;
        let raw = match relay {
            Relay::Nothing => RawSpeakRelay::default(),
            Relay::HandOn(peer) => RawSpeakRelay { peer, hand_on: 1, clone: 0 },
            Relay::Copy(peer) => RawSpeakRelay { peer, hand_on: 0, clone: 1 },
        };
        map.set(0, raw, 0).map_err(BpfError::map("speak_relay"))
    }

    /// Attaches again the programs that somebody has removed; returns which they were.
    ///
    /// # Errors
    /// [`BpfError::Attach`].
    pub fn mend(interface: &str, pin_dir: &Path) -> Result<Vec<Detached>, BpfError> {
        Self::mend_as(&OBJECT, interface, pin_dir)
    }

    /// As [`Self::mend`], at one of several edges.
    ///
    /// # Errors
    /// [`BpfError::Attach`].
    pub fn mend_at_edge(interface: &str, pin_dir: &Path) -> Result<Vec<Detached>, BpfError> {
        Self::mend_as(&EDGE_OBJECT, interface, pin_dir)
    }

    fn mend_as(
        object: &Object,
        interface: &str,
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        let places = [("speak_ingress", interface, Ingress), ("speak_egress", interface, Egress)];
        object.mend(pin_dir, &places)
    }

    /// Counts since they were attached.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Removes programs and pins.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach(self) -> Result<(), BpfError> {
        Self::detach_stale(&self.interface, &[], &self.pin_dir).map(drop)
    }

    /// Removes what an earlier process left; nothing to remove is no error. Another group's
    /// programs, which serve none of `services`, stay.
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

/// Sets until when a member may speak.
pub struct Deadline(Array<MapData, u64>);

impl Deadline {
    /// That of a member whose programs are pinned there.
    ///
    /// # Errors
    /// [`BpfError::Map`] if there are none.
    pub fn pinned(pin_dir: &Path) -> Result<Self, BpfError> {
        let map = Map::Array(OBJECT.pinned(pin_dir, "speak_until")?);
        Array::try_from(map).map(Self).map_err(BpfError::map("speak_until"))
    }

    /// Whether this host speaks until it is told otherwise, as one does that speaks alone.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel does not answer.
    pub fn is_told(&self) -> Result<bool, BpfError> {
        Ok(self.0.get(&0, 0).map_err(BpfError::map("speak_until"))? == u64::MAX)
    }

    /// From the next packet on this holds: one word that is replaced at once.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn set(&mut self, until: Until) -> Result<(), BpfError> {
        let ns = match until {
            Until::Silent => 0,
            Until::At(at) => kernel_ns(at),
            Until::Told => u64::MAX,
        };
        self.0.set(0, ns, 0).map_err(BpfError::map("speak_until"))
    }
}
