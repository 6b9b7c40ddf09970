//! The event loop's parts: what is ready, what is due, and the signals that
//! end a daemon.

pub use holdfast_linux::epoll::{Epoll, Interest, Ready, Signals};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// An epoll set with its buffer.
#[derive(Debug)]
pub struct Poll {
    epoll: Epoll,
    ready: Vec<Ready>,
}

impl Poll {
    /// An empty set.
    ///
    /// # Errors
    /// As `epoll_create1`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new()?, ready: Vec::new() })
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

    /// Waits until something is ready or `deadline` has passed.
    ///
    /// # Errors
    /// As `epoll_pwait2`.
    pub fn wait(&mut self, deadline: Option<Instant>) -> io::Result<&[Ready]> {
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        self.ready.clear();
        self.epoll.wait(&mut self.ready, timeout)?;
        Ok(&self.ready)
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// One deadline per kind `K`.
#[derive(Debug)]
pub struct Timers<K> {
    due: BTreeSet<(Instant, K)>,
}

impl<K: Ord + Copy> Timers<K> {
    #[must_use]
    pub fn new() -> Self {
        Self { due: BTreeSet::new() }
    }

    /// Sets (or moves) the deadline of `kind`.
    pub fn set(&mut self, kind: K, at: Instant) {
        self.clear(kind);
        self.due.insert((at, kind));
    }

    /// Forgets the deadline of `kind`.
    pub fn clear(&mut self, kind: K) {
        self.due.retain(|(_, k)| *k != kind);
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes one kind whose deadline has passed.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (at, _) = self.due.first()?;
        if *at > now { None } else { self.due.pop_first().map(|(_, kind)| kind) }
    }
}

impl<K: Ord + Copy> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timers_fall_due_in_order_and_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.set('b', at(20));
        timers.set('a', at(10));
        timers.set('b', at(5));
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop(at(4)), None);
        assert_eq!(timers.pop(at(30)), Some('b'));
        assert_eq!(timers.pop(at(30)), Some('a'));
        assert_eq!(timers.pop(at(30)), None);
        timers.set('a', at(1));
        timers.clear('a');
        assert_eq!(timers.next(), None);
    }
}
