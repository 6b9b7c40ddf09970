//! Which frames a network card takes besides those to its own address (`RTM_NEWNEIGH` for the
//! interface itself, as `bridge fdb add ... self`): it outlives the daemon.

use crate::netlink::{self, RTM_DELNEIGH, RTM_NEWNEIGH};
use libc::c_int;
use std::io;

const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 0x02;

/// Has the interface with this number take frames to `mac`; whether it did not before.
///
/// # Errors
/// As the kernel says, for want of CAP_NET_ADMIN or of such an interface.
pub fn take_frames(interface: u32, mac: [u8; 6]) -> io::Result<bool> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    match change(RTM_NEWNEIGH, flags, interface, mac) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Has the interface take them no more; whether it did.
///
/// # Errors
/// As the kernel says.
pub fn leave_frames(interface: u32, mac: [u8; 6]) -> io::Result<bool> {
    match change(RTM_DELNEIGH, 0, interface, mac) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
            Ok(false)
        }
        done => done.map(|()| true),
    }
}

fn change(kind: u16, flags: c_int, interface: u32, mac: [u8; 6]) -> io::Result<()> {
    let mut body = netlink::neighbour(libc::AF_BRIDGE, interface, NUD_PERMANENT, NTF_SELF);
    netlink::attribute(&mut body, NDA_LLADDR, &mac);
    netlink::change(kind, flags, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::netns::testing::{inside, run};

    #[test]
    fn an_interface_takes_frames_for_one_more_address_until_it_is_told_not_to() {
        inside("hff", || {
            run("ip", "link add v0 type veth peer name v1");
            let mac = [2, 0x68, 0x66, 1, 2, 3];
            let link = Link::by_name("v0").unwrap();
            assert!(take_frames(link.index, mac).unwrap());
            assert!(!take_frames(link.index, mac).unwrap(), "it does");
            assert!(leave_frames(link.index, mac).unwrap());
            assert!(!leave_frames(link.index, mac).unwrap());
            assert!(take_frames(link.index + 1000, mac).is_err());
        });
    }
}
