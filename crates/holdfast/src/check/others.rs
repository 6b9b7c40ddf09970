//! What a spread or a transit group's file says about this host, compared with what
//! is there.

use super::host::{interface, key, local, others, run_dir};
use super::settings::may_raise_limits;
use super::ways::forwarding_of;
use super::{Finding, ports};
use crate::config::recover::Policy;
use crate::config::spread::{HOSTS_MAX, Method, SpreadConfig, SpreadEdge, SpreadHost};
use crate::config::transit::{Side, TransitConfig, TransitString};
use holdfast_linux::bpf::{HostEnd, Redirect, Transit};
use holdfast_linux::limits;
use holdfast_linux::link;
use holdfast_linux::route::{self, NextHop, RouteSocket};
use std::net::IpAddr;
use std::path::Path;

/// Descriptors that an edge needs besides those of its host servers.
const RESERVE: u64 = 128;

pub(super) fn spread(config: &SpreadConfig, role: &str) -> Vec<Finding> {
    let mut findings =
        vec![key(config.keyring(role), &config.group.key_file), run_dir(&config.group.run_dir)];
    match (config.edge(role), config.host(role)) {
        (Some(edge), _) => spread_edge(config, edge, &mut findings),
        (None, Some(host)) => host_server(config, host, &mut findings),
        (None, None) => {}
    }
    findings
}

fn spread_edge(config: &SpreadConfig, edge: &SpreadEdge, findings: &mut Vec<Finding>) {
    findings.extend(edge.clients.iter().map(|name| interface("interface", name, None)));
    let clients: Vec<&str> = edge.clients.iter().map(String::as_str).collect();
    let (group, pins) = (&config.group.name, config.pin_dir(&edge.name));
    findings.extend(others(Redirect::is_free(&clients, group, &pins)));
    findings.push(local("edge.listen", edge.listen.ip()));
    let socket = config.admin_socket(&edge.name);
    findings.push(ports::of_spread_edge(&config.group.run_dir, &socket, edge));
    findings.extend(
        config
            .hosts
            .iter()
            .flat_map(|host| host.tunnels().into_iter().map(|tunnel| way_to_host(host, tunnel))),
    );
    // Packets that nobody serves, and answers if the edge is the host servers'
    // router.
    let families = [false, true]
        .into_iter()
        .filter(|v6| config.group.addresses.iter().any(|address| address.is_ipv6() == *v6));
    findings.extend(families.map(|v6| match forwarding_of(v6, &[]) {
        None => Finding::ok("forwarding", if v6 { "IPv6: on" } else { "IPv4: on" }),
        Some((found, remedy)) => Finding::warn(
            "forwarding",
            format!("{found}: needed only where this host is the host servers' way to clients"),
            remedy,
        ),
    }));
    findings.push(descriptors());
    let is_shared = !config.clients.gateway.is_empty();
    if is_shared || config.recover.policy != Policy::Off {
        findings.push(tun(is_shared));
    }
}

/// Checks that packets for a host server have a path, and may be as long as the group
/// needs.
fn way_to_host(host: &SpreadHost, tunnel: IpAddr) -> Finding {
    let (name, to) = ("way to host", format!("`{}` ({tunnel})", host.name));
    match next_hop(tunnel) {
        Err(error) => Finding::fail(
            name,
            format!("{to}: {error}"),
            format!("ip route add {tunnel} via ROUTER, or correct the address in the file"),
        ),
        Ok(hop) if host.method == Method::Layer2 && hop.address != tunnel => Finding::fail(
            name,
            format!(
                "{to} is behind the router {}, and layer-2 needs one network segment",
                hop.address
            ),
            "write method = \"ip-in-ip\" for it",
        ),
        Ok(hop) => {
            Finding::ok(name, format!("{to}: by {}, {} bytes", name_of(hop.ifindex), hop.mtu))
        }
    }
}

fn host_server(config: &SpreadConfig, host: &SpreadHost, findings: &mut Vec<Finding>) {
    findings.push(interface("interface", &host.interface, None));
    let (group, pins) = (&config.group.name, config.pin_dir(&host.name));
    findings.extend(others(HostEnd::is_free(&host.interface, group, &pins)));
    findings.extend(host.tunnels().into_iter().map(|tunnel| local("tunnel", tunnel)));
    let way = |edge: &SpreadEdge| through("way to the edge", edge.listen.ip(), &host.interface);
    findings.extend(config.edges.iter().map(way));
    if let Some(mtu) = config.edges[0].mtu {
        findings.push(own_mtu(host, mtu));
    }
    findings.push(binds());
}

fn own_mtu(host: &SpreadHost, wanted: u16) -> Finding {
    match route::mtu(&host.interface) {
        Ok(own) if own >= u32::from(wanted) => Finding::ok("mtu", format!("{own} bytes")),
        Ok(own) => Finding::warn(
            "mtu",
            format!("{} takes {own} bytes, edge.mtu says {wanted}", host.interface),
            format!("ip link set {} mtu {wanted}, or lower edge.mtu", host.interface),
        ),
        Err(error) => Finding::fail("mtu", error.to_string(), "correct `interface` in the file"),
    }
}

