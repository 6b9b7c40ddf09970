//! Giving up rights: what a daemon that parses what strangers send does not need, it should not
//! have. Rights are the calling thread's and those of threads that it starts later, but for the
//! filter of system calls, which is the process's: call this before there are others.

mod filter;
mod folders;

pub use filter::{HARMFUL, MOUNTS, RUNNING};

use crate::sockopt::checked;
use libc::{c_int, c_ulong};
use std::io;
use std::path::PathBuf;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// Names of the capabilities by their numbers (capabilities(7)).
pub const NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The set of the capabilities with these names; unknown names are in no set.
#[must_use]
pub fn set_of(names: &[&str]) -> u64 {
    let number = |name: &&str| NAMES.iter().position(|known| known == name);
    names.iter().filter_map(number).fold(0, |set, number| set | 1 << number)
}

/// What a process keeps.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// The set of capabilities, also of programs that it starts.
    pub capabilities: u64,
    /// Whether programs that it starts may gain rights by their mode, as set-uid ones do.
    pub gains: bool,
    /// System calls that answer with `EPERM` from now on, also in what it starts.
    pub denied: Vec<libc::c_long>,
    /// Folders and files below which alone files are made, changed or removed; `None`: anywhere.
    pub writes: Option<Vec<PathBuf>>,
}

impl Keep {
    /// Gives up everything else. What this kernel does not have (Landlock, filters), or does not let
    /// this user have, is left out.
    ///
    /// # Errors
    /// If a right that is to go stays.
    pub fn enter(&self) -> io::Result<()> {
        if !self.gains {
            crate::process::gain_no_privileges()?;
        }
        // Both need either that or CAP_SYS_ADMIN.
        self.writes.as_ref().map_or(Ok(()), |paths| folders::write_only_below(paths))?;
        filter::deny(&self.denied)?;
        crate::process::give_up_ambient()?;
        for number in (0..u64::BITS).filter(|number| self.capabilities >> number & 1 == 0) {
            match drop_bounding(number) {
                // The kernel knows no more of them, or this process may not change the set.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => break,
                other => other?,
            }
        }
        let held = Capabilities::get()?;
        held.within(self.capabilities).set()
    }
}

fn drop_bounding(number: u32) -> io::Result<()> {
    let number = c_ulong::from(number);
    // SAFETY: this prctl() takes plain numbers.
    checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0 as c_ulong) }).map(drop)
}

/// What a process has kept, as the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The set of capabilities that are in effect.
    pub capabilities: u64,
    /// Whether it, and what it starts, gains none by a program's mode.
    pub gains_none: bool,
    /// Whether system calls are filtered.
    pub filtered: bool,
}

impl Held {
    /// Reads what the calling thread has.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn now() -> io::Result<Self> {
        std::fs::read_to_string("/proc/thread-self/status").map(|text| Self::parse(&text))
    }

    /// Reads it from the text of /proc/PID/status; what is missing there is not held.
    #[must_use]
    pub fn parse(status: &str) -> Self {
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", str::trim)
        };
        Self {
            capabilities: u64::from_str_radix(of("CapEff:"), 16).unwrap_or(0),
            gains_none: of("NoNewPrivs:") == "1",
            filtered: of("Seccomp:") == "2",
        }
    }

    /// The names of the capabilities.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let has = |(number, _): &(usize, &&str)| self.capabilities >> number & 1 == 1;
        NAMES.iter().enumerate().filter(has).map(|(_, name)| *name).collect()
    }
}

/// `struct __user_cap_data_struct`, twice: effective, permitted, inheritable.
#[derive(Clone, Copy)]
pub(crate) struct Capabilities(pub [[u32; 3]; 2]);

impl Capabilities {
    pub fn get() -> io::Result<Self> {
        let (header, mut data) = ([VERSION, 0], [[0u32; 3]; 2]);
        // SAFETY: the kernel reads the header, and writes two structures of three words.
        let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
        checked(got as c_int)?;
        Ok(Self(data))
    }

    pub fn set(&self) -> io::Result<()> {
        let header = [VERSION, 0];
        // SAFETY: the kernel only reads both.
        let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), self.0.as_ptr()) };
        checked(set as c_int).map(drop)
    }

    /// Those of them that are in a set, and none for programs to inherit.
    fn within(mut self, set: u64) -> Self {
        for (half, shift) in self.0.iter_mut().zip([0, 32]) {
            let [effective, permitted, inheritable] = half;
            let kept = (set >> shift) as u32;
            (*effective, *permitted, *inheritable) = (*effective & kept, *permitted & kept, 0);
        }
        self
    }
}

#[cfg(test)]
mod tests;
