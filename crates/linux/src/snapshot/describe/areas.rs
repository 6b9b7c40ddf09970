//! Areas of memory, and the shared memory that they show.

use super::super::error::{Doing, Result};
use super::super::maps::{self, Mapping};
use super::{Refusals, shown};
use crate::snapshot::External;
use holdfast_wire::hash::{HashKey, hash};
use holdfast_wire::snapshot::{Advice, Area, Backing, Object};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A file in one file system, as /proc/PID/maps and fstat(2) number it.
pub(in super::super) type FileId = (u64, u64);

/// A mapped part of a file: what it is, where it begins, how long it is.
type Part = (Vec<u8>, u64, u64, u64);

/// What is known of a process's areas, kept from before the freeze into it.
pub(in super::super) struct Areas<'a> {
    pid: u32,
    key: HashKey,
    external: &'a External,
    /// Hashes of what is mapped of files.
    hashes: BTreeMap<Part, Option<u64>>,
    mappings: Vec<Mapping>,
    flags: BTreeMap<u64, Vec<String>>,
}

/// Areas as they are now.
#[derive(Default)]
pub(in super::super) struct Found {
    pub areas: Vec<Area>,
    /// Private mappings of files that are gone: all of their pages are needed.
    pub whole: Vec<(u64, u64)>,
    pub objects: Vec<Object>,
    /// By what file each is, and a path under /proc by which it can be opened.
    pub object_files: Vec<(FileId, String)>,
}

impl<'a> Areas<'a> {
    pub fn new(pid: u32, key: HashKey, external: &'a External) -> Self {
        let (hashes, flags) = (BTreeMap::new(), BTreeMap::new());
        Self { pid, key, external, hashes, mappings: Vec::new(), flags }
    }

    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Looks again; costs little where nothing has changed.
    pub fn look(&mut self, refusals: &mut Refusals) -> Result<Found> {
        let mappings = maps::read(self.pid)?;
        if mappings != self.mappings {
            self.flags = maps::flags(self.pid)?;
            self.mappings = mappings;
        }
        let mut found = Found::default();
        for mapping in &self.mappings.clone() {
            let flags = self.flags.get(&mapping.start).cloned().unwrap_or_default();
            // The kernel's own have flags of their own.
            if !mapping.name.starts_with(b"[v") {
                refuse_flags(&flags, refusals);
            }
            let Some(backing) = self.backing(mapping, &flags, &mut found, refusals)? else {
                continue;
            };
            found.areas.push(Area {
                start: mapping.start,
                end: mapping.end,
                prot: mapping.prot,
                advice: advice(&flags),
                backing,
            });
        }
        Ok(found)
    }

    fn backing(
        &mut self,
        mapping: &Mapping,
        flags: &[String],
        found: &mut Found,
        refusals: &mut Refusals,
    ) -> Result<Option<Backing>> {
        let name = &mapping.name[..];
        let grows = flags.iter().any(|flag| flag == "gd");
        if mapping.is_shared {
            return self.shared(mapping, found, refusals);
        }
        Ok(Some(match name {
            b"[vdso]" => Backing::Vdso,
            _ if name.starts_with(b"[vvar") => Backing::Vvar,
            _ if grows => Backing::Stack,
            b"" | b"[heap]" | b"[stack]" | b"/dev/zero" => Backing::Anonymous,
            _ if name.starts_with(b"[anon:") => Backing::Anonymous,
            _ if name.starts_with(b"/") => match self.file(mapping) {
                Some(hash) => {
                    Backing::Private { path: name.to_vec(), offset: mapping.offset, hash }
                }
                None => {
                    found.whole.push((mapping.start, mapping.end));
                    Backing::Anonymous
                }
            },
            _ => {
                refusals.add(format!("it maps {}", shown(name)));
                return Ok(None);
            }
        }))
    }

