//! Open files and the descriptors that name them.

use super::super::bounds::Patience;
use super::super::error::{Doing, Result, SnapshotError};
use super::super::names::{self, Mounts};
use super::super::owner;
use super::super::precopy;
use super::super::state::{Writing, collect};
use super::areas::{Found, allocated};
use super::fdinfo::{Identity, event, field, flags_of, identity, info_of, timer};
use super::inotify::watched;
use super::pairs::{Pairs, is_end};
use super::same::Open;
use super::shared::{Objects, memory_file, name_of};
use super::written::Written;
use super::{MODE, Refusals, locks, shown, sockets};
use crate::process;
use crate::snapshot::External;
use holdfast_wire::snapshot::{
    Backing, Descriptor, FileKind, Lock, LockOwner, OpenFile, Watch, Watched,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `FIONREAD` of a descriptor: bytes that can be read.
const FIONREAD: libc::c_ulong = 0x541b;

/// What one process has of the open files.
#[derive(Default)]
pub(in super::super) struct Held {
    pub descriptors: Vec<Descriptor>,
    pub watches: Vec<Watch>,
    pub locks: Vec<Lock>,
}

/// All open files of a family.
#[derive(Default)]
pub(in super::super) struct Opened {
    pub files: Vec<OpenFile>,
    /// Contents of pipes and pairs of sockets, by the file that reads.
    pub contents: Vec<(u32, Vec<u8>)>,
    /// Connections about which nothing is known yet: a process's index, and its descriptor.
    pub later: Vec<(u32, u32)>,
    /// Unlinked files whose content has to be copied.
    pub unlinked: Vec<Unlinked>,
    /// Bytes that these files take.
    pub unlinked_bytes: u64,
    /// Files that are open for writing.
    pub writing: Writing,
    /// Files in state folders of which parts are mapped writable.
    pub mapped: BTreeSet<PathBuf>,
}

/// An unlinked file: where it can be opened, and what must be found there then.
pub(in super::super) struct Unlinked {
    pub file: u32,
    pub link: String,
    identity: Identity,
}

impl Unlinked {
    /// Opens the very file whose rights were looked at.
    pub fn open(&self) -> io::Result<fs::File> {
        let file = names::read_link(&self.link)?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
        let same = identity(&info) == self.identity;
        let other = || io::Error::other("it is another file by now");
        same.then_some(file).ok_or_else(other)
    }
}

/// How it is looked at, and for how long.
pub(in super::super) struct Look<'a> {
    /// The image's processes.
    pub pids: &'a [u32],
    pub external: &'a External,
    pub mounts: &'a Mounts,
    /// See [`crate::snapshot::Options::shares_files`] and its neighbour.
    pub shares_files: bool,
    pub state_dirs: &'a [PathBuf],
    pub patience: Patience,
}

impl Look<'_> {
    fn is_state(&self, path: &Path) -> bool {
        self.state_dirs.iter().any(|folder| path.starts_with(folder))
    }
}

/// Whose descriptors are looked at.
pub(in super::super) struct Who {
    pub index: u32,
    pub pid: u32,
    /// User whose files it opens.
    pub user: u32,
    /// Its connections, about which nothing is asked.
    pub connections: BTreeSet<u32>,
}

/// One descriptor as it was found.
struct Entry {
    number: u32,
    /// What the descriptor is, in the kernel's words.
    link: Vec<u8>,
    metadata: fs::Metadata,
    /// `/proc/PID/fdinfo/N`.
    info: String,
    flags: u32,
    position: u64,
}

/// Which ends of a pipe were found, and what is known about it.
struct Pipe {
    number: u32,
    reads: bool,
    writes: bool,
    packets: bool,
    holds: bool,
}

/// The files of a family, of whose processes one after the other is looked at.
pub(in super::super) struct Files<'a> {
    look: Look<'a>,
    refusals: &'a mut Refusals,
    found: Opened,
    /// Files that may be the same open file, by file system and number in it.
    alike: BTreeMap<(u64, u64), BTreeMap<Open, u32>>,
    /// Pipes by the kernel's number.
    pipes: BTreeMap<u64, Pipe>,
    pairs: Pairs,
    written: Written,
}

