//! Tests of a log of which the server sends parts itself (decision 35).

use super::*;

const LEN: u64 = HEADER_LEN as u64;

/// A primary that has agreed with its backup, and where its log is.
fn direct() -> (Primary, Notes, u64) {
    let (mut primary, mut notes) = accepted(1000);
    notes.feed(&mut primary, 0);
    notes.take();
    assert!(!primary.begin_direct(&mut notes), "a frame is under way");
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    notes.take();
    assert!(primary.begin_direct(&mut notes));
    let from = notes.log.len() as u64;
    let mut said = Vec::new();
    Message::LogAt { position: from }.encode(&mut said);
    assert_eq!(notes.take(), [Effect::Other(said)]);
    (primary, notes, from)
}

fn held(primary: &mut Primary, notes: &mut Notes, position: u64) -> Vec<Effect> {
    primary.handle_message(Nanos(0), &Message::LogHeld { position }, notes);
    notes.take()
}

#[test]
fn what_the_backup_has_is_not_sent_again() {
    let (mut primary, mut notes, from) = direct();
    notes.append(Op::Result, 0, 0, 1, b"");
    notes.append(Op::Result, 0, 0, 2, b"");
    assert_eq!(held(&mut primary, &mut notes, from + LEN), [], "it was not read here yet");
    assert_eq!(primary.held_to(), from + LEN);
    notes.feed(&mut primary, from as usize);
    let effects = notes.take();
    let [Effect::Stable(stable), Effect::FrameAt(2, position, records)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*stable, *position, records.len() as u64), (from + LEN, from + LEN, LEN));
    // Its answer by either way.
    assert_eq!(held(&mut primary, &mut notes, from + 2 * LEN), [Effect::Stable(from + 2 * LEN)]);
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 2 }, &mut notes);
    assert_eq!((notes.take(), primary.frames_unconfirmed()), (vec![], 0));
    assert_eq!(primary.confirmed(), from + 2 * LEN);
}

#[test]
fn the_end_of_a_stream_is_allowed_before_its_record_is_stable() {
    let (mut primary, mut notes, from) = direct();
    notes.append(Op::Shutdown, 1, 0, 1, b"");
    notes.feed(&mut primary, from as usize);
    assert!(matches!(notes.take()[..], [Effect::FrameAt(2, _, _)]));
    let said = [Effect::AllowFin(9), Effect::Stable(from + LEN)];
    assert_eq!(held(&mut primary, &mut notes, from + LEN), said);
}

#[test]
fn of_a_frame_that_is_held_in_part_nothing_is_freed() {
    let (mut primary, mut notes, from) = direct();
    notes.append(Op::Read, 1, TAPPED, 5, b"hello");
    notes.append(Op::Read, 1, TAPPED, 5, b"world");
    notes.feed(&mut primary, from as usize);
    assert!(matches!(notes.take()[..], [Effect::FrameAt(2, _, _)]));
    let one = record_len(5) as u64;
    assert_eq!(held(&mut primary, &mut notes, from + one), [], "its second read may be asked for");
    primary.handle_message(Nanos(0), &Message::Need { frame: 2, index: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::Payload(2, 1, b"world".to_vec())]);
    assert_eq!(held(&mut primary, &mut notes, from + 2 * one), [Effect::Stable(from + 2 * one)]);
}

#[test]
fn half_a_record_is_not_held() {
    let (mut primary, mut notes, from) = direct();
    notes.append(Op::Result, 0, 0, 1, b"");
    held(&mut primary, &mut notes, from + LEN / 2);
    notes.feed(&mut primary, from as usize);
    assert!(matches!(notes.take()[..], [Effect::FrameAt(2, position, _)] if position == from));
    assert_eq!(primary.confirmed(), from);
}

#[test]
fn nobody_who_was_not_asked_says_what_is_held() {
    let (mut primary, mut notes) = accepted(1000);
    notes.feed(&mut primary, 0);
    notes.take();
    assert_eq!(held(&mut primary, &mut notes, 40), []);
    assert_eq!(primary.counters().messages_ignored, 1);
    let (mut primary, mut notes, from) = direct();
    assert_eq!(held(&mut primary, &mut notes, u64::MAX), []);
    assert_eq!(primary.held_to(), 0);
    primary.handle_backup_lost();
    notes.append(Op::Result, 0, 0, 1, b"");
    assert_eq!(held(&mut primary, &mut notes, from + LEN), [], "it was lost");
}
