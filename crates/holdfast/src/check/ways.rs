//! The paths of packets through this host: whether an edge forwards them, and whether
//! a member's answers find their way back.

use super::Finding;
use super::settings::read;
use crate::config::{Config, Member};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

pub(super) fn forwarding(config: &Config) -> Finding {
    match not_forwarded(config) {
        Some((found, remedy)) => Finding::fail("forwarding", found, remedy),
        None => Finding::ok("forwarding", "on"),
    }
}

/// What an edge's kernel does not forward, and the remedy: all packets of a family,
/// or those that come in where the members' answers do.
pub(crate) fn not_forwarded(config: &Config) -> Option<(String, String)> {
    let mut families = [false, true].into_iter().filter(|v6| serves(config, *v6));
    let inner = inner_interfaces(config);
    families.find_map(|v6| forwarding_of(v6, &inner))
}

/// Why packets of a family that come in through one of these interfaces are not
/// forwarded, and the remedy.
pub(super) fn forwarding_of(v6: bool, inner: &[String]) -> Option<(String, String)> {
    let (family, all, one) = match v6 {
        false => ("IPv4", "net.ipv4.ip_forward", "net.ipv4.conf"),
        true => ("IPv6", "net.ipv6.conf.all.forwarding", "net.ipv6.conf"),
    };
    if is_off(all) {
        return Some((format!("{family} is not forwarded"), format!("sysctl -w {all}=1")));
    }
    // A name may contain dots, which separate the names of a sysctl.
    let interface = inner.iter().find(|name| is_off(&format!("{one}/{name}/forwarding")))?;
    let found = format!("{family} that comes in through {interface} is not forwarded");
    Some((found, format!("sysctl -w {}/{interface}/forwarding=1", one.replace('.', "/"))))
}

fn is_off(sysctl: &str) -> bool {
    let path = match sysctl.split_once('/') {
        Some((dotted, rest)) => format!("{}/{rest}", dotted.replace('.', "/")),
        None => sysctl.replace('.', "/"),
    };
    read(Path::new("/proc/sys").join(path)) == "0"
}

/// Where the members' answers enter the edge's IP stack: the interface that the file
/// names, or the members' ports, or the bridges that they belong to.
fn inner_interfaces(config: &Config) -> Vec<String> {
    if let Some(l3) = &config.edge.l3 {
        return vec![l3.clone()];
    }
    let ports = config.members.iter().map(|member| &member.edge_port);
    let mut found: Vec<String> =
        ports.map(|port| master_of(port).unwrap_or(port.clone())).collect();
    found.dedup();
    found
}

fn master_of(port: &str) -> Option<String> {
    let link = std::fs::read_link(Path::new("/sys/class/net").join(port).join("master")).ok()?;
    link.file_name()?.to_str().map(str::to_owned)
}

/// Addresses that nobody has (RFC 5737, RFC 3849): only a default route leads to them.
const NOWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// For which family of the services answers find no path off this host's own
/// networks, and the remedy.
pub(crate) fn no_way_back(config: &Config, member: &Member) -> Option<(String, String)> {
    let lost = |to: &IpAddr| {
        let v6 = to.is_ipv6();
        serves(config, v6) && !leads_off(*to) && !has_gateway(v6, &member.interface)
    };
    let v6 = NOWHERE.into_iter().find(lost)?.is_ipv6();
    let family = if v6 { "IPv6" } else { "IPv4" };
    let found = format!("answers find no way to clients: there is no {family} route to them");
    Some((found, add_default_route(config, member, v6)))
}

/// Whether the group has services of this family.
fn serves(config: &Config, v6: bool) -> bool {
    config.service_ips().iter().any(|ip| ip.is_ipv6() == v6)
}

/// The command that gives a member its path back through the edge.
fn add_default_route(config: &Config, member: &Member, v6: bool) -> String {
    let (ip, edge) = (if v6 { "ip -6" } else { "ip" }, config.edge.listen.ip());
    // The file names only one of its addresses.
    let gateway = if edge.is_ipv6() == v6 { edge.to_string() } else { "EDGE".to_owned() };
    format!("{ip} route add default via {gateway} dev {}", member.interface)
}

/// Whether the kernel has a route for the address; nothing is sent.
fn leads_off(to: IpAddr) -> bool {
    let any: IpAddr =
        if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((to, 9)));
    let unreachable = [ErrorKind::NetworkUnreachable, ErrorKind::HostUnreachable];
    routed.err().is_none_or(|error| !unreachable.contains(&error.kind()))
}

/// Clients' networks may have routes of their own.
fn has_gateway(v6: bool, interface: &str) -> bool {
    if v6 {
        return read("/proc/net/ipv6_route").lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, _, _, _, gateway, .., through] = fields[..] else { return false };
            through == interface && u128::from_str_radix(gateway, 16) != Ok(0)
        });
    }
    read("/proc/net/route").lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [through, _, gateway, ..] if through == interface && gateway != "00000000")
    })
}

/// Checks that answers to clients pass the edge, which fences and rewrites them
/// there, for each family that the services have.
pub(super) fn return_paths(config: &Config, member: &Member) -> Vec<Finding> {
    let families = [(false, default_route()), (true, default_route_v6())];
    let wanted = families.into_iter().filter(|(v6, _)| serves(config, *v6));
    wanted.map(|(v6, route)| return_path(config, member, v6, route)).collect()
}

fn return_path(
    config: &Config,
    member: &Member,
    v6: bool,
    route: Option<(String, IpAddr)>,
) -> Finding {
    let name = if v6 { "return path IPv6" } else { "return path" };
    let edge = config.edge.listen.ip();
    // The file names only one of its addresses.
    let is_known = edge.is_ipv6() == v6;
    let Some((interface, gateway)) = route else {
        let remedy = add_default_route(config, member, v6);
        return Finding::fail(name, "there is no default route", remedy);
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

/// The default route from the kernel's table: destination, its length, source,
/// its length, gateway, metric, references, uses, flags, interface.
fn default_of(table: &str) -> Option<(String, IpAddr)> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [to, "00", _, _, gateway, .., interface] = fields[..] else { return None };
        let gateway = u128::from_str_radix(gateway, 16).ok()?;
        // A route that leads nowhere is at `lo`.
        (u128::from_str_radix(to, 16) == Ok(0) && interface != "lo")
            .then(|| (interface.to_owned(), IpAddr::V6(Ipv6Addr::from(gateway))))
    })
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
