//! Threads, and everything that they have besides memory and descriptors: set
//! while they stand, rights and registers last.

use super::super::error::{Doing, Result};
use super::super::seize::ptrace;
use super::super::thread::NT_X86_XSTATE;
use super::remote::{PLACE_USED, Remote, set_registers, stopped};
use crate::sockopt::checked;
use holdfast_wire::snapshot::{Action, FileKind, Ids, Member, OpenFile, Process, Thread};
use libc::{c_int, c_uint, c_void, user_regs_struct};
use std::io;

const PTRACE_SETSIGMASK: c_uint = 0x420b;
const PTRACE_SET_DISPATCH: c_uint = 0x4210;
/// Policies that can be restored; `SCHED_DEADLINE` needs more than is kept.
const POLICIES: std::ops::RangeInclusive<u32> = 0..=3;
const USERFAULTFD_FLAGS: u64 = 1 | libc::O_CLOEXEC as u64 | libc::O_NONBLOCK as u64;
/// Where a process writes the number that its pid namespace has given last.
const LAST_PID: &[u8] = b"/proc/sys/kernel/ns_last_pid";
/// End of the capabilities: above `CAP_LAST_CAP` of any kernel.
const CAPABILITIES: u32 = 64;
const CAPABILITY_VERSION: u64 = 0x2008_0522;
/// `SECBIT_KEEP_CAPS` in capabilities(7).
const KEEP_CAPS: u32 = 1 << 4;

/// Starts a process's other threads; `files` are those of the image.
pub(super) fn threads(stub: &mut Remote, of: &Member, files: &[OpenFile]) -> Result<()> {
    userfaultfds(stub, of, files)?;
    for thread in &of.threads[1..] {
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        // `struct clone_args`, and behind it the number that the thread is to have.
        let mut args = [0u64; 12];
        args[0] = flags as u64;
        let at = stub.numbers(&args)?;
        args[8] = at + 11 * 8;
        args[9] = 1;
        args[11] = thread.tid.into();
        stub.numbers(&args)?;
        let what = format!("starting thread {}", thread.tid);
        stub.call(&what, libc::SYS_clone3, &[at, 11 * 8])?;
        stopped(stub.tids.last().copied().unwrap_or(0))?;
    }
    Ok(())
}

/// Makes userfaultfds: one for this memory can only be made from within.
fn userfaultfds(stub: &mut Remote, of: &Member, files: &[OpenFile]) -> Result<()> {
    for descriptor in &of.descriptors {
        if files[descriptor.file as usize].kind == FileKind::Userfault {
            let what = "making a userfaultfd";
            let made = stub.call(what, libc::SYS_userfaultfd, &[USERFAULTFD_FLAGS])?;
            let number = u64::from(descriptor.number);
            if made != number {
                let flags = if descriptor.close_on_exec { libc::O_CLOEXEC } else { 0 };
                stub.call(what, libc::SYS_dup3, &[made, number, flags as u64])?;
                stub.close(made)?;
            }
        }
    }
    Ok(())
}

/// Sets everything else, up to the point at which the threads can be released. `dies_by` is the
/// signal that it gets when its parent ends.
pub(super) fn finish(
    stub: &mut Remote,
    of: &Member,
    dies_by: c_int,
    traps_tsc: bool,
) -> Result<()> {
    let tids = stub.tids.clone();
    actions(stub, &of.process)?;
    for (tid, thread) in tids.iter().zip(&of.threads) {
        attributes(stub, *tid, thread)?;
        // Whoever's calls are watched is not to read the counter either.
        if traps_tsc && thread.dispatch.mode != 0 {
            let arguments = [libc::PR_SET_TSC as u64, libc::PR_TSC_SIGSEGV as u64];
            stub.call_in(*tid, "trapping its counter", libc::SYS_prctl, &arguments)?;
        }
    }
    from_outside(stub.pid, &of.process).doing("its limits")?;
    for tid in &tids {
        rights(stub, *tid, &of.process)?;
    }
    if dies_by != 0 {
        // A change of rights has forgotten it.
        let arguments = [libc::PR_SET_PDEATHSIG as u64, dies_by as u64];
        stub.call("its end with its parent", libc::SYS_prctl, &arguments)?;
    }
    for (tid, thread) in tids.iter().zip(&of.threads) {
        pending(stub, *tid, thread, &of.process)?;
    }
    // The code that they stand on stays: it may be run, like the vDSO, and not be
    // written.
    let arguments = [stub.place, PLACE_USED, (libc::PROT_READ | libc::PROT_EXEC) as u64];
    stub.call("protecting the stub's code", libc::SYS_mprotect, &arguments)?;
    for (tid, thread) in tids.iter().zip(&of.threads) {
        registers(*tid, thread).doing(format!("the registers of thread {}", thread.tid))?;
        // Until here it may have had its loader's priority.
        scheduling(*tid, thread).doing("its scheduling")?;
    }
    Ok(())
}

