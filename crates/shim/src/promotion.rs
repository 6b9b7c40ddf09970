//! Promotion: the replica, whose log has ended, tells the daemon of its listeners,
//! waits until its sockets are real, and goes live.

use crate::base::fds::{self, Kind};
use crate::base::state::{self, CONTROL_FD, Mode, header};
use crate::base::sys::{self, sys, syscall};
use crate::base::{log, park, ring};
use crate::calls::{binds, clocks, inherited, ready};
use core::sync::atomic::Ordering::*;
use holdfast_wire::shm::mode as shared_mode;

/// Longest time for which the main thread waits for the others to reach the
/// log's end, in ms.
const OTHERS_WAIT_MS: u32 = 3;

/// Turns the replica into the server: run by one thread, at the end of the log.
pub fn lead() {
    log::wake_turns();
    wait_for_others();
    binds::publish();
    let h = header();
    if h.mode.0.compare_exchange(shared_mode::DRAIN, shared_mode::PARKED, SeqCst, SeqCst).is_ok() {
        h.daemon_waiting.0.store(1, SeqCst);
        ring::kick();
    }
    loop {
        match h.mode.0.load(Acquire) {
            shared_mode::LIVE => break,
            other => {
                sys::futex_wait(&h.mode.0, other, true, 0);
            }
        }
    }
    go_live();
}

fn wait_for_others() {
    for _ in 0..OTHERS_WAIT_MS * 20 {
        if park::all_at_end() {
            return;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_nanosleep, &raw const pause, 0usize) };
    }
}

fn go_live() {
    clocks::continue_from_log();
    fds::for_each(|fd, f| match f.kind() {
        Kind::Outside => inherited::bury(fd, f),
        // A UNIX listener is bound already; TCP listeners are the daemon's
        // work.
        Kind::PlainListener if fds::is_unix(fd) => {
            sys!(SYS_listen, fd, f.backlog.load(Relaxed));
        }
        _ => {}
    });
    take_queue();
    ready::rearm();
    // From here on it is a server that speaks alone, like any other.
    state::set_mode(Mode::Record);
    let (from, to) = (shared_mode::LIVE, shared_mode::SOLO);
    let _ended = header().mode.0.compare_exchange(from, to, SeqCst, SeqCst);
    park::release();
    log::wake_turns();
}

/// Takes the connections of the dead primary's accept queue from the daemon,
/// each in a message with its listener's number.
fn take_queue() {
    inherited::forget();
    while inherited::has_room() {
        let Some((listener, fd)) = receive_fd() else { return };
        inherited::add(listener, fd);
    }
}

fn receive_fd() -> Option<(i32, i32)> {
    let mut listener = 0i32;
    let mut control = [0u64; 4];
    let mut iov = libc::iovec { iov_base: (&raw mut listener).cast(), iov_len: 4 };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_recvmsg, CONTROL_FD.load(Relaxed), &raw mut message, flags) };
    if r != 4 || message.msg_controllen < 20 {
        return None;
    }
    // One SCM_RIGHTS message: cmsghdr of 16 bytes, then the descriptor.
    Some((listener, control[2] as u32 as i32))
}
