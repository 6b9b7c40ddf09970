use super::{ARENA_BYTES, ENTRIES_MAX, queue};
use core::sync::atomic::Ordering::Relaxed;

/// The only test of a queue, which belongs to the process.
#[test]
fn a_queue_knows_what_it_has_and_what_it_takes() {
    let queue = queue(7).expect("a queue");
    assert!(super::queue(super::QUEUES).is_none());
    assert!(queue.is_empty());
    let (mut a, mut b) = (*b"head", *b"body of it");
    let parts = [
        libc::iovec { iov_base: a.as_mut_ptr().cast(), iov_len: a.len() },
        libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 },
        libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() },
    ];
    let mut held = queue.hold();
    held.add(500, &parts, 14);
    held.add(500, &parts[..1], 4);
    let one = held.writes.entries[0];
    assert_eq!((held.count.load(Relaxed), one.fd, one.at, one.len), (1, 500, 0, 18), "one piece");
    held.discard();
    for n in 0..ENTRIES_MAX {
        assert!(held.has_room(14), "{n}");
        held.add(500 + (n % 2) as i32, &parts, 14);
    }
    assert!(!held.has_room(1), "no more entries");
    assert!(!held.has_room(ARENA_BYTES));
    assert_eq!(held.bytes_of(500), ENTRIES_MAX / 2 * 14);
    assert_eq!(held.bytes_of(502), 0);
    assert_eq!(&held.writes.arena[..18], b"headbody of ithead");
    drop(held);
    assert!(!queue.is_empty());
}
