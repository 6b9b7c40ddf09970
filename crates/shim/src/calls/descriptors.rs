//! Calls on descriptors as such: closing, duplicating, flags, and the kinds of descriptors that
//! are real on both members (pipes, eventfds, timers).

use crate::base::commit;
use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, inside, mode, threaded};
use crate::base::sys::{libc_result, set_errno, sys, syscall};
use crate::base::table::Call;
use crate::base::{binds, conns, defer, park, quiet, report};
use crate::calls::shapes::{new_fd, simple};
use crate::calls::{clocks, file_locks, inherited, signals};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_wire::log::{NO_CONN, Op};

pub fn close_raw(fd: i32) -> isize {
    let raw = || sys!(SYS_close, fd);
    if fds::is_shim(fd) {
        return -(libc::EBADF as isize);
    }
    let kind = fds::kind(fd);
    if kind == Kind::Own && !threaded() || mode() == Mode::Pass || inside() {
        return raw();
    }
    let conn = if kind == Kind::Own { NO_CONN } else { conns::of_fd(fd) };
    if conn != NO_CONN && mode() == Mode::Record {
        defer::flush_fd(fd);
    }
    if conn != NO_CONN && state::is_family() {
        return close_of_family(fd, conn, raw);
    }
    // The number must be forgotten before another thread can get it from the kernel.
    let forget = || {
        if conn != NO_CONN {
            conns::drop_ref(conn, fd);
        }
        fds::closed(fd);
        if kind == Kind::Listener && state::is_family() && mode() == Mode::Replay {
            // Another process that holds the listener lists it from now on.
            binds::publish();
        }
    };
    if conn != NO_CONN && conns::is_last_ref(conn) {
        return close_conn(fd, conn, forget, raw);
    }
    close_plain(fd, forget, &raw)
}

/// Closes a descriptor. If there are several threads, numbers become free in the same order on
/// both members.
pub fn close_plain(fd: i32, forget: impl Fn(), raw: &impl Fn() -> isize) -> isize {
    quiet::call(|_| {
        signals::deliver();
        match mode() {
            Mode::Replay => {
                let taken = log::take(Op::Result, Call::close, fd);
                forget();
                let r = raw();
                if let Some(taken) = taken {
                    taken.done();
                }
                Some(r)
            }
            _ => {
                let held = log::hold();
                let entry = Entry::new(Op::Result, Call::close, fd, 0).lazy_if(true);
                log::append_held(&held, entry, &[]);
                forget();
                Some(raw())
            }
        }
    })
}

/// Closes a descriptor of a connection in a family: whether that ends the connection is known only
/// with the log held.
fn close_of_family(fd: i32, conn: u32, raw: impl Fn() -> isize) -> isize {
    let record = |is_end: bool| match is_end {
        true => Entry { op: Op::Close, flags: 0, fd, conn, ret: 0, hash: 0 },
        false => Entry::new(Op::Result, Call::close, fd, 0).lazy_if(true),
    };
    let leave = |is_end: bool| {
        if is_end {
            conns::end(conn);
        }
        fds::closed(fd);
        raw()
    };
    quiet::call(|_| {
        signals::deliver();
        if mode() != Mode::Replay {
            let held = log::hold();
            let is_end = conns::let_go(conn, fd);
            log::append_held(&held, record(is_end), &[]);
            drop(held);
            if is_end {
                commit::commit_all();
            }
            return Some(leave(is_end));
        }
        let Some(taken) = log::take_any() else {
            if !park::draining() {
                return park::start_over();
            }
            return Some(leave(conns::let_go(conn, fd)));
        };
        let is_end = conns::let_go(conn, fd);
        let own = record(is_end);
        if (taken.header.op, taken.header.fd, taken.header.hash) != (own.op as u8, fd, own.hash) {
            report::diverged_at(&taken.header, own.op, Call::close, fd);
        }
        let r = leave(is_end);
        taken.done();
        Some(r)
    })
}

