//! How the target of a forward is written for the other end: a byte of flags, 4 or 16 bytes of address,
//! and the port.

use std::net::{IpAddr, SocketAddr};

/// Flag of a message or stream that begins with a target.
pub(super) const WITH_TARGET: u8 = 2;
const TARGET_IS_V6: u8 = 4;

/// Appends the flags and the target.
pub(super) fn push(message: &mut Vec<u8>, target: SocketAddr) {
    match target.ip() {
        IpAddr::V4(ip) => {
            message.push(WITH_TARGET);
            message.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            message.push(WITH_TARGET | TARGET_IS_V6);
            message.extend(ip.octets());
        }
    }
    message.extend(target.port().to_be_bytes());
}

/// Reads the target behind its flags; it and what follows.
pub(super) fn read(head: u8, bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (ip, rest): (IpAddr, _) = if head & TARGET_IS_V6 == 0 {
        let (ip, rest) = bytes.split_first_chunk::<4>()?;
        ((*ip).into(), rest)
    } else {
        let (ip, rest) = bytes.split_first_chunk::<16>()?;
        ((*ip).into(), rest)
    };
    let (port, rest) = rest.split_first_chunk::<2>()?;
    Some((SocketAddr::from((ip, u16::from_be_bytes(*port))), rest))
}

/// Bytes of a target behind its flags.
pub(super) fn bytes(head: u8) -> usize {
    if head & TARGET_IS_V6 == 0 { 4 + 2 } else { 16 + 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_survive_the_wire() {
        for text in ["192.0.2.1:53", "[2001:db8::1]:65535"] {
            let target: SocketAddr = text.parse().expect("an address");
            let mut message = Vec::new();
            push(&mut message, target);
            message.extend(b"rest");
            let found = read(message[0], &message[1..]);
            assert_eq!(found, Some((target, &b"rest"[..])));
            assert_eq!(bytes(message[0]), message.len() - 1 - 4);
            for cut in 1..message.len() - 4 {
                assert_eq!(read(message[0], &message[1..cut]), None);
            }
        }
    }
}
