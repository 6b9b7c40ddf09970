//! What a process is, besides its pages and threads; and the names of its parts
//! that cannot be rebuilt.

pub(super) mod areas;
pub(super) mod descriptors;
pub(super) mod fdinfo;
mod inotify;
mod locks;
mod pairs;
pub(super) mod process;
pub(super) mod same;
pub(super) mod segments;
pub(super) mod shared;
pub(super) mod sockets;
mod timers;
mod written;

use super::error::{Result, SnapshotError};

/// Most reasons that anybody would read.
const REASONS_MAX: usize = 64;

/// Permitted mode bits of what is made again: a set-uid bit is for programs with a name.
const MODE: u32 = 0o777;

/// Reasons why a process cannot be rebuilt: collected, so that an operator reads
/// them all at once.
#[derive(Default)]
pub(super) struct Refusals(pub Vec<String>);

impl Refusals {
    pub fn add(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        if self.0.len() < REASONS_MAX && !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }

    pub fn keep_those_of(&mut self, other: &Self) {
        self.0.retain(|reason| other.0.contains(reason));
    }

    /// Fails with the reasons, if there are any.
    pub fn refuse(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(SnapshotError::Refused(self.0)) }
    }

    pub fn add_if(&mut self, holds: bool, reason: &str) {
        if holds {
            self.add(reason);
        }
    }
}

/// A name as text for people.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
