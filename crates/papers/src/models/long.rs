//! Long flows (thesis §5.3): Cardwell, Savage and Anderson, INFOCOM 2000
//! ("CSA"), with the steady state of Padhye et al., SIGCOMM 1998.

use super::{Parameters, Range, additional_delay};

/// Number of positions before the outage for which the model is evaluated.
const STEPS: u32 = 64;

/// The completion time of a long flow.
#[derive(Clone, Copy, Debug)]
pub struct LongFlow {
    parameters: Parameters,
    segments: f64,
    /// Whether the threshold is two segments after two timeouts in a row, or one of the SYN, so
    /// that the window grows linearly. The thesis names this and leaves it out of its model.
    threshold_two: bool,
}

impl LongFlow {
    /// A flow of `segments` data segments, as the thesis models it.
    #[must_use]
    pub fn new(parameters: Parameters, segments: u32) -> Self {
        Self { parameters, segments: f64::from(segments), threshold_two: false }
    }

    /// The model with the extension for a slow-start threshold of two.
    #[must_use]
    pub fn with_threshold_two(self) -> Self {
        Self { threshold_two: true, ..self }
    }

    /// Growth of the window in a round trip of slow start (γ): 1.5 with delayed ACKs.
    fn gamma(&self) -> f64 {
        1.0 + 1.0 / f64::from(self.parameters.per_ack)
    }

    /// Time of the handshake in s, CSA (4).
    fn handshake_s(&self) -> f64 {
        let Parameters { rtt_s, syn_rto_s, syn_loss: p, .. } = self.parameters;
        let ratio = (1.0 - p) / (1.0 - 2.0 * p);
        rtt_s + syn_rto_s * (2.0 * ratio - 2.0)
    }

    /// Segments of the first slow start, CSA (5).
    #[must_use]
    pub fn slow_start_segments(&self) -> f64 {
        let p = self.parameters.loss;
        (1.0 - (1.0 - p).powf(self.segments)) * (1.0 - p) / p + 1.0
    }

    /// Window in segments when slow start ends, within its limit, CSA (11).
    fn slow_start_window(&self) -> f64 {
        let gamma = self.gamma();
        let window = f64::from(self.parameters.window);
        let reached = self.slow_start_segments() * (gamma - 1.0) / gamma + window / gamma;
        reached.min(f64::from(self.parameters.window_max))
    }

    /// Time in s for `segments` of slow start from a window of `window` on, CSA (15).
    #[must_use]
    pub fn slow_start_s(&self, segments: f64, window: f64) -> f64 {
        let (gamma, rtt_s) = (self.gamma(), self.parameters.rtt_s);
        let window_max = f64::from(self.parameters.window_max);
        let reached = segments * (gamma - 1.0) / gamma + window / gamma;
        if reached <= window_max {
            return rtt_s * (segments * (gamma - 1.0) / window + 1.0).log(gamma);
        }
        let rest = segments - (gamma * window_max - window) / (gamma - 1.0);
        rtt_s * ((window_max / window).log(gamma) + 1.0 + rest / window_max)
    }

    /// Probability that a loss in a window of `window` leads to a timeout, CSA (17).
    fn timeout_probability(&self, window: f64) -> f64 {
        let q = 1.0 - self.parameters.loss;
        let (q3, all) = (q.powi(3), 1.0 - q.powf(window));
        ((1.0 - q3) * (1.0 + q3 * (1.0 - q.powf(window - 3.0))) / all).min(1.0)
    }

    /// Expected length in s of a row of timeouts, CSA (18) and (19).
    fn timeouts_s(&self) -> f64 {
        let p = self.parameters.loss;
        let doublings: f64 = (0..6).map(|n| f64::from(1 << n) * p.powi(n + 1)).sum();
        self.parameters.rto_s * (1.0 + doublings) / (1.0 - p)
    }

    /// Expected time in s that the first loss costs, CSA (20).
    fn first_loss_s(&self) -> f64 {
        let lost = 1.0 - (1.0 - self.parameters.loss).powf(self.segments);
        let timeout = self.timeout_probability(self.slow_start_window());
        lost * (timeout * self.timeouts_s() + (1.0 - timeout) * self.parameters.rtt_s)
    }

    /// Window in segments at which a loss is expected in the steady state, CSA (23).
    #[must_use]
    pub fn steady_window(&self) -> f64 {
        let (p, b) = (self.parameters.loss, f64::from(self.parameters.per_ack));
        let base = (2.0 + b) / (3.0 * b);
        base + (8.0 * (1.0 - p) / (3.0 * b * p) + base * base).sqrt()
    }

