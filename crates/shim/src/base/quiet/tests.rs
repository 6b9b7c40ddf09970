use super::{NOBODY, PLACE, call, join, part};
use crate::base::handlers;
use crate::base::state::{self, Mode, header};
use crate::testing::attach;
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::quiet::state as at;
use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

const EINTR: isize = -(libc::EINTR as isize);

fn state_now() -> u32 {
    PLACE.get().state.load(Relaxed)
}

/// A thread with a place of its own.
fn as_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let run = || {
        join();
        let result = f();
        part();
        result
    };
    thread::scope(|s| s.spawn(run).join().expect("no panic"))
}

#[test]
fn a_thread_says_where_it_is() {
    let _member = attach(Mode::Record);
    as_thread(|| {
        assert!(!core::ptr::eq(PLACE.get(), &NOBODY));
        assert_eq!(state_now(), at::OUTSIDE);
        let seen = call(|this| {
            let sleeps = Cell::new(0);
            this.sleep(|| {
                sleeps.set(state_now());
                0
            })?;
            // Calls from within a handler change nothing: the outer call decides.
            let inner = call(|inner| Some(inner.wait(state_now)));
            let (waits, timed) = (this.wait(state_now), this.wait_timed(7, state_now));
            Some([sleeps.get(), inner, waits, timed, state_now()])
        });
        assert_eq!(seen, [at::SLEEPS, at::BUSY, at::WAITS, at::TIMED, at::BUSY]);
        assert_eq!(PLACE.get().condition.load(Relaxed), 7);
        assert_eq!(state_now(), at::OUTSIDE);
    });
}

#[test]
fn no_call_has_an_effect_while_threads_stand_still() {
    let _member = attach(Mode::Record);
    let effects = AtomicU32::new(0);
    let effect = || {
        effects.fetch_add(1, SeqCst);
        Some(0)
    };
    thread::scope(|s| {
        header().park.0.store(1, SeqCst);
        let late = s.spawn(|| as_thread(|| call(|_| effect())));
        let parked = || state::shim().threads.iter().any(|it| it.state.load(SeqCst) == at::PARKED);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !parked() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(parked());
        assert_eq!(effects.load(SeqCst), 0);
        header().park.0.store(2, SeqCst);
        crate::base::sys::futex_wake(&header().park.0, true);
        late.join().expect("it goes on");
        assert_eq!(effects.load(SeqCst), 1);
    });
}

#[test]
fn a_daemon_that_died_holds_nobody() {
    let _member = attach(Mode::Record);
    header().park.0.store(1, SeqCst);
    let begin = Instant::now();
    as_thread(|| call(|_| Some(())));
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(header().park.0.load(SeqCst), 2);
}

#[test]
fn what_has_not_happened_starts_over() {
    let member = attach(Mode::Record);
    let (park, mut tries) = (&header().park.0, 0);
    as_thread(|| {
        let mut answers = |answers: &[isize], stops: bool| {
            tries = 0;
            call(|this| {
                tries += 1;
                let answer = answers[tries - 1];
                this.sleep(|| {
                    park.fetch_add(if stops { 2 } else { 0 }, SeqCst);
                    answer
                })
            })
        };
        assert_eq!(answers(&[EINTR, EINTR, 5], true), 5, "the server sees no stop");
        assert_eq!(answers(&[EINTR, 5], false), EINTR);
        handlers::ANY.store(true, SeqCst);
        assert_eq!(answers(&[EINTR, 5], true), EINTR, "a handler waits");
        handlers::ANY.store(false, SeqCst);
        // A copy that follows the log, whatever the call said.
        let mut modes = Vec::new();
        call(|this| {
            modes.push(state::mode());
            if state::mode() == Mode::Replay {
                return Some(0);
            }
            this.sleep(|| {
                member.become_mode(Mode::Replay);
                EINTR
            })
        });
        assert_eq!(modes, [Mode::Record, Mode::Replay]);
    });
}
