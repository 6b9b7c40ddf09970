//! What a service manager that has started this tunnel hears of it, as sd_notify(3) says: that it is
//! ready, what it last wrote into its log, that its loop turns, and that it is stopping. Without a
//! manager nothing is said. Nothing here may wait: the loop itself says all of it.

use holdfast_program::notify::{Notify, SOCKET, watchdog};
use std::env::var_os;
use std::time::Duration;

/// The manager that the environment names, if there is one.
pub struct Manager {
    to: Option<Notify>,
    /// Time between two words that the loop turns; `None` if nobody waits for them.
    pet_every: Option<Duration>,
    pet_at: Duration,
}

impl Manager {
    pub fn of_environment() -> Self {
        let to = var_os(SOCKET).and_then(|place| Notify::open(&place).ok());
        Self { to, pet_every: watchdog(|name| var_os(name)), pet_at: Duration::ZERO }
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
        let _lost = self.to.as_ref().map(|to| to.send(words));
    }
}
