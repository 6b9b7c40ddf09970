//! What the configuration says of this host, against what is there.

use super::Finding;
use super::settings::{self, read};
use crate::config::{Config, Member, Role};
use crate::daemon::member::user_ids;
use crate::open_files;
use crate::world::{self, World};
use holdfast_linux::limits;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

pub(super) fn findings(config: &Config, role: Role) -> Vec<Finding> {
    let mut findings = vec![key(config)];
    match role {
        Role::Edge => edge(config, &mut findings),
        Role::Member(index) => {
            if let Some(member) = config.members.get(index) {
                self::member(config, member, &mut findings);
            }
        }
    }
    findings
}

fn key(config: &Config) -> Finding {
    match config.key() {
        Ok(_) => Finding::ok("key", config.group.key_file.display().to_string()),
        Err(errors) => {
            let error = errors.0.into_iter().next();
            let (found, remedy) = error.map(|e| (e.message, e.remedy)).unwrap_or_default();
            Finding::fail("key", found, remedy)
        }
    }
}

fn edge(config: &Config, findings: &mut Vec<Finding>) {
    let ports = config.members.iter().map(|m| &m.edge_port);
    for interface in config.edge.clients.iter().chain(config.edge.l3.as_ref()).chain(ports) {
        findings.push(self::interface("interface", interface, None));
    }
    findings.push(local("edge.listen", config.edge.listen.ip()));
    findings.push(forwarding(config));
    findings.push(lasting(&config.edge.state_file));
}

fn member(config: &Config, member: &Member, findings: &mut Vec<Finding>) {
    findings.push(interface("interface", &member.interface, Some(&member.mac.to_string())));
    findings.push(local("address", member.address.ip()));
    findings.extend(return_paths(config, member));
    findings.push(open_files(config));
    findings.push(program(config));
    findings.extend(super::program::findings(&config.server));
    findings.extend(user(config));
    findings.push(same_world(config));
}

fn interface(name: &'static str, interface: &str, mac: Option<&str>) -> Finding {
    let folder = Path::new("/sys/class/net").join(interface);
    let found = read(folder.join("address"));
    if found.is_empty() {
        return Finding::fail(
            name,
            format!("{interface} does not exist"),
            "`ip link` lists the names there are",
        );
    }
    if mac.is_some_and(|mac| mac != found) {
        return Finding::fail(
            name,
            format!("{interface} has the hardware address {found}"),
            "write that address as this member's `mac`, in the file of every host",
        );
    }
    match read(folder.join("operstate")).as_str() {
        "down" => Finding::fail(
            name,
            format!("{interface} is down"),
            format!("ip link set {interface} up"),
        ),
        _ => Finding::ok(name, format!("{interface} ({found})")),
    }
}

fn local(name: &'static str, address: IpAddr) -> Finding {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Finding::ok(name, format!("{address} is an address of this host")),
        Err(_) => Finding::fail(
            name,
            format!("{address} is not an address of this host"),
            "`ip address` lists them; choose another with --role if this is another host of the group",
        ),
    }
}

fn forwarding(config: &Config) -> Finding {
    match not_forwarded(config) {
        Some((found, remedy)) => Finding::fail("forwarding", found, remedy),
        None => Finding::ok("forwarding", "on"),
    }
}

/// What an edge's kernel does not pass on, and the remedy.
pub(crate) fn not_forwarded(config: &Config) -> Option<(&'static str, &'static str)> {
    let needed = |v6: bool| config.service_ips().iter().any(|ip| ip.is_ipv6() == v6);
    let off = |v6: bool, path: &str| needed(v6) && read(path) == "0";
    if off(false, "/proc/sys/net/ipv4/ip_forward") {
        return Some(("IPv4 is not forwarded", "sysctl -w net.ipv4.ip_forward=1"));
    }
    let v6 = off(true, "/proc/sys/net/ipv6/conf/all/forwarding");
    v6.then_some(("IPv6 is not forwarded", "sysctl -w net.ipv6.conf.all.forwarding=1"))
}

