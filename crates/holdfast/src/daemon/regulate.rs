//! Rate control after a failover (PFRC) at an edge: the host of the state machine in
//! `crates/edge`. `bpf/regulate.h` counts what flows send, and caps the windows that are
//! advertised to them.

use super::clock::Clock;
use crate::config::recover::Regulate;
use holdfast_cluster::Nanos;
use holdfast_edge::{Measurement, Pfrc, PfrcConfig, PfrcHost, PfrcSettings};
use holdfast_linux::bpf::{BpfError, Measured, REGULATE_FLOWS_DEFAULT, Regulated};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Silence after which a flow is forgotten: 2 h 4 min (RFC 5382 REQ-5). Where rate control is
/// off, the programs see only handshakes and ends of flows, so this is the handshake's age.
const FLOW_AGE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
/// Time between two sweeps for such flows.
const FLOW_AGE_PERIOD: Duration = Duration::from_secs(10);

/// The rate control of one edge. A component of an event loop: due at
/// [`Regulator::deadline`].
pub struct Regulator {
    machine: Pfrc,
    path: DataPath,
    enabled: bool,
    clock: Clock,
    aged: Instant,
}

/// The program's maps, and what was last read from them.
struct DataPath {
    maps: Regulated,
    /// The strings that are left.
    strings: Vec<usize>,
    before: Measured,
    /// Bytes that wait in the queues in front of `strings`, if known.
    queue_bytes: Option<f64>,
}

impl Regulator {
    /// A rate control over the maps of a loaded program, which caps nothing yet.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn new(config: &Regulate, mut maps: Regulated, now: Instant) -> Result<Self, BpfError> {
        if config.enabled {
            maps.watch()?;
        }
        let (strings, before) = (Vec::new(), Measured::default());
        Ok(Self {
            machine: Pfrc::new(law(config)),
            path: DataPath { maps, strings, before, queue_bytes: None },
            enabled: config.enabled,
            clock: Clock::new(now),
            aged: now,
        })
    }

    /// Caps windows because only these `strings` are left, which together carry
    /// `capacity_bytes_per_s`, for this many `flows`. `false`: nothing is capped, because rate
    /// control is off or no capacity is left.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn start(
        &mut self,
        now: Instant,
        strings: &[usize],
        capacity_bytes_per_s: u64,
        flows: usize,
    ) -> Result<bool, BpfError> {
        if !self.enabled || capacity_bytes_per_s == 0 {
            return Ok(false);
        }
        strings.clone_into(&mut self.path.strings);
        let at = self.nanos(now);
        self.machine.handle_failure(at, capacity_bytes_per_s, flows, &mut self.path)?;
        Ok(true)
    }

    /// Stops capping because all strings are back. `true` if windows were capped until now.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn stop(&mut self) -> Result<bool, BpfError> {
        self.machine.handle_repair(&mut self.path)
    }

    /// When [`Regulator::poll`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let interval = self.machine.poll_timeout();
        let interval = interval.map(|at| self.clock.instant(Nanos(at)));
        interval.into_iter().chain([self.aged + FLOW_AGE_PERIOD]).min()
    }

    /// Does what is due; `queue_bytes` gives the bytes that wait in front of these strings.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn poll(
        &mut self,
        now: Instant,
        queue_bytes: impl FnOnce(&[usize]) -> Option<f64>,
    ) -> Result<(), BpfError> {
        if now >= self.aged + FLOW_AGE_PERIOD {
            self.aged = now;
            self.path.maps.age(now, FLOW_AGE)?;
        }
        let at = self.nanos(now);
        if self.machine.poll_timeout().is_none_or(|due| due > at) {
            return Ok(());
        }
        self.path.queue_bytes = queue_bytes(&self.path.strings);
        self.machine.handle_timeout(at, &mut self.path)
    }

    /// The object `regulate` of `holdfast edge show`.
    #[must_use]
    pub fn show(&self) -> Value {
        let (clamped, refused) = self.path.maps.counts();
        json!({
            "active": self.machine.is_on(),
            "window_bytes": self.machine.window_bytes().map(|window| window as u64),
            "clamped": clamped,
            "refused": refused,
        })
    }

    fn nanos(&self, now: Instant) -> u64 {
        self.clock.nanos(now).0
    }
}

impl PfrcHost for DataPath {
    type Error = BpfError;

    fn measured(&mut self) -> Measurement {
        let all: Measured = self.strings.iter().map(|string| self.maps.measured(*string)).sum();
        let before = std::mem::replace(&mut self.before, all);
        // If the strings have changed, the difference is not used.
        let since = |all: u64, before: u64| all.saturating_sub(before);
        Measurement {
            bytes: since(all.bytes, before.bytes),
            flows: since(all.flows, before.flows) as usize,
            free_bytes: since(all.free_bytes, before.free_bytes),
            free_flows: since(all.free_flows, before.free_flows) as usize,
            queue_bytes: self.queue_bytes.take(),
        }
    }

    fn set_window(&mut self, window_bytes: u32) -> Result<(), BpfError> {
        self.maps.set_window(window_bytes)
    }

    fn uncap(&mut self) -> Result<(), BpfError> {
        self.maps.uncap()
    }
}

fn law(config: &Regulate) -> PfrcConfig {
    let settings = PfrcSettings {
        interval_ns: config.interval().as_nanos() as u64,
        rtt_ns: config.rtt_ms * 1_000_000,
        utilization_percent: config.utilization_percent,
        window_min_bytes: config.window_min_bytes as u32,
    };
    PfrcConfig::shipped(&settings, REGULATE_FLOWS_DEFAULT as usize)
}
