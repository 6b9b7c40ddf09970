//! The daemon's side of the memory shared with a server's shim: the log ring
//! and the connection table (layout in `holdfast_wire::shm`).
//!
//! The server can write to all of it, and runs with fewer rights than its daemon:
//! any value read here may be wrong, and may change while it is read.

mod direct;
mod table;
#[cfg(test)]
mod tests;

use holdfast_wire::hash::HashKey;
use holdfast_wire::log::{HEADER_LEN, Header as Record, POSITION_MAX, record_len};
use holdfast_wire::shm::{
    GROUP_OFFSET, Group, Header, Listener, MAGIC, OPEN, POOL_BYTES, RING_OFFSET, VERSION, mode,
    option,
};
use std::ffi::CString;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use zerocopy::IntoBytes;

/// Most attempts of the daemon to end a record that the shim extends meanwhile:
/// a record does not have room for nearly as many words.
const TAKES_MAX: u32 = 10_000;

/// Settings with which the memory is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Size of the ring, rounded up to a power of two of at least a megabyte.
    pub ring_bytes: usize,
    pub hash_key: HashKey,
    /// Protected ports, at most 16.
    pub ports: Vec<u16>,
    /// `holdfast_wire::shm::option` bits.
    pub options: u32,
    /// [`mode::RECORD`] or [`mode::REPLAY`].
    pub mode: u32,
    /// Name of the memory in `/proc/PID/maps`, at most 249 bytes: by it
    /// [`crate::process::holders`] finds the server and everything that it
    /// forked.
    pub name: String,
}

/// A mapping of the shared memory; unmapped when dropped.
pub struct SharedMemory {
    fd: OwnedFd,
    base: *mut u8,
    ring_bytes: usize,
}

// SAFETY: what lies behind the pointer is atomics, and ring bytes that change hands by
// them, of which whatever the server writes meanwhile is borne as well.
unsafe impl Send for SharedMemory {}
// SAFETY: as above. Of a daemon's threads one reads the ring or writes to it; another one,
// which takes an image, stores and loads atomics, and while it begins a log it reads and
// writes the ring: until then nobody else does.
unsafe impl Sync for SharedMemory {}

