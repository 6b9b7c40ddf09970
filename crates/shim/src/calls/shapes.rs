//! Common forms of calls: those whose outcome is a number, those that fill the caller's memory,
//! and those that make a descriptor.

use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry, Taken};
use crate::base::state::{Mode, mode};
use crate::base::sys::sys;
use crate::base::table::Call;
use crate::base::{defer, park, quiet};
use crate::calls::signals;
use holdfast_wire::log::Op;

/// A call whose outcome is just a number. With `repeat` the replica makes it, too, and does not
/// use the kernel's answer.
pub fn simple(call: Call, fd: i32, repeat: bool, raw: impl Fn() -> isize) -> isize {
    simple_after(defer::flush_fd, (call, fd, repeat), raw)
}

/// Like [`simple`], for a call whose outcome and effect are the same before and behind what is
/// deferred.
pub fn beside_output(call: Call, fd: i32, repeat: bool, raw: impl Fn() -> isize) -> isize {
    simple_after(|_| (), (call, fd, repeat), raw)
}

fn simple_after(
    before: impl Fn(i32),
    (call, fd, repeat): (Call, i32, bool),
    raw: impl Fn() -> isize,
) -> isize {
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            before(fd);
            let r = this.sleep(&raw)?;
            log::append(Entry::new(Op::Result, call, fd, r), &[]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Result, call, fd) {
            Some(taken) => {
                if repeat {
                    raw();
                }
                let r = taken.ret();
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// A call with an out-parameter: `outs` are the (address, bytes) that it fills.
pub fn with_data(call: Call, fd: i32, outs: &[(*mut u8, usize)], raw: impl Fn() -> isize) -> isize {
    with_filled(call, fd, outs, |_| usize::MAX, raw)
}

/// Like [`with_data`], for a call that answers how many bytes it has filled, or would.
pub fn with_bytes(call: Call, fd: i32, out: (*mut u8, usize), raw: impl Fn() -> isize) -> isize {
    with_filled(call, fd, &[out], |r| r.max(0) as usize, raw)
}

/// `filled` says of a call's answer how much of each of `outs` it has filled at most.
fn with_filled(
    call: Call,
    fd: i32,
    outs: &[(*mut u8, usize)],
    filled: impl Fn(isize) -> usize,
    raw: impl Fn() -> isize,
) -> isize {
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            defer::flush_fd(fd);
            let r = this.sleep(&raw)?;
            let mut parts = [(core::ptr::null(), 0); 4];
            let n = if r < 0 { 0 } else { outs.len().min(4) };
            for (part, out) in parts.iter_mut().zip(outs) {
                *part =
                    (out.0.cast_const(), if out.0.is_null() { 0 } else { out.1.min(filled(r)) });
            }
            log::append(Entry::new(Op::Data, call, fd, r), &parts[..n]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Data, call, fd) {
            Some(taken) => {
                copy_in(outs, taken.payload());
                let r = taken.ret();
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// A question to libc whose answer is more than a number. `tell` logs it. On the replica `begin`
/// runs before the record is there, and `give` makes the primary's answer of it.
pub fn question<A, P>(
    call: Call,
    ask: impl Fn() -> A,
    tell: impl Fn(&A),
    begin: impl Fn() -> P,
    give: impl Fn(P, &Taken) -> A,
) -> A {
    quiet::call(|_| match mode() {
        Mode::Pass => Some(ask()),
        Mode::Record => {
            signals::deliver();
            defer::flush();
            let answer = ask();
            if log::is_on() {
                tell(&answer);
            }
            Some(answer)
        }
        Mode::Replay => {
            let begun = begin();
            match log::take(Op::Data, call, -1) {
                Some(taken) => {
                    let answer = give(begun, &taken);
                    taken.done();
                    Some(answer)
                }
                None => park::start_over(),
            }
        }
    })
}

fn copy_in(outs: &[(*mut u8, usize)], payload: &[u8]) {
    let mut payload = payload;
    for &(to, len) in outs.iter().filter(|o| !o.0.is_null()) {
        let n = len.min(payload.len());
        // SAFETY: the caller's out-parameter of `len` bytes.
        unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), to, n) };
        payload = &payload[n..];
    }
}

/// A call that makes a descriptor. `stand_in` makes the replica's.
pub fn new_fd(
    call: Call,
    arg: i32,
    kind: Kind,
    cloexec: bool,
    raw: impl Fn() -> isize,
    stand_in: impl Fn() -> isize,
) -> isize {
    quiet::call(|_| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            let held = log::hold();
            let r = refuse_high(raw());
            log::append_held(&held, Entry::new(Op::NewFd, call, arg, r), &[]);
            if r >= 0 {
                fds::opened(r as i32, kind);
            }
            Some(r)
        }
        Mode::Replay => match log::take(Op::NewFd, call, arg) {
            Some(taken) => {
                let r = taken.ret();
                if r >= 0 {
                    fds::renumber(stand_in(), r, cloexec);
                    fds::opened(r as i32, kind);
                }
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// Closes and refuses a descriptor whose number is too high for the shim's table, or is one of the
/// shim's own.
pub fn refuse_high(r: isize) -> isize {
    if r >= fds::FD_MAX as isize || r >= 0 && fds::is_shim(r as i32) {
        sys!(SYS_close, r);
        return -(libc::EMFILE as isize);
    }
    r
}

#[cfg(test)]
mod tests;
