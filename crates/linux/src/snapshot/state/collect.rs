//! A copy of state folders, taken in rounds while the server writes, and completed
//! while it stands still.

use super::super::bounds::Patience;
use super::super::describe::areas::{allocated, extents};
use super::super::describe::fdinfo::{flags_of, info_of};
use super::super::error::{Doing, Result, refuse};
use super::super::guise::Guise;
use super::super::names::Mounts;
use super::attributes;
use super::place::{REMOVING, remove};
use super::{FileId, LOST_AND_FOUND, Root, Writing};
use crate::sockopt::{checked, checked_fd};
use holdfast_wire::snapshot::{
    ATTRIBUTES_BYTES_MAX, Attribute, Ids, Limits, PAGE, STATE_RESERVED, State, StateEntry,
    StateKind,
};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Most bytes of files that a freeze may copy: half as many milliseconds, or as many. A database
/// always writes to one segment of its log (16 MB of PostgreSQL's).
const FREEZE_BYTES: u64 = 24 << 20;
/// Bytes copied or written at once.
const PIECE: u64 = 4 << 20;
/// Bytes at the end of a file that is only appended to, which are compared before its
/// new bytes are copied.
const SEAM: u64 = 4096;
/// Time before a copy, in ns, within which a write makes the copy doubtful: the file
/// may be written once more in the same tick of the kernel's clock, and look the same
/// (as git's index has it).
const TICK_NS: i64 = 20_000_000;
/// Longest time for a round, which only reads.
const ROUND_MAX: Duration = Duration::from_secs(600);
/// Most levels of folders within folders.
const DEPTH_MAX: usize = 32;

/// What tells that a file has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    id: FileId,
    size: u64,
    written_ns: i64,
    changed_ns: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            id: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            written_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The copy of a file.
struct Copy {
    stamp: Stamp,
    /// Whether the file may have changed without looking so.
    is_doubtful: bool,
    /// Contents in order, without holes.
    pieces: Vec<Piece>,
}

/// Bytes of a file: their place in the file, and in the store.
#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    stored_at: u64,
    len: u64,
}

/// All copies of a folder's files, in one file without a name on its file system: nothing
/// is left of it, whatever process dies.
struct Store {
    file: File,
    end: u64,
}

/// Takes bytes of an entry, with their offset in it.
pub(in super::super) type Sink<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<()> + 'a;

/// A name in one of the folders.
type Place = (u32, Vec<u8>);

/// The extended attributes of what has that name, as they were when it looked so; and whether they
/// may have changed since without showing.
struct Noted {
    stamp: Stamp,
    is_doubtful: bool,
    attributes: Vec<Attribute>,
}

/// The copies; see the module.
pub(in super::super) struct Collected {
    ids: Ids,
    limits: Limits,
    roots: Vec<(Root, Store)>,
    copies: BTreeMap<Place, Copy>,
    notes: BTreeMap<Place, Noted>,
    state: State,
}

/// State of a look at the folders.
struct Look<'a> {
    writing: &'a Writing,
    /// Files that change without looking so, because parts of them are mapped.
    mapped: &'a BTreeSet<PathBuf>,
    patience: Patience,
    is_off: &'a AtomicBool,
    /// Bytes that may still be copied.
    left: u64,
    copied: u64,
    now_ns: i64,
    /// Files with several names.
    linked: BTreeSet<FileId>,
    entries_max: usize,
    /// Whether the server runs.
    runs: bool,
    /// What the last look has found of attributes, and this one; and how many bytes of them may
    /// still come.
    notes: BTreeMap<Place, Noted>,
    noted: BTreeMap<Place, Noted>,
    attributes_left: usize,
}

