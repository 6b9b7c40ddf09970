//! An interface of the daemon's own: a packet that is written to it comes in as if
//! a client had sent it, and passes the programs attached there.

use crate::frame;
use crate::link::{self, Link};
use crate::sockopt::checked;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

/// Name of the interface; the kernel puts a number for the `%d`.
const NAME: &str = "hf-in%d";
/// `TUNSETIFF` of `<linux/if_tun.h>`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
/// Source address of the frames; the interface's own address is their destination.
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Why there is no such interface.
#[derive(Debug, thiserror::Error)]
pub enum InletError {
    #[error("opening /dev/net/tun: {0}; it needs CONFIG_TUN and CAP_NET_ADMIN")]
    Open(io::Error),
    #[error("making an interface: {0}; the daemon needs CAP_NET_ADMIN")]
    Make(io::Error),
}

/// The interface, which is gone when this is dropped.
#[derive(Debug)]
pub struct Inlet {
    device: File,
    name: String,
    link: Link,
}

impl Inlet {
    /// Makes the interface in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`InletError`].
    pub fn open() -> Result<Self, InletError> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
        let device = device.map_err(InletError::Open)?;
        let mut request = link::request(NAME);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the kernel reads and writes one ifreq, which lives across the call.
        checked(unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) })
            .map_err(InletError::Make)?;
        let name = link::name_in(&request);
        // Nothing leaves by this interface: no neighbours are looked for, and
        // none is answered.
        let _unheard = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        link::set_up(&name, libc::IFF_NOARP).map_err(InletError::Make)?;
        let link =
            Link::by_name(&name).map_err(|error| InletError::Make(io::Error::other(error)))?;
        Ok(Self { device, name, link })
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.link.index
    }

    /// Lets a packet, IP header first, come in. Its checksums must be complete.
    ///
    /// # Errors
    /// As write(2); `InvalidInput` if it is no IP packet.
    pub fn put(&self, l3: &[u8]) -> io::Result<()> {
        let protocol = frame::ethertype(l3).ok_or(io::ErrorKind::InvalidInput)?;
        let mut frame = Vec::with_capacity(l3.len() + frame::ETHERNET);
        frame::write(&mut frame, (self.link.mac, FROM), protocol, l3);
        (&self.device).write_all(&frame)
    }
}
