//! What a service manager that has started this tunnel hears of it, as sd_notify(3) says: that it is
//! ready, what it last wrote into its log, that its loop turns, and that it is stopping. Without a
//! manager nothing is said. Nothing here may wait: the loop itself says all of it.

use std::env::var_os;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How often the loop is told of within the time after which it counts as hung.
const PETS: u32 = 4;

/// The manager that the environment names, if there is one.
pub struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Time between two words that the loop turns; `None` if nobody waits for them.
    pet_every: Option<Duration>,
    pet_at: Duration,
}

impl Manager {
    pub fn of_environment() -> Self {
        let to = var_os("NOTIFY_SOCKET").and_then(|place| open(&place).ok());
        Self { to, pet_every: watchdog().map(|limit| limit / PETS), pet_at: Duration::ZERO }
    }

    /// Everything is open, and verbs are answered. Whether the peer is there is another matter: a host
    /// must be able to boot alone.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The state in a line.
    pub fn say(&self, line: &str) {
        self.tell(&format!("STATUS={line}"));
    }

    /// The loop itself says that it turns: a thread of its own would go on for a loop that hangs.
    pub fn turn(&mut self, now: Duration) {
        if let Some(every) = self.pet_every.filter(|_| now >= self.pet_at) {
            self.pet_at = now + every;
            self.tell("WATCHDOG=1");
        }
    }

    /// When it waits for the next word.
    pub fn wake_at(&self) -> Option<Duration> {
        self.pet_every.map(|_| self.pet_at)
    }

    /// What cannot be said is as good as lost; the next word says the same.
    fn tell(&self, words: &str) {
        if let Some((socket, to)) = &self.to {
            let _lost = socket.send_to_addr(words.as_bytes(), to);
        }
    }
}

fn open(place: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let to = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, to))
}

/// Time after which the loop counts as hung, where the manager waits for this process' words.
fn watchdog() -> Option<Duration> {
    let number = |name| var_os(name)?.to_str()?.parse::<u64>().ok();
    let is_meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| *us > 0 && is_meant).map(Duration::from_micros)
}
