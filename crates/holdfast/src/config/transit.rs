//! The file of a transit group: strings of middleboxes between a pair of edges.

use super::checks::{
    Pace, check_address, check_heartbeat, check_interface, check_interfaces, check_ip,
    check_key_file, check_kind, check_name, number, run_dir, unspecified,
};
use super::error::{ConfigErrors, Findings};
use super::group::{self, Checked, Common, Settings};
use super::keys::{RawKeys, check_keys};
use super::kind::Kind;
use super::recover::{
    Policy, RawRecover, RawRegulate, Recover, Regulate, Start, check_recover, check_regulate,
};
use super::told::{Hooks, KeptEvents, RawHooks, check_events, check_hooks};
use super::watching::{Listen, RawListen, Watching, check_listens, check_watchers};
use crate::key::PublicKey;
use crate::status::counted;
use holdfast_edge::strings::{Mode, STRINGS_MAX, StringsConfig};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Bounds of `flows_max`.
pub const FLOWS_MAX: RangeInclusive<u64> = 16..=16_000_000;
/// Bounds of a string's `capacity`, in bits per second.
pub const CAPACITY: RangeInclusive<u64> = 8_000..=100_000_000_000_000;

const HEARTBEAT_MS_DEFAULT: u64 = 20;
const FLOWS_MAX_DEFAULT: u64 = holdfast_linux::bpf::TRANSIT_FLOWS_DEFAULT as u64;

/// A checked file of a transit group.
pub type TransitConfig = Checked<Transit>;

/// What the file of a transit group says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transit {
    pub group: TransitGroup,
    /// The edge on the clients' side, whose choices the other one follows.
    pub near: TransitEdge,
    /// The edge on the servers' side.
    pub far: TransitEdge,
    /// Strings in the order of preference.
    #[serde(rename = "string")]
    pub strings: Vec<TransitString>,
    pub recover: Recover,
    pub regulate: Regulate,
    /// What is run when the state changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    /// Where the counters are served to Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Listen>,
    /// Where the live page is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Listen>,
}

/// What both edges have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransitGroup {
    pub kind: Kind,
    /// Names the group in paths and messages.
    pub name: String,
    pub key_file: PathBuf,
    /// Holds the admin socket and the pins.
    pub run_dir: PathBuf,
    /// Three missed heartbeats declare a string dead.
    pub heartbeat_ms: u64,
    pub mode: Sharing,
    #[serde(rename = "return")]
    pub returns: Return,
    /// Most flows that are kept on their strings. Further ones go by their hash.
    pub flows_max: u32,
    #[serde(flatten)]
    pub events: KeptEvents,
    /// The users' group that may read the state of a daemon; without it, root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchers: Option<String>,
}

/// How strings share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    #[serde(rename = "active/backup")]
    ActiveBackup,
    #[serde(rename = "active/active")]
    ActiveActive,
}

/// What a string gets that was dead and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Return {
    /// New flows; flows that were moved stay where they are.
    New,
    /// The flows that it had, too.
    All,
}

/// One edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransitEdge {
    /// Interfaces that do not lead to a string.
    pub outside: Vec<String>,
    /// What the host is known by, best first; empty where all share one key file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<PublicKey>,
}

/// One string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransitString {
    pub name: String,
    /// Bits per second, written as `100mbit`.
    #[serde(serialize_with = "write_rate")]
    pub capacity: u64,
    pub near: StringEnd,
    pub far: StringEnd,
}

/// Where a string begins, at one of the edges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StringEnd {
    /// The edge's interface towards the string, and towards nothing else.
    pub interface: String,
    /// Addresses of the string's first host: one for each family that is used.
    pub next_hop: Vec<IpAddr>,
    /// The edge's own address on this string, for heartbeats. The routes
    /// between the two ends' addresses must lead through the string.
    pub address: SocketAddr,
}

/// Which of the two edges a daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Near,
    Far,
}

impl Side {
    /// Its role's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// The other edge.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

impl Settings for Transit {
    type Role<'r> = Side;

    fn read(path: &Path, text: &str) -> Result<TransitConfig, ConfigErrors> {
        group::read(path, text, check)
    }

