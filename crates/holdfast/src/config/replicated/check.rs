//! The file's shape as serde sees it, and the checks that give each value its
//! meaning.

use super::super::checks::{
    Pace, check_address, check_heartbeat, check_interface, check_key_file, check_kind, check_name,
    number, run_dir, unspecified,
};
use super::super::error::Findings;
use super::super::explain::example;
use super::super::keys::{RawKeys, check_keys};
use super::super::kind::Kind;
use super::super::recover::{Policy, RawRecover, Recover, Start, check_recover};
use super::super::told::{RawHooks, check_events, check_hooks};
use super::super::watching::{RawListen, check_listens, check_watchers};
use super::arbiter::RawArbiter;
use super::cold::{self, Mode, RawCold};
use super::front::{self, Front, RawEdge, RawFront, RawSegment};
use super::state_dirs::{self, Kept};
use super::{ALONE_AFTER_S, CONNECTIONS_MAX, REJOIN_MAX, RING_BYTES, SERVICES_MAX};
use super::{ChannelWay, Group, Mac, Member, Port, Replicated, Run, Server};
use crate::status::counted;
use holdfast_member::timing::HEARTBEAT_MS_DEFAULT;
use holdfast_wire::buffering::Buffering;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

const CONNECTIONS_MAX_DEFAULT: u64 = 32_768;
/// Variables that the server gets from Holdfast.
const OURS: [&str; 2] = ["LD_PRELOAD", "HOLDFAST_SHIM"];
/// Highest port of a member whose channel is coded.
const CODED_PORT_MAX: u16 = u16::MAX - 2;
const REJOIN_MAX_DEFAULT: u64 = 16;
/// Default of `alone_after_s`, in seconds: longer than the gap between two
/// hosts that are started together.
const ALONE_AFTER_S_DEFAULT: u64 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReplicated {
    group: RawGroup,
    edge: Option<RawEdge>,
    segment: Option<Spanned<RawSegment>>,
    arbiter: Option<Spanned<RawArbiter>>,
    member: Vec<Spanned<RawMember>>,
    server: RawServer,
    recover: Option<Spanned<RawRecover>>,
    cold: Option<Spanned<RawCold>>,
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
    services: Spanned<Vec<Spanned<String>>>,
    run_dir: Option<PathBuf>,
    heartbeat_ms: Option<Spanned<u64>>,
    connections_max: Option<Spanned<u64>>,
    rejoin_max: Option<Spanned<u64>>,
    alone_after_s: Option<Spanned<u64>>,
    rebuild: Option<bool>,
    mode: Option<Mode>,
    buffering: Option<Buffering>,
    realtime: Option<bool>,
    share_cpu: Option<bool>,
    direct: Option<Spanned<bool>>,
    channel: Option<ChannelWay>,
    events_dir: Option<PathBuf>,
    events_max_kb: Option<Spanned<u64>>,
    watchers: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    name: Spanned<String>,
    address: Spanned<String>,
    interface: Spanned<String>,
    edge_port: Option<Spanned<String>>,
    mac: Option<Spanned<String>>,
    public_keys: RawKeys,
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
    state_dirs: Option<Spanned<Vec<Spanned<PathBuf>>>>,
    ring_bytes: Option<Spanned<u64>>,
    aslr: Option<bool>,
    trap_tsc: Option<bool>,
    run: Option<Spanned<Run>>,
}

