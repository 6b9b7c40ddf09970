use super::{Entry, append, append_open, extend, hold, is_committed, take, take_any};
use crate::base::ring;
use crate::base::state::{self, Mode, group, header};
use crate::base::table::Call;
use crate::testing::attach;
use core::sync::atomic::Ordering::*;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::log::{HEADER_LEN, LAZY, Op, TAPPED};
use holdfast_wire::shm::{OPEN, mode};

fn entry(ret: isize) -> Entry {
    Entry::new(Op::Result, Call::bind, 7, ret)
}

fn append_bytes(entry: Entry, bytes: &[u8]) {
    append(entry, &[(bytes.as_ptr(), bytes.len())]);
}

#[test]
fn a_record_has_what_was_said_and_the_pieces_of_its_payload() {
    let member = attach(Mode::Record);
    append(entry(-5), &[(b"abc".as_ptr(), 3), (core::ptr::null(), 0), (b"defgh".as_ptr(), 5)]);
    append(entry(0), &[]);
    let records = member.records();
    let (first, payload) = &records[0];
    assert_eq!((first.op, first.fd, first.ret), (Op::Result as u8, 7, -5));
    assert_eq!((first.hash, first.tid, first.conn), (Call::bind as u64, 0, 0));
    assert_eq!(payload, b"abcdefgh");
    assert_eq!((records.len(), records[1].1.len()), (2, 0));
}

#[test]
fn output_waits_for_what_is_not_lazy() {
    let member = attach(Mode::Record);
    append(entry(0).lazy_if(true), &[]);
    assert_eq!(group().dirty.0.load(Relaxed), 0);
    assert!(is_committed());
    append(entry(0), &[]);
    assert_eq!(group().dirty.0.load(Relaxed), ring::tail());
    assert!(!is_committed());
    append(entry(0).lazy_if(true), &[]);
    let needed = group().dirty.0.load(Relaxed);
    assert!(needed < ring::tail());
    header().stable.0.store(needed, Release);
    assert!(is_committed(), "what is lazy behind it need not be confirmed");
    assert_eq!(member.records()[2].0.flags, LAZY);
}

/// FT-TCP §5.2: what output waits for, from output commit down to nothing.
#[test]
fn output_waits_for_what_its_mode_buffers() {
    let read = Entry { flags: TAPPED, op: Op::Read, ..entry(0) };
    let lock = Entry { op: Op::Lock, ..entry(0) };
    let waits = |mode: Buffering, record: Entry| {
        let member = attach(Mode::Record);
        state::OPTIONS.store(mode.option(), Relaxed);
        append(record, &[]);
        let waits = !is_committed();
        append_open(&hold(), Entry { flags: LAZY, ..entry(0) });
        let before = group().dirty.0.load(Relaxed);
        assert!(extend(&hold(), 11));
        let clock_waits = group().dirty.0.load(Relaxed) > before;
        state::OPTIONS.store(0, Relaxed);
        drop(member);
        (waits, clock_waits)
    };
    for (record, expected) in [
        (read, [true, true, true, false]),
        (entry(0), [true, true, false, false]),
        (lock, [true, false, false, false]),
    ] {
        assert_eq!(Buffering::ALL.map(|mode| waits(mode, record).0), expected, "{:?}", record.op);
    }
    let clocks = Buffering::ALL.map(|mode| waits(mode, lock).1);
    assert_eq!(clocks, [true, true, false, false], "a reading of a clock");
}

#[test]
fn an_open_record_grows_until_the_next_one_or_the_daemon_ends_it() {
    let member = attach(Mode::Record);
    let h = header();
    append_open(&hold(), entry(1));
    assert_eq!(h.tail.0.load(Relaxed), HEADER_LEN as u64 | OPEN);
    assert!(extend(&hold(), 11) && extend(&hold(), 12));
    append(entry(2), &[]);
    assert!(!extend(&hold(), 13), "the last record is none that grows");
    append_open(&hold(), entry(3));
    // The daemon takes the record.
    h.tail.0.fetch_and(!OPEN, SeqCst);
    assert!(!extend(&hold(), 14));
    let records = member.records();
    let words: Vec<u8> = [11u64, 12].iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!((records.len(), &records[0].1, records[2].0.ret), (3, &words, 3));
}

