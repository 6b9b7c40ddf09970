//! The image's open files, made here; the stub inherits them.

use super::super::error::{Doing, Result};
use super::Surroundings;
use crate::sockopt::{checked, checked_fd};
use holdfast_wire::snapshot::{Description, FileKind, Object, OpenFile, Watched};
use libc::{c_int, c_long};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Set and given back to come to a watch's number.
const NUMBERS_MAX: u32 = 1 << 20;
/// `TFD_IOC_SET_TICKS`.
const SET_TICKS: libc::c_ulong = 0x4008_5400;

pub(super) struct Made {
    files: Vec<Option<OwnedFd>>,
    objects: Vec<OwnedFd>,
    /// Where the content of pipes goes, by the file that reads.
    pipe_writers: Vec<(u32, OwnedFd)>,
}

impl Made {
    pub fn raw(&self, file: u32) -> Option<RawFd> {
        self.files[file as usize].as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn object_path(&self, object: u32) -> String {
        let number = self.objects[object as usize].as_raw_fd();
        format!("/proc/{}/fd/{number}", std::process::id())
    }

    pub fn fill_file(&self, file: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let what = "filling a file";
        if let Some((_, writer)) = self.pipe_writers.iter().find(|(reader, _)| *reader == file) {
            let mut writer = File::from(writer.try_clone().doing(what)?);
            return writer.write_all(bytes).doing("filling a pipe");
        }
        let Some(made) = &self.files[file as usize] else { return Ok(()) };
        File::from(made.try_clone().doing(what)?).write_all_at(bytes, offset).doing(what)
    }

    pub fn fill_object(&self, object: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let what = "filling shared memory";
        let object = self.objects[object as usize].try_clone().doing(what)?;
        File::from(object).write_all_at(bytes, offset).doing(what)
    }

    /// Once all content is there: positions, flags and seals.
    pub fn finish(&self, description: &Description) -> Result<()> {
        for (file, made) in description.files.iter().zip(&self.files) {
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

pub(super) fn make(of: &Description, surroundings: &mut dyn Surroundings) -> Result<Made> {
    let objects: Result<Vec<OwnedFd>> = of
        .objects
        .iter()
        .map(|object| {
            let made = match object.is_external {
                true => surroundings.memory(object),
                false => memory_file(object),
            };
            made.doing("making shared memory")
        })
        .collect();
    let files = of.files.iter().map(|_| None).collect();
    let mut made = Made { files, objects: objects?, pipe_writers: Vec::new() };
    for (number, file) in (0..).zip(&of.files) {
        let named = of.descriptors.iter().filter(|d| d.file == number);
        let numbers: Vec<u32> = named.map(|descriptor| descriptor.number).collect();
        let what = || format!("making descriptor {}", numbers.first().copied().unwrap_or(0));
        let given = surroundings.file(&numbers, file).doing(what())?;
        let fresh = match given {
            Some(given) => Some(given),
            None => one(&made, file, surroundings).doing(what())?,
        };
        if let Some(fresh) = &fresh
            && !matches!(file.kind, FileKind::Path { .. } | FileKind::Memory { .. })
        {
            // SAFETY: plain numbers. Of these flags the kernel takes what can be set.
            unsafe { libc::fcntl(fresh.as_raw_fd(), libc::F_SETFL, file.flags as c_int) };
        }
        // Pipes were made with their first end.
        if fresh.is_some() {
            made.files[number as usize] = fresh;
        } else if let FileKind::Pipe { .. } = file.kind {
            pipe(&mut made, number, of).doing(what())?;
        }
    }
    Ok(made)
}

/// `None` for a pipe, whose ends come together, and a userfaultfd, which the stub
/// makes.
fn one(
    made: &Made,
    file: &OpenFile,
    surroundings: &mut dyn Surroundings,
) -> io::Result<Option<OwnedFd>> {
    let fd = match &file.kind {
        FileKind::Path { path, .. } => open(path, file.flags)?,
        FileKind::Unlinked { folder, mode, size, .. } => unlinked(folder, *mode, *size)?,
        FileKind::Memory { object, .. } => {
            let path = CString::new(made.object_path(*object))?;
            let flags = file.flags as c_int | libc::O_CLOEXEC;
            // SAFETY: the kernel reads a C string.
            checked_fd(c_long::from(unsafe { libc::open(path.as_ptr(), flags) }))?
        }
        FileKind::Pipe { .. } | FileKind::Userfault => return Ok(None),
        FileKind::Event { count, is_semaphore } => event(*count, *is_semaphore)?,
        // SAFETY: plain numbers.
        FileKind::Epoll => {
            checked_fd(c_long::from(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))?
        }
        FileKind::Timer { clock, ticks, left_ns, interval_ns } => {
            timer(*clock, *ticks, *left_ns, *interval_ns)?
        }
        FileKind::Inotify { watched } => inotify(watched)?,
        // SAFETY: the kernel reads a mask of eight bytes.
        FileKind::Signals { mask } => checked_fd(unsafe {
            libc::syscall(libc::SYS_signalfd4, -1, &raw const *mask, 8, libc::SFD_CLOEXEC)
        })?,
        FileKind::Socket(socket) => surroundings.socket(socket)?,
        FileKind::Given => return Err(io::Error::other("whoever restores must give it")),
    };
    Ok(Some(fd))
}

/// Opens by the path that the kernel had: no part of it is a symbolic link.
fn open(path: &[u8], flags: u32) -> io::Result<OwnedFd> {
    let made_then = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    let name = CString::new(path)?;
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from(flags & !(made_then as u32)) | libc::O_CLOEXEC as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    // SAFETY: the kernel reads a C string and one open_how.
    let opened = checked_fd(unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size)
    });
    let shown = String::from_utf8_lossy(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))
}

fn unlinked(folder: &[u8], mode: u32, size: u64) -> io::Result<OwnedFd> {
    let folder = Path::new(OsStr::from_bytes(folder));
    let folder = if folder.is_dir() { folder } else { Path::new("/tmp") };
    let name = CString::new(folder.as_os_str().as_bytes())?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a C string.
    let fd = checked_fd(c_long::from(unsafe { libc::open(name.as_ptr(), flags, mode) }))?;
    File::from(fd.try_clone()?).set_len(size)?;
    Ok(fd)
}

fn memory_file(object: &Object) -> io::Result<OwnedFd> {
    let name = CString::new(object.name.as_slice())?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the kernel reads a C string.
    let fd = checked_fd(c_long::from(unsafe { libc::memfd_create(name.as_ptr(), flags) }))?;
    File::from(fd.try_clone()?).set_len(object.size)?;
    Ok(fd)
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

fn inotify(watched: &[Watched]) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
    let fd = checked_fd(c_long::from(fd))?;
    for watch in watched {
        let path = CString::new(watch.path.as_slice())?;
        let mask = watch.mask & libc::IN_ALL_EVENTS | watch.mask & (libc::IN_ONESHOT);
        for _ in 0..NUMBERS_MAX {
            // SAFETY: the kernel reads a C string.
            let number =
                checked(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), mask) })?;
            if number as u32 >= watch.number {
                break;
            }
            // SAFETY: plain numbers.
            unsafe { libc::inotify_rm_watch(fd.as_raw_fd(), number) };
        }
    }
    // Watches that were given back have said so.
    let mut said = [0u8; 4096];
    // SAFETY: pointer and length describe `said`; a queue that is empty is not waited for.
    unsafe {
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        while libc::read(fd.as_raw_fd(), said.as_mut_ptr().cast(), said.len()) > 0 {}
    }
    Ok(fd)
}

