//! What a family of processes is besides its memory. Numbers are the kernel's own (flags, masks,
//! clock ids), as `/proc` and ptrace(2) give them; times are in nanoseconds.

use super::memory::{Area, Object};
use crate::group::{CLOCKS, HOLDER_WORDS};
use crate::shm::{HANDED, conn_state};
use serde::{Deserialize, Serialize};

/// A path or a name as bytes: the kernel's names have no encoding.
pub type Name = Vec<u8>;

/// Number of signals that have an action, from 1 on.
pub const SIGNALS: usize = 64;
/// Number of resources that have a limit.
pub const RESOURCES: usize = 16;
/// Number of words in `user_regs_struct`.
pub const REGISTERS: usize = 27;
/// Size of a `siginfo_t`, in bytes.
pub const SIGINFO: usize = 128;

/// Most bytes that one end of a pair of sockets may hold unread.
pub const UNREAD_MAX: u32 = 16 << 20;
/// Most locks on files.
pub const LOCKS_MAX: usize = 1 << 16;

/// Most timers, and the end of their numbers.
pub const TIMERS_MAX: u32 = 1 << 14;

/// Most groups of a process, besides its own.
pub const GROUPS_MAX: usize = 1024;

/// The whole description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The server's processes: its first one first, and each behind its parent. Several are
    /// all processes of their pid namespace.
    pub members: Vec<Member>,
    /// Memory that is shared, or that a descriptor names.
    pub objects: Vec<Object>,
    /// Open files, which duplicated descriptors and processes share.
    pub files: Vec<OpenFile>,
    /// The number that was given last in the pid namespace whose first process is here;
    /// 0: unknown.
    pub last_pid: u32,
    /// For a server under the shim, what the memory shared with its daemon says that
    /// is nowhere else in the image.
    pub books: Option<Books>,
    /// Contents of its state folders; their chunks come before all others.
    pub state: State,
}

/// A process of the image, and what is its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index of its parent among the members; 0 for the first, whose parent is not in the
    /// image.
    pub parent: u32,
    pub process: Process,
    /// Threads; the first is the one that the process began with.
    pub threads: Vec<Thread>,
    /// Areas of memory, in order of address.
    pub areas: Vec<Area>,
    /// Descriptors, in order of number.
    pub descriptors: Vec<Descriptor>,
    /// Entries of its epoll sets.
    pub watches: Vec<Watch>,
    /// Locks on its files.
    pub locks: Vec<Lock>,
}

impl Description {
    /// Whether the first process is number 1 of its pid namespace, with which all others in it
    /// end.
    #[must_use]
    pub fn is_namespace(&self) -> bool {
        self.members.first().is_some_and(|first| first.process.pid == 1)
    }

    /// The first member that cannot be given its session and its group: each has its parent's,
    /// leads its own, or is in a group of its session that an earlier one leads.
    #[must_use]
    pub fn misplaced(&self) -> Option<usize> {
        let (outside, mut earlier) = ((0, 0), Vec::new());
        for (index, member) in self.members.iter().enumerate() {
            let Process { pid, session, group, .. } = member.process;
            let parent = earlier.get(member.parent as usize).map_or(outside, |it: &Placed| it.1);
            let leads = |it: &Placed| *it == (group, (session, group));
            let is_given = match session == pid {
                true => group == pid,
                false if session != parent.0 => false,
                false => group == pid || group == parent.1 || earlier.iter().any(leads),
            };
            if !is_given {
                return Some(index);
            }
            earlier.push((pid, (session, group)));
        }
        None
    }
}

/// A process's number, and its session and group.
type Placed = (u32, (u32, u32));

/// The folders in which the process keeps its state, with everything in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub folders: Vec<Name>,
    /// Entries, in order of folder and path.
    pub entries: Vec<StateEntry>,
    /// Bytes of all files together, without holes.
    pub bytes: u64,
}

/// A file, a folder or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateEntry {
    /// Index of its folder in [`State::folders`].
    pub folder: u32,
    /// Path, relative to the folder.
    pub path: Name,
    /// Permissions, `0o777` at most.
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    /// Time of the last write, in nanoseconds.
    pub written_ns: i64,
    pub kind: StateKind,
    /// Extended attributes, in order of name.
    pub attributes: Vec<Attribute>,
}

