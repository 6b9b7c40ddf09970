//! Areas of memory, and the shared memory mapped in them.

use super::super::bounds::{Patience, link_of};
use super::super::error::{Doing, Result, refuse};
use super::super::maps::{self, Mapping};
use super::super::names::{self, Mounts, Status};
use super::shared::{Objects, is_segment, memory_file, name_of};
use super::{Refusals, shown};
use crate::snapshot::External;
use holdfast_wire::hash::{HashKey, Secrets, StreamHash};
use holdfast_wire::snapshot::{Advice, Area, Backing, PAGE};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A mapped part of a file: which file, where the part begins, how long it is.
type Part = (Status, u64, u64);

/// Bytes of a file that are hashed at once.
const PIECE: u64 = 1 << 20;

/// What the looks at all processes of a family share, kept from before the freeze into it.
pub(in super::super) struct Common<'a> {
    key: HashKey,
    external: &'a External,
    pub mounts: Mounts,
    /// Bytes of files that may still be compared.
    left: u64,
    /// Hashes of the mapped parts of files.
    hashes: BTreeMap<Part, u64>,
}

impl<'a> Common<'a> {
    /// `bytes_max` is the most bytes of files that may be compared.
    pub fn new(key: HashKey, bytes_max: u64, external: &'a External) -> Result<Self> {
        let mounts = Mounts::read().doing("what is mounted")?;
        Ok(Self { key, external, mounts, left: bytes_max, hashes: BTreeMap::new() })
    }
}

/// What is known about a process's areas, kept from before the freeze into it.
pub(in super::super) struct Areas {
    pid: u32,
    mappings: Vec<Mapping>,
    flags: BTreeMap<u64, Vec<String>>,
}

/// Areas of a process as they are now.
#[derive(Default)]
pub(in super::super) struct Found {
    pub areas: Vec<Area>,
    /// Private mappings of files that are gone, by their start: the ranges in
    /// which the file has data.
    pub whole: BTreeMap<u64, Vec<(u64, u64)>>,
}

/// One look at all areas of a process.
struct Look<'l, 'a> {
    pid: u32,
    common: &'l mut Common<'a>,
    objects: &'l mut Objects,
    found: Found,
    patience: Patience,
    refusals: &'l mut Refusals,
}

impl Areas {
    pub const fn new(pid: u32) -> Self {
        Self { pid, mappings: Vec::new(), flags: BTreeMap::new() }
    }

    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Lists the areas again, and their flags, which cost much (15 ms for a gigabyte), only
    /// where areas have changed.
    pub fn refresh(&mut self) -> Result<()> {
        let mappings = maps::read(self.pid)?;
        if mappings != self.mappings {
            self.flags = maps::flags(self.pid)?;
            self.mappings = mappings;
        }
        Ok(())
    }

    /// Looks again; costs little if nothing has changed.
    pub fn look(
        &mut self,
        common: &mut Common<'_>,
        objects: &mut Objects,
        patience: Patience,
        refusals: &mut Refusals,
    ) -> Result<Found> {
        self.refresh()?;
        let (pid, found) = (self.pid, Found::default());
        let mut look = Look { pid, common, objects, found, patience, refusals };
        for mapping in &self.mappings {
            patience.check()?;
            let flags = self.flags.get(&mapping.start).map_or(&[][..], Vec::as_slice);
            // The kernel's own areas have flags of their own.
            if !mapping.name.starts_with(b"[v") {
                refuse_flags(flags, look.refusals);
            }
            let backing = match mapping.is_shared {
                true => look.shared(mapping, flags)?,
                false => look.private(mapping, flags)?,
            };
            let Some(backing) = backing else { continue };
            look.found.areas.push(Area {
                start: mapping.start,
                end: mapping.end,
                prot: mapping.prot,
                advice: advice(flags),
                backing,
            });
        }
        Ok(look.found)
    }
}

