//! The end of connections.

use super::*;
use crate::timing::primary::{BACKLOG_EVERY, CLOSING_EVERY, LINGER, MINDED, STRAY_EVERY, YOUNG};

/// A connection's last packets come round through the backup, and a repeated FIN whose first copy
/// was lost is answered.
#[test]
fn a_connection_is_over_when_the_kernel_says_so_and_nothing_is_owed() {
    let mut bed = Bed::new();
    let conn = bed.connect(5);
    bed.pass(5_000);
    bed.book.take();
    assert!(!bed.book.lines.iter().any(|line| line.starts_with("send")), "it lives");
    bed.book.state = ConnState::Over;
    bed.slot(conn).stable = SeqNo(1100);
    bed.slot(conn).rcv_nxt = SeqNo(1100);
    bed.pass(5_000);
    assert_eq!(bed.book.take(), ["progress 5 edge 61000"], "it is owed an ACK");
    bed.slot(conn).last_ack = SeqNo(1100);
    bed.pass(5_000);
    let lines = bed.book.take();
    assert!(lines.contains(&"stable 5 1101".to_owned()), "{lines:?}");
    assert!(!lines.contains(&"free 5".to_owned()), "its slot waits for late packets");
    bed.pass(60_100);
    assert!(bed.book.has("free 5"));
}

/// A record says that the connection has ended, so nobody has to look for its end.
#[test]
fn a_connection_that_the_server_has_let_go_of_is_soon_over() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.book.log = [accept_record(5), close_record()].concat();
    bed.turn();
    bed.book.peer.push(Message::FrameOk { number: 1 });
    bed.turn();
    assert!(bed.book.has("fin 5"), "{:?}", bed.book.lines);
    bed.book.state = ConnState::Over;
    bed.pass(100);
    assert!(bed.book.has("send Gone") && bed.machine.tables.conns.is_empty());
    assert!(bed.machine.tables.ending.is_empty(), "nothing is left of it");
}

#[test]
fn a_slot_waits_for_late_packets_up_to_a_limit() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.book.state = ConnState::Over;
    while !bed.book.has("send Gone") {
        bed.pass(1);
    }
    bed.pass(LINGER.as_millis() as u64);
    assert!(!bed.book.has("free 5"), "{:?}", bed.book.lines);
    bed.pass(CLOSING_EVERY.as_millis() as u64);
    assert!(bed.book.has("free 5"), "{:?}", bed.book.lines);
}

#[test]
fn a_connection_that_lives_is_not_over() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.pass(200);
    bed.book.take();
    bed.pass(6_000);
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

#[test]
fn the_oldest_unanswered_handshakes_make_room() {
    for (state, expected) in [
        (ConnState::Living, vec![]),
        (ConnState::SynReceived, vec!["fin 5", "destroy [5]", "stable 5 1001", "send Gone"]),
    ] {
        let mut bed = Bed::new();
        bed.book.backlog = Some(2);
        bed.book.state = state;
        bed.connect(5);
        bed.connect(6);
        bed.pass(50);
        bed.book.take();
        bed.pass(150);
        assert_eq!(bed.book.take(), expected, "{state:?}");
    }
}

/// Short connections come faster than the kernel is asked, and wait for no look.
#[test]
fn handshakes_of_connections_that_are_over_are_not_kept() {
    let mut bed = Bed::new();
    for id in 0..10_000 {
        bed.machine.half_open.begun(ConnId(1_000_000 + id), bed.book.bench.now);
    }
    bed.connect(5);
    bed.pass(200);
    assert_eq!(bed.machine.half_open.young(), 0);
}

/// Half of the smallest backlog may be unanswered, and one handshake at least.
#[test]
fn no_handshake_makes_room_that_is_young_or_one_of_few() {
    for (backlog, many, ended) in
        [(Some(6), 4, 1), (Some(6), 3, 0), (Some(1), 1, 0), (Some(1), 2, 1), (None, 51, 1)]
    {
        let mut bed = Bed::new();
        (bed.book.backlog, bed.book.state) = (backlog, ConnState::SynReceived);
        (1..=many).for_each(|id| bed.hold(id));
        bed.turn();
        bed.pass(YOUNG.as_millis() as u64 - 1);
        assert!(!bed.book.lines.iter().any(|line| line.starts_with("destroy")), "{backlog:?}");
        bed.pass(1);
        let gone = bed.book.lines.iter().filter(|line| *line == "send Gone").count();
        assert_eq!(gone, ended, "{backlog:?} {many}");
    }
}