fn fail(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl SharedMemory {
    /// Makes and maps fresh memory.
    ///
    /// # Errors
    /// If the kernel gives no memory.
    pub fn create(settings: &Settings) -> io::Result<Self> {
        let ring_bytes = settings.ring_bytes.max(1 << 20).next_power_of_two();
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let name = CString::new(settings.name.as_str())?;
        // SAFETY: the kernel only reads the name; the result is checked.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(fail("memfd_create"));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let total = RING_OFFSET + ring_bytes;
        let size = total + pool_bytes(settings);
        // SAFETY: a plain system call on our descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size as i64) } != 0 {
            return Err(fail("sizing the log's memory"));
        }
        // The server has the descriptor too: shortening the memory would kill its
        // reader.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(fail("sealing the log's memory"));
        }
        let base = map_twice(fd.as_raw_fd(), total, ring_bytes)?;
        let memory = Self { fd, base, ring_bytes };
        memory.initialize(settings);
        Ok(memory)
    }

    /// Maps memory that an earlier daemon has made with these `settings`, except for the
    /// mode and the key of the hashes: those are what the server has. The server has it, too, and could have put anything in its place: it is the
    /// right one if nobody can shorten it, and its content says so.
    ///
    /// # Errors
    /// `InvalidData` if it is not.
    pub fn adopt(fd: OwnedFd, settings: &Settings) -> io::Result<Self> {
        let other = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let ring_bytes = settings.ring_bytes.max(1 << 20).next_power_of_two();
        let total = RING_OFFSET + ring_bytes;
        // SAFETY: plain numbers.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if seals < 0 || seals & wanted != wanted {
            return Err(other("its memory is not sealed"));
        }
        let file = std::fs::File::from(fd);
        if file.metadata()?.len() != (total + pool_bytes(settings)) as u64 {
            return Err(other("its memory has another size"));
        }
        let fd = OwnedFd::from(file);
        let base = map_twice(fd.as_raw_fd(), total, ring_bytes)?;
        let memory = Self { fd, base, ring_bytes };
        let h = memory.header();
        let mut ports = [0; 16];
        ports.iter_mut().zip(&settings.ports).for_each(|(to, port)| *to = *port);
        let same = h.magic == MAGIC
            && h.version == VERSION
            && h.ring_bytes == ring_bytes as u64
            && h.options == settings.options
            && h.ports == ports;
        if same { Ok(memory) } else { Err(other("its memory is of another version, or service")) }
    }

    fn initialize(&self, settings: &Settings) {
        let header = self.base.cast::<Header>();
        // SAFETY: the mapping is ours alone until the server starts; it is zeroed.
        unsafe {
            (*header).magic = MAGIC;
            (*header).version = VERSION;
            (*header).options = settings.options;
            (*header).ring_bytes = self.ring_bytes as u64;
            (*header).hash_key = settings.hash_key;
            for (to, port) in (*header).ports.iter_mut().zip(&settings.ports) {
                *to = *port;
            }
        }
        if settings.options & option::ONE_AT_A_TIME != 0 {
            self.take_turns();
        }
        self.set_spares_hashes(true);
        self.header().mode.0.store(settings.mode, SeqCst);
    }

    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: mapped and initialised; changing fields are atomics.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// The key of the hashes in the server's log. The server could have written another one, and
    /// would then find other hashes than its replica.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        // SAFETY: inside the mapping; the words may change, and are only copied.
        unsafe { (&raw const self.header().hash_key).read_volatile() }
    }

    /// Whether a shim runs in the server: not in a static program, nor in one
    /// that is just becoming another program.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.header().pid.load(Acquire) != 0
    }

    /// Whether the server's processes are all in one log.
    #[must_use]
    pub fn is_family(&self) -> bool {
        self.header().options & option::FAMILY != 0
    }

    /// How often threads ran beside one that had the token (decision 34).
    #[must_use]
    pub fn overlaps(&self) -> u64 {
        self.header().overlaps.load(Relaxed)
    }

    /// Whether one of the server's threads runs at a time while it has a log (decision 34).
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.header().takes_turns.load(Relaxed) != 0
    }

    /// From its next log on one of the server's threads runs at a time. All of them stand still.
    pub fn take_turns(&self) {
        self.header().takes_turns.store(1, Relaxed);
    }

    /// Position of the producer.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.header().tail.0.load(Acquire) & !OPEN
    }

    /// On the primary, like [`Self::tail`], for reading what follows `seen`: a last
    /// record that the shim could still extend is ended. `None`: no log grows like
    /// this, so the server has written over it.
    #[must_use]
    pub fn take_tail(&self, seen: u64) -> Option<u64> {
        let h = self.header();
        for _ in 0..TAKES_MAX {
            let tail = h.tail.0.load(Acquire);
            let end = tail & !OPEN;
            if end < seen || end - seen > self.ring_bytes as u64 {
                return None;
            }
            if tail & OPEN == 0 {
                return Some(tail);
            }
            let start = h.open_at.0.load(Relaxed);
            if h.tail.0.compare_exchange(tail, end, AcqRel, Acquire).is_ok() {
                self.set_payload_len(start, end);
                return Some(end);
            }
        }
        None
    }

    /// Bytes of the log that are not consumed yet; never more than the ring
    /// holds.
    #[must_use]
    pub fn unconsumed(&self) -> u64 {
        self.tail().saturating_sub(self.head()).min(self.ring_bytes as u64)
    }

    /// Size of the ring, in bytes.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes as u64
    }

    /// Sets the length in the record from `start` to `end`. The positions are the
    /// server's word: nonsensical ones are left for the parser to refuse.
    fn set_payload_len(&self, start: u64, end: u64) {
        let len = end.saturating_sub(start);
        if len < HEADER_LEN as u64 || len > self.ring_bytes as u64 {
            return;
        }
        let at = (start & (self.ring_bytes as u64 - 1)) as usize;
        let payload_len = (len - HEADER_LEN as u64) as u32;
        // SAFETY: a record's header lies inside the double mapping of the ring; the
        // shim has given the record up with the bit in `tail`.
        unsafe {
            let record = self.base.add(RING_OFFSET + at).cast::<Record>();
            (&raw mut (*record).payload_len).write_unaligned(payload_len);
        }
    }

    /// Position of the consumer.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.header().head.0.load(Acquire)
    }

    /// A copy of the log's bytes `[position, position + len)`; the range is cut to what lies
    /// before `tail` and is no longer than the ring. Whoever looks at it checks what it then uses:
    /// the server can write to the ring while and after it is copied.
    #[must_use]
    pub fn copy(&self, position: u64, len: usize) -> Vec<u8> {
        const WORD: usize = size_of::<u64>();
        let len =
            (len as u64).min(self.tail().saturating_sub(position)).min(self.ring_bytes as u64);
        let at = (position & (self.ring_bytes as u64 - 1)) as usize;
        // Records begin at whole words; only nonsense does not.
        let (len, early) = (len as usize, at % WORD);
        let words = (early + len).div_ceil(WORD);
        let mut bytes = vec![0; words * WORD];
        let start = RING_OFFSET + at - early;
        for (number, to) in bytes.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: less than two ring sizes behind the ring's start, and so inside the double
            // mapping, at a multiple of a word; as an atomic it may change meanwhile.
            let word = unsafe { &*self.base.add(start + number * WORD).cast::<AtomicU64>() };
            to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        bytes.drain(..early);
        bytes.truncate(len);
        bytes
    }

    /// On the primary: the backup holds everything up to `position`, and its
    /// space is free. The shim may know of more by itself (see [`Self::begin_direct`]).
    pub fn set_stable(&self, position: u64) {
        let h = self.header();
        h.head.0.store(position, Release);
        let is_new = |stable| (stable == u64::MAX || stable < position).then_some(position);
        let _more = h.stable.0.fetch_update(AcqRel, Acquire, is_new);
        self.tell_shim();
    }

    /// On the primary, while a backup joins: it holds everything up to `position`, and
    /// that space is free. Nobody has waited for it.
    pub fn free_to(&self, position: u64) {
        self.header().head.0.store(position, Release);
        self.tell_shim();
    }

    /// Makes a shim that waits for confirmation, or for room, look again.
    fn tell_shim(&self) {
        let h = self.header();
        h.stable_futex.0.fetch_add(1, SeqCst);
        if h.shim_waiting.0.load(SeqCst) != 0 {
            futex_wake(&h.stable_futex.0);
        }
    }

    /// Announces that the daemon is about to sleep having seen `tail`. Returns
    /// false if more has come meanwhile: then it must not sleep.
    #[must_use]
    pub fn may_sleep(&self, seen_tail: u64) -> bool {
        self.may_sleep_if(|| self.header().tail.0.load(SeqCst) == seen_tail)
    }

    /// Has the shim signal what comes from now on, and then looks whether it has come already.
    fn may_sleep_if(&self, has_seen_all: impl FnOnce() -> bool) -> bool {
        self.header().daemon_waiting.0.store(1, SeqCst);
        fence(SeqCst);
        let may = has_seen_all();
        if !may {
            self.awake();
        }
        may
    }

    /// The daemon runs again: the shim need not signal it.
    pub fn awake(&self) {
        self.header().daemon_waiting.0.store(0, Release);
    }

    /// On the backup: appends a record. Returns false if the ring has no room for
    /// it now.
    #[must_use]
    pub fn append(&self, record: &Record, parts: &[&[u8]]) -> bool {
        let h = self.header();
        let tail = h.tail.0.load(Relaxed);
        let payload: usize = parts.iter().map(|p| p.len()).sum();
        let len = record_len(payload);
        let used = tail.saturating_add(len as u64).saturating_sub(h.head.0.load(Acquire));
        if used > self.ring_bytes as u64 || len > self.ring_bytes {
            return false;
        }
        let at = (tail & (self.ring_bytes as u64 - 1)) as usize;
        // SAFETY: free space of the ring, contiguous by the second mapping.
        let space = unsafe { std::slice::from_raw_parts_mut(self.base.add(RING_OFFSET + at), len) };
        let header = Record { payload_len: payload as u32, ..*record };
        space[..HEADER_LEN].copy_from_slice(header.as_bytes());
        let mut to = HEADER_LEN;
        for part in parts {
            space[to..to + part.len()].copy_from_slice(part);
            to += part.len();
        }
        h.tail.0.store(tail.wrapping_add(len as u64), Release);
        true
    }

    /// What the processes of a family share. All of it is the server's word.
    #[must_use]
    pub fn group(&self) -> &Group {
        // SAFETY: mapped, and all of it is atomics.
        unsafe { &*self.base.add(GROUP_OFFSET).cast::<Group>() }
    }

    /// Wakes a replica that sleeps because it lacks records (or for its mode).
    pub fn wake_shim(&self) {
        let h = self.header();
        h.tail_futex.0.fetch_add(1, SeqCst);
        if h.shim_waiting.0.load(SeqCst) != 0 {
            futex_wake(&h.tail_futex.0);
        }
    }

    /// Sets the mode and wakes everybody who waits for it.
    pub fn set_mode(&self, mode: u32) {
        self.header().mode.0.store(mode, SeqCst);
        self.wake_all();
    }

    fn change_mode(&self, from: u32, to: u32) -> bool {
        self.header().mode.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// On the primary: from here on the server speaks alone, and writes no log, if it
    /// did not before. If protection was broken, none can begin again.
    pub fn go_solo(&self) {
        let is_solo = self.change_mode(mode::RECORD, mode::SOLO)
            || matches!(self.mode(), mode::SOLO | mode::LIVE);
        match is_solo {
            true => self.wake_all(),
            false => self.set_mode(mode::OFF),
        }
    }

    /// Makes each thread stand still at its next logged call, until
    /// [`Self::unpark`].
    pub fn park(&self) {
        self.header().park.0.fetch_or(1, SeqCst);
    }

    /// Threads go on.
    pub fn unpark(&self) {
        let park = &self.header().park.0;
        let seen = park.load(SeqCst);
        if seen & 1 != 0 {
            // Threads may have ended the parking themselves meanwhile.
            let _ended = park.compare_exchange(seen, seen.wrapping_add(1), SeqCst, SeqCst);
        }
        futex_wake(park);
    }

    /// Begins the log of a server that speaks alone, and returns its position. The
    /// threads stand still ([`crate::threads`]), and output waits for nobody until
    /// [`Self::set_stable`]. `None`: no log can begin.
    #[must_use]
    pub fn begin_log(&self) -> Option<u64> {
        let h = self.header();
        // The end of an earlier log, which may have ended because it was full, is not known.
        let seen = h.tail.0.load(SeqCst) & !OPEN;
        // The server writes the tail, and nothing may count beyond the last position.
        let at = self.take_tail(seen).filter(|at| *at < POSITION_MAX && at.is_multiple_of(8))?;
        h.head.0.store(at, SeqCst);
        h.stable.0.store(u64::MAX, SeqCst);
        h.logs.fetch_add(1, SeqCst);
        self.change_mode(mode::SOLO, mode::RECORD).then_some(at)
    }

    /// Whether the replica understands intents without a hash of all bytes (decision 36). So it is
    /// from the beginning.
    pub fn set_spares_hashes(&self, is_understood: bool) {
        self.header().spares_hashes.store(u32::from(is_understood), Relaxed);
    }

    /// End of the log of a server whose threads stand still: a last record that they could extend
    /// is ended. Whoever reads the log may do the same meanwhile.
    #[must_use]
    pub fn end_record(&self) -> u64 {
        let h = self.header();
        let tail = h.tail.0.load(SeqCst);
        let end = tail & !OPEN;
        if tail & OPEN != 0 {
            // Whoever reads the tail without the bit must know the record's length.
            self.set_payload_len(h.open_at.0.load(SeqCst), end);
            let _ended = h.tail.0.compare_exchange(tail, end, SeqCst, SeqCst);
        }
        end
    }

    fn wake_all(&self) {
        let h = self.header();
        futex_wake(&h.mode.0);
        h.stable_futex.0.fetch_add(1, SeqCst);
        futex_wake(&h.stable_futex.0);
        h.tail_futex.0.fetch_add(1, SeqCst);
        futex_wake(&h.tail_futex.0);
    }

    #[must_use]
    pub fn mode(&self) -> u32 {
        self.header().mode.0.load(Acquire)
    }

    /// Ends the log here: the replica runs on to its first live call.
    pub fn end_log(&self) {
        let h = self.header();
        h.end.0.store(h.tail.0.load(Relaxed), SeqCst);
        if self.change_mode(mode::REPLAY, mode::DRAIN) {
            // The replica may have parked by now: no second word overwrites that.
            self.wake_all();
        }
    }

    /// Why the replica diverged or protection ended, in the shim's words.
    #[must_use]
    pub fn reason(&self) -> String {
        let h = self.header();
        let n = (h.reason_len.load(Acquire) as usize).min(h.reason.len());
        // SAFETY: inside the mapping; the bytes may change, and are only copied.
        let reason = unsafe { (&raw const h.reason).read_volatile() };
        match std::str::from_utf8(&reason[..n]) {
            Ok(text) => text.replace(|c: char| c.is_control(), "?"),
            Err(_) => "what its shim says makes no sense".to_owned(),
        }
    }

    /// Listeners of a replica; before the replica is parked, one that is being written
    /// may mix two listeners.
    #[must_use]
    pub fn listeners(&self) -> Vec<Listener> {
        let h = self.header();
        let n = (h.listeners_len.load(Acquire) as usize).min(h.listeners.len());
        // SAFETY: as in `reason`.
        let listeners = unsafe { (&raw const h.listeners).read_volatile() };
        listeners[..n].to_vec()
    }

    /// Sets the listeners of a replica that does not run yet: as many as there
    /// is room for.
    pub fn set_listeners(&self, listeners: impl Iterator<Item = Listener>) {
        let h = self.header();
        let mut count = 0;
        for listener in listeners.take(h.listeners.len()) {
            let at = offset_of!(Header, listeners) + count * size_of::<Listener>();
            // SAFETY: one of the header's places, which nobody else writes yet.
            unsafe { self.base.add(at).cast::<Listener>().write(listener) };
            count += 1;
        }
        h.listeners_len.store(count as u32, Release);
    }

    /// Processes that the server has forked.
    #[must_use]
    pub fn forks(&self) -> u32 {
        self.header().forks.load(Relaxed)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping of exactly this size.
        unsafe { libc::munmap(self.base.cast(), RING_OFFSET + 2 * self.ring_bytes) };
    }
}

/// Size of the pool behind the ring.
fn pool_bytes(settings: &Settings) -> usize {
    if settings.options & option::FAMILY != 0 { POOL_BYTES } else { 0 }
}

/// Maps the whole memory up to the pool, and the ring once more right behind it.
fn map_twice(fd: i32, total: usize, ring_bytes: usize) -> io::Result<*mut u8> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: a fresh reservation, then fixed mappings inside it only.
    unsafe {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base =
            libc::mmap(std::ptr::null_mut(), total + ring_bytes, libc::PROT_NONE, anonymous, -1, 0);
        if base == libc::MAP_FAILED {
            return Err(fail("reserving the log's addresses"));
        }
        let behind = base.cast::<u8>().add(total).cast();
        let first = libc::mmap(base, total, both, fixed, fd, 0);
        let second = libc::mmap(behind, ring_bytes, both, fixed, fd, RING_OFFSET as i64);
        if first == libc::MAP_FAILED || second == libc::MAP_FAILED {
            return Err(fail("mapping the log"));
        }
        Ok(base.cast())
    }
}

pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is valid for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
