//! What a tunnel says of itself.

use crate::config::{Config, Mode};
use crate::control::PROBED_WITHIN;
use crate::{inside, outside};
use holdfast_tunnel::secure;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;

/// Age from which on a rate is called the last one, in s: on a slow path it is a few seconds old, too.
const RATE_OLD_S: f64 = 5.0;

pub const SCHEMA: &str = "holdfast.tunnel-status/1";

/// Whether the tunnel works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The peer was heard a moment ago.
    Up,
    /// It was not.
    Waiting,
}

/// The peer, as it is seen from here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    pub key: String,
    pub address: Option<String>,
    /// How long ago it was heard, in s.
    pub heard_s: Option<f64>,
    /// Whether it said that it ends.
    pub is_closed: bool,
}

/// The keys that are used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionState {
    pub cipher: String,
    pub age_s: f64,
}

/// All of it. Fields are added, and not renamed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub schema: String,
    pub name: String,
    pub mode: Mode,
    pub interface: Option<String>,
    pub pid: u32,
    pub uptime_s: f64,
    pub state: State,
    pub reason: Option<String>,
    pub remedy: Option<String>,
    pub peer: Peer,
    pub session: Option<SessionState>,
    /// Largest UDP payload that the path is known to take.
    pub udp_bytes_max: usize,
    pub overhead_max: f64,
    /// How long ago the rate of the machine's report was measured, in s; without it that is a guess.
    pub rate_measured_s: Option<f64>,
    pub security: secure::Counters,
    /// Datagrams of the peer that its machine could not have made.
    pub malformed: u64,
    pub outside: outside::Counters,
    pub inside: inside::Counters,
    /// The machine's own report, in both directions.
    pub machine: Value,
}

/// The state, and where it is not good the reason and the remedy.
pub fn judge(
    config: &Config,
    standing: &secure::Standing,
    counters: &secure::Counters,
) -> (State, Option<String>, Option<String>) {
    // It was asked so long ago, or has said something since.
    let is_heard = standing.heard_age.is_some_and(|age| age < PROBED_WITHIN);
    if standing.suite.is_some() && is_heard {
        return (State::Up, None, None);
    }
    let (reason, remedy) = explain(config, standing, counters);
    (State::Waiting, Some(reason), Some(remedy))
}

fn explain(
    config: &Config,
    standing: &secure::Standing,
    counters: &secure::Counters,
) -> (String, String) {
    let start = "start it there: holdfast tunnel up --config FILE";
    if standing.is_closed_by_peer {
        return ("the peer said that it ends".to_owned(), start.to_owned());
    }
    if let Some(age) = standing.heard_age {
        let reason = format!("nothing of the peer was heard for {} s", age.as_secs());
        let remedy = "look whether its host runs and the network in between passes UDP; this end \
                      calls it again by itself";
        return (reason, remedy.to_owned());
    }
    let keys = "compare the keys: [peer] key here must be what `holdfast tunnel key pub FILE` prints \
                there, and the other way round";
    if counters.dropped_wrong_key + counters.dropped_wrong_mac > 0 {
        return ("handshakes come that do not fit the keys".to_owned(), keys.to_owned());
    }
    if counters.dropped_stale > 0 {
        let remedy =
            "look at the clocks: the peer's has gone back, or somebody sends old handshakes";
        return ("handshakes come that are older than one before".to_owned(), remedy.to_owned());
    }
    if counters.dropped_no_cipher > 0 {
        return (
            "the ends have no cipher in common".to_owned(),
            "upgrade the older one".to_owned(),
        );
    }
    match standing.peer_address {
        Some(address) => (
            format!("{address} does not answer"),
            format!(
                "look whether the tunnel is up there, and whether what is in between passes UDP; a \
                 peer that does not know this end's key gives no answer either: {keys}"
            ),
        ),
        None => (
            "the peer has not come yet, and where it is is not known".to_owned(),
            match config.listen {
                Some(listen) => format!(
                    "{start}, with this host's address and port {} as [peer] address",
                    listen.port()
                ),
                None => start.to_owned(),
            },
        ),
    }
}

