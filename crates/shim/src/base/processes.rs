//! The processes of a family: their places in what they share, what each holds, and
//! what becomes of that when one ends. All of it changes only while the log stands at
//! the record that says so, so that both members agree.

use crate::base::state::group;
use crate::base::sys::{sys, syscall};
use crate::base::{conns, fds, holders, report, robust};
use core::sync::atomic::Ordering::*;
use holdfast_wire::group::{Process, TURN_WORDS};
use holdfast_wire::log::NO_CONN;
use holdfast_wire::shm::{CONNS_MAX, conn_state};

/// Longest time for which the replica waits for a process that it has killed, in looks,
/// and the time between them, in ns.
const LOOKS_MAX: u32 = 20_000;
const LOOK_NS: i64 = 50_000;

/// A free place; it is the caller's, who has the log.
pub fn free_place() -> Option<usize> {
    group().processes.iter().position(|it| it.pid.load(Relaxed) == 0)
}

/// The place of a process, by its number.
pub fn place_of(pid: i32) -> Option<usize> {
    (pid > 0).then(|| group().processes.iter().position(|it| it.pid.load(Relaxed) == pid))?
}

/// A process begins, which inherits what the calling one holds.
pub fn begin(place: usize, first: u16, pid: i32) {
    let Process { pid: number, first: thread, threads, at_end } = &group().processes[place];
    thread.store(u32::from(first), Relaxed);
    threads.store(1, Relaxed);
    at_end.store(0, Relaxed);
    number.store(pid, SeqCst);
    own_thread(first, place);
    fds::for_each(|_, f| match f.conn.load(Relaxed) {
        NO_CONN => {}
        conn => holders::add(conns::entry(conn), place),
    });
}

/// A thread number belongs to the process of a place.
pub fn own_thread(number: u16, place: usize) {
    group().owners[usize::from(number)].store(place as u32 + 1, Release);
}

/// A thread number is free again.
pub fn free_thread(number: u16) {
    group().owners[usize::from(number)].store(0, Release);
}

/// The process of a place is no more, or is about to end: its place is free, and its
/// threads' numbers. `each` gets the connections that nobody holds any more.
pub fn end(place: usize, mut each: impl FnMut(u32)) {
    let Some(process) = group().processes.get(place) else { return };
    let pid = process.pid.load(Relaxed);
    // It sleeps no more; who shares its word looks by itself.
    let word = process.first.load(Relaxed) as usize % TURN_WORDS;
    group().sleepers.0.fetch_and(!(1 << word), SeqCst);
    for owner in group().owners.iter().filter(|it| it.load(Relaxed) == place as u32 + 1) {
        owner.store(0, Release);
    }
    for at in 0..CONNS_MAX as u32 {
        let e = conns::entry(at);
        if e.state.load(Relaxed) != conn_state::OPEN || !holders::holds(e, place) {
            continue;
        }
        if e.pid.load(Relaxed) == pid {
            e.pid.store(0, Relaxed);
        }
        if holders::let_go(e, place) {
            each(e.conn.load(Relaxed));
        }
    }
    process.pid.store(0, SeqCst);
}

/// On the replica: ends the process whose twin has died here in the log, and waits until
/// it is gone, with its locks and its ends of pipes.
pub fn end_twin(place: usize) {
    let Some(process) = group().processes.get(place) else {
        report::diverged("a process died that never was");
    };
    let pid = process.pid.load(Relaxed);
    let r = if pid > 0 { sys!(SYS_kill, pid, libc::SIGKILL) } else { 0 };
    if r == -(libc::EPERM as isize) {
        report::diverged("a process that died on the primary could not be ended on the replica");
    }
    let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
    for _ in 0..LOOKS_MAX {
        if pid <= 0 || robust::has_ended(pid as u32) {
            break;
        }
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
    end(place, |_| {});
}

/// Whether all threads of the family need nothing of the log any more.
pub fn all_at_end() -> bool {
    let lives = |it: &&Process| it.pid.load(SeqCst) != 0;
    let is_at_end = |it: &Process| it.at_end.load(SeqCst) >= it.threads.load(SeqCst);
    group().processes.iter().filter(lives).all(is_at_end)
}