pub(super) fn check(findings: &mut Findings, mut raw: RawReplicated) -> Replicated {
    let folder = findings.path.parent().unwrap_or(Path::new("")).to_owned();
    let segment_at = raw.segment.as_ref().map(Spanned::span);
    let has_segment = segment_at.is_some();
    let wants_port = wants_port(raw.edge.is_some(), has_segment);
    let ports_at: Vec<_> = raw.member.iter().map(|it| it.get_ref().address.span()).collect();
    let members = check_members(findings, raw.member, wants_port);
    let tables = RawFront { edge: raw.edge, segment: raw.segment, arbiter: raw.arbiter };
    let front = front::check(findings, tables, &members, raw.group.name.get_ref(), &folder);
    let mut hosts: Vec<(IpAddr, &str)> = front.hosts();
    hosts.extend(members.iter().map(|it| (it.address.ip(), it.name.as_str())));
    let state_dirs = raw.server.state_dirs.take();
    let group = check_group(findings, raw.group, has_segment, &hosts, &folder);
    if group.channel == ChannelWay::Coded {
        check_coded_ports(findings, &members, ports_at);
    }
    let keeps = group.mode == Mode::Cold || group.rebuild;
    if let Some(at) = segment_at.filter(|_| keeps) {
        findings.add(
            at,
            "a group without an edge is hot, and does not rebuild its server",
            "remove mode = \"cold\" and rebuild from [group], or put an edge before the members",
        );
    }
    if let (true, Some(raw)) = (has_segment, &raw.recover) {
        let message = "[recover] means nothing where no edge stands before the members";
        findings.add(
            raw.span(),
            message,
            "remove it: both members get clients' packets themselves",
        );
    }
    let cold = cold::check(findings, keeps, raw.cold, &group.name, &folder);
    let mut server = check_server(findings, raw.server, &folder);
    let program = server.command.first().map_or("", String::as_str);
    let mut kept = vec![
        Kept { path: findings.path, what: "this file" },
        Kept { path: &group.key_file, what: "the key" },
        Kept { path: &group.run_dir, what: "run_dir" },
        Kept { path: Path::new(program), what: "the program" },
    ];
    let edge = front.edge.as_ref();
    kept.extend(edge.map(|edge| Kept { path: &edge.state_file, what: "state_file" }));
    kept.extend(cold.as_ref().map(|cold| Kept { path: &cold.spool_dir, what: "spool_dir" }));
    kept.extend(server.log.as_deref().map(|path| Kept { path, what: "the log" }));
    server.state_dirs = state_dirs::check(findings, state_dirs, &kept);
    let mut taken: Vec<(SocketAddr, &str)> =
        group.services.iter().map(|at| (*at, "a service")).collect();
    taken.extend(members.iter().map(|it| (it.address, "a member's channel")));
    taken.extend(edge.iter().map(|edge| (edge.listen, "the edge's channel")));
    let [metrics, page] = check_listens(findings, [raw.metrics, raw.page], &taken);
    let Front { edge, segment, arbiter } = front;
    Replicated {
        group,
        edge,
        segment,
        arbiter,
        server,
        recover: (!has_segment).then(|| {
            let standard = Recover::standard(Policy::Syn, Start::Always);
            check_recover(findings, raw.recover.map(Spanned::into_inner), standard)
        }),
        members,
        cold,
        hooks: check_hooks(findings, raw.hooks),
        metrics,
        page,
    }
}

/// A coded channel needs the port two above each member's own; `ports_at` are where those stand.
fn check_coded_ports(findings: &mut Findings, members: &[Member], ports_at: Vec<Range<usize>>) {
    let ports = members.iter().map(|member| member.address.port());
    for (port, at) in ports.zip(ports_at).filter(|(port, _)| *port > CODED_PORT_MAX) {
        findings.add(
            at,
            format!("port {port} leaves none two above it for the coded channel"),
            format!("choose one up to {CODED_PORT_MAX}"),
        );
    }
}

/// Whether members must have ports of an edge, or must not. Where the file has both, that is one
/// mistake, and not one for each member.
fn wants_port(has_edge: bool, has_segment: bool) -> Option<bool> {
    if has_edge && has_segment { None } else { Some(!has_segment) }
}