    /// Segments per second in the steady state, CSA (22).
    #[must_use]
    pub fn steady_rate(&self) -> f64 {
        let Parameters { loss: p, rtt_s, .. } = self.parameters;
        let (b, window_max) =
            (f64::from(self.parameters.per_ack), f64::from(self.parameters.window_max));
        let window = self.steady_window();
        let between = (1.0 - p) / p;
        if window < window_max {
            let timeout = self.timeout_probability(window);
            let round = rtt_s * (b * window / 2.0 + 1.0) + timeout * self.timeouts_s();
            return (between + window / 2.0 + timeout) / round;
        }
        let timeout = self.timeout_probability(window_max);
        let rounds = b * window_max / 8.0 + between / window_max + 2.0;
        (between + window_max / 2.0 + timeout) / (rtt_s * rounds + timeout * self.timeouts_s())
    }

    /// Completion time in s without an outage, CSA (25).
    #[must_use]
    pub fn normal_s(&self) -> f64 {
        self.head_s(self.segments)
    }

    /// Time in s until `arrived` segments have arrived, at least those of slow start.
    fn head_s(&self, arrived: f64) -> f64 {
        let slow = self.slow_start_segments();
        let window = f64::from(self.parameters.window);
        let delack = if self.parameters.window == 1 { self.parameters.delack_s } else { 0.0 };
        self.handshake_s()
            + self.slow_start_s(slow, window)
            + self.first_loss_s()
            + (arrived - slow).max(0.0) / self.steady_rate()
            + delack
    }

    /// Time in s after a timeout with `rest` segments to go: slow start up to half the window, then
    /// congestion avoidance (thesis §5.3).
    fn restart_s(&self, rest: f64) -> f64 {
        let gamma = self.gamma();
        let threshold = (self.steady_window() / 2.0).max(2.0);
        let slow = rest.min((gamma * threshold - 1.0) / (gamma - 1.0));
        self.slow_start_s(slow, 1.0) + (rest - slow) / self.steady_rate()
    }

    /// Time in s for `segments` at linear growth from two segments on: n rounds carry
    /// `2n + n²/(2b)`.
    #[must_use]
    pub fn linear_s(&self, segments: f64) -> f64 {
        let Parameters { rtt_s, .. } = self.parameters;
        let (b, window_max) =
            (f64::from(self.parameters.per_ack), f64::from(self.parameters.window_max));
        let rounds = |segments: f64| b * ((4.0 + 2.0 * segments / b).sqrt() - 2.0);
        let rounds_max = b * (window_max - 2.0);
        let until_max = 2.0 * rounds_max + rounds_max * rounds_max / (2.0 * b);
        if segments <= until_max {
            return rtt_s * rounds(segments);
        }
        rtt_s * (rounds_max + (segments - until_max) / window_max)
    }

    /// Completion times in s in Case 2: eq (5), or with local recovery (6-1) if the outage is
    /// shorter than the timeout and (6-2) if it is longer.
    #[must_use]
    pub fn data_lost_s(&self, outage_s: f64, recovery: bool) -> Range {
        let slow = self.slow_start_segments();
        let places = (0..=STEPS).map(|step| {
            let share = f64::from(step) / f64::from(STEPS);
            slow + share * (self.segments - 1.0 - slow)
        });
        let down = [(outage_s - self.parameters.rtt_s).max(0.0), outage_s];
        Range::of(places.flat_map(|at| down.map(|down_s| self.interrupted_s(at, down_s, recovery))))
    }

    fn interrupted_s(&self, arrived: f64, down_s: f64, recovery: bool) -> f64 {
        let rest = self.segments - arrived;
        let rto_s = self.parameters.rto_s;
        let (delay_s, tail_s) = if !recovery {
            let delay_s = additional_delay(rto_s, down_s);
            let twice = delay_s > rto_s && self.threshold_two;
            (delay_s, if twice { self.linear_s(rest) } else { self.restart_s(rest) })
        } else if down_s < rto_s {
            (down_s, rest / self.steady_rate())
        } else {
            (down_s, self.restart_s(rest))
        };
        self.head_s(arrived) + delay_s + tail_s
    }

    /// Completion times in s in Case 3: eq (7), or eq (8) with local recovery.
    #[must_use]
    pub fn syn_lost_s(&self, outage_s: f64, recovery: bool) -> Range {
        if recovery {
            let normal = self.normal_s();
            return Range { min: normal, max: normal + outage_s };
        }
        let after = if self.threshold_two {
            self.handshake_s() + self.linear_s(self.segments) + self.parameters.delack_s
        } else {
            self.normal_s()
        };
        let syn_rto_s = self.parameters.syn_rto_s;
        Range { min: after + syn_rto_s, max: after + additional_delay(syn_rto_s, outage_s) }
    }
}
