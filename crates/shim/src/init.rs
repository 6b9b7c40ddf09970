//! Start-up: finding the daemon's memory, hiding the shim's descriptors, and the
//! real functions behind our names.

use crate::log::{self, Entry};
use crate::state::{
    self, CONTROL_FD, DIRTY, EXCLUDED, HAS_EXCLUDED, MEMORY_FD, Mode, Shared, WAKE_FD, header, mode,
};
use crate::sys::{self, die, sys};
use crate::{alarm, calls::Call, live};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};
use holdfast_wire::log::Op;
use holdfast_wire::shm::{self, MAGIC, RING_OFFSET};

/// Set by the daemon: "control,memory,wake" descriptor numbers.
pub const VARIABLE: &[u8] = b"HOLDFAST_SHIM=";
/// Exit code when the memory handed over is not what we understand.
const EXIT_SETUP: i32 = 78;
const RTLD_NEXT: usize = usize::MAX;
const RTLD_DEFAULT: usize = 0;

type ObjectCallback = extern "C" fn(*mut libc::dl_phdr_info, usize, *mut u8) -> i32;

unsafe extern "C" {
    fn dlsym(handle: usize, name: *const c_char) -> usize;
    fn dl_iterate_phdr(f: ObjectCallback, data: *mut u8) -> i32;
}

/// Calls `f` for every loaded object.
pub fn for_each_object<F: FnMut(&libc::dl_phdr_info)>(mut f: F) {
    extern "C" fn call<F: FnMut(&libc::dl_phdr_info)>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut u8,
    ) -> i32 {
        // SAFETY: the loader's description, and the closure passed below.
        unsafe { (*data.cast::<F>())(&*info) };
        0
    }
    // SAFETY: the callback gets a closure of the type it was made for.
    unsafe { dl_iterate_phdr(call::<F>, (&raw mut f).cast()) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *mut *mut u8, *mut *mut u8) = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static STOP: extern "C" fn() = stop;

extern "C" fn start(_: i32, _: *mut *mut u8, environment: *mut *mut u8) {
    let Some(handed) = take_variable(environment) else { return };
    map(handed[1]);
    hide(handed);
    crate::replace::note_preload(environment);
    for_each_object(note_allocator);
    state::OPTIONS.store(header().options, Relaxed);
    crate::processors::note();
    crate::threads::note_main();
    crate::family::note();
    // What another program logged that became this one.
    DIRTY.store(crate::log::tail(), Relaxed);
    header().pid.store(sys!(SYS_getpid) as i32, SeqCst);
    state::set_mode(match header().mode.0.load(Acquire) {
        shm::mode::RECORD => Mode::Record,
        shm::mode::REPLAY | shm::mode::DRAIN => Mode::Replay,
        _ => Mode::Pass,
    });
    alarm::arm(environment);
}

/// The end of the process by its own will is part of the log.
extern "C" fn stop() {
    match mode() {
        Mode::Record => {
            crate::defer::flush();
            log::append(Entry::new(Op::Exit, Call::exit, -1, 0), &[]);
            log::commit_all();
        }
        Mode::Replay => match log::take(Op::Exit, Call::exit, -1) {
            Some(taken) => taken.done(),
            None => live::park(),
        },
        _ => {}
    }
}

/// Reads the three numbers and removes the variable, so that neither the server
/// nor its children see it.
fn take_variable(environment: *mut *mut u8) -> Option<[i32; 3]> {
    let mut at = environment;
    let mut found = None;
    // SAFETY: envp is a null-terminated array of strings.
    unsafe {
        while !(*at).is_null() {
            let text = CStr::from_ptr((*at).cast()).to_bytes();
            if let Some(value) = text.strip_prefix(VARIABLE) {
                found = parse(value);
                let mut shift = at;
                while !(*shift).is_null() {
                    *shift = *shift.add(1);
                    shift = shift.add(1);
                }
                continue;
            }
            at = at.add(1);
        }
    }
    found
}

fn parse(value: &[u8]) -> Option<[i32; 3]> {
    let mut numbers = [0; 3];
    let mut parts = core::str::from_utf8(value).ok()?.split(',');
    for n in &mut numbers {
        *n = parts.next()?.parse().ok()?;
    }
    Some(numbers)
}

