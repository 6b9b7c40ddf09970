//! Short flows: slow start only (thesis §5.2, after Mellia, Stoica and Zhang,
//! IEEE Comm. Letters 6(2), 2002).

use super::{Parameters, Range, additional_delay};

/// Most segments of a short flow: for longer ones the recursion takes too long.
pub const SEGMENTS_MAX: u32 = 40;

/// Most losses in a flow that are followed. With p = 0.001 a third one changes the result by less
/// than a microsecond.
const LOSSES_MAX: u32 = 2;

/// The completion time of a short flow.
#[derive(Clone, Copy, Debug)]
pub struct ShortFlow {
    parameters: Parameters,
    segments: u32,
}

impl ShortFlow {
    /// A flow of `segments` data segments, at most `SEGMENTS_MAX` of them.
    #[must_use]
    pub fn new(parameters: Parameters, segments: u32) -> Self {
        Self { parameters, segments: segments.min(SEGMENTS_MAX) }
    }

    /// Completion time in s without an outage: `L_n = T_h + τ_D^W`.
    #[must_use]
    pub fn normal_s(&self) -> f64 {
        self.handshake_s() + self.transfer_s(self.segments, self.parameters.window)
    }

    /// Time of the handshake in s: `T_h = R + T_s p_s / (1 - 2 p_s)`.
    fn handshake_s(&self) -> f64 {
        let Parameters { rtt_s, syn_rto_s, syn_loss, .. } = self.parameters;
        rtt_s + syn_rto_s * syn_loss / (1.0 - 2.0 * syn_loss)
    }

    /// Time in s to deliver m segments from a window of w on: `τ_m^w`.
    fn transfer_s(&self, segments: u32, window: u32) -> f64 {
        self.rounds_s(segments, window, 0, LOSSES_MAX)
    }

    /// Time in s, computed window by window: all segments arrive, or the j-th is the first that is
    /// lost.
    fn rounds_s(&self, segments: u32, window: u32, backoff: u32, losses: u32) -> f64 {
        if segments == 0 {
            return 0.0;
        }
        let Parameters { loss: p, rtt_s, rto_s, window_max, .. } = self.parameters;
        let sent = window.clamp(1, window_max).min(segments);
        let rest = segments - sent;
        let all_arrive = rtt_s + self.rounds_s(rest, (2 * window).min(window_max), 0, losses);
        if losses == 0 {
            return all_arrive;
        }
        let q = 1.0 - p;
        let mut time = q.powi(sent as i32) * all_arrive;
        for j in 0..sent {
            // Each segment that arrives before the loss releases two new ones behind it.
            let duplicates = sent - 1 - j + (2 * j).min(rest);
            let after = if duplicates >= 3 {
                // A fast retransmit costs one round trip, and half the window.
                2.0 * rtt_s + self.rounds_s(rest, (window / 2).max(2), 0, losses - 1)
            } else {
                let arrived = if j > 0 { rtt_s } else { 0.0 };
                let wait = rto_s * f64::from(1u32 << backoff.min(6));
                arrived + wait + self.rounds_s(segments - j, 1, backoff + 1, losses - 1)
            };
            time += q.powi(j as i32) * p * after;
        }
        time
    }

    /// Completion time in s if i segments had arrived when the outage began: eqs (1) and (2).
    fn interrupted_s(&self, arrived: u32, delay_s: f64) -> f64 {
        self.handshake_s()
            + self.transfer_s(arrived, self.parameters.window)
            + delay_s
            + self.transfer_s(self.segments - arrived, 1)
    }

    /// Completion times in s in Case 2, in which the outage meets data: eq (1), or eq (2) with
    /// local recovery, for every number of segments that may have arrived before. The flow was down
    /// for the outage, less at most a round trip.
    #[must_use]
    pub fn data_lost_s(&self, outage_s: f64, recovery: bool) -> Range {
        let Parameters { rtt_s, rto_s, .. } = self.parameters;
        let down = [(outage_s - rtt_s).max(0.0), outage_s];
        let times = (1..self.segments).flat_map(|arrived| {
            down.map(|down_s| {
                let delay_s = if recovery { down_s } else { additional_delay(rto_s, down_s) };
                self.interrupted_s(arrived, delay_s)
            })
        });
        Range::of(times)
    }

    /// Completion times in s in Case 3, in which the outage meets the SYN: eq (3), or eq (4) with
    /// local recovery.
    #[must_use]
    pub fn syn_lost_s(&self, outage_s: f64, recovery: bool) -> Range {
        let normal = self.normal_s();
        let longest =
            if recovery { outage_s } else { additional_delay(self.parameters.syn_rto_s, outage_s) };
        let shortest = if recovery { 0.0 } else { self.parameters.syn_rto_s };
        Range { min: normal + shortest, max: normal + longest }
    }
}
