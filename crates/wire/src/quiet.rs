//! What the shim tells about the server's threads. A daemon that has stopped them
//! all learns from it whether they may be copied where they stand, and how each
//! goes on in the copy, whose shim answers calls from the log.
//!
//! A thread may be copied anywhere but between a logged call's effect and its
//! record. One word per thread, written by the thread itself, says where it is
//! in that respect; its registers say the rest. Both are exact when the thread
//! is stopped, and a hint while it runs.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Most threads in the table; with one more, no copy can be made.
pub const THREADS_MAX: usize = 16384;

/// Values of `Thread::state`.
pub mod state {
    /// Runs code of the server or of libc, or code of the shim that has no effect.
    pub const OUTSIDE: u32 = 0;
    /// Is in the middle of a logged call.
    pub const BUSY: u32 = 1;
    /// Has reached a logged call while threads were to stand still, and waits
    /// there.
    pub const PARKED: u32 = 2;
    /// Makes one of the shim's own system calls: in it, just before or just after.
    /// If the call has not happened yet, it starts over.
    pub const SLEEPS: u32 = 3;
    /// Waits in a libc function for other threads, without a time limit. What it
    /// obtains out of turn, it gives back.
    pub const WAITS: u32 = 4;
    /// Waits in a libc function for a point in time or on a condition: it must not
    /// sleep on in a copy.
    pub const TIMED: u32 = 5;
}

/// Values of `ShimState::mode`.
pub mod shim_mode {
    /// Calls go to the kernel.
    pub const PASS: u32 = 0;
    /// Calls are executed, and logged if there is a log.
    pub const RECORD: u32 = 1;
    /// Calls are answered from the log.
    pub const REPLAY: u32 = 2;
}

/// One thread of the server.
#[repr(C, align(64))]
pub struct Thread {
    /// Thread id in the innermost pid namespace; 0 = an unused place.
    pub tid: AtomicI32,
    /// One of [`state`].
    pub state: AtomicU32,
    /// Address of the condition that it waits on in [`state::TIMED`], or 0.
    pub condition: AtomicU64,
}

impl Thread {
    /// An unused place.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            tid: AtomicI32::new(0),
            state: AtomicU32::new(state::OUTSIDE),
            condition: AtomicU64::new(0),
        }
    }
}

/// What the shim shows of itself. It lies in the server's own memory, and so in a
/// copy of it.
#[repr(C)]
pub struct ShimState {
    /// How calls are treated: see [`shim_mode`].
    pub mode: AtomicU32,
    /// Places of `threads` that have ever been used.
    pub threads_len: AtomicU32,
    /// Threads for which there was no place.
    pub threads_lost: AtomicU32,
    /// Address of the `syscall` instruction by which the shim makes its calls.
    pub gate: AtomicU64,
    pub threads: [Thread; THREADS_MAX],
}

impl ShimState {
    /// The state of a shim that does nothing and has no threads.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is a megabyte: for statics only")]
    pub const fn new() -> Self {
        Self {
            mode: AtomicU32::new(shim_mode::PASS),
            threads_len: AtomicU32::new(0),
            threads_lost: AtomicU32::new(0),
            gate: AtomicU64::new(0),
            threads: [const { Thread::new() }; THREADS_MAX],
        }
    }
}

/// What a stopped thread's registers (x86-64) tell about its system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Address of the next instruction.
    pub rip: u64,
    /// Number of the interrupted call; negative outside of calls.
    pub orig_rax: i64,
    /// The call's result.
    pub rax: i64,
    /// The call's first two arguments: a futex and the operation on it.
    pub rdi: u64,
    pub rsi: u64,
}

impl Stopped {
    /// Whether it stands in a system call that has not happened: the kernel would make
    /// it again, or has told the caller to (`EINTR`).
    #[must_use]
    pub fn has_not_happened(&self) -> bool {
        self.orig_rax >= 0 && (self.rax == -EINTR || self.starts_over())
    }

    /// Whether the kernel would make the call again by itself.
    #[must_use]
    pub fn starts_over(&self) -> bool {
        self.orig_rax >= 0 && ERESTART.iter().any(|error| self.rax == -error)
    }
}

/// How a thread goes on in a copy. In the original, every thread goes on
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Its registers stay: a call that the kernel would make again by itself is made
    /// again (with its full time, if it has a limit), any other answers `EINTR`.
    AsIs,
    /// Its system call returns `-EINTR`: the shim starts the server's call over.
    StartOver,
    /// Its futex returns `-ETIMEDOUT`: libc leaves the wait, and the shim starts the
    /// server's call over.
    TimeOut,
}

const SYS_FUTEX: i64 = 202;
/// Call number under which the kernel continues an interrupted wait with a time
/// limit.
const SYS_RESTART_SYSCALL: i64 = 219;
/// Operation by which libc waits for a plain lock: only a wake-up ends the
/// wait.
const FUTEX_WAIT: u64 = 0;
/// Operation by which libc waits where it may give up.
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_FLAGS: u64 = 128 | 256;
const EINTR: i64 = 4;
/// The kernel's internal results of calls that have not happened: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
const ERESTART: [i64; 4] = [512, 513, 514, 516];
/// Size of a `syscall` instruction, in bytes.
const SYSCALL_BYTES: u64 = 2;
/// Size of a `pthread_cond_t`, in bytes.
const CONDITION_BYTES: u64 = 48;