/// Checks a program at the root of the control groups, which notices binds.
fn binds() -> Finding {
    let root = Path::new("/sys/fs/cgroup/cgroup.controllers");
    match root.exists() {
        true => Finding::ok("binds", "can be noticed at the control groups' root"),
        false => Finding::warn(
            "binds",
            "there is no cgroup v2 at /sys/fs/cgroup: listeners are only looked up, five times a second",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    }
}

fn descriptors() -> Finding {
    let (name, need) = ("open files", HOSTS_MAX as u64 + RESERVE);
    match limits::open_files() {
        Ok(limit) if limit.soft >= need || may_raise_limits() => {
            Finding::ok(name, format!("{} allowed", limit.soft))
        }
        Ok(limit) => Finding::warn(
            name,
            format!("{} allowed; {need} are enough for any number of host servers", limit.soft),
            format!("start it with LimitNOFILE={need} (systemd) or after `ulimit -n {need}`"),
        ),
        Err(error) => Finding::warn(name, error.to_string(), "look at `ulimit -n`"),
    }
}

/// Checks the interface by which a kept SYN is given to another host server.
fn tun(is_needed: bool) -> Finding {
    match std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Finding::ok("tun", "/dev/net/tun can be opened"),
        Err(error) if is_needed => Finding::fail(
            "tun",
            format!("/dev/net/tun: {error}; a shared gateway needs it"),
            "modprobe tun, or use a kernel with CONFIG_TUN",
        ),
        Err(error) => Finding::warn(
            "tun",
            format!("/dev/net/tun: {error}; SYNs of a dead host server wait for their clients"),
            "modprobe tun, or use a kernel with CONFIG_TUN",
        ),
    }
}

pub(super) fn transit(config: &TransitConfig, side: Side) -> Vec<Finding> {
    let mut findings = vec![key(config.keyring(side.name()), &config.group.key_file)];
    findings.push(run_dir(&config.group.run_dir));
    let outside = config.edge(side).outside.iter();
    findings.extend(outside.map(|name| interface("outside", name, None)));
    for string in &config.strings {
        findings.extend(string_end(string, side));
    }
    let inner: Vec<String> =
        config.strings.iter().map(|it| it.end(side).interface.clone()).collect();
    let all: Vec<String> = config.edge(side).outside.iter().chain(&inner).cloned().collect();
    let (places, pins): (Vec<&str>, _) =
        (all.iter().map(String::as_str).collect(), config.pin_dir(side));
    findings.extend(others(Transit::is_free(&places, &config.group.name, &pins)));
    let hops = || config.strings.iter().flat_map(|string| &string.end(side).next_hop);
    for v6 in [false, true].into_iter().filter(|v6| hops().any(|hop| hop.is_ipv6() == *v6)) {
        findings.push(match forwarding_of(v6, &all) {
            None => Finding::ok("forwarding", if v6 { "IPv6: on" } else { "IPv4: on" }),
            Some((found, remedy)) => Finding::fail("forwarding", found, remedy),
        });
    }
    findings
}

fn string_end(string: &TransitString, side: Side) -> Vec<Finding> {
    let (end, other) = (string.end(side), string.end(side.other()));
    let mut findings =
        vec![interface("string", &end.interface, None), local("address", end.address.ip())];
    findings.extend(end.next_hop.iter().map(|hop| match next_hop(*hop) {
        Ok(found) if name_of(found.ifindex) == end.interface && found.address == *hop => {
            Finding::ok("next_hop", format!("{hop} is on {}", end.interface))
        }
        Ok(found) => Finding::fail(
            "next_hop",
            format!(
                "{hop} is not on {}: packets to it go to {} by {}",
                end.interface,
                found.address,
                name_of(found.ifindex)
            ),
            format!(
                "correct next_hop or interface of string `{}`, or the addresses of {}",
                string.name, end.interface
            ),
        ),
        Err(error) => Finding::fail(
            "next_hop",
            format!("{hop}: {error}"),
            format!("give {} an address of that network", end.interface),
        ),
    }));
    findings.push(through("heartbeats", other.address.ip(), &end.interface));
    findings
}

/// Checks whether packets to an address leave by this interface. A rule of the host may
/// choose another path for some senders, which is not looked at.
fn through(name: &'static str, to: IpAddr, interface: &str) -> Finding {
    let remedy = format!("ip route add {to} via ROUTER dev {interface}");
    match next_hop(to) {
        Ok(hop) if name_of(hop.ifindex) == interface => {
            Finding::ok(name, format!("{to} is reached by {interface}"))
        }
        Ok(hop) => Finding::warn(
            name,
            format!("{to} is reached by {}, not by {interface}", name_of(hop.ifindex)),
            remedy,
        ),
        Err(error) => Finding::fail(name, format!("{to}: {error}"), remedy),
    }
}

fn next_hop(to: IpAddr) -> std::io::Result<NextHop> {
    RouteSocket::open()?.next_hop(to)
}

fn name_of(ifindex: u32) -> String {
    link::name_of(ifindex).unwrap_or_else(|| format!("interface {ifindex}"))
}
