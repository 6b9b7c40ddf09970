//! The state of one stopped thread.

use super::error::{Doing, Result, refuse};
use super::insides::Inside;
use super::quiet::Standing;
use super::seize::ptrace;
use super::stand::Still;
use crate::process;
use crate::sockopt::checked;
use holdfast_wire::snapshot::{Dispatch, Rseq, SIGINFO, Thread};
use libc::{c_uint, c_void, user_regs_struct};
use std::fs;
use std::io;

const PTRACE_GETREGSET: c_uint = libc::PTRACE_GETREGSET;
pub(super) const NT_PRSTATUS: usize = 1;
pub(super) const NT_X86_XSTATE: usize = 0x202;
const PTRACE_PEEKSIGINFO: c_uint = 0x4209;
const PTRACE_GETSIGMASK: c_uint = 0x420a;
const PTRACE_GET_RSEQ_CONFIGURATION: c_uint = 0x420f;
pub(super) const PTRACE_GET_DISPATCH: c_uint = 0x4211;
const PEEKSIGINFO_SHARED: u32 = 1;
const XSTATE_MAX: usize = 16 << 10;
/// Selector of 64-bit code: a thread in 32-bit code is refused.
const CODE_64: u64 = 0x33;
/// Most signals that may be pending.
const PENDING_MAX: usize = 256;
/// Most bytes of a mask of processors.
const CPUS_BYTES: usize = 1024;

/// Reads a set of registers; returns its length in bytes.
fn register_set(tid: u32, set: usize, into: *mut c_void, len: usize) -> io::Result<usize> {
    let mut iovec = libc::iovec { iov_base: into, iov_len: len };
    // SAFETY: the kernel writes at most `len` bytes to `into`, which both callers own.
    unsafe { ptrace(PTRACE_GETREGSET, tid, set, (&raw mut iovec).cast()) }?;
    Ok(iovec.iov_len)
}

/// General registers.
pub(super) fn registers(tid: u32) -> io::Result<user_regs_struct> {
    // SAFETY: the structure is plain numbers.
    let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
    register_set(tid, NT_PRSTATUS, (&raw mut regs).cast(), size_of::<user_regs_struct>())?;
    Ok(regs)
}

/// Floating point, vectors, and whatever else the processor has.
pub(super) fn xstate(tid: u32) -> io::Result<Vec<u8>> {
    let mut state = vec![0; XSTATE_MAX];
    let len = register_set(tid, NT_X86_XSTATE, state.as_mut_ptr().cast(), XSTATE_MAX)?;
    state.truncate(len);
    Ok(state)
}

/// `struct ptrace_rseq_configuration`; zeros if there is none, or if the kernel
/// has none.
pub(super) fn rseq(tid: u32) -> Rseq {
    let mut words = [0u64; 3];
    // SAFETY: the kernel writes at most the 24 bytes that it is told of.
    let got = unsafe { ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, 24, words.as_mut_ptr().cast()) };
    if got.is_err() {
        return Rseq::default();
    }
    Rseq { address: words[0], size: words[1] as u32, signature: (words[1] >> 32) as u32 }
}

fn dispatch(tid: u32) -> Dispatch {
    let mut words = [0u64; 4];
    // SAFETY: the kernel writes at most the 32 bytes that it is told of.
    let got = unsafe { ptrace(PTRACE_GET_DISPATCH, tid, 32, words.as_mut_ptr().cast()) };
    match (got, words) {
        (Ok(_), [mode, selector, offset, len]) => Dispatch { mode, selector, offset, len },
        (Err(_), _) => Dispatch::default(),
    }
}

fn signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes eight bytes.
    unsafe { ptrace(PTRACE_GETSIGMASK, tid, 8, (&raw mut mask).cast()) }?;
    Ok(mask)
}