/// How a thread goes on in a copy made now; `None` if it must not be copied here.
/// `state` and `condition` are those of its [`Thread`] ([`state::OUTSIDE`] if the shim
/// does not know it), and `gate` is [`ShimState::gate`]. Exact if the thread was stopped
/// before its state was read.
#[must_use]
pub fn resume(state: u32, condition: u64, gate: u64, at: &Stopped) -> Option<Resume> {
    let is_interrupted = at.has_not_happened();
    let sleeps = is_interrupted && at.rip == gate.wrapping_add(SYSCALL_BYTES);
    match state {
        state::SLEEPS | state::PARKED if sleeps => Some(Resume::StartOver),
        state::OUTSIDE | state::PARKED | state::WAITS => Some(Resume::AsIs),
        state::TIMED
            if is_interrupted && matches!(at.orig_rax, SYS_FUTEX | SYS_RESTART_SYSCALL) =>
        {
            match at.rsi & !FUTEX_FLAGS {
                FUTEX_WAIT_BITSET => Some(Resume::TimeOut),
                // The server's lock that goes with the condition, which libc takes
                // back. A lock inside the condition comes before the wait, too.
                FUTEX_WAIT if at.rdi.wrapping_sub(condition) >= CONDITION_BYTES => {
                    Some(Resume::AsIs)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    const GATE: u64 = 0x7000;
    const SYS_READ: i64 = 0;

    fn at(rip: u64, orig_rax: i64, rax: i64) -> Stopped {
        Stopped { rip, orig_rax, rax, ..Stopped::default() }
    }

    #[test]
    fn who_is_in_the_middle_of_a_call_is_not_copied() {
        let sleeping = at(GATE + 2, SYS_READ, -512);
        for anywhere in [sleeping, at(1, -1, 0)] {
            assert_eq!(resume(state::BUSY, 0, GATE, &anywhere), None);
            for quiet in [state::OUTSIDE, state::WAITS] {
                assert_eq!(resume(quiet, 0, GATE, &anywhere), Some(Resume::AsIs));
            }
        }
        assert_eq!(resume(state::PARKED, 0, GATE, &at(1, -1, 0)), Some(Resume::AsIs));
        assert_eq!(resume(state::PARKED, 0, GATE, &sleeping), Some(Resume::StartOver));
        assert_eq!(resume(6, 0, GATE, &sleeping), None, "no state that we know");
    }

    #[test]
    fn a_sleeper_starts_over_if_its_call_has_not_happened() {
        let of = |at: Stopped| resume(state::SLEEPS, 0, GATE, &at);
        for error in [-4, -512, -513, -514, -516] {
            assert_eq!(of(at(GATE + 2, SYS_READ, error)), Some(Resume::StartOver));
        }
        // It has read something; an error is an answer too.
        assert_eq!(of(at(GATE + 2, SYS_READ, 17)), None);
        assert_eq!(of(at(GATE + 2, SYS_READ, -11)), None);
        assert_eq!(of(at(GATE, -1, -512)), None, "it is about to");
        assert_eq!(of(at(GATE + 3, SYS_READ, -4)), None, "in a handler, or beyond");
    }

    #[test]
    fn a_wait_for_a_moment_ends_where_libc_can_leave_it() {
        let condition = 0x5000;
        let futex = |rax, rdi, rsi| Stopped { rdi, rsi, ..at(1, SYS_FUTEX, rax) };
        let of = |at: Stopped| resume(state::TIMED, condition, GATE, &at);
        assert_eq!(of(futex(-512, condition + 40, 9 | 128 | 256)), Some(Resume::TimeOut));
        assert_eq!(of(futex(-516, 0x9000, 9)), Some(Resume::TimeOut));
        let again = Stopped { orig_rax: SYS_RESTART_SYSCALL, ..futex(-516, 0x9000, 9) };
        assert_eq!(of(again), Some(Resume::TimeOut));
        assert_eq!(of(futex(-512, 0x9000, 128)), Some(Resume::AsIs), "the condition's mutex");
        assert_eq!(of(futex(-512, condition + 32, 128)), None, "libc's lock in it");
        assert_eq!(of(futex(-512, 0x9000, 6)), None, "nothing that we know");
        assert_eq!(of(futex(0, condition + 40, 9)), None, "it was woken");
        assert_eq!(of(at(1, -1, -512)), None, "it is about to sleep");
    }

    #[test]
    fn a_shim_that_has_not_begun_does_nothing_and_has_no_threads() {
        // It is too large for a thread's usual stack.
        let look = || {
            let ShimState { mode, threads_len, threads_lost, gate, threads } = ShimState::new();
            assert_eq!(mode.into_inner(), shim_mode::PASS);
            assert_eq!((threads_len.into_inner(), threads_lost.into_inner()), (0, 0));
            assert_eq!(gate.into_inner(), 0);
            let Thread { tid, state, condition } = &threads[1];
            assert_eq!((tid.load(Relaxed), state.load(Relaxed)), (0, state::OUTSIDE));
            assert_eq!(condition.load(Relaxed), 0);
        };
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(look);
        thread.expect("a thread").join().expect("nothing has begun");
    }
}