impl Look<'_, '_> {
    fn private(&mut self, mapping: &Mapping, flags: &[String]) -> Result<Option<Backing>> {
        let name = &mapping.name[..];
        let grows = flags.iter().any(|flag| flag == "gd");
        Ok(Some(match name {
            b"[vdso]" => Backing::Vdso,
            _ if name.starts_with(b"[vvar") => Backing::Vvar,
            _ if grows => Backing::Stack,
            b"" | b"[heap]" | b"[stack]" | b"/dev/zero" => Backing::Anonymous,
            _ if name.starts_with(b"[anon:") => Backing::Anonymous,
            _ if name.starts_with(b"/") => {
                if mapping.device != self.common.mounts.memory && self.is_strange(mapping) {
                    return Ok(None);
                }
                if let Some((path, status)) = named(mapping) {
                    let (path, offset) = (path.to_vec(), mapping.offset);
                    let hash = self.hash(mapping, status)?;
                    return Ok(Some(Backing::Private { path, offset, hash }));
                }
                let data = data_of(&link_of(self.pid, mapping), mapping, self.patience)?;
                self.found.whole.insert(mapping.start, data);
                Backing::Anonymous
            }
            _ => {
                self.refusals.add(format!("it maps {}", shown(name)));
                return Ok(None);
            }
        }))
    }

    fn is_strange(&mut self, mapping: &Mapping) -> bool {
        let strange = self.common.mounts.strange_device(mapping.device);
        if let Some(kind) = strange {
            let name = shown(&mapping.name);
            self.refusals.add(format!("it maps {name}, in a file system like {kind}"));
        }
        strange.is_some()
    }

    /// The hash of a mapped part of a file: of what is mapped, whatever its name means
    /// by now.
    fn hash(&mut self, mapping: &Mapping, status: Status) -> Result<u64> {
        let (offset, len) = (mapping.offset, mapping.end - mapping.start);
        let part = (status, offset, len);
        if let Some(known) = self.common.hashes.get(&part) {
            return Ok(*known);
        }
        let what = || format!("the file {}", shown(&mapping.name));
        let file = names::read_link(&link_of(self.pid, mapping)).doing(what())?;
        let size = file.metadata().doing(what())?.len();
        let left = self.common.left.checked_sub(len.min(size.saturating_sub(offset)));
        let Some(left) = left else {
            return refuse("it maps more of files than the limit of memory_bytes");
        };
        self.common.left = left;
        let hash = hash_of_part(&file, offset, len, &self.common.key, self.patience)?;
        self.common.hashes.insert(part, hash);
        Ok(hash)
    }

    fn shared(&mut self, mapping: &Mapping, flags: &[String]) -> Result<Option<Backing>> {
        let name = &mapping.name[..];
        let offset = mapping.offset;
        let is_memory = mapping.device == self.common.mounts.memory;
        if is_memory && is_segment(name) {
            return self.attached(mapping, flags);
        }
        if let Some(name) = memory_file(name).filter(|_| is_memory) {
            let link = link_of(self.pid, mapping);
            let object =
                self.objects.number(name, &link, self.common.external, &self.common.mounts)?;
            return Ok(object.map(|object| Backing::Object { object, offset }));
        }
        if name.starts_with(b"anon_inode:[io_uring]") {
            self.refusals.add("it uses io_uring");
            return Ok(None);
        }
        let found = named(mapping);
        // A process that may write and does not now may ask for it later.
        let writable = flags.iter().any(|flag| flag == "mw");
        let is_shm = name_of(name).is_some();
        if found.is_none() && !is_shm {
            self.refusals.add(format!("it shares a mapping of {}", shown(name)));
            return Ok(None);
        }
        if self.is_strange(mapping) {
            return Ok(None);
        }
        match found {
            // What it only reads there may be another one's.
            Some((path, _)) if !is_shm || !writable => {
                Ok(Some(Backing::Shared { path: path.to_vec(), offset, writable }))
            }
            _ => {
                let object = self.objects.of_shm_open(name, &link_of(self.pid, mapping))?;
                Ok(Some(Backing::Object { object, offset }))
            }
        }
    }

    /// A mapping of a SysV segment: of all of it, as shmat(2) makes one.
    fn attached(&mut self, mapping: &Mapping, flags: &[String]) -> Result<Option<Backing>> {
        let link = link_of(self.pid, mapping);
        let (object, size) = self.objects.segment(mapping.inode, &link)?;
        let whole = (0, size.next_multiple_of(PAGE));
        if (mapping.offset, mapping.end - mapping.start) != whole {
            // What is left of it, or a part with another protection.
            self.refusals.add("it has parts of SysV shared memory mapped (munmap, mprotect)");
            return Ok(None);
        }
        let writable = flags.iter().any(|flag| flag == "mw");
        Ok(Some(Backing::Attached { object, writable }))
    }
}

