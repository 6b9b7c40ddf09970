//! The process's beginning and end: maps the daemon's shared memory, moves the shim's descriptors
//! out of the way, arms the alarm.

use crate::base::commit;
use crate::base::log::{self, Entry};
use crate::base::state::{
    self, CONTROL_FD, EXCLUDED, FAULT_FD, HAS_EXCLUDED, MEMORY_FD, Mode, WAKE_FD, header, mode,
};
use crate::base::sys::{self, die, sys, syscall};
use crate::base::table::Call;
use crate::base::{alarm, defer, fds, handed, kept, objects, park, processes, quiet, ring, robust};
use crate::calls::{births, carry, family, processors, replace, threads};
use crate::promotion;
use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, Ordering::*};
use holdfast_wire::log::Op;
use holdfast_wire::shm::{self, MAGIC, RING_OFFSET};

/// Exit code if the daemon's memory cannot be used.
const EXIT_SETUP: i32 = 78;

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static START: extern "C" fn(i32, *mut *mut u8, *mut *mut u8) = start;
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static STOP: extern "C" fn() = stop;

extern "C" fn start(_: i32, _: *mut *mut u8, environment: *mut *mut u8) {
    let Some(handed) = handed::take(environment) else { return };
    map(handed.descriptors[1]);
    hide(handed.descriptors);
    if let Some(carried) = handed.carried {
        carry::load(carried);
    }
    replace::note_preload(environment);
    objects::for_each_object(note_allocator);
    park::set_lead(promotion::lead);
    robust::note_process();
    processors::note();
    threads::note_main();
    family::note();
    if !state::is_family() {
        // The program before this one has logged the exec.
        state::group().dirty.0.store(ring::tail(), Relaxed);
    }
    if state::place() == 0 {
        header().pid.store(sys!(SYS_getpid) as i32, SeqCst);
    }
    state::set_mode(match header().mode.0.load(Acquire) {
        shm::mode::RECORD | shm::mode::SOLO => Mode::Record,
        shm::mode::REPLAY | shm::mode::DRAIN => Mode::Replay,
        // The family's other processes are at the log's end, and wait for this one or have gone on.
        shm::mode::PARKED | shm::mode::LIVE if handed.carried.is_some() => Mode::Replay,
        _ => Mode::Pass,
    });
    alarm::arm(environment);
    processes::show();
    if state::place() == 0 {
        show();
    }
}

/// Tells the daemon the addresses that it needs to copy the server.
fn show() {
    header().userfault.store(FAULT_FD.load(Relaxed).max(0), Relaxed);
    for (shown, handed) in header().handed.iter().zip([&CONTROL_FD, &MEMORY_FD, &WAKE_FD]) {
        shown.store(handed.load(Relaxed), Relaxed);
    }
    header().control.store(core::ptr::from_ref(state::shim()) as u64, Release);
}

/// Logs the end of the process by its own will.
extern "C" fn stop() {
    if births::leave() {
        return;
    }
    quiet::call(|_| {
        match mode() {
            Mode::Record => {
                defer::flush();
                log::append(Entry::new(Op::Exit, Call::exit, -1, 0), &[]);
                commit::commit_all();
            }
            Mode::Replay => match log::take(Op::Exit, Call::exit, -1) {
                Some(taken) => taken.done(),
                None => park::park(),
            },
            Mode::Pass => {}
        }
        Some(())
    });
}

/// What decides the size of the mapping, from the header that the daemon has filled.
fn shape(memory: i32) -> Option<(usize, u32)> {
    let mut head = [0u8; 64];
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_pread64, memory, head.as_mut_ptr(), head.len(), 0) };
    let word = |at: usize| head[at..].first_chunk().copied().map(u32::from_ne_bytes);
    let long = |at: usize| head[at..].first_chunk().copied().map(u64::from_ne_bytes);
    let is_ours = r == head.len() as isize
        && long(offset_of!(shm::Header, magic)) == Some(MAGIC)
        && word(offset_of!(shm::Header, version)) == Some(shm::VERSION);
    let ring_bytes = long(offset_of!(shm::Header, ring_bytes))? as usize;
    is_ours.then_some((ring_bytes, word(offset_of!(shm::Header, options))?))
}

