//! Words for the service manager that has started a program, as sd_notify(3) has them. A datagram that
//! cannot be sent is as good as lost: whoever says it must not wait, and says the same again.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Names the socket.
pub const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// Variables by which the manager is found. Nobody whom a daemon starts may speak for it.
pub const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG_PID, WATCHDOG_USEC];
/// How often the loop is told of within the time after which it counts as hung.
const PETS: u32 = 4;

/// The way to a manager.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    to: SocketAddr,
}

impl Notify {
    /// To the socket of this path, or behind an `@` of this abstract name.
    ///
    /// # Errors
    /// If the kernel gives no socket, or the name is none.
    pub fn open(place: &OsStr) -> io::Result<Self> {
        let to = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to })
    }

    /// Says it, without waiting.
    ///
    /// # Errors
    /// As `sendto`: nobody has heard it.
    pub fn send(&self, words: &str) -> io::Result<usize> {
        self.socket.send_to_addr(words.as_bytes(), &self.to)
    }
}

/// Time between two words that the loop turns, where the manager waits for them from this process; of
/// the environment's variables by their names.
pub fn watchdog(variable: impl Fn(&str) -> Option<OsString>) -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let is_meant = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = number(WATCHDOG_USEC).filter(|us| *us > 0 && is_meant)?;
    Some(Duration::from_micros(limit) / PETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_not_this_ones() {
        let own = std::process::id().to_string();
        let of = |pid: &str, us: &str| {
            let given = [(WATCHDOG_PID, pid), (WATCHDOG_USEC, us)];
            let of = |name: &str| given.iter().find(|(it, _)| *it == name).map(|it| it.1.into());
            watchdog(|name: &str| of(name).filter(|it: &OsString| !it.is_empty()))
        };
        assert_eq!(of(&own, "8000000"), Some(Duration::from_secs(2)));
        assert_eq!(of("", "8000000"), Some(Duration::from_secs(2)));
        assert_eq!((of("1", "8000000"), of(&own, "0"), of(&own, "soon")), (None, None, None));
    }
}
