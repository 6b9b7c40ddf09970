//! How many descriptors a process may have open, how large its stack may grow, and
//! its files: what the daemon needs for itself, and what its server is to see.

use crate::sockopt::checked;
use std::io;
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
