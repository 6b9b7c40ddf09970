//! The processes of a family: the place of each in the shared group state, the connections that
//! it holds, and what becomes of them when it ends. All of this changes only with the log held,
//! at the record that says so, so that both members agree.

use crate::base::state::{self, group};
use crate::base::sys::{self, sys};
use crate::base::{conns, fds, holders, report, robust};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::*;
use holdfast_wire::group::Process;
use holdfast_wire::log::NO_CONN;

/// How long the replica waits for a process that it has killed, in ns.
const END_WAIT_NS: u64 = 5_000_000_000;

/// A free place. The caller holds the log, so no other thread takes it.
pub fn free_place() -> Option<usize> {
    group().processes.iter().position(|it| it.pid.load(Relaxed) == 0)
}

/// The place of a process, by its id.
pub fn place_of(pid: i32) -> Option<usize> {
    (pid > 0).then(|| group().processes.iter().position(|it| it.pid.load(Relaxed) == pid))?
}

/// Enters a new process, which inherits the connections that the calling one holds.
pub fn begin(place: usize, first: u16, pid: i32) {
    let Process { pid: number, first: thread, threads, at_end, control } =
        &group().processes[place];
    group().sent[place].store(0, Relaxed);
    group().early[place].store(0, Relaxed);
    thread.store(u32::from(first), Relaxed);
    threads.store(1, Relaxed);
    at_end.store(0, Relaxed);
    // A copy of this one.
    control.store(own_control(), Relaxed);
    number.store(pid, SeqCst);
    own_thread(first, place);
    fds::for_each(|_, f| match f.conn.load(Relaxed) {
        NO_CONN => {}
        conn => holders::add(conns::entry(conn), place),
    });
}

/// Tells the daemon where this process shows what its threads do, when all of that is known.
pub fn show() {
    state::shim().gate.store(sys::gate() as u64, Relaxed);
    state::process().control.store(own_control(), Release);
}

fn own_control() -> u64 {
    core::ptr::from_ref(state::shim()) as u64
}

/// Notes that a thread number belongs to the process of this place.
pub fn own_thread(number: u16, place: usize) {
    group().owners[usize::from(number)].store(place as u32 + 1, Release);
}

/// Notes that a thread number is free again.
pub fn free_thread(number: u16) {
    group().owners[usize::from(number)].store(0, Release);
}

/// Notes that the calling thread is the only one of its process from now on, and its first:
/// the process becomes another program.
pub fn alone() {
    let (place, number) = (state::place(), state::tid());
    let others = |(n, owner): &(usize, &AtomicU32)| {
        owner.load(Relaxed) == place as u32 + 1 && *n != usize::from(number)
    };
    for (_, owner) in group().owners.iter().enumerate().filter(others) {
        owner.store(0, Release);
    }
    let Process { first, threads, control, .. } = state::process();
    // The next program says where it does.
    control.store(0, Relaxed);
    first.store(u32::from(number), Relaxed);
    threads.store(1, SeqCst);
}

/// Frees the place of a process that has ended or is about to, and its threads' numbers. `each`
/// gets the connections that no process holds any more.
pub fn end(place: usize, mut each: impl FnMut(u32)) {
    group().end(place, conns::entry, |e| each(e.conn.load(Relaxed)));
}

/// On the replica: kills the process whose counterpart on the primary has died at this place in
/// the log, and waits until it is gone, with its locks and its ends of pipes.
pub fn end_twin(place: usize) {
    let Some(process) = group().processes.get(place) else {
        report::diverged("a process died that never was");
    };
    let pid = process.pid.load(Relaxed);
    let r = if pid > 0 { sys!(SYS_kill, pid, libc::SIGKILL) } else { 0 };
    if r == -(libc::EPERM as isize) {
        report::diverged("a process that died on the primary could not be ended on the replica");
    }
    sys::look_until(END_WAIT_NS, sys::LOOK_NS, || pid <= 0 || robust::has_ended(pid as u32));
    end(place, |_| {});
}

/// Whether all threads of the family have reached the log's end.
pub fn all_at_end() -> bool {
    let lives = |it: &&Process| it.pid.load(SeqCst) != 0;
    group().processes.iter().filter(lives).all(|it| is_at_end(it) || has_died(it))
}

fn is_at_end(it: &Process) -> bool {
    it.at_end.load(SeqCst) >= it.threads.load(SeqCst)
}

/// Whether a process has ended; the calling one has not.
fn has_died(it: &Process) -> bool {
    !core::ptr::eq(it, state::process())
        && u32::try_from(it.pid.load(SeqCst)).is_ok_and(|pid| pid != 0 && robust::has_ended(pid))
}

/// On the replica, at the log's end: frees the places of processes that were killed on this host
/// only, which is not in the log. Connections that no other process holds have ended.
pub fn bury() {
    for (place, _) in group().processes.iter().enumerate().filter(|(_, it)| has_died(it)) {
        end(place, conns::end);
    }
}

/// On the replica: whether the thread of this number was in a process that was killed on this
/// host, or was never made because of that. Then no thread will consume its records.
pub fn is_lost(thread: u16) -> bool {
    match group().owners[usize::from(thread)].load(Acquire) as usize {
        // The server's first thread needs no mark.
        0 => thread != 0,
        owner => group().processes.get(owner - 1).is_some_and(has_died),
    }
}

/// On the replica: notes that, by the log, a process of the family has sent a signal to another
/// one. The log also says when that one handles it.
pub fn sent(pid: i32, signal: i32) {
    let Some((bit, place)) = bit_of(signal).zip(place_of(pid)) else { return };
    if group().early[place].fetch_and(!bit, Relaxed) & bit == 0 {
        group().sent[place].fetch_or(bit, Relaxed);
    }
}

/// On the replica: notes that, by the log, this process has handled a signal.
pub fn handled(signal: i32) {
    let (Some(bit), place) = (bit_of(signal), state::place()) else { return };
    if group().sent[place].fetch_and(!bit, Relaxed) & bit == 0 {
        group().early[place].fetch_or(bit, Relaxed);
    }
}

/// The bit of a signal. `None` for real-time signals, which the kernel queues, and which are not
/// noted.
fn bit_of(signal: i32) -> Option<u32> {
    (1..32).contains(&signal).then(|| 1 << signal)
}

/// Called when the replica has become the server: sends the signals that, by the log, were sent
/// and not handled.
pub fn deliver_sent() {
    for (process, sent) in group().processes.iter().zip(&group().sent) {
        let (pid, sent) = (process.pid.load(Relaxed), sent.swap(0, Relaxed));
        for signal in (1..32).filter(|signal| pid > 0 && sent & 1 << signal != 0) {
            sys!(SYS_kill, pid, signal);
        }
    }
}
