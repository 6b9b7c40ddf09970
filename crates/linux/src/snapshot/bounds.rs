//! Limits on the cost of looking at a server, whatever it has made of itself.

use super::error::{Result, refuse};
use super::maps::Mapping;
use holdfast_wire::snapshot::ImageError;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Longest time for a look at a running process, and for comparing its files.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a list under /proc: a hundred thousand areas, or watches.
pub(super) const LIST_BYTES_MAX: u64 = 64 << 20;

/// The time that is left.
#[derive(Clone, Copy)]
pub(super) struct Patience(Instant);

impl Patience {
    pub const fn until(deadline: Instant) -> Self {
        Self(deadline)
    }

    pub fn of(within: Duration) -> Self {
        Self(Instant::now() + within)
    }

    /// Call before each step that takes long, or whose number of repetitions the server
    /// decides.
    pub fn check(self) -> Result<()> {
        if Instant::now() < self.0 {
            return Ok(());
        }
        refuse(
            "it has more memory areas or descriptors, or larger files, than can be looked at in time",
        )
    }
}

/// Bytes of memory and contents that an image may still have.
pub(super) struct Room(pub u64);

impl Room {
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.ok_or(ImageError::TooMuch("memory_bytes"))?;
        Ok(())
    }
}

/// Reads a list of the kernel about a server, which may have made it long.
pub(super) fn list(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(io::Error::other("it is longer than anybody's"));
    }
    Ok(bytes)
}

/// Path of a link to what is mapped there: the file itself, whatever its name
/// means now.
pub(super) fn link_of(pid: u32, mapping: &Mapping) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end)
}
