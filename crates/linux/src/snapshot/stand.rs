//! Processes whose threads are stopped where each may be copied.

use super::error::{Doing, Result, SnapshotError};
use super::quiet::{Quiescence, Resume, Standing};
use super::seize::Tracees;
use super::thread;
use libc::user_regs_struct;
use std::time::{Duration, Instant};

/// Time for which threads run on before they are looked at again.
const BUSY: Duration = Duration::from_micros(10);

/// All threads of a family of processes, stopped until this is dropped. Nothing about them is
/// changed.
pub struct Stand {
    _tracees: Tracees,
    threads: Vec<Still>,
    /// When the threads were first asked to stand.
    pub began: Instant,
}

/// A stopped thread.
pub struct Still {
    /// Its process, in the caller's numbering.
    pub pid: u32,
    /// Thread id, in the caller's numbering.
    pub tid: u32,
    /// How the thread goes on in an image.
    pub resume: Resume,
    pub(super) registers: user_regs_struct,
}

impl Stand {
    /// Stops all threads at a moment at which each is quiet. The caller calls
    /// [`Quiescence::end`], however this ends.
    ///
    /// # Errors
    /// [`SnapshotError::NeverQuiet`] after `within`; the processes run on.
    pub fn of(pids: &[u32], quiet: &mut dyn Quiescence, within: Duration) -> Result<Self> {
        let mut tracees = Tracees::seize(pids)?;
        let began = Instant::now();
        let deadline = began + within;
        loop {
            quiet.ask(deadline);
            tracees.stop(deadline)?;
            quiet.stopped()?;
            if let Some(threads) = look(&tracees, quiet)? {
                return Ok(Self { _tracees: tracees, threads, began });
            }
            if Instant::now() > deadline {
                return Err(SnapshotError::NeverQuiet);
            }
            // All of them run on: one may wait for what another holds.
            tracees.run_on()?;
            std::thread::sleep(BUSY);
        }
    }

    /// The threads; the first of each process is its own.
    #[must_use]
    pub fn threads(&self) -> &[Still] {
        &self.threads
    }
}

/// Looks at all threads; `None` if one of them is busy.
fn look(tracees: &Tracees, quiet: &mut dyn Quiescence) -> Result<Option<Vec<Still>>> {
    let mut threads = Vec::new();
    for (pid, tid) in tracees.tids() {
        let registers = thread::registers(tid).doing("reading registers")?;
        match quiet.look(&Standing { pid, tid, registers: &registers }) {
            Some(resume) => threads.push(Still { pid, tid, resume, registers }),
            None => return Ok(None),
        }
    }
    Ok(Some(threads))
}
