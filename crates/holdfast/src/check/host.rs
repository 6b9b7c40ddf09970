//! What the configuration says about this host, compared with what is there.

use super::settings::{self, read};
use super::{Finding, arbiter, ports, ways};
use crate::config::{self, Arbiter, ChannelWay, Config, ConfigErrors, Mac, Member, Role, pin_dir};
use crate::daemon::coded;
use crate::daemon::edge_state::StateFile;
use crate::fingerprint::{self, Fingerprint};
use crate::init::facts::Network;
use crate::key::Keyring;
use crate::open_files;
use crate::spool;
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{BpfError, Edge, Gate, OTHER_GROUP_REMEDY, TapDrop};
use holdfast_linux::limits;
use holdfast_linux::link::{Link, carries};
use holdfast_linux::networks::{self, OwnAddress};
use holdfast_wire::packet::mapped;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

pub(super) fn findings(config: &Config, role: Role) -> Vec<Finding> {
    let is_coded = config.group.channel == ChannelWay::Coded;
    let mut findings = vec![key(config.keyring(config.role_name(role)), &config.group.key_file)];
    findings.push(run_dir(&config.group.run_dir));
    match role {
        Role::Edge => {
            if let Some(named) = &config.edge {
                edge(config, named, &mut findings);
            }
        }
        Role::Witness => {
            if let Some(at) = config.arbiter.as_ref().and_then(Arbiter::witness) {
                findings.push(local("arbiter.witness", at.ip()));
                findings.extend(arbiter::state_dir(config));
            }
        }
        Role::Member(index) => {
            if let Some(member) = config.members.get(index) {
                self::member(config, member, &mut findings);
            }
            if let Some((what, remedy)) = coded::lacks().filter(|_| is_coded) {
                findings.push(Finding::fail("channel", what, remedy));
            }
        }
    }
    findings.extend(ports::of_pair(config, role));
    findings
}

pub(super) fn key(loaded: Result<Keyring, ConfigErrors>, file: &Path) -> Finding {
    match loaded {
        Ok(_) => Finding::ok("key", file.display().to_string()),
        Err(errors) => {
            let error = errors.0.into_iter().next();
            let (found, remedy) = error.map(|e| (e.message, e.remedy)).unwrap_or_default();
            Finding::fail("key", found, remedy)
        }
    }
}

/// Checks the folder: anybody who may write there could answer in the daemon's
/// place.
pub(super) fn run_dir(folder: &Path) -> Finding {
    match crate::run_dir::trouble(folder) {
        None => Finding::ok("run_dir", folder.display().to_string()),
        Some((found, remedy)) => Finding::fail("run_dir", found, remedy),
    }
}

fn edge(config: &Config, edge: &config::Edge, findings: &mut Vec<Finding>) {
    let ports = || config.ports().map(|port| &port.edge_port);
    for interface in edge.clients.iter().chain(edge.l3.as_ref()).chain(ports()) {
        findings.push(self::interface("interface", interface, None));
    }
    let pins = config.pin_dir(Role::Edge);
    let places: Vec<&str> = edge.clients.iter().chain(ports()).map(String::as_str).collect();
    findings.extend(others(Edge::is_free(&places, &config.served(), &pins)));
    findings.push(local("edge.listen", edge.listen.ip()));
    findings.extend(networks_of(&config.group.services, None));
    findings.extend(ways::forwarding(config));
    findings.push(lasting(&edge.state_file));
}

fn member(config: &Config, member: &Member, findings: &mut Vec<Finding>) {
    let mac = member.port.as_ref().map(|port| port.mac.to_string());
    findings.push(interface("interface", &member.interface, mac.as_deref()));
    let (served, pins) = (config.served(), pin_dir(&config.group.run_dir, &member.name));
    let gate = Gate::is_free(&member.interface, &served, &pins);
    let free = gate.and_then(|()| TapDrop::is_free(&member.interface, &served, &pins));
    findings.extend(others(free));
    findings.push(local("address", member.address.ip()));
    if config.edge.is_none() {
        findings.extend(networks_of(&config.group.services, Some(&member.interface)));
    }
    findings.extend(ways::return_paths(config, member));
    findings.extend(to_start(config));
    findings.extend(super::program::findings(&config.server));
    findings.extend(config.cold.as_ref().map(|cold| spool(&cold.spool_dir)));
    findings.extend(arbiter::state_dir(config));
    findings.extend(arbiter::etcd(config));
    findings.extend(arbiter::alone(config, member));
    findings.push(same_fingerprint(config, member));
}