#[test]
fn an_open_record_has_an_end() {
    let _member = attach(Mode::Record);
    append_open(&hold(), entry(1));
    let words = (0..1000).take_while(|n| extend(&hold(), *n)).count() as u64;
    assert_eq!(words, (super::OPEN_BYTES_MAX - HEADER_LEN as u64) / 8);
}

#[test]
fn the_replica_takes_what_the_primary_appended() {
    let member = attach(Mode::Record);
    for n in 0..20 {
        append_bytes(entry(n), &vec![n as u8; n as usize]);
    }
    member.become_mode(Mode::Replay);
    for n in 0..20 {
        let taken = take(Op::Result, Call::bind, 7).expect("a record");
        assert_eq!((taken.ret(), taken.payload()), (n, &vec![n as u8; n as usize][..]));
        taken.done();
    }
    assert_eq!(header().head.0.load(Relaxed), ring::tail());
}

#[test]
fn a_record_stays_until_it_is_done() {
    let member = attach(Mode::Record);
    append(entry(1), &[]);
    member.become_mode(Mode::Replay);
    assert_eq!(take_any().map(|taken| taken.ret()), Some(1));
    assert_eq!(take_any().map(|taken| taken.ret()), Some(1));
}

#[test]
fn filler_is_passed_over_and_the_end_is_none() {
    let member = attach(Mode::Record);
    append_bytes(Entry { op: Op::Pad, ..entry(0) }, &[0; 24]);
    append(entry(4), &[]);
    member.become_mode(Mode::Replay);
    let h = header();
    h.end.0.store(ring::tail(), Release);
    h.mode.0.store(mode::DRAIN, Release);
    let taken = take_any().expect("behind the filler");
    assert_eq!(taken.ret(), 4);
    taken.done();
    assert!(take_any().is_none());
}

/// This needs the ring's second mapping.
#[cfg(not(miri))]
#[test]
fn a_record_over_the_rings_end_is_in_one_piece() {
    let member = attach(Mode::Record);
    let bytes: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    let mut ends = 0;
    for n in 0..500 {
        let before = ring::tail();
        append_bytes(entry(n), &bytes);
        let over = |at: u64| at / crate::testing::RING_BYTES as u64;
        ends += usize::from(over(before) != over(ring::tail() - 1));
        member.confirm();
        member.become_mode(Mode::Replay);
        let taken = take(Op::Result, Call::bind, 7).expect("a record");
        assert_eq!((taken.ret(), taken.payload()), (n, &bytes[..]));
        taken.done();
        member.become_mode(Mode::Record);
    }
    assert!(ends > 4, "the ring's end was never crossed");
}

/// Fills half of the ring while a member joins.
#[cfg(not(miri))]
fn half_full() -> crate::testing::Attached {
    let member = attach(Mode::Record);
    header().stable.0.store(u64::MAX, Release);
    append_bytes(entry(0), &vec![0; crate::testing::RING_BYTES / 2 - HEADER_LEN]);
    member
}

#[cfg(not(miri))]
#[test]
fn a_server_keeps_to_the_pace_of_a_joining_member() {
    let _member = half_full();
    std::thread::scope(|scope| {
        let joiner = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let freed = header().tail.0.load(Acquire) / 2;
            header().head.0.store(freed, Release);
            header().stable_futex.0.fetch_add(1, SeqCst);
            crate::base::sys::futex_wake(&header().stable_futex.0, true);
        });
        append(entry(1), &[]);
        assert_ne!(header().head.0.load(Acquire), 0, "it has not waited");
        joiner.join().expect("the joiner");
    });
    assert_eq!(header().mode.0.load(Relaxed), mode::RECORD);
}

#[cfg(not(miri))]
#[test]
fn nobody_waits_twice_for_a_joining_member_that_does_not_move() {
    let member = half_full();
    let waits = |number| {
        let begun = std::time::Instant::now();
        append(entry(number), &[]);
        begun.elapsed().as_nanos() as u64 >= super::JOINER_WAIT_NS
    };
    assert!(waits(0), "it may be about to move");
    assert!((1..99).filter(|number| waits(*number)).count() < 9, "it does not");
    assert_eq!(header().mode.0.load(Relaxed), mode::RECORD);
    // It has moved, by less than would help.
    header().head.0.store(HEADER_LEN as u64, Release);
    assert!(waits(99), "it may move on");
    member.confirm();
}
