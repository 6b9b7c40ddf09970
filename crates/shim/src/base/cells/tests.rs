use super::{Locked, SetOnce};

#[test]
fn what_is_set_once_stays() {
    let cell = SetOnce::new();
    assert_eq!(cell.get(), None);
    cell.set(7);
    cell.set(8);
    assert_eq!(cell.get(), Some(&7));
}

#[test]
fn a_reader_sees_all_of_what_was_set() {
    let cell: SetOnce<[u64; 32]> = SetOnce::new();
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            loop {
                if let Some(value) = cell.get() {
                    return *value;
                }
                std::thread::yield_now();
            }
        });
        cell.set([9; 32]);
        assert_eq!(reader.join().expect("read"), [9; 32]);
    });
}

#[test]
fn a_guard_gives_the_value_and_then_the_lock_back() {
    let cell = Locked::new(vec![1]);
    for n in 2..5 {
        let mut held = cell.hold();
        held.push(n);
    }
    assert_eq!(*cell.hold(), [1, 2, 3, 4]);
}

/// Contention sleeps in the kernel, which Miri has none of.
#[cfg(not(miri))]
#[test]
fn threads_take_turns() {
    use crate::base::state::{Mode, THREADED};
    use std::sync::atomic::Ordering::SeqCst;

    // The log's tests see the same switch.
    let _turn = crate::testing::attach(Mode::Pass);
    THREADED.store(true, SeqCst);
    let cell = Locked::new([0u64; 2]);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..20_000 {
                    let mut held = cell.hold();
                    held[0] += 1;
                    held[1] += 1;
                }
            });
        }
    });
    THREADED.store(false, SeqCst);
    assert_eq!(*cell.hold(), [80_000; 2]);
}
