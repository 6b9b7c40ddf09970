//! Checks of single values, the same in files of every kind.

use super::error::{Findings, Position};
use super::kind::{self, Kind};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Most interfaces that face one side of an edge.
pub const INTERFACES_MAX: usize = 8;
/// Bounds of `heartbeat_ms`.
pub const HEARTBEAT_MS: RangeInclusive<u64> = 5..=1000;
/// Its largest value in a pair without an edge.
pub const LEASED_MS_MAX: u64 = 100;
/// Why it may not be smaller.
const TOO_SHORT: &str = "three missing ones declare a host dead, and every host stands still for \
    some milliseconds now and then; `holdfast check --pauses 60` says what this one bears";
/// Why it may not be larger; and in a pair without an edge.
const TOO_LONG: &str =
    "three must be missing before a dead host is replaced, and clients wait so long";
const TOO_LONG_LEASED: &str = "without an edge the right to speak lasts three of them, and who takes \
    over waits until it has run out";

/// Longest interface name that Linux accepts, in characters (IFNAMSIZ - 1).
const INTERFACE_CHARS_MAX: usize = 15;
/// Longest name of a group or of one of its hosts, in characters.
const NAME_CHARS_MAX: usize = 32;
/// Description of the interfaces that an edge's `clients` lists.
pub(super) const THROUGH_CLIENTS: &str = "through which clients reach the edge";

/// Complains about a `kind` that the reader of `wanted` was given by mistake.
pub(super) fn check_kind(findings: &mut Findings, written: Option<&Spanned<String>>, wanted: Kind) {
    let Some(written) = written.filter(|kind| kind.get_ref() != wanted.name()) else { return };
    findings.add(
        written.span(),
        format!("there is no kind of group called `{}`", written.get_ref()),
        kind::remedy(written.get_ref()),
    );
}

/// Checks `key_file`, relative to the file's folder. Its place is remembered
/// for what is wrong with the key.
pub(super) fn check_key_file(
    findings: &mut Findings,
    written: Spanned<PathBuf>,
    folder: &Path,
) -> PathBuf {
    findings.key_file_at = Position::of(findings.text, written.span().start);
    folder.join(written.into_inner())
}

/// What a heartbeat may be in a kind of group.
pub(super) struct Pace {
    pub default: u64,
    /// Whether a right to speak lasts as long as some heartbeats, as in a pair without an edge.
    pub is_leased: bool,
}

/// Checks `heartbeat_ms`.
pub(super) fn check_heartbeat(
    findings: &mut Findings,
    written: Option<Spanned<u64>>,
    Pace { default, is_leased }: Pace,
) -> u64 {
    let Some(written) = written else { return default };
    let (value, min) = (*written.get_ref(), *HEARTBEAT_MS.start());
    let (max, of, too_long) = match is_leased {
        true => (LEASED_MS_MAX, " for a pair without an edge", TOO_LONG_LEASED),
        false => (*HEARTBEAT_MS.end(), "", TOO_LONG),
    };
    let (wanted, why) = match value {
        _ if value < min => (format!("heartbeat_ms = {min} or more"), TOO_SHORT),
        _ if value > max => (format!("heartbeat_ms = {max} or less"), too_long),
        _ => return value,
    };
    findings.add(
        written.span(),
        format!("heartbeat_ms = {value} is out of range{of}: {min} to {max}"),
        format!("write {wanted}, the same on every host: {why}; the default is {default}"),
    );
    value
}

/// `run_dir`, relative to the file's folder.
pub(super) fn run_dir(written: Option<PathBuf>, folder: &Path, group: &str) -> PathBuf {
    written.map_or_else(|| Path::new("/run/holdfast").join(group), |dir| folder.join(dir))
}

/// Checks the interfaces on one side of an edge; `which` ends the remedy.
pub(super) fn check_interfaces(
    findings: &mut Findings,
    name: &str,
    raw: Spanned<Vec<Spanned<String>>>,
    which: &str,
) -> Vec<String> {
    for spanned in raw.get_ref() {
        check_interface(findings, spanned);
    }
    let count = raw.get_ref().len();
    if count == 0 || count > INTERFACES_MAX {
        findings.add(
            raw.span(),
            format!("{name} lists {count} interfaces"),
            format!("name the 1 to {INTERFACES_MAX} interfaces {which}"),
        );
    }
    raw.into_inner().into_iter().map(Spanned::into_inner).collect()
}

/// Checks a number that must lie within bounds.
pub(super) fn number(
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
        findings.add(
            written.span(),
            format!("{name} = {value} is out of range"),
            format!("{} to {} {unit}; the default is {default}", bounds.start(), bounds.end()),
        );
    }
    value
}

pub(super) fn check_address(
    findings: &mut Findings,
    spanned: &Spanned<String>,
) -> Option<SocketAddr> {
    let text = spanned.get_ref();
    let Ok(address) = text.parse::<SocketAddr>() else {
        findings.add(
            spanned.span(),
            format!("\"{text}\" is not an address with a port"),
            "write \"10.9.0.100:6379\" or \"[fd09::100]:6379\"; host names are not looked up",
        );
        return None;
    };
    if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
        findings.add(
            spanned.span(),
            format!("{address} is not the address of one host and port"),
            "use the address that the other hosts see, and a port other than 0",
        );
    }
    check_network(findings, spanned, address.ip());
    Some(address)
}

fn check_network(findings: &mut Findings, spanned: &Spanned<String>, ip: IpAddr) {
    if is_of_no_network(ip) {
        findings.add(
            spanned.span(),
            format!("{ip} has no meaning beyond one link"),
            "use an address that is routed",
        );
    }
}

/// Whether an address leads nowhere without the interface beside it (RFC 4291 §2.5.6), or to
/// everybody on its link (RFC 919 §7).
fn is_of_no_network(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Checks the address of one host, without a port.
pub(super) fn check_ip(findings: &mut Findings, spanned: &Spanned<String>) -> Option<IpAddr> {
    let text = spanned.get_ref();
    let parsed = text.parse::<IpAddr>().ok();
    let good = parsed.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    if good.is_none() {
        findings.add(
            spanned.span(),
            format!("\"{text}\" is not the address of one host"),
            "write \"10.9.0.100\" or \"fd09::100\", without a port",
        );
    }
    good
}

/// Like [`check_ip`], for an address that hosts on other links use.
pub(super) fn check_routed_ip(
    findings: &mut Findings,
    spanned: &Spanned<String>,
) -> Option<IpAddr> {
    let ip = check_ip(findings, spanned)?;
    check_network(findings, spanned, ip);
    Some(ip)
}

pub(super) fn check_name(findings: &mut Findings, name: &Spanned<String>) {
    let text = name.get_ref();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(good) {
        findings.add(
            name.span(),
            format!("\"{text}\" cannot be a name"),
            format!("1 to {NAME_CHARS_MAX} of a-z, 0-9, - and _: it becomes part of file names"),
        );
    }
}

pub(super) fn check_interface(findings: &mut Findings, name: &Spanned<String>) {
    let text = name.get_ref();
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.len() > INTERFACE_CHARS_MAX || text.chars().any(bad) {
        findings.add(
            name.span(),
            format!("\"{text}\" cannot be the name of an interface"),
            format!("`ip link` lists the names; they have 1 to {INTERFACE_CHARS_MAX} characters"),
        );
    }
}

pub(super) fn unspecified() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}
