//! State folders: where a server keeps its state, which is transferred with its
//! image.
//!
//! [`collect`] copies them while the server runs, into files without names beside the
//! originals, and in the freeze what has changed last. [`place`] assembles them in a
//! folder within the folder, and exchanges them for the old content when everything has
//! come. Where the server is rebuilt on the host on which it has fallen, [`aside`] keeps the
//! old content until that has succeeded. All have the server's rights to files, and no others
//! ([`super::guise`]).

mod aside;
mod attributes;
pub(super) mod collect;
pub(super) mod place;
#[cfg(test)]
mod tests;

pub use place::{forget, settle};

use super::error::{Doing, Result, refuse};
use super::names::Mounts;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file by its file system and its number there.
pub(super) type FileId = (u64, u64);

/// Files that a server has open for writing: whether it only appends to them.
pub(super) type Writing = BTreeMap<FileId, bool>;

/// Folder that every new file system has, for root alone; no server keeps anything
/// there.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Part of a file system with state that stays free: one in this many.
const KEPT_FREE_PART: u64 = 20;

/// A state folder: its path from the configuration, and the folder itself.
struct Root {
    path: PathBuf,
    folder: File,
}

impl Root {
    fn open(path: &Path, mounts: &Mounts) -> Result<Self> {
        let found = mounts.find_folder(path.as_os_str().as_bytes());
        let folder = found.doing(format!("state_dirs: {}", path.display()))?.fd.into();
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Path of an entry in the folder, wherever the folder itself is moved.
    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.folder.as_raw_fd())).join(name)
    }

    /// The path as people know it.
    fn shown(&self, name: &[u8]) -> String {
        self.path.join(std::ffi::OsStr::from_bytes(name)).display().to_string()
    }

    /// Refuses what would not leave enough room on its file system.
    fn has_room(&self, bytes: u64) -> Result<()> {
        let what = || format!("the room in {}", self.path.display());
        let (free, all) = room(&self.folder).doing(what())?;
        if bytes.saturating_add(all / KEPT_FREE_PART) > free {
            return refuse(format!(
                "{} has {} MB of state, and its file system {} MB free: a member that joins needs \
                 as much again on both hosts, and a twentieth of all stays free",
                self.path.display(),
                bytes >> 20,
                free >> 20
            ));
        }
        Ok(())
    }
}

/// How much of a state folder's file system is free beside what rebuilding its server on this host
/// takes: as much again as its image holds, `more` that the log's replay may write, and a
/// twentieth of all.
///
/// # Errors
/// What is missing, or why nobody can tell, in words.
pub fn has_room(path: &Path, bytes: u64, more: u64) -> std::result::Result<(), String> {
    let room = File::open(path).and_then(|folder| room(&folder));
    let (free, all) = room.map_err(|error| format!("{}: {error}", path.display()))?;
    let needs = bytes.saturating_add(more).saturating_add(all / KEPT_FREE_PART);
    if needs > free {
        return Err(format!(
            "the file system of {} has {} MB free, and {} MB would be needed for its files",
            path.display(),
            free >> 20,
            needs.div_ceil(1 << 20)
        ));
    }
    Ok(())
}

/// How many bytes of the file system on which `path` lies are free to anybody.
///
/// # Errors
/// As open(2) and statvfs(2).
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let (free, _) = File::open(path).and_then(|file| room(&file))?;
    Ok(free)
}

/// Bytes of a file system: free to anybody, and in total.
fn room(file: &File) -> io::Result<(u64, u64)> {
    let mut it = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the kernel writes one statvfs.
    crate::sockopt::checked(unsafe { libc::fstatvfs(file.as_raw_fd(), it.as_mut_ptr()) })?;
    // SAFETY: it is written, and plain numbers.
    let it = unsafe { it.assume_init() };
    Ok((it.f_bavail.saturating_mul(it.f_frsize), it.f_blocks.saturating_mul(it.f_frsize)))
}
