//! The wires: client 10.8.0.2 - 10.8.0.1 edge 10.9.0.1 (a bridge with one port per member) -
//! primary 10.9.0.2 and backup 10.9.0.3, the same in IPv6, and on request a wire of their own
//! between the members. Neighbours are static, so no measurement contains an address resolution.

use super::host::{Host, Role};
use super::{LogLink, Plan, Shape};
use crate::command::ip_batch;
use crate::emu::{EmuSpec, End, Link};
use anyhow::Result;
use std::path::Path;

/// Names of the interfaces.
pub mod interface {
    /// The client's only interface.
    pub const CLIENT: &str = "c0";
    /// The edge's interface towards the clients.
    pub const EDGE_CLIENT: &str = "ec";
    /// The edge's bridge towards the members.
    pub const EDGE_BRIDGE: &str = "br0";
    /// The bridge port of the primary.
    pub const EDGE_PRIMARY: &str = "ep";
    /// The bridge port of the backup.
    pub const EDGE_BACKUP: &str = "eb";
    /// The primary's interface towards the edge.
    pub const PRIMARY: &str = "p0";
    /// The backup's interface towards the edge.
    pub const BACKUP: &str = "b0";
    /// The primary's end of the log's own wire.
    pub const PRIMARY_LOG: &str = "p1";
    /// The backup's end of the log's own wire.
    pub const BACKUP_LOG: &str = "b1";
}

/// Addresses of the hosts and of the service.
pub mod addresses {
    /// IPv4 address of the service.
    pub const SERVICE_V4: &str = "10.9.0.100";
    /// IPv6 address of the service.
    pub const SERVICE_V6: &str = "fd09::100";
    /// Address of the client.
    pub const CLIENT: &str = "10.8.0.2";
    /// Address of the edge towards the members.
    pub const EDGE: &str = "10.9.0.1";
    /// Address of the primary on the service network.
    pub const PRIMARY: &str = "10.9.0.2";
    /// Address of the backup on the service network.
    pub const BACKUP: &str = "10.9.0.3";
    /// IPv6 address of the primary on the service network.
    pub const PRIMARY_V6: &str = "fd09::2";
    /// IPv6 address of the backup on the service network.
    pub const BACKUP_V6: &str = "fd09::3";
    /// Address of the primary on the log's own wire.
    pub const PRIMARY_LOG: &str = "10.10.0.1";
    /// Address of the backup on the log's own wire.
    pub const BACKUP_LOG: &str = "10.10.0.2";
    /// Ethernet address of the primary's interface.
    pub const PRIMARY_MAC: &str = "02:68:66:00:00:02";
    /// Ethernet address of the backup's interface.
    pub const BACKUP_MAC: &str = "02:68:66:00:00:03";
}

const CLIENT_MAC: &str = "02:68:66:00:00:0c";
const EDGE_CLIENT_MAC: &str = "02:68:66:00:00:0e";
const EDGE_BRIDGE_MAC: &str = "02:68:66:00:00:01";
const PRIMARY_LOG_MAC: &str = "02:68:66:00:00:12";
const BACKUP_LOG_MAC: &str = "02:68:66:00:00:13";

/// Bytes of a bucket, more than any burst of GSO frames that a sender may hand over at once: it
/// limits the rate and does not split frames.
const TBF_BURST_BYTES: u64 = 256 * 1024;

/// Longest wait in front of a bucket, in ms; then packets are dropped.
const TBF_LATENCY_MS: u64 = 20;

pub(super) fn connect(hosts: &[Host; 4], plan: &Plan) -> Result<Vec<Link>> {
    use interface::*;
    let [client, edge, primary, backup] = hosts;
    for host in hosts {
        believes_addresses(host)?;
        many_ports(host)?;
    }
    forwards(edge)?;
    bridges_unfiltered(edge)?;

    let mut links = Vec::new();
    wire(&mut links, (client, CLIENT), (edge, EDGE_CLIENT), plan.client_path.as_ref())?;
    wire(&mut links, (primary, PRIMARY), (edge, EDGE_PRIMARY), plan.primary_path.as_ref())?;
    wire(&mut links, (backup, BACKUP), (edge, EDGE_BACKUP), plan.tap_path.as_ref())?;
    configure_hosts(client, edge, primary, backup)?;
    match &plan.log {
        LogLink::Shared => {}
        LogLink::Separate => log_wire(&mut links, hosts, None)?,
        LogLink::Emulated(spec) => log_wire(&mut links, hosts, Some(spec))?,
    }
    if let Shape::Tbf { bits_per_second } = plan.shape {
        shape(hosts, bits_per_second)?;
    }
    if !plan.client_sysctls.is_empty() {
        let settings: Vec<&str> = plan.client_sysctls.iter().map(String::as_str).collect();
        client.sysctl(&settings)?;
    }
    Ok(links)
}

