//! Texts that the shim reports to the daemon and on the server's standard error: how the members
//! differ, why protection has ended, what is refused.

use crate::base::ring;
use crate::base::state::{self, Mode, header, header_ptr, mode, tid};
use crate::base::sys::{self, decimal, sys, syscall};
use crate::base::table::{self, Call};
use crate::base::token;
use core::ffi::CStr;
use core::sync::atomic::Ordering::*;
use holdfast_wire::log::{Header, Op};
use holdfast_wire::shm::mode as shared_mode;

/// Reports that the replica differs from the primary, and why; it stops for good.
pub fn diverged(reason: &str) -> ! {
    report(&[reason])
}

/// Reports that the replica makes another call than the primary at this place of the log.
pub fn diverged_at(record: &Header, op: Op, call: Call, fd: i32) -> ! {
    let mut n = [[0u8; 24]; 4];
    let [a, b, c, d] = &mut n;
    let there = Op::from_u8(record.op);
    let (space, name) = match there {
        Some(op) if has_call(op) => called(record.hash as usize),
        _ => called(0),
    };
    let (own_space, own_name) = called(call as usize);
    report(&[
        "the primary did ",
        there.map_or("?", Op::name),
        space,
        name,
        there.map_or(" on ", place_of),
        decimal(i64::from(record.fd), a),
        " (result ",
        decimal(record.ret, b),
        "), the replica does ",
        op.name(),
        own_space,
        own_name,
        place_of(op),
        decimal(i64::from(fd), c),
        " (thread ",
        decimal(i64::from(tid()), d),
        "): ",
        hint(there, op),
    ])
}

/// Whether records of `op` carry the number of a call.
fn has_call(op: Op) -> bool {
    matches!(
        op,
        Op::NewFd
            | Op::NewPair
            | Op::Result
            | Op::Data
            | Op::Clock
            | Op::Lock
            | Op::Thread
            | Op::Fork
            | Op::Exit
    )
}

/// A call's name and the word in front of it; empty for none.
fn called(number: usize) -> (&'static str, &'static str) {
    match table::TABLE.get(number) {
        Some((name, call)) if *call != Call::none => (" ", name),
        _ => ("", ""),
    }
}

/// What the number in records of `op` means.
fn place_of(op: Op) -> &'static str {
    match op {
        Op::Lock => " from place ",
        Op::Clock => " of clock ",
        Op::Thread | Op::Fork | Op::Exit => " with number ",
        _ => " on descriptor ",
    }
}

/// What an operator can do about a difference: the calls that differ tell the likely cause.
fn hint(there: Option<Op>, here: Op) -> &'static str {
    let either = |op: Op| here == op || there == Some(op);
    if either(Op::Fork) {
        "only one of them forks: start the server in the foreground, as one process"
    } else if state::threaded() && token::is_chosen() {
        "threads ran beside each other (`status` counts overlaps), or data before differed"
    } else if either(Op::Lock) {
        "threads race outside pthread locks, as by atomics: use fewer threads or workers, or \
         `run = \"one-at-a-time\"` in [server]"
    } else if state::threaded() {
        "threads that race outside pthread locks, or other data before: use fewer threads or \
         workers, and the same files and settings on both members"
    } else {
        "what they know differs: make files and settings alike, and keep addresses from \
         being randomised on both members"
    }
}

/// Reports that the replica writes other bytes than the primary.
pub fn diverged_write(fd: i32, intent: &Header, len: usize) -> ! {
    let mut n = [[0u8; 24]; 3];
    let [a, b, c] = &mut n;
    report(&[
        "the replica writes other bytes than the primary: descriptor ",
        decimal(i64::from(fd), a),
        ", primary ",
        decimal(intent.ret, b),
        " bytes, replica ",
        decimal(len as i64, c),
        " bytes: ",
        if intent.ret == len as i64 {
            "random bytes or addresses that differ (is address randomisation off on both members?), or \
             memory that somebody has written over"
        } else if state::threaded() {
            "threads that race outside pthread locks, or files that differ"
        } else {
            "files or settings that differ"
        },
    ])
}

