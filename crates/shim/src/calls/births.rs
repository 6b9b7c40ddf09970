//! The processes of a family (decision 33): how they are made, and how they end. A fork
//! is one record, which the parent writes while it has the log, with the number of the
//! child's first thread and the child's place; so the child's own records come behind
//! it. The kernel gives processes their numbers in the order in which they are made,
//! in a namespace of the server's own, so the replica's have the same numbers.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, FAULT_FD, MAIN_AWAY, Mode, inside, mode};
use crate::base::sys::{self, decimal, sys, syscall};
use crate::base::table::Call;
use crate::base::{
    alarm, conns, defer, fds, park, processes, report, robust, token, waiting, watch,
};
use crate::calls::{adopted, descriptors, identity, processors, signals, threads};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use holdfast_wire::group::PROCESSES_MAX;
use holdfast_wire::log::{NO_CONN, Op};

/// Exit status of a child for which there is no place.
const EXIT_NO_PLACE: i32 = 71;
/// Time for which a parent waits for its child to say its number, in looks, and the time
/// between them, in ns. Only `daemon` and its kin need that.
const LOOKS_MAX: u32 = 20_000;
const LOOK_NS: i64 = 50_000;
/// Number of a process that has none yet.
const UNKNOWN: i32 = -1;

/// Number and place of the child that is being made. There is one at a time: its parent
/// has the log.
static NUMBER: AtomicU32 = AtomicU32::new(0);
static PLACE: AtomicU32 = AtomicU32::new(NOWHERE);
const NOWHERE: u32 = u32::MAX;
/// Whether our own function makes it, which is told the outcome.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// Number that the kernel gave the last process here.
static LAST_PID: AtomicI32 = AtomicI32::new(0);

std::thread_local! {
    /// The replica's record, held until the child is there.
    static RECORD: Cell<Option<log::Taken>> = const { Cell::new(None) };
}

/// `fork` in a family.
pub fn fork() -> i32 {
    defer::flush();
    threads::before_first();
    IS_OURS.store(true, Relaxed);
    let pid = real(Real::Fork)(0, 0, 0, 0);
    if pid == 0 {
        return 0;
    }
    IS_OURS.store(false, Relaxed);
    if !state::is_forking() {
        return pid;
    }
    finish(if pid < 0 { -sys::errno() } else { pid })
}

/// Runs in the parent before a fork, behind the handlers of libraries.
pub fn before() {
    if inside() {
        return;
    }
    threads::before_first();
    loop {
        match mode() {
            Mode::Pass => return,
            Mode::Record => break begin_record(),
            Mode::Replay => match log::take_any() {
                Some(taken) => break begin_replay(taken),
                // It goes on as the server, and forks as that.
                None => park::park(),
            },
        }
    }
    state::set_forking(true);
}

fn begin_record() {
    defer::flush();
    // Until the record is there.
    token::enter();
    log::hold().keep();
    let place = processes::free_place();
    let number = place.and_then(|_| threads::draw());
    if place.is_none() {
        sys::say(&[
            "fork fails with EAGAIN: the server has as many processes as a family may have",
        ]);
    }
    note_child(number.unwrap_or(0) as u16, place.filter(|_| number.is_some()), UNKNOWN);
}

fn begin_replay(taken: log::Taken) {
    if taken.header.op != Op::Fork as u8 {
        report::diverged_at(&taken.header, Op::Fork, Call::fork, -1);
    }
    let (number, pid) = (taken.header.fd as u16, taken.header.ret as i32);
    let place = Some(taken.header.conn as usize).filter(|it| *it < PROCESSES_MAX);
    state::group().last_thread.store(u32::from(number), Relaxed);
    if pid > 0 && pid != LAST_PID.load(Relaxed) + 1 {
        want_number(pid);
    }
    note_child(number, place, if pid > 0 { pid } else { UNKNOWN });
    RECORD.set(Some(taken));
}

fn note_child(number: u16, place: Option<usize>, pid: i32) {
    NUMBER.store(u32::from(number), Relaxed);
    PLACE.store(place.map_or(NOWHERE, |place| place as u32), Relaxed);
    if let Some(place) = place {
        processes::begin(place, number, pid);
    }
}

/// Asks the kernel to give the next process this number, which may be out of turn: the
/// primary has started programs that the replica does not. Without the right to that
/// the number must be right by itself.
fn want_number(pid: i32) {
    let path = c"/proc/sys/kernel/ns_last_pid";
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    let mut digits = [0; 24];
    let text = decimal(i64::from(pid - 1), &mut digits);
    // SAFETY: a path of ours.
    let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd >= 0 {
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_write, fd, text.as_ptr(), text.len()) };
        sys!(SYS_close, fd);
    }
}