/// Puts processes into their groups, which lead one or join that of another.
pub(super) fn groups(stubs: &mut [Remote], of: &[Member]) -> Result<()> {
    let what = "its process group";
    for leads in [true, false] {
        for (stub, Member { process, .. }) in stubs.iter_mut().zip(of) {
            let Process { pid, session, group, .. } = process;
            // The leader of a session leads its group, too; group 0 is inherited.
            if *group != 0 && session != pid && leads == (group == pid) {
                stub.call(what, libc::SYS_setpgid, &[0, u64::from(*group)])?;
            }
        }
    }
    Ok(())
}

/// Has the first process's namespace give the number behind `last` next.
pub(super) fn number_on(stub: &mut Remote, last: u32) -> Result<()> {
    let what = "the number of the next process";
    let file = stub.open(LAST_PID, libc::O_WRONLY)?;
    let text = last.to_string();
    let at = stub.argument(text.as_bytes())?;
    stub.call(what, libc::SYS_write, &[file, at, text.len() as u64])?;
    stub.close(file)
}

fn actions(stub: &mut Remote, process: &Process) -> Result<()> {
    for (signal, action) in (1u64..).zip(&process.actions) {
        let fixed = [libc::SIGKILL as u64, libc::SIGSTOP as u64].contains(&signal);
        // The default, too, may have flags that matter (SA_NOCLDWAIT).
        if !fixed && *action != Action::default() {
            let words = [action.handler, action.flags, action.restorer, action.mask];
            let at = stub.numbers(&words)?;
            let what = format!("the action of signal {signal}");
            stub.call(&what, libc::SYS_rt_sigaction, &[signal, at, 0, 8])?;
        }
    }
    Ok(())
}

fn attributes(stub: &mut Remote, tid: u32, of: &Thread) -> Result<()> {
    let what = format!("the state of thread {}", of.tid);
    let call = |stub: &mut Remote, number, arguments: &[u64]| {
        stub.call_in(tid, &what, number, arguments).map(drop)
    };
    call(stub, libc::SYS_set_tid_address, &[of.clear_tid])?;
    if of.robust_list.0 != 0 {
        call(stub, libc::SYS_set_robust_list, &[of.robust_list.0, of.robust_list.1])?;
    }
    let mut name = of.name.clone();
    name.push(0);
    let at = stub.argument(&name)?;
    call(stub, libc::SYS_prctl, &[libc::PR_SET_NAME as u64, at])?;
    if of.timer_slack_ns != 0 {
        call(stub, libc::SYS_prctl, &[libc::PR_SET_TIMERSLACK as u64, of.timer_slack_ns])?;
    }
    // The stub has its loader's stack until it is told that it has none.
    let stack = &of.alt_stack;
    let flags = if stack.size == 0 { libc::SS_DISABLE as u64 } else { stack.flags.into() };
    let at = stub.numbers(&[stack.address, flags, stack.size])?;
    call(stub, libc::SYS_sigaltstack, &[at, 0])?;
    if of.rseq.address != 0 {
        let (size, signature) = (u64::from(of.rseq.size), u64::from(of.rseq.signature));
        call(stub, libc::SYS_rseq, &[of.rseq.address, size, 0, signature])?;
    }
    Ok(())
}

fn scheduling(tid: u32, of: &Thread) -> io::Result<()> {
    let (policy, nice, priority) = of.scheduling;
    let mut words = [0u32; 12];
    words[0] = size_of_val(&words) as u32;
    words[1] = if POLICIES.contains(&policy) { policy } else { 0 };
    words[4] = nice.cast_unsigned();
    words[5] = priority;
    // SAFETY: the kernel only reads `words` and the mask.
    unsafe {
        checked(libc::syscall(libc::SYS_sched_setattr, tid, words.as_ptr(), 0) as i32)?;
        // Processors that this host does not have cannot be used.
        let (len, mask) = (of.affinity.len(), of.affinity.as_ptr());
        libc::syscall(libc::SYS_sched_setaffinity, tid, len, mask);
    }
    Ok(())
}

fn from_outside(pid: u32, of: &Process) -> io::Result<()> {
    for (resource, (soft, hard)) in (0u32..).zip(&of.limits) {
        let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
        let target = pid as libc::pid_t;
        // SAFETY: the kernel only reads `limit`.
        checked(unsafe {
            libc::prlimit64(target, resource, &raw const limit, std::ptr::null_mut())
        })?;
    }
    // Without the right to lower it, the loader's value stays.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), of.oom_score_adj.to_string());
    Ok(())
}

