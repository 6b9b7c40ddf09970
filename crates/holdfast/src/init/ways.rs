//! How packets leave this host: by which port an edge reaches a member, and where clients come from.

use super::facts::LinkFacts;
use super::fit::Way;
use super::meeting::Lack;
use holdfast_linux::link;
use holdfast_linux::networks;
use holdfast_linux::route::RouteSocket;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// By which interface this host, an edge, reaches a member's interface, which has this address.
///
/// # Errors
/// What does not fit.
pub fn way_to(host: &str, address: IpAddr, carrier: &LinkFacts) -> Result<Way, Lack> {
    let hop = RouteSocket::open().and_then(|mut routes| routes.next_hop(address));
    let hop = hop.map_err(|error| {
        let what = format!("this host has no way to {address} of {host}: {error}");
        Lack::new(what, "give both an address in one network")
    })?;
    let name = link::name_of(hop.ifindex).unwrap_or_default();
    if hop.address != address {
        return Err(Lack::new(
            format!("{address} of {host} is behind the router {} (by {name})", hop.address),
            "members are beside the edge: each at a port of it, without a router between",
        ));
    }
    if !networks::is_bridge(&name) {
        return Ok(Way { edge_port: name, l3: None });
    }
    match networks::port_of(&name, carrier.mac) {
        Ok(Some(port)) => Ok(Way { edge_port: port, l3: Some(name) }),
        Ok(None) => Err(Lack::new(
            format!(
                "the bridge {name} has not seen {} of {host} ({})",
                carrier.mac_text(),
                carrier.name
            ),
            format!(
                "`bridge fdb show br {name}` lists what it has seen: is that the interface by which {host} reaches this host?"
            ),
        )),
        Err(error) => Err(Lack::new(
            format!("the kernel does not tell what the bridge {name} has seen: {error}"),
            "write the file by hand: `holdfast config example`",
        )),
    }
}

/// The interface of the default route of a family; `None` without one.
#[must_use]
pub fn default_route(v6: bool) -> Option<String> {
    // Addresses that nobody has (RFC 5737, RFC 3849).
    let nowhere: IpAddr =
        if v6 { [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into() } else { [192, 0, 2, 1].into() };
    let hop = RouteSocket::open().ok()?.next_hop(nowhere).ok()?;
    link::name_of(hop.ifindex).filter(|it| it != "lo")
}

/// The address from which this host reaches others outside of its networks; `None` without a way.
#[must_use]
pub fn source() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|it| it.ip())
}
