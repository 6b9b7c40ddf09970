//! The networks that this host is in, and behind which port of a bridge another one is: what a
//! group's file says of a host, read from the kernel.

use crate::link;
use crate::netlink;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_GETNEIGH: u16 = 30;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_MASTER: u16 = 9;
/// Sizes of `struct ifaddrmsg`, `struct ifinfomsg` and `struct ndmsg`, in bytes.
const IFADDRMSG: usize = 8;
const IFINFOMSG: usize = 16;
const NDMSG: usize = 12;
/// Room for one datagram of a list, in bytes: the kernel fills no larger ones.
const LIST_BYTES: usize = 32 << 10;

/// An address of this host and the length of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// Name of the interface that has it.
    pub interface: String,
    pub address: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
}

/// Every address of every interface in the calling thread's network namespace.
///
/// # Errors
/// When the kernel does not answer.
pub fn own() -> io::Result<Vec<OwnAddress>> {
    let mut found = Vec::new();
    list(RTM_GETADDR, &[0; IFADDRMSG], |kind, body| {
        if kind == RTM_NEWADDR {
            found.extend(parse_address(body));
        }
    })?;
    Ok(found)
}

fn parse_address(body: &[u8]) -> Option<OwnAddress> {
    let prefix = *body.get(1)?;
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let of = |wanted| {
        netlink::attributes(body.get(IFADDRMSG..)?)
            .find(|(kind, _)| *kind == wanted)
            .and_then(|(_, value)| address_of(value))
    };
    // Where there is a peer, IFA_ADDRESS is that one's.
    let address = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?;
    Some(OwnAddress { interface: link::name_of(index)?, address, prefix })
}

fn address_of(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).ok().map(|it| IpAddr::from(Ipv4Addr::from(it)));
    v4.or_else(|| Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()))
}

/// Names of the interfaces in the calling thread's network namespace, in the kernel's order.
#[must_use]
pub fn interfaces() -> Vec<String> {
    link::all().into_iter().map(|(_, name)| name).collect()
}

/// Whether the interface is a bridge, which has ports.
#[must_use]
pub fn is_bridge(name: &str) -> bool {
    kind_of(name).is_ok_and(|kind| kind.as_deref() == Some("bridge"))
}

/// What an interface was made as (`ip link add type ...`); `None` for a card.
fn kind_of(name: &str) -> io::Result<Option<String>> {
    let mut body = vec![0; IFINFOMSG];
    body[4..8].copy_from_slice(&link::index_of(name)?.to_ne_bytes());
    let mut request = Vec::new();
    netlink::append(&mut request, RTM_GETLINK, libc::NLM_F_REQUEST, 1, &body);
    let fd = netlink::open(libc::NETLINK_ROUTE)?;
    netlink::send(&fd, &request)?;
    let mut buffer = vec![0; LIST_BYTES];
    let mut told = netlink::answers(netlink::receive(&fd, &mut buffer)?);
    let of = |body: &[u8]| {
        let (_, info) =
            netlink::attributes(body.get(IFINFOMSG..)?).find(|it| it.0 == IFLA_LINKINFO)?;
        let (_, kind) = netlink::attributes(info).find(|it| it.0 == IFLA_INFO_KIND)?;
        let kind = kind.strip_suffix(&[0]).unwrap_or(kind);
        Some(String::from_utf8_lossy(kind).into_owned())
    };
    Ok(told.find(|it| it.kind == RTM_NEWLINK).and_then(|it| of(it.body)))
}

/// The port of a bridge behind which a hardware address has been seen; `None` where the bridge has
/// not heard it lately.
///
/// # Errors
/// When the kernel does not answer, or there is no such interface.
pub fn port_of(bridge: &str, mac: [u8; 6]) -> io::Result<Option<String>> {
    let bridge = link::index_of(bridge)?;
    let body = netlink::neighbour(libc::AF_BRIDGE, 0, 0, 0);
    let mut found = None;
    list(RTM_GETNEIGH, &body, |kind, body| {
        if kind == netlink::RTM_NEWNEIGH && found.is_none() {
            found = learnt(body, bridge, mac);
        }
    })?;
    Ok(found.and_then(link::name_of))
}

/// The number of the port, if the entry is about this address at this bridge.
fn learnt(body: &[u8], bridge: u32, mac: [u8; 6]) -> Option<u32> {
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let of = |wanted| {
        netlink::attributes(body.get(NDMSG..).unwrap_or_default())
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    let is_its = of(NDA_MASTER) == Some(bridge.to_ne_bytes().as_slice());
    (is_its && of(NDA_LLADDR) == Some(mac.as_slice())).then_some(index)
}

/// Asks for a list and passes the kind and body of each of its messages to `each`.
fn list(kind: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let fd = netlink::open(libc::NETLINK_ROUTE)?;
    let mut request = Vec::new();
    netlink::append(&mut request, kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, 1, body);
    netlink::send(&fd, &request)?;
    let mut buffer = vec![0; LIST_BYTES];
    loop {
        for answer in netlink::answers(netlink::receive(&fd, &mut buffer)?) {
            if let Some(errno) = answer.errno() {
                return Err(io::Error::from_raw_os_error(errno));
            }
            if libc::c_int::from(answer.kind) == libc::NLMSG_DONE {
                return Ok(());
            }
            each(answer.kind, answer.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::testing::{inside, run};

    #[test]
    fn the_loopback_is_one_of_the_networks() {
        let own = own().unwrap();
        let lo = own.iter().find(|it| it.address == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!((lo.interface.as_str(), lo.prefix), ("lo", 8));
        assert!(interfaces().contains(&"lo".to_owned()));
        assert!(!is_bridge("lo") && !is_bridge("nobody7"));
    }

    #[test]
    fn a_bridge_knows_behind_which_port_an_address_is() {
        inside("hfn", || {
            run("ip", "link add br7 type bridge");
            run("ip", "link add v7 type veth peer name w7");
            run("ip", "link set v7 master br7");
            run("ip", "addr add 10.77.0.1/28 dev br7");
            run("bridge", "fdb add 02:00:00:00:00:77 dev v7 master static");
            assert!(is_bridge("br7") && !is_bridge("v7"));
            let mac = [2, 0, 0, 0, 0, 0x77];
            assert_eq!(port_of("br7", mac).unwrap().as_deref(), Some("v7"));
            assert_eq!(port_of("br7", [2, 0, 0, 0, 0, 0x78]).unwrap(), None);
            assert_eq!(port_of("v7", mac).unwrap(), None, "it has no ports");
            let own = own().unwrap();
            let it = own.iter().find(|it| it.interface == "br7").unwrap();
            assert_eq!((it.address, it.prefix), (IpAddr::from([10, 77, 0, 1]), 28));
        });
    }
}