/// Sets users, groups and capabilities, which the kernel keeps per thread.
fn rights(stub: &mut Remote, tid: u32, of: &Process) -> Result<()> {
    let prctl = libc::SYS_prctl;
    let what = "its rights";
    let call = |stub: &mut Remote, number, arguments: &[u64]| {
        stub.call_in(tid, what, number, arguments).map(drop)
    };
    call(stub, libc::SYS_personality, &[of.personality.into()])?;
    call(stub, prctl, &[libc::PR_SET_THP_DISABLE as u64, of.thp_disabled.into()])?;
    let Ids { users, groups, further_groups, capabilities, secure_bits } = &of.ids;
    let [inheritable, permitted, effective, bounding, ambient] = *capabilities;
    for capability in (0..CAPABILITIES).filter(|c| bounding >> c & 1 == 0) {
        // No process has a capability that the kernel does not know.
        let _ = call(stub, prctl, &[libc::PR_CAPBSET_DROP as u64, capability.into()]);
    }
    let bytes: Vec<u8> = further_groups.iter().flat_map(|group| group.to_ne_bytes()).collect();
    let at = stub.argument(&bytes)?;
    call(stub, libc::SYS_setgroups, &[further_groups.len() as u64, at])?;
    call(stub, prctl, &[libc::PR_SET_KEEPCAPS as u64, 1])?;
    let ids = |ids: &[u32; 4]| [ids[0], ids[1], ids[2]].map(u64::from);
    call(stub, libc::SYS_setresgid, &ids(groups))?;
    call(stub, libc::SYS_setresuid, &ids(users))?;
    call(stub, libc::SYS_setfsgid, &[groups[3].into()])?;
    call(stub, libc::SYS_setfsuid, &[users[3].into()])?;
    // What squid has left set since it became another user; this bit needs no right.
    let keeps = u64::from(secure_bits & KEEP_CAPS != 0);
    call(stub, prctl, &[libc::PR_SET_KEEPCAPS as u64, keeps])?;
    let halves = |shift: u32| [effective, permitted, inheritable].map(|set| (set >> shift) as u32);
    let words: Vec<u8> = [CAPABILITY_VERSION as u32, 0]
        .into_iter()
        .chain(halves(0))
        .chain(halves(32))
        .flat_map(u32::to_ne_bytes)
        .collect();
    let at = stub.argument(&words)?;
    call(stub, libc::SYS_capset, &[at, at + 8])?;
    for capability in (0..CAPABILITIES).filter(|c| ambient >> c & 1 == 1) {
        let raise = libc::PR_CAP_AMBIENT_RAISE as u64;
        call(stub, prctl, &[libc::PR_CAP_AMBIENT as u64, raise, capability.into()])?;
    }
    if secure_bits & !KEEP_CAPS != 0 {
        call(stub, prctl, &[libc::PR_SET_SECUREBITS as u64, (*secure_bits).into()])?;
    }
    if of.no_new_privs {
        call(stub, prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1])?;
    }
    call(stub, prctl, &[libc::PR_SET_DUMPABLE as u64, of.dumpable.into()])
}

/// Queues pending signals again, masked until the thread runs.
fn pending(stub: &mut Remote, tid: u32, thread: &Thread, process: &Process) -> Result<()> {
    let shared: &[Vec<u8>] = if tid == stub.pid { &process.pending } else { &[] };
    if thread.pending.is_empty() && shared.is_empty() {
        return Ok(());
    }
    // All but the trap that ends each call here.
    mask(tid, !(1 << (libc::SIGTRAP - 1))).doing("masking signals")?;
    let (pid, number) = (u64::from(process.pid), u64::from(thread.tid));
    for info in &thread.pending {
        let signal = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        let at = stub.argument(info)?;
        let call = libc::SYS_rt_tgsigqueueinfo;
        stub.call_in(tid, "a pending signal", call, &[pid, number, signal.into(), at])?;
    }
    for info in shared {
        let signal = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        let at = stub.argument(info)?;
        let call = libc::SYS_rt_sigqueueinfo;
        stub.call_in(tid, "a pending signal", call, &[pid, signal.into(), at])?;
    }
    Ok(())
}

fn mask(tid: u32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads eight bytes.
    unsafe { ptrace(PTRACE_SETSIGMASK, tid, 8, (&raw const mask).cast_mut().cast()) }?;
    Ok(())
}

fn registers(tid: u32, of: &Thread) -> io::Result<()> {
    let base: *mut c_void = of.xstate.as_ptr().cast_mut().cast();
    let mut iovec = libc::iovec { iov_base: base, iov_len: of.xstate.len() };
    // SAFETY: the kernel only reads what the vector describes.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, (&raw mut iovec).cast()) }?;
    mask(tid, of.signal_mask)?;
    assert_eq!(of.registers.len() * 8, size_of::<user_regs_struct>());
    // SAFETY: as many numbers as the structure has, which is nothing but numbers.
    let regs = unsafe { of.registers.as_ptr().cast::<user_regs_struct>().read() };
    set_registers(tid, &regs)?;
    let d = &of.dispatch;
    if d.mode != 0 {
        let words = [d.mode, d.selector, d.offset, d.len];
        let at = words.as_ptr().cast_mut().cast();
        // SAFETY: the kernel reads the 32 bytes that it is told of.
        unsafe { ptrace(PTRACE_SET_DISPATCH, tid, size_of_val(&words), at) }?;
    }
    Ok(())
}
