//! Shared memory of the image, made here: memory files, files where shm_open(3) finds them, and SysV
//! segments.
//!
//! Segments have the numbers that the image's processes know. Here another one may have that number,
//! or that key: so a family has an IPC namespace of its own, as at its first start, and a single
//! process that has segments gets one. Nothing of them is left when the last process ends.

use super::super::error::{Doing, Result};
use super::super::names::Mounts;
use super::{Surroundings, mapped};
use crate::sockopt::{checked, checked_fd};
use holdfast_wire::snapshot::{Description, NAMED_FOLDER, Object, ObjectKind, PAGE, Segment};
use libc::c_long;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

/// The number that the next segment of the namespace gets; -1: any.
const NEXT_ID: &str = "/proc/sys/kernel/shm_next_id";

/// An IPC namespace for the image's processes, in which the calling thread is, and what it starts,
/// until this is dropped.
pub(super) struct Ipc(Option<File>);

impl Ipc {
    pub fn of(description: &Description) -> Result<Self> {
        let is_segment = |object: &Object| matches!(object.kind, ObjectKind::Segment(_));
        if !description.is_namespace() && !description.objects.iter().any(is_segment) {
            return Ok(Self(None));
        }
        let what = "an IPC namespace for the server";
        let own = File::open("/proc/thread-self/ns/ipc").doing(what)?;
        // SAFETY: plain numbers, for this thread only.
        checked(unsafe { libc::unshare(libc::CLONE_NEWIPC) }).doing(what)?;
        Ok(Self(Some(own)))
    }

    /// Removes the segments that last as long as somebody has them attached, which all who have
    /// them do by now.
    pub fn remove(&self, description: &Description) -> Result<()> {
        for object in &description.objects {
            let ObjectKind::Segment(segment @ Segment { is_removed: true, .. }) = object.kind
            else {
                continue;
            };
            let (id, none) = (segment.id.cast_signed(), std::ptr::null_mut());
            // SAFETY: no memory is passed.
            checked(unsafe { libc::shmctl(id, libc::IPC_RMID, none) })
                .doing("removing SysV shared memory")?;
        }
        Ok(())
    }
}

impl Drop for Ipc {
    fn drop(&mut self) {
        if let Some(own) = &self.0 {
            // SAFETY: plain numbers. It was this thread's own namespace before.
            let back = unsafe { libc::setns(own.as_raw_fd(), libc::CLONE_NEWIPC) };
            assert!(back == 0, "the loader's own IPC namespace");
        }
    }
}

/// SysV segments, by object; made before all else, with the loader's own rights.
pub(super) fn segments(of: &Description) -> Result<Vec<Option<OwnedFd>>> {
    let one = |object: &Object| match &object.kind {
        ObjectKind::Segment(it) => {
            let what = format!("making SysV shared memory {} of {} bytes", it.id, object.size);
            segment(it, object.size).map(Some).doing(what)
        }
        _ => Ok(None),
    };
    of.objects.iter().map(one).collect()
}

/// Makes a segment in this thread's IPC namespace, and opens it as the file that it is.
fn segment(of: &Segment, size: u64) -> io::Result<OwnedFd> {
    std::fs::write(NEXT_ID, of.id.to_string())
        .map_err(|error| io::Error::new(error.kind(), format!("{NEXT_ID}: {error}")))?;
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let (key, len) = (of.key.cast_signed(), usize::try_from(size).map_err(too_large)?);
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | of.mode.cast_signed();
    // SAFETY: all-zero is valid, plain numbers; the kernel reads and writes one structure.
    unsafe {
        let id = checked(libc::shmget(key, len, flags))?;
        if id != of.id.cast_signed() {
            return Err(io::Error::other("it cannot have its number again"));
        }
        let mut about: libc::shmid_ds = std::mem::zeroed();
        checked(libc::shmctl(id, libc::IPC_STAT, &raw mut about))?;
        (about.shm_perm.uid, about.shm_perm.gid) = of.owner;
        checked(libc::shmctl(id, libc::IPC_SET, &raw mut about))?;
        let at = libc::shmat(id, std::ptr::null(), 0);
        if at.addr().cast_signed() == -1 {
            return Err(io::Error::last_os_error());
        }
        let (start, end) = (at.addr(), at.addr() + size.next_multiple_of(PAGE) as usize);
        let path = format!("/proc/self/map_files/{start:x}-{end:x}");
        // Whoever writes into it as into a file is told when there is no memory.
        let file = File::options().read(true).write(true).open(path);
        checked(libc::shmdt(at))?;
        file.map(OwnedFd::from)
    }
}