impl Status {
    /// As people read it.
    pub fn render(&self) -> String {
        let state = match self.state {
            State::Up => "up",
            State::Waiting => "waiting",
        };
        let interface =
            self.interface.as_ref().map_or(String::new(), |it| format!("   interface {it}"));
        let mut text =
            format!("tunnel {}   {state}   mode {}{interface}\n", self.name, self.mode.word());
        if let Some(reason) = &self.reason {
            let _ = writeln!(text, "  reason     {reason}");
        }
        if let Some(remedy) = &self.remedy {
            let _ = writeln!(text, "  remedy     {remedy}");
        }
        let at = self.peer.address.as_deref().unwrap_or("an unknown address");
        let heard =
            self.peer.heard_s.map_or("never heard".to_owned(), |s| format!("heard {s:.1} s ago"));
        let _ = writeln!(text, "  peer       {} at {at}, {heard}", self.peer.key);
        if let Some(SessionState { cipher, age_s }) = &self.session {
            let _ = writeln!(
                text,
                "  keys       {cipher}, {age_s:.0} s old; datagrams of up to {} bytes",
                self.udp_bytes_max
            );
        }
        self.render_path(&mut text);
        let inside = &self.inside;
        let _ = writeln!(
            text,
            "  inside     {} in ({}), {} out ({}); {} refused, {} not delivered",
            inside.taken,
            bytes(inside.taken_bytes as f64),
            inside.given,
            bytes(inside.given_bytes as f64),
            inside.refused,
            inside.undelivered
        );
        if inside.clamped > 0 {
            let _ = writeln!(text, "  clamped    the MSS of {} passing SYNs", inside.clamped);
        }
        if self.mode != Mode::Tun {
            self.render_flows(&mut text);
        }
        let outside = &self.outside;
        let _ = writeln!(
            text,
            "  wire       {} sent ({}), {} received ({})",
            outside.sent,
            bytes(outside.sent_bytes as f64),
            outside.received,
            bytes(outside.received_bytes as f64)
        );
        text
    }

    /// Flows and connections of ports.
    fn render_flows(&self, text: &mut String) {
        let inside = &self.inside;
        let connections = inside.connections_not_allowed;
        let _ = writeln!(
            text,
            "  flows      {} open, {} ended idle, {} refused for lack of room, {} reset; the peer wanted {} \
             datagrams and {} to what is not allowed",
            inside.flows,
            inside.flows_idle,
            inside.flows_refused,
            inside.resets,
            inside.not_allowed.saturating_sub(connections),
            counted(connections)
        );
        if inside.resets_unanswered > 0 {
            let _ = writeln!(
                text,
                "  unanswered {} from here, which the far end reset before a byte came: `status` there says why",
                counted(inside.resets_unanswered)
            );
        }
        if inside.targets_unreached > 0 {
            let _ = writeln!(
                text,
                "  unreached  {} of the peer, whose target here refused or is not there",
                counted(inside.targets_unreached)
            );
        }
    }