    fn common(&self) -> Common<'_> {
        let TransitGroup { name, key_file, run_dir, heartbeat_ms, events, watchers, .. } =
            &self.group;
        let (heartbeat_ms, hooks) = (*heartbeat_ms, self.hooks.as_ref());
        let (watchers, metrics, page) = (watchers.as_deref(), self.metrics, self.page);
        let watching = Watching { watchers, metrics, page };
        Common { name, key_file, run_dir, heartbeat_ms, events, hooks, watching }
    }

    fn summary(&self) -> String {
        let strings: Vec<&str> = self.strings.iter().map(|string| string.name.as_str()).collect();
        format!("keeps flows on {}", strings.join(", "))
    }

    fn roles(&self) -> Vec<(String, Vec<IpAddr>)> {
        let addresses = |side| self.strings.iter().map(move |s| s.end(side).address.ip()).collect();
        [Side::Near, Side::Far].map(|side| (side.name().to_owned(), addresses(side))).into()
    }

    fn public_keys(&self) -> Vec<(&str, &[PublicKey])> {
        vec![("near", &self.near.public_keys), ("far", &self.far.public_keys)]
    }

    fn take_public_keys(&mut self, other: &Self) {
        self.near.public_keys.clone_from(&other.near.public_keys);
        self.far.public_keys.clone_from(&other.far.public_keys);
    }

    fn name_of(&self, side: Side) -> &str {
        side.name()
    }
}

impl Transit {
    /// The side that a role's name means.
    #[must_use]
    pub fn side(&self, role: &str) -> Option<Side> {
        [Side::Near, Side::Far].into_iter().find(|side| side.name() == role)
    }

