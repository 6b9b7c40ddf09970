//! What a daemon tells about itself: the schema `holdfast.status/1`, its exit
//! codes and its rendering as text.
//!
//! Fields are only ever added within a version. Sizes are bytes, durations
//! microseconds, times RFC 3339 in UTC.

mod past;

pub use holdfast_member::words::counted;
pub use holdfast_program::exit;
pub use past::{Kind as TakeoverKind, Member, PastTakeover};

use crate::admin::Level;
use crate::daemon::rights::Rights;
use holdfast_wire::buffering::Buffering;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::SystemTime;

/// Name and version of the schema.
pub const SCHEMA: &str = "holdfast.status/1";

/// Part of the reason why no member will ever join a server as it runs.
pub const NEVER_COPIED: &str = "it can never be copied";

/// The remedy while a member that was lost cannot come back.
pub const RESTART_BOTH: &str = "restart both members at a quiet moment to be protected again \
    (this ends its connections, and its memory is lost)";

/// The mode of a group whose backup runs no replica.
const COLD: &str = "cold";

/// Words about a member that will join by itself.
pub const REJOINS: &str = "it joins again by itself";

/// One daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub schema: String,
    /// The program's release; and its build, which has the commit, too.
    pub version: String,
    #[serde(default)]
    pub build: String,
    pub group: String,
    /// The member's name, or `edge`.
    pub member: String,
    pub role: Role,
    /// Mode of a pair: `hot`, or `cold` if the backup builds its replica only when a
    /// takeover needs it; otherwise empty.
    #[serde(default)]
    pub mode: String,
    /// Of a pair: what output waits for, as the file says it; else empty.
    #[serde(default)]
    pub buffering: String,
    /// Of a member of a pair without an edge: who decides which of the two goes on; else empty.
    #[serde(default)]
    pub arbiter: String,
    pub epoch: u64,
    pub state: State,
    /// Why the state is what it is; never empty unless protected.
    pub reason: String,
    /// What a person can do about it; empty if nothing.
    pub remedy: String,
    /// Of a server without a backup: whether it is rebuilt on this host if it falls, `yes` or
    /// why not; empty where that is not wanted.
    #[serde(default)]
    pub rebuild: String,
    /// Process id of this member's server in the namespace of this host; 0 if none runs.
    #[serde(default)]
    pub server_pid: u32,
    /// Connections of clients that are protected now.
    pub connections: u64,
    /// Of the connections of a protected primary, those that a takeover would end.
    #[serde(default)]
    pub at_risk: u64,
    /// Whether the server's threads run one at a time while it is protected.
    #[serde(default)]
    pub one_at_a_time: bool,
    /// Where the server's threads run one at a time: how often another one went on beside one
    /// that computed without end, which the replica cannot repeat.
    #[serde(default)]
    pub overlaps: u64,
    pub lag: Lag,
    pub peers: Vec<Peer>,
    /// All daemons of the group that this one knows of, itself first.
    #[serde(default)]
    pub members: Vec<Member>,
    /// Counters since the start, by name: `gate.…`, `edge.…`, `tap.…`.
    pub counters: BTreeMap<String, u64>,
    pub last_takeover: Option<Takeover>,
    /// What this daemon may do.
    #[serde(default)]
    pub rights: Rights,
    /// When this was written.
    pub at: String,
}

/// What a daemon does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Edge,
    /// The arbiter of a pair without an edge.
    Witness,
    /// A host server of a spread group.
    Host,
    Primary,
    Backup,
    /// A member that has not been told yet, or has stood down.
    #[default]
    None,
}

/// State of the group, as seen from this daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The backup holds everything: the primary may die.
    Protected,
    /// The service runs without a backup that could take over.
    Unprotected,
    /// The replica computed something else; it is never promoted.
    Diverged,
    /// The replica makes no progress.
    Hung,
    /// The service is closed until a peer answers.
    #[default]
    Waiting,
    /// This member may not speak for the service address.
    Fenced,
    /// The server has ended, and so has this daemon's work.
    Ended,
}

