//! One turn of a backup that follows: tap, records, confirmations, and what the edge hears.

use super::*;
use crate::timing::backup::{
    COPY_LOOK, HELD_AFTER, HELD_BYTES, LOOK_AFTER, REPORT_EVERY, TAP_AFTER, WAKE_AFTER, WAKE_BYTES,
};

const NS: Nanos = Nanos(1);

impl Bed {
    /// When the member wants its next turn.
    fn due(&mut self) -> Nanos {
        let turn = self.turn();
        let Turn::Until(at) = turn else { panic!("{turn:?}: {:?}", self.book.lines) };
        at
    }
}

/// Each packet would wake a busy member, and a quiet one would look in vain.
#[test]
fn a_busy_tap_is_looked_at_and_a_quiet_one_wakes_the_member() {
    let mut bed = Bed::served();
    assert!(bed.machine.watches_tap());
    bed.book.tap = vec![segment(0, b"")];
    let look = bed.book.now.plus(nanos(TAP_AFTER));
    assert!(bed.due() <= look);
    assert!(!bed.machine.watches_tap() && !bed.book.is_tap_watched);
    bed.turn_at(Nanos(look.0 - NS.0));
    assert!(!bed.machine.watches_tap() && !bed.book.is_tap_watched);
    bed.turn_at(look);
    assert!(bed.machine.watches_tap() && bed.book.is_tap_watched);
}

/// Clients' answers to its questions are waited for by others.
#[test]
fn a_takeover_is_woken_by_its_tap() {
    let mut bed = Bed::served();
    bed.book.tap = vec![segment(0, b"")];
    bed.turn();
    assert!(!bed.book.is_tap_watched);
    bed.book.is_lost = true;
    bed.turn();
    assert!(bed.book.has("promotes: ChannelLost") && bed.book.is_tap_watched);
}

#[test]
fn bytes_that_it_holds_are_reported_soon_and_many_at_once() {
    let some = TcpPacket { payload: b"0123456789", ..segment(0, b"raw") };
    for (others, at_once) in [(HELD_BYTES - 11, false), (HELD_BYTES - 10, true)] {
        let mut bed = Bed::served();
        bed.connect();
        bed.book.is_peer_ready = false;
        let begun = bed.book.now;
        let payload: &'static [u8] = vec![0; others].leak();
        bed.book.tap = vec![some, TcpPacket { payload, source_port: 6000, ..some }];
        assert!(bed.due() <= begun.plus(nanos(HELD_AFTER)));
        assert_eq!(bed.book.has("send Held"), at_once, "{others}");
        bed.turn_at(Nanos(begun.plus(nanos(HELD_AFTER)).0 - 1));
        assert_eq!(bed.book.has("send Held"), at_once, "{others}");
        bed.turn_at(begun.plus(nanos(HELD_AFTER)));
        assert!(bed.book.has("send Held"), "{others}");
        // Those that were reported count no more.
        bed.book.take();
        bed.book.tap = vec![TcpPacket { payload: b"abcde", ..segment(10, b"raw") }];
        bed.turn();
        assert!(!bed.book.has("send Held"), "{others}");
    }
}

#[test]
fn held_bytes_go_with_whatever_else_is_confirmed() {
    let mut bed = Bed::served();
    bed.connect();
    bed.book.tap = vec![TcpPacket { payload: b"0123456789", ..segment(0, b"raw") }];
    bed.turn();
    assert!(bed.book.has("send Held"), "{:?}", bed.book.lines);
}

/// One wake-up for many records costs far less than one for each.
#[test]
fn the_replica_is_woken_a_little_later_or_at_once_for_many_records() {
    for (unread, at_once) in [(WAKE_BYTES, 0), (WAKE_BYTES + 1, 1)] {
        let mut bed = Bed::served();
        bed.connect();
        let begun = bed.book.now;
        bed.book.progress = (unread + 5, 5);
        bed.book.peer.push(Message::Frame { number: 1, records: accept_record() });
        let due = bed.due();
        assert!(at_once == 1 || due <= begun.plus(nanos(WAKE_AFTER)), "{due:?}");
        assert_eq!((bed.book.replayed, bed.book.woken), (1, at_once), "{unread}");
        bed.turn_at(Nanos(begun.plus(nanos(WAKE_AFTER)).0 - 1));
        assert_eq!(bed.book.woken, at_once, "{unread}");
        bed.turn_at(begun.plus(nanos(WAKE_AFTER)));
        bed.pass(3);
        assert_eq!(bed.book.woken, 1, "{unread}");
    }
}

