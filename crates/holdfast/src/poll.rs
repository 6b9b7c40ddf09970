//! The event loop's parts: what is ready, what is due, and the signals that
//! end a daemon.

use holdfast_linux::epoll::Timer;
pub use holdfast_linux::epoll::{Epoll, Interest, Ready, Signals};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The timer's own token, which no caller uses.
const TIMER: u64 = u64::MAX;

/// An epoll set with its buffer.
///
/// Its time-outs are one timer that stays set: a loop that runs thousands of
/// times a second moves its deadline each time, and setting the processor's timer
/// for each sleep (an exit from a virtual machine) costs more than an early
/// return now and then.
#[derive(Debug)]
pub struct Poll {
    epoll: Epoll,
    ready: Vec<Ready>,
    timer: Timer,
    /// When the timer will ring.
    rings_at: Option<Instant>,
}

impl Poll {
    /// An empty set.
    ///
    /// # Errors
    /// As `epoll_create1` and `timerfd_create`.
    pub fn new() -> io::Result<Self> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(&timer, TIMER, Interest::Rung)?;
        Ok(Self { epoll, ready: Vec::new(), timer, rings_at: None })
    }

    /// Watches `fd` under the number `token`; closing it ends the watch.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll.add(fd, token, interest)
    }

    /// Changes what `fd` is watched for.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.epoll.modify(fd, token, interest)
    }

    /// Ends the watch while `fd` stays open.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        self.epoll.remove(fd)
    }

    /// Waits until something is ready or `deadline` has passed; it may also return
    /// before that with nothing.
    ///
    /// # Errors
    /// As `epoll_pwait2` and `timerfd_settime`.
    pub fn wait(&mut self, deadline: Option<Instant>) -> io::Result<&[Ready]> {
        self.ready.clear();
        let timeout = match deadline {
            Some(at) => self.ring_by(at)?,
            None => None,
        };
        self.epoll.wait(&mut self.ready, timeout)?;
        if self.ready.iter().any(|ready| ready.token == TIMER) {
            self.rings_at = None;
            self.ready.retain(|ready| ready.token != TIMER);
        }
        Ok(&self.ready)
    }

    /// Makes the timer ring by `at`; returns zero if that has passed.
    fn ring_by(&mut self, at: Instant) -> io::Result<Option<Duration>> {
        let delay = at.saturating_duration_since(Instant::now());
        if delay.is_zero() {
            return Ok(Some(delay));
        }
        if self.rings_at.is_none_or(|rings| at < rings) {
            self.timer.set(delay)?;
            self.rings_at = Some(at);
        }
        Ok(None)
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Waits until `at` as a loop does, which may return early; counts its
    /// returns.
    fn wait_until(poll: &mut Poll, at: Instant) -> usize {
        let mut turns = 0;
        while Instant::now() < at {
            assert!(poll.wait(Some(at)).unwrap().is_empty());
            turns += 1;
        }
        turns
    }

    #[test]
    fn a_deadline_is_kept_wherever_the_last_one_was() {
        let mut poll = Poll::new().unwrap();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        poll.ring_by(at(60_000)).unwrap();
        assert!(wait_until(&mut poll, at(5)) <= 2);
        poll.ring_by(at(10)).unwrap();
        // The earlier deadline rings first, and then no more.
        assert!(wait_until(&mut poll, at(20)) <= 3);
        assert!(wait_until(&mut poll, at(21)) <= 2);
        assert!(poll.wait(Some(start)).unwrap().is_empty());
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
