//! What daemons leave in a host, by design or because they were killed, and its
//! removal: by a member's next life, by its orderly end, and by `holdfast down`.

use crate::config::spread::{SpreadConfig, SpreadEdge};
use crate::config::transit::TransitConfig;
use crate::config::{Config, GroupFile, Mac, Member, Role, Server, pin_dir};
use crate::daemon::coded;
use crate::fingerprint;
use crate::lock;
use anyhow::{Context as _, Result};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{
    Detached, Edge, Gate, HostEnd, Left, Redirect, Speak, TapDrop, Transit, remove_pin_dir,
    remove_qdiscs,
};
use holdfast_linux::clock::monotonic;
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::filter;
use holdfast_linux::link::Link;
use holdfast_linux::process;
use holdfast_linux::route::table;
use holdfast_linux::snapshot::free_bytes;
use holdfast_linux::spawn::Standard;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::mapped;
use serde::Serialize;
use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the end of all killed processes; only a disk that does not answer
/// delays one for longer.
const KILLED_MAX: Duration = Duration::from_secs(30);

/// Something that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    pub kind: Kind,
    /// Its name, as `tc`, `ip`, `mount` or `ps` shows it.
    pub what: String,
}

/// The kinds of things that daemons leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tc filter.
    Filter,
    /// The qdisc that filters hung from.
    Qdisc,
    /// A service address of this host.
    Address,
    /// A mounted BPF file system with pinned programs and maps.
    Mount,
    /// A server whose daemon has died.
    Process,
    /// Connections of a server that is gone.
    Sockets,
    /// A file of `run_dir`.
    File,
}

/// The program that a member's new role has just attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Gate,
    TapDrop,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Filter => "tc filter",
            Kind::Qdisc => "qdisc clsact of",
            Kind::Address => "address",
            Kind::Mount => "BPF file system",
            Kind::Process => "server process",
            Kind::Sockets => "connections of a dead server:",
            Kind::File => "file",
        };
        write!(f, "{kind} {}", self.what)
    }
}

/// What an earlier daemon has left that had these objects of `bpf/`, also what only its file named:
/// to be looked for before new programs take the place of its pins, by which it is found.
#[must_use]
pub fn earlier(objects: &[&str], pins: &Path) -> Left {
    Left::find(objects, pins).unwrap_or_else(|error| {
        tracing::warn!("what an earlier daemon may have left is not known: {error}");
        Left::default()
    })
}

/// Removes what an earlier life of a member has left and its new role does not
/// need. The new role's own program is attached by now, in place of an earlier
/// one, so that nothing slips through in between.
///
/// # Errors
/// When something that would harm the service cannot be removed.
pub fn remove_earlier_life(
    config: &Config,
    me: &Member,
    own: Own,
    left: &Left,
) -> Result<Vec<Removed>> {
    let run_dir = &config.group.run_dir;
    let pins = pin_dir(run_dir, &me.name);
    // First, so that their clients hear of it if the edge lets this member speak.
    let mut removed: Vec<Removed> = sockets(config).into_iter().collect();
    removed.extend(addresses(&me.interface, &config.service_ips())?);
    removed.extend(addresses_left(left, &me.interface)?);
    removed.extend(filters(left.detach_elsewhere(&me.interface)?));
    // A backup has a gate too, which takes the place of an earlier one.
    if own == Own::Gate {
        removed.extend(filters(TapDrop::detach_stale(&me.interface, &config.served(), &pins)?));
    }
    removed.extend(old_layout(run_dir, &me.name)?);
    Ok(removed)
}

/// Removes everything that a member's daemons have put into this host.
///
/// # Errors
/// When something cannot be removed.
pub fn remove_member(config: &Config, me: &Member) -> Result<Vec<Removed>> {
    remove_member_and(config, me, &Left::default())
}

