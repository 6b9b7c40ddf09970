//! The files of a daemon in `run_dir`: through them commands find the daemon, and its successor
//! finds what it has put into the kernel (pinned programs and maps).

use crate::admin::{Events, Look};
use crate::status::{State, Status};
use std::path::Path;

/// Remedy when they cannot be put back.
pub const REMEDY: &str = "make room in the file system of `run_dir`, or look at how it is mounted: until it takes \
    files and mounts again, neither start this daemon anew nor say `holdfast down`, which would end a \
    server that speaks alone";

/// Which files could not be put back, and why; `None`: all are there.
#[derive(Debug, Default)]
pub struct Kept(Option<String>);

impl Kept {
    /// Takes the result of a check of the files; true if some had been removed and are put back.
    pub fn take(&mut self, look: Option<Look>, run_dir: &Path, events: &mut Events) -> bool {
        let Some(Look { mended, lost }) = look else { return false };
        if mended {
            events.add("mended", format!("files of {} had been removed", run_dir.display()));
        }
        if lost != self.0 {
            let what = lost.as_deref().unwrap_or("everything is in its place again");
            events.add("torn", what);
            self.0 = lost;
        }
        mended
    }

    /// What a successor of this daemon would not find, and why.
    pub fn lost(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Lowers a protected status: a daemon that could not be started again does not protect.
    pub fn show(&self, status: &mut Status) {
        if let (State::Protected, Some(reason)) = (status.state, &self.0) {
            status.state = State::Unprotected;
            (status.reason, status.remedy) = (reason.clone(), REMEDY.to_owned());
        }
    }
}
