//! System calls that a traced process makes because it is told to.

use super::super::error::{Doing, Result, SnapshotError};
use super::super::seize::{Came, ptrace, ptrace_plain, wait};
use super::super::thread::{NT_PRSTATUS, registers};
use super::STEP_MAX;
use crate::priority;
use crate::sockopt::checked_len;
use libc::{c_long, c_void, user_regs_struct};
use std::io;
use std::time::Instant;

/// `syscall; int3`.
pub(super) const CODE: [u8; 3] = [0x0f, 0x05, 0xcc];
/// Bytes that the code and its arguments take.
pub(super) const PLACE_USED: u64 = 0x2000;
/// Offset of the arguments in the page with the code.
const DATA: u64 = 256;
/// Most bytes of arguments in memory.
const DATA_BYTES: usize = 7 << 10;

/// A process that stands on the page with [`CODE`].
pub(super) struct Remote {
    pub pid: u32,
    /// Two pages at an address that nobody else uses.
    pub place: u64,
    /// Its threads, in the caller's numbering; none once it is released.
    pub tids: Vec<u32>,
}

/// Kills the process. A process that is killed while it is traced is gone only
/// when its tracer has looked.
impl Drop for Remote {
    fn drop(&mut self) {
        if !self.tids.is_empty() {
            // SAFETY: plain numbers; the stub is traced, so the number is still its own.
            unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGKILL) };
        }
        for tid in self.tids.iter().rev() {
            while stopped(*tid).is_ok() {}
        }
    }
}

impl Remote {
    pub fn seize(pid: u32, place: u64) -> Result<Self> {
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        let what = "stopping the stub";
        ptrace_plain(libc::PTRACE_SEIZE, pid, options as usize).doing(what)?;
        let remote = Self { pid, place, tids: vec![pid] };
        ptrace_plain(libc::PTRACE_INTERRUPT, pid, 0).doing(what)?;
        stopped(pid)?;
        // It makes thousands of calls, each of which it has to be given a processor for: whoever is
        // in a hurry would wait for all others on the machine each time.
        priority::share_realtime(pid).doing("the stub's priority")?;
        Ok(remote)
    }

    /// Makes a system call; `what` is its purpose.
    pub fn call(&mut self, what: &str, number: c_long, arguments: &[u64]) -> Result<u64> {
        self.call_in(self.pid, what, number, arguments)
    }

    /// Like [`Self::call`], in one of its threads.
    pub fn call_in(
        &mut self,
        tid: u32,
        what: &str,
        number: c_long,
        arguments: &[u64],
    ) -> Result<u64> {
        let mut regs = registers(tid).doing(what)?;
        regs.rip = self.place;
        regs.rsp = self.place + PLACE_USED;
        regs.rax = number.cast_unsigned();
        regs.orig_rax = u64::MAX;
        let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
        regs.rdi = argument(0);
        regs.rsi = argument(1);
        regs.rdx = argument(2);
        regs.r10 = argument(3);
        regs.r8 = argument(4);
        regs.r9 = argument(5);
        set_registers(tid, &regs).doing(what)?;
        loop {
            ptrace_plain(libc::PTRACE_CONT, tid, 0).doing(what)?;
            let status = stopped(tid)?;
            if status >> 16 == libc::PTRACE_EVENT_CLONE {
                let mut message: libc::c_ulong = 0;
                let at = (&raw mut message).cast();
                // SAFETY: the kernel writes one word.
                unsafe { ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, at) }.doing(what)?;
                self.tids.push(message as u32);
            } else if status >> 16 == 0 && libc::WSTOPSIG(status) == libc::SIGTRAP {
                break;
            } else {
                let odd = format!("stopped by signal {}", libc::WSTOPSIG(status));
                return Err(io::Error::other(odd)).doing(what);
            }
        }
        let result = registers(tid).doing(what)?.rax;
        match result.cast_signed() {
            error @ -4095..=-1 => super::failed(what, -error as i32),
            _ => Ok(result),
        }
    }

    /// Puts an argument where the call finds it.
    pub fn argument(&self, bytes: &[u8]) -> Result<u64> {
        if bytes.len() > DATA_BYTES {
            return super::failed("handing over an argument", libc::E2BIG);
        }
        let address = self.place + DATA;
        poke(self.pid, address, bytes).doing("handing over an argument")?;
        Ok(address)
    }

    /// Like [`Self::argument`], for numbers.
    pub fn numbers(&self, numbers: &[u64]) -> Result<u64> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        self.argument(&bytes)
    }

    /// Lets all of its threads run on.
    pub fn let_go(mut self) -> Result<()> {
        for tid in &self.tids {
            ptrace_plain(libc::PTRACE_DETACH, *tid, 0).doing("letting it go")?;
        }
        self.tids.clear();
        Ok(())
    }

    /// Opens a file there, without waiting for anybody; returns its number
    /// there.
    pub fn open(&mut self, path: &[u8], flags: i32) -> Result<u64> {
        let mut name = path.to_vec();
        name.push(0);
        let name = self.argument(&name)?;
        let what = format!("opening {}", String::from_utf8_lossy(path));
        self.call(&what, libc::SYS_open, &[name, (flags | libc::O_NONBLOCK) as u64])
    }

    pub fn close(&mut self, number: u64) -> Result<()> {
        self.call("closing a file", libc::SYS_close, &[number]).map(drop)
    }
}

/// Waits for a stop.
pub(super) fn stopped(tid: u32) -> Result<i32> {
    match wait(tid, Instant::now() + STEP_MAX) {
        Ok(Came::Stopped(status)) => Ok(status),
        Ok(Came::Ended) => super::failed("the stub has ended", libc::ESRCH),
        Err(SnapshotError::NeverQuiet) => super::failed("waiting for the stub", libc::ETIMEDOUT),
        Err(error) => Err(error),
    }
}

pub(super) fn set_registers(tid: u32, regs: &user_regs_struct) -> io::Result<()> {
    let mut regs = *regs;
    let iov_len = size_of::<user_regs_struct>();
    let mut iovec = libc::iovec { iov_base: (&raw mut regs).cast(), iov_len };
    let at = (&raw mut iovec).cast();
    // SAFETY: the kernel reads the registers that the vector describes.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, at) }?;
    Ok(())
}

/// Writes memory of another process.
pub(super) fn poke(pid: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let iov_base = bytes.as_ptr().cast_mut().cast();
    let local = libc::iovec { iov_base, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: the kernel only reads `bytes`, and checks what the address means there.
    let written = unsafe {
        libc::process_vm_writev(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0)
    };
    if checked_len(written)? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs root.
    #[test]
    fn a_stub_is_as_urgent_as_whoever_makes_it() {
        for urgency in [None, Some(7)] {
            // SAFETY: the child makes one system call after the other, and no memory of its own.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                loop {
                    // SAFETY: a plain call.
                    unsafe { libc::pause() };
                }
            }
            let stub = priority::urgently(urgency, || Remote::seize(pid.cast_unsigned(), 0));
            let stub = stub.expect("our own child");
            let mut parameters = libc::sched_param { sched_priority: -1 };
            // SAFETY: the kernel writes `parameters`.
            let policy = unsafe {
                libc::sched_getparam(pid, &raw mut parameters);
                libc::sched_getscheduler(pid)
            };
            let expected = urgency.map_or((libc::SCHED_OTHER, 0), |it| (libc::SCHED_RR, it));
            assert_eq!((policy, parameters.sched_priority), expected);
            drop(stub);
        }
    }
}
