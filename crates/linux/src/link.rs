//! Network interfaces by name: their index and hardware address.

use crate::netlink;
use crate::sockopt::{self, checked};
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

/// Why an interface could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(
        "no interface named {name:?}: {source}; `ip link` lists those of this network namespace"
    )]
    Unknown { name: String, source: io::Error },
    #[error("reading the hardware address of {name:?}: {source}")]
    Hardware { name: String, source: io::Error },
}

/// One interface, as it was when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    /// Hardware address; all zero on links without Ethernet addresses
    /// (loopback, tunnels).
    pub mac: [u8; 6],
}

impl Link {
    /// Looks `name` up in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn by_name(name: &str) -> Result<Self, LinkError> {
        let unknown = |source| LinkError::Unknown { name: name.to_owned(), source };
        let index = index_of(name).map_err(unknown)?;
        let mac = hardware(name)
            .map_err(|source| LinkError::Hardware { name: name.to_owned(), source })?;
        Ok(Self { index, mac })
    }
}

/// The number of the interface `name` in the calling thread's network namespace.
pub(crate) fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string that lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Number and name of every interface in the calling thread's network namespace.
pub(crate) fn all() -> Vec<(u32, String)> {
    // SAFETY: no arguments; the list is freed below.
    let list = unsafe { libc::if_nameindex() };
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the list ends with an entry whose number is 0 and whose name is null; a null list is
    // empty.
    while let Some(entry) = unsafe { next.as_ref() }.filter(|entry| entry.if_index != 0) {
        // SAFETY: the name of every other entry is a C string.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.if_name) };
        found.push((entry.if_index, name.to_string_lossy().into_owned()));
        // SAFETY: this was not the last entry.
        next = unsafe { next.add(1) };
    }
    if !list.is_null() {
        // SAFETY: made by if_nameindex, and freed once.
        unsafe { libc::if_freenameindex(list) };
    }
    found
}

/// The name of interface `index` in the calling thread's network namespace;
/// `None` if there is none.
#[must_use]
pub fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the kernel writes a C string of at most IF_NAMESIZE bytes.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    text(&name)
}

/// What an interface can do at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// It takes and gives packets.
    Yes,
    /// It is set up, and nobody is at its other end.
    NoCarrier,
    /// It is set down.
    Down,
}

/// Whether the interface `name` carries packets. It is asked of the kernel, for `/sys` may be
/// that of another network namespace.
///
/// # Errors
/// If there is none.
pub fn carries(name: &str) -> io::Result<Carries> {
    let flags = libc::c_int::from(flags(name)?);
    Ok(match (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0) {
        (true, true) => Carries::Yes,
        (true, false) => Carries::NoCarrier,
        (false, _) => Carries::Down,
    })
}

fn flags(name: &str) -> io::Result<libc::c_short> {
    let fd = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = request(name);
    // SAFETY: the kernel reads and writes one ifreq, which is what we pass.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
    // SAFETY: SIOCGIFFLAGS has filled this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// The bridge, or whatever else, that the interface `name` belongs to; `None` if there is none.
#[must_use]
pub fn master_of(name: &str) -> Option<String> {
    const RTM_NEWLINK: u16 = 16;
    const RTM_GETLINK: u16 = 18;
    const IFLA_MASTER: u16 = 10;
    /// `struct ifinfomsg`, in bytes, and where it holds the number.
    const HEADER: usize = 16;
    const INDEX: usize = 4;
    let mut body = vec![0; HEADER];
    body[INDEX..INDEX + 4].copy_from_slice(&index_of(name).ok()?.to_ne_bytes());
    let mut request = Vec::new();
    netlink::append(&mut request, RTM_GETLINK, libc::NLM_F_REQUEST, 1, &body);
    let fd = netlink::open(libc::NETLINK_ROUTE).ok()?;
    netlink::send(&fd, &request).ok()?;
    // A card with many functions says much of itself.
    let mut buffer = vec![0; 32 << 10];
    let mut told = netlink::answers(netlink::receive(&fd, &mut buffer).ok()?);
    let of = told.find(|answer| answer.kind == RTM_NEWLINK)?;
    let mut attributes = netlink::attributes(of.body.get(HEADER..)?);
    let (_, value) = attributes.find(|(kind, _)| *kind == IFLA_MASTER)?;
    name_of(u32::from_ne_bytes(*value.first_chunk()?))
}

/// The text up to the first NUL.
fn text(name: &[libc::c_char]) -> Option<String> {
    let bytes = name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
    String::from_utf8(bytes.collect()).ok()
}

/// Makes the sender complete the checksums of what leaves through `name`, and cut it
/// to size, as if no card did it. Otherwise nobody would ever do so between
/// namespaces of one kernel, whereas packets from another machine are always
/// complete.
///
/// # Errors
/// As SIOCETHTOOL; it needs CAP_NET_ADMIN.
pub fn complete_checksums(name: &str) -> io::Result<()> {
    /// `struct ethtool_value` and a command of `<linux/ethtool.h>`.
    #[repr(C)]
    struct Setting {
        command: u32,
        value: u32,
    }
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let fd = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = request(name);
    let mut setting = Setting { command: ETHTOOL_STXCSUM, value: 0 };
    request.ifr_ifru.ifru_data = (&raw mut setting).cast();
    // SAFETY: the kernel reads one ifreq and the setting that it points to; both live
    // across the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })?;
    Ok(())
}

/// Sets an interface up, with these additional flags.
///
/// # Errors
/// As SIOCSIFFLAGS; it needs CAP_NET_ADMIN.
pub(crate) fn set_up(name: &str, flags: libc::c_int) -> io::Result<()> {
    let now = self::flags(name)?;
    let fd = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = now | (flags | libc::IFF_UP) as libc::c_short;
    // SAFETY: the kernel reads one ifreq, which is what we pass.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })?;
    Ok(())
}

/// The interface that a request speaks of.
pub(crate) fn name_in(request: &libc::ifreq) -> String {
    text(&request.ifr_name).unwrap_or_default()
}

/// A request about an interface. A name that is too long matches none.
pub(crate) fn request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

pub(crate) fn hardware(name: &str) -> io::Result<[u8; 6]> {
    let fd = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = request(name);
    // SAFETY: the kernel reads and writes one ifreq, which is what we pass.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) })?;
    // SAFETY: SIOCGIFHWADDR has filled this member of the union.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(data) {
        *to = from.cast_unsigned();
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interface_carries_is_asked_of_the_kernel() {
        assert_eq!(carries("lo").unwrap(), Carries::Yes);
        assert!(all().contains(&(index_of("lo").unwrap(), "lo".to_owned())));
        assert!(carries("nobody7").is_err());
        assert_eq!((master_of("lo"), master_of("nobody7")), (None, None));
    }
}