/// Checks that clients' router finds the services by itself: in a network of the interface, or of any.
fn networks_of(services: &[SocketAddr], interface: Option<&str>) -> Option<Finding> {
    outside(&networks::own().ok()?, services, interface)
}

fn outside(
    own: &[OwnAddress],
    services: &[SocketAddr],
    interface: Option<&str>,
) -> Option<Finding> {
    let own = || own.iter().filter(|it| interface.is_none_or(|name| it.interface == name));
    let networks = || own().map(|it| Network { address: it.address, prefix: it.prefix });
    let is_in = |service: &&SocketAddr| networks().any(|it| it.has(service.ip()));
    let service = services.iter().find(|it| !is_in(it))?;
    let of = interface.unwrap_or("this host");
    // Where the interface has no address, another line says so.
    own().next()?;
    Some(Finding::warn(
        "service",
        format!("{} is in no network of {of}", service.ip()),
        "is it right in the file? if so, the clients' router needs a route to it by that network",
    ))
}

pub(super) fn interface(name: &'static str, interface: &str, mac: Option<&str>) -> Finding {
    // Of the kernel, as `run` does: /sys may be that of another network namespace.
    let carries = carries(interface).ok();
    let found = Link::by_name(interface).map(|link| Mac(link.mac).to_string());
    if let (Some(_), Ok(found)) = (carries, &found)
        && mac.is_some_and(|mac| mac != *found)
    {
        return Finding::fail(
            name,
            format!("{interface} has the hardware address {found}"),
            "write that address as this member's `mac`, in the file of every host",
        );
    }
    match ways::link_trouble(interface, carries) {
        Some((trouble, remedy)) => Finding::fail(name, trouble, remedy),
        None => Finding::ok(name, format!("{interface} ({})", found.unwrap_or_default())),
    }
}

/// An interface that another group has: `run` refuses it by the same words.
pub(super) fn others(free: Result<(), BpfError>) -> Option<Finding> {
    match free {
        Err(BpfError::OtherGroup(other)) => {
            Some(Finding::fail("interface", other.to_string(), OTHER_GROUP_REMEDY))
        }
        // What a kernel lacks that does not tell is named by its own line.
        _ => None,
    }
}

pub(super) fn local(name: &'static str, address: IpAddr) -> Finding {
    // A bind would not tell, where `ip_nonlocal_bind` allows it to any address.
    let asked = AddressSocket::open().map_err(io::Error::other);
    match asked.and_then(|mut socket| socket.is_local(&mapped(address))) {
        Ok(true) => Finding::ok(name, format!("{address} is an address of this host")),
        _ => Finding::fail(
            name,
            format!("{address} is not an address of this host"),
            "`ip address` lists them; choose another with --role if this is another host of the group",
        ),
    }
}

/// Checks that the file lasts: the epoch must survive a reboot.
fn lasting(file: &Path) -> Finding {
    let shown = file.display();
    match in_memory(file) {
        Some((point, kind)) => Finding::fail(
            "state_file",
            format!("{shown} lies on {point}, a {kind} that a reboot empties"),
            "choose a place on a disk: an edge that forgets its epoch could let two members speak",
        ),
        None => match StateFile::try_out(file) {
            Ok(()) => Finding::ok("state_file", format!("{shown} survives a reboot")),
            Err(error) => {
                let remedy = "name a file of the edge's own, on a disk, as edge.state_file";
                Finding::fail("state_file", error.to_string(), remedy)
            }
        },
    }
}

