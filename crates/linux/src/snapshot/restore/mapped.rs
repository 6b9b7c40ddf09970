//! Files that a process maps, runs or has as its working directory: opened once, with
//! its own rights, compared, and held until the stub has mapped the very same
//! files.

use super::super::bounds::{LOOK_MAX, Patience, Room};
use super::super::describe::areas::hash_of_part;
use super::super::error::{Doing, Result, SnapshotError, refuse};
use super::super::names::{Found, Mounts, Status};
use super::{Loading, within};
use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::{Area, Backing, Member};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

pub(super) struct Mapped {
    /// Files by path and by the flags that they were opened with.
    files: BTreeMap<(Vec<u8>, i32), (File, Status)>,
    executable: OwnedFd,
    directory: OwnedFd,
}

/// The parts of files that were compared: processes of a family map the same ones.
pub(super) struct Compared {
    key: HashKey,
    patience: Patience,
    room: Room,
    hashes: BTreeMap<(Status, u64, u64), u64>,
}

impl Compared {
    pub fn new(loading: &Loading) -> Self {
        let (patience, room) = (Patience::of(LOOK_MAX), Room(loading.limits.memory_bytes));
        Self { key: loading.key, patience, room, hashes: BTreeMap::new() }
    }

    fn hash(&mut self, file: &File, status: Status, part: (u64, u64), path: &[u8]) -> Result<u64> {
        let (offset, len) = part;
        if let Some(known) = self.hashes.get(&(status, offset, len)) {
            return Ok(*known);
        }
        let size = file.metadata().doing(shown(path))?.len();
        self.room.take(len.min(size.saturating_sub(offset)))?;
        let hash = hash_of_part(file, offset, len, &self.key, self.patience)?;
        self.hashes.insert((status, offset, len), hash);
        Ok(hash)
    }
}

impl Mapped {
    pub fn open(of: &Member, mounts: &Mounts, compared: &mut Compared) -> Result<Self> {
        let mut files = BTreeMap::new();
        for area in &of.areas {
            let Some((path, flags)) = file_of(area) else { continue };
            let (file, status) = match files.entry((path.to_vec(), flags)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(fresh) => fresh.insert(file(path, flags, mounts)?),
            };
            if let Backing::Private { offset, hash, .. } = &area.backing {
                let part = (*offset, area.end - area.start);
                if compared.hash(file, *status, part, path)? != *hash {
                    return refuse(format!("the file {} is another one here", shown(path)));
                }
            }
        }
        let process = &of.process;
        let executable = file(&process.executable, libc::O_RDONLY, mounts)?.0.into();
        let path = &process.directory;
        let directory = named(path, || mounts.find_folder(path))?;
        Ok(Self { files, executable, directory: directory.fd })
    }

    /// Path under which the stub finds what an area maps, and the flags to open
    /// it with.
    pub fn path(&self, area: &Area) -> Option<(String, i32)> {
        let (path, flags) = file_of(area)?;
        self.files.get(&(path.to_vec(), flags)).map(|(file, _)| (within(file), flags))
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
fn file(path: &[u8], flags: i32, mounts: &Mounts) -> Result<(File, Status)> {
    let found = named(path, || mounts.open(path, flags.cast_unsigned()))?;
    if !found.status.is_file() {
        return refuse(format!("{} is no file here", shown(path)));
    }
    Ok((File::from(found.fd), found.status))
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
