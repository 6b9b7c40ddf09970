//! What a service manager that has started this daemon hears of it, as sd_notify(3) says:
//! that it is ready, its state in a line, that its loop turns, and that it is stopping.
//!
//! The loop itself says so: a thread of its own would go on for a loop that hangs. So nothing
//! here may wait, and a datagram that cannot be sent is as good as lost; the next one says
//! the same. A process has one manager, which its environment names.

use crate::status::Status;
use holdfast_wire::message::clip;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// Variables by which the manager is found. Nobody whom this daemon starts may speak for it.
pub const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG_PID, WATCHDOG_USEC];

/// Time between two looks at the state.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the loop is told of within the time after which it counts as hung.
const PETS: u32 = 4;

static MANAGER: OnceLock<Option<Mutex<Manager>>> = OnceLock::new();

/// Tells the manager, when that is due, that the loop turns and what `line` says of the state.
/// The first turn makes the daemon ready: by then it answers verbs, has all that its role needs
/// from this host, and asks the others for its place. Call it at each turn.
pub fn turn(line: impl FnOnce() -> String) {
    let found = MANAGER.get_or_init(|| Manager::of_environment(|name| std::env::var_os(name)));
    if let Some(manager) = found {
        let mut manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
        manager.turn(Instant::now(), line);
    }
}

/// Tells the manager that a daemon that begins anew does not hang, if it was ever ready.
pub fn pet() {
    if let Some(Some(manager)) = MANAGER.get() {
        let manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
        let _lost = manager.pet_every.map(|_| manager.send("WATCHDOG=1"));
    }
}

/// Tells the manager that this daemon is stopping, if it was ever ready.
pub fn stopping() {
    if let Some(Some(manager)) = MANAGER.get() {
        let manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
        let _lost = manager.send("STOPPING=1\nSTATUS=stopping");
    }
}

/// A status in a line: role, name, state and reason.
#[must_use]
pub fn line(status: &Status) -> String {
    let Status { role, member, state, reason, .. } = status;
    let colon = if reason.is_empty() { "" } else { ": " };
    format!("{role} {member}, {state}{colon}{reason}")
}

struct Manager {
    socket: UnixDatagram,
    to: SocketAddr,
    /// Time between two words that the loop turns; `None` if nobody waits for them.
    pet_every: Option<Duration>,
    pet_at: Instant,
    look_at: Instant,
    is_ready: bool,
    told: String,
}

impl Manager {
    /// The manager that these variables name, if there is one.
    fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Mutex<Self>> {
        let place = variable(SOCKET)?;
        let opened = Self::open(&place, watchdog(&variable));
        opened.map_err(|error| tracing::warn!("{SOCKET}={}: {error}", place.display())).ok()
    }

    fn open(place: &OsStr, pet_every: Option<Duration>) -> io::Result<Mutex<Self>> {
        let to = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let now = Instant::now();
        let (is_ready, told) = (false, String::new());
        Ok(Mutex::new(Self { socket, to, pet_every, pet_at: now, look_at: now, is_ready, told }))
    }

    fn turn(&mut self, now: Instant, line: impl FnOnce() -> String) {
        if let Some(every) = self.pet_every
            && now >= self.pet_at
        {
            self.pet_at = now + every;
            let _lost = self.send("WATCHDOG=1");
        }
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let line = plain(&line());
        let ready = if self.is_ready { "" } else { "READY=1\n" };
        let is_news = !self.is_ready || self.told != line;
        if is_news && self.send(&format!("{ready}STATUS={line}")).is_ok() {
            (self.is_ready, self.told) = (true, line);
        }
    }

    fn send(&self, words: &str) -> io::Result<usize> {
        self.socket.send_to_addr(words.as_bytes(), &self.to)
    }
}

/// Time between two words that the loop turns, where the manager waits for them from this process.
fn watchdog(variable: &impl Fn(&str) -> Option<OsString>) -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let is_meant = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = number(WATCHDOG_USEC).filter(|us| *us > 0 && is_meant)?;
    Some(Duration::from_micros(limit) / PETS)
}

/// The text as one line: behind a line's end a peer's words would be words of this daemon.
fn plain(line: &str) -> String {
    let line: String = line.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    clip(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 2048];
        let mut next = || manager.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec());
        std::iter::from_fn(|| next().map(|it| String::from_utf8(it).unwrap())).collect()
    }

    /// A manager's own end, and what a daemon finds it by.
    fn listen(name: &str) -> (UnixDatagram, OsString) {
        let name = format!("holdfast-manager-{name}-{}", std::process::id());
        let own = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&own).unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, format!("@{name}").into())
    }

    #[test]
    fn the_loop_is_told_of_in_time_and_a_state_once() {
        let (socket, place) = listen("turns");
        let manager = Manager::open(&place, Some(Duration::from_secs(3))).unwrap();
        let mut manager = manager.into_inner().unwrap();
        let begun = Instant::now();
        let mut turn = |ms: u64, line: &str| {
            manager.turn(begun + Duration::from_millis(ms), || line.to_owned());
            heard(&socket)
        };
        assert_eq!(turn(10, "a"), ["WATCHDOG=1", "READY=1\nSTATUS=a"]);
        assert!(turn(20, "b").is_empty(), "not a second later");
        assert_eq!(turn(1010, "b"), ["STATUS=b"]);
        assert!(turn(2500, "b").is_empty());
        assert_eq!(turn(3010, "b"), ["WATCHDOG=1"]);
        // A peer's words are part of the line.
        assert_eq!(turn(4000, "c: x\nMAINPID=1"), ["STATUS=c: x MAINPID=1"]);
    }

    #[test]
    fn a_manager_that_is_busy_or_gone_keeps_nobody_waiting() {
        let (socket, place) = listen("busy");
        let manager = Manager::open(&place, None).unwrap();
        let manager = manager.into_inner().unwrap();
        let begun = Instant::now();
        let refused = (0..10_000).find_map(|_| manager.send("STATUS=x").err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        drop(socket);
        assert!(manager.send("STATUS=x").is_err());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_this_ones() {
        let own = std::process::id().to_string();
        let of = |pid: &str, us: &str| {
            let given = [(WATCHDOG_PID, pid), (WATCHDOG_USEC, us)];
            let of = |name: &str| given.iter().find(|(it, _)| *it == name).map(|it| it.1.into());
            watchdog(&|name: &str| of(name).filter(|it: &OsString| !it.is_empty()))
        };
        assert_eq!(of(&own, "8000000"), Some(Duration::from_secs(2)));
        assert_eq!(of("", "8000000"), Some(Duration::from_secs(2)));
        assert_eq!((of("1", "8000000"), of(&own, "0"), of(&own, "soon")), (None, None, None));
    }
}