impl Role {
    /// Its name in JSON.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            other => other.to_string(),
        }
    }
}

impl State {
    /// Level of the state in the log.
    #[must_use]
    pub fn level(self) -> Level {
        match self {
            Self::Diverged | Self::Hung => Level::Error,
            Self::Unprotected | Self::Fenced | Self::Ended => Level::Warn,
            Self::Protected | Self::Waiting => Level::Info,
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub fn word(self) -> String {
        self.to_string().to_lowercase()
    }
}

/// How far the backup is behind the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Frames and bytes of the log that the backup has not confirmed.
    pub frames: u64,
    pub bytes: u64,
    /// Bytes of the log that the replica has not executed.
    pub executed: u64,
}

/// A daemon on the other end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub name: String,
    pub connected: bool,
    /// What is known about it, in a few words.
    pub note: String,
}

/// The last takeover this daemon carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// What made the backup promote itself.
    pub cause: String,
    pub phases_us: Phases,
    pub total_us: u64,
    /// Number of connections that were carried over.
    pub connections: u64,
    pub at: String,
}

/// Durations of a takeover's parts in the order they happen, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    pub detect: u64,
    pub fence: u64,
    pub drain: u64,
    pub probe: u64,
    pub repair: u64,
    pub address: u64,
    pub kick: u64,
}

impl Status {
    /// A status that says only who it is from.
    #[must_use]
    pub fn new(group: &str, member: &str) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: holdfast_program::BUILD.to_owned(),
            group: group.to_owned(),
            member: member.to_owned(),
            role: Role::None,
            mode: String::new(),
            buffering: String::new(),
            epoch: 0,
            state: State::Waiting,
            reason: String::new(),
            remedy: String::new(),
            arbiter: String::new(),
            rebuild: String::new(),
            server_pid: 0,
            connections: 0,
            at_risk: 0,
            one_at_a_time: false,
            overlaps: 0,
            lag: Lag::default(),
            peers: Vec::new(),
            members: Vec::new(),
            counters: BTreeMap::new(),
            last_takeover: None,
            rights: Rights::now(),
            at: rfc3339(SystemTime::now()),
        }
    }

    /// Lists this daemon, and its peers where they are daemons that say no more than whether they
    /// are there.
    pub fn list_members(&mut self, are_peers: bool) {
        let mut own = Member::known(&self.member, &self.reason);
        (own.role, own.state, own.heard_ms_ago) = (Some(self.role), Some(self.state), Some(0));
        let peer = |peer: &Peer| match (peer.connected, peer.note.as_str()) {
            (true, "") => Member::known(&peer.name, "it is connected"),
            (false, "") => Member::known(&peer.name, "it is not connected"),
            (_, note) => Member::known(&peer.name, note),
        };
        let peers = self.peers.iter().filter(|_| are_peers).map(peer);
        self.members = std::iter::once(own).chain(peers).collect();
    }

    /// The exit code of `holdfast status`.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.state {
            State::Protected => exit::OK,
            State::Fenced => exit::FENCED,
            State::Unprotected | State::Diverged | State::Hung | State::Waiting | State::Ended => {
                exit::DEGRADED
            }
        }
    }

    /// Whether only a person can make the group protected again.
    #[must_use]
    pub fn is_lost_for_good(&self) -> bool {
        match self.state {
            State::Diverged | State::Hung | State::Fenced | State::Ended => {
                !self.remedy.contains(REJOINS)
            }
            // The remedy distinguishes a survivor from a member that has only lost sight
            // of a peer. A member that waits may be one of two that are just being
            // restarted.
            State::Unprotected => self.remedy.contains(RESTART_BOTH),
            State::Waiting | State::Protected => false,
        }
    }

    /// How the group is set up, where not as usual.
    fn ways(&self) -> String {
        let cold = (self.mode == COLD).then(|| "   cold".to_owned());
        let is_usual = ["", Buffering::Commit.word()].contains(&self.buffering.as_str());
        let lax =
            (!is_usual).then(|| format!("   buffering {}: answers may be lost", self.buffering));
        [cold, lax].into_iter().flatten().collect()
    }

    /// The status as a few lines for people.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_to(&mut out, style);
        out
    }

    fn write_to(&self, out: &mut String, style: Style) -> fmt::Result {
        let state = style.state(self.state);
        writeln!(
            out,
            "group {}   {} {}   {state}   epoch {}{}",
            self.group,
            self.role,
            self.member,
            self.epoch,
            self.ways()
        )?;
        if !self.reason.is_empty() {
            writeln!(out, "  reason  {}", self.reason)?;
        }
        if !self.remedy.is_empty() {
            writeln!(out, "  remedy  {}", self.remedy)?;
        }
        if self.arbiter.contains(':') {
            writeln!(out, "  arbiter {}", self.arbiter)?;
        }
        if !self.rebuild.is_empty() {
            writeln!(out, "  rebuilt in place: {}", self.rebuild)?;
        }
        if self.server_pid != 0 {
            writeln!(out, "  server  process {}", self.server_pid)?;
        }
        let Lag { frames, bytes, executed } = self.lag;
        writeln!(
            out,
            "  connections {}   lag {}, {}; not executed {}",
            self.connections,
            counted(frames, "frame"),
            human_bytes(bytes),
            human_bytes(executed)
        )?;
        if self.one_at_a_time {
            writeln!(out, "  threads run one at a time")?;
        }
        if self.overlaps > 0 {
            writeln!(
                out,
                "  overlaps {}: threads have run beside one that computed without a call; the \
                 replica may differ from there",
                self.overlaps
            )?;
        }
        for peer in &self.peers {
            let connected = if peer.connected { "connected" } else { "not connected" };
            let comma = if peer.note.is_empty() { "" } else { ", " };
            writeln!(out, "  peer {}   {connected}{comma}{}", peer.name, peer.note)?;
        }
        for line in past::table(&self.members) {
            writeln!(out, "{line}")?;
        }
        if let Some(takeover) = &self.last_takeover {
            write!(out, "{takeover}")?;
        }
        let busy: Vec<String> = self
            .counters
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        if !busy.is_empty() {
            writeln!(out, "  counters  {}", busy.join("   "))?;
        }
        Ok(())
    }
}

