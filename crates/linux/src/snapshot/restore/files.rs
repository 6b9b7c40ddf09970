//! The image's open files, made here; the stubs inherit them.

use super::super::describe::sockets::OPTIONS;
use super::super::error::{Doing, Result};
use super::super::names::{Mounts, again};
use super::super::owner;
use super::shared::Named;
use super::{Surroundings, mapped, sockets, within};
use crate::sockopt::{self, checked, checked_fd};
use holdfast_wire::snapshot::{Description, FileKind, Object, ObjectKind, OpenFile, Watched};
use libc::{c_int, c_long};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};

/// Most watches that are set and removed to reach a watch's number.
const NUMBERS_MAX: u32 = 1 << 20;
/// `TFD_IOC_SET_TICKS`.
const SET_TICKS: libc::c_ulong = 0x4008_5400;

/// Flags of an unlinked file that another open file of the same one has, too.
const OF_UNLINKED: c_int =
    libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_PATH;
/// Permitted mode bits of an unlinked file: whoever owns it, nobody gains by running
/// it.
const MODE: u32 = 0o777;

pub(super) struct Made {
    files: Vec<Option<OwnedFd>>,
    objects: Vec<OwnedFd>,
    /// Numbers of those that are SysV segments.
    segments: BTreeMap<u32, u32>,
    named: Named,
    /// Destination of the content, by file.
    sinks: BTreeMap<u32, Sink>,
    /// For each file, the first process that has it, and its descriptors there.
    owners: Vec<(usize, Vec<u32>)>,
    /// Files that are ends of pipes and of pairs of sockets, which are made together.
    pipes: BTreeMap<u32, Vec<u32>>,
    pairs: BTreeMap<u32, Vec<u32>>,
}

enum Sink {
    /// The other end, which does not wait; and how much it has taken.
    Stream(File, u64),
    Unlinked(File),
}

