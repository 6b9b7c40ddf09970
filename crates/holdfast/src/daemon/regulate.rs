//! Rate control after a failover (PFRC) at any edge: the window that
//! `bpf/regulate.h` caps acknowledgements at, computed every interval from what
//! it has counted.

use crate::config::recover::Regulate;
use holdfast_edge::{Law, Measurement, PfrcConfig, RightEdge, WindowControl};
use holdfast_linux::bpf::{BpfError, Measured, REGULATE_FLOWS_DEFAULT, Regulated};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Weight of a measurement: it converges without swinging although a round
/// trip may be longer than an interval.
const ALPHA: f64 = 0.25;
/// Share of a standing queue that is drained in an interval.
const BETA: f64 = 0.25;
/// A flow whose handshake is so long ago is left alone, unless it was seen since
/// while windows were capped (RFC 5382 REQ-5): who sends is not looked at before.
const FLOW_AGE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);
const FLOW_AGE_PERIOD: Duration = Duration::from_secs(10);

/// The rate control of one edge. A component of an event loop: due at
/// [`Regulator::deadline`].
pub struct Regulator {
    maps: Regulated,
    config: Regulate,
    control: WindowControl,
    /// The strings that are left.
    strings: Vec<usize>,
    before: Measured,
    origin: Instant,
    aged: Instant,
}

impl Regulator {
    /// A control that caps nothing yet, over the maps of a loaded program.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn new(config: &Regulate, mut maps: Regulated, now: Instant) -> Result<Self, BpfError> {
        if config.enabled {
            maps.watch()?;
        }
        let control = WindowControl::new(law(config, 0));
        let before = Measured::default();
        let strings = Vec::new();
        Ok(Self { maps, config: *config, control, strings, before, origin: now, aged: now })
    }

    /// Only these strings are left, which carry `capacity` bytes per second, for
    /// so many flows. `true` if windows are capped from now on.
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
        if !self.config.enabled || capacity_bytes_per_s == 0 {
            return Ok(false);
        }
        self.control = WindowControl::new(law(&self.config, capacity_bytes_per_s));
        self.control.start(self.nanos(now), flows);
        strings.clone_into(&mut self.strings);
        self.before = self.measured();
        self.maps.set_window(self.window())?;
        Ok(true)
    }

    /// All is back: no window is capped any more. `true` if one was until now.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses.
    pub fn stop(&mut self) -> Result<bool, BpfError> {
        let was_on = self.control.is_on();
        self.control.stop();
        if was_on {
            self.maps.uncap()?;
        }
        Ok(was_on)
    }

    /// When [`Regulator::poll`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let interval = self.control.poll_timeout();
        let interval = interval.map(|at| self.origin + Duration::from_nanos(at));
        interval.into_iter().chain([self.aged + FLOW_AGE_PERIOD]).min()
    }

    /// Does what is due; `queue_bytes` says what waits in front of these strings.
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
            self.maps.age(now, FLOW_AGE)?;
        }
        let at = self.nanos(now);
        if self.control.poll_timeout().is_none_or(|due| due > at) {
            return Ok(());
        }
        let all = self.measured();
        let measured = Measurement {
            bytes: all.bytes - self.before.bytes,
            flows: (all.flows - self.before.flows) as usize,
            free_bytes: all.free_bytes - self.before.free_bytes,
            free_flows: (all.free_flows - self.before.free_flows) as usize,
            queue_bytes: queue_bytes(&self.strings),
        };
        self.before = all;
        self.control.handle_interval(at, measured);
        self.maps.set_window(self.window())
    }

    /// The part `regulate` of `holdfast edge show`.
    #[must_use]
    pub fn show(&self) -> Value {
        let (clamped, refused) = self.maps.counts();
        json!({
            "active": self.control.is_on(),
            "window_bytes": self.control.window_bytes().map(|window| window as u64),
            "clamped": clamped,
            "refused": refused,
        })
    }

    fn window(&self) -> u32 {
        self.control.window_bytes().map_or(0, |window| window as u32)
    }

    fn measured(&self) -> Measured {
        self.strings.iter().map(|string| self.maps.measured(*string)).sum()
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }
}

fn law(config: &Regulate, capacity_bytes_per_s: u64) -> PfrcConfig {
    PfrcConfig {
        capacity_bytes_per_s,
        interval_ns: config.interval().as_nanos() as u64,
        rtt_ns: config.rtt_ms * 1_000_000,
        alpha: ALPHA,
        utilization: config.utilization_percent as f64 / 100.0,
        law: Law::Shipped { beta: BETA },
        window_min_bytes: config.window_min_bytes as u32,
        right_edge: RightEdge::Keeps,
        flows_max: REGULATE_FLOWS_DEFAULT as usize,
    }
}