    /// One of the edges.
    #[must_use]
    pub fn edge(&self, side: Side) -> &TransitEdge {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// The strings, as the machine that chooses among them knows them.
    #[must_use]
    pub fn strings_config(&self) -> StringsConfig {
        StringsConfig {
            mode: match self.group.mode {
                Sharing::ActiveBackup => Mode::ActiveBackup,
                Sharing::ActiveActive => Mode::ActiveActive,
            },
            capacities_bytes_per_s: self.strings.iter().map(|s| s.capacity / 8).collect(),
        }
    }
}

impl TransitString {
    /// The string's end at one of the edges.
    #[must_use]
    pub fn end(&self, side: Side) -> &StringEnd {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }
}

impl StringEnd {
    /// The string's first host, for IPv4.
    #[must_use]
    pub fn next_hop4(&self) -> Option<Ipv4Addr> {
        self.next_hop.iter().find_map(|hop| match hop {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }

    /// The string's first host, for IPv6.
    #[must_use]
    pub fn next_hop6(&self) -> Option<Ipv6Addr> {
        self.next_hop.iter().find_map(|hop| match hop {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTransit {
    group: RawGroup,
    near: RawEdge,
    far: RawEdge,
    string: Vec<Spanned<RawString>>,
    recover: Option<RawRecover>,
    regulate: Option<RawRegulate>,
    hooks: Option<RawHooks>,
    metrics: Option<RawListen>,
    page: Option<RawListen>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    kind: Option<Spanned<String>>,
    name: Spanned<String>,
    key_file: Spanned<PathBuf>,
    run_dir: Option<PathBuf>,
    heartbeat_ms: Option<Spanned<u64>>,
    mode: Option<Sharing>,
    #[serde(rename = "return")]
    returns: Option<Return>,
    flows_max: Option<Spanned<u64>>,
    events_dir: Option<PathBuf>,
    events_max_kb: Option<Spanned<u64>>,
    watchers: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEdge {
    outside: Spanned<Vec<Spanned<String>>>,
    public_keys: RawKeys,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawString {
    name: Spanned<String>,
    capacity: Spanned<String>,
    near: RawEnd,
    far: RawEnd,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd {
    interface: Spanned<String>,
    next_hop: Spanned<Vec<Spanned<String>>>,
    address: Spanned<String>,
}

fn check(findings: &mut Findings, raw: RawTransit) -> Transit {
    let folder = findings.path.parent().unwrap_or(Path::new("")).to_owned();
    for (side, edge) in [(Side::Near, &raw.near), (Side::Far, &raw.far)] {
        check_sides(findings, side, edge, &raw.string);
    }
    // The edges' own sockets carry datagrams.
    let [metrics, page] = check_listens(findings, [raw.metrics, raw.page], &[]);
    Transit {
        group: check_group(findings, raw.group, &folder),
        near: check_edge(findings, raw.near),
        far: check_edge(findings, raw.far),
        strings: check_strings(findings, raw.string),
        recover: check_recover(
            findings,
            raw.recover,
            Recover::standard(Policy::HeadTail, Start::Suspicion),
        ),
        regulate: check_regulate(findings, raw.regulate),
        hooks: check_hooks(findings, raw.hooks),
        metrics,
        page,
    }
}

fn check_group(findings: &mut Findings, raw: RawGroup, folder: &Path) -> TransitGroup {
    check_kind(findings, raw.kind.as_ref(), Kind::Transit);
    check_name(findings, &raw.name);
    let pace = Pace { default: HEARTBEAT_MS_DEFAULT, is_leased: false };
    let heartbeat_ms = check_heartbeat(findings, raw.heartbeat_ms, pace);
    let flows_max =
        number(findings, "flows_max", raw.flows_max, FLOWS_MAX_DEFAULT, FLOWS_MAX, "flows");
    let name = raw.name.into_inner();
    TransitGroup {
        kind: Kind::Transit,
        key_file: check_key_file(findings, raw.key_file, folder),
        run_dir: run_dir(raw.run_dir, folder, &name),
        events: check_events(findings, raw.events_dir, raw.events_max_kb, folder),
        heartbeat_ms,
        mode: raw.mode.unwrap_or(Sharing::ActiveBackup),
        returns: raw.returns.unwrap_or(Return::New),
        flows_max: flows_max as u32,
        watchers: check_watchers(findings, raw.watchers),
        name,
    }
}

fn check_edge(findings: &mut Findings, raw: RawEdge) -> TransitEdge {
    let which = "that lead away from the strings";
    TransitEdge {
        outside: check_interfaces(findings, "outside", raw.outside, which),
        public_keys: check_keys(findings, raw.public_keys),
    }
}

/// Checks that an edge's outside is not a string, too: an interface has one program, and what comes
/// out of a string is not what goes into one.
fn check_sides(
    findings: &mut Findings,
    side: Side,
    edge: &RawEdge,
    strings: &[Spanned<RawString>],
) {
    let ends = strings.iter().map(|string| match side {
        Side::Near => &string.get_ref().near.interface,
        Side::Far => &string.get_ref().far.interface,
    });
    for inner in ends {
        let name = inner.get_ref();
        if edge.outside.get_ref().iter().any(|outer| outer.get_ref() == name) {
            let message =
                format!("{name} leads to a string, and {}.outside lists it, too", side.name());
            findings.add(inner.span(), message, "give every string an interface of its own");
        }
    }
}

fn check_strings(findings: &mut Findings, raw: Vec<Spanned<RawString>>) -> Vec<TransitString> {
    if raw.len() < 2 || raw.len() > STRINGS_MAX {
        let at = raw.get(STRINGS_MAX).or(raw.first()).map_or(0..0, Spanned::span);
        let message = format!("the group has {}", counted(raw.len() as u64, "string"));
        findings.add(at, message, format!("2 to {STRINGS_MAX} [[string]] sections"));
    }
    // What is no address has been told.
    let is_same = |one: SocketAddr, two: SocketAddr| one == two && !one.ip().is_unspecified();
    let mut strings: Vec<TransitString> = Vec::new();
    for spanned in raw {
        let span = spanned.span();
        let string = check_string(findings, spanned.into_inner());
        for other in &strings {
            let same = [
                ("name", other.name == string.name),
                ("near.interface", other.near.interface == string.near.interface),
                ("far.interface", other.far.interface == string.far.interface),
                ("near.address", is_same(other.near.address, string.near.address)),
                ("far.address", is_same(other.far.address, string.far.address)),
            ];
            let names = ["strings", &other.name, &string.name];
            let remedy = "an edge knows a string by its interface, and hears it at its address";
            findings.add_twins(&span, names, &same, remedy);
        }
        strings.push(string);
    }
    strings
}

fn check_string(findings: &mut Findings, raw: RawString) -> TransitString {
    check_name(findings, &raw.name);
    let capacity = rate(raw.capacity.get_ref()).filter(|rate| CAPACITY.contains(rate));
    if capacity.is_none() {
        findings.add(
            raw.capacity.span(),
            format!("capacity = \"{}\" is not a rate", raw.capacity.get_ref()),
            "write \"100mbit\", \"2.5gbit\" or the like: from 8kbit to 100tbit",
        );
    }
    let name = raw.name.get_ref().clone();
    TransitString {
        capacity: capacity.unwrap_or(*CAPACITY.start()),
        near: check_end(findings, raw.near, &name),
        far: check_end(findings, raw.far, &name),
        name,
    }
}

fn check_end(findings: &mut Findings, raw: RawEnd, string: &str) -> StringEnd {
    check_interface(findings, &raw.interface);
    let mut next_hop: Vec<IpAddr> = Vec::new();
    for spanned in raw.next_hop.get_ref() {
        let Some(hop) = check_ip(findings, spanned) else { continue };
        if next_hop.iter().any(|other| other.is_ipv4() == hop.is_ipv4()) {
            findings.add(
                spanned.span(),
                format!("string `{string}` has two next hops of one family"),
                "name one address of each family",
            );
        }
        next_hop.push(hop);
    }
    if raw.next_hop.get_ref().is_empty() {
        findings.add(
            raw.next_hop.span(),
            "next_hop is empty",
            "name the addresses of the string's first host as this edge sees it",
        );
    }
    StringEnd {
        address: check_address(findings, &raw.address).unwrap_or_else(unspecified),
        interface: raw.interface.into_inner(),
        next_hop,
    }
}

/// Units of a rate, the largest last.
const UNITS: [(&str, f64); 5] =
    [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("tbit", 1e12)];

/// Reads a rate such as `100mbit`.
fn rate(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    Some((number * factor) as u64)
}

fn write_rate<S: serde::Serializer>(rate: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = |(_, factor): &&(&str, f64)| rate.is_multiple_of(*factor as u64);
    let (unit, factor) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
    serializer.serialize_str(&format!("{}{unit}", rate / *factor as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/example-transit.toml");

    fn parse(text: &str) -> Result<TransitConfig, ConfigErrors> {
        TransitConfig::parse(Path::new("/etc/holdfast/transit.toml"), text)
    }

    #[test]
    fn the_example_is_understood_and_its_effective_form_means_the_same() {
        let config = parse(EXAMPLE).unwrap();
        assert_eq!(config.strings.len(), 2);
        assert_eq!(config.strings[0].capacity, 1_000_000_000);
        assert_eq!(config.group.heartbeat_ms, 20);
        assert_eq!(config.side("far"), Some(Side::Far));
        let again = parse(&config.effective()).unwrap();
        assert_eq!(again.effective(), config.effective());
    }

    #[test]
    fn mistakes_are_explained() {
        for (from, to, message) in [
            ("\"1gbit\"", "\"1gb\"", "capacity = \"1gb\" is not a rate"),
            ("\"1gbit\"", "\"1bit\"", "capacity = \"1bit\" is not a rate"),
            ("name = \"b\"", "name = \"a\"", "have the same name"),
            ("\"eth2\"", "\"eth1\"", "have the same near.interface"),
            ("outside = [\"eth0\"]", "outside = []", "outside lists 0 interfaces"),
            ("outside = [\"eth0\"]", "outside = [\"eth2\"]", "near.outside lists it, too"),
            (
                "far = { interface = \"eth2\"",
                "far = { interface = \"eth0\"",
                "far.outside lists it",
            ),
            ("\"fd11:1::2\"", "\"10.11.1.3\"", "two next hops of one family"),
            ("kind = \"transit\"", "kind = \"spread\"", "no kind of group"),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            let errors = parse(&EXAMPLE.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(errors.contains(message), "{errors}");
        }
        let one = EXAMPLE.rsplit_once("[[string]]").unwrap().0;
        assert!(parse(one).unwrap_err().to_string().contains("the group has 1 string"));
    }

    #[test]
    fn rates_have_units() {
        for (text, bits) in [("8000bit", 8000), ("2.5gbit", 2_500_000_000), ("10kbit", 10_000)] {
            assert_eq!(rate(text), Some(bits));
        }
        for text in ["", "100", "mbit", "1.2.3mbit", "-1mbit", "1 mbit", "1MBIT"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }
}
