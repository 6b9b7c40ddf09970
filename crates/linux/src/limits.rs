//! How many descriptors a process may have open, how large its stack may grow, and
//! its files: what the daemon needs for itself, and what its server is to see.

use crate::process::EventFd;
use crate::sockopt::{checked, checked_fd};
use libc::c_int;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::OnceLock;

/// A limit on open descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit that the kernel enforces.
    pub soft: u64,
    /// The limit up to which the process may raise it by itself.
    pub hard: u64,
}

/// The limit that this process was started with.
static GIVEN: OnceLock<OpenFiles> = OnceLock::new();

/// The limit as it is now.
///
/// # Errors
/// As getrlimit(2).
pub fn open_files() -> io::Result<OpenFiles> {
    let limit = get(libc::RLIMIT_NOFILE)?;
    Ok(OpenFiles { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// The limit that the starter of this process chose: it applies to the server,
/// too.
///
/// # Errors
/// As getrlimit(2).
pub fn given_open_files() -> io::Result<OpenFiles> {
    GIVEN.get().map_or_else(open_files, |given| Ok(*given))
}

/// Lets this process have as many descriptors as it may, and at least `need` if
/// the kernel allows that (`CAP_SYS_RESOURCE`). Returns the new limit.
///
/// # Errors
/// As getrlimit(2).
pub fn raise_open_files(need: u64) -> io::Result<u64> {
    let given = open_files()?;
    let given = *GIVEN.get_or_init(|| given);
    let most = given.hard.max(need);
    let all = |n| set_open_files(OpenFiles { soft: n, hard: n });
    if all(most).or_else(|_| all(given.hard)).is_err() {
        return Ok(given.soft);
    }
    Ok(open_files()?.soft)
}

/// Makes room for descriptors below `count` now. The kernel doubles a process' table when a number
/// does not fit, and where there are several threads whoever needs it waits until all processors
/// have let go of the old one: 5 to 15 ms each time, measured (Linux 6.18), three times for a
/// thousand descriptors.
///
/// # Errors
/// As fcntl(2): `EINVAL` beyond the limit.
pub fn reserve_descriptors(count: u64) -> io::Result<()> {
    let last = c_int::try_from(count.saturating_sub(1)).unwrap_or(c_int::MAX);
    let any = EventFd::new()?;
    // SAFETY: plain numbers; the kernel makes a descriptor, which is ours.
    let fd = unsafe { libc::fcntl(any.as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) };
    // The table does not shrink when it is closed.
    checked_fd(fd.into()).map(drop)
}

/// Sets the limit of this process; makes one system call and nothing else.
///
/// # Errors
/// `EPERM` to raise the hard limit without `CAP_SYS_RESOURCE`.
pub fn set_open_files(limit: OpenFiles) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: the kernel only reads `limit`.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(())
}

/// Sets how long a file may become by this process; makes one system call and nothing
/// else.
///
/// # Errors
/// `EPERM` to raise the hard limit without `CAP_SYS_RESOURCE`.
pub fn set_file_bytes(most: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the kernel only reads `limit`.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) })?;
    Ok(())
}

/// How far a stack may grow; the kernel leaves that much room above the
/// libraries.
#[must_use]
pub fn stack_bytes() -> Option<u64> {
    get(libc::RLIMIT_STACK).ok().map(|limit| limit.rlim_cur)
}

fn get(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    checked(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_descriptors_is_there_before_they_are() {
        let room = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("own status");
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
            line.and_then(|size| size.trim().parse::<u64>().ok()).expect("a size")
        };
        let count = open_files().expect("a limit").soft.min(3000);
        reserve_descriptors(count).expect("within the limit");
        assert!(room() >= count, "{} of {count}", room());
        let beyond = reserve_descriptors(u64::from(u32::MAX)).map_err(|error| error.raw_os_error());
        assert_eq!(beyond, Err(Some(libc::EINVAL)));
    }
}
