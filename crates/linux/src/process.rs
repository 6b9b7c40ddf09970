//! Other processes, and the calling thread: descriptors and memory of the
//! replica, waiting, event counters.

mod event;
mod family;
mod state;
mod taken;

pub use event::EventFd;
pub use family::{family, family_within, living_family};
pub use state::{deeds, is_busy, is_over, is_stopped, sleeps};
pub use taken::take_descriptor;

use crate::sockopt::{checked, checked_fd, checked_len};
use libc::{c_int, c_ulong};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Opens a descriptor that becomes readable when the process ends.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open() touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    checked_fd(fd)
}

/// Closes all descriptors from `first` on when this process becomes another program.
///
/// # Errors
/// `ENOSYS`, `EINVAL` before Linux 5.11.
pub fn close_at_exec(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range() touches no memory.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    checked(done as c_int).map(drop)
}

/// Sends a signal to the process that a pidfd stands for.
///
/// # Errors
/// `ESRCH` if it has ended.
pub fn signal(process: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: without a siginfo, pidfd_send_signal() touches no memory of ours.
    checked(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0)
    } as c_int)?;
    Ok(())
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this exit status.
    Exited(i32),
    /// By a signal.
    Killed(i32),
    /// Nobody can tell any more.
    Unknown,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "with exit status {status}"),
            Self::Killed(signal) => write!(f, "by signal {signal}"),
            Self::Unknown => f.write_str("nobody knows how"),
        }
    }
}

/// How a child of this process has ended, or `None` if it has not. This does not reap
/// it: see [`reap_aside`].
///
/// # Errors
/// `ECHILD` if it has been reaped.
pub fn ending(child: BorrowedFd<'_>) -> io::Result<Option<Ending>> {
    let found = wait_for(child, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)?;
    // SAFETY: waitid() has filled it in, or left it all zero.
    let (pid, status) = unsafe { (found.si_pid(), found.si_status()) };
    let how = if found.si_code == libc::CLD_EXITED { Ending::Exited } else { Ending::Killed };
    Ok((pid != 0).then(|| how(status)))
}

/// Has a child of this process removed from the list of processes once it has ended, in
/// a thread of its own. The kernel forgets a process in its parent's name, and spins
/// until everybody who has looked at it in /proc is done: a real-time thread would keep
/// the processor from just that reader, and any other thread would wait for it.
pub fn reap_aside(child: OwnedFd) {
    let reaper = std::thread::Builder::new().name("reaper".to_owned());
    // If there is no thread, init does it when this process has ended.
    let _ = reaper.spawn(move || drop(wait_for(child.as_fd(), libc::WEXITED)));
}

fn wait_for(child: BorrowedFd<'_>, how: c_int) -> io::Result<libc::siginfo_t> {
    // SAFETY: all-zero is a valid siginfo.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only writes `found`.
    checked(unsafe {
        libc::waitid(libc::P_PIDFD, child.as_raw_fd().cast_unsigned(), &raw mut found, how)
    })?;
    Ok(found)
}

/// The process at the other end of a UNIX stream: the one that connected or that
/// listens.
///
/// # Errors
/// As getsockopt(2).
pub fn peer(stream: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is writable memory of `size` bytes, and any bytes make one.
    checked(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    })?;
    Ok(peer.pid.cast_unsigned())
}

