//! When a packet arrived, by the kernel's clock: its reader may be late.

use crate::sockopt::checked;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `SIOCGSTAMPNS_OLD` of linux/sockios.h.
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;

/// When the packet that was read last from this socket had arrived. The first
/// call makes the kernel keep times, which begins some milliseconds later: make
/// that call well before the first packet that matters. A packet without a time
/// counts as arrived when it was read.
///
/// # Errors
/// When no time is known, as in the first call.
pub fn of_last(socket: impl AsFd) -> io::Result<SystemTime> {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes one timespec, which is what we pass.
    checked(unsafe { libc::ioctl(fd, SIOCGSTAMPNS, &raw mut at) })?;
    let (seconds, nanos) = (at.tv_sec.unsigned_abs(), at.tv_nsec.unsigned_abs());
    Ok(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Instant;

    #[test]
    fn a_late_reader_learns_when_a_packet_came() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(of_last(&socket).is_err());
        let begun = Instant::now();
        loop {
            let before = SystemTime::now();
            socket.send_to(&[1], socket.local_addr().unwrap()).unwrap();
            let after = SystemTime::now();
            std::thread::sleep(Duration::from_millis(20));
            socket.recv(&mut [0; 1]).unwrap();
            let came = of_last(&socket).unwrap();
            assert!(before <= came, "{before:?} {came:?}");
            if came <= after {
                return;
            }
            // The kernel switches its stamps on in the background.
            assert!(begun.elapsed() < Duration::from_secs(10), "{came:?} {after:?}");
        }
    }
}