impl<'a> Files<'a> {
    pub fn new(look: Look<'a>, refusals: &'a mut Refusals) -> Self {
        Self {
            look,
            refusals,
            found: Opened::default(),
            alike: BTreeMap::new(),
            pipes: BTreeMap::new(),
            pairs: Pairs::default(),
            written: Written::default(),
        }
    }

    /// Looks at the descriptors of a process whose memory is `memory`.
    pub fn read(&mut self, who: Who, memory: &Found, objects: &mut Objects) -> Result<Held> {
        for area in &memory.areas {
            if let Backing::Shared { path, writable: true, .. } = &area.backing {
                let path = Path::new(OsStr::from_bytes(path));
                match self.look.is_state(path) {
                    true => drop(self.found.mapped.insert(path.to_owned())),
                    false => self.written.note_mapped(path),
                }
            }
        }
        let pidfd = process::pidfd_open(who.pid).doing("opening the server")?;
        let (held, own) = (Held::default(), BTreeSet::new());
        let (watch_lines, inodes) = (Vec::new(), BTreeMap::new());
        let mut reader = Reader { all: self, who, pidfd, held, own, watch_lines, inodes };
        reader.read(objects)?;
        Ok(reader.held)
    }

    /// All files, once every process has been looked at.
    pub fn end(mut self) -> Opened {
        self.pipe_ends();
        self.pairs.refuse_others(self.refusals);
        if let Some(reason) = self.written.refusal().filter(|_| !self.look.shares_files) {
            self.refusals.add(reason);
        }
        self.found
    }

    /// Refuses pipes whose other end belongs to another process: they do not
    /// belong in an image.
    fn pipe_ends(&mut self) {
        for (inode, pipe) in &self.pipes {
            if !pipe.reads || !pipe.writes {
                self.refusals.add(format!("it has one end of a pipe alone (pipe:[{inode}])"));
            }
            self.refusals.add_if(pipe.packets && pipe.holds, "a pipe holds packets (O_DIRECT)");
        }
    }
}

/// A look at one process's descriptors.
struct Reader<'r, 'a> {
    all: &'r mut Files<'a>,
    who: Who,
    pidfd: OwnedFd,
    held: Held,
    /// Files whose locks are known, as far as this process has them.
    own: BTreeSet<u32>,
    watch_lines: Vec<(u32, String)>,
    inodes: BTreeMap<u32, u64>,
}

impl Reader<'_, '_> {
    fn read(&mut self, objects: &mut Objects) -> Result<()> {
        let folder = format!("/proc/{}/fd", self.who.pid);
        let entries = fs::read_dir(&folder).doing(folder)?;
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        for number in numbers {
            self.all.look.patience.check()?;
            match self.one(number, objects) {
                // The descriptor was closed since they were listed, because the
                // process runs.
                Err(SnapshotError::Step { error, .. }) if is_gone(&error) => {}
                done => done?,
            }
        }
        if self.all.look.external.watches { Ok(()) } else { self.watches() }
    }

    fn one(&mut self, number: u32, objects: &mut Objects) -> Result<()> {
        if self.who.connections.contains(&number) {
            let path = format!("/proc/{}/fd/{number}", self.who.pid);
            let metadata = fs::metadata(&path).doing(path)?;
            if metadata.file_type().is_socket() {
                self.connection(number, &metadata);
                return Ok(());
            }
        }
        self.descriptor(number, objects)
    }

    fn descriptor(&mut self, number: u32, objects: &mut Objects) -> Result<()> {
        let Some(entry) = self.entry(number).doing(format!("descriptor {number}"))? else {
            return Ok(());
        };
        self.inodes.insert(number, entry.metadata.ino());
        let path = Path::new(OsStr::from_bytes(&entry.link));
        collect::note(&mut self.all.found.writing, &entry.metadata, entry.flags);
        if !self.all.look.is_state(path) && name_of(&entry.link).is_none() {
            self.all.written.note(number, path, &entry.metadata, entry.flags);
        }
        let file = match self.known(number, &entry.metadata) {
            Some(file) => {
                self.further_locks(&entry, file);
                file
            }
            None => self.open_file(&entry, objects)?,
        };
        let close_on_exec = entry.flags & libc::O_CLOEXEC as u32 != 0;
        self.held.descriptors.push(Descriptor { number, close_on_exec, file });
        Ok(())
    }