    /// The hash of what is mapped of a file; `None` if that is not its name any more.
    fn file(&mut self, mapping: &Mapping) -> Option<u64> {
        let path = mapping.path()?;
        let metadata = fs::metadata(OsStr::from_bytes(path)).ok()?;
        let version =
            metadata.ino() ^ (metadata.mtime_nsec() as u64) << 32 ^ metadata.mtime() as u64;
        let same = metadata.ino() == mapping.inode && device(metadata.dev()) == mapping.device;
        let part = (path.to_vec(), mapping.offset, mapping.end - mapping.start, version);
        let key = self.key;
        let (path, offset, len) = (path, part.1, part.2);
        let known = self
            .hashes
            .entry(part.clone())
            .or_insert_with(|| same.then(|| hash_of_part(path, offset, len, &key).ok()).flatten());
        *known
    }

    fn shared(
        &self,
        mapping: &Mapping,
        found: &mut Found,
        refusals: &mut Refusals,
    ) -> Result<Option<Backing>> {
        let name = &mapping.name[..];
        let offset = mapping.offset;
        if let Some(name) = memory_file(name) {
            let link =
                format!("/proc/{}/map_files/{:x}-{:x}", self.pid, mapping.start, mapping.end);
            let object = found.object(name, &link, self.external)?;
            return Ok(Some(Backing::Object { object, offset }));
        }
        match mapping.path() {
            Some(path) if is_regular(path) => {
                // Who may write and does not now may ask for it later.
                let writable = self.flags.get(&mapping.start);
                let writable = writable.is_some_and(|flags| flags.iter().any(|f| f == "mw"));
                Ok(Some(Backing::Shared { path: path.to_vec(), offset, writable }))
            }
            _ if name.starts_with(b"/SYSV") => {
                refusals.add("it has SysV shared memory");
                Ok(None)
            }
            _ if name.starts_with(b"anon_inode:[io_uring]") => {
                refusals.add("it uses io_uring");
                Ok(None)
            }
            _ => {
                refusals.add(format!("it shares a mapping of {}", shown(name)));
                Ok(None)
            }
        }
    }
}

impl Found {
    /// The number of the shared memory behind a link under /proc.
    pub fn object(&mut self, name: &[u8], link: &str, external: &External) -> Result<u32> {
        let metadata = fs::metadata(link).doing(link)?;
        let id = (metadata.dev(), metadata.ino());
        if let Some(known) = self.object_files.iter().position(|(known, _)| *known == id) {
            return Ok(known as u32);
        }
        let is_external = external.memory.contains(&id);
        let file = File::open(link).doing(link)?;
        self.objects.push(Object {
            name: name.to_vec(),
            size: metadata.len(),
            seals: seals(&file),
            is_external,
        });
        self.object_files.push((id, link.to_owned()));
        Ok((self.objects.len() - 1) as u32)
    }
}

/// The name of a memory file; shared memory without a file has none.
pub(super) fn memory_file(link: &[u8]) -> Option<&[u8]> {
    if link == b"/dev/zero (deleted)" || link.starts_with(b"[anon_shmem:") {
        return Some(b"");
    }
    link.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)")
}

fn seals(file: &File) -> u32 {
    use std::os::fd::AsRawFd;
    // SAFETY: plain numbers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    u32::try_from(seals).unwrap_or(0)
}

/// Major and minor number, as in /proc/PID/maps.
fn device(dev: u64) -> (u32, u32) {
    (libc::major(dev), libc::minor(dev))
}

fn is_regular(path: &[u8]) -> bool {
    fs::metadata(OsStr::from_bytes(path)).is_ok_and(|found| found.is_file())
}

/// The hash of a part of a file, which may end before the part does.
pub(in super::super) fn hash_of_part(
    path: &[u8],
    offset: u64,
    len: u64,
    key: &HashKey,
) -> io::Result<u64> {
    let file = File::open(OsStr::from_bytes(path))?;
    let size = file.metadata()?.len();
    let mut bytes = vec![0; len.min(size.saturating_sub(offset)) as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(hash(key, &bytes))
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
