//! Parts of files, and what they contain, told by hashes that are computed once. A file whose last
//! change is some time ago, and that the kernel says has not changed since, is not read again.

use crate::base::report;
use crate::base::state::header;
use crate::base::sys::{self, syscall};
use crate::calls::content;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_wire::hash::{Secrets, StreamHash, hash};

/// Bytes of a part. A range's hash covers whole parts: larger ones cost more when a file is read for
/// the first time, smaller ones more each time.
const PART_BYTES: u64 = 256 << 10;
/// Parts whose hash is remembered: 2 GiB of files.
const KNOWN: usize = 8192;
/// Age of a file's last change, in seconds, from which on another change is certain to have another
/// time: a kernel's times advance in steps, and a clock may be set.
const SETTLED_S: i64 = 2;

/// A hash that is known. Two words that different threads may have written give a tag that fits
/// nothing.
struct Known {
    tag_and_hash: AtomicU64,
    hash: AtomicU64,
}

static TABLE: [Known; KNOWN] =
    [const { Known { tag_and_hash: AtomicU64::new(0), hash: AtomicU64::new(0) } }; KNOWN];

impl Known {
    fn get(tag: u64) -> Option<u64> {
        let known = &TABLE[tag as usize % KNOWN];
        let hash = known.hash.load(Relaxed);
        // An entry that nobody has written has the tag 0, as good as nobody has.
        (tag != 0 && known.tag_and_hash.load(Relaxed) ^ hash == tag).then_some(hash)
    }

    fn put(tag: u64, hash: u64) {
        let known = &TABLE[tag as usize % KNOWN];
        known.hash.store(hash, Relaxed);
        known.tag_and_hash.store(tag ^ hash, Relaxed);
    }
}

/// Bytes of a regular file.
pub struct Range {
    file: i32,
    from: u64,
    len: usize,
    stat: libc::stat,
}

impl Range {
    /// Up to `count` bytes of `file`, from an offset on; `None` if there are none, or it is no
    /// regular file.
    pub fn of(file: i32, from: i64, count: usize) -> Option<Self> {
        let stat = sys::stat(file).filter(sys::is_regular)?;
        let left = u64::try_from(stat.st_size.checked_sub(from)?).ok()?;
        let len = left.min(count as u64) as usize;
        (from >= 0 && len > 0).then_some(Self { file, from: from as u64, len, stat })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Size of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.stat.st_size as u64
    }

    /// Whether the file has not changed for a while.
    pub fn is_settled(&self) -> bool {
        // SAFETY: all-zero is a valid time.
        let mut now: libc::timespec = unsafe { core::mem::zeroed() };
        // SAFETY: memory of ours, of the size that is said.
        let r = unsafe { syscall!(SYS_clock_gettime, libc::CLOCK_REALTIME_COARSE, &raw mut now) };
        r == 0 && now.tv_sec - self.stat.st_ctime >= SETTLED_S
    }

    /// Hash of all parts in which the range lies, of a file that ends after `file_bytes`: a member
    /// may have appended to its own already. `None` if they cannot be read.
    pub fn hash(&self, file_bytes: u64) -> Option<u64> {
        let secrets = Secrets::new(&header().hash_key);
        let mut hash = StreamHash::new(&secrets);
        let last = (self.from + self.len as u64 - 1) / PART_BYTES;
        for part in self.from / PART_BYTES..=last {
            let start = part * PART_BYTES;
            let end = (start + PART_BYTES).min(file_bytes);
            hash.update(&self.part(&secrets, start, end)?.to_le_bytes());
        }
        for number in [self.from, self.len as u64, file_bytes] {
            hash.update(&number.to_le_bytes());
        }
        Some(hash.finish())
    }

    /// Hash of the file's bytes from `start` to `end`.
    fn part(&self, secrets: &Secrets, start: u64, end: u64) -> Option<u64> {
        let tag = self.tag(start, end);
        if let Some(hash) = Known::get(tag) {
            return Some(hash);
        }
        let (mut hash, mut left) = (StreamHash::new(secrets), end.saturating_sub(start));
        content::feed(self.file, start..end, |bytes| {
            hash.update(bytes);
            left -= bytes.len() as u64;
        });
        let hash = (left == 0).then(|| hash.finish())?;
        // What changed while it was read, or may change again unnoticed, is not remembered.
        if self.is_settled()
            && sys::stat(self.file).is_some_and(|it| identity(&it) == identity(&self.stat))
        {
            Known::put(tag, hash);
        }
        Some(hash)
    }

    /// Names these bytes of this version of the file.
    fn tag(&self, start: u64, end: u64) -> u64 {
        let mut words = [0_u8; 7 * 8];
        let all = identity(&self.stat).into_iter().chain([start, end]);
        for (to, word) in words.chunks_exact_mut(8).zip(all) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        hash(&header().hash_key, &words)
    }

    /// Copies `n` bytes, from the range's byte `at` on, to `to`, where there is room for them.
    pub fn fill(&self, at: usize, mut to: *mut u8, mut n: usize) {
        let mut from = self.from + at as u64;
        while n > 0 {
            // SAFETY: the caller has room for `n` bytes at `to`.
            let r = unsafe { syscall!(SYS_pread64, self.file, to, n, from) };
            if r == -(libc::EINTR as isize) {
                continue;
            }
            if r <= 0 {
                report::diverged("a file that is being sent has become shorter on the backup");
            }
            // SAFETY: the kernel has written `r` bytes of `n`.
            to = unsafe { to.add(r as usize) };
            (n, from) = (n - r as usize, from + r as u64);
        }
    }
}

/// The size of the file in the payload of an intent.
pub fn file_bytes_in(payload: &[u8]) -> Option<u64> {
    payload.try_into().map(u64::from_le_bytes).ok()
}

/// What is another one after each change of a file.
fn identity(stat: &libc::stat) -> [u64; 5] {
    let times = [stat.st_ctime as u64, stat.st_ctime_nsec as u64];
    [stat.st_dev, stat.st_ino, stat.st_size as u64, times[0], times[1]]
}

#[cfg(all(test, not(miri)))]
mod tests;