impl Phases {
    /// The parts with their names, in order.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("detect", self.detect),
            ("fence", self.fence),
            ("drain", self.drain),
            ("probe", self.probe),
            ("repair", self.repair),
            ("address", self.address),
            ("kick", self.kick),
        ]
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, conns) = (human_us(self.total_us), counted(self.connections, "connection"));
        writeln!(f, "  last takeover  {}   {}   {total}   {conns}", self.at, self.cause)?;
        let phases: Vec<String> = self
            .phases_us
            .named()
            .iter()
            .map(|(name, us)| format!("{name} {}", human_us(*us)))
            .collect();
        writeln!(f, "                 {}", phases.join("   "))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Edge => "edge",
            Self::Witness => "witness",
            Self::Host => "host",
            Self::Primary => "primary",
            Self::Backup => "backup",
            Self::None => "no role",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protected => "protected",
            // In capitals: the one word that nobody may overlook.
            Self::Unprotected => "UNPROTECTED",
            Self::Diverged => "diverged",
            Self::Hung => "hung",
            Self::Waiting => "waiting",
            Self::Fenced => "fenced",
            Self::Ended => "ended",
        })
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Edge, Self::Host, Self::Primary, Self::Backup, Self::None];
        let found = all.into_iter().find(|role| role.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is no role"))
    }
}

impl std::str::FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [
            Self::Protected,
            Self::Unprotected,
            Self::Diverged,
            Self::Hung,
            Self::Waiting,
            Self::Fenced,
            Self::Ended,
        ];
        all.into_iter().find(|s| s.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("`{text}` is no state; one of: {}", names.join(", "))
        })
    }
}

/// Whether text may use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Colour,
}

impl Style {
    fn state(self, state: State) -> String {
        let colour = match state {
            State::Protected => "32",
            State::Waiting | State::Ended => "33",
            State::Unprotected | State::Diverged | State::Hung | State::Fenced => "1;31",
        };
        match self {
            Self::Plain => state.to_string(),
            Self::Colour => format!("\x1b[{colour}m{state}\x1b[0m"),
        }
    }
}

