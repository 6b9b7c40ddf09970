//! The order in which threads take locks: one global order for all locks. A lock's record says
//! where in the program it was taken, so that a replica that takes another lock is noticed at
//! once.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, Mode, mode, threaded};
use crate::base::table::Call;
use crate::base::{defer, park, quiet, report, ring, sys, token};
use crate::calls::clocks;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::Op;

/// Mask of the return address that identifies a place in the program: only the offset in its page,
/// because libraries may be loaded at other addresses on the other member.
const PLACE_MASK: usize = 0xfff;

fn place(caller: usize) -> i32 {
    (caller & PLACE_MASK) as i32
}

/// Whether locks are ordered: as soon as the server has several threads.
fn ordered(caller: usize) -> bool {
    threaded()
        && matches!(mode(), Mode::Record | Mode::Replay)
        && !state::excluded(caller)
        && !state::inside()
}

fn log_lock(call: Call, caller: usize, r: i32) {
    log::append(Entry::new(Op::Lock, call, place(caller), r as isize), &[]);
}

/// Whether a call that answers `r` has taken its lock: true for a robust mutex
/// whose last owner has died.
fn is_taken(r: i32) -> bool {
    r == 0 || r == libc::EOWNERDEAD
}

/// How long a thread may wait for a lock.
#[derive(Clone, Copy)]
enum Wait {
    /// Not at all.
    Never,
    /// Until it has the lock.
    Open,
    /// Until a point in time.
    Timed,
}

/// Takes a lock that may be refused. On the replica it is taken in the log's order by `wait`, if
/// the primary got it; meanwhile the log does not advance. If the server was copied after the
/// primary's `attempt` got the lock, the copy gives it back, because in the log another thread may
/// take it first. `first` is tried before, and may make the attempt unnecessary.
fn acquire(
    kind: Wait,
    (call, caller): (Call, usize),
    first: impl Fn() -> Option<i32>,
    attempt: impl Fn() -> i32,
    wait: impl Fn() -> i32,
    give_back: impl Fn() -> i32,
) -> i32 {
    if !ordered(caller) {
        return first().unwrap_or_else(attempt);
    }
    quiet::call(|this| {
        if mode() != Mode::Replay {
            let r = first().unwrap_or_else(|| match kind {
                Wait::Never => this.wait(&attempt),
                Wait::Open => token::apart(|| this.wait(&attempt)),
                Wait::Timed => token::apart(|| this.wait_timed(0, &attempt)),
            });
            if !this.is_over() {
                log_lock(call, caller, r);
                return Some(r);
            }
            if is_taken(r) {
                give_back();
            }
            return None;
        }
        let Some(taken) = log::take(Op::Lock, call, place(caller)) else {
            return park::start_over();
        };
        let r = taken.ret() as i32;
        if is_taken(r) {
            wait();
        }
        taken.done();
        Some(r)
    })
}

/// Takes a lock, and waits for it. Deferred writes are made before it waits.
fn acquire_waiting(
    named: (Call, usize),
    attempt: impl Fn() -> i32,
    wait: impl Fn() -> i32,
    give_back: impl Fn() -> i32,
) -> i32 {
    let first = || {
        // A thread that gets the lock at once keeps the token.
        if !defer::is_waiting() && !token::is_chosen() {
            return None;
        }
        match attempt() {
            libc::EBUSY => {
                defer::flush();
                None
            }
            r => Some(r),
        }
    };
    acquire(Wait::Open, named, first, &wait, &wait, give_back)
}

/// Waits for a thread's end until a point in time. A join cannot be undone, so in a copy the wait
/// times out, and is repeated in the log's order.
pub fn acquire_end(call: Call, attempt: impl Fn() -> i32, wait: impl Fn() -> i32) -> i32 {
    acquire(Wait::Timed, (call, 0), || None, attempt, wait, || 0)
}

