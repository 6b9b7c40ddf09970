//! System calls without libc: the raw instruction, futexes and memory.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Address of the `syscall` instruction that the shim uses: at first [`own_gate`], later one in
/// libc, whose text is the only range that the alarm does not watch.
static GATE: AtomicPtr<()> = AtomicPtr::new(own_gate as *const () as *mut ());

/// Machine code of `syscall; ret`.
pub const GATE_CODE: [u8; 3] = [0x0f, 0x05, 0xc3];

#[unsafe(naked)]
unsafe extern "C" fn own_gate() {
    core::arch::naked_asm!("syscall", "ret")
}

/// Makes system calls at `gate` from now on.
///
/// # Safety
/// `gate` points to executable [`GATE_CODE`] that is never unmapped.
pub unsafe fn set_gate(gate: *const u8) {
    GATE.store(gate.cast_mut().cast(), Relaxed);
}

/// Address of the `syscall` instruction by which calls are made.
pub fn gate() -> usize {
    GATE.load(Relaxed) as usize
}

/// Issues system call `n`. The result is the kernel's: `-errno` on failure.
///
/// # Safety
/// As the system call's own contract with its arguments.
#[inline]
pub unsafe fn syscall6(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves everything except rax, rcx and r11, and the
    // gate is `syscall; ret`.
    unsafe {
        core::arch::asm!(
            "call {gate}",
            gate = in(reg) GATE.load(Relaxed),
            inlateout("rax") n as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// An argument of a system call that is not an address.
pub trait Number {
    fn word(self) -> usize;
}

macro_rules! numbers {
    ($($type:ty)+) => { $(
        impl Number for $type {
            #[inline]
            fn word(self) -> usize {
                self as usize
            }
        }
    )+ };
}

// Not for `usize`, which carries addresses.
numbers! { i32 u32 i64 isize }

/// Whether a call takes nothing but numbers: whatever they are, it touches none of
/// the process's memory.
pub const fn takes_numbers(call: i64) -> bool {
    matches!(
        call,
        libc::SYS_close
            | libc::SYS_close_range
            | libc::SYS_unshare
            | libc::SYS_lseek
            | libc::SYS_fcntl
            | libc::SYS_dup
            | libc::SYS_dup2
            | libc::SYS_dup3
            | libc::SYS_socket
            | libc::SYS_listen
            | libc::SYS_shutdown
            | libc::SYS_epoll_create1
            | libc::SYS_eventfd2
            | libc::SYS_timerfd_create
            | libc::SYS_inotify_init1
            | libc::SYS_inotify_rm_watch
            | libc::SYS_userfaultfd
            | libc::SYS_getpid
            | libc::SYS_getppid
            | libc::SYS_gettid
            | libc::SYS_getpgrp
            | libc::SYS_getpgid
            | libc::SYS_getsid
            | libc::SYS_setsid
            | libc::SYS_kill
            | libc::SYS_tgkill
            | libc::SYS_alarm
            | libc::SYS_pause
            | libc::SYS_exit_group
            | libc::SYS_flock
            | libc::SYS_pidfd_open
            | libc::SYS_sched_yield
            | libc::SYS_fsync
            | libc::SYS_fdatasync
    )
}

/// `sys!(SYS_close, fd)`: a call that takes nothing but numbers, which the compiler
/// checks. `fcntl` is such a call for those commands that take a number.
macro_rules! sys {
    ($n:ident $(, $a:expr)*) => {{
        const { assert!($crate::base::sys::takes_numbers(libc::$n), "takes an address") };
        // SAFETY: numbers alone cannot harm memory.
        unsafe { $crate::base::sys::syscall!($n $(, $crate::base::sys::Number::word($a))*) }
    }};
}
pub(crate) use sys;

/// `unsafe { syscall!(SYS_read, fd, buf, n) }`: any call. Arguments are cast to words.
macro_rules! syscall {
    ($n:ident) => { $crate::base::sys::syscall!(@ $n, 0, 0, 0, 0, 0, 0) };
    ($n:ident, $a:expr) => { $crate::base::sys::syscall!(@ $n, $a, 0, 0, 0, 0, 0) };
    ($n:ident, $a:expr, $b:expr) => { $crate::base::sys::syscall!(@ $n, $a, $b, 0, 0, 0, 0) };
    ($n:ident, $a:expr, $b:expr, $c:expr) => {
        $crate::base::sys::syscall!(@ $n, $a, $b, $c, 0, 0, 0)
    };
    ($n:ident, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::base::sys::syscall!(@ $n, $a, $b, $c, $d, 0, 0)
    };
    ($n:ident, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::base::sys::syscall!(@ $n, $a, $b, $c, $d, $e, 0)
    };
    ($n:ident, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::base::sys::syscall!(@ $n, $a, $b, $c, $d, $e, $f)
    };
    (@ $n:ident, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::base::sys::syscall6(
            libc::$n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize,
        )
    };
}
pub(crate) use syscall;

/// Time in ns between two looks for what is about to be done.
pub const LOOK_NS: i64 = 50_000;

/// Looks every `step_ns` until something is `done`, for at most `limit_ns`; returns whether it is.
/// The clock counts, and not the looks: where others run, a short sleep takes milliseconds.
pub fn look_until(limit_ns: u64, step_ns: i64, mut done: impl FnMut() -> bool) -> bool {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: step_ns };
    let begun_ns = monotonic_ns();
    loop {
        if done() {
            return true;
        }
        if monotonic_ns().saturating_sub(begun_ns) >= limit_ns {
            return false;
        }
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
}

/// The kernel's monotonic clock, which no log replays.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: memory of ours, of the size that is said.
    unsafe { syscall!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

/// Turns a kernel result into libc's convention: `-1` and `errno`.
#[inline]
pub fn libc_result(r: isize) -> isize {
    if (-4095..0).contains(&r) {
        set_errno(-r as i32);
        return -1;
    }
    r
}

pub fn set_errno(errno: i32) {
    // SAFETY: libc's per-thread errno is always there.
    unsafe { *__errno_location() = errno }
}

pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *__errno_location() }
}

/// Sleeps while `*word == value`, at most `timeout_ns` (0 = forever). `shared`
/// words lie in the memory that the daemon maps too.
pub fn futex_wait(word: &AtomicU32, value: u32, shared: bool, timeout_ns: u64) -> isize {
    let op = if shared { libc::FUTEX_WAIT } else { libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG };
    let time = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let at = if timeout_ns == 0 { core::ptr::null() } else { &raw const time };
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_futex, word.as_ptr(), op, value, at) }
}

