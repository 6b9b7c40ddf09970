//! From text to [`Config`]: the file's shape as serde sees it, and the checks
//! that give each value its meaning.

use super::error::{ConfigError, ConfigErrors, Findings, Position};
use super::kind::check_kind;
use super::recover::{Policy, RawRecover, Recover, Start, check_recover};
use super::{
    CLIENT_INTERFACES_MAX, CONNECTIONS_MAX, FLOWS_MAX, HEARTBEAT_MS, RING_BYTES, SERVICES_MAX,
};
use super::{Config, Edge, Group, Mac, Member, Server};
use crate::key::GroupKey;
use holdfast_linux::bpf::EDGE_FLOWS_DEFAULT;
use holdfast_member::timing::HEARTBEAT_MS_DEFAULT;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

const CONNECTIONS_MAX_DEFAULT: u64 = 32_768;
/// Longest interface name that Linux accepts (IFNAMSIZ - 1).
const INTERFACE_CHARS_MAX: usize = 15;
const NAME_CHARS_MAX: usize = 32;
/// Which interfaces `clients` lists.
pub(super) const THROUGH_CLIENTS: &str = "through which clients reach the edge";
/// How alike a key must be (Jaro-Winkler) to be suggested.
const SUGGESTION_MIN: f64 = 0.75;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    group: RawGroup,
    edge: RawEdge,
    member: Vec<Spanned<RawMember>>,
    server: RawServer,
    recover: Option<RawRecover>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    kind: Option<Spanned<String>>,
    name: Spanned<String>,
    key_file: Spanned<PathBuf>,
    services: Spanned<Vec<Spanned<String>>>,
    run_dir: Option<PathBuf>,
    heartbeat_ms: Option<Spanned<u64>>,
    connections_max: Option<Spanned<u64>>,
    realtime: Option<bool>,
    share_cpu: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEdge {
    listen: Spanned<String>,
    clients: Spanned<Vec<Spanned<String>>>,
    l3: Option<Spanned<String>>,
    state_file: Option<PathBuf>,
    first: Option<Spanned<String>>,
    flows_max: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    name: Spanned<String>,
    address: Spanned<String>,
    interface: Spanned<String>,
    edge_port: Spanned<String>,
    mac: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    command: Spanned<Vec<String>>,
    directory: Option<Spanned<PathBuf>>,
    user: Option<Spanned<String>>,
    #[serde(default)]
    env: BTreeMap<Spanned<String>, String>,
    log: Option<PathBuf>,
    ring_bytes: Option<Spanned<u64>>,
    aslr: Option<bool>,
    trap_tsc: Option<bool>,
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Config, ConfigErrors> {
    read(path, text, check)
}

/// Reads a file of any kind: its shape by serde, its meaning by `check`.
pub(super) fn read<R: DeserializeOwned, C>(
    path: &Path,
    text: &str,
    check: impl FnOnce(&mut Findings<'_>, R) -> C,
) -> Result<C, ConfigErrors> {
    let raw = toml::from_str(text).map_err(|e| ConfigErrors(vec![explain(path, text, &e)]))?;
    let mut findings = Findings { path, text, found: Vec::new() };
    let config = check(&mut findings, raw);
    let Findings { mut found, .. } = findings;
    found.sort_by_key(|e| (e.at.line, e.at.column));
    if found.is_empty() { Ok(config) } else { Err(ConfigErrors(found)) }
}

fn check(findings: &mut Findings, raw: RawConfig) -> Config {
    let folder = findings.path.parent().unwrap_or(Path::new("")).to_owned();
    let key_file_at = Position::of(findings.text, raw.group.key_file.span().start);
    let members = check_members(findings, raw.member);
    let edge = check_edge(findings, raw.edge, &members, raw.group.name.get_ref(), &folder);
    let mut hosts: Vec<(IpAddr, &str)> = vec![(edge.listen.ip(), "the edge")];
    hosts.extend(members.iter().map(|it| (it.address.ip(), it.name.as_str())));
    Config {
        group: check_group(findings, raw.group, &hosts, &folder),
        edge,
        server: check_server(findings, raw.server, &folder),
        recover: check_recover(
            findings,
            raw.recover,
            Recover::standard(Policy::Syn, Start::Always),
        ),
        members,
        key_file_at,
        path: findings.path.to_owned(),
    }
}

/// `hosts` are the addresses that somebody has already.
fn check_group(
    findings: &mut Findings,
    raw: RawGroup,
    hosts: &[(IpAddr, &str)],
    folder: &Path,
) -> Group {
    check_kind(findings, raw.kind.as_ref(), "replicated");
    check_name(findings, &raw.name);
    let mut services: Vec<SocketAddr> = Vec::new();
    for spanned in raw.services.get_ref() {
        let Some(address) = check_address(findings, spanned) else { continue };
        if services.contains(&address) {
            findings.add(
                spanned.span(),
                format!("service {address} is listed twice"),
                "remove one of the two",
            );
        }
        check_service(findings, spanned, address.ip(), hosts);
        services.push(address);
    }
    if raw.services.get_ref().is_empty() || services.len() > SERVICES_MAX {
        findings.add(
            raw.services.span(),
            format!("services has {} addresses", services.len()),
            format!("a group protects 1 to {SERVICES_MAX}; run one group per server"),
        );
    }
    let heartbeat_ms = check_heartbeat(findings, raw.heartbeat_ms, HEARTBEAT_MS_DEFAULT);
    let connections_max = number(
        findings,
        "connections_max",
        raw.connections_max,
        CONNECTIONS_MAX_DEFAULT,
        CONNECTIONS_MAX,
        "connections",
    );
    let name = raw.name.into_inner();
    Group {
        key_file: folder.join(raw.key_file.into_inner()),
        services,
        run_dir: run_dir(raw.run_dir, folder, &name),
        heartbeat_ms,
        connections_max: connections_max as u32,
        realtime: raw.realtime.unwrap_or(true),
        share_cpu: raw.share_cpu.unwrap_or(true),
        name,
    }
}

/// `heartbeat_ms`, of which every kind of group has a default of its own.
pub(super) fn check_heartbeat(
    findings: &mut Findings,
    written: Option<Spanned<u64>>,
    default: u64,
) -> u64 {
    number(findings, "heartbeat_ms", written, default, HEARTBEAT_MS, "milliseconds")
}

/// `run_dir`, relative to the file's folder.
pub(super) fn run_dir(written: Option<PathBuf>, folder: &Path, group: &str) -> PathBuf {
    written.map_or_else(|| Path::new("/run/holdfast").join(group), |dir| folder.join(dir))
}

/// A service address belongs to no host: whoever is current has it.
fn check_service(
    findings: &mut Findings,
    spanned: &Spanned<String>,
    ip: IpAddr,
    hosts: &[(IpAddr, &str)],
) {
    let owner = hosts.iter().find(|(taken, _)| *taken == ip).map(|(_, name)| *name);
    let owner = owner.or(ip.is_loopback().then_some("every host itself"));
    if let Some(owner) = owner {
        findings.add(
            spanned.span(),
            format!("{ip} is the address of {owner}"),
            "give the service an address of its own, which no host has: members take it over \
             from each other",
        );
    }
}

/// Interfaces on one side of an edge; `which` ends the remedy.
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
    if count == 0 || count > CLIENT_INTERFACES_MAX {
        findings.add(
            raw.span(),
            format!("{name} lists {count} interfaces"),
            format!("name the 1 to {CLIENT_INTERFACES_MAX} interfaces {which}"),
        );
    }
    raw.into_inner().into_iter().map(Spanned::into_inner).collect()
}

/// A number that must lie within bounds.
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

fn check_edge(
    findings: &mut Findings,
    raw: RawEdge,
    members: &[Member],
    group: &str,
    folder: &Path,
) -> Edge {
    let listen = check_address(findings, &raw.listen);
    let client_spans: Vec<_> = raw.clients.get_ref().iter().map(Spanned::span).collect();
    let clients = check_interfaces(findings, "clients", raw.clients, THROUGH_CLIENTS);
    for (name, spanned) in clients.iter().zip(client_spans) {
        let member = members.iter().find(|it| it.edge_port == *name);
        if name == "lo" || member.is_some() {
            let whose = member.map_or("itself", |it| it.name.as_str());
            findings.add(
                spanned,
                format!("clients do not come through {name}: it leads to {whose}"),
                format!("name the interfaces {THROUGH_CLIENTS}"),
            );
        }
    }
    if let Some(l3) = &raw.l3 {
        check_interface(findings, l3);
    }
    if let Some(first) =
        raw.first.as_ref().filter(|f| members.iter().all(|m| m.name != **f.get_ref()))
    {
        let names: Vec<&str> = members.iter().map(|m| m.name.as_str()).collect();
        findings.add(
            first.span(),
            format!("first = \"{}\" is not a member", first.get_ref()),
            suggestion(first.get_ref(), &names)
                .unwrap_or_else(|| format!("one of: {}", names.join(", "))),
        );
    }
    let default = u64::from(EDGE_FLOWS_DEFAULT);
    let flows_max = number(findings, "flows_max", raw.flows_max, default, FLOWS_MAX, "flows");
    let state_file =
        raw.state_file.unwrap_or_else(|| PathBuf::from(format!("/var/lib/holdfast/{group}.epoch")));
    Edge {
        listen: listen.unwrap_or_else(unspecified),
        clients,
        l3: raw.l3.map(Spanned::into_inner),
        state_file: folder.join(state_file),
        first: raw
            .first
            .map(Spanned::into_inner)
            .or_else(|| members.first().map(|m| m.name.clone()))
            .unwrap_or_default(),
        flows_max: flows_max as u32,
    }
}

fn check_members(findings: &mut Findings, raw: Vec<Spanned<RawMember>>) -> Vec<Member> {
    if raw.len() != 2 {
        let at = raw.get(2).or(raw.first()).map_or(0..0, Spanned::span);
        findings.add(
            at,
            format!("the group has {} members", raw.len()),
            "exactly two [[member]] sections: one backup per group for now",
        );
    }
    let mut members: Vec<Member> = Vec::new();
    for spanned in raw {
        let span = spanned.span();
        let member = check_member(findings, spanned.into_inner());
        for other in &members {
            let same = [
                ("name", other.name == member.name),
                ("address", other.address == member.address),
                ("edge_port", other.edge_port == member.edge_port),
                ("mac", other.mac == member.mac),
            ];
            let names = ["members", &other.name, &member.name];
            let remedy = "members are different hosts, each behind its own port of the edge";
            findings.add_twins(&span, names, &same, remedy);
        }
        members.push(member);
    }
    members
}

fn check_member(findings: &mut Findings, raw: RawMember) -> Member {
    check_name(findings, &raw.name);
    if raw.name.get_ref() == "edge" {
        findings.add(
            raw.name.span(),
            "a member cannot be called `edge`",
            "that is the edge's role; choose another name",
        );
    }
    check_interface(findings, &raw.interface);
    check_interface(findings, &raw.edge_port);
    let mac = raw.mac.get_ref().parse().unwrap_or_else(|remedy: &str| {
        findings.add(
            raw.mac.span(),
            format!("mac = \"{}\" is not a hardware address", raw.mac.get_ref()),
            remedy,
        );
        Mac([2, 0, 0, 0, 0, 0])
    });
    Member {
        address: check_address(findings, &raw.address).unwrap_or_else(unspecified),
        name: raw.name.into_inner(),
        interface: raw.interface.into_inner(),
        edge_port: raw.edge_port.into_inner(),
        mac,
    }
}

fn check_server(findings: &mut Findings, raw: RawServer, folder: &Path) -> Server {
    if raw.command.get_ref().first().is_none_or(String::is_empty) {
        findings.add(raw.command.span(), "command is empty", "give the program and its arguments: command = [\"/usr/bin/redis-server\", \"--save\", \"\"]");
    }
    if let Some(user) = raw.user.as_ref().filter(|u| u.get_ref().is_empty()) {
        findings.add(
            user.span(),
            "user is empty",
            "name a user of this host, for example \"nobody\", or leave the key out",
        );
    }
    if let Some(directory) = raw.directory.as_ref().filter(|d| !d.get_ref().is_absolute()) {
        findings.add(
            directory.span(),
            "directory is not an absolute path",
            "start it with a slash: it is the same on both members",
        );
    }
    for key in raw.env.keys().filter(|k| k.get_ref().is_empty() || k.get_ref().contains('=')) {
        findings.add(
            key.span(),
            format!("`{}` cannot name an environment variable", key.get_ref()),
            "a name is not empty and has no `=`",
        );
    }
    let ring_bytes =
        raw.ring_bytes.as_ref().map_or(holdfast_wire::shm::RING_BYTES as u64, |v| *v.get_ref());
    if let Some(spanned) = raw
        .ring_bytes
        .filter(|_| !RING_BYTES.contains(&ring_bytes) || !ring_bytes.is_power_of_two())
    {
        findings.add(
            spanned.span(),
            format!("ring_bytes = {ring_bytes} is not possible"),
            format!(
                "a power of two from {} to {}; the default is {}",
                RING_BYTES.start(),
                RING_BYTES.end(),
                holdfast_wire::shm::RING_BYTES
            ),
        );
    }
    Server {
        command: raw.command.into_inner(),
        directory: raw.directory.map(Spanned::into_inner),
        user: raw.user.map(Spanned::into_inner),
        env: raw.env.into_iter().map(|(k, v)| (k.into_inner(), v)).collect(),
        log: raw.log.map(|log| folder.join(log)),
        ring_bytes,
        aslr: raw.aslr.unwrap_or(false),
        trap_tsc: raw.trap_tsc.unwrap_or(false),
    }
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
    Some(address)
}

/// The address of one host, without a port.
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

/// Reads the key in `file`, to which `at` of the configuration `path` refers.
pub(super) fn load_key(file: &Path, path: &Path, at: Position) -> Result<GroupKey, ConfigErrors> {
    GroupKey::load(file).map_err(|error| {
        ConfigErrors(vec![ConfigError {
            path: path.to_owned(),
            at,
            message: format!("key_file: {error}"),
            remedy: error.remedy(file),
        }])
    })
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

/// Turns an error of the TOML reader into one of ours, with a suggestion.
pub(super) fn explain(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message();
    let span = error.span().unwrap_or(0..0);
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (message, remedy) = if message.starts_with("unknown field") {
        let (key, known) = quoted.split_first().map_or(("", &[][..]), |(key, known)| (*key, known));
        let list = || format!("the keys there are: {}", known.join(", "));
        (format!("unknown key `{key}`"), suggestion(key, known).unwrap_or_else(list))
    } else if message.starts_with("missing field") {
        let key = quoted.first().copied().unwrap_or_default();
        (format!("`{key}` is missing"), example(key))
    } else {
        (
            message.lines().collect::<Vec<_>>().join("; "),
            "see `holdfast config example` for a whole file".to_owned(),
        )
    };
    ConfigError { path: path.to_owned(), at: Position::of(text, span.start), message, remedy }
}

pub(super) fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), *candidate))
        .filter(|(score, _)| *score >= SUGGESTION_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

fn example(key: &str) -> String {
    let line = match key {
        "group" => "[group]",
        "edge" => "[edge]",
        "member" => "[[member]]",
        "server" => "[server]",
        "host" => "[[host]]",
        "addresses" => "addresses = [\"10.9.0.100\"]",
        "name" => "name = \"a\"",
        "key_file" => "key_file = \"/etc/holdfast/demo.key\"",
        "services" => "services = [\"10.9.0.100:6379\"]",
        "listen" => "listen = \"10.9.0.1:7700\"",
        "clients" => "clients = [\"eth0\"]",
        "address" => "address = \"10.9.0.2:7701\"",
        "interface" => "interface = \"eth0\"",
        "edge_port" => "edge_port = \"eth1\"",
        "mac" => "mac = \"02:00:00:00:00:0a\"",
        "command" => "command = [\"/usr/bin/redis-server\", \"--save\", \"\"]",
        other => return format!("add `{other}`"),
    };
    format!("add, for example: {line}")
}

pub(super) fn unspecified() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}
