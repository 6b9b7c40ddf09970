//! One window for all flows, from the capacity of the string and the bytes that
//! have come.

use super::PfrcConfig;
use crate::Ns;

/// Largest factor by which the window grows in one interval.
const GROWTH_MAX: f64 = 1.05;
/// Share of the promised bytes below which senders seem to wait: for the promise to
/// be used up, or for the string.
const STALLED: f64 = 0.25;
/// Most intervals in a row from which nothing is concluded for that reason.
const STALLED_MAX: u32 = 10;
/// Weight of the latest interval in the average of bytes that come: senders in
/// step with each other send more in one interval and less in the next.
const LATEST: f64 = 0.25;
/// Largest part of the window that draining a queue takes in one interval.
const DRAIN_MAX: f64 = 0.25;

/// How the window follows the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// Equations (9) and (10) of the thesis §6.3.
    Printed,
    /// The same, with the measured round trip, a term that drains a queue where
    /// one is known, no step from an interval in which nothing came, and without
    /// the flows that do not feel the window yet.
    Shipped {
        /// Weight of the queue (β): the share of it that is drained per interval.
        beta: f64,
    },
}

impl Law {
    /// The law that ships: a quarter of a standing queue is drained in an interval.
    pub const SHIPPED: Self = Self::Shipped { beta: 0.25 };
}

/// Measurements of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurement {
    /// B(n): bytes that came for the string.
    pub bytes: u64,
    /// N: number of flows.
    pub flows: usize,
    /// The part of the bytes and flows that was promised more before, and uses
    /// that up first.
    pub free_bytes: u64,
    pub free_flows: usize,
    /// Bytes that wait in front of the string, where known.
    pub queue_bytes: Option<f64>,
}

/// The controller without the flows; [`super::Pfrc`] says when it is asked.
///
/// Contract: [`WindowControl::start`] switches it on; when the time of
/// [`WindowControl::poll_timeout`] has come [`WindowControl::handle_interval`]
/// takes what was measured since the last one.
#[derive(Clone, Debug)]
pub struct WindowControl {
    config: PfrcConfig,
    window_bytes: f64,
    interval_ends: Option<Ns>,
    stalled: u32,
    /// Average share of the wanted bytes that actually comes.
    load: Option<f64>,
}

impl WindowControl {
    /// A controller that is off.
    #[must_use]
    pub fn new(config: PfrcConfig) -> Self {
        Self { config, window_bytes: f64::INFINITY, interval_ends: None, stalled: 0, load: None }
    }

    /// Less capacity is left, for this many flows.
    pub fn start(&mut self, now: Ns, flows: usize) {
        self.interval_ends = Some(now + self.config.interval_ns);
        self.stalled = 0;
        self.load = None;
        // The fair share: what eq (9) comes to rest at when no queue builds up.
        self.window_bytes = self.target_bytes() * self.round_trips() / flows.max(1) as f64;
    }

    /// Stops capping.
    pub fn stop(&mut self) {
        self.interval_ends = None;
        self.window_bytes = f64::INFINITY;
    }

    /// Takes the measurements of an interval that has ended.
    pub fn handle_interval(&mut self, now: Ns, measured: Measurement) {
        let Some(ends) = self.interval_ends.filter(|ends| *ends <= now) else {
            return;
        };
        self.interval_ends = Some(ends + self.config.interval_ns);
        let next = match self.config.law {
            Law::Printed => self.printed(&measured),
            Law::Shipped { beta } => self.shipped(&measured, beta),
        };
        // Eq (10) bounds what is advertised; the sum itself is bounded too, or
        // it would wind up while nothing arrives.
        let floor = f64::from(self.config.window_min_bytes);
        let ceiling = self.target_bytes() * self.round_trips();
        self.window_bytes = next.clamp(floor.min(ceiling), ceiling);
    }

    /// thesis §6.3 eq (9): W(n+1) = W(n) + α (RTT/Δ) (u C(n) - B(n)) / N
    fn printed(&self, measured: &Measurement) -> f64 {
        let error = self.target_bytes() - measured.bytes as f64;
        let flows = measured.flows.max(1) as f64;
        self.window_bytes + self.config.alpha * self.round_trips() * error / flows
    }

    /// Eq (9) with the round trip that Little's law gives for flows that use
    /// their windows, RTT = N W Δ / B; of a known queue, the share β is
    /// drained.
    ///
    /// A flow that still uses an earlier promise does not follow the window.
    /// The other flows share what such flows leave, and at least their own
    /// part: they do not pay for those.
    fn shipped(&mut self, measured: &Measurement, beta: f64) -> f64 {
        let (window, flows) = (self.window_bytes, measured.flows.max(1) as f64);
        let came = measured.bytes.saturating_sub(measured.free_bytes) as f64;
        let follow = measured.flows.saturating_sub(measured.free_flows) as f64;
        let left = self.target_bytes() - measured.free_bytes as f64;
        let target = left.max(self.target_bytes() * follow / flows);
        if came < STALLED * target && self.stalled < STALLED_MAX || came == 0.0 {
            self.stalled += 1;
            return window;
        }
        self.stalled = 0;
        let load = self.load.map_or(came / target, |load| load + LATEST * (came / target - load));
        self.load = Some(load);
        let drain = beta * measured.queue_bytes.unwrap_or(0.0) / flows;
        let step = self.config.alpha * window * (1.0 - load) / load - drain.min(DRAIN_MAX * window);
        (window + step).min(window * GROWTH_MAX)
    }

    /// When the interval ends; `None` while it is off.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.interval_ends
    }

    /// Whether windows are capped.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.interval_ends.is_some()
    }

    /// The window that every flow may use; `None` while it is off.
    #[must_use]
    pub fn window_bytes(&self) -> Option<f64> {
        self.interval_ends.map(|_| self.window_bytes.max(f64::from(self.config.window_min_bytes)))
    }

    /// `u C(n)`: wanted bytes in an interval.
    fn target_bytes(&self) -> f64 {
        let seconds = self.config.interval_ns as f64 / 1e9;
        self.config.utilization * self.config.capacity_bytes_per_s as f64 * seconds
    }

    /// `RTT/Δ`.
    fn round_trips(&self) -> f64 {
        self.config.rtt_ns as f64 / self.config.interval_ns.max(1) as f64
    }
}
