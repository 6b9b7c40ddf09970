//! Clocks and sleeping. After promotion every clock continues from the
//! primary's last value and never goes back (decision 18).

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real};
use crate::base::state::{self, Mode, mode, threaded};
use crate::base::sys::{self, libc_result, syscall};
use crate::base::table::Call;
use crate::base::{alarm, defer, park, quiet, ring, token};
use crate::calls::shapes::with_data;
use crate::calls::{readings, signals};
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::Op;
use holdfast_wire::time;

const SECOND_NS: i64 = 1_000_000_000;
/// The clock whose offset this one shares: clocks that show the same time in different
/// resolutions share one.
fn base(clock: i32) -> Option<usize> {
    match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(libc::CLOCK_REALTIME as usize),
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_MONOTONIC_RAW => {
            Some(libc::CLOCK_MONOTONIC as usize)
        }
        libc::CLOCK_BOOTTIME => Some(libc::CLOCK_BOOTTIME as usize),
        _ => None,
    }
}

/// Reads a clock through libc, or by a system call if the vDSO, which libc uses, would fault.
fn real_clock_gettime(clock: i32, t: *mut libc::timespec) -> i32 {
    if alarm::clocks_trap() {
        // SAFETY: the caller's own timespec.
        return sys::libc_result(unsafe { syscall!(SYS_clock_gettime, clock, t) }) as i32;
    }
    real(Real::ClockGettime)(clock as usize, t as usize, 0, 0)
}

fn offset(clock: i32) -> i64 {
    base(clock).map_or(0, |b| state::group().offsets[b].load(Relaxed))
}

/// The member's own clock, in nanoseconds.
fn own(clock: i32) -> i64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let ok = real_clock_gettime(clock, &mut t);
    if ok != 0 {
        return i64::MIN;
    }
    t.tv_sec * SECOND_NS + t.tv_nsec
}

/// Sets the clocks' offsets when the replica becomes the server: each clock continues from the
/// last value in the log.
pub fn continue_from_log() {
    let mut monotonic = 0;
    for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME] {
        let last = readings::latest(|of| base(of) == Some(clock as usize));
        if last == i64::MIN {
            // This clock was never read: it moves with the monotonic clock.
            state::group().offsets[clock as usize]
                .store(if clock == libc::CLOCK_BOOTTIME { monotonic } else { 0 }, Relaxed);
            continue;
        }
        let offset = time::added(last, own(clock), clock == libc::CLOCK_REALTIME);
        state::group().offsets[clock as usize].store(offset, Relaxed);
        if clock == libc::CLOCK_MONOTONIC {
            monotonic = offset;
        }
    }
}

/// Time in s above which a point in time belongs to the real-time clock: the monotonic one begins
/// near zero.
const REALTIME_FROM_S: i64 = 1_000_000_000;

/// Converts a point in time, which the server has computed from the clocks that it sees, to the
/// kernel's clock: after promotion the two differ. Without a `clock` the time itself tells which
/// one is meant. Null stays null.
pub fn until(clock: Option<i32>, time: usize) -> Option<libc::timespec> {
    // SAFETY: the caller's timespec, or null.
    let mut t = unsafe { (time as *const libc::timespec).as_ref() }.copied()?;
    let by_value =
        if t.tv_sec > REALTIME_FROM_S { libc::CLOCK_REALTIME } else { libc::CLOCK_MONOTONIC };
    let clock = clock.unwrap_or(by_value);
    let offset = if mode() == Mode::Replay { 0 } else { offset(clock) };
    if offset != 0 && (0..SECOND_NS).contains(&t.tv_nsec) {
        let sum = t.tv_nsec - offset.rem_euclid(SECOND_NS);
        // A point in time before the kernel's clock began has passed, as 0 has.
        t.tv_sec = (t.tv_sec.saturating_sub(offset.div_euclid(SECOND_NS))
            + sum.div_euclid(SECOND_NS))
        .max(0);
        t.tv_nsec = sum.rem_euclid(SECOND_NS);
    }
    Some(t)
}

