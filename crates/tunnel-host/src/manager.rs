//! What a service manager that has started this tunnel hears of it, as sd_notify(3) says: that it is
//! ready, what it last wrote into its log, that its loop turns, and that it is stopping. Without a
//! manager nothing is said.

use sd_notify::NotifyState;
use std::time::Duration;

/// How often the loop is told of within the time after which it counts as hung.
const PETS: u32 = 4;

/// The manager that the environment names, if there is one.
pub struct Manager {
    /// Time between two words that the loop turns; `None` if nobody waits for them.
    pet_every: Option<Duration>,
    pet_at: Duration,
}

impl Manager {
    pub fn of_environment() -> Self {
        let waits = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
        Self { pet_every: waits.map(|limit| limit / PETS), pet_at: Duration::ZERO }
    }

    /// Everything is open, and verbs are answered. Whether the peer is there is another matter: a host
    /// must be able to boot alone.
    pub fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// The state in a line.
    pub fn say(&self, line: &str) {
        tell(&[NotifyState::Status(line)]);
    }

    /// The loop itself says that it turns: a thread of its own would go on for a loop that hangs.
    pub fn turn(&mut self, now: Duration) {
        if let Some(every) = self.pet_every.filter(|_| now >= self.pet_at) {
            self.pet_at = now + every;
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// When it waits for the next word.
    pub fn wake_at(&self) -> Option<Duration> {
        self.pet_every.map(|_| self.pet_at)
    }
}

/// What cannot be said is as good as lost; the next word says the same.
fn tell(state: &[NotifyState<'_>]) {
    let _lost = sd_notify::notify(state);
}
