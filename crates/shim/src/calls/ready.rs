//! Readiness: epoll, poll and select. The kernel gets the descriptor as epoll data, and the
//! server's own data stays in a table, so that the log carries descriptors and never addresses.

use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, mode};
use crate::base::sys::{libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{defer, park, quiet, ring, token};
use crate::calls::shapes::new_fd;
use crate::calls::{family, inherited, signals};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::Op;

type Event = libc::epoll_event;
/// Most events that one record carries.
const EVENTS_MAX: usize = 1024;
/// Most descriptors that one poll may name.
const POLL_MAX: usize = 4096;
/// Size of an `fd_set`, in bytes.
const SET_BYTES: usize = 128;
const NO_TIME: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: i32) -> i32 {
    let make = || sys!(SYS_epoll_create1, flags);
    libc_result(new_fd(
        Call::epoll_create,
        -1,
        Kind::Epoll,
        flags & libc::EPOLL_CLOEXEC != 0,
        make,
        make,
    )) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(_: i32) -> i32 {
    // SAFETY: no pointers.
    unsafe { epoll_create1(0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(set: i32, op: i32, fd: i32, event: *mut Event) -> i32 {
    if fds::kind(set) != Kind::Epoll || mode() == Mode::Pass {
        if op == libc::EPOLL_CTL_ADD {
            family::touch(fd, "epoll_ctl");
        }
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_epoll_ctl, set, op, fd, event) }) as i32;
    }
    // SAFETY: the caller's event, absent for DEL on some callers.
    let wanted = if event.is_null() { Event { events: 0, u64: 0 } } else { unsafe { *event } };
    let ours = Event { events: wanted.events, u64: fd as u64 };
    // Nothing may be registered that could not be remembered: its events would come without the
    // server's data, and it would not be armed at promotion.
    let has_room = || {
        let is_new = op == libc::EPOLL_CTL_ADD && fds::place(fd, set).is_none();
        !is_new || fds::get(fd).is_none() || fds::free_place(fd).is_some()
    };
    let raw = || match has_room() {
        // SAFETY: memory of ours, of the sizes that are said.
        true => unsafe { syscall!(SYS_epoll_ctl, set, op, fd, &raw const ours) },
        false => -(libc::ENOSPC as isize),
    };
    let known = |r: isize| {
        if r == 0 {
            remember(set, op, fd, &wanted);
        }
        r
    };
    let r = quiet::call(|_| match mode() {
        Mode::Record => {
            signals::deliver();
            // Held, so that another thread that waits on the set looks the new descriptor up, and
            // logs its event, only after this record.
            let held = log::hold();
            let r = known(raw());
            let entry = Entry::new(Op::Result, Call::epoll_ctl, fd, r);
            log::append_held(&held, entry.lazy_if(true), &[]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Result, Call::epoll_ctl, fd) {
            Some(taken) => {
                let r = known(taken.ret());
                taken.done();
                Some(r)
            }
            // Registrations are only remembered until the sockets are real, and armed then.
            None if park::draining() => {
                Some(if has_room() { known(0) } else { -(libc::ENOSPC as isize) })
            }
            None => park::start_over(),
        },
        Mode::Pass => Some(known(raw())),
    });
    libc_result(r) as i32
}

/// A wait for readiness. The server has looked for the effects of handlers before this call, so a
/// handler that runs only now ends the wait, whatever its flags say: the kernel restarts none of
/// these calls. With `true` the call `raw` only looks, and does not wait.
fn wait_with_mask(
    call: &quiet::Call,
    mask: *const u8,
    may_block: bool,
    raw: impl Fn(bool) -> isize,
) -> Option<isize> {
    // SAFETY: the caller's mask, or null.
    let during = unsafe { mask.cast::<u64>().as_ref() }.copied().unwrap_or(u64::MAX);
    defer::flush();
    signals::take_delivered();
    signals::deliver_within(during);
    ring::before_block();
    loop {
        if (may_block || !mask.is_null()) && signals::take_delivered() {
            // What is ready comes first, so that a flood of signals starves nobody.
            let r = token::lend(|| raw(true));
            return Some(if r == 0 { -(libc::EINTR as isize) } else { r });
        }
        let r = token::apart_if(may_block, || call.sleep(|| raw(false)))?;
        if r != -(libc::EINTR as isize) || signals::deliver_and_end(during) {
            return Some(r);
        }
    }
}

fn remember(set: i32, op: i32, fd: i32, event: &Event) {
    let place = fds::place(fd, set);
    if op == libc::EPOLL_CTL_DEL {
        if let Some(p) = place {
            p.set.store(-1, Relaxed);
        }
        return;
    }
    if let Some(p) = place.or_else(|| fds::free_place(fd)) {
        p.events.store(event.events, Relaxed);
        p.data.store(event.u64, Relaxed);
        p.set.store(set, Relaxed);
        note_use(fd);
    }
}

/// Enters a descriptor that the shim has not seen opened (such as stdin): it can be in epoll sets,
/// too.
fn note_use(fd: i32) {
    if fds::kind(fd) == Kind::Own {
        fds::opened(fd, Kind::Own);
    }
}

fn own_data(set: i32, fd: u64) -> u64 {
    fds::place(fd as i32, set).map_or(0, |p| p.data.load(Relaxed))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    set: i32,
    events: *mut Event,
    max: i32,
    timeout_ms: i32,
) -> i32 {
    // SAFETY: the same call without a mask.
    unsafe { epoll_pwait(set, events, max, timeout_ms, core::ptr::null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    set: i32,
    events: *mut Event,
    max: i32,
    timeout_ms: i32,
    mask: *const u8,
) -> i32 {
    let raw =
        // SAFETY: the server's own call, with its own arguments.
        |max: i32, timeout_ms: i32| unsafe { syscall!(SYS_epoll_pwait, set, events, max, timeout_ms, mask, 8) };
    if fds::kind(set) != Kind::Epoll || mode() == Mode::Pass {
        return libc_result(raw(max, timeout_ms)) as i32;
    }
    let max = max.min(EVENTS_MAX as i32);
    let r = quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(max, timeout_ms)),
        Mode::Record => {
            let r = wait_for_events(call, (set, events, max), timeout_ms, mask, raw)?;
            log_events(set, events, r);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Data, Call::epoll_wait, set) {
            Some(taken) => Some(replay_events(set, events, max, taken)),
            None => park::start_over(),
        },
    });
    libc_result(r) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait2(
    set: i32,
    events: *mut Event,
    max: i32,
    time: *const libc::timespec,
    mask: *const u8,
) -> i32 {
    // SAFETY: a non-null timeout is the caller's.
    let timeout_ms = unsafe { time.as_ref() }.map_or(-1, |t| {
        t.tv_sec.saturating_mul(1000).saturating_add((t.tv_nsec + 999_999) / 1_000_000)
    });
    // SAFETY: the same call; a timeout is rounded up, as the kernel may sleep longer.
    unsafe { epoll_pwait(set, events, max, timeout_ms.min(i64::from(i32::MAX)) as i32, mask) }
}

/// Waits for the kernel's events, and adds those that a promoted server inherits from the dead
/// primary: connections from its accept queue make their listener readable until the server has
/// accepted them (decision 14).
fn wait_for_events(
    call: &quiet::Call,
    (set, events, max): (i32, *mut Event, i32),
    timeout_ms: i32,
    mask: *const u8,
    raw: impl Fn(i32, i32) -> isize,
) -> Option<isize> {
    let queued = inherited::queued_listener().filter(|l| fds::place(*l, set).is_some());
    let Some(listener) = queued.filter(|_| max > 0) else {
        let r = wait_with_mask(call, mask, timeout_ms != 0, |looks| {
            raw(max, if looks { 0 } else { timeout_ms })
        })?;
        // SAFETY: the kernel has filled `r` events of the caller's array.
        mark_dead(unsafe { slice_mut(events, r.max(0) as usize) });
        return Some(r);
    };
    let room = (max - 1).max(1);
    let n = wait_with_mask(call, mask, false, |_| raw(room, 0))?.max(0) as usize;
    // SAFETY: as above.
    let filled = unsafe { slice_mut(events, n) };
    mark_dead(filled);
    if n == max as usize || filled.iter().any(|it| it.u64 == listener as u64) {
        return Some(n as isize);
    }
    // SAFETY: there is room for one more.
    unsafe { *events.add(n) = Event { events: libc::EPOLLIN as u32, u64: listener as u64 } };
    Some(n as isize + 1)
}

/// Adds the error event to events of dead connections, as the kernel does for a connection that
/// was reset.
fn mark_dead(events: &mut [Event]) {
    for event in events {
        if event.events & libc::EPOLLHUP as u32 != 0 && inherited::is_dead(event.u64 as i32) {
            event.events |= libc::EPOLLERR as u32;
        }
    }
}

/// Logs the events as (events, descriptor) pairs, and puts the server's own data into them.
fn log_events(set: i32, events: *mut Event, r: isize) {
    let held = log::hold();
    // SAFETY: the kernel has filled `r` events of the caller's array.
    let events = unsafe { slice_mut(events, r.max(0) as usize) };
    if log::is_on() {
        let mut packed = [[0u32; 2]; EVENTS_MAX];
        for (to, event) in packed.iter_mut().zip(events.iter()) {
            *to = [event.events, event.u64 as u32];
        }
        let entry = Entry::new(Op::Data, Call::epoll_wait, set, r);
        log::append_held(&held, entry, &[(packed.as_ptr().cast(), events.len() * 8)]);
    }
    for event in events {
        event.u64 = own_data(set, event.u64);
    }
}

fn replay_events(set: i32, events: *mut Event, max: i32, taken: log::Taken) -> isize {
    let r = taken.ret();
    for (i, pair) in taken.payload().chunks_exact(8).take(max.max(0) as usize).enumerate() {
        let word =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        // SAFETY: the caller's array has room for `max` events.
        unsafe {
            *events.add(i) = Event { events: word(0), u64: own_data(set, u64::from(word(4))) }
        };
    }
    taken.done();
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(list: *mut libc::pollfd, count: u64, timeout_ms: i32) -> i32 {
    let time = libc::timespec {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
    };
    // SAFETY: the same call with another form of the timeout.
    unsafe {
        ppoll(
            list,
            count,
            if timeout_ms < 0 { core::ptr::null() } else { &raw const time },
            core::ptr::null(),
        )
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(
    list: *mut libc::pollfd,
    count: u64,
    timeout_ms: i32,
    _: usize,
) -> i32 {
    // SAFETY: the checked form.
    unsafe { poll(list, count, timeout_ms) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    list: *mut libc::pollfd,
    count: u64,
    time: *const libc::timespec,
    mask: *const u8,
    _: usize,
) -> i32 {
    // SAFETY: the checked form.
    unsafe { ppoll(list, count, time, mask) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    list: *mut libc::pollfd,
    count: u64,
    time: *const libc::timespec,
    mask: *const u8,
) -> i32 {
    // SAFETY: a non-null timeout is the caller's; the kernel writes to our copy.
    let mut copy = if time.is_null() { NO_TIME } else { unsafe { *time } };
    let at: *mut libc::timespec =
        if time.is_null() { core::ptr::null_mut() } else { &raw mut copy };
    let raw = |looks: bool| {
        let mut none = NO_TIME;
        let at = if looks { &raw mut none } else { at };
        // SAFETY: the server's own list and mask, and a time of ours.
        unsafe { syscall!(SYS_ppoll, list, count, at, mask, 8) }
    };
    if mode() == Mode::Pass || state::inside() || count as usize > POLL_MAX {
        // SAFETY: the caller's array, which the kernel checks; a child's only.
        let all = || unsafe { slice_mut(list, count as usize) }.iter().map(|p| p.fd);
        family::touch_with(all, "poll");
        return libc_result(raw(false)) as i32;
    }
    // SAFETY: the caller's array of `count` entries.
    let entries = unsafe { slice_mut(list, count as usize) };
    let r = quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(false)),
        Mode::Record => {
            let r = poll_world(call, entries, mask, may_block(time), raw)?;
            if log::is_on() {
                log_poll(entries, r);
            }
            Some(r)
        }
        Mode::Replay => match log::take(Op::Data, Call::poll, count as i32) {
            Some(taken) => {
                for (p, two) in entries.iter_mut().zip(taken.payload().chunks_exact(2)) {
                    p.revents = i16::from_le_bytes([two[0], two[1]]);
                }
                let r = taken.ret();
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    });
    libc_result(r) as i32
}

fn log_poll(entries: &[libc::pollfd], r: isize) {
    let mut ready = [0i16; POLL_MAX];
    ready.iter_mut().zip(entries.iter()).for_each(|(to, p)| *to = p.revents);
    log::append(
        Entry::new(Op::Data, Call::poll, entries.len() as i32, r),
        &[(ready.as_ptr().cast(), entries.len() * 2)],
    );
}

unsafe fn slice_mut<'a, T>(at: *mut T, n: usize) -> &'a mut [T] {
    if n == 0 {
        return &mut [];
    }
    // SAFETY: by the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(at, n) }
}

/// Whether a wait may block: its time limit is not zero.
fn may_block(time: *const libc::timespec) -> bool {
    // SAFETY: a non-null timeout is the caller's.
    unsafe { time.as_ref() }.is_none_or(|it| it.tv_sec != 0 || it.tv_nsec != 0)
}

/// Like [`wait_for_events`], for `poll`.
fn poll_world(
    call: &quiet::Call,
    entries: &mut [libc::pollfd],
    mask: *const u8,
    may_block: bool,
    raw: impl Fn(bool) -> isize,
) -> Option<isize> {
    if let Some(listener) = inherited::queued_listener()
        && entries.iter().any(|p| p.fd == listener)
    {
        for p in entries.iter_mut() {
            p.revents = if p.fd == listener { libc::POLLIN } else { 0 };
        }
        return Some(entries.iter().filter(|p| p.revents != 0).count() as isize);
    }
    let r = wait_with_mask(call, mask, may_block, raw)?;
    for p in entries.iter_mut().filter(|p| p.revents & libc::POLLHUP != 0) {
        if inherited::is_dead(p.fd) {
            p.revents |= libc::POLLERR;
        }
    }
    Some(r)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    n: i32,
    r: *mut u8,
    w: *mut u8,
    e: *mut u8,
    time: *mut libc::timeval,
) -> i32 {
    let mut spec = NO_TIME;
    if !time.is_null() {
        // SAFETY: the caller's timeout.
        let t = unsafe { *time };
        spec = libc::timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_usec * 1000 };
    }
    // SAFETY: the same call with another form of the timeout.
    unsafe {
        pselect(
            n,
            r,
            w,
            e,
            if time.is_null() { core::ptr::null() } else { &raw const spec },
            core::ptr::null(),
        )
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    n: i32,
    r: *mut u8,
    w: *mut u8,
    e: *mut u8,
    time: *const libc::timespec,
    mask: *const u8,
) -> i32 {
    // SAFETY: as in ppoll.
    let mut copy = if time.is_null() { NO_TIME } else { unsafe { *time } };
    let at: *mut libc::timespec =
        if time.is_null() { core::ptr::null_mut() } else { &raw mut copy };
    let with_size = [mask as usize, 8];
    let sets = [r, w, e];
    let bytes = (n.max(0) as usize).div_ceil(64) * 8;
    let raw = |looks: bool| {
        let mut none = NO_TIME;
        let at = if looks { &raw mut none } else { at };
        // SAFETY: the server's own sets, and memory of ours.
        unsafe { syscall!(SYS_pselect6, n, r, w, e, at, with_size.as_ptr()) }
    };
    if mode() == Mode::Pass || bytes > SET_BYTES {
        family::touch_sets(n, [r, w, e].map(<*mut u8>::cast_const), "select");
        return libc_result(raw(false)) as i32;
    }
    let result = quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(false)),
        Mode::Record => {
            let result = select_world(call, n, &sets, mask, may_block(time), raw)?;
            let parts =
                sets.map(|s| (s.cast_const(), if s.is_null() || result < 0 { 0 } else { bytes }));
            log::append(Entry::new(Op::Data, Call::select, n, result), &parts);
            Some(result)
        }
        Mode::Replay => match log::take(Op::Data, Call::select, n) {
            Some(taken) => {
                let mut from = taken.payload();
                for set in sets.iter().filter(|s| !s.is_null()) {
                    let len = bytes.min(from.len());
                    // SAFETY: the caller's set covers `n` descriptors.
                    unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), *set, len) };
                    from = &from[len..];
                }
                let result = taken.ret();
                taken.done();
                Some(result)
            }
            None => park::start_over(),
        },
    });
    libc_result(result) as i32
}