/// Address of a time from [`until`], for a call.
pub fn address(time: &Option<libc::timespec>) -> usize {
    time.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize)
}

/// Like [`until`], for a timer that is set to a point in time; `None` for one that is set to a
/// time span, or stopped.
pub fn timer(spec: *const libc::itimerspec, is_moment: bool) -> Option<libc::itimerspec> {
    // SAFETY: the caller's timer specification, or null.
    let mut own = unsafe { spec.as_ref() }.copied().filter(|_| is_moment)?;
    let is_set = own.it_value.tv_sec != 0 || own.it_value.tv_nsec != 0;
    own.it_value = until(None, (&raw const own.it_value) as usize).filter(|_| is_set)?;
    // Zero would stop the timer.
    own.it_value.tv_nsec += i64::from(own.it_value.tv_sec == 0 && own.it_value.tv_nsec == 0);
    Some(own)
}

/// A clock's id as records carry it. The clock of another thread or process has a different id on
/// each member, so only its kind is used.
pub fn in_log(clock: i32) -> i32 {
    const KIND: i32 = 7;
    const OF_DESCRIPTOR: i32 = 3;
    if clock >= 0 || clock & KIND == OF_DESCRIPTOR { clock } else { clock & KIND | !KIND }
}

/// This host's clock in ns, plus the offset that makes it continue the earlier host's.
fn continued(clock: i32) -> i64 {
    own(clock).saturating_add(offset(clock))
}

/// The time of `clock` in ns, as the server sees it.
fn now(call: Call, clock: i32) -> i64 {
    quiet::call(|_| match mode() {
        Mode::Pass => Some(continued(clock)),
        Mode::Record => {
            signals::deliver();
            let value = continued(clock);
            readings::note(call, in_log(clock), value);
            Some(value)
        }
        Mode::Replay => match readings::take(call, in_log(clock)) {
            Some(value) => Some(value),
            None => park::start_over(),
        },
    })
}

/// Entry of `clock_gettime`, with the caller's address.
pub unsafe extern "C" fn clock_gettime_from(
    clock: i32,
    t: *mut libc::timespec,
    caller: usize,
) -> i32 {
    if mode() == Mode::Pass || state::inside() || state::excluded(caller) {
        return real_clock_gettime(clock, t);
    }
    let value = now(Call::clock_gettime, clock);
    if value == i64::MIN {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's timespec.
    unsafe {
        *t = libc::timespec {
            tv_sec: value.div_euclid(SECOND_NS),
            tv_nsec: value.rem_euclid(SECOND_NS),
        }
    };
    0
}

/// `clock_gettime`: passes on the return address, by which calls from allocator libraries are
/// told apart from the server's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn clock_gettime(clock: i32, t: *mut libc::timespec) -> i32 {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym clock_gettime_from)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn gettimeofday(t: *mut libc::timeval, zone: *mut u8) -> i32 {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym gettimeofday_from)
}