    /// Notes a connection. What it is, is asked later: it may be closed as long as nobody else
    /// has it.
    fn connection(&mut self, number: u32, metadata: &fs::Metadata) {
        self.all.pairs.is_here(metadata.ino());
        self.inodes.insert(number, metadata.ino());
        let file = self.known(number, metadata).unwrap_or_else(|| {
            let file = self.all.found.files.len() as u32;
            let kind = FileKind::Socket(sockets::unknown());
            self.all.found.files.push(OpenFile { flags: 0, kind, signals: 0 });
            self.note(number, metadata, file);
            file
        });
        self.held.descriptors.push(Descriptor { number, close_on_exec: false, file });
        self.all.found.later.push((self.who.index, number));
    }

    /// Looks at a descriptor; `None` if it is refused because it may not even
    /// be looked at.
    fn entry(&mut self, number: u32) -> io::Result<Option<Entry>> {
        let path = format!("/proc/{}/fd/{number}", self.who.pid);
        let info = info_of(self.who.pid, number)?;
        let link = fs::read_link(&path)?.into_os_string().into_vec();
        let is_given = self.all.look.external.descriptors.contains(&number);
        if link.starts_with(b"/") && memory_file(&link).is_none() && !is_given {
            let mount = identity(&info).0.unwrap_or(u64::MAX);
            if let Some(kind) = self.all.look.mounts.strange(mount) {
                let name = shown(&link);
                let reason = format!("descriptor {number} is {name}, in a file system like {kind}");
                self.all.refusals.add(reason);
                return Ok(None);
            }
        }
        let position = field(&info, "pos:").and_then(|p| p.parse().ok()).unwrap_or(0);
        let (metadata, flags) = (fs::metadata(&path)?, flags_of(&info));
        Ok(Some(Entry { number, link, metadata, flags, position, info }))
    }

    /// An open file that was found under another number, or in another process.
    fn known(&self, number: u32, metadata: &fs::Metadata) -> Option<u32> {
        let open = Open { pid: self.who.pid, number };
        self.all.alike.get(&(metadata.dev(), metadata.ino()))?.get(&open).copied()
    }

    fn note(&mut self, number: u32, metadata: &fs::Metadata, file: u32) {
        let open = Open { pid: self.who.pid, number };
        let id = (metadata.dev(), metadata.ino());
        self.all.alike.entry(id).or_default().insert(open, file);
        self.own.insert(file);
    }

    /// Notes the process's own locks on a file that an earlier process has open, too.
    fn further_locks(&mut self, entry: &Entry, file: u32) {
        if self.own.insert(file) {
            let locks = locks::of(&entry.info, entry.number, entry.flags).into_iter().flatten();
            self.held.locks.extend(locks.filter(|lock| lock.owner == LockOwner::Process));
        }
    }

    fn open_file(&mut self, entry: &Entry, objects: &mut Objects) -> Result<u32> {
        let file = self.all.found.files.len() as u32;
        let kind = self.kind(entry, file, objects)?;
        let signals = match entry.flags & libc::O_ASYNC as u32 {
            0 => 0,
            _ => self.signalled(entry.number).doing(format!("descriptor {}", entry.number))?,
        };
        match locks::of(&entry.info, entry.number, entry.flags) {
            Some(locks) => self.held.locks.extend(locks),
            None => self.all.refusals.add("it has a lease on a file (F_SETLEASE)"),
        }
        let kind = kind.unwrap_or_else(|| {
            let (number, link) = (entry.number, &entry.link);
            // The reason of a socket was given.
            if !link.starts_with(b"socket:") {
                self.all.refusals.add(format!("descriptor {number} is {}", shown(link)));
            }
            FileKind::Epoll
        });
        let flags = entry.flags & !(libc::O_CLOEXEC as u32);
        self.all.found.files.push(OpenFile { flags, kind, signals });
        self.note(entry.number, &entry.metadata, file);
        Ok(file)
    }

    /// The own number of the process that a file sends its signals; 0: none.
    fn signalled(&mut self, number: u32) -> io::Result<u32> {
        match owner::of(self.take(number)?.as_fd())? {
            Some(0) => Ok(0),
            Some(pid) if self.all.look.pids.contains(&pid) => process::innermost_tid(pid, pid),
            _ => {
                let reason = "it has descriptors that send signals to others (O_ASYNC, F_SETOWN)";
                self.all.refusals.add(reason);
                Ok(0)
            }
        }
    }