/// As [`remove_member`], with what was found of earlier files.
fn remove_member_and(config: &Config, me: &Member, left: &Left) -> Result<Vec<Removed>> {
    let run_dir = &config.group.run_dir;
    let pins = pin_dir(run_dir, &me.name);
    let mut removed = orphan(run_dir, &me.name, server_user(&config.server))?;
    removed.extend(sockets(config));
    // Without an address the kernel sends nothing for the service, whatever is
    // left of its sockets: now nothing needs to be held back any more.
    removed.extend(addresses(&me.interface, &config.service_ips())?);
    removed.extend(addresses_left(left, &me.interface)?);
    removed.extend(filters(Gate::detach_stale(&me.interface, &config.served(), &pins)?));
    removed.extend(filters(TapDrop::detach_stale(&me.interface, &config.served(), &pins)?));
    removed.extend(filters(Speak::detach_stale(&me.interface, &config.served(), &pins)?));
    if let Some(segment) = &config.segment {
        removed.extend(frames_to(segment.mac, &me.interface)?);
    }
    removed.extend(filters(left.detach()?));
    removed.extend(old_layout(run_dir, &me.name)?);
    removed.extend(channel_files(run_dir, &me.name)?);
    removed.extend(kernel_objects(&pins)?);
    Ok(removed)
}

