//! How the processes of a family begin and end (decision 33). A fork is one record, which the
//! parent writes while it holds the log, with the number of the child's first thread and the
//! child's place; so the child's own records come after it. The kernel numbers processes in the
//! order in which they are made, in a pid namespace of the server's own, so the replica's have the
//! same ids.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, FAULT_FD, MAIN_AWAY, Mode, inside, mode};
use crate::base::sys::{self, decimal, sys, syscall};
use crate::base::table::Call;
use crate::base::{
    alarm, brief, conns, defer, fds, park, processes, quiet, report, robust, token, waiting, watch,
};
use crate::calls::{adopted, descriptors, identity, processors, signals, threads};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use holdfast_wire::group::PROCESSES_MAX;
use holdfast_wire::log::{Header, NO_CONN, Op};

const FULL: &str = "fork fails with EAGAIN: the server has as many processes as a family may have";
/// Exit status of a child for which there is no place.
const EXIT_NO_PLACE: i32 = 71;
/// How long a parent waits until its child has told its process id, in ns. Only `daemon` and its
/// like need that; a child on a busy machine takes its time.
const CHILD_WAIT_NS: u64 = 5_000_000_000;
/// Id of a process that is not known yet.
const UNKNOWN: i32 = -1;
/// In the record of a fork, in place of the child's first thread: nothing was forked.
const UNMADE: i32 = -1;

/// Number of the first thread of the child that is being made. There is one child at a time, since
/// its parent holds the log.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// The child's place.
static PLACE: AtomicU32 = AtomicU32::new(NOWHERE);
const NOWHERE: u32 = u32::MAX;
/// Whether the shim's own `fork` makes the child; it is told the outcome.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// Highest process id that the kernel has given a child on this host.
static LAST_PID: AtomicI32 = AtomicI32::new(0);

std::thread_local! {
    /// The replica's record of the fork, held until the child exists.
    static RECORD: Cell<Option<log::Taken>> = const { Cell::new(None) };
}

/// `fork` in a family.
pub fn fork() -> i32 {
    defer::flush();
    threads::before_first();
    if is_refused() {
        sys::set_errno(libc::EAGAIN);
        return -1;
    }
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

/// Whether there are as many processes as there may be. That costs a record and no process, or a
/// family that forks without end would keep both hosts busy with children that end at once.
fn is_refused() -> bool {
    quiet::call(|_| match mode() {
        Mode::Pass => Some(false),
        Mode::Record => Some(processes::free_place().is_none() && refuse()),
        Mode::Replay => match log::take_any() {
            Some(taken) => {
                let Header { op, fd, .. } = taken.header;
                let is_refused = op == Op::Fork as u8 && fd == UNMADE;
                if is_refused {
                    taken.done();
                }
                // Any other record stays where it is.
                Some(is_refused)
            }
            None => park::start_over(),
        },
    })
}

/// Logs that nothing is forked, unless a place has become free.
fn refuse() -> bool {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    let held = log::hold();
    let is_full = processes::free_place().is_none();
    if is_full {
        let entry = Entry::new(Op::Fork, Call::fork, UNMADE, -libc::EAGAIN as isize);
        log::append_held(&held, Entry { conn: NOWHERE, ..entry }, &[]);
    }
    drop(held);
    if is_full && !HAS_SAID.swap(true, Relaxed) {
        sys::say(&[FULL]);
    }
    is_full
}

/// Runs in the parent before a fork, after the handlers of libraries.
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
                // The log has ended: this process goes on as the server, and forks as that.
                None => park::park(),
            },
        }
    }
    // Until the fork is over no other thread has a descriptor for a moment, which the child
    // would keep.
    brief::keep();
    state::set_forking(true);
}

/// The end of what [`before`] has begun, in the parent and in the child.
fn forked() {
    state::set_forking(false);
    brief::release();
}

fn begin_record() {
    defer::flush();
    // Until the record is there.
    token::enter();
    log::hold().keep();
    let place = processes::free_place();
    let number = place.and_then(|_| threads::draw());
    if place.is_none() {
        sys::say(&[FULL]);
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

/// Asks the kernel to give the next process this id. It may not be the next one in turn, because
/// the primary has started programs that the replica does not start. Without the privilege the
/// next id must be right by itself.
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
    let child = || match PLACE.load(Relaxed) {
        NOWHERE => 0,
        place => state::group().processes[place as usize].pid.load(SeqCst),
    };
    sys::look_until(CHILD_WAIT_NS, sys::LOOK_NS, || child() != UNKNOWN);
    finish(child().max(0));
}

/// Completes a fork, whose child exists or could not be made, and releases the log. Returns what
/// the server's call returns: the child's id, or `-1` and errno.
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
            forked();
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
            forked();
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
    quiet::born();
    forked();
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

/// Called when a process of the family, not its first one, exits or becomes a program outside
/// the log: closes its connections in the log's order and frees its place. From then on its calls
/// are not logged. False for any other process.
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
                // At this record the replica's process has no other threads any more, so none
                // of this one may log after it.
                state::set_leaving(state::NO_THREAD);
                processes::end(place, |_| {});
                break;
            }
            Mode::Replay => match log::take(Op::Exit, Call::exit, -1) {
                Some(taken) => {
                    // In one step: between the two, this record would be nobody's, and whoever
                    // found it so would consume it as well.
                    let held = log::hold();
                    processes::end(place, |_| {});
                    taken.done();
                    drop(held);
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

/// Called when the kernel has reported the end of a child. If the child did not log its end
/// itself, because it was killed, it is logged here.
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

/// On the replica: called when the log has told the server that a child has ended. The child here
/// is ending, too; it is waited for, so that its id becomes free.
pub fn reap(pid: i32) {
    if state::is_family() && pid > 0 {
        let forever = || {
            // SAFETY: no status is asked for.
            unsafe { syscall!(SYS_wait4, pid, 0, 0, 0) }
        };
        while forever() == -(libc::EINTR as isize) {}
    }
}