/// Maps header, table, group and ring, the ring a second time right behind itself, and for a
/// family the pool.
pub fn map(memory: i32) {
    let fail = |why: &str| -> ! {
        sys::say(&[
            "cannot use the daemon's memory: ",
            why,
            "; run shim and daemon of the same release",
        ]);
        die(EXIT_SETUP)
    };
    let Some((ring_bytes, options)) = shape(memory) else { fail("it has another layout") };
    let total = RING_OFFSET + ring_bytes;
    state::OPTIONS.store(options, Relaxed);
    let pool_bytes = if state::is_family() { shm::POOL_BYTES } else { 0 };
    if sys!(SYS_lseek, memory, 0, libc::SEEK_END) != (total + pool_bytes) as isize {
        fail("it has another size");
    }
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let base =
        // SAFETY: a fresh mapping, wherever the kernel likes.
        unsafe { syscall!(SYS_mmap, 0, RING_OFFSET + 2 * ring_bytes, libc::PROT_NONE, private, -1isize, 0) };
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: over what was just reserved, if that was possible.
    let first = unsafe { syscall!(SYS_mmap, base, total, both, fixed, memory, 0) };
    // SAFETY: as above.
    let second = unsafe {
        syscall!(SYS_mmap, base as usize + total, ring_bytes, both, fixed, memory, RING_OFFSET)
    };
    if base < 0 && base > -4096 || first != base || second != base + total as isize {
        fail("it cannot be mapped");
    }
    // SAFETY: just mapped so, and large enough for all three.
    unsafe { state::set_shared(base as usize as *mut u8, ring_bytes as u64) };
    if pool_bytes > 0 && !kept::map_pool(memory, total) {
        fail("the pool cannot be mapped");
    }
}

/// Moves the shim's descriptors out of the server's way, unless the daemon has done so.
fn hide([control, memory, wake]: [i32; 3]) {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    let from = limit.rlim_cur.min(fds::FD_MAX as u64).saturating_sub(shm::SHIM_FDS as u64) as i32;
    for (fd, place) in [(control, &CONTROL_FD), (memory, &MEMORY_FD), (wake, &WAKE_FD)] {
        if fd >= from {
            sys!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
            place.store(fd, Relaxed);
            continue;
        }
        let high = sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from);
        sys!(SYS_close, fd);
        AtomicI32::store(place, high as i32, Relaxed);
    }
    FAULT_FD.store(userfault(from), Relaxed);
}

/// A userfaultfd of this process, at a number from `from` on, by which the daemon tracks changes
/// of its memory. One for user-mode faults only needs no privilege; -1 if the kernel gives none.
fn userfault(from: i32) -> i32 {
    const USER_MODE_ONLY: i32 = 1;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    let fd = sys!(SYS_userfaultfd, flags);
    if fd < 0 {
        return -1;
    }
    let high = sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from);
    sys!(SYS_close, fd);
    high.max(-1) as i32
}

/// Notes the address range of an allocator library, whose calls are not logged.
fn note_allocator(info: &libc::dl_phdr_info) {
    let is = |what: &[u8]| objects::is_named(info, what);
    if !(is(b"jemalloc") || is(b"tcmalloc") || is(b"mimalloc")) {
        return;
    }
    let (lo, hi) = objects::range(info, 0);
    if let Some(slot) = EXCLUDED.iter().find(|e| e.1.load(Relaxed) == 0) {
        slot.0.store(lo, Relaxed);
        slot.1.store(hi, Relaxed);
        HAS_EXCLUDED.store(true, Relaxed);
    }
}
