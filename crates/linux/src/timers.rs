//! How soon one TCP connection repeats lost segments. The kernel's default of
//! 200 ms is made for the Internet; between two neighbours it is longer than
//! three heartbeats.

use crate::sockopt;
use libc::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// linux/tcp.h since Linux 6.15; the libc crate does not know them.
const TCP_RTO_MIN_US: c_int = 45;
const TCP_DELACK_MAX_US: c_int = 46;

/// Least retransmission timeout, in µs: at least two ticks of a kernel with 250 Hz
/// (RFC 6298 §2.4 asks for a second, which Linux has never obeyed).
const RTO_MIN_US: c_int = 12_000;
/// Longest delay of an ACK, in µs: below the timeout (RFC 1122 §4.2.3.2).
const DELACK_MAX_US: c_int = 8_000;

/// Makes a connection to a neighbour repeat lost segments within milliseconds.
/// Both ends should ask for it: before the handshake, whose round trip would
/// otherwise start the estimate at the kernel's 200 ms, from which it comes down
/// only by a quarter per round trip. A listener's connections inherit it.
///
/// # Errors
/// Kernels older than 6.15, or with a coarser tick, refuse; the connection then
/// works with the usual timers.
pub fn repeat_soon(connection: BorrowedFd<'_>) -> io::Result<()> {
    // Heartbeats are a thin stream: each further loss of one costs as much as the
    // first, instead of twice as much.
    sockopt::set(connection, libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, &1)?;
    sockopt::set(connection, libc::IPPROTO_TCP, TCP_DELACK_MAX_US, &DELACK_MAX_US)?;
    sockopt::set(connection, libc::IPPROTO_TCP, TCP_RTO_MIN_US, &RTO_MIN_US)
}

/// Offset of `tcpi_rtt` in `struct tcp_info`, in bytes; `tcpi_rttvar` follows.
const RTT: usize = 68;

/// How long a round trip of this connection takes, and how much that varies, as its kernel
/// estimates it (RFC 6298 §2); `None` if it does not tell.
#[must_use]
pub fn round_trip(connection: BorrowedFd<'_>) -> Option<(Duration, Duration)> {
    let info: [u8; RTT + 8] = sockopt::get(connection, libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
    let micros = |at: usize| {
        let word = info[at..].first_chunk().copied().map(u32::from_ne_bytes);
        Duration::from_micros(u64::from(word.unwrap_or_default()))
    };
    Some((micros(RTT), micros(RTT + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    #[test]
    fn a_round_trip_on_this_host_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mean, _) = round_trip(client.as_fd()).expect("an estimate");
        assert!(mean > Duration::ZERO && mean < Duration::from_secs(1), "{mean:?}");
    }

    #[test]
    fn a_kernel_that_knows_the_timers_keeps_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        match repeat_soon(listener.as_fd()) {
            Ok(()) => {
                let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let accepted = listener.accept().unwrap().0;
                let kept: c_int =
                    sockopt::get(accepted.as_fd(), libc::IPPROTO_TCP, TCP_RTO_MIN_US).unwrap();
                assert_eq!(kept, RTO_MIN_US);
            }
            Err(error) => {
                let code = error.raw_os_error();
                assert!(matches!(code, Some(libc::ENOPROTOOPT | libc::EINVAL)), "{error}");
            }
        }
    }
}
