//! The paths of packets through this host: whether an edge forwards them, and whether
//! a member's answers find their way back.

use super::Finding;
use super::settings::read;
use crate::config::{Config, Member};
use holdfast_linux::link::{self, Carries, Link, carries};
use holdfast_linux::neighbour::own_addresses;
use holdfast_linux::route::RouteSocket;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

/// One line for each family of the services: both are to be mended at once.
pub(super) fn forwarding(config: &Config) -> Vec<Finding> {
    let inner = inner_interfaces(config);
    let families = [false, true].into_iter().filter(|v6| serves(config, *v6));
    let of = |v6| (v6, forwarding_of(v6, &inner));
    families.map(of).map(|(v6, trouble)| judge_forwarding(v6, trouble)).collect()
}

fn judge_forwarding(v6: bool, trouble: Option<(String, String)>) -> Finding {
    match trouble {
        Some((found, remedy)) => Finding::fail("forwarding", found, remedy),
        None => Finding::ok("forwarding", if v6 { "IPv6: on" } else { "IPv4: on" }),
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
    if let Some(l3) = config.edge.as_ref().and_then(|edge| edge.l3.as_ref()) {
        return vec![l3.clone()];
    }
    let ports = config.ports().map(|port| &port.edge_port);
    let mut found: Vec<String> =
        ports.map(|port| link::master_of(port).unwrap_or(port.clone())).collect();
    found.dedup();
    found
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
        serves(config, v6) && !leads_off(*to) && gateways(v6, &member.interface).is_empty()
    };
    let v6 = NOWHERE.into_iter().find(lost)?.is_ipv6();
    // Its routes have gone with it, and come back with it or after it.
    let trouble = link_trouble(&member.interface, carries(&member.interface).ok());
    if let Some((found, remedy)) = trouble {
        return Some((format!("{found}; answers find no way to clients"), remedy));
    }
    let family = if v6 { "IPv6" } else { "IPv4" };
    let found = format!("answers find no way to clients: there is no {family} route to them");
    let mut remedy = add_default_route(config, member, v6);
    if v6 && !has_own_ipv6(config, &member.interface) {
        let first = format!("ip -6 address add ADDRESS/LENGTH dev {}", member.interface);
        remedy = format!("{first}, for its own IPv6 address has gone with the link; then {remedy}");
    }
    if serves(config, !v6) {
        remedy.push_str(&format!("; or remove the {family} services from the file of every host"));
    }
    Some((found, remedy))
}

/// Whether an interface has an IPv6 address beside those of the services and of the link: a kernel
/// takes it away when the link goes down, and a router's address means nothing then.
fn has_own_ipv6(config: &Config, interface: &str) -> bool {
    // An interface that cannot be asked has lost nothing that is known.
    let Ok(all) = own_addresses() else { return true };
    all.iter().filter(|(name, _)| name == interface).any(|(_, address)| {
        let ip = Ipv6Addr::from(*address);
        let is_one = ip.to_ipv4_mapped().is_none() && !ip.is_unicast_link_local();
        is_one && !config.service_ips().contains(&ip.into())
    })
}

/// Whether the group has services of this family.
fn serves(config: &Config, v6: bool) -> bool {
    config.service_ips().iter().any(|ip| ip.is_ipv6() == v6)
}

/// Why an interface carries nothing, and the remedy; `None` for one that does. `found` is
/// `None` if it does not exist.
pub(crate) fn link_trouble(name: &str, found: Option<Carries>) -> Option<(String, String)> {
    match found {
        None => Some((
            format!("{name} does not exist"),
            "`ip link` lists the names there are".to_owned(),
        )),
        Some(Carries::Down) => Some((
            format!("{name} is down"),
            format!("ip link set {name} up, and its routes again"),
        )),
        Some(Carries::NoCarrier) => Some((
            format!("{name} is down: nobody is at its other end"),
            "look at the cable, or at the interface at its other end".to_owned(),
        )),
        Some(Carries::Yes) => None,
    }
}

/// The command that gives a member its path back through the edge.
fn add_default_route(config: &Config, member: &Member, v6: bool) -> String {
    let Some(edge) = &config.edge else {
        let ip = if v6 { "ip -6" } else { "ip" };
        return format!("{ip} route add default via ROUTER dev {}", member.interface);
    };
    let edge = edge.listen.ip();
    let is_gateway = edge.is_ipv6() == v6 && is_beside(edge, &member.interface);
    default_route_by(is_gateway.then_some(edge), v6, &member.interface)
}

/// `edge`: its address on that link, if it is known.
fn default_route_by(edge: Option<IpAddr>, v6: bool, interface: &str) -> String {
    let ip = if v6 { "ip -6" } else { "ip" };
    match edge {
        Some(gateway) => format!("{ip} route add default via {gateway} dev {interface}"),
        None => format!(
            "{ip} route add default via EDGE dev {interface}, EDGE being the edge's address in the \
             network of {interface}"
        ),
    }
}

/// Whether an address is reached through an interface and through no router: only such a one
/// can be a gateway there.
fn is_beside(address: IpAddr, interface: &str) -> bool {
    let hop = RouteSocket::open().and_then(|mut routes| routes.next_hop(address));
    let index = Link::by_name(interface).map(|link| link.index);
    hop.is_ok_and(|hop| hop.address == address && index.is_ok_and(|index| index == hop.ifindex))
}