#[test]
fn records_for_which_there_is_no_room_wait_for_it() {
    let mut bed = Bed::served();
    bed.connect();
    (bed.book.is_full, bed.book.has_room) = (true, false);
    bed.book.peer.push(Message::Frame { number: 1, records: accept_record() });
    bed.turn();
    assert_eq!((bed.book.replayed, bed.book.woken), (0, 0));
    let now = bed.book.now;
    assert!(bed.due() <= now.plus(nanos(LOOK_AFTER)), "nothing wakes it when there is room");
    // It is not asked while less than half of its room is free.
    bed.book.is_full = false;
    bed.pass(3);
    assert_eq!(bed.book.replayed, 0);
    bed.book.has_room = true;
    bed.pass(1);
    assert_eq!(bed.book.replayed, 1);
    assert!(bed.due() > bed.book.now.plus(nanos(LOOK_AFTER)), "it waits for nothing");
}

#[test]
fn who_has_kept_records_looks_again_soon_for_room() {
    let mut bed = Bed::served();
    (bed.book.keeps, bed.book.has_room) = (true, false);
    assert!(bed.due() <= bed.book.now.plus(nanos(LOOK_AFTER)));
}

#[test]
fn the_status_is_shown_now_and_then() {
    let mut bed = Bed::served();
    let every = REPORT_EVERY.as_millis() as u64;
    bed.pass(every);
    let before = bed.book.reports;
    bed.pass(3 * every);
    assert_eq!(bed.book.reports, before + 3);
    assert_eq!(bed.book.reported, (None, false, None));
    bed.book.is_lost = true;
    bed.turn();
    bed.pass(every);
    assert_eq!(bed.book.reported, (Some(Cause::ChannelLost), false, None));
}

/// The primary shows how far behind its backup is.
#[test]
fn heartbeats_tell_how_far_the_replica_is_once_the_primary_serves() {
    let mut bed = Bed::new();
    bed.pass(100);
    assert_eq!(bed.book.beats_sent, (0, 0), "nobody listens to it yet");
    (bed.book.beats, bed.book.progress) = (Some(0), (30, 20));
    let begun = bed.book.now;
    assert!(bed.due() <= begun.plus(bench::PERIOD));
    bed.pass(100);
    let (many, executed) = bed.book.beats_sent;
    assert!((9..=11).contains(&many), "{many}");
    assert_eq!(executed, 20);
}

/// An edge that has lost its memory hears again that this member is in step.
#[test]
fn an_edge_that_comes_back_hears_who_is_in_step() {
    let told = |current, epoch| Message::Epoch { epoch, current };
    for (opens, said, expected) in [
        (true, None, true),
        (false, Some(told("a", EPOCH)), true),
        (false, Some(told("a", EPOCH - 1)), false),
        (false, Some(Message::Granted { epoch: EPOCH }), false),
    ] {
        let mut bed = Bed::served();
        bed.book.opens = opens;
        bed.book.edge.extend(said.clone());
        bed.turn();
        let expected = expected.then(|| in_step(true));
        assert_eq!(bed.book.take(), expected.into_iter().collect::<Vec<_>>(), "{opens} {said:?}");
    }
}

#[test]
fn a_log_that_makes_no_sense_ends_protection() {
    let mut bed = Bed::served();
    bed.book.peer.push(Message::Frame { number: 1, records: &[1, 2, 3] });
    bed.turn();
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Diverged"));
    assert!(!bed.machine.follows());
}

#[test]
fn the_replica_hears_of_connections_that_are_over() {
    let mut bed = Bed::accepted();
    bed.book.peer.push(Message::Gone { conn: ConnId(5) });
    bed.turn();
    assert_eq!(bed.book.gone, [1]);
}

