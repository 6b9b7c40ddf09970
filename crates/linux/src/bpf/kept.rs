//! Keeps the programs and maps that this process has pinned open, and pins them again if their
//! names were removed. Somebody who empties `/run` removes names, not programs and maps; but
//! without the names the next daemon would not find them.

use super::error::BpfError;
use super::loader::ensure_bpffs;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Commands of `enum bpf_cmd`.
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;

enum Kept {
    /// A program or a map.
    Pin(OwnedFd),
    /// An empty folder whose name is the information (see `qdisc.rs`).
    Folder,
}

/// What is kept, by path. Each path belongs to one object, and each object to one daemon.
static KEPT: Mutex<BTreeMap<PathBuf, Kept>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<PathBuf, Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps exactly what is pinned in this directory now.
pub(super) fn keep(directory: &Path) -> Result<(), BpfError> {
    let failed = |source| BpfError::PinDir { path: directory.into(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let fd = get(&path).map_err(failed)?;
        found.push((path, Kept::Pin(fd)));
    }
    let mut kept = kept();
    kept.retain(|path, _| !path.starts_with(directory));
    kept.extend(found);
    Ok(())
}

/// Keeps a folder that was made.
pub(super) fn keep_folder(path: PathBuf) {
    kept().insert(path, Kept::Folder);
}

/// Stops keeping what is at or below this path.
pub(super) fn forget(path: &Path) {
    kept().retain(|kept, _| !kept.starts_with(path));
}

/// Pins again what this process had pinned below `pin_dir` and somebody has removed. The BPF file
/// system is mounted again if necessary. Returns whether anything was missing.
///
/// # Errors
/// [`BpfError::Mount`], [`BpfError::PinDir`]; what could be pinned is.
pub fn mend_pins(pin_dir: &Path) -> Result<bool, BpfError> {
    let kept = kept();
    let missing = |(path, _): &(&PathBuf, &Kept)| {
        path.starts_with(pin_dir) && path.symlink_metadata().is_err()
    };
    let missing: Vec<_> = kept.iter().filter(missing).collect();
    if missing.is_empty() {
        return Ok(false);
    }
    ensure_bpffs(pin_dir)?;
    let restored = missing.into_iter().map(|(path, kept)| {
        let parent = path.parent().unwrap_or(pin_dir);
        let again = std::fs::create_dir_all(parent).and_then(|()| match kept {
            Kept::Pin(fd) => pin(path, fd),
            Kept::Folder => std::fs::create_dir(path),
        });
        again.map_err(|source| BpfError::PinDir { path: path.clone(), source })
    });
    // All are tried, even if one fails.
    let failures: Vec<BpfError> = restored.filter_map(Result::err).collect();
    failures.into_iter().next().map_or(Ok(true), Err)
}

/// The member of `union bpf_attr` for objects by their names.
#[repr(C)]
struct Attr {
    path: u64,
    fd: u32,
    flags: u32,
}

fn get(path: &Path) -> io::Result<OwnedFd> {
    let fd = call(OBJ_GET, path, 0)?;
    // SAFETY: the kernel has just given it to this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn pin(path: &Path, fd: &OwnedFd) -> io::Result<()> {
    call(OBJ_PIN, path, fd.as_raw_fd() as u32).map(drop)
}

fn call(command: libc::c_long, path: &Path, fd: u32) -> io::Result<libc::c_long> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Attr { path: path.as_ptr() as u64, fd, flags: 0 };
    // SAFETY: the attribute names a NUL-terminated path that outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<Attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