/// Has a host take packets by any way, and use addresses at once.
pub(super) fn believes_addresses(host: &Host) -> Result<()> {
    host.sysctl(&[
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.default.rp_filter=0",
        "net.ipv6.conf.all.accept_dad=0",
        "net.ipv6.conf.default.accept_dad=0",
        "net.ipv6.conf.default.router_solicitations=0",
    ])
}

/// Connections of the variant `clean` that were closed before must not use up the ports.
pub(super) fn many_ports(host: &Host) -> Result<()> {
    host.sysctl(&["net.ipv4.ip_local_port_range=2048 60999"])
}

/// Makes a router of a host.
pub(super) fn forwards(host: &Host) -> Result<()> {
    host.sysctl(&["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
}

/// Where Docker or libvirt has loaded br_netfilter, every frame of a bridge goes through iptables
/// too, which nobody here needs.
pub(super) fn bridges_unfiltered(host: &Host) -> Result<()> {
    if Path::new("/proc/sys/net/bridge").exists() {
        host.sysctl(&[
            "net.bridge.bridge-nf-call-iptables=0",
            "net.bridge.bridge-nf-call-ip6tables=0",
        ])?;
    }
    Ok(())
}

/// Lets the edge reach the primary without its bridge, by a port that has taken over the bridge's
/// hardware address.
///
/// # Errors
/// When `ip` refuses.
pub fn unbridge_primary(edge: &Host) -> Result<()> {
    let (port, server) = (interface::EDGE_PRIMARY, addresses::PRIMARY);
    edge.ip(&format!(
        "link set {port} nomaster\nlink set {port} address {EDGE_BRIDGE_MAC}\n\
         route add {server}/32 dev {port}\n"
    ))
}

/// Removes the interface of the member in `role`, and makes one of the same name, addresses and
/// routes, as a driver that is loaded again does. Its port of the bridge is another one, too.
///
/// # Errors
/// When `ip` refuses.
pub fn remake_interface(role: Role, edge: &Host, host: &Host) -> Result<()> {
    let (device, port) = match role {
        Role::Primary => (interface::PRIMARY, interface::EDGE_PRIMARY),
        _ => (interface::BACKUP, interface::EDGE_BACKUP),
    };
    host.ip(&format!("link del {device}\n"))?;
    wire(&mut Vec::new(), (host, device), (edge, port), None)?;
    edge.ip(&format!("link set {port} master br0 up\n"))?;
    member_of(role, host)
}

/// Connects two hosts by a veth pair, or by the emulator's pair of taps if the wire has a `spec`.
pub(super) fn wire(
    links: &mut Vec<Link>,
    a: (&Host, &str),
    b: (&Host, &str),
    spec: Option<&EmuSpec>,
) -> Result<()> {
    if let Some(spec) = spec {
        let end = |(host, name): (&Host, &str)| End {
            namespace: format!("/proc/{}/ns/net", host.holder()).into(),
            interface: name.to_owned(),
        };
        links.push(Link::between(end(a), end(b), spec)?);
        return Ok(());
    }
    ip_batch(
        None,
        &format!(
            "link add {} netns {} type veth peer name {} netns {}\n",
            a.1,
            a.0.namespace(),
            b.1,
            b.0.namespace()
        ),
    )
}

fn configure_hosts(client: &Host, edge: &Host, primary: &Host, backup: &Host) -> Result<()> {
    client.ip(&format!(
        "link set c0 address {CLIENT_MAC} up\n\
         addr add {}/24 dev c0\n\
         addr add fd08::2/64 dev c0 nodad\n\
         neigh replace 10.8.0.1 lladdr {EDGE_CLIENT_MAC} dev c0 nud permanent\n\
         neigh replace fd08::1 lladdr {EDGE_CLIENT_MAC} dev c0 nud permanent\n\
         route add default via 10.8.0.1\n\
         route add ::/0 via fd08::1\n",
        addresses::CLIENT
    ))?;
    edge.ip(&format!(
        "link add br0 address {EDGE_BRIDGE_MAC} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set ep master br0 up\n\
         link set eb master br0 up\n\
         link set br0 up\n\
         link set ec address {EDGE_CLIENT_MAC} up\n\
         addr add 10.8.0.1/24 dev ec\n\
         addr add fd08::1/64 dev ec nodad\n\
         addr add 10.9.0.1/24 dev br0\n\
         addr add fd09::1/64 dev br0 nodad\n\
         neigh replace 10.8.0.2 lladdr {CLIENT_MAC} dev ec nud permanent\n\
         neigh replace fd08::2 lladdr {CLIENT_MAC} dev ec nud permanent\n"
    ))?;
    edge.ip(&format!(
        "neigh replace 10.9.0.2 lladdr {p} dev br0 nud permanent\n\
         neigh replace fd09::2 lladdr {p} dev br0 nud permanent\n\
         neigh replace 10.9.0.3 lladdr {b} dev br0 nud permanent\n\
         neigh replace fd09::3 lladdr {b} dev br0 nud permanent\n",
        p = addresses::PRIMARY_MAC,
        b = addresses::BACKUP_MAC,
    ))?;
    member_of(Role::Primary, primary)?;
    member_of(Role::Backup, backup)
}

fn member_of(role: Role, host: &Host) -> Result<()> {
    let (primary, backup) = (addresses::PRIMARY_MAC, addresses::BACKUP_MAC);
    match role {
        Role::Primary => member(host, interface::PRIMARY, 2, primary, 3, backup),
        _ => member(host, interface::BACKUP, 3, backup, 2, primary),
    }
}

fn member(host: &Host, device: &str, own: u8, mac: &str, other: u8, other_mac: &str) -> Result<()> {
    host.ip(&format!(
        "link set {device} address {mac} up\n\
         addr add 10.9.0.{own}/24 dev {device}\n\
         addr add fd09::{own}/64 dev {device} nodad\n\
         neigh replace 10.9.0.1 lladdr {EDGE_BRIDGE_MAC} dev {device} nud permanent\n\
         neigh replace fd09::1 lladdr {EDGE_BRIDGE_MAC} dev {device} nud permanent\n\
         neigh replace 10.9.0.{other} lladdr {other_mac} dev {device} nud permanent\n\
         neigh replace fd09::{other} lladdr {other_mac} dev {device} nud permanent\n\
         route add default via 10.9.0.1\n\
         route add ::/0 via fd09::1\n"
    ))
}

/// The members' own wire. The edge reaches their addresses on it through the
/// service network, so one address per member serves log and edge alike.
fn log_wire(links: &mut Vec<Link>, hosts: &[Host; 4], spec: Option<&EmuSpec>) -> Result<()> {
    let [_, edge, primary, backup] = hosts;
    wire(links, (primary, interface::PRIMARY_LOG), (backup, interface::BACKUP_LOG), spec)?;
    let ends = [
        (primary, interface::PRIMARY_LOG, 1, PRIMARY_LOG_MAC, 2, BACKUP_LOG_MAC),
        (backup, interface::BACKUP_LOG, 2, BACKUP_LOG_MAC, 1, PRIMARY_LOG_MAC),
    ];
    for (host, device, own, mac, other, other_mac) in ends {
        host.ip(&format!(
            "link set {device} address {mac} up\n\
             addr add 10.10.0.{own}/24 dev {device}\n\
             addr add fd10::{own}/64 dev {device} nodad\n\
             neigh replace 10.10.0.{other} lladdr {other_mac} dev {device} nud permanent\n\
             neigh replace fd10::{other} lladdr {other_mac} dev {device} nud permanent\n"
        ))?;
    }
    edge.ip("route add 10.10.0.1/32 via 10.9.0.2\nroute add 10.10.0.2/32 via 10.9.0.3\n")
}

fn shape(hosts: &[Host; 4], bits_per_second: u64) -> Result<()> {
    use interface::*;
    let [client, edge, primary, backup] = hosts;
    let ends = [
        (client, CLIENT),
        (edge, EDGE_CLIENT),
        (edge, EDGE_PRIMARY),
        (edge, EDGE_BACKUP),
        (primary, PRIMARY),
        (backup, BACKUP),
    ];
    for (host, device) in ends {
        let rate = format!("{bits_per_second}bit");
        let burst = format!("{TBF_BURST_BYTES}b");
        let latency = format!("{TBF_LATENCY_MS}ms");
        crate::command::output(
            "tc",
            &[
                "-n",
                host.namespace(),
                "qdisc",
                "add",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                &rate,
                "burst",
                &burst,
                "latency",
                &latency,
            ],
        )?;
    }
    Ok(())
}

pub(super) fn own_service_addresses(host: &Host, role: Role) -> Result<()> {
    let device = match role {
        Role::Backup => interface::BACKUP,
        Role::Edge => interface::EDGE_CLIENT,
        _ => interface::PRIMARY,
    };
    host.ip(&format!(
        "addr add {}/32 dev {device}\naddr add {}/128 dev {device} nodad\n",
        addresses::SERVICE_V4,
        addresses::SERVICE_V6
    ))
}