/// Makes a pipe at its first end, for all files that are ends of it.
fn pipe(made: &mut Made, first: u32, of: &Description) -> io::Result<()> {
    if made.files[first as usize].is_some() {
        return Ok(());
    }
    let FileKind::Pipe { pipe: wanted, capacity, .. } = of.files[first as usize].kind else {
        return Ok(());
    };
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are ours on success.
    let ends = unsafe {
        checked(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(ends[0].as_raw_fd(), libc::F_SETPIPE_SZ, capacity as c_int) };
    for (number, file) in (0..).zip(&of.files) {
        let FileKind::Pipe { pipe, writes, .. } = file.kind else { continue };
        if pipe == wanted && made.files[number as usize].is_none() {
            // An open file of its own, which has flags of its own.
            let path = CString::new(format!("/proc/self/fd/{}", ends[0].as_raw_fd()))?;
            let flags = file.flags as c_int | libc::O_CLOEXEC | libc::O_NONBLOCK;
            // SAFETY: the kernel reads a C string.
            let end = checked_fd(c_long::from(unsafe { libc::open(path.as_ptr(), flags) }))?;
            // SAFETY: plain numbers.
            unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFL, file.flags as c_int) };
            made.files[number as usize] = Some(end);
            if !writes && made.pipe_writers.iter().all(|(reader, _)| *reader != number) {
                made.pipe_writers.push((number, ends[1].try_clone()?));
            }
        }
    }
    Ok(())
}
