//! Areas of memory, and the shared memory that is mapped in some of them.

use super::description::Name;
use serde::{Deserialize, Serialize};

/// All protection bits: readable, writable, executable, as in mmap(2).
pub const PROT_ALL: u8 = 7;

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    pub start: u64,
    pub end: u64,
    /// Protection: `PROT_READ` 1, `PROT_WRITE` 2, `PROT_EXEC` 4.
    pub prot: u8,
    pub advice: Advice,
    pub backing: Backing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    pub huge: bool,
    pub never_huge: bool,
    pub not_forked: bool,
    pub not_dumped: bool,
    pub wiped_on_fork: bool,
    pub no_reserve: bool,
}

/// What is mapped in an area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    Anonymous,
    /// A stack, which grows downwards.
    Stack,
    /// A private copy of a file, whose mapped part has this hash.
    Private {
        path: Name,
        offset: u64,
        hash: u64,
    },
    /// A shared mapping of a file: others see what is written.
    Shared {
        path: Name,
        offset: u64,
        writable: bool,
    },
    Object {
        object: u32,
        offset: u64,
    },
    /// All of a SysV segment, as shmat(2) attaches it: for writing, or with `SHM_RDONLY`.
    Attached {
        object: u32,
        writable: bool,
    },
    /// The kernel's own code.
    Vdso,
    Vvar,
}

impl Area {
    /// Whether the image may have pages of it.
    #[must_use]
    pub const fn has_pages(&self) -> bool {
        matches!(self.backing, Backing::Anonymous | Backing::Stack | Backing::Private { .. })
    }
}

/// Shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Name of the memory file, empty if `mmap` made it without one; or of the file in
    /// [`NAMED_FOLDER`].
    pub name: Name,
    pub size: u64,
    pub seals: u32,
    /// Whether the restoring side already has it, so that the image has none of
    /// its content.
    pub is_external: bool,
    pub kind: ObjectKind,
}

/// How shared memory is made, and found by others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectKind {
    /// By memfd_create(2), or by mmap(2) without a file.
    Memory,
    /// By shm_open(3): permissions, user and group of its file.
    Named { mode: u32, owner: (u32, u32) },
    /// By shmget(2).
    Segment(Segment),
}

/// Folder of the files that shm_open(3) makes.
pub const NAMED_FOLDER: &[u8] = b"/dev/shm";

/// Most SysV segments: as many as an IPC namespace may have by default (`kernel.shmmni`).
pub const SEGMENTS_MAX: usize = 4096;

/// A SysV segment in the IPC namespace of the image's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub id: u32,
    /// 0: `IPC_PRIVATE`, or it had one before it was removed.
    pub key: u32,
    /// Permissions, `0o777` at most.
    pub mode: u32,
    /// User and group. Who has made it has no name in the image: the loader makes it.
    pub owner: (u32, u32),
    /// Whether it ends when nobody has it attached any more (`IPC_RMID`).
    pub is_removed: bool,
}