/// Functions that take a lock: those that wait, that only try, that give up at a point in time of
/// the real-time clock, and at one of a clock in their arguments. Each row: the export, its inner
/// function, the call, libc's function, the one that tries (for those that try: the one that
/// waits), and the one that unlocks.
macro_rules! locks {
    (wait { $($waits:ident $w_from:ident $w_call:ident $w_real:ident $w_try:ident $w_undo:ident;)+ }
     try { $($tries:ident $t_from:ident $t_call:ident $t_real:ident $t_wait:ident $t_undo:ident;)+ }
     until { $($untils:ident $u_from:ident $u_call:ident $u_real:ident $u_wait:ident $u_undo:ident;)+ }
     until_clock { $($clocks:ident $c_from:ident $c_call:ident $c_real:ident $c_wait:ident $c_undo:ident;)+ }) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $waits(object: usize) -> i32 {
                core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym $w_from)
            }
            unsafe extern "C" fn $w_from(object: usize, caller: usize) -> i32 {
                acquire_waiting(
                    (Call::$w_call, caller),
                    || real(Real::$w_try)(object, 0, 0, 0),
                    || real(Real::$w_real)(object, 0, 0, 0),
                    || real(Real::$w_undo)(object, 0, 0, 0),
                )
            }
        )+
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $tries(object: usize) -> i32 {
                core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym $t_from)
            }
            unsafe extern "C" fn $t_from(object: usize, caller: usize) -> i32 {
                acquire(
                    Wait::Never,
                    (Call::$t_call, caller),
                    || None,
                    || real(Real::$t_real)(object, 0, 0, 0),
                    || real(Real::$t_wait)(object, 0, 0, 0),
                    || real(Real::$t_undo)(object, 0, 0, 0),
                )
            }
        )+
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $untils(object: usize, time: usize) -> i32 {
                core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym $u_from)
            }
            unsafe extern "C" fn $u_from(object: usize, time: usize, caller: usize) -> i32 {
                defer::flush();
                acquire(
                    Wait::Timed,
                    (Call::$u_call, caller),
                    || None,
                    || {
                        let end = clocks::until(Some(libc::CLOCK_REALTIME), time);
                        real(Real::$u_real)(object, clocks::address(&end), 0, 0)
                    },
                    || real(Real::$u_wait)(object, 0, 0, 0),
                    || real(Real::$u_undo)(object, 0, 0, 0),
                )
            }
        )+
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $clocks(object: usize, clock: usize, time: usize) -> i32 {
                core::arch::naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym $c_from)
            }
            unsafe extern "C" fn $c_from(
                object: usize,
                clock: usize,
                time: usize,
                caller: usize,
            ) -> i32 {
                defer::flush();
                acquire(
                    Wait::Timed,
                    (Call::$c_call, caller),
                    || None,
                    || {
                        let end = clocks::until(Some(clock as i32), time);
                        real(Real::$c_real)(object, clock, clocks::address(&end), 0)
                    },
                    || real(Real::$c_wait)(object, 0, 0, 0),
                    || real(Real::$c_undo)(object, 0, 0, 0),
                )
            }
        )+
    };
}

