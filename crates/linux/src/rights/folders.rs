//! Where files may be changed (Landlock, linux/landlock.h). Reading is not limited.

use crate::sockopt::{checked, checked_fd};
use libc::{c_int, c_long};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

const WRITE_FILE: u64 = 1 << 1;
/// Removing a folder and a file, and making each kind of file.
const REMOVE_AND_MAKE: u64 = 0b1_1111_1111 << 4;
/// Moving a file to another folder (version 2), and shortening one (version 3).
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
/// Rights that concern a file itself.
const OF_FILES: u64 = WRITE_FILE | TRUNCATE;
/// `LANDLOCK_CREATE_RULESET_VERSION`, `LANDLOCK_RULE_PATH_BENEATH`.
const ASK_VERSION: u32 = 1;
const PATH_BENEATH: c_int = 1;

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: c_int,
}

/// From here on, and in everything that this thread starts, files are only changed at or below
/// these paths. Those that are missing are left out.
pub(super) fn write_only_below(paths: &[PathBuf]) -> io::Result<()> {
    let none = std::ptr::null::<u64>();
    // SAFETY: asked for the version, the kernel takes no attribute.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, ASK_VERSION) };
    let handled = WRITE_FILE
        | REMOVE_AND_MAKE
        | if version >= 2 { REFER } else { 0 }
        | if version >= 3 { TRUNCATE } else { 0 };
    if version < 1 {
        // A kernel without Landlock, or where it is off.
        return Ok(());
    }
    // SAFETY: the kernel reads one word, the first field of the attribute.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size_of_val(&handled),
            0u32,
        )
    };
    let rules = checked_fd(made)?;
    for path in paths {
        allow(&rules, path, handled)?;
    }
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0u32) })
}

fn allow(rules: &OwnedFd, path: &PathBuf, handled: u64) -> io::Result<()> {
    let opened = File::options().read(true).custom_flags(libc::O_PATH).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let is_folder = file.metadata()?.is_dir();
    let allowed = if is_folder { handled } else { handled & OF_FILES };
    let rule = Beneath { allowed, parent: file.as_raw_fd() };
    // SAFETY: the kernel reads one rule, which outlives the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0u32,
        )
    })
}

fn done(result: c_long) -> io::Result<()> {
    checked(result as c_int).map(drop)
}