/// What the new image is built of comes in bits, and nothing wakes the member when it is there.
#[test]
fn a_joiner_looks_for_its_server_and_then_for_its_log() {
    let mut bed = Bed::new();
    bed.book.beats = Some(0);
    bed.machine = BackupMachine::joining(KEY, Limits::DEFAULT, &mut bed.book);
    bed.turn();
    let image = Message::Image { bytes: &[1, 2, 3] };
    bed.book.is_slow = true;
    bed.book.peer.extend([Message::Join { log_from: 7, image_bytes: 6 }, image]);
    bed.turn();
    let looks = |bed: &mut Bed| bed.due().since(bed.book.now);
    assert!(looks(&mut bed) <= nanos(COPY_LOOK) && looks(&mut bed) > nanos(LOOK_AFTER));
    bed.pass(50);
    assert_eq!(bed.book.reported, (None, false, Some(50)), "half of the image is here");
    bed.book.peer.push(Message::Image { bytes: &[] });
    (bed.book.is_slow, bed.book.progress) = (false, (100, 99));
    bed.turn();
    assert!(looks(&mut bed) <= nanos(LOOK_AFTER));
}

/// Its heartbeats may be lost while the rest of what it says comes.
#[test]
fn every_word_of_the_primary_says_that_it_lives() {
    let mut bed = Bed::served();
    bed.book.beats = None;
    for _ in 0..200 {
        bed.book.peer.push(Message::Progress { conns: Vec::new() });
        bed.pass(1);
    }
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

#[test]
fn a_takeover_tells_whether_the_primary_was_stopped() {
    for stops in [false, true] {
        let mut bed = Bed::served();
        bed.book.peer.extend(stops.then_some(Message::Stopping));
        bed.book.peer.push(Message::ServerDied { last: 9 });
        bed.turn();
        assert_eq!((bed.book.has("promotes: ServerDied"), bed.book.stopped), (true, stops));
    }
}

/// It may have been the primary of an earlier epoch.
#[test]
fn who_follows_or_joins_speaks_no_more() {
    for joins in [false, true] {
        let mut book = Bed::new().book;
        book.member.speaks = true;
        match joins {
            true => BackupMachine::joining(KEY, Limits::DEFAULT, &mut book),
            false => BackupMachine::new(KEY, &mut book),
        };
        assert!(!book.member.speaks, "{joins}");
    }
}

#[test]
fn who_is_no_backup_any_more_says_so_to_an_edge_that_comes_back() {
    let mut bed = Bed::served();
    bed.book.replica = Replica::Diverged("it wrote something else".to_owned());
    bed.turn();
    bed.book.take();
    bed.book.opens = true;
    bed.turn();
    assert_eq!(bed.book.take(), [in_step(false)]);
    // Who is in no epoch was never in step.
    (bed.book.opens, bed.book.member.epoch) = (true, 0);
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

/// What it says before that comes when its server does something, and pauses mean nothing.
#[test]
fn how_late_a_primary_is_counts_from_its_first_heartbeat() {
    let mut bed = Bed::new();
    let says_something =
        |bed: &mut Bed| bed.book.peer.push(Message::Progress { conns: Vec::new() });
    says_something(&mut bed);
    bed.pass(200);
    says_something(&mut bed);
    bed.pass(1);
    bed.book.beats = Some(0);
    bed.pass(500);
    bed.book.beats = None;
    bed.pass(100);
    assert!(bed.book.has("promotes: Silent"), "{:?}", bed.book.lines);
}

/// What no machine takes is counted, since it may tell of an error.
#[test]
fn a_word_that_the_backup_understands_is_not_counted_as_late() {
    let mut bed = Bed::taking_over();
    bed.book.peer.push(Message::Refused { reason: "it was slow", again: false });
    bed.turn();
    assert_eq!(bed.machine.log.counters().messages_late, 0);
}

/// Nothing comes of the primary while its output waits for this.
#[test]
fn what_a_lagging_replica_owes_is_confirmed_when_it_has_caught_up() {
    let mut bed = Bed::served();
    bed.book.progress = (200, 100);
    bed.pass(20);
    bed.book.peer.push(Message::Frame { number: 1, records: &[] });
    bed.turn();
    bed.book.is_peer_ready = false;
    bed.pass(1);
    assert!(!bed.book.has("send FrameOk"), "{:?}", bed.book.lines);
    bed.book.progress = (200, 200);
    bed.pass(1);
    assert!(bed.book.has("send FrameOk"), "{:?}", bed.book.lines);
}

#[test]
fn a_backup_wakes_for_its_heartbeat_once_the_primary_serves() {
    for (mut bed, wakes) in [(Bed::served(), true), (Bed::new(), false)] {
        let reports = bed.book.reports;
        while bed.book.reports == reports {
            bed.pass(1);
        }
        let due = bed.due();
        assert_eq!(due <= bed.book.now.plus(bench::PERIOD), wakes, "{due:?}");
    }
}