locks! {
    wait {
        pthread_mutex_lock mutex_lock pthread_mutex MutexLock MutexTrylock MutexUnlock;
        pthread_rwlock_rdlock rwlock_rdlock pthread_rwlock RwlockRdlock RwlockTryrdlock RwlockUnlock;
        pthread_rwlock_wrlock rwlock_wrlock pthread_rwlock RwlockWrlock RwlockTrywrlock RwlockUnlock;
        pthread_spin_lock spin_lock pthread_spin SpinLock SpinTrylock SpinUnlock;
    }
    try {
        pthread_mutex_trylock mutex_trylock pthread_mutex MutexTrylock MutexLock MutexUnlock;
        pthread_rwlock_tryrdlock rwlock_tryrdlock pthread_rwlock RwlockTryrdlock RwlockRdlock RwlockUnlock;
        pthread_rwlock_trywrlock rwlock_trywrlock pthread_rwlock RwlockTrywrlock RwlockWrlock RwlockUnlock;
        pthread_spin_trylock spin_trylock pthread_spin SpinTrylock SpinLock SpinUnlock;
        mtx_trylock c11_trylock mtx MtxTrylock MtxLock MtxUnlock;
    }
    until {
        pthread_mutex_timedlock mutex_timedlock pthread_mutex MutexTimedlock MutexLock MutexUnlock;
        pthread_rwlock_timedrdlock rwlock_timedrdlock pthread_rwlock RwlockTimedrdlock RwlockRdlock RwlockUnlock;
        pthread_rwlock_timedwrlock rwlock_timedwrlock pthread_rwlock RwlockTimedwrlock RwlockWrlock RwlockUnlock;
        mtx_timedlock c11_timedlock mtx MtxTimedlock MtxLock MtxUnlock;
    }
    until_clock {
        pthread_mutex_clocklock mutex_clocklock pthread_mutex MutexClocklock MutexLock MutexUnlock;
        pthread_rwlock_clockrdlock rwlock_clockrdlock pthread_rwlock RwlockClockrdlock RwlockRdlock RwlockUnlock;
        pthread_rwlock_clockwrlock rwlock_clockwrlock pthread_rwlock RwlockClockwrlock RwlockWrlock RwlockUnlock;
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn mtx_lock(mutex: usize) -> i32 {
    core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym c11_lock)
}

unsafe extern "C" fn c11_lock(mutex: usize, caller: usize) -> i32 {
    // glibc's mtx_t is a pthread_mutex_t, whose attempt says EBUSY.
    let attempt = || real(Real::MutexTrylock)(mutex, 0, 0, 0);
    let wait = || real(Real::MtxLock)(mutex, 0, 0, 0);
    acquire_waiting((Call::mtx, caller), attempt, wait, || real(Real::MtxUnlock)(mutex, 0, 0, 0))
}

/// `sem_wait` and its like, which report errors by errno; in the log errno is the result.
fn sem(object: usize, caller: usize, kind: Wait, attempt: impl Fn() -> i32) -> i32 {
    defer::flush();
    let coded = |r: i32| if r == 0 { 0 } else { sys::errno() };
    let first = || {
        let is_free = token::is_chosen() && real(Real::SemTrywait)(object, 0, 0, 0) == 0;
        is_free.then_some(0)
    };
    let r = acquire(
        kind,
        (Call::sem, caller),
        first,
        || coded(attempt()),
        || coded(real(Real::SemWait)(object, 0, 0, 0)),
        || real(Real::SemPost)(object, 0, 0, 0),
    );
    if r == 0 {
        return 0;
    }
    sys::set_errno(r);
    -1
}

unsafe extern "C" fn sem_waits(object: usize, caller: usize) -> i32 {
    sem(object, caller, Wait::Open, || real(Real::SemWait)(object, 0, 0, 0))
}

unsafe extern "C" fn sem_tries(object: usize, caller: usize) -> i32 {
    sem(object, caller, Wait::Never, || real(Real::SemTrywait)(object, 0, 0, 0))
}

unsafe extern "C" fn sem_waits_until(object: usize, time: usize, caller: usize) -> i32 {
    sem(object, caller, Wait::Timed, || {
        let end = clocks::until(Some(libc::CLOCK_REALTIME), time);
        real(Real::SemTimedwait)(object, clocks::address(&end), 0, 0)
    })
}

unsafe extern "C" fn sem_waits_by(object: usize, clock: usize, time: usize, caller: usize) -> i32 {
    sem(object, caller, Wait::Timed, || {
        let end = clocks::until(Some(clock as i32), time);
        real(Real::SemClockwait)(object, clock, clocks::address(&end), 0)
    })
}

/// Exports that pass on their return address as one more argument.
macro_rules! with_caller {
    ($($name:ident ($($arg:ident),*) $to:ident $set_caller:literal;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: usize),*) -> i32 {
            core::arch::naked_asm!($set_caller, "jmp {f}", f = sym $to)
        }
    )+ };
}

