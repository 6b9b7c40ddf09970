use super::{another_runs, apart, enter, exit, give, go_on, is_held, lend, take, word};
use crate::base::quiet;
use crate::base::state::{self, Mode, THREADED, group, header};
use crate::testing::{Attached, attach};
use core::sync::atomic::Ordering::*;
use holdfast_wire::shm::mode;
use holdfast_wire::token::{HOLDER, IN_CALL, WAITED_FOR};
use std::sync::mpsc::channel;

/// A member whose threads run one at a time; the numbers of `threads` are in use.
struct Member(#[allow(dead_code, reason = "held")] Attached);

fn member(mode: Mode) -> Member {
    let attached = attach(mode);
    header().takes_turns.store(1, SeqCst);
    THREADED.store(true, SeqCst);
    word().store(0, SeqCst);
    group().processes[0].pid.store(std::process::id() as i32, SeqCst);
    (1..4).for_each(|number| group().owners[number].store(1, SeqCst));
    state::set_tid(1);
    Member(attached)
}

impl Drop for Member {
    fn drop(&mut self) {
        header().takes_turns.store(0, SeqCst);
        THREADED.store(false, SeqCst);
        word().store(0, SeqCst);
        (1..4).for_each(|number| group().owners[number].store(0, SeqCst));
        group().processes[0].pid.store(0, SeqCst);
        state::set_tid(0);
    }
}

#[test]
fn a_call_has_the_token_and_keeps_it() {
    let _member = member(Mode::Record);
    assert!(enter());
    assert_eq!(word().load(SeqCst), 2 | IN_CALL);
    assert!(!enter(), "a call within a call");
    exit();
    assert!(is_held());
    let before = word().load(SeqCst);
    assert!(enter());
    exit();
    assert_ne!(word().load(SeqCst), before, "who looks sees that it has gone on");
    let (apart, lent) = (apart(is_held), lend(|| word().load(SeqCst) & (HOLDER | IN_CALL)));
    assert_eq!((apart, lent, is_held()), (false, 2, true));
    assert_eq!(word().load(SeqCst) & IN_CALL, 0, "as it was before");
    give();
    assert_eq!(word().load(SeqCst), 0);
}

/// A thread that was inside a call when the log began has not taken the token at that call's
/// beginning.
#[test]
fn who_waits_while_a_log_begins_comes_back_with_the_token() {
    let _member = member(Mode::Record);
    let begins = || header().mode.0.store(mode::RECORD, SeqCst);
    let waits: [fn(&dyn Fn()); 2] = [|f| apart(f), |f| lend(f)];
    for waits in waits {
        header().mode.0.store(mode::SOLO, SeqCst);
        assert!(!enter());
        waits(&begins);
        assert_eq!(word().load(SeqCst), 2 | IN_CALL);
        exit();
        assert!(is_held() && word().load(SeqCst) & IN_CALL == 0);
        give();
    }
}

/// The thread of the next record waits until the running thread has come to its next call.
#[test]
fn a_replicas_thread_is_named_until_its_next_call() {
    let _member = member(Mode::Replay);
    quiet::call(|_| {
        go_on();
        Some(())
    });
    assert!(is_held(), "it runs the server's code");
    apart(|| ());
    lend(|| ());
    assert!(is_held());
}

#[test]
fn one_waits_for_the_other() {
    let _member = member(Mode::Record);
    let (to, from) = channel();
    assert!(enter());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            state::set_tid(2);
            take();
            to.send("other").expect("heard");
            give();
        });
        while word().load(SeqCst) & WAITED_FOR == 0 {
            std::thread::yield_now();
        }
        assert!(from.try_recv().is_err(), "it has not got it");
        give();
        assert_eq!(from.recv(), Ok("other"));
    });
    assert_eq!(header().overlaps.load(SeqCst), 0);
}

#[test]
fn it_goes_from_one_who_has_ended_and_nobody_needs_it_without_a_log() {
    let member = member(Mode::Record);
    // A thread whose number nobody has.
    word().store(500, SeqCst);
    take();
    assert!(is_held());
    word().store(500, SeqCst);
    crate::base::state::header().mode.0.store(holdfast_wire::shm::mode::SOLO, SeqCst);
    assert!(!enter());
    take();
    assert_eq!(word().load(SeqCst), 500);
    drop(member);
    assert!(!enter(), "it is not chosen");
}

#[test]
fn a_replica_says_who_runs() {
    let _member = member(Mode::Replay);
    assert!(!another_runs() && !enter());
    go_on();
    assert!(!another_runs());
    state::set_tid(2);
    assert!(another_runs());
    give();
    assert!(another_runs(), "it is not the one's to give");
    state::set_tid(1);
    give();
    assert!(!another_runs());
}
