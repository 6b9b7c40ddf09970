//! Frames by which a host says whose an address is.

use super::edge::address;
use std::net::IpAddr;

/// An ARP request.
pub fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 9, 9, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 9, 9]);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

/// A message of neighbour discovery, without options and without a checksum.
pub fn neighbour_discovery(kind: u8, source: &str, targets: &[&str]) -> Vec<u8> {
    let octets = |text: &str| match address(text) {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(_) => panic!("IPv6"),
    };
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 9, 9, 0x86, 0xdd];
    let length = 8 + 16 * targets.len() as u8;
    frame.extend([0x60, 0, 0, 0, 0, length, 58, 255]);
    frame.extend(octets(source));
    frame.extend(octets("ff02::1"));
    frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    for target in targets {
        frame.extend(octets(target));
    }
    frame
}
