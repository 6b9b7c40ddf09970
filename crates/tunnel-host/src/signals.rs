//! The signals that end a tunnel, as something that a loop can wait for.

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// SIGTERM and SIGINT, and SIGQUIT, which comes when the parent dies: a daemon blocks the others, and
/// its child inherits that.
pub struct Signals(UnixStream);

impl Signals {
    /// From now on they do not end this program by themselves.
    ///
    /// # Errors
    /// As `socketpair` and `sigaction`.
    pub fn take() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT, SIGQUIT] {
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self(reader))
    }

    /// Whether one has come.
    pub fn have_come(&mut self) -> bool {
        self.0.read(&mut [0; 16]).is_ok_and(|bytes| bytes > 0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
