//! Tells whether this host's interfaces, addresses or tc filters have changed:
//! the kernel reports it. Asking the kernel takes the lock of all network
//! namespaces instead, which an event loop may wait for while others set up
//! theirs.

use crate::{netlink, sockopt};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};

/// `RTMGRP_LINK`, `RTMGRP_TC`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of
/// linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x8 | 0x10 | 0x100;
/// Most messages looked at in one go; more are as good as one.
const TAKEN_MAX: usize = 256;

/// A listener in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Changes {
    fd: OwnedFd,
    /// Whether nobody has looked at anything yet.
    is_new: bool,
}

impl Changes {
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        let fd = netlink::open(libc::NETLINK_ROUTE)?;
        netlink::listen(&fd, GROUPS)?;
        Ok(Self { fd, is_new: true })
    }

    /// Whether there was a change since the last call, or this is the first call. If
    /// messages were missed because there were too many, there was a change.
    #[must_use]
    pub fn take(&mut self) -> bool {
        let is_new = std::mem::take(&mut self.is_new);
        let mut buffer = [0; 64];
        for count in 0..TAKEN_MAX {
            match sockopt::receive(self.fd.as_fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return is_new || count > 0,
                _ => {}
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::testing::{inside, run};

    #[test]
    fn what_others_change_is_noticed_and_nothing_else() {
        inside("hfc", || {
            let mut changes = Changes::open().unwrap();
            assert!(changes.take() && !changes.take());
            for (program, words) in [
                ("ip", "link set lo up"),
                ("ip", "address add 10.1.1.1/32 dev lo"),
                ("ip", "address add fd01::1/128 dev lo"),
                ("tc", "qdisc add dev lo clsact"),
                ("tc", "qdisc del dev lo clsact"),
                ("ip", "address del 10.1.1.1/32 dev lo"),
            ] {
                run(program, words);
                assert!(changes.take(), "{words}");
                // An IPv6 address that comes with it is reported a moment
                // later.
                std::thread::sleep(std::time::Duration::from_millis(50));
                let _later = changes.take();
                assert!(!changes.take(), "{words}");
            }
        });
    }
}