    /// Both directions, as the machine sees them.
    fn render_path(&self, text: &mut String) {
        let number =
            |place: &str| self.machine.pointer(place).and_then(Value::as_f64).unwrap_or(0.0);
        let round_trip = match number("/rtt_ms") {
            0.0 => "not measured yet".to_owned(),
            ms => format!("{ms:.1} ms, at best {:.1} ms", number("/rtt_min_ms")),
        };
        let _ = writeln!(text, "  path       round trip {round_trip}");
        let _ = writeln!(
            text,
            "  sending    loss {:.1} % ({:.1} % of the path), in runs of {:.1}; {}, {} wait; \
             {} sent again, {} ahead, {} given up",
            number("/sending/loss") * 100.0,
            number("/sending/path_loss") * 100.0,
            number("/sending/burst_packets"),
            self.rate(number("/sending/rate_bytes_per_s")),
            bytes(number("/sending/queue_bytes")),
            bytes(number("/sending/retransmitted_bytes")),
            bytes(number("/sending/redundant_bytes")),
            number("/sending/given_up")
        );
        self.render_classes("/sending/classes", text);
        self.render_cap(text);
        let _ = writeln!(
            text,
            "  receiving  loss {:.1} %, in runs of {:.1}; recovered {} ahead and {} behind, {} missed; \
             {} came for nothing",
            number("/receiving/loss") * 100.0,
            number("/receiving/burst_packets"),
            number("/receiving/recovered_ahead"),
            number("/receiving/recovered_behind"),
            number("/receiving/missed"),
            bytes(number("/receiving/wasted_bytes"))
        );
        self.render_classes("/receiving/classes", text);
    }

    /// The rate, and whether that is one of now: an idle tunnel measures none.
    fn rate(&self, bytes_per_s: f64) -> String {
        let rate = format!("{}bit/s", scaled(bytes_per_s * 8.0));
        match self.rate_measured_s {
            None => format!("rate not measured yet, it begins at {rate}"),
            Some(s) if s < RATE_OLD_S => rate,
            Some(s) => format!("{rate} when last measured, {s:.0} s ago"),
        }
    }

    /// How much of the cap is used, in what the cap counts: a class may have more than that of its own.
    fn render_cap(&self, text: &mut String) {
        let overhead = self.machine.pointer("/sending/overhead").and_then(Value::as_f64);
        let Some(overhead) = overhead else { return };
        let _ = writeln!(
            text,
            "    {:<8} {:.1} % more for all classes together, headers on both sides counted; at most {:.0} % \
             (overhead_max), but for 4 KiB at the begin",
            "cap",
            overhead * 100.0,
            self.overhead_max * 100.0
        );
    }

    /// How much more is sent in a direction for each class, and why.
    fn render_classes(&self, place: &str, text: &mut String) {
        let classes = self.machine.pointer(place).and_then(Value::as_array);
        for class in classes.into_iter().flatten() {
            let word = |key: &str| class.get(key).and_then(Value::as_str).unwrap_or_default();
            let _ = writeln!(text, "    {:<8} {}", word("class"), word("why"));
        }
    }
}

/// A number of bytes, as people read it.
fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut count, mut unit) = (count, 0);
    while count >= 1024.0 && unit + 1 < units.len() {
        (count, unit) = (count / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count:.0} B") } else { format!("{count:.1} {}", units[unit]) }
}

/// So many connections.
fn counted(connections: u64) -> String {
    format!("{connections} connection{}", if connections == 1 { "" } else { "s" })
}

/// A number with a prefix of a thousand.
fn scaled(value: f64) -> String {
    let (value, prefix) = match value {
        it if it >= 1e9 => (it / 1e9, "G"),
        it if it >= 1e6 => (it / 1e6, "M"),
        it if it >= 1e3 => (it / 1e3, "k"),
        it => (it, ""),
    };
    format!("{value:.1} {prefix}")
}

#[cfg(test)]
impl Status {
    /// That of a tunnel which has just heard its peer for the first time.
    pub fn example() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            name: "wan".to_owned(),
            mode: Mode::Forward,
            interface: None,
            pid: 1,
            uptime_s: 10.0,
            state: State::Up,
            reason: None,
            remedy: None,
            peer: Peer { key: "k".to_owned(), address: None, heard_s: Some(0.1), is_closed: false },
            session: None,
            udp_bytes_max: 1280,
            overhead_max: 0.35,
            rate_measured_s: None,
            security: secure::Counters::default(),
            malformed: 0,
            outside: outside::Counters::default(),
            inside: inside::Counters::default(),
            machine: serde_json::json!({}),
        }
    }
}

#[cfg(test)]
mod tests;