/// Reports that a descriptor number of the primary is in use here: libc, or a thread past the
/// shim, has opened or closed something at another time.
pub fn diverged_fd(fd: i32) -> ! {
    let mut n = [0u8; 24];
    let number = decimal(i64::from(fd), &mut n);
    let mut path = [0u8; 32];
    let prefix = b"/proc/self/fd/";
    path[..prefix.len()].copy_from_slice(prefix);
    path[prefix.len()..][..number.len()].copy_from_slice(number.as_bytes());
    let mut name = [0u8; 128];
    // SAFETY: memory of ours, of the sizes that are said.
    let len = unsafe {
        syscall!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), name.as_mut_ptr(), name.len())
    };
    let name = core::str::from_utf8(&name[..len.max(0) as usize]).unwrap_or("?");
    report(&["descriptor ", number, " is free on the primary, and ", name, " on the replica"])
}

/// Reports that a process made by the replica has another id than the primary's.
pub fn diverged_number(there: i32, here: i32) -> ! {
    let mut n = [[0u8; 24]; 2];
    let [a, b] = &mut n;
    report(&[
        "a process is number ",
        decimal(i64::from(there), a),
        " on the primary, and ",
        decimal(i64::from(here), b),
        " here: the server starts programs beside its own processes, which the replica does not",
    ])
}

/// Most bytes of a path in a reason.
const PATH_SHOWN_BYTES: usize = 300;

/// An ellipsis if the path is too long, and its end.
fn shown(path: *const u8) -> (&'static str, &'static str) {
    // SAFETY: the server's path string, which lasts for the call that reports it.
    let path = unsafe { CStr::from_ptr(path.cast()) }.to_str().unwrap_or("?");
    let mut from = path.len().saturating_sub(PATH_SHOWN_BYTES);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    (if from == 0 { "" } else { "..." }, &path[from..])
}

/// Reports that a file is not what it is on the primary; `how` ends with the remedy.
pub fn diverged_file(what: &str, path: *const u8, how: &str) -> ! {
    let (cut, path) = shown(path);
    report(&["the ", what, " ", cut, path, " ", how])
}

/// Reports that a file could be opened on one member only.
pub fn diverged_open(path: *const u8, here: isize, there: isize) -> ! {
    let (cut, path) = shown(path);
    let mut n = [[0u8; 24]; 2];
    let [a, b] = &mut n;
    report(&[
        "opening ",
        cut,
        path,
        " gave ",
        decimal(there as i64, a),
        " on the primary and ",
        decimal(here as i64, b),
        " here",
    ])
}

fn report(parts: &[&str]) -> ! {
    sys::say(parts);
    let h = header();
    h.reason_len.store(write_reason(parts), Release);
    h.mode.0.store(shared_mode::DIVERGED, SeqCst);
    h.daemon_waiting.0.store(1, SeqCst);
    ring::kick();
    loop {
        sys!(SYS_pause);
    }
}

/// Writes the reason for the daemon into the header, and returns its length. Nobody else writes
/// there until the caller has published the length.
fn write_reason(parts: &[&str]) -> u32 {
    // SAFETY: the header is mapped. No reference is made to what is written.
    let (reason, room) = unsafe {
        let field = &raw mut (*header_ptr()).reason;
        (field.cast::<u8>(), (*field).len())
    };
    let mut len = 0;
    for byte in parts.iter().flat_map(|part| part.bytes()).take(room) {
        // SAFETY: there is room for this many.
        unsafe { reason.add(len).write(byte) };
        len += 1;
    }
    len as u32
}

/// Ends protection, because the log is not complete any more: the daemon is told why, and the
/// server runs on. A replica stops for good.
pub fn end_protection(why: &str) {
    if mode() == Mode::Replay {
        diverged(why);
    }
    end_protection_by(&[why]);
}

/// Like [`end_protection`], for the server or a child of it; several may call it at once.
pub fn end_protection_by(why: &[&str]) {
    sys::say(why);
    let h = header();
    if h.reason_len.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
        return;
    }
    // The thread that has changed the length from 0 writes alone.
    h.reason_len.store(write_reason(why), Release);
    let change = |from, to| h.mode.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
    // For a server that runs alone it means that no backup can join any more.
    if change(shared_mode::RECORD, shared_mode::BROKEN)
        || change(shared_mode::SOLO, shared_mode::OFF)
    {
        h.daemon_waiting.0.store(1, SeqCst);
        ring::kick();
    }
}

/// Reports a call that cannot be replayed; it fails alike on both members.
pub fn refused(call: &str, remedy: &str) {
    sys::say(&["refused ", call, ": it cannot be replicated; ", remedy]);
}
