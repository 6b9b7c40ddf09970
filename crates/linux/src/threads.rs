//! What a server's shim says about its threads (`holdfast_wire::quiet`), read from
//! the server's memory, which the server may have changed in any way.

use crate::process;
use crate::shm::SharedMemory;
use holdfast_wire::quiet::{Resume, ShimState, Stopped, THREADS_MAX, Thread, resume, state};
use std::io;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Acquire;

/// State of the server's threads.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    /// See [`ShimState::gate`].
    gate: u64,
    /// Threads that the shim cannot describe: no copy can be made.
    pub lost: u32,
    list: Vec<Standing>,
}

/// State of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Number in the innermost pid namespace.
    pub tid: i32,
    /// One of [`state`].
    pub state: u32,
    condition: u64,
}

impl Threads {
    /// Reads what the shim says; exact for threads that are stopped.
    ///
    /// # Errors
    /// If no shim is there, or the memory cannot be read.
    pub fn read(memory: &SharedMemory, pid: u32) -> io::Result<Self> {
        Self::read_at(memory.header().control.load(Acquire), pid)
    }

    /// Like [`Self::read`], of a process whose [`ShimState`] is at an address.
    ///
    /// # Errors
    /// As above.
    pub fn read_at(at: u64, pid: u32) -> io::Result<Self> {
        if at == 0 {
            return Err(io::Error::other("no shim runs in the server"));
        }
        let mut head = [0; offset_of!(ShimState, threads)];
        fill(pid, at, &mut head)?;
        let number = |place: usize| u32::from_ne_bytes(part(&head, place));
        let len = (number(offset_of!(ShimState, threads_len)) as usize).min(THREADS_MAX);
        let mut bytes = vec![0; len * size_of::<Thread>()];
        fill(pid, at.wrapping_add(offset_of!(ShimState, threads) as u64), &mut bytes)?;
        Ok(Self {
            gate: u64::from_ne_bytes(part(&head, offset_of!(ShimState, gate))),
            lost: number(offset_of!(ShimState, threads_lost)),
            list: bytes
                .chunks_exact(size_of::<Thread>())
                .map(standing)
                .filter(|it| it.tid != 0)
                .collect(),
        })
    }

    /// The threads that the shim knows, in no order.
    #[must_use]
    pub fn list(&self) -> &[Standing] {
        &self.list
    }

    /// Whether all threads looked as if they could be copied: a hint when to
    /// stop them.
    #[must_use]
    pub fn look_quiet(&self) -> bool {
        self.list.iter().all(|it| it.state != state::BUSY)
    }

    /// Whether a thread is in none of the shim's calls.
    #[must_use]
    pub fn is_outside(&self, tid: i32) -> bool {
        self.list.iter().find(|it| it.tid == tid).is_none_or(|it| it.state == state::OUTSIDE)
    }

    /// How the thread `tid`, stopped before this was read, goes on in a copy. `None`: it
    /// must not be copied there.
    #[must_use]
    pub fn resume(&self, tid: i32, at: &Stopped) -> Option<Resume> {
        let of = self.list.iter().find(|it| it.tid == tid).copied().unwrap_or_default();
        resume(of.state, of.condition, self.gate, at)
    }
}

fn standing(thread: &[u8]) -> Standing {
    let long = |place: usize| u64::from_ne_bytes(part(thread, place));
    let short = |place: usize| i32::from_ne_bytes(part(thread, place));
    Standing {
        tid: short(offset_of!(Thread, tid)),
        state: short(offset_of!(Thread, state)) as u32,
        condition: long(offset_of!(Thread, condition)),
    }
}

/// The `N` bytes at a place of a structure.
fn part<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    bytes[place..place + N].try_into().unwrap_or([0; N])
}

fn fill(pid: u32, at: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() || process::read_memory(pid, at, into)? == into.len() {
        return Ok(());
    }
    Err(io::Error::other("what the shim says lies outside of the server's memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Settings;
    use holdfast_wire::shm::mode;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn nonsense_is_read_without_harm() {
        let (hash_key, ports, name) = ([1; 8], vec![80], String::new());
        let mode = mode::SOLO;
        let settings = Settings { ring_bytes: 1 << 20, hash_key, ports, options: 0, mode, name };
        let memory = SharedMemory::create(&settings).expect("memory");
        let noise = vec![0xffu8; size_of::<ShimState>()];
        let me = std::process::id();
        for address in [0, 1, u64::MAX - 7] {
            memory.header().control.store(address, SeqCst);
            assert!(Threads::read(&memory, me).is_err(), "{address:x}");
        }
        memory.header().control.store(noise.as_ptr() as u64, SeqCst);
        let said = Threads::read(&memory, me).expect("a state");
        assert_eq!(said.list().len(), THREADS_MAX);
        assert_eq!(said.resume(-1, &Stopped::default()), None);
    }
}