/// Signals that wait for this thread, or for the process.
pub(super) fn pending(tid: u32, shared: bool) -> io::Result<Vec<Vec<u8>>> {
    /// `struct ptrace_peeksiginfo_args`.
    #[repr(C)]
    struct Args {
        offset: u64,
        flags: u32,
        count: i32,
    }
    let flags = if shared { PEEKSIGINFO_SHARED } else { 0 };
    let args = Args { offset: 0, flags, count: PENDING_MAX as i32 };
    let mut bytes = vec![0u8; PENDING_MAX * SIGINFO];
    // SAFETY: the kernel reads `args` and writes at most `count` siginfos.
    let count = unsafe {
        ptrace(PTRACE_PEEKSIGINFO, tid, (&raw const args) as usize, bytes.as_mut_ptr().cast())
    }?;
    let count = usize::try_from(count).unwrap_or(0);
    Ok(bytes.chunks(SIGINFO).take(count).map(<[u8]>::to_vec).collect())
}

fn robust_list(tid: u32) -> io::Result<(u64, u64)> {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: the kernel writes two words.
    checked(unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) }
        as i32)?;
    Ok((head, len))
}

/// Policy, nice value and priority.
fn scheduling(tid: u32) -> io::Result<(u32, i32, u32)> {
    let mut words = [0u32; 14];
    // SAFETY: the kernel writes at most the 56 bytes that it is told of.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_getattr, tid, words.as_mut_ptr(), size_of_val(&words), 0)
    } as i32)?;
    // size, policy, flags (two words), nice, priority.
    Ok((words[1], words[4].cast_signed(), words[5]))
}

fn affinity(tid: u32) -> io::Result<Vec<u8>> {
    let mut mask = vec![0u8; CPUS_BYTES];
    // SAFETY: the kernel writes at most as many bytes as it is told of.
    let len = checked(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, tid, mask.len(), mask.as_mut_ptr())
    } as i32)?;
    mask.truncate(usize::try_from(len).unwrap_or(0));
    while mask.last() == Some(&0) {
        mask.pop();
    }
    Ok(mask)
}

/// `user_regs_struct` as numbers.
pub(super) fn words(regs: &user_regs_struct) -> Vec<u64> {
    let at = std::ptr::from_ref(regs).cast::<u64>();
    let count = size_of::<user_regs_struct>() / size_of::<u64>();
    // SAFETY: the structure is that many numbers of eight bytes, and nothing else.
    unsafe { std::slice::from_raw_parts(at, count) }.to_vec()
}

/// Reads all of it.
pub(super) fn read(still: &Still, inside: &Inside) -> Result<Thread> {
    let (pid, tid, regs) = (still.pid, still.tid, &still.registers);
    if regs.cs != CODE_64 {
        return refuse("it runs 32-bit code");
    }
    let task = format!("/proc/{pid}/task/{tid}");
    let of = |what: &str| format!("the {what} of thread {tid}");
    let name = fs::read(format!("{task}/comm")).doing(of("name"))?;
    let slack = fs::read_to_string(format!("/proc/{tid}/timerslack_ns")).unwrap_or_default();
    let standing = Standing { pid, tid, registers: regs };
    Ok(Thread {
        tid: process::innermost_tid(pid, tid).doing(of("number"))?,
        name: name.strip_suffix(b"\n").unwrap_or(&name).to_vec(),
        registers: words(&standing.resumed(still.resume)),
        xstate: xstate(tid).doing(of("extended state"))?,
        signal_mask: signal_mask(tid).doing(of("signal mask"))?,
        alt_stack: inside.alt_stack,
        robust_list: robust_list(tid).doing(of("robust list"))?,
        clear_tid: inside.clear_tid,
        rseq: rseq(tid),
        dispatch: dispatch(tid),
        scheduling: scheduling(tid).doing(of("scheduling"))?,
        affinity: affinity(tid).doing(of("processors"))?,
        timer_slack_ns: slack.trim().parse().unwrap_or(0),
        pending: pending(tid, false).doing(of("signals"))?,
    })
}
