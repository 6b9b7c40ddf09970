//! Threads: their numbers, their beginning and their end. The order in which they take locks is in
//! `locks.rs`. Races without a lock are covered only if threads run one at a time
//! (`base/token.rs`).

use crate::base::log::{self, Entry};
use crate::base::real::{self, Real, real};
use crate::base::state::{self, MAIN_AWAY, Mode, THREADED, mode};
use crate::base::sys::sys;
use crate::base::table::Call;
use crate::base::{alarm, defer, park, processes, quiet, report, token};
use crate::calls::{clocks, identity, locks, processors};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use holdfast_wire::group::THREAD_NUMBERS;
use holdfast_wire::log::Op;

/// Time in µs for which a Python thread may keep the interpreter: practically without limit.
const PYTHON_SWITCH_US: u64 = 1_000_000_000;

/// Function and argument of a thread: two words, returned in registers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    function: usize,
    arg: usize,
}

/// Function and argument of each thread, written before it is made.
static STARTS: [(AtomicUsize, AtomicUsize); THREAD_NUMBERS] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; THREAD_NUMBERS];
static KEY: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    fn pthread_key_create(key: *mut u32, destructor: extern "C" fn(usize)) -> i32;
    fn pthread_setspecific(key: u32, value: usize) -> i32;
}

/// At start-up: enters the process's first thread, and makes libc report every thread's end,
/// however it comes (a key with a destructor).
pub fn note_main() {
    let process = state::process();
    process.threads.store(1, Relaxed);
    process.pid.store(sys!(SYS_getpid) as i32, SeqCst);
    processes::own_thread(0, 0);
    let mut key = 0;
    // SAFETY: libc's own functions; the first keys need no memory.
    unsafe { pthread_key_create(&raw mut key, ended) };
    KEY.store(key, Relaxed);
    quiet::join();
    tell_of_end(usize::from(state::tid()));
}

/// Sets the value whose destructor reports the end; a value of 0 would not be
/// reported.
pub fn tell_of_end(number: usize) {
    // SAFETY: the key was made at start-up.
    unsafe { pthread_setspecific(KEY.load(Relaxed), number + 1) };
}

extern "C" fn ended(number_and_one: usize) {
    let number = number_and_one - 1;
    if mode() == Mode::Record {
        defer::flush();
    }
    if state::is_first() {
        MAIN_AWAY.store(true, SeqCst);
    }
    processes::free_thread(number as u16);
    state::process().threads.fetch_sub(1, SeqCst);
    log::leave();
    quiet::part();
}

/// The number of a new thread. Numbers are used in turn, so that one is reused only long after its
/// last thread has ended.
pub fn draw() -> Option<usize> {
    let (last, mark) = (&state::group().last_thread, state::place() as u32 + 1);
    let take =
        |n: usize| state::group().owners[n].compare_exchange(0, mark, AcqRel, Relaxed).is_ok();
    (0..THREAD_NUMBERS)
        .map(|_| (last.fetch_add(1, Relaxed) + 1) as usize % THREAD_NUMBERS)
        .find(|n| *n != 0 && take(*n))
}

/// The first function of every thread. It leaves no Rust frame on the stack: libc unwinds the
/// stack of a thread that calls `pthread_exit` or is cancelled, which Rust does not allow.
#[unsafe(naked)]
unsafe extern "C" fn run(number: *mut u8) -> *mut u8 {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        begin = sym begin
    )
}

extern "C" fn begin(number: usize) -> Start {
    state::set_tid(number as u16);
    quiet::join();
    tell_of_end(number);
    alarm::arm_thread();
    processors::free_thread();
    park::go_on();
    let (function, arg) = &STARTS[number];
    Start { function: function.load(Relaxed), arg: arg.load(Relaxed) }
}

/// Makes a thread. The log is held meanwhile, so that the new thread's first
/// record comes after its own creation.
fn create(start: Start, caller: usize, make: impl Fn(usize, usize) -> i32) -> i32 {
    if mode() == Mode::Pass || state::excluded(caller) || state::inside() {
        return make(start.function, start.arg);
    }
    before_first();
    quiet::call(|_| match mode() {
        Mode::Replay => match log::take(Op::Thread, Call::pthread_create, -1) {
            Some(taken) => {
                let r = taken.ret();
                if r > 0 && create_as(r as usize, start, &make) != 0 {
                    report::diverged("a thread could not be made on the replica");
                }
                taken.done();
                Some(result(r))
            }
            None => park::start_over(),
        },
        _ => {
            let held = log::hold();
            let r = create_numbered(start, &make);
            let entry = Entry::new(Op::Thread, Call::pthread_create, -1, r);
            log::append_held(&held, entry, &[]);
            Some(result(r))
        }
    })
}

/// The result of `pthread_create` for a number or `-errno`.
fn result(r: isize) -> i32 {
    -r.min(0) as i32
}