/// To look at the listeners costs some time.
#[test]
fn a_backlog_that_changes_is_seen_at_the_next_look() {
    let mut bed = Bed::new();
    (bed.book.backlog, bed.book.state) = (Some(6), ConnState::SynReceived);
    (1..=3).for_each(|id| bed.hold(id));
    bed.turn();
    bed.book.backlog = Some(2);
    bed.pass(BACKLOG_EVERY.as_millis() as u64 - 1);
    assert!(!bed.book.has("send Gone"), "{:?}", bed.book.lines);
    bed.pass(1);
    assert_eq!(bed.book.lines.iter().filter(|line| *line == "send Gone").count(), 2);
}

/// While the server speaks alone no record tells of ends, so slots that become few are looked for.
#[test]
fn ends_are_looked_for_more_often_where_slots_are_few() {
    for (many, looks_soon) in [(149, false), (151, true)] {
        let mut bed = Bed::new();
        (1..=many).for_each(|id| bed.hold(id));
        bed.turn();
        bed.book.state = ConnState::Over;
        bed.pass(500);
        assert_eq!(bed.machine.tables.conns.is_empty(), looks_soon, "{many} of 200");
    }
}

/// Of 200 slots 25 are kept free, as long as connections that have ended hold some.
#[test]
fn ended_connections_make_room_for_living_ones() {
    for (living, freed) in [(165, 0), (170, 5), (190, 10)] {
        let mut bed = Bed::new();
        let now = bed.book.bench.now;
        bed.machine.linger.extend((1000..1010).map(|id| (now, ConnId(id))));
        for id in 1..=living {
            bed.connect(id);
        }
        bed.pass(100);
        let free = |line: &&String| line.starts_with("free 1");
        assert_eq!(bed.book.lines.iter().filter(free).count(), freed, "{living}");
    }
}

/// The client may know of a connection, and would wait for an answer for as long as the slot does.
#[test]
fn who_answers_a_handshake_that_the_kernel_has_forgotten_may_be_refused() {
    // A connection that ends with its server goes on at the backup, and an accepted one may be
    // such.
    for (accepted, backlog, refuses) in
        [(false, Some(2), true), (false, None, false), (true, Some(2), false)]
    {
        let mut bed = Bed::new();
        bed.connect(5);
        if accepted {
            bed.book.log = accept_record(5);
        }
        (bed.book.state, bed.book.backlog) = (ConnState::Over, backlog);
        bed.pass(7_000);
        let lines = bed.book.take();
        assert!(bed.machine.tables.conns.is_empty() && lines.contains(&"send Gone".to_owned()));
        assert_eq!(lines.contains(&"fin 5".to_owned()), refuses, "{accepted} {backlog:?}");
    }
}

/// A daemon that does not turn any more frees no slots.
#[test]
fn a_lone_servers_limit_holds_for_as_long_as_its_daemon_turns() {
    let mut bed = Bed::new();
    bed.pass(1000);
    assert_eq!(bed.book.minded_until, None, "the gate withholds by itself");
    let mut bed = Bed::alone();
    bed.pass(1000);
    let until = bed.book.minded_until.expect("a limit");
    assert!(until > bed.book.bench.now && until <= bed.book.bench.now.plus(nanos(MINDED)));
    let mut bed = Bed::joining();
    (bed.book.minded_until, bed.book.is_slow) = (None, true);
    bed.pass(1000);
    assert!(bed.book.minded_until > Some(bed.book.bench.now), "who joins needs it most");
}

/// What the kernel says of a tuple is of its newest connection.
#[test]
fn whose_tuple_has_a_newer_connection_is_over_only_if_the_server_has_ended_it() {
    for ended in [false, true] {
        let mut bed = Bed::new();
        bed.connect(5);
        let ends = if ended { close_record() } else { Vec::new() };
        bed.book.log = [accept_record(5), ends].concat();
        bed.turn();
        bed.book.peer.push(Message::FrameOk { number: 1 });
        bed.turn();
        bed.book.slots.insert(ConnId(6), slot(5));
        bed.pass(5_000);
        assert_eq!(bed.book.has("send Gone"), ended, "{:?}", bed.book.lines);
    }
}

/// Each look asks the kernel about many connections.
#[test]
fn ends_are_looked_for_now_and_then() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.pass(1000);
    let before = bed.book.states_asked;
    bed.pass(1000);
    let looks = bed.book.states_asked - before;
    let every = CLOSING_EVERY.as_millis() as u32;
    assert!((1000 / every..=1000 / every + 1).contains(&looks), "{looks}");
}

/// No record tells of the end of one whose server holds it for long.
#[test]
fn an_end_that_no_record_tells_of_is_found_at_the_next_look_for_such() {
    let mut bed = Bed::new();
    bed.connect(5);
    let every = STRAY_EVERY.as_millis() as u64;
    bed.pass(2 * every + 100);
    bed.book.state = ConnState::Over;
    bed.pass(every / 2);
    assert!(!bed.book.has("send Gone"), "{:?}", bed.book.lines);
    bed.pass(every / 2 + 100);
    assert!(bed.book.has("send Gone"), "{:?}", bed.book.lines);
}
