use super::{base, in_log, timer, until};

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
