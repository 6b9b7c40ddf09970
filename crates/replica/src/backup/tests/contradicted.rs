//! Streams of which tap and primary say different things: the primary is right, and the connection
//! is counted.

use super::*;

/// This is what a kernel would cause that has taken an urgent byte out of the stream: everything
/// after it is off by one.
#[test]
fn a_stream_that_the_primary_read_otherwise_is_counted() {
    let counted = |bytes: &[u8], tapped: &[u8]| {
        let mut case = Case::accepted();
        case.tap(0, tapped);
        case.frame(&read(0, bytes));
        case.backup.handle_timeout(NEED_AFTER, &mut case.notes);
        case.message(&Message::Payload { frame: 2, index: 0, bytes });
        case.backup.counters().contradicted
    };
    assert_eq!(counted(b"SET ks 12", b"uSET ks 12"), 1);
    assert_eq!(counted(b"SET ks 12", b"SET ks 12 behind it"), 0);
    // A hole that the primary filled is no contradiction.
    assert_eq!(counted(b"SET ks 12", b"SET"), 0);
}

/// Unread bytes of the primary's kernel may contradict the tap, too.
#[test]
fn a_stream_that_the_primary_holds_otherwise_is_counted() {
    let counted = |unread: &[u8]| {
        let mut case = Case::accepted();
        case.tap(0, b"abc");
        case.tap(5, b"fg");
        case.backup.handle_timeout(UNREAD_AFTER, &mut case.notes);
        let asked = case.take().contains(&Effect::NeedUnread(3, 5));
        assert!(asked);
        let (offset, last) = (0, false);
        case.message(&Message::Unread { conn: ID, offset, bytes: unread, last });
        case.backup.counters().contradicted
    };
    assert_eq!(counted(b"abcdefg"), 0);
    assert_eq!(counted(b"bcdef"), 1);
}

/// No segment can resolve the conflict, and every look at it costs a hash.
#[test]
fn a_conflict_is_looked_at_once_before_the_primary_has_answered() {
    let mut case = Case::accepted();
    case.frame(&read(0, b"SET ks 12"));
    case.tap(0, b"SET no 12");
    case.tap(9, b"GET ks");
    assert_eq!(case.backup.counters().conflicts, 1);
    case.message(&Message::Payload { frame: 2, index: 0, bytes: b"SET ks 12" });
    assert!(case.take().contains(&replayed(b"SET ks 12")));
}
