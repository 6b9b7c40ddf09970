use super::{KEEP_BYTES_FIRST, KEEP_BYTES_MAX, Region, release};
use crate::base::conns::{drop_ref, entry, keep, open, wrote};
use crate::base::state::Mode;
use crate::base::sys::{map_anonymous_at, unmap};
use crate::testing::attach;
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::shm::ConnEntry;

const BYTES: u64 = 100_000;
const NO_FD: i32 = -1;

fn served(conn: u32) -> &'static ConnEntry {
    open(conn, NO_FD, 0);
    keep(conn, &[7; BYTES as usize]);
    entry(conn)
}

fn keeps(e: &ConnEntry) -> bool {
    e.keep_addr.load(Relaxed) != 0
}

#[test]
fn what_the_client_has_is_not_kept_for_a_closed_connection() {
    let _attached = attach(Mode::Replay);
    let acknowledged = served(1);
    acknowledged.acked_bytes.store(BYTES, Release);
    drop_ref(1, NO_FD);
    assert!(!keeps(acknowledged));
}

#[test]
fn what_a_client_does_not_take_is_kept_and_holds_up_no_other() {
    let _attached = attach(Mode::Replay);
    let never = served(1);
    drop_ref(1, NO_FD);
    let late: Vec<_> = (2..200).map(served).collect();
    for conn in 2..200 {
        drop_ref(conn, NO_FD);
    }
    assert!(late.iter().all(|e| keeps(e)), "no client has anything");
    for e in &late {
        e.acked_bytes.store(BYTES, Release);
    }
    for conn in 200..400 {
        served(conn).acked_bytes.store(BYTES, Release);
        drop_ref(conn, NO_FD);
    }
    assert!(!late.iter().any(|e| keeps(e)));
    assert!(keeps(never), "its client may ask for it still");
}

#[test]
fn a_replica_that_is_the_server_now_keeps_nothing() {
    let attached = attach(Mode::Replay);
    let (writes, rests) = (served(1), served(2));
    let closed: Vec<_> = (3..10).map(served).collect();
    for conn in 3..10 {
        drop_ref(conn, NO_FD);
    }
    assert!(keeps(writes) && keeps(rests) && closed.iter().all(|e| keeps(e)));
    attached.become_mode(Mode::Record);
    // These keep nothing any more, and so are not among those that leave.
    (0..3).for_each(|_| wrote(1, 5));
    assert!(!keeps(writes) && closed.iter().filter(|e| keeps(e)).count() == 4);
    drop_ref(1, NO_FD);
    assert!(!closed.iter().any(|e| keeps(e)));
    assert!(keeps(rests), "it is open, and nobody has looked at it");
    drop_ref(2, NO_FD);
    assert!(!keeps(rests));
}

#[test]
fn memory_that_two_threads_give_back_is_given_back_once() {
    const TURNS: u32 = 2000;
    let _attached = attach(Mode::Replay);
    let (e, turn, other) = (entry(1), AtomicU32::new(0), AtomicU32::new(0));
    let mut lost = 0;
    let wait_for = |word: &AtomicU32, turn| {
        while word.load(Acquire) != turn {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=TURNS {
                wait_for(&turn, n);
                release(e);
                other.store(n, Release);
            }
        });
        for n in 1..=TURNS {
            keep(1, &[7]);
            let address = e.keep_addr.load(Relaxed) as usize;
            turn.store(n, Release);
            release(e);
            wait_for(&other, n);
            match map_anonymous_at(address, 1) {
                Ok(again) if !keeps(e) => unmap(again, 1),
                _ => lost += 1,
            }
        }
    });
    assert_eq!(lost, 0);
}

const RING: usize = KEEP_BYTES_FIRST as usize;
/// Other regions for rings, as far away, one for each test.
const ELSEWHERE: [usize; 2] = [0x2800_0000_0000, 0x2a00_0000_0000];

#[test]
fn the_kept_lies_where_the_servers_maps_do_not() {
    let _attached = attach(Mode::Replay);
    let address = served(1).keep_addr.load(Relaxed) as usize;
    let region = super::REGION.start..super::REGION.end;
    assert!(region.contains(&address), "{address:#x}");
    drop_ref(1, NO_FD);
}

#[test]
fn what_lies_there_since_the_last_round_stays() {
    let [start, _] = ELSEWHERE;
    let region = Region::new(start, 4 * RING);
    let places: Vec<_> = (0..4).map(|_| region.map(RING)).collect();
    let expected: Vec<_> = (0..4).map(|n| (start + n * RING) as *mut u8).collect();
    assert_eq!(places, expected);
    // SAFETY: a ring of ours.
    unsafe { places[0].write(7) };
    assert!(region.map(RING).is_null(), "nothing is free");
    unmap(places[2], RING);
    assert_eq!(region.map(RING), places[2], "the one that is free");
    assert!(region.map(2 * RING).is_null(), "it does not fit");
    // SAFETY: as above.
    assert_eq!(unsafe { places[0].read() }, 7);
    places.into_iter().for_each(|it| unmap(it, RING));
}

#[test]
fn large_rings_in_the_way_are_soon_behind() {
    const LARGE: usize = KEEP_BYTES_MAX as usize;
    let [_, start] = ELSEWHERE;
    let region = Region::new(start, 8 * LARGE);
    let large: Vec<_> = (0..7).map(|_| region.map(LARGE)).collect();
    region.next.store(start, Relaxed);
    let small = region.map(RING);
    assert!(small as usize >= start + 7 * LARGE, "{small:?}");
    large.into_iter().for_each(|it| unmap(it, LARGE));
    unmap(small, RING);
}
