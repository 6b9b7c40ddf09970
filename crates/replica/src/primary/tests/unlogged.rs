//! Tests of output that a client gets before the log knows of it.

use super::*;

fn progress(id: u64, sent: u64) -> ConnProgress {
    let ConnRecord { iss, irs, .. } = record(1000);
    let (snd_una, snd_nxt) = (iss.plus(1), iss.plus(1 + sent));
    ConnProgress { conn: ConnId(id), snd_una, snd_nxt, right_edge: irs, tsval: 0, rcv_nxt: irs }
}

fn breaks(primary: &mut Primary, notes: &mut Notes, sent: u64) -> bool {
    notes.take();
    primary.handle_progress(Nanos(0), &[progress(9, sent)], notes);
    notes.take().contains(&Effect::Broken)
}

#[test]
fn it_ends_protection_at_once() {
    for (sent, is_known) in [(0, true), (5, true), (6, true), (7, false)] {
        let (mut primary, mut notes) = accepted(1000);
        notes.append(Op::Intent, 1, 0, 5, b"");
        notes.append(Op::Written, 1, 0, 5, b"");
        notes.feed(&mut primary, 0);
        assert_eq!(breaks(&mut primary, &mut notes, sent), !is_known, "{sent} of 5, and an end");
    }
}

/// If the backup confirms nothing, the log waits in its ring.
#[test]
fn what_waits_in_the_log_is_known_later() {
    let limits = PrimaryLimits { frames_unconfirmed_max: 1, ..PrimaryLimits::DEFAULT };
    let (mut primary, mut notes) = accepted(1000);
    primary.limits = limits;
    notes.append(Op::Intent, 1, 0, 5, b"");
    notes.feed(&mut primary, 0);
    let at = notes.log.len();
    notes.append(Op::Intent, 1, 0, 5, b"");
    notes.feed(&mut primary, at);
    assert!(!breaks(&mut primary, &mut notes, 10) && !breaks(&mut primary, &mut notes, 100));
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    assert!(!breaks(&mut primary, &mut notes, 10) && breaks(&mut primary, &mut notes, 100));
}

#[test]
fn output_that_waits_for_nobody_is_not_held_against_its_log() {
    let taken = super::adopt::taken(9, None, 0);
    let mut primary = Primary::adopt(0, PrimaryLimits::DEFAULT, Counters::default(), [taken]);
    let mut notes = Notes::default();
    assert!(!breaks(&mut primary, &mut notes, 100), "its records are on their way");
    primary.output_waits(8);
    assert!(!breaks(&mut primary, &mut notes, 100));
    notes.append(Op::Result, 0, 0, 1, b"");
    notes.feed(&mut primary, 0);
    assert!(breaks(&mut primary, &mut notes, 100));
}

#[test]
fn what_leaves_when_the_log_is_over_needs_no_record() {
    let (mut primary, mut notes) = accepted(1000);
    primary.end_log();
    assert!(!breaks(&mut primary, &mut notes, 100));
}
