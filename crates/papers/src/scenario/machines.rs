//! The machines at the edge of a scenario, as they ship or as the thesis prints them.

use super::build::{FLOWS_MAX, Found};
use super::error::{FileError, unknown, within};
use super::file::{RecoverTable, RegulateTable};
use holdfast_edge::{
    HalrConfig, HalrLimits, Keeps, Law, PfrcConfig, PfrcSettings, RecoveryConfig, RightEdge,
};
use holdfast_netsim::Ns;
use holdfast_netsim::net::scenario::Alert;

const MS: f64 = 1e6;
/// Time between two heartbeats in ns: the default of a transit group.
const HEARTBEAT_NS: Ns = 20_000_000;
/// Interval of the thesis' rate control in ns; it does not state one.
const INTERVAL_PRINTED_NS: Ns = 250_000_000;
/// Segments of a whole window of ns-2, which the thesis' machine keeps as `all`.
const WINDOW_SEGMENTS: usize = 64;

/// Whether a table asks for the machine that ships; words that mean neither are noted.
fn is_shipped(law: Option<&str>, place: &'static str, found: &mut Found) -> bool {
    match law {
        None | Some("shipped") => true,
        Some("printed") => false,
        Some(name) => {
            found.note(place, unknown("law", name, &["shipped", "printed"]));
            true
        }
    }
}

/// The configuration of local recovery, and how it learns of outages; `None` if it is off. What is
/// wrong with the table is noted.
pub fn recover(table: &RecoverTable, found: &mut Found) -> Option<(HalrConfig, Alert)> {
    let words = ["off", "syn", "head", "head+tail", "all"];
    let policy = table.policy.as_deref().unwrap_or("head+tail");
    if !words.contains(&policy) {
        found.note("recover.policy", unknown("policy", policy, &words));
    }
    let memory_mb = table.memory_mb.map(|it| it as f64);
    for (name, value, bounds, said) in [
        ("memory_mb", memory_mb, 1.0..=4096.0, "1 to 4096"),
        ("heartbeat_ms", table.heartbeat_ms, 1.0..=1e4, "1 to 10000"),
        ("tail_delay_ms", table.tail_delay_ms, 0.0..=1e4, "0 to 10000"),
        ("pace_mbit", table.pace_mbit.map(|it| it as f64), 0.0..=1e6, "0 to 1000000"),
        ("age_s", table.age_s.map(|it| it as f64), 1.0..=600.0, "1 to 600"),
    ] {
        if let Some(error) = value.and_then(|value| within(name, value, bounds, said).err()) {
            found.note(&format!("recover.{name}"), error);
        }
    }
    let is_shipped = is_shipped(table.law.as_deref(), "recover.law", found);
    check_law(table, is_shipped, found);
    match (policy, is_shipped) {
        ("off", _) => None,
        (_, true) => Some(shipped(policy, table, found)),
        (_, false) => Some((printed(policy, table), Alert::Told)),
    }
}

/// Notes settings of the other machine.
fn check_law(table: &RecoverTable, is_shipped: bool, found: &mut Found) {
    let shipped = [
        ("start", table.start.is_some()),
        ("heartbeat_ms", table.heartbeat_ms.is_some()),
        ("heaviest", table.heaviest.is_some()),
        ("age_s", table.age_s.is_some()),
    ];
    let printed = [
        ("ack_copies", table.ack_copies.is_some()),
        ("tail_delay_ms", table.tail_delay_ms.is_some()),
    ];
    let (others, whose, remedy): (&[_], _, _) = if is_shipped {
        (&printed, "the thesis' machine", "remove the line, or write law = \"printed\"")
    } else {
        (&shipped, "the machine that ships", "remove the line, or law = \"printed\"")
    };
    for (name, _) in others.iter().filter(|it| it.1) {
        let message = format!("`{name}` is a setting of {whose}");
        found.note(&format!("recover.{name}"), FileError::Conflict { message, remedy });
    }
}