/// Checks the group; `hosts` are addresses that already belong to a host.
fn check_group(
    findings: &mut Findings,
    raw: RawGroup,
    has_segment: bool,
    hosts: &[(IpAddr, &str)],
    folder: &Path,
) -> Group {
    check_kind(findings, raw.kind.as_ref(), Kind::Replicated);
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
    let pace = Pace { default: HEARTBEAT_MS_DEFAULT, is_leased: has_segment };
    let heartbeat_ms = check_heartbeat(findings, raw.heartbeat_ms, pace);
    let connections_max = number(
        findings,
        "connections_max",
        raw.connections_max,
        CONNECTIONS_MAX_DEFAULT,
        CONNECTIONS_MAX,
        "connections",
    );
    let rejoin_max =
        number(findings, "rejoin_max", raw.rejoin_max, REJOIN_MAX_DEFAULT, REJOIN_MAX, "times");
    let alone_after_s = number(
        findings,
        "alone_after_s",
        raw.alone_after_s,
        ALONE_AFTER_S_DEFAULT,
        ALONE_AFTER_S,
        "seconds",
    );
    let channel = raw.channel.unwrap_or_default();
    let name = raw.name.into_inner();
    Group {
        key_file: check_key_file(findings, raw.key_file, folder),
        services,
        run_dir: run_dir(raw.run_dir, folder, &name),
        events: check_events(findings, raw.events_dir, raw.events_max_kb, folder),
        heartbeat_ms,
        connections_max: connections_max as u32,
        rejoin_max: rejoin_max as u32,
        alone_after_s,
        mode: raw.mode.unwrap_or_default(),
        rebuild: raw.rebuild.unwrap_or(false),
        buffering: raw.buffering.unwrap_or_default(),
        realtime: raw.realtime.unwrap_or(true),
        share_cpu: raw.share_cpu.unwrap_or(true),
        direct: check_direct(findings, raw.direct, channel),
        channel,
        watchers: check_watchers(findings, raw.watchers),
        name,
    }
}

/// What a server's threads send themselves does not go the members' channel's way.
fn check_direct(
    findings: &mut Findings,
    direct: Option<Spanned<bool>>,
    channel: ChannelWay,
) -> bool {
    let Some(direct) = direct.filter(|it| *it.get_ref()) else { return false };
    if channel == ChannelWay::Coded {
        findings.add(
            direct.span(),
            "direct = true sends commits past the coded channel",
            "remove it, or channel = \"coded\": what is lost on the short way waits for the other one",
        );
    }
    true
}