/// `at` in UTC with microseconds.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days to a date with the year starting in March, so that the leap day is
    // its last day (Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let era_day = shifted % 146_097;
    let era_year = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
    let march_month = (5 * year_day + 2) / 153;
    let day = year_day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = shifted / 146_097 * 400 + era_year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// A size in the largest unit of which there is one.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in µs or ms.
#[must_use]
pub fn human_us(us: u64) -> String {
    if us < 1000 { format!("{us} µs") } else { format!("{:.1} ms", us as f64 / 1000.0) }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_rfc_3339() {
        let at = |secs| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(at(1_795_219_200), "2026-11-21T00:00:00.000000Z");
    }

    #[test]
    fn the_schema_is_what_it_was() {
        let mut status = Status::new("demo", "a");
        status.at = "2026-11-21T00:00:00.000000Z".to_owned();
        (status.version, status.build) = ("0".to_owned(), "0 (1)".to_owned());
        status.rights = Rights::default();
        status.role = Role::Primary;
        status.state = State::Unprotected;
        status.peers.push(Peer { name: "b".to_owned(), connected: true, note: String::new() });
        status.counters.insert("gate.acks_clamped".to_owned(), 3);
        status.last_takeover = Some(Takeover { total_us: 1234, ..Takeover::default() });
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"schema":"holdfast.status/1","version":"0","build":"0 (1)","group":"demo","member":"a","role":"primary","#,
                r#""mode":"","buffering":"","arbiter":"","epoch":0,"state":"unprotected","reason":"","remedy":"","rebuild":"","server_pid":0,"connections":0,"at_risk":0,"one_at_a_time":false,"overlaps":0,"#,
                r#""lag":{"frames":0,"bytes":0,"executed":0},"#,
                r#""peers":[{"name":"b","connected":true,"note":""}],"members":[],"counters":{"gate.acks_clamped":3},"#,
                r#""last_takeover":{"cause":"","phases_us":{"detect":0,"fence":0,"drain":0,"probe":0,"repair":0,"#,
                r#""address":0,"kick":0},"total_us":1234,"connections":0,"at":""},"#,
                r#""rights":{"capabilities":[],"no_new_privileges":false,"filtered":false,"starts_nothing":false},"#,
                r#""at":"2026-11-21T00:00:00.000000Z"}"#
            )
        );
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    }

    #[test]
    fn people_see_the_word_and_the_remedy() {
        let mut status = Status::new("demo", "b");
        status.state = State::Unprotected;
        status.reason = "the backup does not answer".to_owned();
        status.remedy = "start holdfast on it".to_owned();
        status.lag.bytes = 5 << 19;
        let text = status.render(Style::Plain);
        assert!(!text.contains("buffering"), "{text}");
        status.buffering = "commit".to_owned();
        assert_eq!(status.render(Style::Plain), text, "that is as it should be");
        status.buffering = "pr".to_owned();
        assert!(status.render(Style::Plain).contains("buffering pr: answers may be lost"));
        status.buffering.clear();
        status.server_pid = 77;
        assert!(status.render(Style::Plain).contains("server  process 77"));
        status.overlaps = 2;
        assert!(status.render(Style::Plain).contains("overlaps 2: threads"));
        status.overlaps = 0;
        for part in ["UNPROTECTED", "reason  the backup", "remedy  start", "2.5 MiB"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(status.render(Style::Colour).contains("\x1b[1;31mUNPROTECTED\x1b[0m"));
        assert_eq!(status.exit_code(), exit::DEGRADED);
        assert!(!status.is_lost_for_good(), "a backup may come");
        status.remedy = format!("look at it; {RESTART_BOTH}");
        assert!(status.is_lost_for_good());
        (status.remedy, status.state) = (String::new(), State::Ended);
        assert!(status.is_lost_for_good());
        assert_eq!("unprotected".parse(), Ok(State::Unprotected));
        assert!("fine".parse::<State>().is_err());
    }
}