/// An extended attribute of a file, folder or link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    pub name: Name,
    pub value: Vec<u8>,
}

/// Most bytes of all extended attributes together, with their names.
pub const ATTRIBUTES_BYTES_MAX: usize = 16 << 20;

impl Attribute {
    /// Whether an attribute of this name may go over with a file: it is data of the server's, or
    /// says who may use the file. One with rights for whoever runs it (`security.capability`) is
    /// none of them.
    #[must_use]
    pub fn may_go_over(name: &[u8]) -> bool {
        const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
        const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
        let is_known = SPACES.iter().any(|space| name.starts_with(space)) || LISTS.contains(&name);
        is_known && name != b"security.capability"
    }

    /// Bytes that count against [`ATTRIBUTES_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    Folder,
    File { size: u64 },
    Link { to: Name },
}

/// Prefix of names that are reserved for files under construction in a state
/// folder.
pub const STATE_RESERVED: &[u8] = b".holdfast-";

/// What all threads share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in its innermost pid namespace.
    pub pid: u32,
    pub executable: Name,
    pub directory: Name,
    pub umask: u32,
    /// Session and group, as their leaders are numbered in the innermost pid namespace; 0: that
    /// of no process of the image.
    pub session: u32,
    pub group: u32,
    pub dumpable: bool,
    pub no_new_privs: bool,
    pub thp_disabled: bool,
    pub personality: u32,
    pub oom_score_adj: i32,
    pub ids: Ids,
    /// Soft and hard limits.
    pub limits: Vec<(u64, u64)>,
    pub actions: Vec<Action>,
    pub layout: Layout,
    pub auxv: Vec<u64>,
    /// The vdso, code that the kernel gave the process; another kernel gives
    /// other code.
    pub vdso: Vec<u8>,
    /// Pending signals that no thread has taken.
    pub pending: Vec<Vec<u8>>,
    /// Timers of timer_create(2), in order of number. None of them runs in a copy: how long one has
    /// still to run only its own process is told.
    pub timers: Vec<Timer>,
}

/// A timer as timer_create(2) makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The kernel's number.
    pub number: u32,
    pub clock: i32,
    pub signal: i32,
    /// What the signal says.
    pub value: u64,
    /// `SIGEV_SIGNAL`, `SIGEV_NONE` or `SIGEV_THREAD`.
    pub notify: u32,
    /// The thread that is signalled, in its innermost pid namespace; 0: the process.
    pub tid: u32,
}

/// Rights of the process: user and group ids are real, effective, saved, of the
/// file system; capabilities inheritable, permitted, effective, bounding, ambient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    pub users: [u32; 4],
    pub groups: [u32; 4],
    pub further_groups: Vec<u32>,
    pub capabilities: [u64; 5],
    pub secure_bits: u32,
}

/// The action of a signal: `struct sigaction`, as the kernel keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// Addresses in the kernel's view of the process (`struct prctl_mm_map`).
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

/// One thread, and how it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub tid: u32,
    pub name: Name,
    /// `user_regs_struct`: no system call is left to be started over by the kernel.
    pub registers: Vec<u64>,
    /// Extended state, as `NT_X86_XSTATE` has it.
    pub xstate: Vec<u8>,
    pub signal_mask: u64,
    pub alt_stack: AltStack,
    /// Head and length of the list.
    pub robust_list: (u64, u64),
    /// Address at which the kernel clears the thread's number when it ends.
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

/// Restartable sequences; an address of 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    pub address: u64,
    pub size: u32,
    pub signature: u32,
}

/// Syscall user dispatch; a mode of 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    pub mode: u64,
    pub selector: u64,
    pub offset: u64,
    pub len: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    pub number: u32,
    pub close_on_exec: bool,
    pub file: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Flags as `F_GETFL` gives them.
    pub flags: u32,
    pub kind: FileKind,
    /// The image's process that gets a SIGIO when something comes (`O_ASYNC`); 0: none does.
    pub signals: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A file, folder or harmless device that has a name.
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
    /// An end of a pipe; both ends name the same `pipe`. Its content is with its
    /// first reading end.
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
    /// An end of a pair of UNIX sockets without names; both ends name the same `pair`. An end
    /// alone had another one, which was closed. Its content is what it has received.
    Pair {
        pair: u32,
        /// As socket(2) takes it; only ends of streams have content.
        kind: i32,
        /// What was shut down: receiving 1, sending 2.
        shut: u8,
        /// Bytes that it has received and not read.
        unread: u32,
        options: Vec<SocketOption>,
    },
    /// A descriptor that the restoring side provides.
    Given,
    /// A userfaultfd; the restored process gets a new one.
    Userfault,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    pub number: u32,
    pub mask: u32,
    pub path: Name,
}