impl Collected {
    /// Looks at the folders without copying anything.
    pub fn begin(paths: &[PathBuf], ids: Ids, limits: Limits, mounts: &Mounts) -> Result<Self> {
        let _guise = Guise::of(&ids).doing(GUISE)?;
        let root = |path: &PathBuf| {
            let root = Root::open(path, mounts)?;
            // What a rebuilt server needs no more takes room.
            remove(&root, OsStr::new(REMOVING)).doing(root.shown(REMOVING.as_bytes()))?;
            let store = Store::beside(&root).doing(format!("a copy of {}", path.display()))?;
            Ok((root, store))
        };
        let roots: Result<Vec<(Root, Store)>> = paths.iter().map(root).collect();
        let (copies, notes, state) = (BTreeMap::new(), BTreeMap::new(), State::default());
        Ok(Self { ids, limits, roots: roots?, copies, notes, state })
    }

    /// Copies what has changed since the last round; returns the number of bytes. Files
    /// in `mapped` are partly memory that the server may write.
    pub fn round(
        &mut self,
        pids: &[u32],
        mapped: &BTreeSet<PathBuf>,
        is_off: &AtomicBool,
    ) -> Result<u64> {
        if self.roots.is_empty() {
            return Ok(0);
        }
        let mut writing = Writing::new();
        pids.iter().try_for_each(|pid| note_all(&mut writing, *pid))?;
        self.look(&writing, mapped, Patience::of(ROUND_MAX), is_off, u64::MAX)
    }

    /// The same while the server stands still; returns the folders' final
    /// description.
    pub fn freeze(
        &mut self,
        writing: &Writing,
        mapped: &BTreeSet<PathBuf>,
        patience: Patience,
    ) -> Result<State> {
        if !self.roots.is_empty() {
            self.look(writing, mapped, patience, &AtomicBool::new(false), FREEZE_BYTES)?;
        }
        Ok(self.state.clone())
    }

    fn look(
        &mut self,
        writing: &Writing,
        mapped: &BTreeSet<PathBuf>,
        patience: Patience,
        is_off: &AtomicBool,
        left: u64,
    ) -> Result<u64> {
        let _guise = Guise::of(&self.ids).doing(GUISE)?;
        let (copied, linked, now_ns) = (0, BTreeSet::new(), now_ns().doing("the time of day")?);
        let (entries_max, runs) = (self.limits.state_entries, left == u64::MAX);
        let mut look = Look {
            writing,
            mapped,
            patience,
            is_off,
            left,
            copied,
            now_ns,
            linked,
            entries_max,
            runs,
            notes: std::mem::take(&mut self.notes),
            noted: BTreeMap::new(),
            attributes_left: ATTRIBUTES_BYTES_MAX,
        };
        self.state = State::default();
        let mut found = BTreeMap::new();
        let Self { roots, copies, state, limits, .. } = self;
        for (number, (root, store)) in (0..).zip(&mut *roots) {
            state.folders.push(root.path.as_os_str().as_bytes().to_vec());
            let left = limits.state_entries - state.entries.len();
            let mut entries = entries_of(root, number, &mut look, left)?;
            entries.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
            for (mut entry, metadata) in entries {
                let place = (entry.folder, entry.path.clone());
                let Some(attributes) = look.attributes(root, &place, &metadata)? else { continue };
                entry.attributes = attributes;
                if let StateKind::File { size } = &mut entry.kind {
                    let known = copies.remove(&place);
                    let Some(copy) = look.copy(root, store, &entry.path, known, &metadata)? else {
                        continue;
                    };
                    *size = copy.stamp.size;
                    state.bytes += copy.pieces.iter().map(|piece| piece.len).sum::<u64>();
                    found.insert(place, copy);
                }
                state.entries.push(entry);
            }
        }
        self.notes = look.noted;
        for (place, gone) in std::mem::replace(copies, found) {
            roots[place.0 as usize].1.forget(&gone);
        }
        Ok(look.copied)
    }