/// Like [`wait_for_events`], for `select`.
fn select_world(
    call: &quiet::Call,
    n: i32,
    sets: &[*mut u8; 3],
    mask: *const u8,
    may_block: bool,
    raw: impl Fn(bool) -> isize,
) -> Option<isize> {
    if let Some(listener) = inherited::queued_listener().filter(|l| *l < n && !sets[0].is_null()) {
        let (byte, bit) = (listener as usize / 8, 1u8 << (listener % 8));
        let bytes = (n as usize).div_ceil(64) * 8;
        // SAFETY: the caller's sets cover `n` descriptors.
        unsafe {
            if *sets[0].add(byte) & bit != 0 {
                sets.iter()
                    .filter(|s| !s.is_null())
                    .for_each(|s| core::ptr::write_bytes(*s, 0, bytes));
                *sets[0].add(byte) = bit;
                return Some(1);
            }
        }
    }
    wait_with_mask(call, mask, may_block, |looks| match looks {
        true => look_at(sets, n, || raw(true)),
        false => raw(false),
    })
}

/// Looks which descriptors are ready. If none is, the sets stay as they were: the server's call is
/// an interrupted one then.
fn look_at(sets: &[*mut u8; 3], n: i32, raw: impl FnOnce() -> isize) -> isize {
    let bytes = (n.max(0) as usize).div_ceil(64) * 8;
    let mut kept = [[0u8; SET_BYTES]; 3];
    let given = || sets.iter().enumerate().filter(|(_, set)| !set.is_null());
    for (i, set) in given() {
        // SAFETY: the caller's sets cover `n` descriptors, which ours have room for.
        unsafe { core::ptr::copy_nonoverlapping(*set, kept[i].as_mut_ptr(), bytes) };
    }
    let r = raw();
    for (i, set) in given().filter(|_| r == 0) {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(kept[i].as_ptr(), *set, bytes) };
    }
    r
}

/// Registers every remembered descriptor again: a fresh `EPOLL_CTL_ADD` reports readiness that
/// exists already, with level and with edge triggering.
pub fn rearm() {
    fds::for_each_place(|fd, place| {
        let mut event = Event { events: place.events.load(Relaxed), u64: fd as u64 };
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe {
            syscall!(
                SYS_epoll_ctl,
                place.set.load(Relaxed),
                libc::EPOLL_CTL_ADD,
                fd,
                &raw mut event
            )
        };
    });
}