/// A socket; the restoring side decides what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    pub family: i32,
    pub kind: i32,
    pub protocol: i32,
    /// `SO_COOKIE` in the original.
    pub cookie: u64,
    pub is_listening: bool,
    pub is_connected: bool,
    pub options: Vec<SocketOption>,
    /// `sockaddr` of its local end.
    pub local: Vec<u8>,
}

/// An option as setsockopt(2) takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    pub level: i32,
    pub name: i32,
    pub value: Vec<u8>,
}

/// A lock on a file, or on a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// A descriptor by which it can be taken.
    pub number: u32,
    pub owner: LockOwner,
    pub is_exclusive: bool,
    pub start: u64,
    /// The last byte; `None`: there is no last one.
    pub last: Option<u64>,
}

/// Whose a lock is, by the call that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOwner {
    /// The process's: `F_SETLK`.
    Process,
    /// The open file's: `F_OFD_SETLK`.
    File,
    /// The open file's, on all of it: flock(2).
    Whole,
}

/// An entry of an epoll set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Descriptor of the epoll set.
    pub set: u32,
    /// Descriptor that is watched.
    pub target: u32,
    pub events: u32,
    pub data: u64,
}

/// What a shim has in [`crate::shm`] at the moment of the image, where its log
/// begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// Position at which the log begins that a copy follows.
    pub log_from: u64,
    /// Address of the shim's `ShimState`.
    pub control: u64,
    /// `Header::handed`, `userfault`, `logs`, `forks`.
    pub handed: [i32; HANDED],
    pub userfault: i32,
    pub logs: u32,
    pub forks: u32,
    /// `Header::takes_turns`.
    pub takes_turns: bool,
    pub connections: Vec<Connection>,
    /// TCP listeners, as the server has reported them; at most
    /// [`LISTENERS_MAX`](crate::shm::LISTENERS_MAX).
    pub listeners: Vec<Listening>,
    /// Of a server whose processes are all in one log, what they share besides.
    pub family: Option<Family>,
}

/// What [`crate::group::Group`] says of a family's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    pub last_conn: u32,
    pub last_thread: u32,
    pub latest: [i64; CLOCKS],
    pub offsets: [i64; CLOCKS],
    /// In order of place.
    pub processes: Vec<Kin>,
    /// Numbers of running threads, in order, and the place of each one's process, plus one.
    pub owners: Vec<(u16, u32)>,
}

/// A process of a family, as [`crate::group::Process`] has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kin {
    pub place: u32,
    pub pid: i32,
    pub first: u32,
    pub threads: u32,
    pub at_end: u32,
    pub control: u64,
}

/// A listener, as `shm::Listener` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub fd: i32,
    pub backlog: i32,
    pub addr_len: u32,
    pub addr: [u8; 32],
    pub pid: i32,
}

impl Books {
    /// Connections for which the server has a descriptor, with its number.
    pub fn open(&self) -> impl Iterator<Item = (u32, &Connection)> {
        let open = self.connections.iter().filter(|it| it.state == conn_state::OPEN);
        open.filter_map(|it| Some((u32::try_from(it.fd).ok()?, it)))
    }
}

/// A connection that has had a place in the table of connections, as
/// `shm::ConnEntry` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub conn: u32,
    pub state: u32,
    pub fd: i32,
    pub shut: u32,
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Address of the server's memory for kept output; that memory is empty.
    pub keep_addr: u64,
    pub keep_cap: u64,
    pub pid: i32,
    pub eof: u32,
    /// Of a family: which processes hold it, one bit each, by their places.
    pub holders: [u64; HOLDER_WORDS],
}