/// File systems that no disk has.
const IN_MEMORY: [&str; 7] = ["tmpfs", "ramfs", "devtmpfs", "proc", "sysfs", "cgroup2", "devpts"];

/// The mount point of a file that lies in memory, and the type of its file system.
pub(super) fn in_memory(file: &Path) -> Option<(String, String)> {
    let mounts = read("/proc/self/mounts");
    let parsed = mounts.lines().filter_map(|l| {
        let mut fields = l.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // Later mounts hide earlier ones, so the last of the longest counts.
    let under =
        parsed.filter(|(point, _)| file.starts_with(point)).max_by_key(|(point, _)| point.len());
    let (point, kind) = under.filter(|(_, kind)| IN_MEMORY.contains(kind))?;
    Some((point.to_owned(), kind.to_owned()))
}

/// Checks the folder where a cold backup keeps what it builds its server from.
fn spool(dir: &Path) -> Finding {
    const NAME: &str = "spool_dir";
    let shown = dir.display();
    let there = spool::standing(dir);
    if let Err(error) = spool::try_out(there) {
        let found = format!("no file can be made in {}: {error}", there.display());
        return Finding::fail(NAME, found, "choose a folder on a disk of this host");
    }
    match in_memory(dir) {
        Some((point, kind)) => Finding::warn(
            NAME,
            format!("{shown} lies on {point}, a {kind}: what is kept takes this host's memory"),
            "choose a place on a disk",
        ),
        None => Finding::ok(NAME, format!("{shown}")),
    }
}

/// Checks the limit that the daemon will have, if it is started like this
/// process.
fn open_files(config: &Config) -> Finding {
    let (name, need) = ("open files", open_files::needed(config));
    match limits::open_files() {
        Ok(limit) if limit.hard >= need => Finding::ok(name, format!("{} allowed", limit.hard)),
        Ok(limit) if settings::may_raise_limits() => {
            Finding::ok(name, format!("{} allowed, which the daemon raises to {need}", limit.hard))
        }
        Ok(limit) => Finding::fail(
            name,
            format!("{} allowed, connections_max needs {need}", limit.hard),
            open_files::remedy(config),
        ),
        Err(error) => Finding::fail(name, error.to_string(), open_files::remedy(config)),
    }
}

/// Checks what would stop the daemon from starting the server, and its limit of descriptors.
pub(crate) fn to_start(config: &Config) -> Vec<Finding> {
    let lacks = fingerprint::lacks(&config.server);
    let program = fingerprint::find_program(&config.server);
    let found = program.map(|path| Finding::ok("server", path.display().to_string()));
    let lacking = lacks.into_iter().map(|it| Finding::fail(it.key, it.what, it.remedy));
    [open_files(config)].into_iter().chain(found).chain(lacking).collect()
}

/// Shows what both members must have in common, as a number to compare by eye.
fn same_fingerprint(config: &Config, me: &Member) -> Finding {
    // The line about the key says what is wrong with it.
    let Ok(key) = config.keyring(&me.name) else {
        return Finding::fail("world", "cannot be told without the key", "see `key` above");
    };
    match Fingerprint::gather(config, key.with(&config.other(me).name).first()) {
        Ok(fingerprint) => Finding::ok("world", fingerprint.summary()),
        Err(error) => Finding::fail("world", error.to_string(), error.remedy()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_in_no_network_of_the_interface_is_noticed() {
        let own = |interface: &str, address: &str| OwnAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            prefix: 24,
        };
        let all = [own("p0", "10.9.0.2"), own("up", "10.1.0.2")];
        let told = |service: &str, interface| {
            let found = outside(&all, &[service.parse().unwrap()], interface);
            found.map(|it| it.found).unwrap_or_default()
        };
        assert_eq!(told("10.9.0.100:80", Some("p0")), "");
        assert_eq!(told("10.1.0.100:80", Some("p0")), "10.1.0.100 is in no network of p0");
        assert_eq!(told("10.1.0.100:80", None), "");
        assert_eq!(told("10.2.0.100:80", None), "10.2.0.100 is in no network of this host");
    }
}
