//! Locks on files, taken again by the stub.

use super::super::error::{Result, SnapshotError, refuse};
use super::remote::Remote;
use holdfast_wire::snapshot::{FileKind, Lock, LockOwner, Member, OpenFile};
use libc::c_int;

/// `struct flock`, in bytes.
const FLOCK: usize = 32;

/// Takes the locks that a process has; `files` are those of the image.
pub(super) fn take(stub: &mut Remote, of: &Member, files: &[OpenFile]) -> Result<()> {
    of.locks.iter().try_for_each(|lock| match take_one(stub, lock) {
        Err(SnapshotError::Step { error, .. }) if is_held(&error) => {
            refuse(format!("{} is locked here by another process", name(of, lock, files)))
        }
        done => done,
    })
}

fn take_one(stub: &mut Remote, lock: &Lock) -> Result<()> {
    let number = u64::from(lock.number);
    let what = format!("the lock of descriptor {number}");
    let command = match lock.owner {
        LockOwner::Whole => {
            let how = if lock.is_exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
            let arguments = [number, (how | libc::LOCK_NB) as u64];
            return stub.call(&what, libc::SYS_flock, &arguments).map(drop);
        }
        LockOwner::Process => libc::F_SETLK,
        LockOwner::File => libc::F_OFD_SETLK,
    };
    let kind = if lock.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as i16;
    let len = lock.last.map_or(0, |last| last - lock.start + 1);
    // Kind, where its start is counted from, start, length; no process.
    let mut bytes = [0; FLOCK];
    bytes[..2].copy_from_slice(&kind.to_ne_bytes());
    bytes[2..4].copy_from_slice(&(libc::SEEK_SET as i16).to_ne_bytes());
    bytes[8..16].copy_from_slice(&lock.start.to_ne_bytes());
    bytes[16..24].copy_from_slice(&len.to_ne_bytes());
    let at = stub.argument(&bytes)?;
    stub.call(&what, libc::SYS_fcntl, &[number, command as c_int as u64, at]).map(drop)
}

fn is_held(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// What a person knows the file by.
fn name(of: &Member, lock: &Lock, files: &[OpenFile]) -> String {
    let at = of.descriptors.binary_search_by_key(&lock.number, |it| it.number);
    let file = at.ok().and_then(|at| files.get(of.descriptors[at].file as usize));
    match file.map(|file| &file.kind) {
        Some(FileKind::Path { path, .. }) => String::from_utf8_lossy(path).into_owned(),
        _ => format!("descriptor {}", lock.number),
    }
}
