//! Shared memory of a family's processes: memory files and memory without a file, files that
//! shm_open(3) made, and SysV segments.

use super::super::error::{Doing, Result};
use super::super::names::{self, Mounts, Status};
use super::MODE;
use super::areas::allocated;
use crate::snapshot::External;
use holdfast_wire::snapshot::{NAMED_FOLDER, Object, ObjectKind, Segment};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// What the kernel adds to the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// A file in one file system, as /proc/PID/maps and fstat(2) number it.
pub(in super::super) type FileId = (u64, u64);

/// The shared memory that was found in a family.
#[derive(Default)]
pub(in super::super) struct Objects {
    pub objects: Vec<Object>,
    /// File of each of them, and a path under /proc by which it can be opened.
    pub files: Vec<(FileId, String)>,
    numbers: BTreeMap<FileId, u32>,
    /// SysV segments by their numbers, which may be those of memory files, too: the number of
    /// the object, and how often it is attached.
    pub segments: BTreeMap<u64, (u32, u64)>,
    /// Bytes that they take.
    pub bytes: u64,
}

impl Objects {
    /// The number of the shared memory behind a link under /proc; `None` if
    /// something else is there by now.
    pub fn number(
        &mut self,
        name: &[u8],
        link: &str,
        external: &External,
        mounts: &Mounts,
    ) -> Result<Option<u32>> {
        let file = names::read_link(link).doing(link)?;
        if Status::of(file.as_fd()).doing(link)?.device != mounts.memory {
            return Ok(None);
        }
        let metadata = file.metadata().doing(link)?;
        let id = id_of(&metadata);
        if let Some(known) = self.numbers.get(&id) {
            return Ok(Some(*known));
        }
        let (name, size, seals) = (name.to_vec(), metadata.len(), seals(&file));
        let (is_external, kind) = (external.memory.contains(&id), ObjectKind::Memory);
        let object = Object { name, size, seals, is_external, kind };
        let number = self.add(object, &metadata, link);
        self.numbers.insert(id, number);
        Ok(Some(number))
    }

    /// The number of a file that shm_open(3) made, of which `path` is the kernel's name. One
    /// without a name any more is nobody else's, like memory without a file.
    pub fn of_shm_open(&mut self, path: &[u8], link: &str) -> Result<u32> {
        let metadata = names::read_link(link).doing(link)?.metadata().doing(link)?;
        let id = id_of(&metadata);
        if let Some(known) = self.numbers.get(&id) {
            return Ok(*known);
        }
        let (mode, owner) =
            (metadata.permissions().mode() & MODE, (metadata.uid(), metadata.gid()));
        let (name, kind) = match name_of(path).filter(|_| metadata.nlink() > 0) {
            Some(name) => (name.to_vec(), ObjectKind::Named { mode, owner }),
            None => (Vec::new(), ObjectKind::Memory),
        };
        let object = Object { name, size: metadata.len(), seals: 0, is_external: false, kind };
        let number = self.add(object, &metadata, link);
        self.numbers.insert(id, number);
        Ok(number)
    }

    /// One more place where the segment with this number is attached: the number of the object,
    /// and the segment's size. What else it is, [`super::segments`] finds.
    pub fn segment(&mut self, id: u64, link: &str) -> Result<(u32, u64)> {
        if let Some((known, attached)) = self.segments.get_mut(&id) {
            *attached += 1;
            return Ok((*known, self.objects[*known as usize].size));
        }
        let metadata = names::read_link(link).doing(link)?.metadata().doing(link)?;
        let kind = ObjectKind::Segment(Segment {
            id: id as u32,
            key: 0,
            mode: 0,
            owner: (0, 0),
            is_removed: false,
        });
        let (size, seals, is_external) = (metadata.len(), 0, false);
        let object = Object { name: Vec::new(), size, seals, is_external, kind };
        let number = self.add(object, &metadata, link);
        self.segments.insert(id, (number, 1));
        Ok((number, size))
    }

    fn add(&mut self, object: Object, metadata: &Metadata, link: &str) -> u32 {
        if !object.is_external {
            self.bytes += allocated(metadata);
        }
        self.objects.push(object);
        self.files.push((id_of(metadata), link.to_owned()));
        (self.objects.len() - 1) as u32
    }
}

fn id_of(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The name of a memory file; shared memory without a file has none.
pub(super) fn memory_file(link: &[u8]) -> Option<&[u8]> {
    if link == b"/dev/zero (deleted)" || link.starts_with(b"[anon_shmem:") {
        return Some(b"");
    }
    link.strip_prefix(b"/memfd:")?.strip_suffix(DELETED)
}

/// Whether the kernel calls memory of its own so because it is a SysV segment.
pub(super) fn is_segment(name: &[u8]) -> bool {
    name.starts_with(b"/SYSV") && name.ends_with(DELETED)
}

/// The name of a file that shm_open(3) made, or may have made.
pub(super) fn name_of(path: &[u8]) -> Option<&[u8]> {
    let name = path.strip_prefix(NAMED_FOLDER)?.strip_prefix(b"/")?;
    (!name.is_empty() && !name.contains(&b'/')).then_some(name)
}

fn seals(file: &File) -> u32 {
    // SAFETY: plain numbers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    u32::try_from(seals).unwrap_or(0)
}
