//! What the processes of a server share: the order of the log among them, and the
//! numbers that they give out. A server that is one process has it in memory of its
//! own, where an image of the server takes it along; in a family it lies in the memory
//! that the daemon maps, too.

use crate::shm::{CONNS_MAX, ConnEntry, Line, conn_state};
use crate::token::Token;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Most processes of a family at a time.
pub const PROCESSES_MAX: usize = 256;
/// Number of words with a bit for each of them.
pub const HOLDER_WORDS: usize = PROCESSES_MAX / 64;
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

/// Owner of a lock: the server's daemon, which is no process of the family. No process has
/// such a number.
pub const DAEMON: u32 = 1 << 30;

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
    /// Address of its [`ShimState`](crate::quiet::ShimState): another program than its parent's
    /// may have that elsewhere.
    pub control: AtomicU64,
}

impl Process {
    const fn new() -> Self {
        Self {
            pid: AtomicI32::new(0),
            first: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            at_end: AtomicU32::new(0),
            control: AtomicU64::new(0),
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
    /// Position that the joining member had come to, and one, when a thread slowed down for it in
    /// vain; 0 if none has.
    pub slowed_at: Line<AtomicU64>,
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
    /// On the replica, for each place: signals that others of the family have sent its process
    /// in the log, one bit each, and that it has neither handled nor died of yet.
    pub sent: [AtomicU32; PROCESSES_MAX],
    /// On the replica, for each place: signals that its process has handled in the log, and
    /// that nobody had sent it yet.
    pub early: [AtomicU32; PROCESSES_MAX],
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
            slowed_at: Line(AtomicU64::new(0)),
            token: Token::new(),
            turns: [const { AtomicU32::new(0) }; TURN_WORDS],
            latest: [const { AtomicI64::new(0) }; CLOCKS],
            offsets: [const { AtomicI64::new(0) }; CLOCKS],
            last_conn: AtomicU32::new(0),
            last_thread: AtomicU32::new(0),
            processes: [const { Process::new() }; PROCESSES_MAX],
            owners: [const { AtomicU32::new(0) }; THREAD_NUMBERS],
            sent: [const { AtomicU32::new(0) }; PROCESSES_MAX],
            early: [const { AtomicU32::new(0) }; PROCESSES_MAX],
        }
    }

    /// The process of a place is no more, or is about to end: its place is free, and its
    /// threads' numbers. `each` gets the connections that nobody holds any more. Whoever
    /// calls has the log.
    pub fn end<'e>(
        &self,
        place: usize,
        entry: impl Fn(u32) -> &'e ConnEntry,
        mut each: impl FnMut(&'e ConnEntry),
    ) {
        let Some(process) = self.processes.get(place) else { return };
        let pid = process.pid.load(Relaxed);
        // It sleeps no more; who shares its word looks by itself.
        let word = process.first.load(Relaxed) as usize % TURN_WORDS;
        self.sleepers.0.fetch_and(!(1 << word), SeqCst);
        for owner in self.owners.iter().filter(|it| it.load(Relaxed) == place as u32 + 1) {
            owner.store(0, Release);
        }
        for e in (0..CONNS_MAX as u32).map(entry) {
            if e.state.load(Relaxed) != conn_state::OPEN || !holds(e, place) {
                continue;
            }
            if e.pid.load(Relaxed) == pid {
                e.pid.store(0, Relaxed);
            }
            if let_go(e, place) {
                each(e);
            }
        }
        process.pid.store(0, SeqCst);
    }
}

/// The word and the bit of a place among the holders of a connection.
#[must_use]
pub const fn holder(place: usize) -> (usize, u64) {
    (place / 64 % HOLDER_WORDS, 1 << (place % 64))
}

/// Whether the process of a place holds a connection.
#[must_use]
pub fn holds(e: &ConnEntry, place: usize) -> bool {
    let (word, bit) = holder(place);
    e.holders[word].load(Relaxed) & bit != 0
}

/// The process of a place holds the connection no more. Returns whether none does.
pub fn let_go(e: &ConnEntry, place: usize) -> bool {
    let (word, bit) = holder(place);
    e.holders[word].fetch_and(!bit, Relaxed);
    e.holders.iter().all(|word| word.load(Relaxed) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group, which is too large for a thread's stack.
    static GROUP: Group = Group::new();

    #[test]
    fn who_ends_holds_nothing_any_more() {
        let entries: Vec<ConnEntry> = (0..CONNS_MAX).map(|_| ConnEntry::default()).collect();
        let hold = |index: usize, state: u32, places: &[usize]| {
            let e = &entries[index];
            e.state.store(state, Relaxed);
            e.pid.store(70, Relaxed);
            for place in places {
                let (word, bit) = holder(*place);
                e.holders[word].fetch_or(bit, Relaxed);
            }
        };
        const PLACE: usize = 65;
        GROUP.processes[PLACE].pid.store(70, Relaxed);
        GROUP.processes[PLACE].first.store(5, Relaxed);
        GROUP.sleepers.0.store(1 << 5 | 1 << 6, Relaxed);
        GROUP.owners[5].store(PLACE as u32 + 1, Relaxed);
        GROUP.owners[6].store(PLACE as u32, Relaxed);
        hold(1, conn_state::OPEN, &[PLACE]);
        hold(2, conn_state::OPEN, &[PLACE, PLACE + 1]);
        hold(3, conn_state::OPEN, &[PLACE + 1]);
        hold(4, conn_state::CLOSED, &[PLACE]);
        let index = |e: &ConnEntry| entries.iter().position(|it| std::ptr::eq(it, e));
        let mut left = Vec::new();
        GROUP.end(PLACE, |index| &entries[index as usize], |e| left.extend(index(e)));
        assert_eq!(left, [1], "nobody else holds it");
        let pids: Vec<i32> = entries[1..5].iter().map(|e| e.pid.load(Relaxed)).collect();
        assert_eq!(pids, [0, 0, 70, 70]);
        assert!(!holds(&entries[2], PLACE) && holds(&entries[2], PLACE + 1));
        assert_eq!(GROUP.processes[PLACE].pid.load(Relaxed), 0);
        assert_eq!(GROUP.sleepers.0.load(Relaxed), 1 << 6);
        assert_eq!([5, 6].map(|it| GROUP.owners[it].load(Relaxed)), [0, PLACE as u32]);
    }

    /// A server's memory begins with zeros, too.
    #[test]
    fn a_group_that_has_not_begun_is_all_zero() {
        // It is too large for a thread's usual stack.
        let look = || {
            let group = Group::new();
            let Process { pid, first, threads, at_end, control } = &group.processes[7];
            let token = &group.token;
            let words = [
                &group.lock.0,
                &group.last.0,
                &group.last_conn,
                &group.last_thread,
                &group.turns[1],
                &group.owners[3],
                &group.sent[4],
                &group.early[5],
                first,
                threads,
                at_end,
                &token.word.0,
                &token.last,
                &token.passes,
            ];
            assert_eq!(words.map(|word| word.load(Relaxed)), [0; 14]);
            let positions = [
                &group.sleepers.0,
                &group.dirty.0,
                &group.kicked_at.0,
                &group.slowed_at.0,
                control,
                &token.task,
            ];
            assert_eq!(positions.map(|word| word.load(Relaxed)), [0; 6]);
            let clocks = [&group.latest[2], &group.offsets[2]];
            assert_eq!((clocks.map(|it| it.load(Relaxed)), pid.load(Relaxed)), ([0; 2], 0));
        };
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(look);
        thread.expect("a thread").join().expect("all is zero");
    }
}
