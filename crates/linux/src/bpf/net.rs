//! Interface numbers and hardware addresses of the calling thread's network
//! namespace, by ioctl: `/sys` shows the namespace it was mounted in.

use super::error::BpfError;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The interface's number.
pub(crate) fn ifindex(interface: &str) -> Result<u32, BpfError> {
    let failed = |source| BpfError::NoInterface { interface: interface.into(), source };
    let name = CString::new(interface).map_err(|error| failed(error.into()))?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(failed(io::Error::last_os_error())),
        index => Ok(index),
    }
}

/// The interface's Ethernet address.
pub(crate) fn mac(interface: &str) -> Result<[u8; 6], BpfError> {
    let failed = |source| BpfError::NoInterface { interface: interface.into(), source };
    // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = byte.cast_signed();
    }
    let socket = datagram_socket().map_err(failed)?;
    // SAFETY: SIOCGIFHWADDR reads and writes one ifreq, which `request` is.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if status != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: the ioctl succeeded, so the kernel has filled `ifru_hwaddr`.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut mac = [0; 6];
    for (to, byte) in mac.iter_mut().zip(data) {
        *to = byte.cast_unsigned();
    }
    Ok(mac)
}

fn datagram_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket() takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
