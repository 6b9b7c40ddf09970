//! Tests that what is kept for one client leaves room for the others.

use super::*;
use crate::tap::Tap;
use holdfast_wire::message::Adopted;

/// Announces a client by its port.
fn announce(case: &mut Case, port: u16) -> ConnKey {
    let key = ConnKey { client_port: port, ..conn_record().key };
    let conn = ConnId(u64::from(port) << 32);
    case.message(&Message::Conn { conn, record: ConnRecord { key, ..conn_record() } });
    assert_eq!(case.take(), [Effect::ConnOk(conn)]);
    key
}

fn tap(case: &mut Case, key: ConnKey, offset: u32, payload: &[u8]) {
    let segment = TcpPacket { source_port: key.client_port, ..segment(offset, payload) };
    case.backup.handle_segment(Nanos(0), &segment, &mut case.notes);
}

fn held_of(case: &mut Case) -> Vec<SeqNo> {
    case.flush();
    match &case.take()[..] {
        [Effect::Held(conns)] => conns.iter().map(|(_, seq)| *seq).collect(),
        [] => vec![],
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_whose_bytes_nobody_reads_does_not_refuse_those_of_others() {
    let mut case = Case::accepted_within(TINY);
    let greedy = announce(&mut case, 6000);
    let others: Vec<ConnKey> = (7000..7010).map(|port| announce(&mut case, port)).collect();
    for at in 0..100 {
        tap(&mut case, greedy, 10 * at, &[1; 10]);
    }
    // The connection holds its own share and all of the common part.
    assert_eq!(held_of(&mut case), [SeqNo(1000 + 130)]);
    assert_eq!(case.backup.counters().refused_full, 87);
    for (count, key) in others.iter().enumerate() {
        tap(&mut case, *key, 0, &[2; 30]);
        tap(&mut case, *key, 30, &[2; 1]);
        assert_eq!(held_of(&mut case), [SeqNo(1030)], "client {count}");
    }
    // A connection that has ended makes room.
    case.message(&Message::Gone { conn: ConnId(6000 << 32) });
    tap(&mut case, others[0], 30, &[2; 100]);
    assert_eq!(held_of(&mut case), [SeqNo(1130)]);
}

#[test]
fn copies_beyond_holes_have_one_bound_for_all_and_come_from_the_primary_later() {
    let limits = Limits {
        aside: Share { each: 100, common: 300 },
        held: Share { each: 1 << 20, common: 0 },
        ..Limits::default()
    };
    let mut case = Case::accepted_within(limits);
    let keys: Vec<ConnKey> = (6000..6100).map(|port| announce(&mut case, port)).collect();
    // Each connection has one hole, and gets the same segment behind it again and again.
    for _ in 0..50 {
        for key in &keys {
            tap(&mut case, *key, 5, &[3; 20]);
        }
    }
    let aside = |case: &Case| -> usize {
        case.backup.conns.values().map(|conn| conn.tap.usage().aside).sum()
    };
    assert!(aside(&case) <= 100 * 100 + 300, "{}", aside(&case));
    let each = Tap::aside_cost(&segment(5, &[3; 20]));
    assert_eq!(aside(&case), each * keys.len(), "each has its share");
    for at in 0..50 {
        tap(&mut case, keys[0], 100 + 20 * at, &[4; 10]);
    }
    assert!(aside(&case) <= 100 * 100 + 300, "{}", aside(&case));
    assert!(case.backup.counters().refused_full >= 45);
    // The hole is closed. The bytes that were left out are a hole now; the backup asks for them
    // when the primary reports that its kernel has them.
    tap(&mut case, keys[0], 0, &[3; 5]);
    tap(&mut case, keys[0], 25, &[5; 75]);
    let end = case.backup.conns[&ConnId(6000 << 32)].tap.held();
    let progress = ConnProgress {
        conn: ConnId(6000 << 32),
        snd_una: conn_record().iss.plus(1),
        snd_nxt: conn_record().iss.plus(1),
        right_edge: SeqNo(60_000),
        tsval: 0,
        rcv_nxt: end.plus(50),
    };
    case.message(&Message::Progress { conns: vec![progress] });
    assert!(case.backup.next_deadline().is_some(), "it is looked at again");
}

#[test]
fn a_record_without_room_waits_until_there_is_some() {
    let mut case = Case::accepted_within(Limits { conns_max: 2, ..Limits::DEFAULT });
    announce(&mut case, 6000);
    let id = |port: u64| ConnId(port << 32);
    let record = |port| {
        let key = ConnKey { client_port: port, ..conn_record().key };
        ConnRecord { key, ..conn_record() }
    };
    for port in 6001..6005 {
        let conn = id(u64::from(port));
        case.message(&Message::Conn { conn, record: record(port) });
    }
    case.flush();
    assert_eq!(case.take(), [], "and no more than two wait");
    // One connection gives up, a new one comes, and one that existed is over.
    case.message(&Message::Gone { conn: id(6001) });
    case.message(&Message::Conn { conn: id(6100), record: record(6002) });
    case.message(&Message::Gone { conn: id(6000) });
    assert_eq!(case.take(), [Effect::ConnOk(id(6100))], "with nothing to confirm");
    case.flush();
    assert_eq!(case.take(), []);
}

/// The joiner's tap runs before the image is taken, and nobody can be asked for bytes that the
/// server has not accepted.
#[test]
fn a_joiner_keeps_what_came_before_it_heard_of_a_connection() {
    let limits = Limits { early_bytes_max: 4096, ..Limits::DEFAULT };
    let mut case = Case { backup: Backup::joining(KEY, limits), ..Case::accepted_within(limits) };
    case.tap(0, b"early");
    let key = |client_port| ConnKey { client_port, ..conn_record().key };
    for port in 0..100 {
        tap(&mut case, key(port), 0, &[7; 100]);
    }
    assert!((1000..=4096).contains(&case.backup.early.counts().0));
    let adopted = Adopted { accept: None, ..super::joins::adopted(0) };
    case.backup.adopt(Nanos(0), &adopted, &mut case.notes);
    case.flush();
    assert_eq!(case.take(), [held(5)]);
    // A client that has just sent its SYN is about to be announced; an earlier client has come and
    // gone.
    for (client_port, at_ms) in [(200, 0), (201, 50)] {
        let syn = TcpPacket { source_port: client_port, ..syn() };
        case.backup.handle_segment(Nanos::from_ms(at_ms), &syn, &mut case.notes);
    }
    case.backup.replica_begins(Nanos::from_ms(100));
    assert_eq!(case.backup.early.counts(), (0, 1));
    tap(&mut case, key(7), 0, &[7; 100]);
    assert_eq!(case.backup.early.counts().0, 0);
}

/// A busy client has sent much before the image is taken: what counts is what came last.
#[test]
fn a_joiner_keeps_the_newest_of_a_busy_connection_and_what_others_have_sent_once() {
    let limits = Limits { early_bytes_max: 8192, ..Limits::DEFAULT };
    let mut case = Case { backup: Backup::joining(KEY, limits), ..Case::accepted_within(limits) };
    let other = ConnKey { client_port: 7, ..conn_record().key };
    tap(&mut case, other, 0, &[7; 100]);
    for n in 0..1000 {
        case.tap(n * 10, b"0123456789");
    }
    let (bytes, _) = case.backup.early.counts();
    assert!((7000..=8192).contains(&bytes), "{bytes}");
    assert_eq!(case.backup.early.take(&other).len(), 1);
    // The server had read all but the last three segments.
    let adopted = Adopted { accept: None, ..super::joins::adopted(9970) };
    case.backup.adopt(Nanos(0), &adopted, &mut case.notes);
    case.flush();
    assert_eq!(case.take(), [held(10_000)]);
    assert_eq!(case.backup.early.counts().0, 0);
}

/// The SYN-ACK of the record does not wait at the primary, so its client would be told of bytes
/// that nobody holds.
#[test]
fn a_joiner_without_room_for_a_record_gives_up() {
    let limits = Limits { conns_max: 2, ..Limits::DEFAULT };
    let mut case = Case { backup: Backup::joining(KEY, limits), ..Case::accepted_within(limits) };
    for port in [6001, 6002] {
        announce(&mut case, port);
    }
    assert!(!case.take().iter().any(|effect| matches!(effect, Effect::Broken(_))));
    let key = ConnKey { client_port: 6003, ..conn_record().key };
    let record = ConnRecord { key, ..conn_record() };
    case.message(&Message::Conn { conn: ConnId(6003 << 32), record });
    assert_eq!(case.take(), [Effect::Broken(Broken::AdoptedFull { max: 2 })]);
}