/// Checks a service address, which belongs to no host: whichever member is
/// current has it.
fn check_service(
    findings: &mut Findings,
    spanned: &Spanned<String>,
    ip: IpAddr,
    hosts: &[(IpAddr, &str)],
) {
    // RFC 3927 §2.7
    if matches!(ip, IpAddr::V4(ip) if ip.is_link_local()) {
        findings.add(
            spanned.span(),
            format!("{ip} is an address of one link, which no router forwards"),
            "give the service an address that clients reach through the edge",
        );
    }
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

/// Checks the members; `wants_port` says whether each must have a port of the edge, or must not.
fn check_members(
    findings: &mut Findings,
    raw: Vec<Spanned<RawMember>>,
    wants_port: Option<bool>,
) -> Vec<Member> {
    if raw.len() != 2 {
        let at = raw.get(2).or(raw.first()).map_or(0..0, Spanned::span);
        findings.add(
            at,
            format!("the group has {}", counted(raw.len() as u64, "member")),
            "exactly two [[member]] sections: one backup per group for now",
        );
    }
    let mut members: Vec<Member> = Vec::new();
    for spanned in raw {
        let span = spanned.span();
        let member = check_member(findings, &span, spanned.into_inner(), wants_port);
        // What is no address has been told.
        let is_address = !member.address.ip().is_unspecified();
        for other in &members {
            let ports = other.port.as_ref().zip(member.port.as_ref());
            let same = [
                ("name", other.name == member.name),
                ("address", is_address && other.address.ip() == member.address.ip()),
                ("edge_port", ports.is_some_and(|(one, two)| one.edge_port == two.edge_port)),
                ("mac", ports.is_some_and(|(one, two)| one.mac == two.mac)),
            ];
            let names = ["members", &other.name, &member.name];
            let remedy = match wants_port {
                Some(true) => "members are different hosts, each behind its own port of the edge",
                _ => "members are different hosts",
            };
            findings.add_twins(&span, names, &same, remedy);
        }
        members.push(member);
    }
    members
}

fn check_member(
    findings: &mut Findings,
    span: &Range<usize>,
    raw: RawMember,
    wants_port: Option<bool>,
) -> Member {
    check_name(findings, &raw.name);
    if ["edge", "witness"].contains(&raw.name.get_ref().as_str()) {
        findings.add(
            raw.name.span(),
            format!("a member cannot be called `{}`", raw.name.get_ref()),
            "that is the role of another host; choose another name",
        );
    }
    check_interface(findings, &raw.interface);
    let port = match wants_port {
        Some(false) => no_port(findings, raw.edge_port, raw.mac),
        Some(true) => check_port(findings, span, raw.edge_port, raw.mac),
        None => None,
    };
    Member {
        address: check_address(findings, &raw.address).unwrap_or_else(unspecified),
        name: raw.name.into_inner(),
        interface: raw.interface.into_inner(),
        port,
        public_keys: check_keys(findings, raw.public_keys),
    }
}

/// Refuses what only an edge would need.
fn no_port(
    findings: &mut Findings,
    edge_port: Option<Spanned<String>>,
    mac: Option<Spanned<String>>,
) -> Option<Port> {
    for (written, key) in [(edge_port, "edge_port"), (mac, "mac")] {
        if let Some(written) = written {
            let message = format!("{key} means nothing where no edge stands before the members");
            findings.add(written.span(), message, "remove it");
        }
    }
    None
}

fn check_port(
    findings: &mut Findings,
    span: &Range<usize>,
    edge_port: Option<Spanned<String>>,
    mac: Option<Spanned<String>>,
) -> Option<Port> {
    for (is_there, key) in [(edge_port.is_some(), "edge_port"), (mac.is_some(), "mac")] {
        if !is_there {
            findings.add(span.clone(), format!("`{key}` is missing"), example(key));
        }
    }
    let (edge_port, written) = (edge_port?, mac?);
    check_interface(findings, &edge_port);
    let mac: Result<Mac, &str> = written.get_ref().parse();
    let wrong = |remedy: &str| {
        let message = format!("mac = \"{}\" is not a hardware address", written.get_ref());
        findings.add(written.span(), message, remedy);
    };
    // None, so that nobody compares it with the other member's.
    let mac = mac.map_err(wrong).ok()?;
    Some(Port { edge_port: edge_port.into_inner(), mac })
}

/// Checks the command and the variables that the server gets besides.
fn check_start(findings: &mut Findings, raw: &RawServer) {
    let command = raw.command.get_ref();
    if command.first().is_none_or(String::is_empty) {
        findings.add(raw.command.span(), "command is empty", "give the program and its arguments: command = [\"/usr/bin/redis-server\", \"--save\", \"\"]");
    }
    let has_nul = |text: &String| text.contains('\0');
    if command.iter().any(has_nul) {
        let message = "command has a word with a zero byte";
        findings.add(raw.command.span(), message, "leave it out: no program can be given one");
    }
    for (key, value) in &raw.env {
        let name = key.get_ref();
        if name.is_empty() || name.contains('=') || has_nul(name) {
            let message = format!("`{name}` cannot name an environment variable");
            findings.add(key.span(), message, "a name is not empty and has no `=`");
        } else if has_nul(value) {
            let message = format!("`{name}` has a value with a zero byte");
            findings.add(key.span(), message, "leave it out: no program can be given one");
        } else if OURS.contains(&name.as_str()) {
            let message = format!("`{name}` is set by Holdfast itself");
            let remedy = "leave it out: Holdfast's own library is preloaded, and what another one \
                          does in the server is not logged";
            findings.add(key.span(), message, remedy);
        }
    }
}

fn check_server(findings: &mut Findings, raw: RawServer, folder: &Path) -> Server {
    check_start(findings, &raw);
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
        state_dirs: Vec::new(),
        ring_bytes,
        aslr: raw.aslr.unwrap_or(false),
        trap_tsc: raw.trap_tsc.unwrap_or(false),
        run: raw.run.map(Spanned::into_inner).unwrap_or_default(),
    }
}