/// Wakes everybody who sleeps on `word`.
pub fn futex_wake(word: &AtomicU32, shared: bool) {
    let op = if shared { libc::FUTEX_WAKE } else { libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_futex, word.as_ptr(), op, i32::MAX) };
}

/// Wakes one of those who sleep on a `word` that processes share.
pub fn futex_wake_one(word: &AtomicU32) {
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Takes a lock of the shim's own.
#[inline]
pub fn lock(word: &AtomicU32) {
    if word.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
        return;
    }
    // 2 means that threads may be waiting: others may wait behind this one.
    while word.swap(2, Acquire) != 0 {
        futex_wait(word, 2, false, 0);
    }
}

#[inline]
pub fn unlock(word: &AtomicU32) {
    if word.swap(0, Release) == 2 {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_futex, word.as_ptr(), op, 1) };
    }
}

/// Fresh zeroed memory, or null.
pub fn map_anonymous(bytes: usize) -> *mut u8 {
    let at = map(0, bytes, 0);
    if at < 0 { core::ptr::null_mut() } else { at as *mut u8 }
}

/// Fresh zeroed memory at the address `at`, or an errno: `EEXIST` if something is mapped there,
/// which stays as it is.
pub fn map_anonymous_at(at: usize, bytes: usize) -> Result<*mut u8, i32> {
    let mapped = map(at, bytes, libc::MAP_FIXED_NOREPLACE);
    if mapped < 0 { Err(-mapped as i32) } else { Ok(mapped as *mut u8) }
}

/// Punches a hole in a memory file: these bytes become zero and take no memory.
pub fn punch(file: i32, at: u64, bytes: u64) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: numbers only; what a mapping shows there is the caller's.
    unsafe { syscall!(SYS_fallocate, file, how, at, bytes) };
}

fn map(at: usize, bytes: usize, flags: i32) -> isize {
    let (may, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: it takes no memory that anybody has.
    unsafe { syscall!(SYS_mmap, at, bytes, may, flags, -1isize, 0usize) }
}

/// What the kernel says of an open file.
pub fn stat(fd: i32) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: memory of ours, of the size that is said.
    let r = unsafe { syscall!(SYS_fstat, fd, &raw mut stat) };
    (r == 0).then_some(stat)
}

/// Whether that is a regular file.
pub fn is_regular(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

pub fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the server's own call, with its own arguments.
    unsafe { syscall!(SYS_munmap, at, bytes) };
}

/// Whether standard error is a network socket: servers with one process per client may put the
/// client's connection there.
fn has_stranger() -> bool {
    let (mut domain, mut len) = (0i32, size_of::<i32>() as u32);
    let at = (&raw mut domain, &raw mut len);
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_getsockopt, 2, libc::SOL_SOCKET, libc::SO_DOMAIN, at.0, at.1) };
    r == 0 && matches!(domain, libc::AF_INET | libc::AF_INET6)
}

/// Writes a line to standard error, without libc, unless a client would get it.
pub fn say(parts: &[&str]) {
    if has_stranger() {
        return;
    }
    let mut line = [0u8; 512];
    let mut n = 0;
    for byte in core::iter::once(&"holdfast-shim: ").chain(parts).flat_map(|p| p.bytes()) {
        if n < line.len() - 1 {
            line[n] = byte;
            n += 1;
        }
    }
    line[n] = b'\n';
    // SAFETY: memory of ours, of the sizes that are said.
    unsafe { syscall!(SYS_write, 2, line.as_ptr(), n + 1) };
}

/// Sends `signal` to the calling thread.
pub fn signal_self(signal: i32) -> isize {
    let (process, thread) = (sys!(SYS_getpid), sys!(SYS_gettid));
    sys!(SYS_tgkill, process, thread, signal)
}

/// Changes the calling thread's signal mask; returns the one before.
pub fn change_mask(how: i32, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: memory of ours, of the size that is said.
    unsafe { syscall!(SYS_rt_sigprocmask, how, &raw const set, &raw mut before, size_of::<u64>()) };
    before
}

/// The signals that the calling thread blocks.
pub fn mask() -> u64 {
    change_mask(libc::SIG_BLOCK, 0)
}

/// Ends the process at once.
pub fn die(code: i32) -> ! {
    loop {
        sys!(SYS_exit_group, code);
    }
}

/// Formats a number into `buffer`.
pub fn decimal(value: i64, buffer: &mut [u8; 24]) -> &str {
    let mut n = value.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    core::str::from_utf8(&buffer[at..]).unwrap_or("?")
}

#[cfg(test)]
mod tests;
