//! Files that the image maps, runs or has as its working directory: opened once, with
//! the server's rights, compared, and held until the stub has mapped the very same
//! files.

use super::super::bounds::{LOOK_MAX, Patience, Room};
use super::super::describe::areas::hash_of_part;
use super::super::error::{Doing, Result, SnapshotError, refuse};
use super::super::names::{Found, Mounts};
use super::{Loading, within};
use holdfast_wire::snapshot::{Area, Backing, Description};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

pub(super) struct Mapped {
    /// Files by path and by the flags that they were opened with.
    files: BTreeMap<(Vec<u8>, i32), File>,
    executable: OwnedFd,
    directory: OwnedFd,
}

impl Mapped {
    pub fn open(description: &Description, mounts: &Mounts, loading: &Loading) -> Result<Self> {
        let patience = Patience::of(LOOK_MAX);
        let mut room = Room(loading.limits.memory_bytes);
        let mut files = BTreeMap::new();
        for area in &description.areas {
            let Some((path, flags)) = file_of(area) else { continue };
            let file = match files.entry((path.to_vec(), flags)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(fresh) => fresh.insert(file(path, flags, mounts)?),
            };
            if let Backing::Private { offset, hash, .. } = &area.backing {
                let len = area.end - area.start;
                let size = file.metadata().doing(shown(path))?.len();
                room.take(len.min(size.saturating_sub(*offset)))?;
                if hash_of_part(file, *offset, len, &loading.key, patience)? != *hash {
                    return refuse(format!("the file {} is another one here", shown(path)));
                }
            }
        }
        let process = &description.process;
        let executable = file(&process.executable, libc::O_RDONLY, mounts)?.into();
        let path = &process.directory;
        let directory = named(path, || mounts.find_folder(path))?;
        Ok(Self { files, executable, directory: directory.fd })
    }

    /// Path under which the stub finds what an area maps, and the flags to open
    /// it with.
    pub fn path(&self, area: &Area) -> Option<(String, i32)> {
        let (path, flags) = file_of(area)?;
        self.files.get(&(path.to_vec(), flags)).map(|file| (within(file), flags))
    }

    pub fn executable(&self) -> String {
        within(&self.executable)
    }

    pub fn directory(&self) -> String {
        within(&self.directory)
    }
}

/// The file that an area maps, and the flags that the mapping needs.
fn file_of(area: &Area) -> Option<(&[u8], i32)> {
    match &area.backing {
        Backing::Private { path, .. } | Backing::Shared { path, writable: false, .. } => {
            Some((path, libc::O_RDONLY))
        }
        Backing::Shared { path, writable: true, .. } => Some((path, libc::O_RDWR)),
        _ => None,
    }
}

/// Opens a file, and nothing but a file.
fn file(path: &[u8], flags: i32, mounts: &Mounts) -> Result<File> {
    let found = named(path, || mounts.open(path, flags.cast_unsigned()))?;
    if !found.status.is_file() {
        return refuse(format!("{} is no file here", shown(path)));
    }
    Ok(File::from(found.fd))
}

/// Adds the file's name to an error.
fn named(path: &[u8], open: impl FnOnce() -> io::Result<Found>) -> Result<Found> {
    open().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => SnapshotError::Refused(vec![denied(path)]),
        _ => SnapshotError::Step { what: shown(path), error },
    })
}

/// Like [`named`], for a step that has a name of its own.
pub(super) fn of(path: &[u8], error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::PermissionDenied => io::Error::new(kind, denied(path)),
        kind => io::Error::new(kind, format!("{}: {error}", shown(path))),
    }
}

/// What is refused to the server, and the remedy.
fn denied(path: &[u8]) -> String {
    format!("the server's user may not open {} here: give it the right to", shown(path))
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