impl Made {
    pub fn raw(&self, file: u32) -> Option<RawFd> {
        self.files[file as usize].as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn object_path(&self, object: u32) -> String {
        within(&self.objects[object as usize])
    }

    /// The number of a SysV segment.
    pub fn segment(&self, object: u32) -> u32 {
        self.segments[&object]
    }

    /// All that was made stays.
    pub fn keep(self) {
        self.named.keep();
    }

    pub fn fill_file(&mut self, file: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.sinks.get_mut(&file) {
            Some(Sink::Stream(end, filled)) => {
                if offset != *filled {
                    return super::failed("a stream's content is not in order", libc::EINVAL);
                }
                *filled += bytes.len() as u64;
                end.write_all(bytes).doing("filling a pipe or a pair of sockets")
            }
            Some(Sink::Unlinked(file)) => {
                file.write_all_at(bytes, offset).doing("filling an unlinked file")
            }
            // The restoring side has given another file.
            None => Ok(()),
        }
    }

    pub fn fill_object(&self, object: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let what = "filling shared memory";
        let object = self.objects[object as usize].try_clone().doing(what)?;
        File::from(object).write_all_at(bytes, offset).doing(what)
    }

    /// Sets positions, flags and seals once all content is there.
    pub fn finish(&self, description: &Description) -> Result<()> {
        for (file, made) in description.files.iter().zip(&self.files) {
            if let (FileKind::Pair { shut, options, .. }, Some(made)) = (&file.kind, made) {
                sockets::set_options(made.as_fd(), options, &OPTIONS);
                finish_pair(made.as_fd(), *shut, file.flags).doing("a pair of sockets")?;
            }
            let (FileKind::Unlinked { position, .. }
            | FileKind::Path { position, .. }
            | FileKind::Memory { position, .. }) = file.kind
            else {
                continue;
            };
            let Some(made) = made else { continue };
            // SAFETY: plain numbers. What has no position has none to set.
            unsafe { libc::lseek(made.as_raw_fd(), position.cast_signed(), libc::SEEK_SET) };
        }
        for (object, made) in description.objects.iter().zip(&self.objects) {
            if object.seals != 0 && !object.is_external {
                let seals = object.seals as c_int;
                // SAFETY: plain numbers.
                checked(unsafe { libc::fcntl(made.as_raw_fd(), libc::F_ADD_SEALS, seals) })
                    .doing("sealing a memory file")?;
            }
        }
        Ok(())
    }
}

/// Shared memory, of which the SysV segments are there already, and no file yet.
pub(super) fn begin(
    of: &Description,
    segments: Vec<Option<OwnedFd>>,
    mounts: &Mounts,
    surroundings: &mut dyn Surroundings,
) -> Result<Made> {
    let mut named = Named::default();
    let object = |(object, segment): (&Object, Option<OwnedFd>)| match segment {
        Some(segment) => Ok(segment),
        None => named.make(object, mounts, surroundings).doing("making shared memory"),
    };
    let number = |(number, object): (u32, &Object)| match &object.kind {
        ObjectKind::Segment(segment) => Some((number, segment.id)),
        _ => None,
    };
    let numbers = (0..).zip(&of.objects).filter_map(number).collect();
    let objects: Result<Vec<OwnedFd>> = of.objects.iter().zip(segments).map(object).collect();
    let files = of.files.iter().map(|_| None).collect();
    let (pipes, pairs, sinks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (objects, segments) = (objects?, numbers);
    Ok(Made { files, objects, segments, named, sinks, owners: owners(of), pipes, pairs })
}

fn owners(of: &Description) -> Vec<(usize, Vec<u32>)> {
    let mut owners: Vec<(usize, Vec<u32>)> = vec![(0, Vec::new()); of.files.len()];
    for (index, member) in of.members.iter().enumerate() {
        for descriptor in &member.descriptors {
            let (owner, numbers) = &mut owners[descriptor.file as usize];
            if numbers.is_empty() {
                *owner = index;
            }
            if *owner == index {
                numbers.push(descriptor.number);
            }
        }
    }
    owners
}

impl Made {
    /// Makes the files of which this process is the first that has them, with its rights.
    pub fn add(
        &mut self,
        index: usize,
        of: &Description,
        mounts: &Mounts,
        surroundings: &mut dyn Surroundings,
    ) -> Result<()> {
        for (number, file) in (0..).zip(&of.files) {
            let (owner, numbers) = &self.owners[number as usize];
            if *owner != index {
                continue;
            }
            let what = format!("making descriptor {}", numbers.first().copied().unwrap_or(0));
            let given = surroundings.file(numbers, file).doing(&*what)?;
            let fresh = match given {
                Some(given) => Some(given),
                None => self.one(number, file, mounts, surroundings).doing(what)?,
            };
            if let Some(fresh) = &fresh
                && !keeps_flags(&file.kind)
            {
                // SAFETY: plain numbers. Of these flags the kernel takes what can be set.
                unsafe { libc::fcntl(fresh.as_raw_fd(), libc::F_SETFL, file.flags as c_int) };
            }
            let ends = match &file.kind {
                FileKind::Pipe { pipe, .. } => Some(self.pipes.entry(*pipe)),
                FileKind::Pair { pair, .. } => Some(self.pairs.entry(*pair)),
                _ => None,
            };
            if let Some(ends) = ends.filter(|_| fresh.is_none()) {
                ends.or_default().push(number);
            }
            self.files[number as usize] = fresh;
        }
        Ok(())
    }

    /// Makes pipes and pairs of sockets, once all other files are made.
    pub fn add_ends(&mut self, of: &Description) -> Result<()> {
        for ends in std::mem::take(&mut self.pipes).values() {
            pipe(self, ends, of).doing("making a pipe")?;
        }
        for ends in std::mem::take(&mut self.pairs).values() {
            pair(self, ends, of).doing("making a pair of sockets")?;
        }
        Ok(())
    }

    /// Has files send their signals to the processes that got them, once those are there.
    pub fn signal(&self, of: &Description, pids: &[u32]) -> Result<()> {
        for (file, made) in of.files.iter().zip(&self.files).filter(|(it, _)| it.signals != 0) {
            let member = of.members.iter().position(|it| it.process.pid == file.signals);
            let (Some(made), Some(member)) = (made, member) else { continue };
            owner::set(made.as_fd(), file.flags, pids[member]).doing("whom a file signals")?;
        }
        Ok(())
    }
}

/// Whether a file is opened with its flags.
const fn keeps_flags(kind: &FileKind) -> bool {
    matches!(kind, FileKind::Path { .. } | FileKind::Memory { .. } | FileKind::Unlinked { .. })
}

impl Made {
    /// Makes one file; `None` for a pipe or a pair of sockets, whose ends come together, and for
    /// a userfaultfd, which the stub makes.
    fn one(
        &mut self,
        number: u32,
        file: &OpenFile,
        mounts: &Mounts,
        surroundings: &mut dyn Surroundings,
    ) -> io::Result<Option<OwnedFd>> {
        let fd = match &file.kind {
            FileKind::Path { path, .. } => open(path, file.flags, mounts)?,
            FileKind::Unlinked { folder, mode, size, .. } => {
                let whole = unlinked(folder, *size, mounts)?;
                let fd = again(whole.as_fd(), file.flags.cast_signed() & OF_UNLINKED)?;
                whole.set_permissions(Permissions::from_mode(mode & MODE))?;
                self.sinks.insert(number, Sink::Unlinked(whole));
                fd
            }
            FileKind::Memory { object, .. } => {
                again(self.objects[*object as usize].as_fd(), file.flags as c_int)?
            }
            FileKind::Pipe { .. } | FileKind::Pair { .. } | FileKind::Userfault => return Ok(None),
            FileKind::Event { count, is_semaphore } => event(*count, *is_semaphore)?,
            // SAFETY: plain numbers.
            FileKind::Epoll => {
                checked_fd(c_long::from(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))?
            }
            FileKind::Timer { clock, ticks, left_ns, interval_ns } => {
                timer(*clock, *ticks, *left_ns, *interval_ns)?
            }
            FileKind::Inotify { watched } => inotify(watched, mounts)?,
            // SAFETY: the kernel reads a mask of eight bytes.
            FileKind::Signals { mask } => checked_fd(unsafe {
                libc::syscall(libc::SYS_signalfd4, -1, &raw const *mask, 8, libc::SFD_CLOEXEC)
            })?,
            FileKind::Socket(socket) => surroundings.socket(socket)?,
            FileKind::Given => return Err(io::Error::other("whoever restores must give it")),
        };
        Ok(Some(fd))
    }
}

/// Opens the path that the kernel had, with the flags it was open with.
fn open(path: &[u8], flags: u32, mounts: &Mounts) -> io::Result<OwnedFd> {
    mounts.open(path, flags).map(|found| found.fd).map_err(|error| mapped::of(path, error))
}

/// A file of the server's own, in its folder or, if that folder does not exist
/// here, in /tmp.
fn unlinked(folder: &[u8], size: u64, mounts: &Mounts) -> io::Result<File> {
    let make = |folder: &[u8]| {
        let folder = mounts.find_folder(folder)?;
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        let (at, mode) = (folder.fd.as_raw_fd(), 0o600);
        // SAFETY: the kernel reads a C string.
        let fd = unsafe { libc::openat(at, c".".as_ptr(), flags, mode) };
        checked_fd(c_long::from(fd)).map(File::from)
    };
    let file = make(folder).or_else(|_| make(b"/tmp"))?;
    file.set_len(size)?;
    Ok(file)
}

fn event(count: u64, is_semaphore: bool) -> io::Result<OwnedFd> {
    let kind = if is_semaphore { libc::EFD_SEMAPHORE } else { 0 };
    // SAFETY: plain numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | kind) };
    let fd = checked_fd(c_long::from(fd))?;
    File::from(fd.try_clone()?).write_all(&count.to_ne_bytes())?;
    Ok(fd)
}

fn timer(clock: u32, ticks: u64, left_ns: u64, interval_ns: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::timerfd_create(clock as c_int, libc::TFD_CLOEXEC) };
    let fd = checked_fd(c_long::from(fd))?;
    let time = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as c_long,
    };
    // Reading a periodic timer begins its next period, but only if it has expired itself, which
    // this one has not: its period begins now.
    let left_ns = if ticks > 0 && left_ns == 0 { interval_ns } else { left_ns };
    let value = libc::itimerspec { it_interval: time(interval_ns), it_value: time(left_ns) };
    // SAFETY: the kernel only reads `value` and `ticks`.
    unsafe {
        checked(libc::timerfd_settime(fd.as_raw_fd(), 0, &raw const value, std::ptr::null_mut()))?;
        if ticks > 0 {
            checked(libc::ioctl(fd.as_raw_fd(), SET_TICKS, &raw const ticks))?;
        }
    }
    Ok(fd)
}

