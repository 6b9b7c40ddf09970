//! The machines at the edge of a scenario, as the thesis prints them or as they ship.

use super::build::FLOWS_MAX;
use super::error::{FileError, within};
use super::file::{RateControlTable, RecoveryTable};
use holdfast_edge::{HalrConfig, HalrLimits, Keeps, Law, PfrcConfig, RecoveryConfig, RightEdge};
use holdfast_netsim::Ns;
use holdfast_netsim::net::scenario::Alert;

const MS: Ns = 1_000_000;
/// Time between two heartbeats in ns: the default of a transit group.
const HEARTBEAT_NS: Ns = 20 * MS;
/// Memory of a cache in bytes: the default of `[recover]`.
const MEMORY_BYTES: u64 = 32 << 20;
/// Age in ns beyond which nothing is resent: the default of `[recover]`.
const AGE_MAX_NS: Ns = 60_000 * MS;
/// Rate of resends in bytes per second: the default of `[recover]`.
const PACE_BYTES_PER_S: u64 = 1_000_000_000 / 8;

/// The configuration of local recovery, and how it learns of outages.
///
/// # Errors
/// When values of the table do not go together.
pub fn recovery(table: &RecoveryTable) -> Result<(HalrConfig, Alert), FileError> {
    match &table.policy {
        None => printed(table).map(|it| (it, Alert::Told)),
        Some(name) => shipped(name, table),
    }
}

fn printed(table: &RecoveryTable) -> Result<HalrConfig, FileError> {
    if table.start.is_some() || table.heartbeat.is_some() {
        let text = "recovery: start and heartbeat need a policy, as it ships";
        return Err(FileError::Syntax(text.to_owned()));
    }
    let base = RecoveryConfig::default();
    Ok(HalrConfig::printed(RecoveryConfig {
        segments_max: table.segments.unwrap_or(base.segments_max),
        syn_only: table.syn_only.unwrap_or(base.syn_only),
        ack_copies: table.ack_copies.unwrap_or(base.ack_copies),
        flows_max: table.flows_max.unwrap_or(base.flows_max),
        bytes_max: table.bytes_max.unwrap_or(base.bytes_max),
        pace_bytes_per_s: table.pace.map_or(base.pace_bytes_per_s, |it| it.0 / 8),
        tail_delay_ns: table.tail_delay.map_or(base.tail_delay_ns, |it| it.0),
        ..base
    }))
}

fn shipped(name: &str, table: &RecoveryTable) -> Result<(HalrConfig, Alert), FileError> {
    let own = [table.segments.is_some(), table.syn_only.is_some(), table.ack_copies.is_some()];
    if own.contains(&true) || table.tail_delay.is_some() {
        let text = "recovery: a policy says what is kept; leave out segments, syn_only, \
                    ack_copies and tail_delay";
        return Err(FileError::Syntax(text.to_owned()));
    }
    let keeps = match name {
        "syn" => Keeps::Syns,
        "head" => Keeps::Head,
        "head+tail" => Keeps::HeadTail,
        "all" => Keeps::All,
        _ => return Err(unknown("recovery.policy", name, "syn, head, head+tail, all")),
    };
    let always = match table.start.as_deref() {
        None | Some("suspicion") => false,
        Some("always") => true,
        Some(name) => return Err(unknown("recovery.start", name, "suspicion, always")),
    };
    let limits = HalrLimits {
        flows_max: table.flows_max.unwrap_or(RecoveryConfig::default().flows_max),
        memory_bytes: table.bytes_max.unwrap_or(MEMORY_BYTES),
        age_max_ns: AGE_MAX_NS,
        pace_bytes_per_s: table.pace.map_or(PACE_BYTES_PER_S, |it| it.0 / 8),
        heaviest: 0,
    };
    let heartbeat_ns = table.heartbeat.map_or(HEARTBEAT_NS, |it| it.0);
    within("recovery.heartbeat, ns", heartbeat_ns as f64, 1e6..=1e10, "1ms to 10s")?;
    Ok((HalrConfig::shipped(keeps, always, &limits), Alert::Heartbeats(heartbeat_ns)))
}

/// The configuration of rate control. What is not given is the default of its law.
///
/// # Errors
/// When a value is out of its bounds.
pub fn rate_control(table: &RateControlTable) -> Result<PfrcConfig, FileError> {
    let is_shipped = match table.law.as_deref() {
        None | Some("printed") => false,
        Some("shipped") => true,
        Some(name) => return Err(unknown("rate_control.law", name, "printed, shipped")),
    };
    let either = |shipped, printed| if is_shipped { shipped } else { printed };
    let interval_ns = table.interval.map_or(if is_shipped { 100 } else { 250 } * MS, |it| it.0);
    within("rate_control.interval, ns", interval_ns as f64, 1e6..=1e12, "at least 1ms")?;
    let alpha = table.alpha.unwrap_or(either(PfrcConfig::ALPHA_SHIPPED, 1.0));
    let utilization = table.utilization.unwrap_or(either(0.98, 0.95));
    let keeps = table.keeps_right_edge.unwrap_or(is_shipped);
    if is_shipped && !keeps {
        let text = "rate_control: the shipped law keeps the right edge; leave out \
                    keeps_right_edge, or write law = \"printed\"";
        return Err(FileError::Syntax(text.to_owned()));
    }
    Ok(PfrcConfig {
        capacity_bytes_per_s: table.capacity.0 / 8,
        interval_ns,
        rtt_ns: table.rtt.0,
        alpha: within("rate_control.alpha", alpha, 0.0..=2.0, "0 to 2")?,
        utilization: within("rate_control.utilization", utilization, 0.0..=1.5, "0 to 1.5")?,
        window_min_bytes: table.window_min_bytes.unwrap_or(3000),
        law: if is_shipped { Law::SHIPPED } else { Law::Printed },
        right_edge: if keeps { RightEdge::Keeps } else { RightEdge::MayShrink },
        flows_max: FLOWS_MAX,
    })
}

fn unknown(what: &'static str, name: &str, known: &str) -> FileError {
    FileError::Unknown { what, name: name.to_owned(), known: known.to_owned() }
}