/// Removes the files of the tunnel that carried the members' channel, of a daemon that was killed.
fn channel_files(run_dir: &Path, name: &str) -> Result<Option<Removed>> {
    let folder = coded::folder(run_dir, name);
    match std::fs::remove_dir_all(&folder) {
        Ok(()) => Ok(Some(Removed { kind: Kind::File, what: folder.display().to_string() })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", folder.display())),
    }
}

/// Has the interface take no more frames to a hardware address that no host has.
fn frames_to(mac: Mac, interface: &str) -> Result<Option<Removed>> {
    let Ok(link) = Link::by_name(interface) else { return Ok(None) };
    let was_there = filter::leave_frames(link.index, mac.0)?;
    let what = format!("{mac} of {interface}");
    Ok(was_there.then_some(Removed { kind: Kind::Address, what }))
}

/// Removes everything that the daemons of a role have put into this host, also what they were told
/// by an earlier file: programs are found by their pins, at every interface, and addresses by the
/// programs' maps.
///
/// # Errors
/// When something cannot be removed, or there is no such role.
pub fn remove_all(file: &GroupFile, role: &str) -> Result<Vec<Removed>> {
    match file {
        GroupFile::Replicated(config) => match config.role(role).map_err(anyhow::Error::msg)? {
            Role::Edge => edge(config),
            Role::Witness => Ok(Vec::new()),
            Role::Member(index) => {
                let me = config.members.get(index).context("no such member")?;
                let pins = pin_dir(&config.group.run_dir, &me.name);
                let left = Left::find(&["gate", "tapdrop", "speak"], &pins)?;
                remove_member_and(config, me, &left)
            }
        },
        GroupFile::Spread(config) => spread(config, role),
        GroupFile::Transit(config) => transit(config, role),
    }
}

fn edge(config: &Config) -> Result<Vec<Removed>> {
    let pins = config.pin_dir(Role::Edge);
    let ports = config.ports().map(|port| &port.edge_port);
    let named = config.edge.iter().flat_map(|edge| edge.clients.iter().chain(&edge.l3));
    let interfaces: Vec<&str> = named.chain(ports).map(String::as_str).collect();
    let left = Left::find(&["edge"], &pins)?;
    let mut removed = filters(Edge::detach_stale(&interfaces, &config.served(), &pins)?);
    removed.extend(filters(left.detach()?));
    removed.extend(kernel_objects(&pins)?);
    Ok(removed)
}

fn spread(config: &SpreadConfig, role: &str) -> Result<Vec<Removed>> {
    let pins = config.pin_dir(role);
    let mut removed = if let Some(me) = config.edge(role) {
        let left = Left::find(&["redirect", "speak"], &pins)?;
        let mut removed = gateway(config, me, &left)?;
        let clients: Vec<&str> = me.clients.iter().map(String::as_str).collect();
        removed.extend(filters(Redirect::detach_stale(&clients, &config.group.name, &pins)?));
        removed.extend(filters(left.detach()?));
        removed.extend(routes(config)?);
        removed
    } else {
        let me = config.host(role).context("there is no such host in the file")?;
        let left = Left::find(&["host"], &pins)?;
        let mut removed = addresses("lo", &config.group.addresses)?;
        removed.extend(addresses("lo", &left.addresses().collect::<Vec<_>>())?);
        removed.extend(filters(HostEnd::detach_stale(&me.interface, &config.group.name, &pins)?));
        removed.extend(filters(left.detach()?));
        removed
    };
    removed.extend(kernel_objects(&pins)?);
    Ok(removed)
}

/// Removes the address that edges share from one of them, and what has its frames taken.
fn gateway(config: &SpreadConfig, me: &SpreadEdge, left: &Left) -> Result<Vec<Removed>> {
    let mut removed = Vec::new();
    for interface in &me.clients {
        removed.extend(addresses(interface, &config.clients.gateway)?);
        removed.extend(addresses_left(left, interface)?);
        removed.extend(frames_to(config.gateway_mac(), interface)?);
    }
    Ok(removed)
}

/// Takes the group's addresses out of the table from which a routing daemon announces them.
fn routes(config: &SpreadConfig) -> Result<Vec<Removed>> {
    let mut removed = Vec::new();
    let Some(number) = config.clients.routes_table else { return Ok(removed) };
    for ip in &config.group.addresses {
        if table::take(number, *ip)? {
            let what = format!("{ip} of table {number}");
            removed.push(Removed { kind: Kind::Address, what });
        }
    }
    Ok(removed)
}

fn transit(config: &TransitConfig, role: &str) -> Result<Vec<Removed>> {
    let side = config.side(role).context("no such role")?;
    let pins = config.pin_dir(side);
    let strings = config.strings.iter().map(|string| &string.end(side).interface);
    let interfaces: Vec<&str> =
        config.edge(side).outside.iter().chain(strings).map(String::as_str).collect();
    let left = Left::find(&["transit"], &pins)?;
    let mut removed = filters(Transit::detach_stale(&interfaces, &config.group.name, &pins)?);
    removed.extend(filters(left.detach()?));
    removed.extend(kernel_objects(&pins)?);
    Ok(removed)
}

/// Removes what an earlier daemon of a host server has left and the file names no more. The new
/// programs are attached by now.
///
/// # Errors
/// When it cannot be removed.
pub fn remove_earlier_host(config: &SpreadConfig, left: &Left) -> Result<Vec<Removed>> {
    let is_own = |ip: &IpAddr| config.group.addresses.contains(ip);
    let gone: Vec<IpAddr> = left.addresses().filter(|ip| !is_own(ip)).collect();
    Ok([addresses("lo", &gone)?, remove_earlier_edge(left)?].concat())
}

/// Removes the programs of an edge's earlier daemon at interfaces that the file names no more. At
/// all others new ones have taken their place by now.
///
/// # Errors
/// When they cannot be removed.
pub fn remove_earlier_edge(left: &Left) -> Result<Vec<Removed>> {
    Ok(filters(left.detach()?))
}

/// The same for an edge of a spread group, with addresses that edges shared.
///
/// # Errors
/// When they cannot be removed.
pub fn remove_earlier_spread_edge(
    config: &SpreadConfig,
    me: &SpreadEdge,
    left: &Left,
) -> Result<Vec<Removed>> {
    let is_shared = |ip: &IpAddr| config.clients.gateway.contains(ip);
    let gone: Vec<IpAddr> = left.addresses().filter(|ip| !is_shared(ip)).collect();
    let is_here = |interface: &&str| me.clients.iter().any(|own| own == interface);
    let all: Vec<IpAddr> = left.addresses().collect();
    let mut removed = Vec::new();
    for interface in left.interfaces().filter(|it| !is_here(it)) {
        removed.extend(addresses(interface, &all)?);
        removed.extend(frames_to(config.gateway_mac(), interface)?);
    }
    for interface in &me.clients {
        removed.extend(addresses(interface, &gone)?);
        if config.clients.gateway.is_empty() {
            removed.extend(frames_to(config.gateway_mac(), interface)?);
            let pins = config.pin_dir(&me.name);
            removed.extend(filters(Speak::detach_stale(interface, &[], &pins)?));
        }
    }
    removed.extend(remove_earlier_edge(left)?);
    Ok(removed)
}

/// Removes service addresses that earlier files of a member named, from the interface of this one
/// and from theirs.
fn addresses_left(left: &Left, interface: &str) -> Result<Vec<Removed>> {
    let ips: Vec<IpAddr> = left.addresses().collect();
    let others = left.interfaces().filter(|other| *other != interface);
    let mut removed = addresses(interface, &ips)?;
    for other in others {
        removed.extend(addresses(other, &ips)?);
    }
    Ok(removed)
}

fn filters(detached: Vec<Detached>) -> Vec<Removed> {
    let of = |filter: Detached| Removed { kind: Kind::Filter, what: filter.to_string() };
    detached.into_iter().map(of).collect()
}

fn addresses(interface: &str, ips: &[IpAddr]) -> Result<Vec<Removed>> {
    // An interface that is gone has no addresses.
    let Ok(link) = Link::by_name(interface) else { return Ok(Vec::new()) };
    let mut socket = AddressSocket::open()?;
    let mut removed = Vec::new();
    for ip in ips {
        if socket.remove(link.index, &mapped(*ip))? {
            removed.push(Removed { kind: Kind::Address, what: format!("{ip} of {interface}") });
        }
    }
    Ok(removed)
}

/// Removes connections that the kernel is still closing for a server that is gone: a
/// client that comes from the same port would meet them, and so would a promotion.
fn sockets(config: &Config) -> Option<Removed> {
    let ips: Vec<[u8; 16]> = config.service_ips().into_iter().map(mapped).collect();
    let ended =
        DiagSocket::open().and_then(|mut diag| diag.destroy_own(&ips, &config.service_ports()));
    match ended {
        Ok(0) => None,
        Ok(count) => Some(Removed { kind: Kind::Sockets, what: count.to_string() }),
        Err(error) => {
            // They end by themselves, within minutes.
            tracing::warn!("connections of an earlier server stay for a while: {error}");
            None
        }
    }
}

/// Removes qdiscs that were made for filters, and the file system with the
/// pins.
fn kernel_objects(pins: &Path) -> Result<Vec<Removed>> {
    let qdisc = |what| Removed { kind: Kind::Qdisc, what };
    let mut removed: Vec<Removed> = remove_qdiscs(pins).into_iter().map(qdisc).collect();
    if remove_pin_dir(pins)? {
        removed.push(Removed { kind: Kind::Mount, what: pins.display().to_string() });
    }
    Ok(removed)
}

/// Removes an older layout: members pinned in `bpf/NAME` of `run_dir`.
fn old_layout(run_dir: &Path, name: &str) -> Result<Vec<Removed>> {
    let folder = run_dir.join("bpf");
    let pins = folder.join(name);
    let mut removed = Vec::new();
    if remove_pin_dir(&pins)? {
        removed.push(Removed { kind: Kind::Mount, what: pins.display().to_string() });
    }
    // Another member may live in the same directory.
    let _not_empty = std::fs::remove_dir(folder);
    Ok(removed)
}

/// The user that a server runs as, if one is named.
#[must_use]
pub fn server_user(server: &Server) -> Option<u32> {
    server.user.as_deref().and_then(|name| fingerprint::user_ids(name).ok()).map(|(user, _)| user)
}

/// The file with the number of a member's server.
fn server_file(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.server"))
}

/// Name of the memory that a member's server shares with its daemon. Another root's
/// `run_dir` is another directory, even if its path is the same.
///
/// # Errors
/// When `run_dir` does not exist.
pub fn mark(run_dir: &Path, name: &str) -> Result<String> {
    let found = std::fs::metadata(run_dir);
    let found = found.with_context(|| format!("cannot look at {}", run_dir.display()))?;
    let (device, number) = lock::place(&found);
    Ok(format!("holdfast {name} {device}:{number}"))
}

/// Notes the server's process, and its standard input, output and error: if its daemon
/// dies and the server lives on, it is found by this.
///
/// # Errors
/// When the file cannot be written.
pub fn note_server(run_dir: &Path, name: &str, pid: u32, standard: &Standard) -> Result<()> {
    let path = server_file(run_dir, name);
    let written = process::started(pid).and_then(|started| {
        let mut text = format!("{pid} {started}\n");
        for (file, line) in standard.iter().zip(STANDARD) {
            let file = file.as_deref().unwrap_or(Path::new(""));
            text.push_str(&format!("{line}{}\n", file.display()));
        }
        std::fs::write(&path, text)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Tries whether there is room for that note, and for what a daemon writes beside it.
///
/// # Errors
/// When there is not.
pub fn try_room(run_dir: &Path, name: &str) -> Result<()> {
    let path = run_dir.join(format!("{name}.try"));
    let written = std::fs::write(&path, [0; NOTES_BYTES]);
    let _absent = std::fs::remove_file(&path);
    written.with_context(|| format!("cannot write into {}", run_dir.display()))
}

/// Why there is no room for that note. Where the file system says that there is, nothing is written:
/// this may be asked as often as one likes.
#[must_use]
pub fn lacks_room(run_dir: &Path, name: &str) -> Option<String> {
    // One that is kept for root alone, or that counts nothing, has to be tried.
    if free_bytes(run_dir).is_ok_and(|free| free >= NOTES_BYTES as u64) {
        return None;
    }
    try_room(run_dir, name).err().map(|error| format!("{error:#}"))
}

/// Room that a daemon's notes need, in bytes.
const NOTES_BYTES: usize = 16 << 10;

/// Words before what a server was given, one line each.
const STANDARD: [&str; 3] = ["stdin ", "stdout ", "stderr "];

/// Word behind the number of a server that no daemon's death ends any more.
const LOOSE: &str = "loose";

/// Notes that the server speaks alone and outlives its daemon: the next one leaves
/// it alone, too.
///
/// # Errors
/// When the file cannot be written.
pub fn note_loose(run_dir: &Path, name: &str) -> Result<()> {
    note_more(run_dir, name, &[LOOSE.to_owned()])
}

/// Word before a connection of which a takeover does not know whether its client knows of it.
const UNANSWERED: &str = "unanswered ";

/// Notes connections that a takeover has rebuilt from handshakes, and whose clients have not been
/// heard by now: they are ended soon, by a later daemon if this one dies before. There is nothing
/// to take back: who is heard meanwhile is known by that.
///
/// # Errors
/// When the file cannot be written.
pub fn note_unanswered(run_dir: &Path, name: &str, keys: &[ConnKey]) -> Result<()> {
    let since_ms = monotonic().as_millis();
    let lines: Vec<_> = keys.iter().map(|key| format!("{UNANSWERED}{since_ms} {key}")).collect();
    note_more(run_dir, name, &lines)
}

/// Appends lines to a member's server file.
fn note_more(run_dir: &Path, name: &str, lines: &[String]) -> Result<()> {
    use std::io::Write as _;
    let path = server_file(run_dir, name);
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    let opened = std::fs::File::options().append(true).open(&path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// A server that spoke alone when its daemon died, and still runs.
pub struct Survivor {
    pub pid: u32,
    /// Becomes readable when it ends.
    pub process: OwnedFd,
    /// What its daemon gave it.
    pub standard: Standard,
    /// Connections that were noted ([`note_unanswered`]), with the time of the note.
    pub unanswered: Vec<(Duration, ConnKey)>,
}

/// The server that spoke alone when this member's daemon died.
#[must_use]
pub fn survivor(run_dir: &Path, name: &str) -> Option<Survivor> {
    let text = std::fs::read_to_string(server_file(run_dir, name)).ok()?;
    let pid = noted(&text).filter(|_| text.lines().any(|line| line == LOOSE))?;
    let process = process::pidfd_open(pid).ok()?;
    // Opened first, so that the number cannot be reused meanwhile.
    let lives = noted(&text).is_some() && !process::poll_in(process.as_fd(), 0).ok()?;
    let line = |begins: &str| text.lines().find_map(|line| line.strip_prefix(begins));
    let standard = STANDARD.map(|begins| line(begins).filter(|it| !it.is_empty()).map(Into::into));
    let unanswered = text.lines().filter_map(unanswered).collect();
    lives.then_some(Survivor { pid, process, standard, unanswered })
}

/// A connection that a line of the server file notes, and when it was noted.
fn unanswered(line: &str) -> Option<(Duration, ConnKey)> {
    let (since_ms, key) = line.strip_prefix(UNANSWERED)?.split_once(' ')?;
    Some((Duration::from_millis(since_ms.parse().ok()?), key.parse().ok()?))
}

/// The process that a server file names, if it is still the same one.
fn noted(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let (pid, started) = (words.next()?.ok()?, words.next()?.ok()?);
    let pid = u32::try_from(pid).ok()?;
    process::started(pid).is_ok_and(|found| found == started).then_some(pid)
}

/// Notes that the server is gone.
pub fn forget_server(run_dir: &Path, name: &str) {
    let _absent = std::fs::remove_file(server_file(run_dir, name));
}

/// The processes of a member's server, whether its daemon lives or not. Of those that map
/// its servers' memory, only those that run as `user`: a server may hand that memory on, or
/// make some of that name, and must not be able to end other processes by it.
#[must_use]
pub fn servers(run_dir: &Path, name: &str, user: Option<u32>) -> Vec<u32> {
    let named = std::fs::read_to_string(server_file(run_dir, name)).ok();
    let named = named.and_then(|text| noted(&text));
    // If there is no directory, there was no daemon.
    let marked = mark(run_dir, name).map(|mark| process::holders(&mark)).unwrap_or_default();
    let own = |pid: &u32| user.is_none_or(|user| process::user_of(*pid).is_ok_and(|it| it == user));
    let marked = marked.into_iter().filter(own);
    named.into_iter().chain(marked).flat_map(process::family).collect()
}

/// Kills a server that has outlived its daemon, with all its children: even if its
/// file is damaged or gone, and even what it has put into the background.
///
/// # Errors
/// When it does not die.
pub fn orphan(run_dir: &Path, name: &str, user: Option<u32>) -> Result<Vec<Removed>> {
    let (path, found) = (server_file(run_dir, name), servers(run_dir, name, user));
    let mut removed: Vec<Removed> = Vec::new();
    let until = Instant::now() + KILLED_MAX;
    for pid in found {
        let what = pid.to_string();
        if removed.iter().any(|known| known.what == what) {
            continue;
        }
        kill(pid, until)
            .with_context(|| format!("the server {pid} of an earlier life lives on"))?;
        removed.push(Removed { kind: Kind::Process, what });
    }
    // Anything else in the file names no process of ours.
    let _absent = std::fs::remove_file(&path);
    Ok(removed)
}

fn kill(pid: u32, until: Instant) -> std::io::Result<()> {
    let Ok(process) = process::pidfd_open(pid) else { return Ok(()) };
    // A process that has just ended needs no signal.
    let _ended = process::signal(process.as_fd(), libc::SIGKILL);
    let left = until.saturating_duration_since(Instant::now());
    match process::poll_in(process.as_fd(), left.as_millis() as i32)? {
        true => Ok(()),
        false => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests;
