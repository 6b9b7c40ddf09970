//! The tables `[recover]` and `[regulate]`, which groups of every kind may
//! have: what the edge keeps for an outage, and how it shares the remaining
//! bandwidth afterwards.

use super::checks::number;
use super::error::Findings;
use holdfast_edge::{HalrLimits, PfrcSettings};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use toml::Spanned;

/// Bounds of `memory_mb`.
const MEMORY_MB: std::ops::RangeInclusive<u64> = 1..=4096;
/// Bounds of `flows_max`.
const FLOWS_MAX: std::ops::RangeInclusive<u64> = 16..=1 << 20;

/// Which of the packets that pass are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    #[serde(rename = "off")]
    Off,
    /// SYNs.
    #[serde(rename = "syn")]
    Syn,
    /// The lowest unacknowledged segment of every flow.
    #[serde(rename = "head")]
    Head,
    /// The lowest and the highest unacknowledged segment of every flow.
    #[serde(rename = "head+tail")]
    HeadTail,
    /// As many segments as there is room for.
    #[serde(rename = "all")]
    All,
}

/// When packets begin to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// When heartbeats are missing.
    Suspicion,
    Always,
}

/// The table `[recover]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Recover {
    pub policy: Policy,
    pub start: Start,
    /// Number of flows that are kept, those with the most bytes; 0: all.
    pub heaviest: usize,
    /// Most flows that are remembered.
    pub flows_max: usize,
    /// Most memory of the cache, in MiB.
    pub memory_mb: u64,
    /// Age above which a packet is not resent, in seconds.
    pub age_s: u64,
    /// Rate to which resends are spaced, in Mbit/s; 0: at once.
    pub pace_mbit: u64,
}

/// The table `[regulate]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Regulate {
    pub enabled: bool,
    /// Length of one measurement, in ms.
    pub interval_ms: u64,
    /// Round trip of the flows, in ms.
    pub rtt_ms: u64,
    /// Share of the capacity that the controller aims at, in %.
    pub utilization_percent: u64,
    /// The smallest window that is ever set, in bytes.
    pub window_min_bytes: u64,
}

/// `[recover]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRecover {
    policy: Option<Policy>,
    start: Option<Start>,
    heaviest: Option<Spanned<u64>>,
    flows_max: Option<Spanned<u64>>,
    memory_mb: Option<Spanned<u64>>,
    age_s: Option<Spanned<u64>>,
    pace_mbit: Option<Spanned<u64>>,
}

/// `[regulate]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRegulate {
    enabled: Option<bool>,
    interval_ms: Option<Spanned<u64>>,
    rtt_ms: Option<Spanned<u64>>,
    utilization_percent: Option<Spanned<u64>>,
    window_min_bytes: Option<Spanned<u64>>,
}

impl Recover {
    /// Settings of a group without the table, if it keeps this by default.
    #[must_use]
    pub fn standard(policy: Policy, start: Start) -> Self {
        let limits = HalrLimits::STANDARD;
        Self {
            policy,
            start,
            heaviest: limits.heaviest,
            flows_max: limits.flows_max,
            memory_mb: limits.memory_bytes >> 20,
            age_s: limits.age_max_ns / 1_000_000_000,
            pace_mbit: limits.pace_bytes_per_s * 8 / 1_000_000,
        }
    }
}

impl Regulate {
    /// Settings of a group without the table.
    #[must_use]
    pub fn standard() -> Self {
        let settings = PfrcSettings::STANDARD;
        Self {
            enabled: true,
            interval_ms: settings.interval_ns / 1_000_000,
            rtt_ms: settings.rtt_ns / 1_000_000,
            utilization_percent: settings.utilization_percent,
            window_min_bytes: settings.window_min_bytes.into(),
        }
    }

    /// `interval_ms` as a duration.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }
}

/// Checks `[recover]`; `standard` has the defaults of this kind of group.
pub(super) fn check_recover(
    findings: &mut Findings,
    raw: Option<RawRecover>,
    standard: Recover,
) -> Recover {
    let Some(raw) = raw else { return standard };
    let heaviest = standard.heaviest as u64;
    let flows = standard.flows_max as u64;
    Recover {
        policy: raw.policy.unwrap_or(standard.policy),
        start: raw.start.unwrap_or(standard.start),
        heaviest: number(findings, "heaviest", raw.heaviest, heaviest, 0..=10_000, "flows")
            as usize,
        flows_max: number(findings, "flows_max", raw.flows_max, flows, FLOWS_MAX, "flows") as usize,
        memory_mb: number(
            findings,
            "memory_mb",
            raw.memory_mb,
            standard.memory_mb,
            MEMORY_MB,
            "MiB",
        ),
        age_s: number(findings, "age_s", raw.age_s, standard.age_s, 1..=600, "seconds"),
        pace_mbit: number(
            findings,
            "pace_mbit",
            raw.pace_mbit,
            standard.pace_mbit,
            0..=1_000_000,
            "Mbit/s",
        ),
    }
}

/// Checks `[regulate]`.
pub(super) fn check_regulate(findings: &mut Findings, raw: Option<RawRegulate>) -> Regulate {
    let standard = Regulate::standard();
    let Some(raw) = raw else { return standard };
    let mut checked = |name, written, default, bounds, unit| {
        number(findings, name, written, default, bounds, unit)
    };
    Regulate {
        enabled: raw.enabled.unwrap_or(standard.enabled),
        interval_ms: checked(
            "interval_ms",
            raw.interval_ms,
            standard.interval_ms,
            10..=10_000,
            "ms",
        ),
        rtt_ms: checked("rtt_ms", raw.rtt_ms, standard.rtt_ms, 1..=10_000, "ms"),
        utilization_percent: checked(
            "utilization_percent",
            raw.utilization_percent,
            standard.utilization_percent,
            10..=100,
            "%",
        ),
        window_min_bytes: checked(
            "window_min_bytes",
            raw.window_min_bytes,
            standard.window_min_bytes,
            1..=1 << 20,
            "bytes",
        ),
    }
}
