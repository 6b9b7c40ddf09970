//! Checks a thread that keeps others waiting, by its file in /proc: whether it sleeps, how long it
//! has computed, and whether it still exists.

use crate::base::state::{self, group, header};
use crate::base::sys::{decimal, sys, syscall};
use crate::base::{brief, robust};
use core::cell::Cell;
use core::sync::atomic::Ordering::*;
use holdfast_wire::token::{HOLDER, IN_CALL};

/// Processor time, in ticks of 10 ms, after which a holder that makes no call is assumed to spin
/// until another thread changes something.
const COMPUTES_TICKS: u64 = 10;
/// Number of looks after which the same is assumed of a holder that cannot be seen in /proc: one
/// second.
const BLIND_LOOKS: u32 = 500;
/// Most bytes of a thread's `stat` line that are read; the name in it has at most 15.
const LINE_BYTES: usize = 512;
/// Indices of the times in user and kernel mode, counted from the thread's state.
const USER_TIME: usize = 11;
const KERNEL_TIME: usize = 12;

std::thread_local! {
    /// The calling thread's process and thread ids in /proc (0: not known yet), and the log in
    /// which they were read: a copy's threads have other ids.
    static TASK: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Why others need not wait for a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It has ended.
    Gone,
    /// It sleeps inside libc, and so runs no code of the server.
    Sleeps,
    /// It has computed for long without a call.
    Computes,
}

/// The calling thread's ids in /proc, which are those of the namespace of that /proc and not of
/// the server's own; 0 if there is no /proc.
pub fn own_task() -> u64 {
    let (task, log) = TASK.get();
    let this = header().logs.load(Relaxed);
    if task != 0 && log == this {
        return task;
    }
    let task = look_at_own();
    TASK.set((task, this));
    task
}

/// Forgets the ids in a forked child, whose thread is another one.
pub fn forget_task() {
    TASK.set((0, 0));
}

fn look_at_own() -> u64 {
    let mut target = [0u8; 64];
    let (path, room) = (c"/proc/thread-self".as_ptr(), target.len());
    // SAFETY: a path and a buffer of ours.
    let n = unsafe { syscall!(SYS_readlinkat, libc::AT_FDCWD, path, target.as_mut_ptr(), room) };
    task_of(&target[..n.max(0) as usize]).unwrap_or(0)
}

/// The numbers in `PROCESS/task/THREAD`.
fn task_of(target: &[u8]) -> Option<u64> {
    let mut parts = target.split(|c| *c == b'/');
    let (process, thread) = (number(parts.next()?)?, number(parts.nth(1)?)?);
    Some(process << 32 | thread)
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// What a waiting thread has seen of the holder so far.
pub struct Watch {
    /// The token's word: the holder and its latest call.
    seen: u32,
    passes: u32,
    /// The holder's processor time at the first look, in ticks.
    from_ticks: Option<u64>,
    looks: u32,
}

impl Watch {
    pub const fn new() -> Self {
        Self { seen: 0, passes: 0, from_ticks: None, looks: 0 }
    }

    /// Looks at the holder in the token's `word`; returns why others need not wait for it.
    #[cold]
    pub fn look(&mut self, word: u32) -> Option<Why> {
        let passes = group().token.passes.load(Relaxed);
        if self.seen != word || self.passes != passes {
            *self = Self { seen: word, passes, ..Self::new() };
        }
        self.looks += 1;
        if has_ended(word & HOLDER) {
            return Some(Why::Gone);
        }
        if word & IN_CALL != 0 {
            return None;
        }
        let mut line = [0u8; LINE_BYTES];
        let Some((state, ticks)) = stat(group().token.task.load(Relaxed), &mut line) else {
            return (self.looks > BLIND_LOOKS).then_some(Why::Computes);
        };
        let from = *self.from_ticks.get_or_insert(ticks);
        match state {
            b'S' => Some(Why::Sleeps),
            b'Z' | b'X' => Some(Why::Gone),
            _ if ticks.saturating_sub(from) >= COMPUTES_TICKS => Some(Why::Computes),
            _ => None,
        }
    }
}

/// Whether a holder has ended, or its process.
fn has_ended(holder: u32) -> bool {
    let Some(owner) = group().owners.get(holder as usize - 1) else { return true };
    if !state::is_family() {
        // The server's first thread needs no mark.
        return holder != 1 && owner.load(Acquire) == 0;
    }
    let Some(place) = (owner.load(Acquire) as usize).checked_sub(1) else { return true };
    let pid = group().processes.get(place).map_or(0, |it| it.pid.load(Relaxed));
    pid == 0 || pid > 0 && robust::has_ended(pid as u32)
}

/// State and processor time, in ticks, of a task; `None` if they cannot be read.
fn stat(task: u64, line: &mut [u8; LINE_BYTES]) -> Option<(u8, u64)> {
    if task == 0 {
        return None;
    }
    let mut path = [0u8; 80];
    let mut len = 0;
    let mut digits = [[0u8; 24]; 2];
    let [process, thread] = &mut digits;
    let (process, thread) =
        (decimal((task >> 32) as i64, process), decimal((task & 0xffff_ffff) as i64, thread));
    for part in ["/proc/", process, "/task/", thread, "/stat\0"] {
        path[len..len + part.len()].copy_from_slice(part.as_bytes());
        len += part.len();
    }
    let n = brief::alone(|| {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a path of ours.
        let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: memory of ours, of the sizes that are said.
        let n = unsafe { syscall!(SYS_read, fd, line.as_mut_ptr(), line.len()) };
        sys!(SYS_close, fd);
        Some(n.max(0) as usize)
    })?;
    parse(&line[..n])
}

/// Reads state and processor time from a `stat` line. They follow the thread's name, which may
/// contain anything and ends with the last parenthesis.
fn parse(line: &[u8]) -> Option<(u8, u64)> {
    let name_end = line.iter().rposition(|c| *c == b')')?;
    let mut fields = line.get(name_end + 2..)?.split(|c| *c == b' ');
    let state = *fields.next()?.first()?;
    let mut times = fields.skip(USER_TIME - 1).take(KERNEL_TIME - USER_TIME + 1).map(number);
    Some((state, times.next()?? + times.next()??))
}

#[cfg(all(test, not(miri)))]
mod tests;
