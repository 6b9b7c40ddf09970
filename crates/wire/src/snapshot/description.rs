//! What a process is besides its pages. Numbers are the kernel's own (flags, masks,
//! clock ids), as `/proc` and ptrace(2) give them; times are in nanoseconds.

use crate::shm::{HANDED, conn_state};
use serde::{Deserialize, Serialize};

/// A path or a name: the kernel's have no encoding.
pub type Name = Vec<u8>;

/// Signals that have an action, from 1 on.
pub const SIGNALS: usize = 64;
/// Resources that have a limit.
pub const RESOURCES: usize = 16;
/// Words of `user_regs_struct`.
pub const REGISTERS: usize = 27;
/// Bytes of a `siginfo_t`.
pub const SIGINFO: usize = 128;

/// Groups that a process may be in, besides its own.
pub const GROUPS_MAX: usize = 1024;

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub process: Process,
    /// The first is the one that the process began with.
    pub threads: Vec<Thread>,
    /// By address.
    pub areas: Vec<Area>,
    /// Memory that is shared, or that a descriptor names.
    pub objects: Vec<Object>,
    /// Open files: what descriptors that were duplicated share.
    pub files: Vec<OpenFile>,
    /// By number.
    pub descriptors: Vec<Descriptor>,
    /// What its epoll sets watch.
    pub watches: Vec<Watch>,
    /// Of a server under the shim: what stands in the memory that it shares with its
    /// daemon, and is not in the image otherwise.
    pub books: Option<Books>,
    /// What its files are; they come before all else that chunks hold.
    pub state: State,
}

/// Folders in which the process keeps what it knows, with all that is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub folders: Vec<Name>,
    /// By folder, and by path.
    pub entries: Vec<StateEntry>,
    /// Of all files together; holes are left out.
    pub bytes: u64,
}

/// A file, a folder or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateEntry {
    /// Which of [`State::folders`] it is in.
    pub folder: u32,
    /// From there.
    pub path: Name,
    /// Who may do what with it, `0o777` at most.
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    /// When it was written last.
    pub written_ns: i64,
    pub kind: StateKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    Folder,
    File { size: u64 },
    Link { to: Name },
}

/// How names of what is put together in a state folder begin, and no others there.
pub const STATE_RESERVED: &[u8] = b".holdfast-";

/// What all threads share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// In its innermost pid namespace.
    pub pid: u32,
    pub executable: Name,
    pub directory: Name,
    pub umask: u32,
    pub leads_session: bool,
    pub leads_group: bool,
    pub dumpable: bool,
    pub no_new_privs: bool,
    pub thp_disabled: bool,
    pub personality: u32,
    pub oom_score_adj: i32,
    pub ids: Ids,
    /// Soft and hard.
    pub limits: Vec<(u64, u64)>,
    pub actions: Vec<Action>,
    pub layout: Layout,
    pub auxv: Vec<u64>,
    /// Code that the kernel gave it; another kernel gives another.
    pub vdso: Vec<u8>,
    /// Signals that no thread has taken.
    pub pending: Vec<Vec<u8>>,
}

/// Whose rights it has: user and group ids are real, effective, saved, of the file
/// system; capabilities inheritable, permitted, effective, bounding, ambient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    pub users: [u32; 4],
    pub groups: [u32; 4],
    pub further_groups: Vec<u32>,
    pub capabilities: [u64; 5],
    pub secure_bits: u32,
}

/// What a signal does: `struct sigaction`, as the kernel keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// Where the kernel thinks things are (`struct prctl_mm_map`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
}

/// One thread, and how it is to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub tid: u32,
    pub name: Name,
    /// `user_regs_struct`: no system call is left to be started over by the kernel.
    pub registers: Vec<u64>,
    /// As `NT_X86_XSTATE`.
    pub xstate: Vec<u8>,
    pub signal_mask: u64,
    pub alt_stack: AltStack,
    /// Head and length.
    pub robust_list: (u64, u64),
    /// Where the kernel clears the number of a thread that ends.
    pub clear_tid: u64,
    pub rseq: Rseq,
    pub dispatch: Dispatch,
    /// Policy, nice value, real-time priority.
    pub scheduling: (u32, i32, u32),
    /// Mask of processors.
    pub affinity: Vec<u8>,
    pub timer_slack_ns: u64,
    pub pending: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltStack {
    pub address: u64,
    pub size: u64,
    pub flags: u32,
}

/// Restartable sequences: an address of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    pub address: u64,
    pub size: u32,
    pub signature: u32,
}

