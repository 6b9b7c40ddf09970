use super::{bound_family, endpoint};
use crate::base::sys::sys;

fn address(family: i32, rest: &[u8]) -> [u8; 32] {
    let mut address = [0; 32];
    address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    address[2..2 + rest.len()].copy_from_slice(rest);
    address
}

#[test]
fn both_families_are_one_kind_of_address() {
    let v4 = address(libc::AF_INET, &[0x1f, 0x90, 10, 0, 0, 7]);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7];
    assert_eq!(endpoint(&v4), (mapped, 8080));
    let ip: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
    let mut rest = vec![0, 80, 0, 0, 0, 0];
    rest.extend(ip);
    assert_eq!(endpoint(&address(libc::AF_INET6, &rest)), (ip, 80));
}

#[test]
fn other_families_and_short_addresses_say_nothing_of_an_address() {
    assert_eq!(endpoint(&address(libc::AF_UNIX, &[0x1f, 0x90])).0, [0; 16]);
    assert_eq!(endpoint(&[2, 0, 0x1f, 0x90]), ([0; 16], 0));
    assert_eq!(endpoint(&[]), ([0; 16], 0));
}

#[test]
fn a_socket_that_was_not_bound_by_its_number_tells_its_family() {
    for family in [libc::AF_INET6, libc::AF_INET] {
        let fd = sys!(SYS_socket, family, libc::SOCK_STREAM, 0) as i32;
        assert_eq!(bound_family(fd), family);
        sys!(SYS_close, fd);
    }
}