/// Files where shm_open(3) finds them: they are gone with this, unless they are kept.
#[derive(Default)]
pub(super) struct Named(Vec<PathBuf>);

impl Named {
    /// Those of an image that is restored stay.
    pub fn keep(mut self) {
        self.0.clear();
    }

    /// Memory that is no SysV segment.
    pub fn make(
        &mut self,
        object: &Object,
        mounts: &Mounts,
        surroundings: &mut dyn Surroundings,
    ) -> io::Result<OwnedFd> {
        match object.kind {
            _ if object.is_external => surroundings.memory(object),
            ObjectKind::Named { mode, owner } => self.file(object, (mode, owner), mounts),
            ObjectKind::Memory | ObjectKind::Segment(_) => memory_file(object),
        }
    }

    /// Makes the file, in place of one that an earlier life of the server has left.
    fn file(
        &mut self,
        object: &Object,
        (mode, (user, group)): (u32, (u32, u32)),
        mounts: &Mounts,
    ) -> io::Result<OwnedFd> {
        let path = [NAMED_FOLDER, b"/", &object.name].concat();
        let named = |error| mapped::of(&path, error);
        let folder = mounts.find_folder(NAMED_FOLDER).map_err(named)?;
        let name = CString::new(object.name.as_slice())?;
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let at = folder.fd.as_raw_fd();
        // SAFETY: the kernel reads C strings.
        let fd = checked_fd(unsafe {
            libc::unlinkat(at, name.as_ptr(), 0);
            c_long::from(libc::openat(at, name.as_ptr(), flags, 0o600))
        });
        let file = File::from(fd.map_err(named)?);
        self.0.push(Path::new(OsStr::from_bytes(&path)).to_owned());
        // Who may not give files away owns it himself, as in state folders.
        match fchown(&file, Some(user), Some(group)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            done => done?,
        }
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        file.set_len(object.size)?;
        Ok(file.into())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        for path in &self.0 {
            let _gone = std::fs::remove_file(path);
        }
    }
}

fn memory_file(object: &Object) -> io::Result<OwnedFd> {
    let name = CString::new(object.name.as_slice())?;
    // Of a file that may be run the seal on that right would seal what is in it, too.
    let (runs, writes) = (libc::F_SEAL_EXEC.cast_unsigned(), libc::F_SEAL_WRITE.cast_unsigned());
    let is_no_program = object.seals & (runs | writes) == runs;
    let kind = if is_no_program { libc::MFD_NOEXEC_SEAL } else { 0 };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the kernel reads a C string.
    let fd = checked_fd(c_long::from(unsafe { libc::memfd_create(name.as_ptr(), flags) }))?;
    File::from(fd.try_clone()?).set_len(object.size)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_file_that_is_no_program_stays_writable() {
        let sealed = libc::F_SEAL_EXEC.cast_unsigned();
        for seals in [sealed, sealed | libc::F_SEAL_SHRINK.cast_unsigned()] {
            let (name, kind) = (b"data".to_vec(), ObjectKind::Memory);
            let object = Object { name, size: 4096, seals, is_external: false, kind };
            let made = memory_file(&object).expect("memory");
            // SAFETY: plain numbers.
            let all = unsafe {
                libc::fcntl(made.as_raw_fd(), libc::F_ADD_SEALS, seals.cast_signed());
                libc::fcntl(made.as_raw_fd(), libc::F_GET_SEALS)
            };
            assert_eq!(all.cast_unsigned(), seals);
        }
    }
}