/// Maps header, table and ring, and the ring once more behind itself.
fn map(memory: i32) {
    let fail = |why: &str| -> ! {
        sys::say(&[
            "cannot use the daemon's memory: ",
            why,
            "; run shim and daemon of the same release",
        ]);
        die(EXIT_SETUP)
    };
    let total = sys!(SYS_lseek, memory, 0, libc::SEEK_END);
    if total <= RING_OFFSET as isize {
        fail("it is too small");
    }
    let ring_bytes = total as usize - RING_OFFSET;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let base =
        sys!(SYS_mmap, 0, RING_OFFSET + 2 * ring_bytes, libc::PROT_NONE, private, -1isize, 0);
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    let first = sys!(SYS_mmap, base, total, both, fixed, memory, 0);
    let second = sys!(
        SYS_mmap,
        base as usize + total as usize,
        ring_bytes,
        both,
        fixed,
        memory,
        RING_OFFSET
    );
    if base < 0 && base > -4096 || first != base || second != base + total {
        fail("it cannot be mapped");
    }
    let at = base as usize as *mut u8;
    state::set_shared(Shared {
        header: at.cast(),
        // SAFETY: all three lie inside the mapping just made.
        table: unsafe { at.add(shm::HEADER_BYTES).cast() },
        ring: unsafe { at.add(RING_OFFSET) },
        ring_bytes: ring_bytes as u64,
    });
    let h = header();
    if h.magic != MAGIC || h.version != shm::VERSION || h.ring_bytes != ring_bytes as u64 {
        fail("it has another layout");
    }
}

/// Moves our descriptors out of the server's way, if the daemon has not done so.
fn hide([control, memory, wake]: [i32; 3]) {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    let from =
        limit.rlim_cur.min(crate::fds::FD_MAX as u64).saturating_sub(shm::SHIM_FDS as u64) as i32;
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
}

/// Allocator libraries stay outside the replicated domain.
fn note_allocator(info: &libc::dl_phdr_info) {
    if info.dlpi_name.is_null() {
        return;
    }
    // SAFETY: the loader's string.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let is = |what: &[u8]| name.windows(what.len()).any(|w| w == what);
    if !(is(b"jemalloc") || is(b"tcmalloc") || is(b"mimalloc")) {
        return;
    }
    // SAFETY: the loader's own description of a loaded object.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let loaded = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let (mut lo, mut hi) = (usize::MAX, 0);
    for h in loaded {
        let start = info.dlpi_addr as usize + h.p_vaddr as usize;
        lo = lo.min(start);
        hi = hi.max(start + h.p_memsz as usize);
    }
    if let Some(slot) = EXCLUDED.iter().find(|e| e.1.load(Relaxed) == 0) {
        slot.0.store(lo, Relaxed);
        slot.1.store(hi, Relaxed);
        HAS_EXCLUDED.store(true, Relaxed);
    }
}

macro_rules! reals {
    ($($name:ident = $symbol:literal),+ $(,)?) => {
        /// A libc function that one of ours stands before.
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum Real { $($name),+ }
        const NAMES: &[&CStr] = &[$($symbol),+];
    };
}

