//! The counters as Prometheus reads them (text format 0.0.4). docs/METRICS.md lists the names; a
//! test holds the two against each other.

use super::seen::Seen;
use holdfast::status::{State, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most counters of a daemon that are shown; it has some fifty.
const COUNTERS_MAX: usize = 512;
/// Of what `status` calls counters, those that also fall.
const GAUGES: [&str; 5] =
    ["spool.image_bytes", "spool.log_bytes", "spool.bytes", "spool.bytes_max", "witness.groups"];
/// All states of a group; one of them is 1.
const STATES: [State; 7] = [
    State::Protected,
    State::Unprotected,
    State::Diverged,
    State::Hung,
    State::Waiting,
    State::Fenced,
    State::Ended,
];

/// The families that have a name of their own, each with its help. Names that end in `_total` are
/// counters, the others gauges.
pub const FAMILIES: [(&str, &str); 23] = [
    ("holdfast_build_info", "The release that serves this; always 1"),
    ("holdfast_up", "Whether the daemon has answered within the last 3 s"),
    ("holdfast_state", "The group's state as this daemon sees it: 1 for the one that it is in"),
    ("holdfast_epoch", "Epoch of the member, or the newest one of the edge"),
    ("holdfast_connections", "Connections of clients, as in status"),
    ("holdfast_connections_at_risk", "Connections that a takeover would end now"),
    ("holdfast_lag_frames", "Frames of the log that the backup has not confirmed"),
    ("holdfast_lag_bytes", "Bytes of the log that the backup has not confirmed"),
    ("holdfast_lag_not_executed_bytes", "Bytes of the log that the replica has not run"),
    ("holdfast_one_at_a_time", "Whether the server's threads run one at a time"),
    ("holdfast_overlaps_total", "Times that another thread ran beside one that computed long"),
    ("holdfast_server_running", "Whether a server runs on this host"),
    ("holdfast_peer_connected", "Whether this daemon hears the peer"),
    ("holdfast_events_total", "Events of the daemon's life, by kind"),
    ("holdfast_takeovers_total", "Takeovers that the daemon has told of"),
    ("holdfast_last_takeover_timestamp_seconds", "When the last takeover was, since 1970"),
    ("holdfast_last_takeover_duration_seconds", "How long each phase of the last takeover took"),
    ("holdfast_last_takeover_total_seconds", "How long the last takeover took, without detection"),
    ("holdfast_last_takeover_connections", "Connections that the last takeover carried over"),
    ("holdfast_flows", "Flows in the edge's table"),
    ("holdfast_flows_max", "Flows that the edge's table has room for"),
    ("holdfast_cache_bytes", "Bytes that the edge keeps to be sent again"),
    ("holdfast_cache_bytes_max", "Bytes that the edge may keep to be sent again"),
];

/// What a family is called that comes from a counter of `status`, its kind, and what its value is
/// multiplied with; `None` if there is nothing to call it.
///
/// `gate.acks_clamped` becomes `holdfast_gate_acks_clamped_total`; what ends in `_us` is a gauge in
/// seconds.
pub fn family_of(counter: &str) -> Option<(String, Kind, f64)> {
    let name = counter.split(" (").next().unwrap_or_default().trim();
    let clean = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let own: String = name.chars().map(clean).collect();
    let (own, scale, kind) = match own.strip_suffix("_us") {
        Some(own) => (format!("{own}_seconds"), 1e-6, Kind::Gauge),
        None if GAUGES.contains(&name) => (own, 1.0, Kind::Gauge),
        None => (format!("{own}_total"), 1.0, Kind::Counter),
    };
    let is_named = own.starts_with(|c: char| c.is_ascii_lowercase()) && !name.is_empty();
    is_named.then(|| (format!("holdfast_{own}"), kind, scale))
}

/// Whether a value only ever grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    fn of(name: &str) -> Self {
        if name.ends_with("_total") { Self::Counter } else { Self::Gauge }
    }
}