with_caller! {
    sem_wait(object) sem_waits "mov rsi, [rsp]";
    sem_trywait(object) sem_tries "mov rsi, [rsp]";
    sem_timedwait(object, time) sem_waits_until "mov rdx, [rsp]";
    sem_clockwait(object, clock, time) sem_waits_by "mov rcx, [rsp]";
    pthread_cond_wait(condition, mutex) cond_wait "mov rdx, [rsp]";
    pthread_cond_timedwait(condition, mutex, time) cond_timedwait "mov rcx, [rsp]";
    pthread_cond_clockwait(condition, mutex, clock, time) cond_clockwait "mov r8, [rsp]";
    cnd_wait(condition, mutex) c11_cond_wait "mov rdx, [rsp]";
    cnd_timedwait(condition, mutex, time) c11_cond_timedwait "mov rcx, [rsp]";
}

/// Waits on a condition variable. The replica does not wait on it: it releases the mutex, waits
/// for its turn in the log, and takes the mutex back there.
fn wait_on_condition(
    call: Call,
    (condition, mutex): (usize, usize),
    caller: usize,
    raw: impl Fn() -> i32,
) -> i32 {
    if !ordered(caller) {
        return raw();
    }
    let lock = || real(Real::MutexLock)(mutex, 0, 0, 0);
    let unlock = || real(Real::MutexUnlock)(mutex, 0, 0, 0);
    let result = quiet::call(|this| {
        if mode() != Mode::Replay {
            defer::flush();
            ring::before_block();
            let r = token::apart(|| this.wait_timed(condition, &raw));
            if this.is_over() {
                return None;
            }
            log_lock(call, caller, r);
            return Some(Some(r));
        }
        unlock();
        let Some(taken) = log::take(Op::Lock, call, place(caller)) else {
            park::park();
            return Some(None);
        };
        let r = taken.ret() as i32;
        lock();
        taken.done();
        Some(Some(r))
    });
    // Once the log has ended, a spurious wake-up is a legal result. Another thread may hold the
    // mutex and stand still, so this one takes it like any lock.
    result.unwrap_or_else(|| acquire(Wait::Open, (call, caller), || None, lock, lock, unlock))
}

unsafe extern "C" fn cond_wait(condition: usize, mutex: usize, caller: usize) -> i32 {
    wait_on_condition(Call::pthread_cond, (condition, mutex), caller, || {
        real(Real::CondWait)(condition, mutex, 0, 0)
    })
}

/// The clock was given when the condition was made.
unsafe extern "C" fn cond_timedwait(
    condition: usize,
    mutex: usize,
    time: usize,
    caller: usize,
) -> i32 {
    wait_on_condition(Call::pthread_cond, (condition, mutex), caller, || {
        let end = clocks::until(None, time);
        real(Real::CondTimedwait)(condition, mutex, clocks::address(&end), 0)
    })
}

unsafe extern "C" fn cond_clockwait(
    condition: usize,
    mutex: usize,
    clock: usize,
    time: usize,
    caller: usize,
) -> i32 {
    wait_on_condition(Call::pthread_cond, (condition, mutex), caller, || {
        let end = clocks::until(Some(clock as i32), time);
        real(Real::CondClockwait)(condition, mutex, clock, clocks::address(&end))
    })
}

unsafe extern "C" fn c11_cond_wait(condition: usize, mutex: usize, caller: usize) -> i32 {
    wait_on_condition(Call::mtx, (condition, mutex), caller, || {
        real(Real::CndWait)(condition, mutex, 0, 0)
    })
}

unsafe extern "C" fn c11_cond_timedwait(
    condition: usize,
    mutex: usize,
    time: usize,
    caller: usize,
) -> i32 {
    wait_on_condition(Call::mtx, (condition, mutex), caller, || {
        let end = clocks::until(Some(libc::CLOCK_REALTIME), time);
        real(Real::CndTimedwait)(condition, mutex, clocks::address(&end), 0)
    })
}