unsafe extern "C" fn gettimeofday_from(
    t: *mut libc::timeval,
    _zone: *mut u8,
    caller: usize,
) -> i32 {
    if t.is_null() {
        return 0;
    }
    let outside = state::inside() || state::excluded(caller);
    let value = if outside {
        own(libc::CLOCK_REALTIME)
    } else {
        now(Call::gettimeofday, libc::CLOCK_REALTIME)
    };
    // SAFETY: the caller's timeval.
    unsafe {
        *t = libc::timeval {
            tv_sec: value.div_euclid(SECOND_NS),
            tv_usec: value.rem_euclid(SECOND_NS) / 1000,
        }
    };
    0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn time(out: *mut i64) -> i64 {
    let seconds = now(Call::time, libc::CLOCK_REALTIME_COARSE).div_euclid(SECOND_NS);
    if !out.is_null() {
        // SAFETY: the caller's time_t.
        unsafe { *out = seconds };
    }
    seconds
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock() -> i64 {
    now(Call::clock, libc::CLOCK_PROCESS_CPUTIME_ID) / 1000
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn times(out: *mut u8) -> i64 {
    let room = size_of::<libc::tms>();
    // SAFETY: the server's own call, with its own arguments.
    with_data(Call::times, -1, &[(out, room)], || unsafe { syscall!(SYS_times, out) }) as i64
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrusage(who: i32, out: *mut u8) -> i32 {
    let room = size_of::<libc::rusage>();
    // SAFETY: the server's own call, with its own arguments.
    libc_result(with_data(Call::getrusage, who, &[(out, room)], || unsafe {
        syscall!(SYS_getrusage, who, out)
    })) as i32
}

/// Sleeps on the primary. The replica does not sleep, but takes the record.
fn sleep_for(
    clock: i32,
    flags: i32,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> isize {
    let raw = || {
        if flags & libc::TIMER_ABSTIME == 0 {
            // SAFETY: the server's own call, with its own arguments.
            return unsafe { syscall!(SYS_clock_nanosleep, clock, flags, time, left) };
        }
        let moment = until(Some(clock), time as usize);
        // SAFETY: memory of ours or the server's own.
        unsafe { syscall!(SYS_clock_nanosleep, clock, flags, address(&moment), left) }
    };
    // This stays set when the call starts over, even in a copy.
    let is_begun = Cell::new(!threaded());
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            defer::flush();
            if !is_begun.replace(true) {
                log::append(begin_of_sleep(), &[]);
            }
            if log::is_on() {
                ring::kick();
            }
            let r = token::apart(|| this.sleep(raw))?;
            signals::deliver();
            log::append(Entry::new(Op::Result, Call::sleep, -1, r), &[]);
            Some(r)
        }
        Mode::Replay => sleep_in_log(&is_begun),
    })
}

/// The record of a thread that begins to sleep, if there are several threads. Before it sleeps it
/// has often looked at shared memory without a lock, and while it sleeps that memory changes. The
/// replica's thread, which does not sleep, must have looked by then, too.
fn begin_of_sleep() -> Entry {
    Entry::new(Op::Lock, Call::sleep, 0, 0)
}

fn sleep_in_log(is_begun: &Cell<bool>) -> Option<isize> {
    if !is_begun.get() {
        let begin = begin_of_sleep();
        let Some(taken) = log::take(begin.op, Call::sleep, begin.fd) else {
            return park::start_over();
        };
        taken.done();
        is_begun.set(true);
    }
    let Some(taken) = log::take(Op::Result, Call::sleep, -1) else { return park::start_over() };
    let r = taken.ret();
    taken.done();
    Some(r)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> i32 {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {f}", f = sym nanosleep_from)
}

unsafe extern "C" fn nanosleep_from(
    time: *const libc::timespec,
    left: *mut libc::timespec,
    caller: usize,
) -> i32 {
    if state::excluded(caller) || state::inside() {
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_nanosleep, time, left) }) as i32;
    }
    libc_result(sleep_for(libc::CLOCK_REALTIME, 0, time, left)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_nanosleep(
    clock: i32,
    flags: i32,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> i32 {
    // This one returns the error instead of setting errno.
    -sleep_for(clock, flags, time, left) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn usleep(us: u32) -> i32 {
    let time = libc::timespec {
        tv_sec: i64::from(us / 1_000_000),
        tv_nsec: i64::from(us % 1_000_000) * 1000,
    };
    libc_result(sleep_for(libc::CLOCK_REALTIME, 0, &raw const time, core::ptr::null_mut())) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sleep(seconds: u32) -> u32 {
    let time = libc::timespec { tv_sec: i64::from(seconds), tv_nsec: 0 };
    let mut left = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    match sleep_for(libc::CLOCK_REALTIME, 0, &raw const time, &raw mut left) {
        0 => 0,
        _ => left.tv_sec as u32,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_sleep(time: *const libc::timespec, left: *mut libc::timespec) -> i32 {
    match sleep_for(libc::CLOCK_REALTIME, 0, time, left) {
        0 => 0,
        r if r == -(libc::EINTR as isize) => -1,
        _ => -2,
    }
}

#[cfg(test)]
mod tests;
