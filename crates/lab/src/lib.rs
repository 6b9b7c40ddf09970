//! The lab: a testbed of network namespaces, a link emulator, a load that
//! checks every byte, benches and a demonstration. It drives Holdfast from
//! outside, through its binary and its config file, as a user would.
#![forbid(unsafe_code)]

mod bench;
mod chaos;
mod cli;
mod command;
pub mod demo;
pub mod emu;
pub mod figures;
mod life;
pub mod load;
pub mod memory;
pub mod models;
mod parallel;
mod plan;
pub mod plot;
pub mod scenario;
mod simulate;
pub mod testbed;
mod units;

/// One takeover at a time, for tests and demonstrations.
pub mod takeover {
    pub use crate::bench::faults::{FaultKind, fault_steps};
    pub use crate::bench::takeover::{ClientPath, Outcome, TakeoverArgs, failure, one_takeover};
}

pub use cli::{LabCommand, run};

/// Version and commit of this program: what replays a run.
pub const BUILD: &str = env!("HOLDFAST_BUILD");

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;

/// The `holdfast` binary that the lab runs: `HOLDFAST_BIN`, or this process's
/// own, or, in a test, the one that cargo built beside the tests.
pub(crate) fn own_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HOLDFAST_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("where is this binary?")?;
    let folder = own.parent().filter(|folder| folder.ends_with("deps"));
    let beside = folder.and_then(|folder| Some(folder.parent()?.join("holdfast")));
    let binary = beside.filter(|path| path.is_file()).unwrap_or(own);
    // A test program that was moved would run its tests again, and again.
    let known = binary.file_name().is_some_and(|name| name == "holdfast" || name == "lab");
    ensure!(known, "{} is not holdfast; name it in HOLDFAST_BIN", binary.display());
    Ok(binary)
}

/// CLOCK_MONOTONIC of this process's time namespace, ns.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Asks the kernel to end this process when the thread that started it ends.
pub(crate) fn die_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie my life to my parent's")
}
