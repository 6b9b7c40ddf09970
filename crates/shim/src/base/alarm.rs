//! The alarm: system calls that bypass libc, and so the shim, are caught. The first one is
//! reported and ends protection; the server itself runs on.
//!
//! The mechanism is syscall user dispatch (`PR_SET_SYSCALL_USER_DISPATCH`, Linux
//! 5.11), not a seccomp filter: it lets calls from one address range through and
//! turns all others into SIGSYS, and unlike a filter it is cleared by fork and
//! exec, needs no `PR_SET_NO_NEW_PRIVS`, and can be switched off again. A filter
//! by address would kill every program that the server runs. The allowed range is
//! libc's text; the shim makes its own calls with an instruction found there.
//!
//! Measured on Linux 6.18 with `getppid` through libc, armed and unarmed in turn
//! in one process, 101 rounds of 20,000 calls each, three runs: 43, 45 and 46 ns
//! unarmed and 48, 50 and 51 ns armed (medians), so about 5 ns a call. A filter
//! by address took 14 ns (44 and 58, best of nine rounds). A trapped and repeated
//! call takes 0.7 us with either.

use crate::base::actions::ActionCell;
use crate::base::state::{self, Mode, mode};
use crate::base::sys::{self, decimal, syscall};
use crate::base::{leash, objects, real, report};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use holdfast_wire::shm::option;

const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
/// `si_code` of a SIGSYS that comes from syscall user dispatch.
const SYS_USER_DISPATCH: i32 = 2;
/// `si_code` of a fault that concerns no address: a privileged instruction.
const SI_KERNEL: i32 = 0x80;
const PR_TSC_ENABLE: i32 = 1;
const PR_TSC_SIGSEGV: i32 = 2;
const AT_IGNORE: usize = 1;
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

/// Most objects besides libc itself (its loader, vDSO and libraries, and the shim) whose direct
/// system calls are made for them without an alarm. glibc before 2.34 has its threads in a
/// library of their own.
const QUIET_MAX: usize = 6;
const QUIET_NAMES: [&[u8]; 4] = [b"ld-linux", b"linux-vdso", b"libpthread", b"librt.so"];

