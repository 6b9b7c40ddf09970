//! libc's own functions that the shim's exports hide, as the loader finds them (`RTLD_NEXT`).

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const RTLD_NEXT: usize = usize::MAX;
const RTLD_DEFAULT: usize = 0;

unsafe extern "C" {
    fn dlsym(handle: usize, name: *const c_char) -> usize;
}

macro_rules! reals {
    ($($name:ident = $symbol:literal),+ $(,)?) => {
        /// A libc function that an export of the shim hides.
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
    RwlockUnlock = c"pthread_rwlock_unlock",
    SpinLock = c"pthread_spin_lock",
    SpinUnlock = c"pthread_spin_unlock",
    SpinTrylock = c"pthread_spin_trylock",
    MtxLock = c"mtx_lock",
    MtxUnlock = c"mtx_unlock",
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
    SemPost = c"sem_post",
    Fork = c"fork",
    Sigaction = c"sigaction",
    ClockGettime = c"clock_gettime",
    ClockGetcpuclockid = c"clock_getcpuclockid",
    Sysconf = c"sysconf",
    Getifaddrs = c"getifaddrs",
    Freeifaddrs = c"freeifaddrs",
    Getaddrinfo = c"getaddrinfo",
    Getnameinfo = c"getnameinfo",
    Fopen = c"fopen",
    Fclose = c"fclose",
    Opendir = c"opendir",
    Closedir = c"closedir",
    Readdir = c"readdir",
    Rewinddir = c"rewinddir",
    Telldir = c"telldir",
    Seekdir = c"seekdir",
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
    MallocStatsPrint = c"malloc_stats_print",
    Execve = c"execve",
    Execvpe = c"execvpe",
    PthreadKill = c"pthread_kill",
    TimerSettime = c"timer_settime",
    TimerGettime = c"timer_gettime",
}

static REALS: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

type Function = extern "C" fn(usize, usize, usize, usize) -> i32;

/// Address of the hidden function.
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

/// Address of a function that the program may lack; 0 if it does.
pub fn find(name: &CStr) -> usize {
    // SAFETY: a C string; the loader's own lookup, of all that is loaded.
    unsafe { dlsym(RTLD_DEFAULT, name.as_ptr()) }
}

/// The hidden function, called with word arguments.
pub fn real(which: Real) -> Function {
    // SAFETY: libc's function; integer and pointer arguments travel alike.
    unsafe { core::mem::transmute::<usize, Function>(address(which)) }
}

/// libc's `sigaction`.
pub fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    real(Real::Sigaction)(signal as usize, new as usize, old as usize, 0)
}

/// Like [`real`], for functions of six arguments.
pub fn real6(which: Real, x: [usize; 6]) -> usize {
    type Six = extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: as in `real`; a narrower result leaves the upper half undefined.
    let f = unsafe { core::mem::transmute::<usize, Six>(address(which)) };
    f(x[0], x[1], x[2], x[3], x[4], x[5])
}

/// libc's `sysconf`.
pub fn sysconf(name: i32) -> i64 {
    // SAFETY: sysconf returns a long.
    let f =
        unsafe { core::mem::transmute::<usize, extern "C" fn(i32) -> i64>(address(Real::Sysconf)) };
    f(name)
}

/// libc's `fopen`.
pub fn fopen(path: *const u8, how: *const u8) -> *mut u8 {
    real6(Real::Fopen, [path as usize, how as usize, 0, 0, 0, 0]) as *mut u8
}