/// Whether the kernel has a route for the address; nothing is sent.
fn leads_off(to: IpAddr) -> bool {
    let any: IpAddr =
        if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((to, 9)));
    let unreachable = [ErrorKind::NetworkUnreachable, ErrorKind::HostUnreachable];
    routed.err().is_none_or(|error| !unreachable.contains(&error.kind()))
}

/// The gateways on an interface: clients' networks may have routes of their own.
fn gateways(v6: bool, interface: &str) -> Vec<IpAddr> {
    let path = if v6 { "/proc/net/ipv6_route" } else { "/proc/net/route" };
    let table = read(path);
    let gateway = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let gateway: IpAddr = match (v6, &fields[..]) {
            (true, [_, _, _, _, gateway, .., through]) if *through == interface => {
                Ipv6Addr::from(u128::from_str_radix(gateway, 16).ok()?).into()
            }
            // The kernel prints the address as a little-endian number.
            (false, [through, _, gateway, ..]) if *through == interface => {
                Ipv4Addr::from(u32::from_str_radix(gateway, 16).ok()?.swap_bytes()).into()
            }
            _ => return None,
        };
        (!gateway.is_unspecified()).then_some(gateway)
    };
    let mut found: Vec<IpAddr> = table.lines().filter_map(gateway).collect();
    found.sort_unstable();
    found.dedup();
    found
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
    let edge = config.edge.as_ref().map(|edge| edge.listen.ip());
    // The file names only one of its addresses, which may be in the other member's network.
    let is_known = |edge: &IpAddr| edge.is_ipv6() == v6 && is_beside(*edge, &member.interface);
    let known = edge.filter(is_known);
    let Some((interface, gateway)) = route else {
        let remedy = || add_default_route(config, member, v6);
        return without_default(name, known, &gateways(v6, &member.interface), remedy);
    };
    let found = format!("the default route goes through {gateway} on {interface}");
    if interface == member.interface && known.is_none_or(|edge| gateway == edge) {
        return Finding::ok(name, found);
    }
    let through = |edge| through_edge(edge);
    let segment = || format!("answers to clients must leave by {}", member.interface);
    Finding::warn(name, found, edge.map_or_else(segment, through))
}

/// The remedy where answers to clients take another way.
fn through_edge(edge: IpAddr) -> String {
    format!(
        "answers to clients must pass the edge ({edge}): route the clients' networks through it"
    )
}

/// Without a default route only clients are answered whose networks have a route of their own:
/// through one of the `gateways`, of which one must be the `edge`, where its address is known.
fn without_default(
    name: &'static str,
    edge: Option<IpAddr>,
    gateways: &[IpAddr],
    remedy: impl FnOnce() -> String,
) -> Finding {
    match edge.filter(|edge| !gateways.contains(edge)) {
        _ if gateways.is_empty() => Finding::fail(name, "there is no default route", remedy()),
        Some(edge) => {
            let all: Vec<String> = gateways.iter().map(ToString::to_string).collect();
            let found =
                format!("there is no default route, and others go through {}", all.join(", "));
            Finding::warn(name, found, through_edge(edge))
        }
        None => Finding::ok(name, "there is no default route: clients' networks have their own"),
    }
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
    fn each_family_that_is_not_forwarded_is_named() {
        let off = |family: &str| Some((format!("{family} is not forwarded"), "sysctl".to_owned()));
        let found = [judge_forwarding(false, off("IPv4")), judge_forwarding(true, off("IPv6"))];
        assert!(found.iter().all(|it| it.verdict == super::super::Verdict::Fail), "{found:?}");
        assert!(found[1].found.contains("IPv6"), "{found:?}");
        assert!(judge_forwarding(true, None).found.starts_with("IPv6"));
    }

    #[test]
    fn a_gateway_is_in_the_interfaces_network() {
        let lo: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(is_beside(lo, "lo") && !is_beside(lo, "nobody7"));
        assert!(!is_beside("192.0.2.1".parse().unwrap(), "lo"));
        assert_eq!(
            default_route_by(Some(lo), false, "b0"),
            "ip route add default via 127.0.0.1 dev b0"
        );
        assert!(
            default_route_by(None, true, "b0")
                .starts_with("ip -6 route add default via EDGE dev b0,")
        );
    }

    #[test]
    fn networks_with_routes_of_their_own_need_no_default_route() {
        use super::super::Verdict;
        let [edge, other] = ["10.9.0.1", "10.9.0.7"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let judge = |edge, gateways: &[IpAddr]| {
            without_default("return path", edge, gateways, || "ip route add".to_owned())
        };
        assert_eq!(judge(None, &[]).verdict, Verdict::Fail);
        assert_eq!(judge(Some(edge), &[]).verdict, Verdict::Fail);
        assert_eq!(judge(None, &[other]).verdict, Verdict::Ok, "it may be the edge");
        assert_eq!(judge(Some(edge), &[other, edge]).verdict, Verdict::Ok);
        let told = judge(Some(edge), &[other]);
        assert_eq!(told.verdict, Verdict::Warn);
        assert!(told.found.contains("10.9.0.7") && told.remedy.contains("10.9.0.1"), "{told:?}");
    }

    #[test]
    fn an_interface_that_carries_nothing_is_said_to() {
        assert_eq!(link_trouble("b0", Some(Carries::Yes)), None);
        let told = |found| link_trouble("b0", found).unwrap();
        assert_eq!(told(Some(Carries::Down)).0, "b0 is down");
        assert!(told(Some(Carries::Down)).1.starts_with("ip link set b0 up"));
        assert!(told(Some(Carries::NoCarrier)).0.contains("nobody is at its other end"));
        assert_eq!(told(None).0, "b0 does not exist");
    }

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