/// System calls whose results cannot change what the server computes: no alarm for these.
const HARMLESS: [i64; 14] = [
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

type Range = (AtomicUsize, AtomicUsize);

/// Address range of libc's text, its end exclusive.
static LIBC: Range = (AtomicUsize::new(0), AtomicUsize::new(0));
static QUIET: [Range; QUIET_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; QUIET_MAX];
static ARMED: AtomicBool = AtomicBool::new(false);
static RUNG: AtomicBool = AtomicBool::new(false);
static TRAP_TSC: AtomicBool = AtomicBool::new(false);

/// The server's actions for SIGSYS and SIGSEGV while the handlers are ours.
static WANTED: [ActionCell; 2] = [const { ActionCell::new() }; 2];

fn set(range: &Range, lo: usize, hi: usize) {
    range.0.store(lo, Relaxed);
    range.1.store(hi, Relaxed);
}

fn within(range: &Range, at: usize) -> bool {
    (range.0.load(Relaxed)..range.1.load(Relaxed)).contains(&at)
}

/// Arms the process's first thread, at the end of start-up. Libraries that are loaded later are
/// watched as well, because only calls from libc's text pass.
pub fn arm(environment: *mut *mut u8) {
    if !matches!(mode(), Mode::Record | Mode::Replay) {
        return;
    }
    hide_vdso(environment);
    objects::for_each_object(note);
    if LIBC.0.load(Relaxed) == 0 || !use_gate() || !install(libc::SIGSYS, on_sigsys) {
        return unavailable();
    }
    ARMED.store(true, SeqCst);
    if state::place() == 0 {
        leash::hold();
    }
    if state::OPTIONS.load(Relaxed) & option::TRAP_TSC != 0 && install(libc::SIGSEGV, on_sigsegv) {
        TRAP_TSC.store(true, SeqCst);
    }
    if arm_thread() < 0 {
        ARMED.store(false, SeqCst);
        unavailable();
    }
}

fn unavailable() {
    sys::say(&["calls that bypass libc will not be noticed: this needs Linux 5.11 and glibc"]);
}

/// Arms the calling thread: the kernel keeps the setting per thread.
pub fn arm_thread() -> isize {
    if !ARMED.load(Relaxed) || RUNG.load(Relaxed) {
        return 0;
    }
    if TRAP_TSC.load(Relaxed) {
        // SAFETY: numbers only.
        unsafe { syscall!(SYS_prctl, libc::PR_SET_TSC, PR_TSC_SIGSEGV) };
    }
    // A trap whose signal is blocked kills the process.
    let open: u64 = 1 << (libc::SIGSYS - 1) | 1 << (libc::SIGSEGV - 1);
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe {
        syscall!(SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const open, 0, size_of::<u64>())
    };
    let (lo, hi) = (LIBC.0.load(Relaxed), LIBC.1.load(Relaxed));
    // SAFETY: numbers only; calls of libc's text stay as they are.
    unsafe { syscall!(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 1, lo, hi - lo, 0) }
}

/// Disarms the calling thread.
fn disarm_thread() {
    // SAFETY: numbers only.
    unsafe { syscall!(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) };
    allow_tsc();
}

/// Lets the calling thread, or a child about to run another program, read the
/// time stamp counter: exec does not reset this by itself.
pub fn allow_tsc() {
    if TRAP_TSC.load(Relaxed) {
        // SAFETY: numbers only.
        unsafe { syscall!(SYS_prctl, libc::PR_SET_TSC, PR_TSC_ENABLE) };
    }
}

/// Runs `f`, which starts another program, with the counter allowed.
pub fn with_tsc<T>(f: impl FnOnce() -> T) -> T {
    allow_tsc();
    let result = f();
    if TRAP_TSC.load(Relaxed) && !RUNG.load(Relaxed) {
        // SAFETY: numbers only.
        unsafe { syscall!(SYS_prctl, libc::PR_SET_TSC, PR_TSC_SIGSEGV) };
    }
    result
}

/// Whether the vDSO's clocks would fault: they read the counter.
#[inline]
pub fn clocks_trap() -> bool {
    TRAP_TSC.load(Relaxed)
}

/// Removes the vDSO from the auxiliary vector: a runtime that finds it there would read clocks
/// without a system call, past the shim. libc has found it already; whoever searches later finds
/// none and makes system calls.
fn hide_vdso(environment: *mut *mut u8) {
    // SAFETY: the kernel puts the auxiliary vector, pairs of words that end with
    // AT_NULL, behind the environment's null pointer, which `envp` still ends
    // with although one variable has been taken out: the nulls lie side by side.
    unsafe {
        let mut at = environment;
        while !(*at).is_null() {
            at = at.add(1);
        }
        while (*at).is_null() {
            at = at.add(1);
        }
        let mut pair = at.cast::<usize>();
        while *pair != libc::AT_NULL as usize {
            if *pair == libc::AT_SYSINFO_EHDR as usize {
                *pair = AT_IGNORE;
            }
            pair = pair.add(2);
        }
    }
}

fn note(info: &libc::dl_phdr_info) {
    let (lo, hi) = objects::range(info, libc::PF_X);
    let has = |part: &[u8]| objects::is_named(info, part);
    if has(b"/libc.so.6") {
        set(&LIBC, lo, hi);
        return;
    }
    let shim = (lo..hi).contains(&(note as *const () as usize));
    if let Some(free) = QUIET.iter().find(|q| q.1.load(Relaxed) == 0)
        && (shim || QUIET_NAMES.iter().any(|n| has(n)))
    {
        set(free, lo, hi);
    }
}

/// Finds `syscall; ret` in libc's text, and makes the shim's own calls with it.
fn use_gate() -> bool {
    let (lo, hi) = (LIBC.0.load(Relaxed), LIBC.1.load(Relaxed));
    // SAFETY: libc's text is mapped readable and stays for ever.
    let code = unsafe { core::slice::from_raw_parts(lo as *const u8, hi - lo) };
    match code.windows(sys::GATE_CODE.len()).position(|w| w == sys::GATE_CODE) {
        Some(offset) => {
            // SAFETY: the code was just compared.
            unsafe { sys::set_gate(code.as_ptr().add(offset)) };
            true
        }
        None => false,
    }
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

fn install(signal: i32, handler: Handler) -> bool {
    // SAFETY: all-zero is a valid action; the handler has the form SA_SIGINFO asks for.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    let restart = libc::SA_RESTART;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | restart;
    real::sigaction(signal, &raw const action, core::ptr::null_mut()) == 0
}

fn slot(signal: i32) -> Option<&'static ActionCell> {
    match signal {
        libc::SIGSYS if ARMED.load(Relaxed) => Some(&WANTED[0]),
        libc::SIGSEGV if TRAP_TSC.load(Relaxed) => Some(&WANTED[1]),
        _ => None,
    }
}

/// Handles the server's `sigaction` for a signal whose handler is the alarm's: the action is
/// remembered, not installed. False for any other signal.
pub fn keep_action(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> bool {
    let Some(slot) = slot(signal) else { return false };
    let before = slot.get();
    // SAFETY: null, or the caller's.
    if let Some(new) = unsafe { new.as_ref() } {
        slot.set(Some(new));
    }
    if !old.is_null() {
        // SAFETY: the caller's buffer; all-zero is SIG_DFL.
        unsafe { *old = before.unwrap_or(core::mem::zeroed()) };
    }
    true
}

/// Removes the alarm's signals from a mask of signals to block: a trap whose signal is blocked
/// kills the process.
pub fn unblockable(mask: &mut u64) {
    for signal in [libc::SIGSYS, libc::SIGSEGV] {
        if slot(signal).is_some() {
            *mask &= !(1 << (signal - 1));
        }
    }
}

/// Forwards a signal that the alarm did not cause to the server's own action.
fn forward(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let wanted = slot(signal).and_then(ActionCell::get);
    match wanted.map(|a| (a, a.sa_sigaction)) {
        Some((_, libc::SIG_IGN)) if signal == libc::SIGSYS => {}
        Some((action, at)) if at != libc::SIG_DFL && at != libc::SIG_IGN => {
            // SAFETY: the server's own handler; a handler without SA_SIGINFO
            // ignores the other arguments.
            let handler: Handler = unsafe { core::mem::transmute(at) };
            if action.sa_flags & libc::SA_RESETHAND != 0
                && let Some(slot) = slot(signal)
            {
                slot.set(None);
            }
            handler(signal, info, context);
        }
        _ => {
            // The default action is taken when the instruction or the signal comes again.
            // SAFETY: all-zero is SIG_DFL.
            let action: libc::sigaction = unsafe { core::mem::zeroed() };
            real::sigaction(signal, &raw const action, core::ptr::null_mut());
            if signal == libc::SIGSYS {
                sys::signal_self(signal);
            }
        }
    }
}

fn quiet(at: usize) -> bool {
    QUIET.iter().any(|q| within(q, at)) || state::excluded(at)
}

/// The registers that a running handler returns to.
#[derive(Clone, Copy)]
struct Registers(*mut libc::ucontext_t);

impl Registers {
    fn get(self, which: i32) -> i64 {
        // SAFETY: the kernel's frame of the running handler, which made this.
        unsafe { (*self.0).uc_mcontext.gregs[which as usize] }
    }

    fn set(self, which: i32, value: i64) {
        // SAFETY: as above.
        unsafe { (*self.0).uc_mcontext.gregs[which as usize] = value };
    }
}

extern "C" fn on_sigsys(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's siginfo.
    let code = unsafe { (*info).si_code };
    if code == libc::SI_QUEUE && leash::slip() {
        return;
    }
    if code != SYS_USER_DISPATCH {
        return forward(signal, info, context);
    }
    let registers = Registers(context);
    let get = |which| registers.get(which);
    let (number, at) = (get(libc::REG_RAX), get(libc::REG_RIP) as usize);
    let watching = matches!(mode(), Mode::Record | Mode::Replay) && !RUNG.load(SeqCst);
    if watching && (quiet(at) || HARMLESS.contains(&number)) {
        let args = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ]
        .map(|r| get(r) as usize);
        // SAFETY: the interrupted code's own call.
        let r =
            unsafe { sys::syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
        registers.set(libc::REG_RAX, r as i64);
        return;
    }
    if watching {
        let mut digits = [0u8; 24];
        ring(&["system call ", decimal(number, &mut digits)], at);
    }
    // Protection is over: the instruction runs again, and is not caught.
    disarm_thread();
    registers.set(libc::REG_RIP, get(libc::REG_RIP) - 2);
}

extern "C" fn on_sigsegv(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let registers = Registers(context);
    let at = registers.get(libc::REG_RIP) as usize;
    // SAFETY: the kernel's siginfo; a fault without an address came from an
    // instruction that the processor has just read at `at`.
    let read_counter = unsafe {
        (*info).si_code == SI_KERNEL
            && TRAP_TSC.load(Relaxed)
            && ((at as *const [u8; 2]).read() == RDTSC || (at as *const [u8; 3]).read() == RDTSCP)
    };
    if !read_counter {
        return forward(signal, info, context);
    }
    let watching = matches!(mode(), Mode::Record | Mode::Replay) && !RUNG.load(SeqCst);
    if watching && (quiet(at) || within(&LIBC, at)) {
        return read_counter_for(registers, at);
    }
    if watching {
        ring(&["reading the time stamp counter"], at);
    }
    disarm_thread();
}

/// Reads the time stamp counter for libc and the loader, which do not pass it to the server.
fn read_counter_for(registers: Registers, at: usize) {
    let mut aux = 0;
    // SAFETY: instructions without effects on memory; `at` as in on_sigsegv.
    let (ticks, short) = with_tsc(|| unsafe {
        (core::arch::x86_64::__rdtscp(&raw mut aux), (at as *const [u8; 2]).read() == RDTSC)
    });
    registers.set(libc::REG_RAX, (ticks & 0xffff_ffff) as i64);
    registers.set(libc::REG_RDX, (ticks >> 32) as i64);
    if !short {
        registers.set(libc::REG_RCX, i64::from(aux));
    }
    let len = if short { RDTSC.len() } else { RDTSCP.len() };
    registers.set(libc::REG_RIP, (at + len) as i64);
}

/// A line of text in fixed memory: a signal handler cannot allocate.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl Line {
    fn add(&mut self, part: &[u8]) {
        let n = part.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&part[..n]);
        self.len += n;
    }

    fn add_hex(&mut self, value: usize) {
        let mut digits = [0u8; 16];
        for (i, digit) in digits.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[value >> (4 * i) & 15];
        }
        let zeros = digits.iter().take_while(|d| **d == b'0').count().min(15);
        self.add(b"0x");
        self.add(&digits[zeros..]);
    }

    fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("a call bypasses libc")
    }
}

/// Reports what bypassed the shim and ends protection, once. A replica stops for good.
fn ring(what: &[&str], at: usize) {
    if RUNG.swap(true, SeqCst) {
        return;
    }
    let mut line = Line { bytes: [0; 400], len: 0 };
    what.iter().for_each(|part| line.add(part.as_bytes()));
    line.add(b" at ");
    line.add_hex(at);
    objects::for_each_object(|info| {
        let (lo, hi) = objects::range(info, libc::PF_X);
        if (lo..hi).contains(&at) {
            line.add(b" (");
            let name = objects::name(info);
            line.add(if name.is_empty() { b"the program" } else { name });
            line.add(b"+");
            line.add_hex(at - info.dlpi_addr as usize);
            line.add(b")");
        }
    });
    line.add(b" bypasses libc: protection cannot be kept; run the server without the ");
    line.add(b"library or option that does this (docs/SUPPORT.md)");
    report::end_protection(line.text());
}