/// Makes a thread under a fresh number; returns that, or `-errno`.
fn create_numbered(start: Start, make: &impl Fn(usize, usize) -> i32) -> isize {
    let Some(number) = draw() else { return -(libc::EAGAIN as isize) };
    match create_as(number, start, make) {
        0 => number as isize,
        errno => -(errno as isize),
    }
}

fn create_as(number: usize, start: Start, make: &impl Fn(usize, usize) -> i32) -> i32 {
    STARTS[number].0.store(start.function, Relaxed);
    STARTS[number].1.store(start.arg, Relaxed);
    state::group().last_thread.store(number as u32, Relaxed);
    processes::own_thread(number as u16, state::place());
    state::process().threads.fetch_add(1, SeqCst);
    let r = make(run as *const () as usize, number);
    if r != 0 {
        processes::free_thread(number as u16);
        state::process().threads.fetch_sub(1, SeqCst);
    }
    r
}

/// Called before the second thread or process: does what must be done while the log has only one
/// writer.
pub fn before_first() {
    if state::threaded() {
        return;
    }
    // The first `getpid` is logged. Two threads that called it first at the same time would both
    // log it.
    // SAFETY: no arguments.
    unsafe { identity::getpid() };
    never_interrupt_python();
    THREADED.store(true, SeqCst);
    token::begin();
}

/// Makes Python's threads switch only where they wait for something. Normally a thread that waits
/// for the interpreter makes the running one give it up after 5 ms, at a place that the other
/// member cannot know.
fn never_interrupt_python() {
    let set = real::find(c"_PyEval_SetSwitchInterval");
    if set != 0 {
        // SAFETY: CPython's own function, which stores the number.
        unsafe { core::mem::transmute::<usize, extern "C" fn(u64)>(set)(PYTHON_SWITCH_US) };
    }
}

unsafe extern "C" fn create_posix(
    thread: usize,
    attributes: usize,
    function: usize,
    arg: usize,
    caller: usize,
) -> i32 {
    create(Start { function, arg }, caller, |run, arg| {
        real(Real::PthreadCreate)(thread, attributes, run, arg)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_create(
    thread: usize,
    attributes: usize,
    function: usize,
    arg: usize,
) -> i32 {
    core::arch::naked_asm!("mov r8, [rsp]", "jmp {f}", f = sym create_posix)
}

/// C11's `thrd_create`: its functions return an `int`, which is in the low half of a pointer's
/// register.
unsafe extern "C" fn create_c11(thread: usize, function: usize, arg: usize, caller: usize) -> i32 {
    const THRD_ERROR: i32 = 2;
    let r = create(Start { function, arg }, caller, |run, arg| {
        match real(Real::ThrdCreate)(thread, run, arg, 0) {
            0 => 0,
            _ => libc::EAGAIN,
        }
    });
    if r == 0 { 0 } else { THRD_ERROR }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn thrd_create(thread: usize, function: usize, arg: usize) -> i32 {
    core::arch::naked_asm!("mov rcx, [rsp]", "jmp {f}", f = sym create_c11)
}

/// Waits for a thread that will end on both members.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_join(thread: usize, result: usize) -> i32 {
    park::outside(|| real(Real::PthreadJoin)(thread, result, 0, 0))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_join(thread: usize, result: usize) -> i32 {
    park::outside(|| real(Real::ThrdJoin)(thread, result, 0, 0))
}

/// A join with a time limit. If the primary's did not time out, the replica waits.
fn join_until(thread: usize, result: usize, attempt: impl Fn() -> i32) -> i32 {
    let wait = || real(Real::PthreadJoin)(thread, result, 0, 0);
    locks::acquire_end(Call::pthread_join, attempt, wait)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_timedjoin_np(thread: usize, result: usize, time: usize) -> i32 {
    join_until(thread, result, || {
        let end = clocks::until(Some(libc::CLOCK_REALTIME), time);
        real(Real::PthreadTimedjoin)(thread, result, clocks::address(&end), 0)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_clockjoin_np(
    thread: usize,
    result: usize,
    clock: i32,
    time: usize,
) -> i32 {
    join_until(thread, result, || {
        let end = clocks::until(Some(clock), time);
        real(Real::PthreadClockjoin)(thread, result, clock as usize, clocks::address(&end))
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_tryjoin_np(thread: usize, result: usize) -> i32 {
    join_until(thread, result, || real(Real::PthreadTryjoin)(thread, result, 0, 0))
}

/// `pthread_cancel` is refused: a thread that waits inside the shim cannot be ended there, and on
/// the replica it does not even wait in that call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_cancel(thread: usize) -> i32 {
    if mode() == Mode::Pass {
        return real(Real::PthreadCancel)(thread, 0, 0, 0);
    }
    report::refused("pthread_cancel", "let threads end themselves");
    libc::ENOSYS
}
