//! epoll with nanosecond timeouts and signals as a descriptor: what an event
//! loop needs from Linux, behind safe types.
//!
//! Registrations are level-triggered, except for [`Interest::Rung`]. An
//! [`Epoll`] is itself a descriptor that becomes readable when one of its own is
//! ready, so a part of a program can keep its sockets in an inner set and show
//! the outer loop a single one.

use crate::sockopt::checked;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Most events taken from the kernel in one call.
pub const EVENTS_PER_WAIT: usize = 64;

/// What a descriptor is watched for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    Both,
    /// An event counter: reported once each time it is rung, and never read.
    Rung,
    /// Only errors and hang-ups.
    Nothing,
}

impl Interest {
    fn mask(self) -> u32 {
        let bits = match self {
            Self::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Self::Write => libc::EPOLLOUT,
            Self::Both => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
            Self::Rung => libc::EPOLLIN | libc::EPOLLET,
            Self::Nothing => 0,
        };
        bits as u32
    }
}

/// One ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number given to [`Epoll::add`].
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// Whether there is an error or hang-up: reading tells which.
    pub closed: bool,
}

/// An epoll set.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// Opens an empty set (close-on-exec).
    ///
    /// # Errors
    /// As `epoll_create1`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Watches `fd`; closing it ends the watch.
    ///
    /// # Errors
    /// As `epoll_ctl(EPOLL_CTL_ADD)`.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes what `fd` is watched for.
    ///
    /// # Errors
    /// As `epoll_ctl(EPOLL_CTL_MOD)`.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Ends the watch while `fd` stays open.
    ///
    /// # Errors
    /// As `epoll_ctl(EPOLL_CTL_DEL)`.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::Nothing)
    }

    /// Appends what is ready to `ready`, waiting at most `timeout` (`None`:
    /// forever) for the first event. A signal handler's interruption counts as a
    /// time-out.
    ///
    /// # Errors
    /// As `epoll_pwait2`, except `EINTR`.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT];
        let limit = timeout.map(timespec);
        let limit_ptr = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `events` has room for EVENTS_PER_WAIT entries and outlives the
        // call; `limit_ptr` is null or points to `limit`; no signal mask is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_PER_WAIT as libc::c_int,
                limit_ptr,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        let count = usize::try_from(count).unwrap_or(0);
        ready.extend(events.iter().take(count).map(|event| {
            let has = |bits: libc::c_int| event.events & bits as u32 != 0;
            Ready {
                token: event.u64,
                readable: has(libc::EPOLLIN),
                writable: has(libc::EPOLLOUT),
                closed: has(libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP),
            }
        }));
        Ok(())
    }

    fn control(
        &self,
        op: libc::c_int,
        fd: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.mask(), u64: token };
        // SAFETY: both descriptors are open for the duration of the call and
        // `event` is a valid pointer that the kernel only reads.
        checked(unsafe {
            libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_fd().as_raw_fd(), &raw mut event)
        })?;
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A timer as a descriptor, to be watched as [`Interest::Rung`].
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// Opens a timer that is not set.
    ///
    /// # Errors
    /// As `timerfd_create`.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no pointers; the result is checked.
        let fd = checked(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Rings once after `delay`, and not at the time that was set before.
    ///
    /// # Errors
    /// As `timerfd_settime`.
    pub fn set(&self, delay: Duration) -> io::Result<()> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would stop it.
        let delay = timespec(delay.max(Duration::from_nanos(1)));
        let once = libc::itimerspec { it_interval: never, it_value: delay };
        // SAFETY: the kernel only reads `once`; the old setting is not asked for.
        checked(unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
        })?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// SIGTERM, SIGINT and SIGHUP as a descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the three signals in the calling thread and every thread it
    /// starts later, and opens the descriptor. Call it before starting any.
    ///
    /// # Errors
    /// As `signalfd`.
    pub fn block() -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t is valid memory for sigemptyset to fill;
        // every pointer refers to `set`, which outlives the calls.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            let error =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            checked(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?
        };
        // SAFETY: signalfd returned a new descriptor that nobody else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The next pending signal's number.
    #[must_use]
    pub fn take(&self) -> Option<i32> {
        // SAFETY: the structure is plain data, all zero is a valid value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is writable memory of exactly `size` bytes.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
        if usize::try_from(got) == Ok(size) { i32::try_from(info.ssi_signo).ok() } else { None }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn tells_who_is_ready_and_times_out_below_a_millisecond() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&far, 7, Interest::Read).unwrap();
        let mut ready = Vec::new();
        let before = Instant::now();
        epoll.wait(&mut ready, Some(Duration::from_micros(300))).unwrap();
        assert!(ready.is_empty());
        assert!(before.elapsed() >= Duration::from_micros(300));
        near.write_all(b"x").unwrap();
        epoll.wait(&mut ready, None).unwrap();
        assert_eq!(ready, [Ready { token: 7, readable: true, writable: false, closed: false }]);
        ready.clear();
        epoll.modify(&far, 8, Interest::Write).unwrap();
        drop(near);
        epoll.wait(&mut ready, None).unwrap();
        assert!(ready[0].token == 8 && ready[0].writable && ready[0].closed);
        epoll.remove(&far).unwrap();
        ready.clear();
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn an_inner_set_is_readable_when_its_member_is() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let (inner, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        inner.add(&far, 1, Interest::Read).unwrap();
        outer.add(&inner, 2, Interest::Read).unwrap();
        near.write_all(b"x").unwrap();
        let mut ready = Vec::new();
        outer.wait(&mut ready, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(ready.first().map(|r| r.token), Some(2));
    }
}
