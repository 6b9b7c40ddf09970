//! Telling the neighbours where the service address is now: gratuitous ARP (RFC
//! 826, RFC 5227 §3) and unsolicited neighbour advertisements (RFC 4861
//! §7.2.6), over a socket that is opened before it is needed.

use crate::link::Link;
use crate::packet::PacketSocket;
use crate::sockopt::{self, Address, checked};
use holdfast_wire::packet::{Sum, mapped, mapped_ipv4};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const BROADCAST: [u8; 6] = [0xff; 6];
/// Ethernet's and IPv6's addresses for all nodes of a link (RFC 2464 §7, RFC 4291
/// §2.7.1).
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: [u8; 16] = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Flag: replaces what the neighbour has cached.
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

/// Why neighbours could not be told.
#[derive(Debug, thiserror::Error)]
pub enum NeighbourError {
    #[error("opening a packet socket: {0}; the daemon needs CAP_NET_RAW")]
    Open(io::Error),
    #[error("announcing the service address: {0}; the interface must be up")]
    Announce(io::Error),
}

/// A packet socket that only sends.
#[derive(Debug)]
pub struct Announcer {
    fd: PacketSocket,
}

impl Announcer {
    /// # Errors
    /// [`NeighbourError::Open`].
    pub fn open() -> Result<Self, NeighbourError> {
        let fd = PacketSocket::open(libc::SOCK_RAW).map_err(NeighbourError::Open)?;
        Ok(Self { fd })
    }

    /// Announces once that `address` (IPv4 mapped into IPv6) is at `link`: for IPv4
    /// as a request and as a reply, because neighbours differ in which they
    /// believe.
    ///
    /// # Errors
    /// [`NeighbourError::Announce`].
    pub fn announce(&self, link: &Link, address: &[u8; 16]) -> Result<(), NeighbourError> {
        let send = |frame: &[u8], protocol, to| {
            let to = Address::link(link.index, protocol, Some(to));
            sockopt::send_to(self.fd.as_fd(), frame, &to).map_err(NeighbourError::Announce)
        };
        match mapped_ipv4(address) {
            Some(ipv4) => {
                send(&arp(ARP_REQUEST, link.mac, ipv4), ETHERTYPE_ARP, BROADCAST)?;
                send(&arp(ARP_REPLY, link.mac, ipv4), ETHERTYPE_ARP, BROADCAST)?;
            }
            None => {
                send(&advertisement(link.mac, address), ETHERTYPE_IPV6, ALL_NODES_MAC)?;
            }
        }
        Ok(())
    }
}

/// Every address of this host (IPv4 mapped into IPv6), with the name of its interface, in the
/// calling thread's network namespace.
///
/// # Errors
/// As getifaddrs(3).
pub fn own_addresses() -> io::Result<Vec<(String, [u8; 16])>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: libc makes a list and puts its beginning there.
    checked(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut own = Vec::new();
    let mut at = first;
    // SAFETY: each item of the list, and what it points to, lives until it is freed below.
    while let Some(item) = unsafe { at.as_ref() } {
        // SAFETY: the same; a name is a C string.
        let name = unsafe { CStr::from_ptr(item.ifa_name) };
        // SAFETY: the same; it is null or an address.
        if let Some(address) = unsafe { address_at(item.ifa_addr) } {
            own.push((name.to_string_lossy().into_owned(), mapped(address)));
        }
        at = item.ifa_next;
    }
    // SAFETY: the list is libc's, and nobody refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(own)
}

/// The IP address that is there; `None` if it is null or of another kind.
///
/// # Safety
/// Null, or an address as long as its family's are.
unsafe fn address_at(at: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as this function asks.
    match i32::from(unsafe { at.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: so says the family; it may be anywhere.
            let found = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the same.
            let found = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes()].concat()
}

/// An announcement of RFC 5227 §3: sender and target are the same address.
fn arp(operation: u8, mac: [u8; 6], ipv4: [u8; 4]) -> Vec<u8> {
    let target = if operation == ARP_REQUEST { [0; 6] } else { BROADCAST };
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    frame.extend([0, 1, 0x08, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(ipv4);
    frame.extend(target);
    frame.extend(ipv4);
    frame
}

fn advertisement(mac: [u8; 6], address: &[u8; 16]) -> Vec<u8> {
    let mut icmp = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    icmp.extend(address);
    icmp.extend([TARGET_LINK_LAYER_ADDRESS, 1]);
    icmp.extend(mac);
    let len = icmp.len() as u16;
    let sum = Sum::default()
        .with(address)
        .with(&ALL_NODES)
        .with(&len.to_be_bytes())
        .with(&[0, ICMPV6])
        .with(&icmp)
        .finish();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());

    let mut frame = ethernet(ALL_NODES_MAC, mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(len.to_be_bytes());
    // The hop limit must be 255 (RFC 4861 §7.1.2).
    frame.extend([ICMPV6, 255]);
    frame.extend(address);
    frame.extend(ALL_NODES);
    frame.extend(icmp);
    frame
}
