//! Addresses that stand in a table of the kernel which routes nothing on this host, for a routing
//! daemon that announces what it finds there.

use super::{RTA_DST, RTM_NEWROUTE, RTMSG};
use crate::netlink;
use libc::c_int;
use std::io;
use std::net::IpAddr;

const RTM_DELROUTE: u16 = 25;
const RTA_TABLE: u16 = 15;
const RTN_UNREACHABLE: u8 = 7;
/// Who has made the route (`ip route show ... proto 77`); a number that the kernel gives to nobody.
const PROTOCOL: u8 = 77;

/// Puts an address into a table; whether it was not there.
///
/// # Errors
/// As the kernel says, for want of CAP_NET_ADMIN.
pub fn put(table: u32, address: IpAddr) -> io::Result<bool> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    match change(RTM_NEWROUTE, flags, table, address) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Takes an address out of a table; whether it was there.
///
/// # Errors
/// As the kernel says.
pub fn take(table: u32, address: IpAddr) -> io::Result<bool> {
    match change(RTM_DELROUTE, 0, table, address) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(false),
        done => done.map(|()| true),
    }
}

fn change(kind: u16, flags: c_int, table: u32, address: IpAddr) -> io::Result<()> {
    let mut body = vec![0; RTMSG];
    (body[0], body[1]) = match address {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    };
    (body[5], body[7]) = (PROTOCOL, RTN_UNREACHABLE);
    netlink::address(&mut body, RTA_DST, address);
    netlink::attribute(&mut body, RTA_TABLE, &table.to_ne_bytes());
    netlink::change(kind, flags, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::testing::inside;
    use std::process::Command;

    #[test]
    fn an_address_stands_in_the_table_until_it_is_taken_out() {
        inside("hfr", || {
            for ip in ["10.9.0.100", "fd09::100"] {
                let ip: IpAddr = ip.parse().unwrap();
                assert!(put(200, ip).unwrap());
                assert!(!put(200, ip).unwrap(), "it is there");
                let family = if ip.is_ipv4() { "-4" } else { "-6" };
                let words = [family, "route", "show", "table", "200", "proto", "77"];
                let shown = Command::new("ip").args(words).output().unwrap().stdout;
                let shown = String::from_utf8_lossy(&shown).into_owned();
                assert!(shown.starts_with(&format!("unreachable {ip}")), "{shown}");
                assert!(take(200, ip).unwrap());
                assert!(!take(200, ip).unwrap(), "it is gone");
            }
        });
    }
}
