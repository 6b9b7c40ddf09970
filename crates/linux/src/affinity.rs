//! Which processors a thread may run on, where it last ran, and where packets
//! arrive.

use crate::sockopt::{self, checked};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A set of processors.
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    /// A set of this processor alone.
    #[must_use]
    pub fn one(cpu: usize) -> Self {
        // SAFETY: a plain array of bits; CPU_SET checks its bounds.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            Self(set)
        }
    }

    /// Whether the set has this processor.
    #[must_use]
    pub fn has(&self, cpu: usize) -> bool {
        // SAFETY: only reads the bits; the index is inside.
        cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, &self.0) }
    }

    /// How many processors the set has.
    #[must_use]
    pub fn count(&self) -> usize {
        // SAFETY: only reads the bits.
        unsafe { libc::CPU_COUNT(&self.0) as usize }
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: only reads the bits of both.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

/// Where a thread may run; 0 is the calling one.
///
/// # Errors
/// `ESRCH` if there is no such thread.
pub fn of(tid: u32) -> io::Result<CpuSet> {
    // SAFETY: the kernel fills in as many bytes as the set has.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        checked(libc::sched_getaffinity(tid as i32, size_of_val(&set), &raw mut set))?;
        Ok(CpuSet(set))
    }
}

/// Lets a thread run on these processors only; 0 is the calling one.
///
/// # Errors
/// `EINVAL` if none of them is allowed, `ESRCH`, `EPERM`.
pub fn set(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let bytes = size_of_val(&cpus.0);
    // SAFETY: the kernel only reads the set.
    checked(unsafe { libc::sched_setaffinity(tid as i32, bytes, &raw const cpus.0) })?;
    Ok(())
}

/// The processor that the main thread of a process last ran on.
///
/// # Errors
/// `NotFound` if there is no such process.
pub fn last_cpu(pid: u32) -> io::Result<usize> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain anything; `processor` is field 39.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(36).and_then(|text| text.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How long the main thread of a process has waited for a processor so far.
///
/// # Errors
/// `NotFound` if there is no such process, or without `CONFIG_SCHED_INFO`.
pub fn waited(pid: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let field = text.split_whitespace().nth(1).and_then(|text| text.parse().ok());
    field.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The processor on which the kernel last handled a packet of this socket.
///
/// # Errors
/// As getsockopt(2); `NotFound` if there was no packet yet.
pub fn incoming_cpu(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let cpu: i32 = sockopt::get(socket, libc::SOL_SOCKET, libc::SO_INCOMING_CPU)?;
    usize::try_from(cpu).map_err(|_| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_where_it_is_sent_and_says_so() {
        let before = of(0).expect("affinity");
        let cpu = (0..1024).find(|cpu| before.has(*cpu)).expect("a processor");
        let only = CpuSet::one(cpu);
        assert!(only.has(cpu) && !only.has(cpu + 1) && !only.has(usize::MAX) && only.count() == 1);
        let thread = std::thread::spawn(move || {
            set(0, &only).expect("setting");
            of(0).expect("affinity") == only
        });
        assert!(thread.join().expect("thread"));
        assert!(of(0).expect("affinity") == before);
    }

    #[test]
    fn a_process_has_run_somewhere_and_waited() {
        let cpu = last_cpu(std::process::id()).expect("stat");
        assert!(of(std::process::id()).expect("affinity").has(cpu));
        assert!(waited(std::process::id()).is_ok());
        assert!(last_cpu(u32::MAX).is_err() && waited(u32::MAX).is_err());
    }
}
