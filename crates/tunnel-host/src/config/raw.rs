//! The file as it is written, and what is checked of it.

use super::error::{Findings, of_file, suggestion};
use super::forward::{self, Transport};
use super::{Config, InsideAddress, Mode};
use holdfast_tunnel::secure::{NotAKey, PublicKey};
use holdfast_tunnel::{Class, INNER_MTU_MAX, PathLoss, Rule};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Longest interface name that Linux accepts, in characters (IFNAMSIZ - 1).
const INTERFACE_CHARS_MAX: usize = 15;
/// Longest name of a tunnel, in characters: it becomes part of file names.
const NAME_CHARS_MAX: usize = 32;
const INNER_MTU: RangeInclusive<u64> = 576..=INNER_MTU_MAX as u64;
/// Least MTU of an interface with IPv6 addresses (RFC 8200 §5).
const INNER_MTU_MIN_V6: u64 = 1280;
const INNER_MTU_DEFAULT: u64 = 1420;
const KEEPALIVE_S: RangeInclusive<u64> = 1..=3600;
const FLOWS: RangeInclusive<u64> = 1..=65_536;
const FLOWS_DEFAULT: u64 = 1024;
const IDLE_S: RangeInclusive<u64> = 1..=86_400;
/// NATs forget UDP flows after 120 s at the earliest (RFC 4787 REQ-5).
const IDLE_DEFAULT_S: u64 = 120;
/// Redundancy per byte, usually and at most: beyond three whole copies it is a mistake.
const OVERHEAD: (f64, f64) = (0.35, 4.0);
/// Late datagrams of class `now`, usually and at most.
const LATE: (f64, f64) = (0.01, 0.5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    tunnel: RawTunnel,
    peer: RawPeer,
    #[serde(default)]
    class: BTreeMap<Spanned<String>, RawClass>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTunnel {
    key: PathBuf,
    listen: Option<Spanned<String>>,
    mode: Spanned<Mode>,
    interface: Option<Spanned<String>>,
    #[serde(default)]
    address: Vec<Spanned<String>>,
    inner_mtu: Option<Spanned<u64>>,
    overhead_max: Option<Spanned<String>>,
    late_max: Option<Spanned<String>>,
    path_loss: Option<RawPathLoss>,
    #[serde(default)]
    forward: Vec<Spanned<String>>,
    #[serde(default)]
    allow: Vec<Spanned<String>>,
    flows_max: Option<Spanned<u64>>,
    idle_s: Option<Spanned<u64>>,
    run_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawPathLoss {
    Measure,
    Assume,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeer {
    key: Spanned<String>,
    address: Option<Spanned<String>>,
    keepalive_s: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClass {
    #[serde(rename = "match")]
    matches: Vec<Spanned<String>>,
}

impl RawFile {
    /// The checked file; `None` only with findings.
    pub fn check(self, findings: &mut Findings) -> Option<Config> {
        let (tunnel, peer) = (self.tunnel, self.peer);
        let path = findings.path.to_owned();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mode = *tunnel.mode.get_ref();
        check_mode(findings, &tunnel);
        let name = check_name(findings, &path);
        let interface = check_interface(findings, tunnel.interface, &name);
        let addresses: Vec<InsideAddress> =
            tunnel.address.iter().filter_map(|it| check_inside(findings, it)).collect();
        check_one_v4(findings, &tunnel.address, &addresses);
        check_twice(findings, &tunnel.address);
        let inner_mtu = check_inner_mtu(findings, tunnel.inner_mtu, &addresses);
        let listen = tunnel.listen.and_then(|it| check_listen(findings, &it));
        let forwards = forward::check_forwards(findings, &tunnel.forward, listen);
        let allowed = tunnel.allow.iter();
        let allowed = allowed.filter_map(|it| forward::check_allow(findings, it)).collect();
        let peer_address = peer.address.and_then(|it| check_peer_address(findings, &it, listen));
        if listen.is_none() && peer_address.is_none() {
            findings.add_of_file(
                "neither this end listens nor is it known where the peer is: they never meet",
                "add listen = \"[::]:51900\" in [tunnel], or address = \"192.0.2.1:51900\" in [peer]",
            );
        }
        let keepalive = peer
            .keepalive_s
            .map(|it| number(findings, "keepalive_s", Some(it), 0, KEEPALIVE_S, "seconds"));
        let flows = number(findings, "flows_max", tunnel.flows_max, FLOWS_DEFAULT, FLOWS, "flows");
        let idle = number(findings, "idle_s", tunnel.idle_s, IDLE_DEFAULT_S, IDLE_S, "seconds");
        Some(Config {
            key: folder.join(tunnel.key),
            listen,
            mode,
            interface,
            addresses,
            inner_mtu,
            overhead_max: check_share(findings, "overhead_max", tunnel.overhead_max, OVERHEAD),
            late_max: check_share(findings, "late_max", tunnel.late_max, LATE),
            path_loss: match tunnel.path_loss {
                Some(RawPathLoss::Assume) => PathLoss::Assume,
                Some(RawPathLoss::Measure) | None => PathLoss::Measure,
            },
            rules: check_rules(findings, self.class),
            forwards,
            allowed,
            flows_max: flows as usize,
            idle: Duration::from_secs(idle),
            run_dir: run_dir(findings, tunnel.run_dir, &folder),
            peer: check_peer_key(findings, &peer.key)?,
            peer_address,
            keepalive: keepalive.map(Duration::from_secs),
            name,
            path,
        })
    }
}

/// What does not go with the mode.
fn check_mode(findings: &mut Findings, tunnel: &RawTunnel) {
    let (mode, span) = (*tunnel.mode.get_ref(), tunnel.mode.span());
    let is_tcp = |text: &&Spanned<String>| text.get_ref().trim_start().starts_with("tcp");
    let ports = tunnel.forward.iter().chain(&tunnel.allow);
    if mode == Mode::Tun {
        if let Some(port) = ports.clone().next() {
            let remedy =
                "mode = \"forward\" is for ports; with mode = \"tun\" any port can be reached";
            findings.add(port.span(), "mode = \"tun\" has no forwards", remedy);
        }
        if tunnel.address.is_empty() {
            let remedy = "add, for example: address = [\"10.9.0.1/30\", \"fd09::1/64\"]";
            findings.add(span, "mode = \"tun\" needs an address for its interface", remedy);
        }
        return;
    }
    if let Some(address) = tunnel.address.first() {
        let remedy = "remove it, or write mode = \"tun\"";
        let message = format!("mode = \"{}\" has no interface", mode.word());
        findings.add(address.span(), message, remedy);
    }
    if mode == Mode::Udp
        && let Some(tcp) = ports.clone().find(is_tcp)
    {
        findings.add(tcp.span(), "mode = \"udp\" carries no TCP", "write mode = \"forward\"");
    }
    if ports.count() == 0 {
        let remedy = "add forward = [\"udp 127.0.0.1:5300 -> 10.0.0.5:53\"] at one end, and allow = \
                      [\"udp 10.0.0.5:53\"] at the other";
        findings.add(span, "nothing is forwarded and nothing allowed", remedy);
    }
}

fn check_name(findings: &mut Findings, path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_good) {
        findings.add_of_file(
            format!("\"{name}\" cannot be the name of a tunnel"),
            format!(
                "rename the file: 1 to {NAME_CHARS_MAX} of a-z, 0-9, - and _, which become part of \
                 file names"
            ),
        );
    }
    name
}

fn check_interface(findings: &mut Findings, raw: Option<Spanned<String>>, name: &str) -> String {
    let Some(raw) = raw else {
        return format!("hf-{name}").chars().take(INTERFACE_CHARS_MAX).collect();
    };
    let text = raw.get_ref();
    let is_bad = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
    let is_folder = text == "." || text == "..";
    let is_long = text.len() > INTERFACE_CHARS_MAX;
    if text.is_empty() || is_long || is_folder || text.chars().any(is_bad) {
        findings.add(
            raw.span(),
            format!("\"{text}\" cannot be the name of an interface"),
            format!("it has 1 to {INTERFACE_CHARS_MAX} characters, for example \"hf0\""),
        );
    }
    raw.into_inner()
}

fn check_inside(findings: &mut Findings, text: &Spanned<String>) -> Option<InsideAddress> {
    let parsed = text.get_ref().split_once('/').and_then(|(ip, prefix)| {
        let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let is_one = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
        (prefix <= most && is_one).then_some(InsideAddress { ip, prefix })
    });
    if parsed.is_none() {
        findings.add(
            text.span(),
            format!("\"{}\" is not an address with a prefix", text.get_ref()),
            "write \"10.9.0.1/30\" or \"fd09::1/64\"",
        );
    }
    parsed
}

/// The interface has one IPv4 address: further ones are for `ip address add`.
fn check_one_v4(findings: &mut Findings, raw: &[Spanned<String>], checked: &[InsideAddress]) {
    if checked.iter().filter(|it| it.ip.is_ipv4()).count() > 1
        && let Some(last) = raw.last()
    {
        let remedy = "add the others with `ip address add` when the tunnel is up";
        findings.add(last.span(), "address has more than one IPv4 address", remedy);
    }
}

/// An interface has each address once.
fn check_twice(findings: &mut Findings, raw: &[Spanned<String>]) {
    let ip = |text: &str| text.split_once('/').and_then(|(ip, _)| ip.parse::<IpAddr>().ok());
    for (at, text) in raw.iter().enumerate() {
        let own = ip(text.get_ref());
        if own.is_some() && raw.iter().take(at).any(|it| ip(it.get_ref()) == own) {
            let message = format!("\"{}\" is in `address` already", text.get_ref());
            findings.add(text.span(), message, "remove one of both");
        }
    }
}

fn check_inner_mtu(
    findings: &mut Findings,
    raw: Option<Spanned<u64>>,
    addresses: &[InsideAddress],
) -> u16 {
    let has_v6 = addresses.iter().any(|it| it.ip.is_ipv6());
    let span = raw.as_ref().map(Spanned::span);
    let mtu = number(findings, "inner_mtu", raw, INNER_MTU_DEFAULT, INNER_MTU, "bytes");
    if let Some(span) = span.filter(|_| has_v6 && mtu < INNER_MTU_MIN_V6) {
        findings.add(
            span,
            format!("inner_mtu = {mtu} is too small for IPv6"),
            format!("{INNER_MTU_MIN_V6} at least, or no IPv6 address"),
        );
    }
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

fn check_listen(findings: &mut Findings, text: &Spanned<String>) -> Option<SocketAddr> {
    let parsed: Option<SocketAddr> = text.get_ref().parse().ok();
    let good = parsed.filter(|it| !it.ip().is_multicast() && it.port() != 0);
    if good.is_none() {
        findings.add(
            text.span(),
            format!("\"{}\" is not an address and a port to listen at", text.get_ref()),
            "write \"[::]:51900\" for all addresses, or \"192.0.2.1:51900\"",
        );
    }
    good
}

fn check_peer_address(
    findings: &mut Findings,
    text: &Spanned<String>,
    own: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let parsed: Option<SocketAddr> = text.get_ref().parse().ok();
    let is_one = |it: &SocketAddr| !it.ip().is_unspecified() && !it.ip().is_multicast();
    let good = parsed.filter(|it| is_one(it) && it.port() != 0);
    if good.is_none() {
        findings.add(
            text.span(),
            format!("\"{}\" is not the address of one host and port", text.get_ref()),
            "write \"192.0.2.1:51900\" or \"[2001:db8::1]:51900\"; host names are not looked up",
        );
    }
    if let Some(peer) = good
        && own.is_some_and(|own| leads_to(peer, own))
    {
        let remedy = "write the address and the port at which the other end listens";
        findings.add(text.span(), format!("{peer} is where this end itself listens"), remedy);
    }
    good
}

/// Whether what is sent to an address comes to who listens at `own` on the same host.
fn leads_to(address: SocketAddr, own: SocketAddr) -> bool {
    let is_any = own.ip().is_unspecified() && address.ip().is_loopback();
    address.port() == own.port() && (address.ip() == own.ip() || is_any)
}

fn check_peer_key(findings: &mut Findings, text: &Spanned<String>) -> Option<PublicKey> {
    let remedy = "write what `holdfast tunnel key pub FILE` prints at the other end";
    match text.get_ref().parse() {
        Ok(key) => Some(key),
        // What is written may be a secret, and is not repeated.
        Err(NotAKey::Secret) => {
            let remedy = format!("{remedy}, and make a new key there: this one was written down");
            findings.add(text.span(), "this is a secret key", remedy);
            None
        }
        Err(error) => {
            findings.add(text.span(), format!("this {error}"), remedy);
            None
        }
    }
}

/// A share in percent, as `"35%"`, of the setting `name`; its default, and the most that it may be.
fn check_share(
    findings: &mut Findings,
    name: &str,
    raw: Option<Spanned<String>>,
    (default, most): (f64, f64),
) -> f64 {
    let Some(raw) = raw else { return default };
    let percent = raw.get_ref().strip_suffix('%').and_then(|it| it.trim().parse::<f64>().ok());
    let share = percent.map(|it| it / 100.0).filter(|it| (0.0..=most).contains(it));
    share.unwrap_or_else(|| {
        findings.add(
            raw.span(),
            format!("{name} = \"{}\" is not a share", raw.get_ref()),
            format!("write \"{}%\"; \"0%\" to \"{}%\" are possible", default * 100.0, most * 100.0),
        );
        default
    })
}

fn check_rules(findings: &mut Findings, raw: BTreeMap<Spanned<String>, RawClass>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (name, class) in raw {
        let Some(of) = class_of(name.get_ref()) else {
            let known = ["now", "soon", "bulk"];
            let list = || format!("one of: {}", known.join(", "));
            let remedy = suggestion(name.get_ref(), &known).unwrap_or_else(list);
            findings.add(name.span(), format!("there is no class `{}`", name.get_ref()), remedy);
            continue;
        };
        for text in &class.matches {
            match rule_of(text.get_ref(), of) {
                Some(rule) => rules.push(rule),
                None => findings.add(
                    text.span(),
                    format!("\"{}\" matches nothing", text.get_ref()),
                    "write \"tcp\", \"udp 53\", \"port 22\" or \"dscp 46\"",
                ),
            }
        }
    }
    rules
}

fn class_of(word: &str) -> Option<Class> {
    match word {
        "now" => Some(Class::Now),
        "soon" => Some(Class::Soon),
        "bulk" => Some(Class::Bulk),
        _ => None,
    }
}

fn rule_of(text: &str, class: Class) -> Option<Rule> {
    let mut words = text.split_whitespace();
    let (kind, value) = (words.next()?, words.next());
    if words.next().is_some() {
        return None;
    }
    let any = Rule { protocol: None, port: None, dscp: None, class };
    let port = value.map(|it| it.parse::<u16>().ok().filter(|port| *port != 0));
    Some(match (kind, port) {
        ("tcp", None) => Rule { protocol: Some(6), ..any },
        ("udp", None) => Rule { protocol: Some(17), ..any },
        ("tcp", Some(port @ Some(_))) => Rule { protocol: Some(6), port, ..any },
        ("udp", Some(port @ Some(_))) => Rule { protocol: Some(17), port, ..any },
        ("port", Some(port @ Some(_))) => Rule { port, ..any },
        ("dscp", _) => Rule { dscp: Some(value?.parse().ok().filter(|dscp| *dscp < 64)?), ..any },
        _ => return None,
    })
}

/// Where the daemon's socket is: what the file says, or the place of programs that run.
fn run_dir(findings: &mut Findings, raw: Option<PathBuf>, folder: &Path) -> PathBuf {
    if let Some(raw) = raw {
        return folder.join(raw);
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/holdfast");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty()) {
        Some(own) => Path::new(&own).join("holdfast"),
        None => {
            let error = of_file(
                findings.path,
                "it is not known where this user's programs have their sockets",
                "add run_dir = \"…\" in [tunnel]: a folder of this user",
            );
            findings.found.push(error);
            PathBuf::new()
        }
    }
}

/// A number that must lie within bounds.
fn number(
    findings: &mut Findings,
    name: &str,
    written: Option<Spanned<u64>>,
    default: u64,
    bounds: RangeInclusive<u64>,
    unit: &str,
) -> u64 {
    let Some(written) = written else { return default };
    let value = *written.get_ref();
    if !bounds.contains(&value) {
        let remedy = format!("{} to {} {unit}", bounds.start(), bounds.end());
        findings.add(written.span(), format!("{name} = {value} is out of range"), remedy);
    }
    value
}

impl Transport {
    /// The number of its protocol, as rules have it.
    pub fn protocol(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}
