//! Promotion in the server: the replica, whose log has ended, lists its listeners for the daemon,
//! waits until its sockets are real, and becomes the server.

use crate::base::fds::{self, Kind};
use crate::base::handed;
use crate::base::state::{self, Mode, header};
use crate::base::sys::{self, sys};
use crate::base::{binds, log, park, processes, ring, waiting};
use crate::calls::{clocks, inherited, local, ready};
use core::sync::atomic::Ordering::*;
use holdfast_wire::shm::mode as shared_mode;

/// Longest time in ns that the promoting thread waits for the others to reach the log's end.
const OTHERS_WAIT_NS: u64 = 5_000_000;
/// The same in a family of processes.
const FAMILY_WAIT_NS: u64 = 400_000_000;

/// Turns the replica into the server. One thread runs this, at the end of the log; in a family one
/// thread of each process, and that of the first process deals with the daemon.
pub fn lead() {
    log::wake_turns();
    if state::place() == 0 {
        offer();
    }
    let h = header();
    loop {
        let seen = h.mode.0.load(Acquire);
        if shared_mode::is_alone(seen) {
            break;
        }
        sys::futex_wait(&h.mode.0, seen, true, 0);
    }
    go_live();
}

/// Tells the daemon that it may make the sockets real.
fn offer() {
    wait_for_others();
    binds::publish();
    if state::is_family() {
        processes::bury();
        binds::conclude();
        // Before any process goes on: all must have the same clocks.
        clocks::continue_from_log();
    }
    let h = header();
    if h.mode.0.compare_exchange(shared_mode::DRAIN, shared_mode::PARKED, SeqCst, SeqCst).is_ok() {
        h.daemon_waiting.0.store(1, SeqCst);
        ring::kick();
    }
}

fn wait_for_others() {
    let wait_ns = if state::is_family() { FAMILY_WAIT_NS } else { OTHERS_WAIT_NS };
    sys::look_until(wait_ns, sys::LOOK_NS, processes::all_at_end);
}

fn go_live() {
    if !state::is_family() {
        clocks::continue_from_log();
    }
    fds::for_each(|fd, f| match f.kind() {
        Kind::Outside => inherited::bury(fd, f),
        Kind::Device => local::empty_inotify(fd),
        // A UNIX listener is bound already; TCP listeners are the daemon's
        // work.
        Kind::PlainListener if fds::is_unix(fd) => {
            sys!(SYS_listen, fd, f.backlog.load(Relaxed));
        }
        _ => {}
    });
    inherited::forget();
    waiting::drop_all();
    if !state::is_family() {
        take_queue();
    }
    ready::rearm();
    // From here on it is a server that runs alone, like any other.
    state::set_mode(Mode::Record);
    if state::is_family() && state::place() == 0 {
        processes::deliver_sent();
    }
    let (from, to) = (shared_mode::LIVE, shared_mode::SOLO);
    let _ended = header().mode.0.compare_exchange(from, to, SeqCst, SeqCst);
    park::release();
    log::wake_turns();
}

/// Takes the connections of the dead primary's accept queue from the daemon,
/// each in a message with its listener's number.
fn take_queue() {
    while inherited::has_room() {
        let Some((listener, fd)) = handed::receive() else { return };
        inherited::add(listener, fd);
    }
}