/// When a process started, in the kernel's ticks since boot: together with its
/// number, this identifies a process forever.
///
/// # Errors
/// `NotFound` if there is none, `InvalidData` if /proc makes no sense.
pub fn started(pid: u32) -> io::Result<u64> {
    /// Position of `starttime`, counted behind the name.
    const FIELD: usize = 19;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let field = stat_field(&stat, FIELD).and_then(|text| text.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The numbers of a process's threads, in no order.
///
/// # Errors
/// If there is no such process.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    Ok(tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

/// A thread's number in its innermost pid namespace, which is the number that it has
/// stored itself.
///
/// # Errors
/// If there is no such thread.
pub fn innermost_tid(pid: u32, tid: u32) -> io::Result<u32> {
    let last = numbers(pid, tid)?.pop();
    last.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A thread's numbers in the pid namespaces that it is in, beginning with the caller's.
///
/// # Errors
/// If there is no such thread.
pub fn numbers(pid: u32, tid: u32) -> io::Result<Vec<u32>> {
    let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status"))?;
    // A thread's name need not be text.
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.map(|word| word.parse().map_err(|_| io::ErrorKind::InvalidData.into())).collect()
}

/// A field of /proc/PID/stat, counted behind the name, which may hold spaces and
/// brackets.
pub(crate) fn stat_field(stat: &str, number: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number)
}

/// The process that has the socket with this inode open, if one can be seen; if
/// several share it, the one that started first.
#[must_use]
pub fn holder_of_socket(inode: u32) -> Option<u32> {
    let name = format!("socket:[{inode}]");
    let has_it = |pid: &u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|to| to.as_os_str() == name.as_str())
    };
    let all = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let when = |pid: &u32| started(*pid).unwrap_or(u64::MAX);
    pids.filter(has_it).min_by_key(when)
}

/// The other processes that map a memory file of this name: a program and what it
/// forked, even if it went into the background.
#[must_use]
pub fn holders(memory: &str) -> Vec<u32> {
    let mapping = format!(" /memfd:{memory} (deleted)");
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.split(|byte| *byte == b'\n').any(|line| line.ends_with(mapping.as_bytes()))
    };
    numbers.filter(|pid| *pid != std::process::id()).filter(holds).collect()
}

