//! CUBIC's window (RFC 9438).

use crate::Ns;

/// Factor by which a loss reduces the window (§4.6).
const BETA: f64 = 0.7;
/// Constant of the window's growth, in segments/s³ (§4.1).
const C: f64 = 0.4;

/// What CUBIC remembers between losses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    window_max: f64,
    /// Time in s until the window is as large as before the loss.
    k: f64,
    epoch: Option<Ns>,
    /// Window that Reno would have, in segments.
    friendly: f64,
}

impl Cubic {
    /// The threshold after a loss.
    pub fn reduce(&mut self, cwnd: f64) -> f64 {
        self.epoch = None;
        // Fast convergence (§4.7).
        let converges = cwnd < self.window_max;
        self.window_max = if converges { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        (cwnd * BETA).max(2.0)
    }

    /// The window after `acked` segments in congestion avoidance.
    pub fn grow(&mut self, now: Ns, rtt_ns: Ns, cwnd: f64, acked: f64) -> f64 {
        if self.epoch.is_none() {
            self.epoch = Some(now);
            self.window_max = self.window_max.max(cwnd);
            self.k = ((self.window_max - cwnd) / C).cbrt();
            self.friendly = cwnd;
        }
        let since = (now - self.epoch.unwrap_or(now)) as f64 / 1e9;
        let target_at = since + rtt_ns as f64 / 1e9 - self.k;
        let target = (self.window_max + C * target_at.powi(3)).clamp(cwnd, 1.5 * cwnd);
        // §4.3: at least as much as Reno would have.
        let alpha = 3.0 * (1.0 - BETA) / (1.0 + BETA);
        self.friendly += alpha * acked / cwnd;
        let cubic = cwnd + (target - cwnd) / cwnd * acked;
        cubic.max(self.friendly)
    }
}