type Labels = Vec<(&'static str, String)>;

/// All values, by family.
#[derive(Debug, Default)]
struct Scrape {
    families: BTreeMap<Cow<'static, str>, Family>,
}

#[derive(Debug)]
struct Family {
    help: String,
    samples: Vec<(Labels, f64)>,
}

/// The text of a scrape.
pub fn text(groups: &[&Seen]) -> String {
    let mut scrape = Scrape::default();
    scrape.put("holdfast_build_info", vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0);
    for seen in groups {
        scrape.add(seen);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Scrape {
    fn put(&mut self, name: &'static str, labels: Labels, value: f64) {
        let help = FAMILIES.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
        let fresh = || Family { help: help.to_owned(), samples: Vec::new() };
        self.families.entry(name.into()).or_insert_with(fresh).samples.push((labels, value));
    }

    fn add(&mut self, seen: &Seen) {
        let Some(last) = seen.last() else { return };
        let labels = vec![("group", last.group.clone()), ("member", last.member.clone())];
        self.put("holdfast_up", labels.clone(), f64::from(u8::from(seen.fresh().is_some())));
        // What a daemon said once is not how it is now.
        let Some(status) = seen.fresh() else { return };
        self.add_state(status, &labels);
        self.add_takeovers(seen, status, &labels);
        for (what, count) in seen.counts() {
            self.put("holdfast_events_total", with(&labels, "what", what), *count as f64);
        }
        if let Some(show) = seen.show() {
            self.add_edge(show, &labels);
        }
        for (counter, value) in status.counters.iter().take(COUNTERS_MAX) {
            self.add_counter(counter, *value, &labels);
        }
    }

    fn add_state(&mut self, status: &Status, labels: &Labels) {
        for state in STATES {
            let mut labels = with(labels, "role", &status.role.to_string());
            labels.push(("state", state.to_string().to_lowercase()));
            self.put("holdfast_state", labels, f64::from(u8::from(state == status.state)));
        }
        let lag = status.lag;
        for (name, value) in [
            ("holdfast_epoch", status.epoch),
            ("holdfast_connections", status.connections),
            ("holdfast_connections_at_risk", status.at_risk),
            ("holdfast_lag_frames", lag.frames),
            ("holdfast_lag_bytes", lag.bytes),
            ("holdfast_lag_not_executed_bytes", lag.executed),
            ("holdfast_one_at_a_time", u64::from(status.one_at_a_time)),
            ("holdfast_overlaps_total", status.overlaps),
            ("holdfast_server_running", u64::from(status.server_pid != 0)),
        ] {
            self.put(name, labels.clone(), value as f64);
        }
        for peer in &status.peers {
            let labels = with(labels, "peer", &peer.name);
            self.put("holdfast_peer_connected", labels, f64::from(u8::from(peer.connected)));
        }
    }

    fn add_takeovers(&mut self, seen: &Seen, status: &Status, labels: &Labels) {
        self.put("holdfast_takeovers_total", labels.clone(), seen.takeover_count() as f64);
        let Some(last) = &status.last_takeover else { return };
        for (phase, us) in last.phases_us.named() {
            let labels = with(labels, "phase", phase);
            self.put("holdfast_last_takeover_duration_seconds", labels, us as f64 / 1e6);
        }
        let total = last.total_us as f64 / 1e6;
        self.put("holdfast_last_takeover_total_seconds", labels.clone(), total);
        let carried = last.connections as f64;
        self.put("holdfast_last_takeover_connections", labels.clone(), carried);
        if let Some(at) = unix_seconds(&last.at) {
            self.put("holdfast_last_takeover_timestamp_seconds", labels.clone(), at);
        }
    }

    fn add_edge(&mut self, show: &Value, labels: &Labels) {
        for (name, value) in [
            ("holdfast_flows", &show["flows"]["count"]),
            ("holdfast_flows_max", &show["flows"]["max"]),
            ("holdfast_cache_bytes", &show["cache"]["bytes"]),
            ("holdfast_cache_bytes_max", &show["cache"]["bytes_max"]),
        ] {
            if let Some(value) = value.as_f64() {
                self.put(name, labels.clone(), value);
            }
        }
    }

    fn add_counter(&mut self, counter: &str, value: u64, labels: &Labels) {
        let Some((name, _, scale)) = family_of(counter) else { return };
        let known: String =
            counter.chars().filter(|c| c.is_ascii_graphic() && *c != '\\').collect();
        let help = || format!("{known} of holdfast status");
        let fresh = || Family { help: help(), samples: Vec::new() };
        let family = self.families.entry(name.into()).or_insert_with(fresh);
        // Two counters of a daemon that differ only in what cannot be in a name are one.
        if family.samples.iter().all(|(of, _)| of != labels) {
            family.samples.push((labels.clone(), value as f64 * scale));
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, family) in &self.families {
            let (kind, name) = match Kind::of(name) {
                // The encoder says so again.
                Kind::Counter => (MetricType::Counter, name.trim_end_matches("_total")),
                Kind::Gauge => (MetricType::Gauge, name.as_ref()),
            };
            let mut metric = encoder.encode_descriptor(name, &family.help, None, kind)?;
            for (labels, value) in &family.samples {
                let sample = metric.encode_family(labels)?;
                match kind {
                    MetricType::Counter => ConstCounter::new(*value as u64).encode(sample)?,
                    _ => ConstGauge::new(*value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}

/// Seconds since 1970 of a time of `status`, `2026-11-21T00:00:00.000000Z`.
fn unix_seconds(at: &str) -> Option<f64> {
    let number = |range: std::ops::Range<usize>| at.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute) = (number(11..13)?, number(14..16)?);
    let second: f64 = at.get(17..)?.strip_suffix('Z')?.parse().ok()?;
    // Years that begin in March (Hinnant, "chrono-compatible low-level date algorithms").
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3600 + minute * 60) as f64 + second)
}

#[cfg(test)]
mod tests;