    /// The kind of a file; `None` if it cannot be rebuilt.
    fn kind(
        &mut self,
        entry: &Entry,
        file: u32,
        objects: &mut Objects,
    ) -> Result<Option<FileKind>> {
        let link = &entry.link[..];
        if self.all.look.external.descriptors.contains(&entry.number) {
            return Ok(Some(FileKind::Given));
        }
        let what = || format!("descriptor {}", entry.number);
        if let Some(name) = memory_file(link) {
            let path = format!("/proc/{}/fd/{}", self.who.pid, entry.number);
            let object =
                objects.number(name, &path, self.all.look.external, self.all.look.mounts)?;
            let position = entry.position;
            return Ok(object.map(|object| FileKind::Memory { object, position }));
        }
        if name_of(link).is_some() && entry.metadata.is_file() {
            self.refuse_unreadable(entry);
            let path = format!("/proc/{}/fd/{}", self.who.pid, entry.number);
            let (object, position) = (objects.of_shm_open(link, &path)?, entry.position);
            return Ok(Some(FileKind::Memory { object, position }));
        }
        if link.starts_with(b"/") {
            return Ok(self.named(entry, file));
        }
        Ok(match link {
            b"anon_inode:[eventpoll]" => {
                let lines = entry.info.lines().filter(|line| line.starts_with("tfd:"));
                let number = entry.number;
                self.watch_lines.extend(lines.map(|line| (number, line.to_owned())));
                Some(FileKind::Epoll)
            }
            b"anon_inode:[eventfd]" => event(&entry.info),
            b"anon_inode:[timerfd]" => timer(&entry.info),
            b"anon_inode:[signalfd]" => {
                let mask = field(&entry.info, "sigmask:");
                let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
                mask.map(|mask| FileKind::Signals { mask })
            }
            b"anon_inode:inotify" | b"anon_inode:[inotify]" => self.inotify(entry).doing(what())?,
            _ if link == precopy::LINK => Some(FileKind::Userfault),
            _ if link.starts_with(b"pipe:") => Some(self.pipe(entry, file).doing(what())?),
            _ if link.starts_with(b"socket:") => self.socket(entry, file).doing(what())?,
            _ => None,
        })
    }

    fn take(&self, number: u32) -> io::Result<OwnedFd> {
        process::pidfd_getfd(self.pidfd.as_fd(), number as RawFd)
    }

    fn named(&mut self, entry: &Entry, file: u32) -> Option<FileKind> {
        let position = entry.position;
        if entry.metadata.is_file() && entry.metadata.nlink() == 0 {
            return self.unlinked(entry, file);
        }
        let found = names::look(&entry.link).ok()?;
        let (device, inode) = (entry.metadata.dev(), entry.metadata.ino());
        let same = found.device == (libc::major(device), libc::minor(device));
        let rebuilt = same && found.inode == inode && found.is_harmless();
        rebuilt.then(|| FileKind::Path { path: entry.link.clone(), position })
    }

    /// What goes into the image with its content the server must be allowed to read.
    fn refuse_unreadable(&mut self, entry: &Entry) {
        let flags = entry.flags.cast_signed();
        let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_PATH == 0;
        if !reads && entry.metadata.uid() != self.who.user {
            let (number, name) = (entry.number, shown(&entry.link));
            self.all.refusals.add(format!("descriptor {number} is {name}, which it may not read"));
        }
    }

