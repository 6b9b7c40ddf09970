//! Reads a BPF hash map with few system calls (`BPF_MAP_LOOKUP_BATCH`, Linux 5.6): all of it at
//! once, when a takeover waits for it, or part by part.

use aya::Pod;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BPF_MAP_LOOKUP_BATCH` of `enum bpf_cmd`.
const LOOKUP_BATCH: libc::c_long = 24;
/// Most entries that one system call reads.
const BATCH: u32 = 4096;

/// The `batch` member of `union bpf_attr`.
#[repr(C)]
struct Attr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// All entries of the hash map; entries added or removed meanwhile may be
/// missing.
///
/// # Errors
/// As bpf(2). Entries read until then are lost.
pub(super) fn entries<K: Pod, V: Pod>(map: BorrowedFd<'_>) -> io::Result<Vec<(K, V)>> {
    let (mut all, mut place) = (Vec::new(), None);
    loop {
        some(map, &mut place, BATCH, &mut all)?;
        if place.is_none() {
            return Ok(all);
        }
    }
}

/// Appends the next entries, at most `limit`. `place` is the cursor: `None` at the beginning of
/// the map, and `None` again when its end is reached.
///
/// # Errors
/// As bpf(2); the next call begins anew.
pub(super) fn some<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    place: &mut Option<u32>,
    limit: u32,
    into: &mut Vec<(K, V)>,
) -> io::Result<()> {
    let mut keys = vec![MaybeUninit::<K>::uninit(); limit as usize];
    let mut values = vec![MaybeUninit::<V>::uninit(); limit as usize];
    let (from, mut next) = (place.take(), 0u32);
    let mut attr = Attr {
        in_batch: from.as_ref().map_or(0, |from| (&raw const *from) as u64),
        out_batch: (&raw mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: limit,
        map_fd: map.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the attribute's pointers lead to buffers of `limit` keys and values
    // of the map's own sizes, which outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut attr, size_of::<Attr>()) };
    let error = (result < 0).then(io::Error::last_os_error);
    let ended = error.as_ref().is_some_and(|e| e.raw_os_error() == Some(libc::ENOENT));
    if let Some(error) = error.filter(|_| !ended) {
        return Err(error);
    }
    for (key, value) in keys.iter().zip(&values).take(attr.count as usize) {
        // SAFETY: the kernel filled the first `count` of both.
        into.push(unsafe { (key.assume_init(), value.assume_init()) });
    }
    *place = (!ended).then_some(next);
    Ok(())
}
