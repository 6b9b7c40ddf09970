//! Tests of a log that begins where a server has run alone.

use super::*;

pub fn taken(id: u64, accept: Option<u32>, in_bytes: u64) -> Taken {
    let ConnRecord { irs, iss, .. } = record(1000);
    let (key, out_bytes) = (key(id as u16), 0);
    Taken { id: ConnId(id), socket: 100 * id, key, irs, iss, accept, in_bytes, out_bytes }
}

fn adopt(conns: impl IntoIterator<Item = Taken>) -> (Primary, Notes) {
    let primary = Primary::adopt(0, PrimaryLimits::DEFAULT, Counters::default(), conns);
    (primary, Notes::default())
}

fn held(primary: &mut Primary, notes: &mut Notes, id: u64, offset: u64) -> Vec<Effect> {
    let seq = record(1000).irs.plus(1 + offset);
    let message = Message::Held { conns: vec![(ConnId(id), seq)] };
    primary.handle_message(Nanos(0), &message, notes);
    notes.take()
}

#[test]
fn what_is_held_counts_from_what_the_server_had_read() {
    let (mut primary, mut notes) = adopt([taken(9, Some(1), 1 << 33)]);
    assert_eq!(held(&mut primary, &mut notes, 9, 1 << 33), []);
    let seq = record(1000).irs.plus((1 << 33) + 6);
    assert_eq!(held(&mut primary, &mut notes, 9, (1 << 33) + 5), [Effect::Advance(9, seq)]);
}

#[test]
fn its_numbers_are_those_of_the_server() {
    let (mut primary, mut notes) = adopt([taken(9, Some(4), 0), taken(8, None, 0)]);
    assert!(!primary.awaits_accept(ConnId(9)) && primary.awaits_accept(ConnId(8)));
    // The log has an end of a connection, and an accept of one that had come before.
    notes.append(Op::Close, 4, 0, 0, b"");
    notes.append(Op::Accept, 5, 0, 5, info(8, 800).as_bytes());
    notes.feed(&mut primary, 0);
    assert!(!primary.awaits_accept(ConnId(8)) && primary.counters().accepts_unknown == 0);
    notes.take();
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    assert_eq!(notes.take()[0], Effect::AllowFin(9));
    // A number that is used twice does not count.
    notes.log.clear();
    let (mut primary, mut notes) = adopt([taken(9, Some(4), 0)]);
    notes.append(Op::Accept, 4, 0, 5, info(8, 800).as_bytes());
    notes.feed(&mut primary, 0);
    assert_eq!(notes.take(), [Effect::Broken]);
}

#[test]
fn its_log_begins_where_it_is_said_to() {
    let mut primary = Primary::adopt(64, PrimaryLimits::DEFAULT, Counters::default(), []);
    assert_eq!((primary.confirmed(), primary.framed()), (64, (64, 0)));
    let mut notes = Notes { log: vec![0; 64], ..Notes::default() };
    notes.append(Op::Result, 0, 0, 1, b"");
    notes.feed(&mut primary, 64);
    let end = notes.log.len() as u64;
    assert!(matches!(notes.take()[..], [Effect::Frame(1, _)]));
    assert_eq!((primary.confirmed(), primary.framed()), (64, (end, 1)));
}

#[test]
fn what_was_ignored_stays_counted_and_the_limit_holds() {
    let limits = PrimaryLimits { conns_max: 2, ..PrimaryLimits::DEFAULT };
    let ignored = Counters { repairs: 3, ..Counters::default() };
    let conns = [taken(9, None, 0), taken(9, None, 7), taken(8, None, 0), taken(7, None, 0)];
    let mut primary = Primary::adopt(0, limits, ignored, conns);
    assert_eq!(primary.counters().repairs, 3);
    assert!([9, 8].iter().all(|id| primary.follows(ConnId(*id))) && !primary.follows(ConnId(7)));
    let mut notes = Notes::default();
    primary.handle_synack(Nanos(0), ConnId(6), 600, record(6), &mut notes);
    assert_eq!(notes.take(), [Effect::Refuse(6)]);
    primary.handle_backup_lost();
    assert!(!primary.follows(ConnId(9)));
}

/// The SYN-ACK of the connection has been sent.
#[test]
fn nobody_is_let_in_twice() {
    let (mut primary, mut notes) = adopt([taken(9, None, 0)]);
    primary.handle_synack(Nanos(0), ConnId(9), 900, record(9), &mut notes);
    primary.handle_message(Nanos(0), &Message::ConnOk { conn: ConnId(9) }, &mut notes);
    assert_eq!(notes.take(), []);
}
