//! Measures how long a program that rewrites packets takes for one (`bpf/undo.bpf.c`).

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
    /// Time of a run, and of undoing its rewriting before the next run.
    pub whole: Duration,
    /// Time of removing the outer header again: half the time of a program that only adds and
    /// removes one, `nothing` not included.
    pub undoing: Duration,
    /// Time of running a program that does nothing: what any run costs.
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

    /// Time of the program itself, `nothing` included.
    #[must_use]
    pub fn program(&self) -> Duration {
        self.whole.saturating_sub(self.undoing)
    }
}
