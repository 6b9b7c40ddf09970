//! The threads of other processes, stopped by ptrace(2): seized without a stop, then
//! interrupted, and released when this is dropped. All calls must come from the
//! thread that seized them. No option is set on a server that runs on: it outlives a
//! tracer that dies.

use super::error::{Doing, Result, SnapshotError, refuse};
use crate::process;
use crate::sockopt::checked;
use libc::{c_int, c_long, c_uint, c_void, pid_t};
use std::io;
use std::time::{Duration, Instant};

/// Time between looks at a thread that is to stop.
const LOOK: Duration = Duration::from_micros(10);
/// Most threads of a server.
pub(super) const THREADS_MAX: usize = 4096;
/// Most searches for threads that others have just started.
const ROUNDS_MAX: usize = 64;

/// ptrace(2) with plain arguments.
///
/// # Safety
/// `data` is null, a plain number, or valid for what `request` does with it.
pub(super) unsafe fn ptrace(
    request: c_uint,
    tid: u32,
    address: usize,
    data: *mut c_void,
) -> io::Result<c_long> {
    // SAFETY: as the caller promises; the address is a number in all our requests.
    let result = unsafe { libc::ptrace(request, tid as pid_t, address as *mut c_void, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Like [`ptrace`], with numbers only.
pub(super) fn ptrace_plain(request: c_uint, tid: u32, data: usize) -> io::Result<c_long> {
    // SAFETY: the requests made through here take a number as data.
    unsafe { ptrace(request, tid, 0, data as *mut c_void) }
}

/// The outcome of waiting for a traced thread.
pub(super) enum Came {
    Stopped(c_int),
    Ended,
}

/// Waits for a thread's next stop, up to `deadline`.
pub(super) fn wait(tid: u32, deadline: Instant) -> Result<Came> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        let got = checked(unsafe {
            libc::waitpid(tid as pid_t, &raw mut status, libc::__WALL | libc::WNOHANG)
        })
        .doing("waiting for a thread to stop")?;
        if got == 0 {
            if Instant::now() > deadline {
                return Err(SnapshotError::NeverQuiet);
            }
            std::thread::sleep(LOOK);
        } else if libc::WIFSTOPPED(status) {
            return Ok(Came::Stopped(status));
        } else {
            return Ok(Came::Ended);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Stopped,
}

/// All threads of a family of processes.
pub(super) struct Tracees {
    pids: Vec<u32>,
    threads: Vec<Tracee>,
}

struct Tracee {
    pid: u32,
    tid: u32,
    state: State,
}

impl Tracees {
    /// Seizes all threads; they run on.
    pub fn seize(pids: &[u32]) -> Result<Self> {
        let mut tracees = Self { pids: pids.to_vec(), threads: Vec::new() };
        for _ in 0..ROUNDS_MAX {
            if tracees.seize_fresh()? == 0 {
                return Ok(tracees);
            }
        }
        refuse("it starts threads faster than they can be counted")
    }

    /// Seizes threads that have appeared since; returns their number.
    fn seize_fresh(&mut self) -> Result<usize> {
        let mut fresh = 0;
        for pid in self.pids.clone() {
            for tid in threads_of(pid)? {
                if self.threads.iter().any(|known| known.tid == tid) {
                    continue;
                }
                match ptrace_plain(libc::PTRACE_SEIZE, tid, 0) {
                    Ok(_) => self.threads.push(Tracee { pid, tid, state: State::Runs }),
                    // It has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {}
                    Err(_) if tid == pid && process::is_over(pid) => {
                        return refuse("one of its processes has ended");
                    }
                    Err(error) => {
                        return Err(error).doing(format!("tracing thread {tid} of the server"));
                    }
                }
                fresh += 1;
            }
        }
        Ok(fresh)
    }

    /// Stops all threads.
    pub fn stop(&mut self, deadline: Instant) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.stop_known(deadline)?;
            // A thread that was just being started still runs.
            if self.seize_fresh()? == 0 {
                return Ok(());
            }
        }
        refuse("it starts threads faster than they can be stopped")
    }

    fn stop_known(&mut self, deadline: Instant) -> Result<()> {
        for Tracee { tid, state, .. } in &self.threads {
            if *state == State::Runs {
                // A thread that has ended says so when it is waited for.
                let _ = ptrace_plain(libc::PTRACE_INTERRUPT, *tid, 0);
            }
        }
        let mut ended = Vec::new();
        for Tracee { tid, state, .. } in &mut self.threads {
            if *state == State::Stopped {
                continue;
            }
            match settle(*tid, deadline)? {
                true => *state = State::Stopped,
                false => ended.push(*tid),
            }
        }
        self.threads.retain(|it| !ended.contains(&it.tid));
        match self.pids.iter().position(|pid| ended.contains(pid)) {
            None => Ok(()),
            Some(0) => refuse("it has ended"),
            Some(_) => refuse("one of its processes has ended"),
        }
    }

    /// Lets the threads run on for a moment.
    pub fn run_on(&mut self) -> Result<()> {
        for Tracee { tid, state, .. } in &mut self.threads {
            if *state == State::Stopped {
                ptrace_plain(libc::PTRACE_CONT, *tid, 0).doing("letting a thread run on")?;
                *state = State::Runs;
            }
        }
        Ok(())
    }

    /// The threads' processes and numbers; the first of each process is its own.
    pub fn tids(&self) -> Vec<(u32, u32)> {
        self.threads.iter().map(|it| (it.pid, it.tid)).collect()
    }
}

/// Waits until an interrupted thread stands; `false` if it has ended. Signals that
/// come first are delivered.
fn settle(tid: u32, deadline: Instant) -> Result<bool> {
    loop {
        let status = match wait(tid, deadline)? {
            Came::Ended => return Ok(false),
            Came::Stopped(status) => status,
        };
        if status >> 16 == libc::PTRACE_EVENT_STOP {
            return Ok(true);
        }
        let signal = libc::WSTOPSIG(status) as usize;
        ptrace_plain(libc::PTRACE_CONT, tid, signal).doing("delivering a signal")?;
    }
}

impl Drop for Tracees {
    fn drop(&mut self) {
        // A detach needs a stopped thread. A thread that will not stop is freed
        // when this thread ends.
        let deadline = Instant::now() + Duration::from_secs(1);
        for Tracee { tid, state, .. } in &self.threads {
            if *state == State::Runs {
                let _ = ptrace_plain(libc::PTRACE_INTERRUPT, *tid, 0);
                let _ = settle(*tid, deadline);
            }
            let _ = ptrace_plain(libc::PTRACE_DETACH, *tid, 0);
        }
    }
}

/// The threads of a process, its own first.
fn threads_of(pid: u32) -> Result<Vec<u32>> {
    let mut tids = process::threads(pid).doing("listing the server's threads")?;
    if tids.len() > THREADS_MAX {
        return refuse(format!("it has more than {THREADS_MAX} threads"));
    }
    tids.retain(|tid| *tid != pid);
    tids.insert(0, pid);
    Ok(tids)
}
