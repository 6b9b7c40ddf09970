use super::{
    Kind, closed, for_each_place, free_place, get, is_virtual, kind, opened, place, renumber,
};
use crate::base::brief;
use crate::base::sys::sys;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

// The table is the process's: each test has numbers of its own.

#[test]
fn a_descriptor_is_what_it_was_opened_as_until_it_is_closed() {
    let kinds = [
        Kind::Socket,
        Kind::Listener,
        Kind::PlainListener,
        Kind::Conn,
        Kind::Outside,
        Kind::Local,
        Kind::Epoll,
        Kind::Device,
    ];
    for one in kinds {
        opened(100, one);
        assert_eq!(kind(100), one);
        assert!(is_virtual(100));
    }
    get(100).expect("an entry").conn.store(9, Relaxed);
    closed(100);
    assert!(!is_virtual(100));
    assert_eq!(get(100).expect("an entry").conn.load(Relaxed), 0);
}

#[test]
fn numbers_outside_the_table_are_the_members_own() {
    for fd in [-1, i32::MIN, super::FD_MAX as i32, i32::MAX] {
        opened(fd, Kind::Conn);
        assert_eq!(kind(fd), Kind::Own);
        assert!(get(fd).is_none() && place(fd, 3).is_none() && free_place(fd).is_none());
    }
}

/// Puts `fd` into an epoll set.
fn join(fd: i32, set: i32) -> bool {
    let free = free_place(fd);
    free.iter().for_each(|place| place.set.store(set, Relaxed));
    free.is_some()
}

#[test]
fn places_in_sets_end_with_the_descriptor_or_the_set() {
    let (fd, set) = (110, 111);
    opened(fd, Kind::Conn);
    opened(set, Kind::Epoll);
    assert!(join(fd, set) && join(fd, 112));
    closed(set);
    assert!(place(fd, set).is_none() && place(fd, 112).is_some());
    closed(fd);
    assert!(place(fd, 112).is_none());
}

#[test]
fn listeners_are_in_as_many_sets_as_a_large_server_has_threads() {
    const SETS_MAX: usize = super::NEAR + super::FAR;
    let sets = || 1000..1000 + SETS_MAX as i32;
    opened(120, Kind::Conn);
    assert!(sets().all(|set| join(120, set)));
    assert!(sets().all(|set| place(120, set).is_some_and(|it| it.set.load(Relaxed) == set)));
    assert!(free_place(120).is_none() && !join(120, 9000));
    let mut seen = 0;
    for_each_place(|fd, _| seen += usize::from(fd == 120));
    assert_eq!(seen, SETS_MAX);
    closed(120);
    assert!(free_place(120).is_some() && sets().all(|set| place(120, set).is_none()));
    // What is kept for such descriptors is given back.
    let fds = || 2000..2000 + 2 * super::BLOCKS_MAX as i32;
    for _ in 0..2 {
        let join_all =
            |fd: i32| (0..=super::NEAR as i32).filter(|set| join(fd, 3000 + set)).count();
        let joined: Vec<_> = fds().map(join_all).collect();
        assert_eq!(joined[0], super::NEAR + 1);
        assert_eq!(joined.last(), Some(&super::NEAR), "the small number is everybody's");
        fds().for_each(closed);
    }
}

#[test]
fn a_number_that_the_shim_has_for_a_moment_is_waited_for() {
    const WANTED: i32 = 200;
    let lowest = || sys!(SYS_fcntl, 0, libc::F_DUPFD_CLOEXEC, WANTED);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                brief::alone(|| {
                    let fd = lowest();
                    sys!(SYS_sched_yield);
                    sys!(SYS_close, fd)
                });
            }
        });
        let mut moved = 0;
        while moved < 100 {
            let fd = lowest();
            moved += u32::from(fd != WANTED as isize);
            renumber(fd, WANTED as isize, true);
            assert_eq!(sys!(SYS_close, WANTED), 0, "it has its number");
        }
        is_over.store(true, Relaxed);
    });
}
