//! What a packet costs a program that rewrites it (`bpf/undo.bpf.c`).

use super::error::BpfError;
use super::loader::Object;
use super::trace::{self, Question};
use std::path::Path;
use std::time::Duration;

static OBJECT: Object = Object {
    name: "undo",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/undo.bpf.o")),
    maps: &[],
    counters: &[],
    priority: 0,
};

/// Mean times of many runs on one packet.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time of a run with its undoing.
    pub whole: Duration,
    /// Time of removing the outer header again: half of what it costs a program to
    /// wrap a packet and to undo it, and nothing else.
    pub undoing: Duration,
    /// Time of running a program that does nothing; all the other times include
    /// it.
    pub nothing: Duration,
}

impl Cost {
    /// Measures `whole` and its parts in quick succession, since the machine's
    /// speed may change.
    pub(super) fn with(
        pin_dir: &Path,
        question: &Question,
        repeat: u32,
        whole: impl FnOnce() -> Result<Duration, BpfError>,
    ) -> Result<Self, BpfError> {
        let mut loaded = OBJECT.load(pin_dir, &[])?;
        let mut time = |program: &'static str| {
            loaded.pin_only(program)?;
            trace::time(&OBJECT.directory(pin_dir).join(program), program, question, repeat)
        };
        let nothing = time("nothing")?;
        let both = time("wrap_and_undo")?;
        let cost = Self { whole: whole()?, undoing: both.saturating_sub(nothing) / 2, nothing };
        OBJECT.unpin(pin_dir)?;
        Ok(cost)
    }

    /// Time of the rewriting itself, `nothing` included.
    #[must_use]
    pub fn program(&self) -> Duration {
        self.whole.saturating_sub(self.undoing)
    }
}
