use super::{base, in_log, timer, until};
use crate::base::log::{self, Entry};
use crate::base::ring;
use crate::base::state::{Mode, THREADED, header, threaded};
use crate::base::table::Call;
use crate::testing::{Attached, attach};
use core::sync::atomic::Ordering::SeqCst;
use holdfast_wire::log::Op;

#[test]
fn clocks_of_one_time_share_what_is_added() {
    assert_eq!(base(libc::CLOCK_REALTIME_COARSE), base(libc::CLOCK_REALTIME));
    assert_eq!(base(libc::CLOCK_MONOTONIC_RAW), base(libc::CLOCK_MONOTONIC));
    assert_ne!(base(libc::CLOCK_BOOTTIME), base(libc::CLOCK_MONOTONIC));
    assert_eq!(base(libc::CLOCK_PROCESS_CPUTIME_ID), None);
}

#[test]
fn clocks_of_threads_are_logged_by_their_kind() {
    assert_eq!(in_log(libc::CLOCK_MONOTONIC), libc::CLOCK_MONOTONIC);
    // As the kernel numbers them: the number's complement, then the kind.
    let of_thread = |number: i32| !number << 3 | 6;
    assert_eq!(in_log(of_thread(1234)), in_log(of_thread(99)));
    let of_descriptor = !5 << 3 | 3;
    assert_eq!(in_log(of_descriptor), of_descriptor);
}

#[test]
fn null_and_spans_of_time_stay_what_they_are() {
    assert!(until(None, 0).is_none());
    let span = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: libc::timespec { tv_sec: 3, tv_nsec: 4 },
    };
    assert!(timer(&raw const span, false).is_none());
    let own = timer(&raw const span, true).expect("a moment");
    assert_eq!((own.it_value.tv_sec, own.it_value.tv_nsec), (3, 4));
}

fn usleep(us: u32) -> i32 {
    // SAFETY: a number.
    unsafe { super::usleep(us) }
}

/// Operations and results of the logged records.
fn logged(attached: &Attached) -> Vec<(u8, i64)> {
    attached.records().iter().map(|(header, _)| (header.op, header.ret)).collect()
}

#[test]
fn among_threads_it_is_logged_where_a_sleep_begins() {
    let attached = attach(Mode::Record);
    assert_eq!(usleep(1), 0);
    assert_eq!(logged(&attached), [(Op::Result as u8, 0)]);
    THREADED.store(true, SeqCst);
    assert_eq!(usleep(1), 0);
    let (begin, end) = ((Op::Lock as u8, 0), (Op::Result as u8, 0));
    assert_eq!(logged(&attached), [end, begin, end]);
    attached.become_mode(Mode::Replay);
    for _ in 0..2 {
        THREADED.store(!threaded(), SeqCst);
        assert_eq!(usleep(u32::MAX), 0);
    }
    assert_eq!(logged(&attached), []);
    THREADED.store(false, SeqCst);
}

/// In a copy the call starts over, and the log begins after the sleep's first record.
#[test]
fn a_sleep_that_starts_over_has_begun_already() {
    let attached = attach(Mode::Record);
    THREADED.store(true, SeqCst);
    std::thread::scope(|s| {
        let sleeper = s.spawn(|| usleep(300_000));
        while logged(&attached).is_empty() {
            std::thread::yield_now();
        }
        let held = log::hold();
        header().head.0.store(ring::tail(), SeqCst);
        log::append_held(&held, Entry::new(Op::Result, Call::sleep, -1, 7), &[]);
        attached.become_mode(Mode::Replay);
        drop(held);
        assert_eq!(sleeper.join().expect("it wakes"), 7);
    });
    assert_eq!(logged(&attached), []);
    THREADED.store(false, SeqCst);
}