/// Closes a connection: the gate must know of the end before the kernel's FIN
/// passes (decision 11), and the replica's output outlives its descriptor.
fn close_conn(fd: i32, conn: u32, forget: impl Fn(), raw: impl Fn() -> isize) -> isize {
    quiet::call(|_| match mode() {
        Mode::Replay => match log::take(Op::Close, Call::none, fd) {
            Some(taken) => {
                forget();
                raw();
                taken.done();
                Some(0)
            }
            None if park::draining() => {
                forget();
                Some(raw())
            }
            None => park::start_over(),
        },
        _ => {
            signals::deliver();
            log::append(Entry { op: Op::Close, flags: 0, fd, conn, ret: 0, hash: 0 }, &[]);
            commit::commit_all();
            forget();
            Some(raw())
        }
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: i32) -> i32 {
    libc_result(close_raw(fd)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: i32) -> i32 {
    if mode() == Mode::Pass {
        return libc_result(sys!(SYS_close_range, first, last, flags)) as i32;
    }
    // The shim's own descriptors are never closed.
    let flags = flags as u32;
    if flags & !(libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) != 0 || first > last {
        return libc_result(-(libc::EINVAL as isize)) as i32;
    }
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
        let unshared = sys!(SYS_unshare, libc::CLONE_FILES);
        if unshared < 0 {
            return libc_result(unshared) as i32;
        }
    }
    let theirs = |fd: &u32| !fds::is_shim(*fd as i32);
    for fd in (first..=last.min(fds::FD_MAX as u32 - 1)).filter(theirs) {
        if flags & libc::CLOSE_RANGE_CLOEXEC != 0 {
            sys!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
        } else if sys!(SYS_fcntl, fd, libc::F_GETFD) >= 0 {
            close_raw(fd as i32);
        }
    }
    0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: i32) {
    // SAFETY: no pointers.
    unsafe { close_range(first.max(0) as u32, u32::MAX, 0) };
}

/// Duplicates on both members: the number is the same because it is the lowest
/// free one, or by the log if threads compete for it.
fn duplicate(fd: i32, cloexec: bool, make: impl Fn() -> isize) -> isize {
    if mode() == Mode::Pass || inside() {
        return make();
    }
    if mode() == Mode::Record && fds::kind(fd) == Kind::Conn {
        // What waits would not be seen by the new number.
        defer::flush_fd(fd);
    }
    let r = if threaded() {
        new_fd(Call::dup, fd, fds::kind(fd), cloexec, &make, &make)
    } else {
        make()
    };
    if r >= 0 && fds::kind(fd) != Kind::Own {
        let conn = conns::of_fd(fd);
        fds::opened(r as i32, fds::kind(fd));
        inherited::duplicated(fd, r as i32);
        if let (Some(new), true) = (fds::get(r as i32), conn != NO_CONN) {
            new.conn.store(conn, Relaxed);
            conns::add_ref(conn);
        }
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: i32) -> i32 {
    libc_result(duplicate(fd, false, || sys!(SYS_dup, fd))) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: i32, to: i32) -> i32 {
    if from == to {
        return libc_result(sys!(SYS_dup2, from, to)) as i32;
    }
    // SAFETY: no pointers.
    unsafe { dup3(from, to, 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: i32, to: i32, flags: i32) -> i32 {
    if fds::is_shim(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    if fds::is_virtual(to) && from != to {
        close_raw(to);
    }
    let cloexec = flags & libc::O_CLOEXEC != 0;
    libc_result(duplicate(from, cloexec, || sys!(SYS_dup3, from, to, flags))) as i32
}

fn fcntl_raw(fd: i32, command: i32, arg: usize) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_fcntl, fd, command, arg) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicate(fd, command == libc::F_DUPFD_CLOEXEC, raw);
    }
    if let Some(r) = file_locks::of_fcntl(fd, command, arg) {
        return r;
    }
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        return raw();
    }
    match command {
        // Flags belong to the descriptors, which are real on both members.
        libc::F_GETFD | libc::F_SETFD | libc::F_GETFL | libc::F_SETFL => raw(),
        _ => simple(Call::fcntl, fd, false, raw),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(fd: i32, command: i32, arg: usize) -> i32 {
    libc_result(fcntl_raw(fd, command, arg)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(fd: i32, command: i32, arg: usize) -> i32 {
    libc_result(fcntl_raw(fd, command, arg)) as i32
}

/// A pair of descriptors that is real on both members.
fn pair(call: Call, fds_out: *mut i32, cloexec: bool, make: impl Fn() -> isize) -> isize {
    // SAFETY: the caller's array of two.
    let numbers = move || unsafe { [fds_out.read(), fds_out.add(1).read()] };
    let note = |r: isize| {
        if r == 0 {
            numbers().into_iter().for_each(|fd| fds::opened(fd, Kind::Local));
        }
        r
    };
    quiet::call(|_| match mode() {
        Mode::Pass => Some(make()),
        Mode::Record => {
            signals::deliver();
            let held = log::hold();
            let r = note(make());
            let n = if r == 0 { 8 } else { 0 };
            log::append_held(
                &held,
                Entry::new(Op::NewPair, call, -1, r),
                &[(fds_out.cast_const().cast(), n)],
            );
            Some(r)
        }
        Mode::Replay => {
            let Some(taken) = log::take(Op::NewPair, call, -1) else { return park::start_over() };
            let r = taken.ret();
            if r == 0 && make() == 0 && taken.payload().len() >= 8 {
                let want = [0, 4].map(|at| {
                    i32::from_le_bytes(taken.payload()[at..at + 4].try_into().unwrap_or_default())
                });
                fds::renumber_pair(numbers(), want, cloexec);
                // SAFETY: as above.
                unsafe {
                    fds_out.write(want[0]);
                    fds_out.add(1).write(want[1]);
                }
            }
            note(r);
            taken.done();
            Some(r)
        }
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pipe2(out: *mut i32, flags: i32) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    libc_result(pair(Call::pipe, out, flags & libc::O_CLOEXEC != 0, || unsafe {
        syscall!(SYS_pipe2, out, flags)
    })) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pipe(out: *mut i32) -> i32 {
    // SAFETY: the same call without flags.
    unsafe { pipe2(out, 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socketpair(domain: i32, kind: i32, protocol: i32, out: *mut i32) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let make = || unsafe { syscall!(SYS_socketpair, domain, kind, protocol, out) };
    libc_result(pair(Call::socketpair, out, kind & libc::SOCK_CLOEXEC != 0, make)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn eventfd(count: u32, flags: i32) -> i32 {
    let make = || sys!(SYS_eventfd2, count, flags);
    libc_result(new_fd(Call::eventfd, -1, Kind::Local, flags & libc::EFD_CLOEXEC != 0, make, make))
        as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_create(clock: i32, flags: i32) -> i32 {
    let make = || sys!(SYS_timerfd_create, clock, flags);
    libc_result(new_fd(Call::timerfd, -1, Kind::Local, flags & libc::O_CLOEXEC != 0, make, make))
        as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_settime(fd: i32, flags: i32, new: *const u8, old: *mut u8) -> i32 {
    let raw = || {
        let (spec, is_moment) = (new.cast(), flags & libc::TFD_TIMER_ABSTIME != 0);
        let own = clocks::timer(spec, is_moment);
        let at = own.as_ref().map_or(new, |own| core::ptr::from_ref(own).cast());
        // SAFETY: a timer of ours or the server's own, and its own pointer.
        unsafe { syscall!(SYS_timerfd_settime, fd, flags, at, old) }
    };
    if !fds::is_virtual(fd) {
        return libc_result(raw()) as i32;
    }
    libc_result(simple(Call::timerfd, fd, true, raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_init1(flags: i32) -> i32 {
    let make = || sys!(SYS_inotify_init1, flags);
    libc_result(new_fd(Call::inotify, -1, Kind::Device, flags & libc::O_CLOEXEC != 0, make, make))
        as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_init() -> i32 {
    // SAFETY: no pointers.
    unsafe { inotify_init1(0) }
}