/// The epoch must survive a reboot.
fn lasting(file: &Path) -> Finding {
    let shown = file.display();
    let mounts = read("/proc/self/mounts");
    let parsed = mounts.lines().filter_map(|l| {
        let mut fields = l.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // Later mounts hide earlier ones, so the last of the longest counts.
    let under =
        parsed.filter(|(point, _)| file.starts_with(point)).max_by_key(|(point, _)| point.len());
    match under {
        Some((point, kind @ ("tmpfs" | "ramfs"))) => Finding::fail(
            "state_file",
            format!("{shown} lies on {point}, a {kind} that a reboot empties"),
            "choose a place on a disk: an edge that forgets its epoch could let two members speak",
        ),
        _ => Finding::ok("state_file", format!("{shown} survives a reboot")),
    }
}

/// Answers to clients must pass the edge, which fences and rewrites them there: of
/// each family that the services have.
fn return_paths(config: &Config, member: &Member) -> Vec<Finding> {
    let has = |v6: bool| config.service_ips().iter().any(|ip| ip.is_ipv6() == v6);
    let families = [(false, default_route()), (true, default_route_v6())];
    let wanted = families.into_iter().filter(|(v6, _)| has(*v6));
    wanted.map(|(v6, route)| return_path(config, member, v6, route)).collect()
}

fn return_path(
    config: &Config,
    member: &Member,
    v6: bool,
    route: Option<(String, IpAddr)>,
) -> Finding {
    let (name, ip) = if v6 { ("return path IPv6", "ip -6") } else { ("return path", "ip") };
    let edge = config.edge.listen.ip();
    // The file names only one of its addresses.
    let is_known = edge.is_ipv6() == v6;
    let Some((interface, gateway)) = route else {
        let gateway = if is_known { edge.to_string() } else { "EDGE".to_owned() };
        return Finding::fail(
            name,
            "there is no default route",
            format!("{ip} route add default via {gateway} dev {}", member.interface),
        );
    };
    let found = format!("the default route goes through {gateway} on {interface}");
    if interface == member.interface && (!is_known || gateway == edge) {
        return Finding::ok(name, found);
    }
    let remedy = format!(
        "answers to clients must pass the edge ({edge}): route the clients' networks through it"
    );
    Finding::warn(name, found, remedy)
}

/// Interface and gateway of the IPv4 default route.
fn default_route() -> Option<(String, IpAddr)> {
    read("/proc/net/route").lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, "00000000", gateway, ..] = fields[..] else { return None };
        // The kernel prints the address as a little-endian number.
        let gateway = u32::from_str_radix(gateway, 16).ok()?;
        Some((interface.to_owned(), IpAddr::V4(Ipv4Addr::from(gateway.swap_bytes()))))
    })
}

/// Interface and gateway of the IPv6 default route.
fn default_route_v6() -> Option<(String, IpAddr)> {
    default_of(&read("/proc/net/ipv6_route"))
}

/// From the kernel's table: destination, its length, source, its length, gateway,
/// metric, references, uses, flags, interface.
fn default_of(table: &str) -> Option<(String, IpAddr)> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [to, "00", _, _, gateway, .., interface] = fields[..] else { return None };
        let gateway = u128::from_str_radix(gateway, 16).ok()?;
        // What leads nowhere stands at `lo`.
        (u128::from_str_radix(to, 16) == Ok(0) && interface != "lo")
            .then(|| (interface.to_owned(), IpAddr::V6(Ipv6Addr::from(gateway))))
    })
}

/// What the daemon will be allowed, if it is started as this was.
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

fn program(config: &Config) -> Finding {
    match world::find_program(&config.server) {
        Some(path) => Finding::ok("server", path.display().to_string()),
        None => Finding::fail(
            "server",
            format!(
                "`{}` is no program of this host",
                config.server.command.first().map_or("", String::as_str)
            ),
            "install the same package on both members; binary and libraries are compared when they meet",
        ),
    }
}

/// Whom the daemon could not become would stop it when it starts the server.
fn user(config: &Config) -> Option<Finding> {
    let name = config.server.user.as_deref()?;
    let error = user_ids(name).err()?;
    Some(Finding::fail(
        "user",
        error.to_string(),
        format!("create it on both members (`useradd --system {name}`), or change `user`"),
    ))
}

/// What both members must have alike, as a number to compare by eye.
fn same_world(config: &Config) -> Finding {
    // The line about the key tells what is wrong with it.
    let Ok(key) = config.key() else {
        return Finding::fail("world", "cannot be told without the key", "see `key` above");
    };
    match World::gather(config, &key) {
        Ok(world) => Finding::ok("world", world.summary()),
        Err(error) => Finding::fail("world", error.to_string(), error.remedy()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_of_ipv6_is_found_among_the_others() {
        let zero = "0".repeat(32);
        let to = "fd0000000000000000000000000000ff";
        let gateway = "fd000000000000000000000000000001";
        let others = format!(
            "{to} 40 {zero} 00 {zero} 00000100 1 0 00000001 eth1\n\
             {zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200 lo\n"
        );
        assert_eq!(default_of(&others), None);
        let own = format!("{zero} 00 {zero} 00 {gateway} 00000400 1 0 00000003 eth0\n");
        let route = default_of(&(others + &own));
        assert_eq!(route, Some(("eth0".to_owned(), "fd00::1".parse().unwrap())));
    }
}