    /// An unlinked file, whose content goes into the image.
    fn unlinked(&mut self, entry: &Entry, file: u32) -> Option<FileKind> {
        self.refuse_unreadable(entry);
        let path = entry.link.strip_suffix(b" (deleted)").unwrap_or(&entry.link);
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0).max(1);
        let link = format!("/proc/{}/fd/{}", self.who.pid, entry.number);
        let identity = identity(&entry.info);
        self.all.found.unlinked.push(Unlinked { file, link, identity });
        self.all.found.unlinked_bytes += allocated(&entry.metadata);
        Some(FileKind::Unlinked {
            folder: path[..end].to_vec(),
            position: entry.position,
            mode: entry.metadata.mode() & MODE,
            size: entry.metadata.size(),
        })
    }

    fn pipe(&mut self, entry: &Entry, file: u32) -> io::Result<FileKind> {
        let end = self.take(entry.number)?;
        // SAFETY: plain numbers.
        let capacity = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETPIPE_SZ) };
        let number = self.all.pipes.len() as u32;
        let fresh = Pipe { number, reads: false, writes: false, packets: false, holds: false };
        let pipe = self.all.pipes.entry(entry.metadata.ino()).or_insert(fresh);
        let writes = entry.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        // The kernel says so for the end that writes.
        pipe.packets |= entry.flags & libc::O_DIRECT as u32 != 0;
        if writes {
            pipe.writes = true;
        } else if !std::mem::replace(&mut pipe.reads, true) {
            let content = peek_pipe(end.as_fd(), capacity)?;
            pipe.holds = !content.is_empty();
            self.all.found.contents.push((file, content));
        }
        let pipe = pipe.number;
        Ok(FileKind::Pipe { pipe, writes, capacity: capacity.max(0) as u32 })
    }

    fn socket(&mut self, entry: &Entry, file: u32) -> io::Result<Option<FileKind>> {
        let (fd, number) = (self.take(entry.number)?, entry.number);
        let socket = sockets::describe(fd.as_fd())?;
        if !is_end(&socket) {
            sockets::refusals(&socket, number, self.all.refusals);
            return Ok(Some(FileKind::Socket(socket)));
        }
        let end = (number, entry.metadata.ino());
        let found = self.all.pairs.end(end, fd.as_fd(), &socket, self.all.refusals)?;
        Ok(found.map(|(kind, content)| {
            self.all.found.contents.push((file, content));
            kind
        }))
    }

    fn inotify(&mut self, entry: &Entry) -> io::Result<Option<FileKind>> {
        let descriptor = self.take(entry.number)?;
        let unread = readable(descriptor.as_fd())? > 0;
        self.all.refusals.add_if(unread, "inotify has events that were not read");
        let lines = entry.info.lines().filter(|line| line.starts_with("inotify "));
        let (mounts, patience) = (self.all.look.mounts, self.all.look.patience);
        let in_time = |line| patience.check().ok().and_then(|()| watched(line, mounts));
        let watched: Option<Vec<Watched>> = lines.map(in_time).collect();
        Ok(watched.map(|mut watched| {
            watched.sort_by_key(|watch| watch.number);
            FileKind::Inotify { watched }
        }))
    }

    fn watches(&mut self) -> Result<()> {
        for (set, line) in std::mem::take(&mut self.watch_lines) {
            self.all.look.patience.check()?;
            let word = |name: &str| {
                let mut words = line.split_whitespace().skip_while(|word| *word != name);
                words.nth(1).map(str::to_owned)
            };
            let parsed = || {
                Some(Watch {
                    set,
                    target: word("tfd:")?.parse().ok()?,
                    events: u32::from_str_radix(&word("events:")?, 16).ok()?,
                    data: u64::from_str_radix(&word("data:")?, 16).ok()?,
                })
            };
            let inode = line.split_once("ino:").and_then(|(_, rest)| {
                u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
            });
            match parsed() {
                // A descriptor that was closed while a duplicate lives is still watched.
                Some(watch) if self.inodes.get(&watch.target).copied() == inode => {
                    self.held.watches.push(watch);
                }
                _ => self.all.refusals.add(format!(
                    "epoll set {set} watches a descriptor that was closed ({})",
                    line.trim()
                )),
            }
        }
        Ok(())
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBADF))
}

/// The content of a pipe, which stays there.
fn peek_pipe(end: BorrowedFd<'_>, capacity: i32) -> io::Result<Vec<u8>> {
    let wanted = readable(end)?;
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: plain numbers. With as many slots, all that the pipe holds has room.
    let copied = unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, capacity);
        libc::tee(end.as_raw_fd(), writer.as_raw_fd(), wanted, libc::SPLICE_F_NONBLOCK)
    };
    drop(writer);
    // A process that runs may have read some of it meanwhile.
    if usize::try_from(copied).ok() != Some(wanted) && readable(end)? == wanted {
        return Err(io::Error::other("its content could not be copied"));
    }
    let mut content = Vec::new();
    reader.read_to_end(&mut content)?;
    Ok(content)
}

pub(super) fn readable(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    crate::sockopt::checked(unsafe { libc::ioctl(fd.as_raw_fd(), FIONREAD, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}