/// Syscall user dispatch: a mode of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    pub mode: u64,
    pub selector: u64,
    pub offset: u64,
    pub len: u64,
}

/// Readable, writable, executable, as in mmap(2).
pub const PROT_ALL: u8 = 7;

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    pub start: u64,
    pub end: u64,
    /// `PROT_READ` 1, `PROT_WRITE` 2, `PROT_EXEC` 4.
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

/// What an area shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    Anonymous,
    /// Grows downwards.
    Stack,
    /// A private copy of a file, whose mapped part has this hash.
    Private {
        path: Name,
        offset: u64,
        hash: u64,
    },
    /// A file of which others see what is written.
    Shared {
        path: Name,
        offset: u64,
        writable: bool,
    },
    Object {
        object: u32,
        offset: u64,
    },
    /// The kernel's own.
    Vdso,
    Vvar,
}

impl Area {
    /// Whether pages of it may be in the image.
    #[must_use]
    pub const fn has_pages(&self) -> bool {
        matches!(self.backing, Backing::Anonymous | Backing::Stack | Backing::Private { .. })
    }
}

/// Shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Of the memory file; without one, as `mmap` makes it.
    pub name: Name,
    pub size: u64,
    pub seals: u32,
    /// Whoever restores has it: nothing of it is in the image.
    pub is_external: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    pub number: u32,
    pub close_on_exec: bool,
    pub file: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// As `F_GETFL` has them.
    pub flags: u32,
    pub kind: FileKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A file, folder or harmless device by its name.
    Path {
        path: Name,
        position: u64,
    },
    /// A file without a name, whose content is in the image.
    Unlinked {
        folder: Name,
        position: u64,
        mode: u32,
        size: u64,
    },
    Memory {
        object: u32,
        position: u64,
    },
    /// An end of a pipe; both ends name the same `pipe`. What it holds stands with
    /// its first reading end.
    Pipe {
        pipe: u32,
        writes: bool,
        capacity: u32,
    },
    Event {
        count: u64,
        is_semaphore: bool,
    },
    Epoll,
    Timer {
        clock: u32,
        ticks: u64,
        left_ns: u64,
        interval_ns: u64,
    },
    Inotify {
        watched: Vec<Watched>,
    },
    Signals {
        mask: u64,
    },
    Socket(Socket),
    /// Whoever restores has it.
    Given,
    /// A userfaultfd: the restored one has a new one.
    Userfault,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    pub number: u32,
    pub mask: u32,
    pub path: Name,
}

/// A socket: what is made of it, whoever restores decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    pub family: i32,
    pub kind: i32,
    pub protocol: i32,
    /// `SO_COOKIE` where it came from.
    pub cookie: u64,
    pub is_listening: bool,
    pub is_connected: bool,
    pub options: Vec<SocketOption>,
    /// `sockaddr` that it is bound to.
    pub local: Vec<u8>,
}

/// As setsockopt(2) takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    pub level: i32,
    pub name: i32,
    pub value: Vec<u8>,
}

/// An entry of an epoll set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Descriptor of the set.
    pub set: u32,
    /// Descriptor that it watches.
    pub target: u32,
    pub events: u32,
    pub data: u64,
}

/// What a shim has in [`crate::shm`] at the moment of the image, at which its log begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// Where the log begins that a copy follows.
    pub log_from: u64,
    /// Address of the shim's `ShimState`.
    pub control: u64,
    /// `Header::handed`, `userfault`, `logs`, `forks`.
    pub handed: [i32; HANDED],
    pub userfault: i32,
    pub logs: u32,
    pub forks: u32,
    pub connections: Vec<Connection>,
    /// TCP listeners, as the server has told of them; at most
    /// [`LISTENERS_MAX`](crate::shm::LISTENERS_MAX).
    pub listeners: Vec<Listening>,
}

/// A listener, as `shm::Listener` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub fd: i32,
    pub backlog: i32,
    pub addr_len: u32,
    pub addr: [u8; 32],
}

impl Books {
    /// Connections of which the server holds a descriptor, with its number.
    pub fn open(&self) -> impl Iterator<Item = (u32, &Connection)> {
        let open = self.connections.iter().filter(|it| it.state == conn_state::OPEN);
        open.filter_map(|it| Some((u32::try_from(it.fd).ok()?, it)))
    }
}

/// One that has had a place in the table of connections, as `shm::ConnEntry` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub conn: u32,
    pub state: u32,
    pub fd: i32,
    pub shut: u32,
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Memory of the server's for output that is kept; there is none in it.
    pub keep_addr: u64,
    pub keep_cap: u64,
    pub pid: i32,
    pub eof: u32,
}
