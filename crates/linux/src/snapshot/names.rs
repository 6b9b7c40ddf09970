//! Files by name. A server that somebody has taken over can change what a name means
//! between two looks: so a name is followed once, without symbolic links, and what it
//! leads to is held, looked at, and used. Nothing here waits for anybody: what is
//! opened lies in a file system of this machine's own, and is a file, a folder, or a
//! device that always answers.

use crate::sockopt::{checked, checked_fd};
use libc::{c_int, c_long};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// File systems whose files are files and whose answers come from this machine's
/// kernel: not proc, sysfs and their like, where a file is a power over something, and
/// neither FUSE nor another machine's, which need never answer.
const KEPT: [&str; 18] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660",
    "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs",
];
/// Minor numbers of the devices of major number 1 that are the same everywhere: null,
/// zero, full, random, urandom.
const HARMLESS: [u32; 5] = [3, 5, 7, 8, 9];
/// Flags with which an open file is opened again: neither those that make a file nor
/// those that belong to the descriptor alone.
const AGAIN: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DIRECT
    | libc::O_NOATIME
    | libc::O_SYNC
    | libc::O_PATH;

/// Major and minor number.
pub(super) type Device = (u32, u32);

/// The mounts of this process's namespace.
pub(super) struct Mounts {
    kinds: BTreeMap<u64, String>,
    devices: BTreeMap<Device, String>,
    points: Vec<(Device, String)>,
    /// Device of memory files and shared memory, which no mount shows.
    pub memory: Device,
}

impl Mounts {
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/mountinfo")?;
        let (mut kinds, mut devices) = (BTreeMap::new(), BTreeMap::new());
        let mut points = Vec::new();
        for line in text.lines() {
            let Some((mount, source)) = line.split_once(" - ") else { continue };
            let kind = source.split(' ').next().unwrap_or_default();
            let mut words = mount.split(' ');
            let id = words.next().and_then(|id| id.parse().ok());
            let device = words.nth(1).and_then(|device| {
                let (major, minor) = device.split_once(':')?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            });
            if let (Some(id), Some(device)) = (id, device) {
                kinds.insert(id, kind.to_owned());
                devices.insert(device, kind.to_owned());
                points.extend(words.nth(1).map(|point| (device, point.to_owned())));
            }
        }
        // SAFETY: the kernel reads a C string.
        let memory = unsafe { libc::memfd_create(c"".as_ptr(), libc::MFD_CLOEXEC) };
        let memory = checked_fd(c_long::from(memory))?;
        Ok(Self { kinds, devices, points, memory: Status::of(memory.as_fd())?.device })
    }

    /// Why nothing on a mount is kept, if so.
    pub fn strange(&self, mount: u64) -> Option<&str> {
        strange(self.kinds.get(&mount))
    }

    /// Like [`Self::strange`], for a file system's device as /proc/PID/maps
    /// gives it.
    pub fn strange_device(&self, device: Device) -> Option<&str> {
        strange(self.devices.get(&device))
    }

    /// Where a file system is mounted, if anything of it is kept.
    pub fn points(&self, device: Device) -> impl Iterator<Item = &str> {
        let kept = self.strange_device(device).is_none();
        let there = self.points.iter().filter(move |(found, _)| kept && *found == device);
        there.map(|(_, point)| point.as_str())
    }

    /// Follows a name one part after the other, and into no file system that need not
    /// answer.
    pub fn find(&self, path: &[u8]) -> io::Result<Found> {
        let (folder, mut parts) = (libc::O_DIRECTORY, Path::new(OsStr::from_bytes(path)));
        parts = parts.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut at = self.step(libc::AT_FDCWD, c"/", folder)?;
        for part in parts.components() {
            let Component::Normal(part) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let name = CString::new(part.as_bytes())?;
            at = self.step(at.fd.as_raw_fd(), &name, 0)?;
        }
        Ok(at)
    }

    /// Like [`Self::find`], for a folder that may be the working directory.
    pub fn find_folder(&self, path: &[u8]) -> io::Result<Found> {
        let at = self.find(path)?;
        self.step(at.fd.as_raw_fd(), c".", libc::O_DIRECTORY)
    }

    fn step(&self, from: c_int, name: &std::ffi::CStr, flags: c_int) -> io::Result<Found> {
        let flags = flags | libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the kernel reads a C string.
        let fd = checked_fd(c_long::from(unsafe { libc::openat(from, name.as_ptr(), flags) }))?;
        let status = Status::of(fd.as_fd())?;
        if let Some(kind) = self.strange(status.mount) {
            return Err(io::Error::other(format!("nothing is kept of a file system like {kind}")));
        }
        if status.kind == libc::S_IFLNK {
            return Err(io::Error::other("a symbolic link is in the way"));
        }
        Ok(Found { fd, status })
    }

    /// Opens what a name leads to, with those of `flags` that an open file keeps. The
    /// holder of a lease on it is not waited for.
    pub fn open(&self, path: &[u8], flags: u32) -> io::Result<Found> {
        let found = self.find(path)?;
        let flags = flags.cast_signed() & AGAIN;
        if !found.status.is_harmless() {
            return Err(io::Error::other("it is neither a file nor a folder"));
        }
        if flags & libc::O_PATH != 0 {
            return Ok(found);
        }
        let fd = again(found.fd.as_fd(), flags)?;
        Ok(Found { fd, status: found.status })
    }
}

