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
mod fttcp;
mod life;
pub mod load;
mod servers;
mod simulate;
pub mod testbed;

/// One takeover at a time, for tests and demonstrations.
pub mod takeover {
    pub use crate::bench::faults::{FaultKind, fault_steps};
    pub use crate::bench::takeover::{ClientPath, Outcome, TakeoverArgs, failure, one_takeover};
}

pub use cli::main;

use anyhow::{Context as _, Result, ensure};
use holdfast_program::LAB;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder of [`run_binary_of`].
static PLACE: OnceLock<PathBuf> = OnceLock::new();

/// The `holdfast` that the lab runs: `HOLDFAST_BIN`, or the one beside this program.
///
/// # Errors
/// When there is none, with the remedy.
pub fn holdfast_binary() -> Result<PathBuf> {
    if let Some(place) = PLACE.get() {
        return Ok(place.join("holdfast"));
    }
    if let Some(path) = std::env::var_os("HOLDFAST_BIN") {
        return Ok(path.into());
    }
    let own = own_path()?;
    let beside = own.parent().context("this program stands nowhere")?;
    // Cargo puts test programs into a folder below that of the programs.
    let folder = beside.parent().filter(|_| beside.ends_with("deps")).unwrap_or(beside);
    existing(folder.join("holdfast"))
}

/// From now on the lab runs the `holdfast` in this folder, for the rest of its life.
pub(crate) fn run_binary_of(place: &Path) {
    PLACE.get_or_init(|| place.to_owned());
}

/// The laboratory's own binary: this process's, or, in a test program, the one
/// beside `holdfast`.
pub(crate) fn own_binary() -> Result<PathBuf> {
    let own = own_path()?;
    if own.file_name().is_some_and(|name| name == LAB) {
        return Ok(own);
    }
    existing(holdfast_binary()?.with_file_name(LAB))
}

fn own_path() -> Result<PathBuf> {
    std::env::current_exe().context("where is this binary?")
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    let shown = path.display();
    ensure!(path.is_file(), "{shown} is missing: build the workspace, or set HOLDFAST_BIN");
    Ok(path)
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