fn inotify(watched: &[Watched], mounts: &Mounts) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
    let fd = checked_fd(c_long::from(fd))?;
    for watch in watched {
        let named = |error| mapped::of(&watch.path, error);
        let found = mounts.find(&watch.path).map_err(named)?;
        let path = CString::new(format!("/proc/self/fd/{}", found.fd.as_raw_fd()))?;
        let mask = watch.mask & libc::IN_ALL_EVENTS | watch.mask & (libc::IN_ONESHOT);
        let mut is_there = false;
        for _ in 0..NUMBERS_MAX {
            // SAFETY: the kernel reads a C string.
            let number = unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), mask) };
            let number = checked(number).map_err(named)?;
            is_there = number as u32 == watch.number;
            if number as u32 >= watch.number {
                break;
            }
            // SAFETY: plain numbers.
            unsafe { libc::inotify_rm_watch(fd.as_raw_fd(), number) };
        }
        if !is_there {
            return Err(io::Error::other("a watch cannot have its number again"));
        }
    }
    // Removed watches have reported that.
    let mut said = [0u8; 4096];
    // SAFETY: pointer and length describe `said`; a queue that is empty is not waited for.
    unsafe {
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        while libc::read(fd.as_raw_fd(), said.as_mut_ptr().cast(), said.len()) > 0 {}
    }
    Ok(fd)
}