reals! {
    PthreadCreate = c"pthread_create",
    PthreadJoin = c"pthread_join",
    PthreadTryjoin = c"pthread_tryjoin_np",
    PthreadTimedjoin = c"pthread_timedjoin_np",
    PthreadClockjoin = c"pthread_clockjoin_np",
    PthreadCancel = c"pthread_cancel",
    ThrdCreate = c"thrd_create",
    ThrdJoin = c"thrd_join",
    MutexLock = c"pthread_mutex_lock",
    MutexTrylock = c"pthread_mutex_trylock",
    MutexTimedlock = c"pthread_mutex_timedlock",
    MutexClocklock = c"pthread_mutex_clocklock",
    MutexUnlock = c"pthread_mutex_unlock",
    SpinLock = c"pthread_spin_lock",
    SpinTrylock = c"pthread_spin_trylock",
    MtxLock = c"mtx_lock",
    MtxTrylock = c"mtx_trylock",
    MtxTimedlock = c"mtx_timedlock",
    CndWait = c"cnd_wait",
    CndTimedwait = c"cnd_timedwait",
    BarrierInit = c"pthread_barrier_init",
    BarrierWait = c"pthread_barrier_wait",
    Once = c"pthread_once",
    RwlockRdlock = c"pthread_rwlock_rdlock",
    RwlockWrlock = c"pthread_rwlock_wrlock",
    RwlockTryrdlock = c"pthread_rwlock_tryrdlock",
    RwlockTrywrlock = c"pthread_rwlock_trywrlock",
    RwlockTimedrdlock = c"pthread_rwlock_timedrdlock",
    RwlockTimedwrlock = c"pthread_rwlock_timedwrlock",
    RwlockClockrdlock = c"pthread_rwlock_clockrdlock",
    RwlockClockwrlock = c"pthread_rwlock_clockwrlock",
    CondWait = c"pthread_cond_wait",
    CondTimedwait = c"pthread_cond_timedwait",
    CondClockwait = c"pthread_cond_clockwait",
    SemWait = c"sem_wait",
    SemTrywait = c"sem_trywait",
    SemTimedwait = c"sem_timedwait",
    SemClockwait = c"sem_clockwait",
    Fork = c"fork",
    Sigaction = c"sigaction",
    ClockGettime = c"clock_gettime",
    ClockGetcpuclockid = c"clock_getcpuclockid",
    Sysconf = c"sysconf",
    Getifaddrs = c"getifaddrs",
    Freeifaddrs = c"freeifaddrs",
    Fopen = c"fopen",
    Fclose = c"fclose",
    Opendir = c"opendir",
    Closedir = c"closedir",
    Dlopen = c"dlopen",
    Dlmopen = c"dlmopen",
    System = c"system",
    PosixSpawn = c"posix_spawn",
    PosixSpawnp = c"posix_spawnp",
    Statvfs = c"statvfs",
    Fstatvfs = c"fstatvfs",
    Getloadavg = c"getloadavg",
    Nametoindex = c"if_nametoindex",
    Indextoname = c"if_indextoname",
    Popen = c"popen",
    Clone = c"clone",
    Mallctl = c"mallctl",
    Execve = c"execve",
    Execvpe = c"execvpe",
    PthreadKill = c"pthread_kill",
    TimerSettime = c"timer_settime",
    TimerGettime = c"timer_gettime",
}

static REALS: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

type Function = extern "C" fn(usize, usize, usize, usize) -> i32;

/// Address of the function behind our export.
pub fn address(which: Real) -> usize {
    let slot = &REALS[which as usize];
    match slot.load(Relaxed) {
        0 => {
            // SAFETY: a constant C string; the loader's own lookup.
            let found = unsafe { dlsym(RTLD_NEXT, NAMES[which as usize].as_ptr()) };
            slot.store(found, Relaxed);
            found
        }
        found => found,
    }
}

/// Address of a function that the program may or may not have; 0: it has not.
pub fn find(name: &CStr) -> usize {
    // SAFETY: a C string; the loader's own lookup, of all that is loaded.
    unsafe { dlsym(RTLD_DEFAULT, name.as_ptr()) }
}

/// The function behind our export, called with word arguments.
pub fn real(which: Real) -> Function {
    // SAFETY: libc's function; integer and pointer arguments travel alike.
    unsafe { core::mem::transmute::<usize, Function>(address(which)) }
}

pub fn real_clock_gettime(clock: i32, t: *mut libc::timespec) -> i32 {
    if alarm::clocks_trap() {
        return sys::libc_result(sys!(SYS_clock_gettime, clock, t)) as i32;
    }
    real(Real::ClockGettime)(clock as usize, t as usize, 0, 0)
}

pub fn real_sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    real(Real::Sigaction)(signal as usize, new as usize, old as usize, 0)
}

/// As [`real`], for functions of six arguments.
pub fn real6(which: Real, x: [usize; 6]) -> usize {
    type Six = extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: as in `real`; a narrower result leaves the upper half undefined.
    let f = unsafe { core::mem::transmute::<usize, Six>(address(which)) };
    f(x[0], x[1], x[2], x[3], x[4], x[5])
}

pub fn real_sysconf(name: i32) -> i64 {
    // SAFETY: sysconf returns a long.
    let f =
        unsafe { core::mem::transmute::<usize, extern "C" fn(i32) -> i64>(address(Real::Sysconf)) };
    f(name)
}

pub fn real_fopen(path: *const u8, how: *const u8) -> *mut u8 {
    real6(Real::Fopen, [path as usize, how as usize, 0, 0, 0, 0]) as *mut u8
}