/// What the shim keeps in a `pthread_barrier_t`, whose 32 bytes glibc does not all use: it uses
/// the first five words.
#[repr(C)]
struct Barrier {
    glibc: [u32; 6],
    threads: u32,
    arrived: AtomicU32,
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_barrier_init(
    barrier: *mut u8,
    attributes: usize,
    threads: u32,
) -> i32 {
    let r = real(Real::BarrierInit)(barrier as usize, attributes, threads as usize, 0);
    if r == 0 && mode() != Mode::Pass {
        // SAFETY: the caller's barrier, of at least this size and alignment.
        let barrier = unsafe { &mut *barrier.cast::<Barrier>() };
        barrier.threads = threads;
        barrier.arrived = AtomicU32::new(0);
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_barrier_wait(barrier: *mut u8) -> i32 {
    core::arch::naked_asm!("mov rsi, [rsp]", "jmp {f}", f = sym barrier_wait)
}

/// `pthread_barrier_wait`: `PTHREAD_BARRIER_SERIAL_THREAD` is returned to the thread that arrives
/// last in the log's order, whichever the kernel saw last.
unsafe extern "C" fn barrier_wait(barrier: *mut u8, caller: usize) -> i32 {
    let raw = || real(Real::BarrierWait)(barrier as usize, 0, 0, 0);
    if mode() == Mode::Pass || !threaded() {
        return raw();
    }
    // SAFETY: a barrier that was initialised above.
    let shared = unsafe { &*barrier.cast::<Barrier>() };
    let number = arrive(shared, caller);
    let r = park::outside(raw);
    match r {
        0 | libc::PTHREAD_BARRIER_SERIAL_THREAD if number.is_multiple_of(shared.threads) => {
            libc::PTHREAD_BARRIER_SERIAL_THREAD
        }
        libc::PTHREAD_BARRIER_SERIAL_THREAD => 0,
        r => r,
    }
}

/// Counts a thread at a barrier, from 1.
fn arrive(barrier: &Barrier, caller: usize) -> u32 {
    let count = || barrier.arrived.fetch_add(1, SeqCst) + 1;
    quiet::call(|_| match mode() {
        Mode::Pass => Some(count()),
        Mode::Record => {
            let held = log::hold();
            let entry = Entry::new(Op::Lock, Call::pthread_barrier, place(caller), 0);
            log::append_held(&held, entry, &[]);
            Some(count())
        }
        Mode::Replay => match log::take(Op::Lock, Call::pthread_barrier, place(caller)) {
            Some(taken) => {
                let number = count();
                taken.done();
                Some(number)
            }
            None => park::start_over(),
        },
    })
}

std::thread_local! {
    /// The routine that the calling thread runs if `pthread_once` chooses it.
    static ROUTINE: Cell<Option<Routine>> = const { Cell::new(None) };
}

struct Routine {
    function: extern "C" fn(),
    caller: usize,
    /// The replica's record, held until the choice has been made.
    taken: Option<log::Taken>,
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_once(control: usize, function: extern "C" fn()) -> i32 {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym once)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn call_once(control: usize, function: extern "C" fn()) {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym once)
}

/// On the replica the same thread runs the routine as on the primary.
unsafe extern "C" fn once(control: usize, function: extern "C" fn(), caller: usize) -> i32 {
    let raw = |function: extern "C" fn()| real(Real::Once)(control, function as usize, 0, 0);
    if !ordered(caller) {
        return raw(function);
    }
    // The server is not copied while the routine runs: its calls are part of this call.
    quiet::call(|_| {
        if mode() != Mode::Replay {
            ROUTINE.set(Some(Routine { function, caller, taken: None }));
            // This runs the server's code, or waits for another thread that does.
            let r = token::lend(|| raw(chosen));
            if ROUTINE.take().is_some() {
                log_lock(Call::pthread_once, caller, 0);
            }
            return Some(r);
        }
        match log::take(Op::Lock, Call::pthread_once, place(caller)) {
            Some(taken) if taken.ret() == 1 => {
                ROUTINE.set(Some(Routine { function, caller, taken: Some(taken) }));
                let r = raw(chosen);
                if ROUTINE.take().is_some() {
                    report::diverged("a routine that runs once had already run");
                }
                Some(r)
            }
            Some(taken) => {
                let r = raw(function);
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        }
    })
}

extern "C" fn chosen() {
    let Some(routine) = ROUTINE.take() else { return };
    match routine.taken {
        Some(taken) => taken.done(),
        None => log_lock(Call::pthread_once, routine.caller, 1),
    }
    (routine.function)();
}

#[cfg(test)]
mod tests;