fn printed(policy: &str, table: &RecoverTable) -> HalrConfig {
    let base = RecoveryConfig::default();
    let segments_max = match policy {
        "head+tail" => 2,
        "all" => WINDOW_SEGMENTS,
        _ => 1,
    };
    HalrConfig::printed(RecoveryConfig {
        segments_max,
        syn_only: policy == "syn",
        ack_copies: table.ack_copies.unwrap_or(base.ack_copies),
        flows_max: table.flows_max.unwrap_or(base.flows_max),
        bytes_max: table.memory_mb.map_or(base.bytes_max, |it| it << 20),
        pace_bytes_per_s: table.pace_mbit.map_or(base.pace_bytes_per_s, |it| it * 125_000),
        tail_delay_ns: table.tail_delay_ms.map_or(base.tail_delay_ns, |it| (it * MS) as Ns),
        ..base
    })
}

fn shipped(policy: &str, table: &RecoverTable, found: &mut Found) -> (HalrConfig, Alert) {
    let keeps = match policy {
        "syn" => Keeps::Syns,
        "head" => Keeps::Head,
        "all" => Keeps::All,
        _ => Keeps::HeadTail,
    };
    let start = table.start.as_deref().unwrap_or("suspicion");
    if !["suspicion", "always"].contains(&start) {
        found.note("recover.start", unknown("start", start, &["suspicion", "always"]));
    }
    let base = HalrLimits::STANDARD;
    let limits = HalrLimits {
        flows_max: table.flows_max.unwrap_or(base.flows_max),
        memory_bytes: table.memory_mb.map_or(base.memory_bytes, |it| it << 20),
        age_max_ns: table.age_s.map_or(base.age_max_ns, |it| it * 1_000_000_000),
        pace_bytes_per_s: table.pace_mbit.map_or(base.pace_bytes_per_s, |it| it * 125_000),
        heaviest: table.heaviest.unwrap_or(base.heaviest),
    };
    let heartbeat_ns = table.heartbeat_ms.map_or(HEARTBEAT_NS, |it| (it * MS) as Ns);
    (HalrConfig::shipped(keeps, start == "always", &limits), Alert::Heartbeats(heartbeat_ns))
}

/// The configuration of rate control; what is not given is the default of its law. What is wrong
/// with the table is noted.
pub fn regulate(table: &RegulateTable, found: &mut Found) -> PfrcConfig {
    let is_shipped = is_shipped(table.law.as_deref(), "regulate.law", found);
    let base = PfrcSettings::STANDARD;
    for (name, value, bounds, said) in [
        ("rtt_ms", Some(table.rtt_ms), 0.001..=1e5, "0.001 to 100000"),
        ("interval_ms", table.interval_ms, 1.0..=1e6, "1 to 1000000"),
        ("alpha", table.alpha, 0.0..=2.0, "0 to 2"),
        ("utilization_percent", table.utilization_percent, 1.0..=150.0, "1 to 150"),
    ] {
        if let Some(error) = value.and_then(|value| within(name, value, bounds, said).err()) {
            found.note(&format!("regulate.{name}"), error);
        }
    }
    let keeps = table.keeps_right_edge.unwrap_or(is_shipped);
    if is_shipped && !keeps {
        let message = "the shipped law keeps the right edge".to_owned();
        let remedy = "remove the line, or write law = \"printed\"";
        found.note("regulate.keeps_right_edge", FileError::Conflict { message, remedy });
    }
    let (interval_ns, utilization_percent, alpha) = if is_shipped {
        (base.interval_ns, base.utilization_percent as f64, PfrcConfig::ALPHA_SHIPPED)
    } else {
        (INTERVAL_PRINTED_NS, 95.0, 1.0)
    };
    PfrcConfig {
        capacity_bytes_per_s: table.capacity.0 / 8,
        interval_ns: table.interval_ms.map_or(interval_ns, |it| (it * MS) as Ns),
        rtt_ns: (table.rtt_ms * MS) as Ns,
        alpha: table.alpha.unwrap_or(alpha),
        utilization: table.utilization_percent.unwrap_or(utilization_percent) / 100.0,
        window_min_bytes: table.window_min_bytes.unwrap_or(base.window_min_bytes),
        law: if is_shipped { Law::SHIPPED } else { Law::Printed },
        right_edge: if keeps { RightEdge::Keeps } else { RightEdge::MayShrink },
        flows_max: FLOWS_MAX,
    }
}
