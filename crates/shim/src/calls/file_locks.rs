//! Locks on files. The processes of a family take them in the log's order, as threads take locks
//! in memory. So what they guard, files and shared memory, needs no record of its own.

use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, inside, mode, threaded};
use crate::base::sys::{libc_result, sys, syscall};
use crate::base::table::Call;
use crate::base::{defer, park, quiet, token};
use crate::calls::shapes::with_data;
use crate::calls::signals;
use holdfast_wire::log::Op;

fn are_ordered() -> bool {
    state::is_family() && threaded() && mode() != Mode::Pass && !inside()
}

/// Takes a lock by `raw`, which blocks only if `may_block`; on the replica by `wait`, if the
/// primary got the lock.
fn take(fd: i32, may_block: bool, raw: impl Fn() -> isize, wait: impl Fn() -> isize) -> isize {
    quiet::call(|this| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            defer::flush();
            let r = token::apart_if(may_block, || this.sleep(&raw))?;
            log::append(Entry::new(Op::Lock, Call::fcntl, fd, r), &[]);
            Some(r)
        }
        Mode::Replay => match log::take(Op::Lock, Call::fcntl, fd) {
            Some(taken) => {
                let r = taken.ret();
                while r == 0 && wait() == -(libc::EINTR as isize) {}
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// A lock by `fcntl`; `None` if the command takes none, or locks need no order.
pub fn of_fcntl(fd: i32, command: i32, arg: usize) -> Option<isize> {
    // SAFETY: the server's own call, with its own arguments.
    let call = |command: i32| unsafe { syscall!(SYS_fcntl, fd, command, arg) };
    let waits = match command {
        libc::F_SETLK | libc::F_SETLKW => libc::F_SETLKW,
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW => libc::F_OFD_SETLKW,
        libc::F_GETLK | libc::F_OFD_GETLK if are_ordered() => {
            let room = size_of::<libc::flock>();
            return Some(with_data(Call::fcntl, fd, &[(arg as *mut u8, room)], || call(command)));
        }
        _ => return None,
    };
    // SAFETY: the caller's lock, which begins with its type.
    let unlocks = || unsafe { (arg as *const i16).read_unaligned() } == libc::F_UNLCK as i16;
    if !are_ordered() || arg == 0 || unlocks() {
        return None;
    }
    Some(take(fd, command == waits, || call(command), || call(waits)))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn flock(fd: i32, operation: i32) -> i32 {
    let raw = || sys!(SYS_flock, fd, operation);
    if !are_ordered() || operation & libc::LOCK_UN != 0 {
        return libc_result(raw()) as i32;
    }
    let wait = || sys!(SYS_flock, fd, operation & !libc::LOCK_NB);
    let may_block = operation & libc::LOCK_NB == 0;
    libc_result(take(fd, may_block, raw, wait)) as i32
}