    /// Gives the files' contents to `take`, with the file's number and the offset: the
    /// first part of an image.
    pub fn write(&self, take: &mut Sink<'_>) -> Result<()> {
        for (number, entry) in (0..).zip(&self.state.entries) {
            let copy = self.copies.get(&(entry.folder, entry.path.clone()));
            let store = &self.roots[entry.folder as usize].1.file;
            for piece in copy.iter().flat_map(|copy| &copy.pieces) {
                for from in (0..piece.len).step_by(PIECE as usize) {
                    let mut bytes = vec![0; PIECE.min(piece.len - from) as usize];
                    let read = store.read_exact_at(&mut bytes, piece.stored_at + from);
                    read.doing("reading a copy of its state")?;
                    take(number, piece.at + from, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Bytes that the files hold, and the number of pieces.
    pub fn size(&self) -> (u64, u64) {
        let pieces = self.copies.values().map(|copy| copy.pieces.len() as u64).sum();
        (self.state.bytes, pieces)
    }
}

impl Store {
    fn beside(root: &Root) -> io::Result<Self> {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        let folder = root.folder.as_raw_fd();
        let again = |file: File| Ok(Self { file, end: 0 });
        // SAFETY: the kernel reads a C string.
        let fd = unsafe { libc::openat(folder, c".".as_ptr(), flags, 0o600) };
        checked_fd(libc::c_long::from(fd)).map(File::from).and_then(again)
    }

    /// Whether a file equals its copy with something appended: while the server runs all
    /// of it is compared, and while it stands only its end.
    fn goes_on(&self, known: &Copy, stamp: &Stamp, from: &File, all: bool) -> bool {
        let same = |piece: &Piece| -> io::Result<bool> {
            let len = if all { piece.len } else { piece.len.min(SEAM) };
            let (mut then, mut now) = (vec![0; len as usize], vec![0; len as usize]);
            let before_end = piece.len - len;
            self.file.read_exact_at(&mut then, piece.stored_at + before_end)?;
            from.read_exact_at(&mut now, piece.at + before_end)?;
            Ok(then == now)
        };
        // A file that ended with a hole may have been cut there, and extended again
        // since.
        let ends = |last: &Piece| last.at + last.len == known.stamp.size;
        let compared = if all { 0 } else { known.pieces.len().saturating_sub(1) };
        known.stamp.id == stamp.id
            && known.stamp.size <= stamp.size
            && known.pieces.last().map_or(known.stamp.size == 0, ends)
            && known.pieces[compared..].iter().all(|piece| same(piece).unwrap_or(false))
    }

    /// Frees the space of a copy, if the file system can.
    fn forget(&mut self, copy: &Copy) {
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        for piece in &copy.pieces {
            let (at, len) = (piece.stored_at.cast_signed(), piece.len.cast_signed());
            // SAFETY: plain numbers.
            unsafe { libc::fallocate(self.file.as_raw_fd(), flags, at, len) };
        }
    }
}

const GUISE: &str = "the server's rights to files";

impl Look<'_> {
    /// Whether something has changed so lately that it could change once more and look the same.
    const fn is_fresh(&self, stamp: &Stamp) -> bool {
        stamp.changed_ns > self.now_ns - TICK_NS
    }

    /// The attributes of an entry; `None` if it is gone. Only what has changed is asked for them,
    /// for a server that stands still may have thousands of files.
    fn attributes(
        &mut self,
        root: &Root,
        place: &Place,
        metadata: &Metadata,
    ) -> Result<Option<Vec<Attribute>>> {
        self.patience.check()?;
        let (name, stamp) = (&place.1, Stamp::of(metadata));
        let is_known = |known: &Noted| known.stamp == stamp && !known.is_doubtful;
        let note = match self.notes.remove(place).filter(is_known) {
            Some(known) => known,
            None => match attributes::of(&root.at(OsStr::from_bytes(name))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                read => Noted {
                    is_doubtful: self.is_fresh(&stamp),
                    stamp,
                    attributes: read.doing(root.shown(name))?,
                },
            },
        };
        let odd = note.attributes.iter().find(|it| !Attribute::may_go_over(&it.name));
        if let Some(odd) = odd {
            let (name, odd) = (root.shown(name), String::from_utf8_lossy(&odd.name));
            return refuse(format!("{name} has an extended attribute that cannot go over: {odd}"));
        }
        let bytes = note.attributes.iter().map(Attribute::bytes).sum();
        let Some(left) = self.attributes_left.checked_sub(bytes) else {
            let most = ATTRIBUTES_BYTES_MAX >> 20;
            let name = root.shown(name);
            return refuse(format!("up to {name} it has over {most} MB of extended attributes"));
        };
        self.attributes_left = left;
        let attributes = note.attributes.clone();
        self.noted.insert(place.clone(), note);
        Ok(Some(attributes))
    }

    /// A file's copy as the file is now, or was when it was last copied; `None` if it is
    /// gone.
    fn copy(
        &mut self,
        root: &Root,
        store: &mut Store,
        name: &[u8],
        known: Option<Copy>,
        metadata: &Metadata,
    ) -> Result<Option<Copy>> {
        self.patience.check()?;
        let what = || format!("copying {}", root.shown(name));
        let stamp = Stamp::of(metadata);
        let is_mapped = self.mapped.contains(&root.path.join(OsStr::from_bytes(name)));
        let is_doubtful = is_mapped || self.is_fresh(&stamp);
        let is_same = |known: &Copy| known.stamp == stamp && !known.is_doubtful && !is_mapped;
        let known = match known {
            Some(known) if is_same(&known) => return Ok(Some(known)),
            known => known,
        };
        let from = match open(root, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.doing(what())?,
        };
        if Stamp::of(&from.metadata().doing(what())?).id != stamp.id {
            // Another file has its name by now: the next look finds that.
            return Ok(None);
        }
        let appends = self.writing.get(&stamp.id).copied().unwrap_or(false) && !is_mapped;
        let (mut pieces, at) = match known {
            Some(known) if appends && store.goes_on(&known, &stamp, &from, self.runs) => {
                root.has_room(stamp.size - known.stamp.size)?;
                (known.pieces, known.stamp.size)
            }
            known => {
                known.iter().for_each(|known| store.forget(known));
                root.has_room(allocated(metadata).min(stamp.size))?;
                (Vec::new(), 0)
            }
        };
        self.extents(&from, store, (at, stamp.size), &mut pieces).or_else(|stop| match stop {
            Stop::Io(error) => Err(error).doing(what()),
            Stop::TooMuch => {
                let name = root.shown(name);
                refuse(format!("{name} changes faster than it can be copied"))
            }
            Stop::Else(error) => Err(error),
        })?;
        Ok(Some(Copy { stamp, is_doubtful, pieces }))
    }

    fn extents(
        &mut self,
        from: &File,
        store: &mut Store,
        (from_at, to_at): (u64, u64),
        pieces: &mut Vec<Piece>,
    ) -> std::result::Result<(), Stop> {
        for extent in extents(from, from_at, to_at) {
            let (mut at, end) = extent?;
            while at < end {
                self.patience.check().map_err(Stop::Else)?;
                if self.is_off.load(Relaxed) {
                    return refuse("nobody wants the image any more").map_err(Stop::Else);
                }
                let piece = Piece { at, stored_at: store.end, len: PIECE.min(end - at) };
                self.left = self.left.checked_sub(piece.len).ok_or(Stop::TooMuch)?;
                let (mut reader, mut writer) = (from, &store.file);
                reader.seek(SeekFrom::Start(at))?;
                writer.seek(SeekFrom::Start(piece.stored_at))?;
                // The kernel copies, or shares the blocks where the file system can.
                let len = io::copy(&mut reader.take(piece.len), &mut writer)?;
                if len == 0 {
                    // It was cut meanwhile: the next look finds that.
                    return Ok(());
                }
                pieces.push(Piece { len, ..piece });
                store.end = (store.end + len).next_multiple_of(PAGE);
                self.copied += len;
                at += len;
            }
        }
        Ok(())
    }
}

enum Stop {
    Io(io::Error),
    TooMuch,
    Else(super::super::SnapshotError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn now_ns() -> io::Result<i64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    checked(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) })?;
    Ok(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
}

fn open(root: &Root, name: &[u8]) -> io::Result<File> {
    // Nobody is waited for: neither a FIFO nor the holder of a lease.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(root.at(OsStr::from_bytes(name)))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no file")),
    }
}

/// The entries of a folder, and the folders in it, in no order.
fn entries_of(
    root: &Root,
    number: u32,
    look: &mut Look<'_>,
    most: usize,
) -> Result<Vec<(StateEntry, Metadata)>> {
    let device = root.folder.metadata().doing("a state folder")?.dev();
    let (mut entries, mut folders) = (Vec::new(), vec![(PathBuf::new(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        let what = || format!("the folder {}", root.shown(folder.as_os_str().as_bytes()));
        for found in fs::read_dir(root.at(&folder)).doing(what())? {
            look.patience.check()?;
            let path = folder.join(found.doing(what())?.file_name());
            let bytes = path.as_os_str().as_bytes();
            if depth == 0 && (bytes.starts_with(STATE_RESERVED) || bytes == LOST_AND_FOUND) {
                continue;
            }
            let metadata = match fs::symlink_metadata(root.at(&path)) {
                // It has gone since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found.doing(root.shown(bytes))?,
            };
            let Some(entry) = entry(root, number, &path, &metadata, device, look)? else {
                continue;
            };
            if metadata.is_dir() && depth == DEPTH_MAX {
                return refuse(format!("{} is too deep", root.shown(bytes)));
            }
            if metadata.is_dir() {
                folders.push((path, depth + 1));
            }
            if entries.len() == most {
                return refuse(format!(
                    "{} has more files and folders than can go over (all state_dirs together: {})",
                    root.path.display(),
                    look.entries_max
                ));
            }
            entries.push((entry, metadata));
        }
    }
    Ok(entries)
}

/// An entry; `None` for sockets, FIFOs and devices, which are no state of a
/// server.
fn entry(
    root: &Root,
    folder: u32,
    path: &Path,
    metadata: &Metadata,
    device: u64,
    look: &mut Look<'_>,
) -> Result<Option<StateEntry>> {
    let name = path.as_os_str().as_bytes();
    if metadata.dev() != device {
        return refuse(format!("{} is on another file system", root.shown(name)));
    }
    let kind = if metadata.is_dir() {
        StateKind::Folder
    } else if metadata.is_symlink() {
        let to = fs::read_link(root.at(path)).doing(root.shown(name))?;
        StateKind::Link { to: to.into_os_string().into_vec() }
    } else if metadata.is_file() {
        if metadata.nlink() > 1 && !look.linked.insert((metadata.dev(), metadata.ino())) {
            return refuse(format!("{} has a second name there (a hard link)", root.shown(name)));
        }
        StateKind::File { size: metadata.len() }
    } else {
        return Ok(None);
    };
    let (path, mode) = (name.to_vec(), metadata.mode() & 0o777);
    let (user, group, written_ns) =
        (metadata.uid(), metadata.gid(), Stamp::of(metadata).written_ns);
    let attributes = Vec::new();
    Ok(Some(StateEntry { folder, path, mode, user, group, written_ns, kind, attributes }))
}

/// Files that a server has open for writing while it runs.
fn note_all(writing: &mut Writing, pid: u32) -> Result<()> {
    let folder = format!("/proc/{pid}/fd");
    for found in fs::read_dir(&folder).doing(folder.clone())? {
        let Some(number) = found.ok().and_then(|it| it.file_name().to_str()?.parse().ok()) else {
            continue;
        };
        let Ok(metadata) = fs::metadata(format!("{folder}/{number}")) else { continue };
        let Ok(info) = info_of(pid, number) else { continue };
        note(writing, &metadata, flags_of(&info));
    }
    Ok(())
}

/// Notes a descriptor.
pub(in super::super) fn note(writing: &mut Writing, metadata: &Metadata, flags: u32) {
    let flags = flags.cast_signed();
    if metadata.is_file() && flags & libc::O_ACCMODE != libc::O_RDONLY {
        let appends = flags & libc::O_APPEND != 0;
        *writing.entry((metadata.dev(), metadata.ino())).or_insert(true) &= appends;
    }
}

/// Time between two rounds: files written between them no longer look as if they might
/// change unseen.
pub(in super::super) const APART: Duration = Duration::from_nanos(TICK_NS as u64);
