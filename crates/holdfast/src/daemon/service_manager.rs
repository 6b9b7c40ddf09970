//! What a service manager that has started this daemon hears of it, as sd_notify(3) says:
//! that it is ready, its state in a line, that its loop turns, and that it is stopping.
//!
//! The loop itself says so: a thread of its own would go on for a loop that hangs. So nothing
//! here may wait, and a datagram that cannot be sent is as good as lost; the next one says
//! the same. A process has one manager, which its environment names.

use crate::status::Status;
pub use holdfast_program::notify::VARIABLES;
use holdfast_program::notify::{Notify, SOCKET, watchdog};
use holdfast_wire::message::clip;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at the state.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
        let _lost = manager.pet_every.map(|_| manager.to.send("WATCHDOG=1"));
    }
}

/// Tells the manager that this daemon is stopping, if it was ever ready.
pub fn stopping() {
    if let Some(Some(manager)) = MANAGER.get() {
        let manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
        let _lost = manager.to.send("STOPPING=1\nSTATUS=stopping");
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
    to: Notify,
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
        let (to, now) = (Notify::open(place)?, Instant::now());
        let (is_ready, told) = (false, String::new());
        Ok(Mutex::new(Self { to, pet_every, pet_at: now, look_at: now, is_ready, told }))
    }

    fn turn(&mut self, now: Instant, line: impl FnOnce() -> String) {
        if let Some(every) = self.pet_every
            && now >= self.pet_at
        {
            self.pet_at = now + every;
            let _lost = self.to.send("WATCHDOG=1");
        }
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let line = plain(&line());
        let ready = if self.is_ready { "" } else { "READY=1\n" };
        let is_news = !self.is_ready || self.told != line;
        if is_news && self.to.send(&format!("{ready}STATUS={line}")).is_ok() {
            (self.is_ready, self.told) = (true, line);
        }
    }
}

/// The text as one line: behind a line's end a peer's words would be words of this daemon.
fn plain(line: &str) -> String {
    let line: String = line.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    clip(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

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
        let refused = (0..10_000).find_map(|_| manager.to.send("STATUS=x").err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        drop(socket);
        assert!(manager.to.send("STATUS=x").is_err());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
