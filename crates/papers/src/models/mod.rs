//! The thesis' closed-form models (chapter 5) as pure functions. Times are in seconds, sizes in
//! segments. [`Parameters`] is its Table I.
//!
//! The equations were lost when the thesis' text was extracted; they were reconstructed and checked
//! against every number of the text.

mod delay;
mod long;
mod memory;
mod share;
mod short;

#[cfg(test)]
mod tests;

pub use delay::{additional_delay, unused_flow_time};
pub use long::LongFlow;
pub use memory::{flows_bytes, syn_bytes};
pub use share::next_window_bytes;
pub use short::ShortFlow;

/// The parameters of the thesis' Table I.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Loss rate of data segments (p).
    pub loss: f64,
    /// Loss rate of SYNs (p_s).
    pub syn_loss: f64,
    /// First timeout of a data segment (T_o), in s.
    pub rto_s: f64,
    /// First timeout of a SYN (T_s), in s.
    pub syn_rto_s: f64,
    /// Round trip (R), in s.
    pub rtt_s: f64,
    /// Initial window (W), in segments.
    pub window: u32,
    /// Largest window (W_max), in segments.
    pub window_max: u32,
    /// Segments per acknowledgement (b).
    pub per_ack: u32,
    /// Cost of the delayed acknowledgement of a lone first segment (T_delack),
    /// in seconds: 0.1 on BSD.
    pub delack_s: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            loss: 0.001,
            syn_loss: 0.001,
            rto_s: 1.5,
            syn_rto_s: 3.0,
            rtt_s: 0.1,
            window: 1,
            window_max: 64,
            per_ack: 2,
            delack_s: 0.1,
        }
    }
}

/// The smallest and the largest of some values.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Range {
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Range {
    /// The range of some values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let empty = Self { min: f64::INFINITY, max: f64::NEG_INFINITY };
        values
            .into_iter()
            .fold(empty, |range, it| Self { min: range.min.min(it), max: range.max.max(it) })
    }

    /// The range that covers both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Whether the range contains a value, with a tolerance of `slack`.
    #[must_use]
    pub fn holds(&self, value: f64, slack: f64) -> bool {
        value >= self.min - slack && value <= self.max + slack
    }
}