/// The real user of a process.
///
/// # Errors
/// `NotFound` if it is gone.
pub fn user_of(pid: u32) -> io::Result<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status"))?;
    let text = String::from_utf8_lossy(&status);
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    user.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The descriptor by which a process has a memory file of this name.
///
/// # Errors
/// `NotFound` if it has none.
pub fn memory_of(pid: u32, memory: &str) -> io::Result<RawFd> {
    let name = format!("/memfd:{memory} (deleted)");
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is = std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == &*name);
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        if let Some(number) = number.filter(|_| is) {
            return Ok(number);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// A duplicate of descriptor `fd` of another process; it shares the open file.
///
/// # Errors
/// `EBADF` if the process has no such descriptor, `EPERM` without the right to
/// trace it (`CAP_SYS_PTRACE`).
pub fn pidfd_getfd(process: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_getfd() touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    checked_fd(fd)
}

/// Copies memory of another process from `address` on. Returns the number of
/// bytes that were readable; fewer than asked for if the mapping ends.
///
/// # Errors
/// `EFAULT` if nothing is mapped there, `EPERM` without `CAP_SYS_PTRACE`.
pub fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: into.len(),
    };
    // SAFETY: the local piece is `into`; the remote one is never dereferenced here.
    checked_len(unsafe {
        libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// Waits until one of `fds` has one of its wanted events. A negative timeout
/// waits forever; 0 only looks. Returns how many are ready; after a signal that
/// is 0.
///
/// # Errors
/// As poll(2), without `EINTR`.
pub fn poll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> io::Result<usize> {
    // SAFETY: pointer and length describe `fds`.
    let result =
        checked(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) });
    match result {
        Ok(count) => Ok(count as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits until `fd` is readable (or broken); `false` when the time is up.
///
/// # Errors
/// As [`poll`].
pub fn poll_in(fd: BorrowedFd<'_>, timeout_ms: c_int) -> io::Result<bool> {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    Ok(poll(&mut fds, timeout_ms)? > 0)
}

/// Keeps in RAM the memory that the process touches, even memory mapped later: no
/// page that was written out delays a heartbeat or a takeover.
///
/// # Errors
/// `EPERM` or `ENOMEM` without `CAP_IPC_LOCK`.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })?;
    Ok(())
}

/// Makes the process return freed large pieces to the kernel at once, now and later:
/// glibc's allocator would keep them after their first release, tens of megabytes for
/// each thread, and locked ones for good (`M_MMAP_THRESHOLD` in mallopt(3), which would
/// grow otherwise).
pub fn keep_no_large_pieces() {
    const LARGE: libc::c_int = 1 << 20;
    // SAFETY: no pointers. A threshold that is refused is as before.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

/// Gives every thread of a process the real-time policy `SCHED_RR` with this
/// priority, or with `None` the ordinary policy again.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, `ESRCH` if the process has ended.
pub fn set_process_realtime(pid: u32, priority: Option<i32>) -> io::Result<()> {
    // Threads that it starts meanwhile do not inherit it: nobody would take it
    // back.
    let raised = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    let policy = priority.map_or(libc::SCHED_OTHER, |_| raised);
    let parameters = libc::sched_param { sched_priority: priority.unwrap_or(0) };
    // Threads come and go meanwhile: repeated until a look finds no new one.
    let mut done = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let fresh: Vec<u32> = threads(pid)?.into_iter().filter(|tid| done.insert(*tid)).collect();
        if fresh.is_empty() {
            break;
        }
        for tid in fresh {
            // SAFETY: the kernel only reads `parameters`.
            let set = unsafe {
                libc::sched_setscheduler(tid as libc::pid_t, policy, &raw const parameters)
            };
            match checked(set) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Has the kernel send `signal` to this process when its parent's thread ends.
///
/// # Errors
/// `EINVAL` if there is no such signal.
pub fn die_with_parent(signal: c_int) -> io::Result<()> {
    // SAFETY: this prctl() takes plain numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as c_ulong, 0, 0, 0) })?;
    Ok(())
}

/// Drops the capabilities that a program would inherit from one that is not root.
///
/// # Errors
/// As prctl(2).
pub fn give_up_ambient() -> io::Result<()> {
    let (what, all) = (libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong);
    // SAFETY: this prctl() takes plain numbers.
    checked(unsafe { libc::prctl(what, all, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) })?;
    Ok(())
}

/// Opens a file for appending, and makes it if it is missing; no part of its path
/// may be a symbolic link, and opening never waits.
///
/// # Errors
/// As openat2(2): `ELOOP` for a symbolic link, `ENXIO` for a pipe that nobody reads.
pub fn open_without_links(path: &Path) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    how.flags = (flags | libc::O_NONBLOCK) as u64;
    // What a server writes there may not be for everybody.
    how.mode = 0o640;
    how.resolve = libc::RESOLVE_NO_SYMLINKS;
    let size = size_of::<libc::open_how>();
    // SAFETY: the kernel reads a C string and one open_how; both live across the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size)
    };
    let file = File::from(checked_fd(fd)?);
    // SAFETY: plain numbers. What the server writes is not lost where it is slow.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) })?;
    Ok(file)
}

/// Memory of its own that a process has, in bytes, swapped out or not: pages that it
/// maps many times do not count. `u64::MAX` if the kernel does not tell.
#[must_use]
pub fn memory_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let swapped = bytes_of(&status, "VmSwap:").unwrap_or(0);
    bytes_of(&status, "RssAnon:").map_or(u64::MAX, |resident| resident + swapped)
}

/// Memory that this host could give to new programs without swapping, in bytes.
///
/// # Errors
/// As reading `/proc/meminfo`.
pub fn memory_available() -> io::Result<u64> {
    let said = std::fs::read_to_string("/proc/meminfo")?;
    bytes_of(&said, "MemAvailable:").ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Resident memory of a process, in bytes; `None` if it is gone.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    bytes_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// A number from `/proc/PID/status`.
fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Most searches for descendants that others have just started.
const ROUNDS_MAX: usize = 16;

/// Sends `signal` to the first thread of a process, marked as one that a program
/// has queued (`SI_QUEUE`).
///
/// # Errors
/// As rt_tgsigqueueinfo(2).
pub fn queue_signal(pid: u32, signal: c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid siginfo.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    // SAFETY: the kernel only reads `info`.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, pid, signal, &raw const info) };
    checked(result as c_int)?;
    Ok(())
}

/// Kills the processes that a process has started, and those that they have
/// started.
pub fn kill_descendants(pid: u32) {
    let mut known = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let fresh: Vec<u32> =
            family(pid).into_iter().skip(1).filter(|child| known.insert(*child)).collect();
        if fresh.is_empty() {
            return;
        }
        for child in fresh {
            // SAFETY: plain numbers; who has ended meanwhile needs no signal.
            unsafe { libc::kill(child as libc::pid_t, libc::SIGKILL) };
        }
    }
}

/// Whether processes whose parent has ended, and that descend from this one, become its children:
/// then [`kill_descendants`] finds those that went into the background, too.
///
/// # Errors
/// As prctl(2).
pub fn adopt_orphans(wanted: bool) -> io::Result<()> {
    // SAFETY: this prctl() takes plain numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, c_ulong::from(wanted), 0, 0, 0) })?;
    Ok(())
}

/// Prevents this process, and the program that it becomes, from gaining rights
/// by a program's mode or capabilities (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// As prctl(2).
pub fn gain_no_privileges() -> io::Result<()> {
    // SAFETY: plain numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ok(())
}

/// Has the kernel always place the programs that this process becomes at the
/// same addresses, not at random.
///
/// # Errors
/// As personality(2).
pub fn fix_addresses() -> io::Result<()> {
    const ASK: c_ulong = 0xffff_ffff;
    // SAFETY: personality() takes a plain number.
    let now = checked(unsafe { libc::personality(ASK) })?;
    let fixed = now as c_ulong | libc::ADDR_NO_RANDOMIZE as c_ulong;
    // SAFETY: as above.
    checked(unsafe { libc::personality(fixed) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_read_is_not_zero() {
        assert_eq!(bytes_of("VmPeak:\t  9 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12 << 10));
        // The status of a process that has ended and is not waited for.
        assert_eq!(bytes_of("Name:\tsh\nState:\tZ (zombie)\n", "VmRSS:"), None);
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "who reaps them is what is tested")]
    fn how_a_child_ended_is_known_until_it_is_reaped() {
        let ends = |command: &str| {
            let child = std::process::Command::new("sh").args(["-c", command]).spawn().unwrap();
            (child.id(), pidfd_open(child.id()).unwrap())
        };
        let (_, well) = ends("exit 0");
        let (_, ill) = ends("exit 3");
        let (pid, killed) = ends("exec sleep 60");
        assert_eq!(ending(killed.as_fd()).unwrap(), None);
        signal(killed.as_fd(), libc::SIGKILL).unwrap();
        let endings = [Ending::Exited(0), Ending::Exited(3), Ending::Killed(libc::SIGKILL)];
        for (child, how) in [&well, &ill, &killed].into_iter().zip(endings) {
            assert!(poll_in(child.as_fd(), 10_000).unwrap());
            assert_eq!(ending(child.as_fd()).unwrap(), Some(how));
        }
        assert!(started(pid).is_ok(), "a look leaves it where it is");
        for child in [well, ill, killed] {
            reap_aside(child);
        }
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while started(pid).is_ok() && std::time::Instant::now() < limit {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(started(pid).is_err());
    }

    #[test]
    fn who_computes_is_busy_and_who_sleeps_is_not() {
        let mut sleeper = std::process::Command::new("sleep").arg("9").spawn().expect("sleep");
        let pid = sleeper.id();
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(8);
        while is_busy(pid) && std::time::Instant::now() < limit {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!is_busy(pid) && is_busy(std::process::id()));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
        assert!(!is_busy(pid));
        assert_eq!(stat_field("7 (a) b) R 1 2", 0), Some("R"));
    }
}