/// The path of what is mapped, if it still leads there and to a file.
fn named(mapping: &Mapping) -> Option<(&[u8], Status)> {
    let path = mapping.path()?;
    let found = names::look(path).ok()?;
    let same = (found.device, found.inode) == (mapping.device, mapping.inode);
    (same && found.is_file()).then_some((path, found))
}

/// Bytes that a file takes, without holes.
pub(in super::super) fn allocated(metadata: &std::fs::Metadata) -> u64 {
    /// Bytes of what `st_blocks` counts.
    const BLOCK: u64 = 512;
    metadata.blocks().saturating_mul(BLOCK)
}

/// Where a mapped file has data, as addresses of whole pages: where it is zero,
/// anonymous memory is zero, too.
fn data_of(link: &str, mapping: &Mapping, patience: Patience) -> Result<Vec<(u64, u64)>> {
    let what = || format!("the mapped file {}", shown(&mapping.name));
    let file = names::read_link(link).doing(what())?;
    let size = file.metadata().doing(what())?.len();
    let end = mapping.offset.saturating_add(mapping.end - mapping.start).min(size);
    let mut data: Vec<(u64, u64)> = Vec::new();
    for extent in extents(&file, mapping.offset, end) {
        patience.check()?;
        let (from, to) = extent.doing(what())?;
        let address = |offset: u64| mapping.start + (offset - mapping.offset);
        let from = address(from / PAGE * PAGE);
        let to = address(to.next_multiple_of(PAGE));
        match data.last_mut() {
            Some((_, last)) if *last >= from => *last = to,
            _ => data.push((from, to)),
        }
    }
    Ok(data)
}

/// The parts of a file's range that are not holes.
pub(in super::super) fn extents(
    file: &File,
    from: u64,
    end: u64,
) -> impl Iterator<Item = io::Result<(u64, u64)>> {
    let seek = move |offset: u64, whence| {
        // SAFETY: plain numbers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset.cast_signed(), whence) };
        match u64::try_from(found) {
            Ok(found) => Ok(found.min(end)),
            // Nothing follows.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => Ok(end),
            Err(_) => Err(io::Error::last_os_error()),
        }
    };
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let extent = seek(at, libc::SEEK_DATA).and_then(|start| {
            at = if start < end { seek(start, libc::SEEK_HOLE)? } else { end };
            Ok((start, at))
        });
        match extent {
            Ok((start, to)) => (start < to).then_some(Ok((start, to))),
            Err(error) => {
                at = end;
                Some(Err(error))
            }
        }
    })
}

/// The hash of a part of a file, which may end before the part does.
pub(in super::super) fn hash_of_part(
    file: &File,
    offset: u64,
    len: u64,
    key: &HashKey,
    patience: Patience,
) -> Result<u64> {
    let what = "reading a mapped file";
    let size = file.metadata().doing(what)?.len();
    let end = offset.saturating_add(len).min(size);
    let secrets = Secrets::new(key);
    let mut hash = StreamHash::new(&secrets);
    let mut piece = vec![0; PIECE.min(end.saturating_sub(offset)) as usize];
    let mut at = offset;
    while at < end {
        patience.check()?;
        let piece = &mut piece[..PIECE.min(end - at) as usize];
        file.read_exact_at(piece, at).doing(what)?;
        hash.update(piece);
        at += piece.len() as u64;
    }
    Ok(hash.finish())
}

fn refuse_flags(flags: &[String], refusals: &mut Refusals) {
    for (flag, reason) in [
        ("ht", "it has huge pages (hugetlbfs)"),
        ("lo", "it has locked memory (mlock)"),
        ("ss", "it has a shadow stack"),
        ("sl", "it has sealed memory (mseal)"),
        ("io", "it maps a device"),
        ("pf", "it maps a device"),
        ("dp", "it has memory that may be dropped (MAP_DROPPABLE)"),
        ("um", "it supplies its own pages (userfaultfd)"),
        ("ui", "it supplies its own pages (userfaultfd)"),
    ] {
        refusals.add_if(flags.iter().any(|found| found == flag), reason);
    }
}

fn advice(flags: &[String]) -> Advice {
    let has = |flag: &str| flags.iter().any(|found| found == flag);
    Advice {
        huge: has("hg"),
        never_huge: has("nh"),
        not_forked: has("dc"),
        not_dumped: has("dd"),
        wiped_on_fork: has("wf"),
        no_reserve: has("nr"),
    }
}
