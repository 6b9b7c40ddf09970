//! Threads: their numbers and the order in which they take locks. One global
//! order serves all objects; what races without a lock is not covered.

use crate::calls::Call;
use crate::init::{Real, real};
use crate::live;
use crate::log::{self, Entry};
use crate::state::{self, Mode, Own, THREADS, mode};
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::Op;

/// Threads that one server may create in its life.
const THREADS_MAX: usize = 4096;

struct Start {
    function: extern "C" fn(*mut u8) -> *mut u8,
    arg: *mut u8,
}

static STARTS: Own<[Option<Start>; THREADS_MAX]> = Own::new([const { None }; THREADS_MAX]);
static CREATED: AtomicU32 = AtomicU32::new(0);

extern "C" fn run(number: *mut u8) -> *mut u8 {
    let tid = number as usize;
    state::set_tid(tid as u16);
    crate::alarm::arm_thread();
    crate::processors::free_thread();
    // SAFETY: written before the thread was created, read once.
    match unsafe { STARTS.get()[tid].take() } {
        Some(start) => (start.function)(start.arg),
        None => core::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn create_from(
    thread: *mut u8,
    attributes: *const u8,
    function: extern "C" fn(*mut u8) -> *mut u8,
    arg: *mut u8,
    caller: usize,
) -> i32 {
    let outside = !matches!(mode(), Mode::Record | Mode::Replay)
        || state::excluded(caller)
        || state::inside();
    if outside {
        return real(Real::PthreadCreate)(
            thread as usize,
            attributes as usize,
            function as usize,
            arg as usize,
        );
    }
    let number = match mode() {
        Mode::Record => {
            let number = CREATED.fetch_add(1, SeqCst) + 1;
            log::append(Entry::new(Op::Thread, Call::pthread_create, -1, number as isize), &[]);
            number
        }
        _ => match log::take(Op::Thread, Call::pthread_create, -1) {
            Some(taken) => {
                let number = taken.ret() as u32;
                CREATED.store(number, SeqCst);
                taken.done();
                number
            }
            None => CREATED.fetch_add(1, SeqCst) + 1,
        },
    };
    if number as usize >= THREADS_MAX {
        return libc::EAGAIN;
    }
    THREADS.fetch_add(1, SeqCst);
    // SAFETY: each number is used once, before its thread exists.
    unsafe { STARTS.get()[number as usize] = Some(Start { function, arg }) };
    real(Real::PthreadCreate)(
        thread as usize,
        attributes as usize,
        run as *const () as usize,
        number as usize,
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_create(
    t: *mut u8,
    a: *const u8,
    f: extern "C" fn(*mut u8) -> *mut u8,
    arg: *mut u8,
) -> i32 {
    core::arch::naked_asm!("mov r8, [rsp]", "jmp {f}", f = sym create_from)
}

/// Locks are ordered only while several threads of the server run.
fn ordered(caller: usize) -> bool {
    THREADS.load(Relaxed) > 1
        && matches!(mode(), Mode::Record | Mode::Replay)
        && !state::excluded(caller)
        && !state::inside()
}

/// A lock that waits: `raw` takes it. On the replica it is taken in the log's
/// order, and the log stands still until it is.
fn acquire(call: Call, caller: usize, raw: impl Fn() -> i32) -> i32 {
    if !ordered(caller) {
        return raw();
    }
    if mode() == Mode::Record {
        let r = raw();
        log::append(Entry::new(Op::Lock, call, 0, r as isize), &[]);
        return r;
    }
    match log::take(Op::Lock, call, 0) {
        Some(taken) => {
            let r = taken.ret() as i32;
            if r == 0 {
                raw();
            }
            taken.done();
            r
        }
        None => {
            live::park();
            raw()
        }
    }
}

/// A lock that may fail at once: on the replica `wait` takes it if the primary
/// got it.
fn try_acquire(
    call: Call,
    caller: usize,
    attempt: impl Fn() -> i32,
    wait: impl Fn() -> i32,
) -> i32 {
    if !ordered(caller) {
        return attempt();
    }
    if mode() == Mode::Record {
        return acquire(call, caller, attempt);
    }
    acquire(call, caller, wait)
}

macro_rules! lock {
    ($name:ident, $inner:ident, $call:ident, $real:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(object: *mut u8) -> i32 {
            core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym $inner)
        }
        unsafe extern "C" fn $inner(object: *mut u8, caller: usize) -> i32 {
            acquire(Call::$call, caller, || real(Real::$real)(object as usize, 0, 0, 0))
        }
    };
}

macro_rules! try_lock {
    ($name:ident, $inner:ident, $call:ident, $real:ident, $wait:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(object: *mut u8) -> i32 {
            core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym $inner)
        }
        unsafe extern "C" fn $inner(object: *mut u8, caller: usize) -> i32 {
            let (attempt, wait) = (Real::$real, Real::$wait);
            try_acquire(Call::$call, caller, || real(attempt)(object as usize, 0, 0, 0), || real(wait)(object as usize, 0, 0, 0))
        }
    };
}

lock!(pthread_mutex_lock, mutex_lock_from, pthread_mutex, MutexLock);
try_lock!(pthread_mutex_trylock, mutex_trylock_from, pthread_mutex, MutexTrylock, MutexLock);
lock!(pthread_rwlock_rdlock, rdlock_from, pthread_rwlock, RwlockRdlock);
lock!(pthread_rwlock_wrlock, wrlock_from, pthread_rwlock, RwlockWrlock);
try_lock!(pthread_rwlock_tryrdlock, tryrdlock_from, pthread_rwlock, RwlockTryrdlock, RwlockRdlock);
try_lock!(pthread_rwlock_trywrlock, trywrlock_from, pthread_rwlock, RwlockTrywrlock, RwlockWrlock);

/// `sem_wait` and its kin report by errno; the log carries it as the result.
fn sem(caller: usize, raw: impl Fn() -> i32, wait: impl Fn() -> i32) -> i32 {
    let coded = |r: i32| if r == 0 { 0 } else { crate::sys::errno() };
    let r = try_acquire(Call::sem, caller, || coded(raw()), || coded(wait()));
    if r == 0 {
        return 0;
    }
    crate::sys::set_errno(r);
    -1
}

macro_rules! semaphore {
    ($name:ident, $inner:ident, $real:ident, $set_caller:literal, ($($arg:ident),*)) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(object: usize, $($arg: usize),*) -> i32 {
            core::arch::naked_asm!($set_caller, "jmp {f}", f = sym $inner)
        }
        unsafe extern "C" fn $inner(object: usize, $($arg: usize,)* caller: usize) -> i32 {
            let args = [$($arg),*];
            let arg = |i: usize| args.get(i).copied().unwrap_or(0);
            let wait = || real(Real::SemWait)(object, 0, 0, 0);
            sem(caller, || real(Real::$real)(object, arg(0), arg(1), 0), wait)
        }
    };
}

semaphore!(sem_wait, sem_wait_from, SemWait, "mov rsi, [rsp]", ());
semaphore!(sem_trywait, sem_trywait_from, SemTrywait, "mov rsi, [rsp]", ());
semaphore!(sem_timedwait, sem_timedwait_from, SemTimedwait, "mov rdx, [rsp]", (time));
semaphore!(sem_clockwait, sem_clockwait_from, SemClockwait, "mov rcx, [rsp]", (clock, time));

/// The replica does not wait on the condition: it lets the mutex go, waits for
/// its turn in the log, and takes the mutex back there.
fn wait_on_condition(mutex: usize, caller: usize, raw: impl Fn() -> i32) -> i32 {
    if !ordered(caller) {
        return raw();
    }
    if mode() == Mode::Record {
        crate::defer::flush();
        log::before_block();
        let r = raw();
        log::append(Entry::new(Op::Lock, Call::pthread_cond, 0, r as isize), &[]);
        return r;
    }
    real(Real::MutexUnlock)(mutex, 0, 0, 0);
    let taken = log::take(Op::Lock, Call::pthread_cond, 0);
    let r = match &taken {
        Some(taken) => taken.ret() as i32,
        None => {
            live::park();
            0
        }
    };
    real(Real::MutexLock)(mutex, 0, 0, 0);
    if let Some(taken) = taken {
        taken.done();
    }
    r
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_cond_wait(condition: usize, mutex: usize) -> i32 {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym cond_wait_from)
}

unsafe extern "C" fn cond_wait_from(condition: usize, mutex: usize, caller: usize) -> i32 {
    wait_on_condition(mutex, caller, || real(Real::CondWait)(condition, mutex, 0, 0))
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_cond_timedwait(
    condition: usize,
    mutex: usize,
    time: usize,
) -> i32 {
    core::arch::naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym cond_timedwait_from)
}

unsafe extern "C" fn cond_timedwait_from(
    condition: usize,
    mutex: usize,
    time: usize,
    caller: usize,
) -> i32 {
    wait_on_condition(mutex, caller, || real(Real::CondTimedwait)(condition, mutex, time, 0))
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: usize,
    mutex: usize,
    clock: usize,
    time: usize,
) -> i32 {
    core::arch::naked_asm!("mov r8, [rsp]", "jmp {f}", f = sym cond_clockwait_from)
}

unsafe extern "C" fn cond_clockwait_from(
    condition: usize,
    mutex: usize,
    clock: usize,
    time: usize,
    caller: usize,
) -> i32 {
    wait_on_condition(mutex, caller, || real(Real::CondClockwait)(condition, mutex, clock, time))
}
