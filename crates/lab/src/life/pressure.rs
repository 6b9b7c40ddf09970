//! Pressure on the machine: other programs on its cores, a full disk, no descriptors left, a clock
//! that jumps.

use crate::command::Hogs;
use crate::testbed::{Role, Testbed};
use anyhow::{Context as _, Result};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Number of programs that use a core each; the tests' machine has two cores.
const HOGS: usize = 2;

/// Longest life of such a program, which no step outlasts.
const HOG_LIMIT: Duration = Duration::from_secs(60);

/// Bytes written at a time until the disk is full.
const PIECE_BYTES: usize = 1 << 20;

/// Most bytes that are written, however large the disk is.
const FILLED_BYTES_MAX: usize = 256 << 20;

/// Keeps other programs at work until the result is dropped.
///
/// # Errors
/// When they cannot be started.
pub fn busy() -> Result<Hogs> {
    Hogs::start(HOGS, HOG_LIMIT)
}

/// A jump of the machine's clock, which lasts until this is dropped.
pub struct Jump(i64);

impl Jump {
    /// Moves the clock by `seconds` forward, or back.
    ///
    /// # Errors
    /// Without the right to set the clock.
    pub fn by(seconds: i64) -> Result<Self> {
        move_clock(seconds).context("cannot set the machine's clock; it takes CAP_SYS_TIME")?;
        Ok(Self(seconds))
    }
}

impl Drop for Jump {
    fn drop(&mut self) {
        let _ = move_clock(-self.0);
    }
}

fn move_clock(seconds: i64) -> rustix::io::Result<()> {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    clock_settime(ClockId::Realtime, Timespec { tv_sec: tv_sec + seconds, tv_nsec })
}

/// A file that leaves no room on the edge's disk; removed when this is dropped.
pub struct FullDisk(PathBuf);

impl FullDisk {
    /// Writes until the disk takes no more.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn fill(testbed: &Testbed) -> Result<Self> {
        let path = testbed.disk(Role::Edge).join("filler");
        let mut file = fs::File::create(&path).context("cannot fill the edge's disk")?;
        let full = Self(path);
        let piece = vec![0_u8; PIECE_BYTES];
        for _ in 0..FILLED_BYTES_MAX / PIECE_BYTES {
            if file.write_all(&piece).is_err() {
                break;
            }
        }
        Ok(full)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A process that can open no more descriptors until this is dropped.
pub struct Scarce {
    pid: u32,
    soft: u64,
}

impl Scarce {
    /// Limits the process to the descriptors that it has open.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn start(pid: u32) -> Result<Self> {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).context("a daemon is gone")?.count();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let line = limits.lines().find(|line| line.starts_with("Max open files"));
        let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
        let it = Self { pid, soft: soft.context("no limit of open files")? };
        it.set(open as u64)?;
        Ok(it)
    }

    fn set(&self, soft: u64) -> Result<()> {
        let limit = format!("--nofile={soft}:");
        let done = Command::new("prlimit").args(["--pid", &self.pid.to_string(), &limit]).status();
        anyhow::ensure!(done?.success(), "prlimit failed");
        Ok(())
    }
}

impl Drop for Scarce {
    fn drop(&mut self) {
        let _ = self.set(self.soft);
    }
}