/// Runs in the parent after a fork, before the handlers of libraries.
pub fn after() {
    if !state::is_forking() || IS_OURS.load(Relaxed) {
        return;
    }
    let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
    let child = || match PLACE.load(Relaxed) {
        NOWHERE => 0,
        place => state::group().processes[place as usize].pid.load(SeqCst),
    };
    for _ in 0..LOOKS_MAX {
        if child() != UNKNOWN {
            break;
        }
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
    finish(child().max(0));
}

/// The child is there, or could not be made: the log goes on. Returns what the server's
/// call answers, `-1` with its error.
fn finish(pid: i32) -> i32 {
    LAST_PID.fetch_max(pid, Relaxed);
    adopted::made(pid);
    let place = PLACE.load(Relaxed);
    let end = || {
        if place != NOWHERE {
            processes::end(place as usize, |_| {});
        }
    };
    let answer = match RECORD.take() {
        Some(taken) => {
            let there = taken.header.ret as i32;
            if there <= 0 && pid > 0 {
                reap(pid);
            } else if there != pid {
                report::diverged_number(there, pid);
            }
            if there <= 0 {
                end();
            }
            state::set_forking(false);
            taken.done();
            there
        }
        None => {
            let answer = if place == NOWHERE && pid > 0 { -libc::EAGAIN } else { pid };
            if answer > 0 {
                state::group().processes[place as usize].pid.store(pid, SeqCst);
            }
            let (fd, conn) = (NUMBER.load(Relaxed) as i32, place);
            let entry = Entry { conn, ..Entry::new(Op::Fork, Call::fork, fd, answer as isize) };
            log::append(entry, &[]);
            if answer <= 0 {
                end();
            }
            state::set_forking(false);
            log::release();
            token::exit();
            if place == NOWHERE && pid > 0 {
                reap(pid);
            }
            answer
        }
    };
    if answer < 0 {
        sys::set_errno(-answer);
        return -1;
    }
    answer
}

/// Runs in the child, before the handlers of libraries.
pub fn born() {
    if !state::is_forking() {
        return;
    }
    let is_wanted = RECORD.take().is_none_or(|taken| taken.header.ret > 0);
    let (number, place) = (NUMBER.load(Relaxed) as u16, PLACE.load(Relaxed));
    if !is_wanted || place == NOWHERE {
        sys::die(EXIT_NO_PLACE);
    }
    IS_OURS.store(false, Relaxed);
    state::set_process(place as usize, number);
    state::set_forking(false);
    robust::note_process();
    state::process().pid.store(sys!(SYS_getpid) as i32, SeqCst);
    MAIN_AWAY.store(false, SeqCst);
    sys!(SYS_close, FAULT_FD.swap(-1, Relaxed));
    processors::free_thread();
    signals::forget();
    identity::forget();
    waiting::forget();
    state::set_leaving(0);
    adopted::forget();
    threads::tell_of_end(usize::from(number));
    alarm::arm_thread();
    watch::forget_task();
    park::go_on();
}

/// A process of the family that is not its first one ends by its own will, or becomes
/// another program: it closes its connections in the log's order, and its place is free.
/// From there on its calls are in no log. False for any other process.
pub fn leave() -> bool {
    if !state::is_family() || state::place() == 0 || mode() == Mode::Pass || inside() {
        return false;
    }
    defer::flush();
    fds::for_each(|fd, f| {
        if f.conn.load(Relaxed) != NO_CONN {
            descriptors::close_raw(fd);
        }
    });
    let place = state::place();
    loop {
        match mode() {
            Mode::Record => {
                token::enter();
                let held = log::hold();
                log::append_held(&held, Entry::new(Op::Exit, Call::exit, -1, 0), &[]);
                // The replica's has no other threads any more.
                state::set_leaving(state::NO_THREAD);
                processes::end(place, |_| {});
                break;
            }
            Mode::Replay => match log::take(Op::Exit, Call::exit, -1) {
                Some(taken) => {
                    processes::end(place, |_| {});
                    taken.done();
                    log::leave();
                    break;
                }
                None => park::park(),
            },
            Mode::Pass => break,
        }
    }
    token::give();
    state::set_mode(Mode::Pass);
    true
}

/// A child of the calling process has ended, as the kernel says. If it did not say so
/// itself, the log does.
pub fn ended(pid: i32) {
    if !state::is_family() || mode() != Mode::Record || processes::place_of(pid).is_none() {
        return;
    }
    let held = log::hold();
    let Some(place) = processes::place_of(pid) else { return };
    log::append_held(&held, Entry::new(Op::Death, Call::wait, place as i32, 0), &[]);
    processes::end(place, |conn| {
        let (op, ret, hash) = (Op::Close, 0, 0);
        log::append_held(&held, Entry { op, flags: 0, fd: -1, conn, ret, hash }, &[]);
        conns::end(conn);
    });
}

/// On the replica: the server has been told that a child has ended. Its twin here ends by
/// now, and is asked for, so that its number is free.
pub fn reap(pid: i32) {
    if state::is_family() && pid > 0 {
        let forever = || {
            // SAFETY: no status is asked for.
            unsafe { syscall!(SYS_wait4, pid, 0, 0, 0) }
        };
        while forever() == -(libc::EINTR as isize) {}
    }
}
