//! What the processes of a server share: the order of the log among them, and the
//! numbers that they give out. A server that is one process has it in memory of its
//! own, where an image of the server takes it along; in a family it lies in the memory
//! that the daemon maps, too.

use crate::shm::Line;
use crate::token::Token;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Most processes of a family at a time.
pub const PROCESSES_MAX: usize = 256;
/// Number of thread numbers that a record has room for. The server's first thread has 0.
pub const THREAD_NUMBERS: usize = 1 << 16;
/// Number of futex words of threads that wait for their turn. Threads beyond it share
/// words, and wake each other needlessly.
pub const TURN_WORDS: usize = 64;
/// Number of clock ids whose readings are remembered: all but those of processes and
/// devices.
pub const CLOCKS: usize = 12;
/// Bit of a lock's word: somebody may sleep on it. The other bits are the owner's process.
pub const HAS_SLEEPERS: u32 = 1 << 31;

/// One process of a family. A place is in use from the record of the fork that makes the
/// process up to the record of its end.
#[repr(C)]
pub struct Process {
    /// Its number in the server's own pid namespace; 0 = an unused place.
    pub pid: AtomicI32,
    /// Number of its first thread.
    pub first: AtomicU32,
    /// Number of its threads.
    pub threads: AtomicU32,
    /// Its threads that need nothing more of the log: they have reached its end, or wait
    /// in a call that is not in it.
    pub at_end: AtomicU32,
}

impl Process {
    const fn new() -> Self {
        Self {
            pid: AtomicI32::new(0),
            first: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            at_end: AtomicU32::new(0),
        }
    }
}

/// What the processes share. All zero is the state of a server that has not begun.
#[repr(C, align(4096))]
pub struct Group {
    /// The lock of the log.
    pub lock: Line<AtomicU32>,
    /// Number of the thread that consumed last, which waits for more log, and one; 0 if
    /// that thread makes a call that is not in the log, or if none has consumed yet.
    pub last: Line<AtomicU32>,
    /// Which words of `turns` have sleepers.
    pub sleepers: Line<AtomicU64>,
    /// Position behind the last record that output must wait for.
    pub dirty: Line<AtomicU64>,
    /// End of the log when the daemon was woken last.
    pub kicked_at: Line<AtomicU64>,
    /// Who runs, where threads run one at a time.
    pub token: Token,
    /// Futex word of each thread that waits for its turn.
    pub turns: [AtomicU32; TURN_WORDS],
    /// The latest reading of each clock, in nanoseconds: threads may log theirs in another
    /// order. 0 if there was none.
    pub latest: [AtomicI64; CLOCKS],
    /// What is added to each clock since the last promotion, in nanoseconds.
    pub offsets: [AtomicI64; CLOCKS],
    /// Accept number that was given out last.
    pub last_conn: AtomicU32,
    /// Thread number that was given out last.
    pub last_thread: AtomicU32,
    pub processes: [Process; PROCESSES_MAX],
    /// Which numbers belong to running threads: the place of the thread's process, and
    /// one; 0 if the number is free.
    pub owners: [AtomicU32; THREAD_NUMBERS],
}

impl Group {
    /// The state of a server that has not begun.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is large: for statics only")]
    pub const fn new() -> Self {
        Self {
            lock: Line(AtomicU32::new(0)),
            last: Line(AtomicU32::new(0)),
            sleepers: Line(AtomicU64::new(0)),
            dirty: Line(AtomicU64::new(0)),
            kicked_at: Line(AtomicU64::new(0)),
            token: Token::new(),
            turns: [const { AtomicU32::new(0) }; TURN_WORDS],
            latest: [const { AtomicI64::new(0) }; CLOCKS],
            offsets: [const { AtomicI64::new(0) }; CLOCKS],
            last_conn: AtomicU32::new(0),
            last_thread: AtomicU32::new(0),
            processes: [const { Process::new() }; PROCESSES_MAX],
            owners: [const { AtomicU32::new(0) }; THREAD_NUMBERS],
        }
    }
}