fn strange(kind: Option<&String>) -> Option<&str> {
    let kind = kind.map_or("one that is not mounted here", String::as_str);
    (!KEPT.contains(&kind)).then_some(kind)
}

/// What a name led to.
pub(super) struct Found {
    pub fd: OwnedFd,
    pub status: Status,
}

/// What a file is, asked only of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Status {
    /// `S_IFREG` and so on.
    pub kind: u32,
    pub device: Device,
    pub inode: u64,
    /// Time of its last change: seconds, nanoseconds. Nobody can set that.
    pub changed: (i64, u32),
    /// Number of a device.
    number: Device,
    mount: u64,
}

impl Status {
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: the structure is plain numbers.
        let mut it: libc::statx = unsafe { std::mem::zeroed() };
        let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_CTIME | libc::STATX_MNT_ID;
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: the kernel reads a C string, and writes one statx.
        checked(unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut it) })?;
        Ok(Self {
            kind: u32::from(it.stx_mode) & libc::S_IFMT,
            device: (it.stx_dev_major, it.stx_dev_minor),
            inode: it.stx_ino,
            changed: (it.stx_ctime.tv_sec, it.stx_ctime.tv_nsec),
            number: (it.stx_rdev_major, it.stx_rdev_minor),
            mount: it.stx_mnt_id,
        })
    }

    pub const fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }

    /// Whether opening it gives no more than what is in it.
    pub fn is_harmless(&self) -> bool {
        let harmless = self.number.0 == 1 && HARMLESS.contains(&self.number.1);
        self.is_file() || self.kind == libc::S_IFDIR || self.kind == libc::S_IFCHR && harmless
    }
}

/// What a name means now; no part of it is a symbolic link, and nothing is opened.
pub(super) fn look(path: &[u8]) -> io::Result<Status> {
    let name = CString::new(path)?;
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    // SAFETY: the kernel reads a C string and one open_how.
    let fd = checked_fd(unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size)
    })?;
    Status::of(fd.as_fd())
}

/// Opens a folder where file handles of its file system are known.
pub(super) fn open_folder(path: &str) -> io::Result<OwnedFd> {
    let name = CString::new(path)?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a C string.
    checked_fd(c_long::from(unsafe { libc::open(name.as_ptr(), flags) }))
}

/// Opens for reading what a link under /proc stands for, if it is a file.
pub(super) fn read_link(link: &str) -> io::Result<File> {
    let name = CString::new(link)?;
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a C string.
    let fd = checked_fd(c_long::from(unsafe { libc::open(name.as_ptr(), flags) }))?;
    if !Status::of(fd.as_fd())?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    again(fd.as_fd(), libc::O_RDONLY).map(File::from)
}

/// Opens again what is held. A lease makes it fail, not wait. The name of what is held is a link:
/// that a file was opened by a name which is none (`shm_open` does) does not hold here.
pub(super) fn again(fd: BorrowedFd<'_>, flags: c_int) -> io::Result<OwnedFd> {
    let name = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let at_once = flags & !libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: the kernel reads a C string.
    let opened = checked_fd(c_long::from(unsafe { libc::open(name.as_ptr(), at_once) }))?;
    // SAFETY: plain numbers.
    checked(unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_SETFL, flags) })?;
    Ok(opened)
}