/// Makes a pipe for all files that are ends of it.
fn pipe(made: &mut Made, files: &[u32], of: &Description) -> io::Result<()> {
    let mut ends = [0; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: room for two descriptors, which are ours on success.
    let [reader, writer] = unsafe {
        checked(libc::pipe2(ends.as_mut_ptr(), flags))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let mut writer = Some(File::from(writer));
    for number in files {
        let file = &of.files[*number as usize];
        let FileKind::Pipe { writes, capacity, .. } = file.kind else { continue };
        // SAFETY: plain numbers.
        unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, capacity as c_int) };
        // An open file with flags of its own.
        made.files[*number as usize] = Some(again(reader.as_fd(), file.flags as c_int)?);
        if !writes && let Some(writer) = writer.take() {
            made.sinks.insert(*number, Sink::Stream(writer, 0));
        }
    }
    Ok(())
}

/// Makes a pair of sockets for one or two files that are its ends. Of one, the other end is closed
/// with what fills it.
fn pair(made: &mut Made, files: &[u32], of: &Description) -> io::Result<()> {
    let kind_of = |number: &u32| match of.files[*number as usize].kind {
        FileKind::Pair { kind, unread, .. } => Some((kind, unread)),
        _ => None,
    };
    let Some((kind, _)) = files.first().and_then(kind_of) else { return Ok(()) };
    let (mut ends, flags) = ([0; 2], libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: room for two descriptors, which are ours on success.
    let ends = unsafe {
        checked(libc::socketpair(libc::AF_UNIX, kind | flags, 0, ends.as_mut_ptr()))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    for (at, number) in files.iter().enumerate().take(2) {
        let [own, other] = [at, 1 - at].map(|at| ends[at].try_clone());
        let (own, other) = (own?, other?);
        let unread = kind_of(number).map_or(0, |(_, unread)| unread);
        let room: c_int = sockopt::get(other.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        // The server had made it larger.
        if unread.cast_signed() > room / 2 {
            let name = libc::SO_SNDBUFFORCE;
            sockopt::set(other.as_fd(), libc::SOL_SOCKET, name, &unread.cast_signed())?;
        }
        made.sinks.insert(*number, Sink::Stream(File::from(other), 0));
        made.files[*number as usize] = Some(own);
    }
    Ok(())
}

/// Shuts down what was, and gives an end its flags, once nothing more is written to it here.
fn finish_pair(end: BorrowedFd<'_>, shut: u8, flags: u32) -> io::Result<()> {
    let how = match shut {
        1 => Some(libc::SHUT_RD),
        2 => Some(libc::SHUT_WR),
        3 => Some(libc::SHUT_RDWR),
        _ => None,
    };
    // SAFETY: plain numbers. Of these flags the kernel takes what can be set.
    unsafe {
        libc::fcntl(end.as_raw_fd(), libc::F_SETFL, flags as c_int);
        how.map_or(Ok(()), |how| checked(libc::shutdown(end.as_raw_fd(), how)).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_periodic_timer_that_had_expired_unread_ticks_on() {
        let period = 2_000_000;
        let clock = libc::CLOCK_MONOTONIC as u32;
        let mut timer = File::from(timer(clock, 3, 0, period).expect("a timer"));
        let mut ticks = || {
            let mut ready =
                libc::pollfd { fd: timer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which the kernel writes to.
            assert_eq!(unsafe { libc::poll(&raw mut ready, 1, 10_000) }, 1, "it ticks");
            let mut word = [0; 8];
            timer.read_exact(&mut word).expect("a number");
            u64::from_ne_bytes(word)
        };
        assert!(ticks() >= 3, "those of before");
        assert!(ticks() >= 1, "those that follow");
    }

    #[test]
    fn a_timer_that_has_expired_for_good_stays_so() {
        let timer = timer(libc::CLOCK_MONOTONIC as u32, 1, 0, 0).expect("a timer");
        let mut left = libc::itimerspec { it_interval: ZERO, it_value: ZERO };
        // SAFETY: the kernel writes one `itimerspec`.
        unsafe { libc::timerfd_gettime(timer.as_raw_fd(), &raw mut left) };
        assert_eq!((left.it_value.tv_sec, left.it_value.tv_nsec), (0, 0));
        let mut word = [0; 8];
        File::from(timer).read_exact(&mut word).expect("its tick");
        assert_eq!(u64::from_ne_bytes(word), 1);
    }

    const ZERO: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
}
