//! A turn of a primary that serves, and what it shows.

use super::book::Shown;
use super::*;
use crate::timing::primary::{
    ATTACH_MAX, OWED_BYTES, OWED_WAIT, PROGRESS_EVERY, PROGRESS_PER_CONN, REPORT_EVERY,
};

impl Bed {
    /// A turn that ends at this time.
    pub(super) fn turn_at(&mut self, now: Nanos) -> Turn {
        self.book.now = now;
        self.turn()
    }

    /// A turn in which the operator stops this member.
    pub(super) fn stop(&mut self) -> Turn {
        self.machine.turn(true, &mut self.book)
    }

    /// Asserts that this turn ends the pair, and why the edge is asked.
    fn breaks(&mut self, reason: &str) {
        self.book.take();
        self.turn();
        assert!(self.book.has("shows Asks") && self.book.has("drop peer"), "{:?}", self.book.lines);
        assert_eq!(self.book.reason, reason);
        assert_eq!(self.book.refused, reason, "the backup hears it");
    }
}

#[test]
fn who_could_miss_log_in_its_sleep_does_not_sleep() {
    for stays_awake in [false, true] {
        for mut bed in [Bed::new(), Bed::joining(), Bed::kept()] {
            bed.book.stays_awake = stays_awake;
            assert_eq!(bed.turn() == Turn::Busy, stays_awake, "{:?}", bed.machine.stage);
        }
    }
}

#[test]
fn a_server_in_which_no_shim_runs_is_given_up() {
    let mut bed = Bed::new();
    let last = bed.book.now.plus(nanos(ATTACH_MAX));
    bed.book.attached = false;
    (bed.book.is_silent, bed.book.beats) = (false, 0);
    while bed.book.now < last {
        bed.pass(1);
    }
    assert!(!bed.book.has("shows Asks"), "{:?}", bed.book.lines);
    bed.book.now = last.plus(Nanos(1));
    bed.breaks(UNATTACHED);
}

#[test]
fn what_the_server_has_done_to_its_log_ends_protection() {
    for (bad, reason) in [("tail", OVERWRITTEN), ("record", "cannot record")] {
        let mut bed = Bed::new();
        bed.turn();
        bed.book.bad = bad;
        bed.breaks(reason);
    }
}

/// The tap of a backup may have lost a packet that the kernel holds.
#[test]
fn a_backup_is_told_what_a_socket_holds_unread() {
    for (unread, told) in [(None, "unread  false"), (Some(&b"left"[..]), "unread left true")] {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        bed.book.log = accept_record(5);
        bed.turn();
        bed.book.unread = unread;
        bed.book.peer.push(Message::NeedUnread { conn, from: 0, until: 4 });
        bed.turn();
        assert!(bed.book.has(told), "{:?}", bed.book.lines);
    }
}

/// What its other processes still send hangs on nothing that the backup could miss.
#[test]
fn what_leaves_behind_the_end_of_the_log_has_no_record() {
    let mut bed = Bed::new();
    let conn = bed.connect(5);
    bed.book.log = accept_record(5);
    bed.turn();
    bed.book.is_log_over = true;
    bed.slot(conn).snd_nxt = SeqNo(101 + 50);
    bed.book.take();
    bed.pass(5);
    assert_eq!(bed.book.take(), ["progress 5 edge 61000"]);
}

#[test]
fn progress_is_told_less_often_the_more_connections_there_are() {
    let mut bed = Bed::new();
    (1..=100).for_each(|id| bed.hold(id));
    bed.turn();
    bed.pass(10);
    (1..=100).for_each(|id| bed.slot(ConnId(id)).held_synack = false);
    let every = PROGRESS_EVERY + PROGRESS_PER_CONN * 100;
    while !bed.book.has("progress 7 edge 61000") {
        bed.pass(1);
    }
    let told = bed.book.now;
    bed.book.take();
    bed.slot(ConnId(7)).snd_una = SeqNo(102);
    bed.turn_at(Nanos(told.plus(nanos(every)).0 - 1));
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.turn_at(told.plus(nanos(every)));
    assert_eq!(bed.book.take(), ["progress 7 edge 61000"]);
}

#[test]
fn an_ack_of_less_than_two_segments_waits_for_its_time() {
    for (bytes, waits) in [(OWED_BYTES - 1, true), (OWED_BYTES, false)] {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        let until = SeqNo(1000).plus(bytes as u64);
        bed.slot(conn).rcv_nxt = until;
        bed.book.peer.push(Message::Held { conns: vec![(conn, until)] });
        let turn = bed.turn();
        let now = bed.book.now;
        assert_eq!(bed.book.has(&format!("ack {}", until.0)), !waits, "{bytes}");
        let Turn::Until(at) = turn else { panic!("{turn:?}") };
        assert!(at <= now.plus(nanos(if waits { OWED_WAIT } else { REPORT_EVERY })));
        bed.turn_at(now.plus(nanos(OWED_WAIT)));
        assert!(bed.book.has(&format!("ack {}", until.0)), "{bytes}");
    }
}

#[test]
fn the_status_is_shown_now_and_then_and_when_the_shim_comes() {
    let mut bed = Bed::new();
    bed.book.attached = false;
    let every = REPORT_EVERY.as_millis() as u64;
    bed.pass(every + 1);
    let before = bed.book.reports;
    bed.pass(2 * every);
    assert_eq!(bed.book.reports, before + 2);
    assert!(!bed.book.shown.is_attached);
    bed.pass(1);
    bed.book.attached = true;
    bed.turn();
    assert_eq!(bed.book.reports, before + 3, "who looks for the listeners finds them");
    assert!(bed.book.shown.is_attached);
    bed.turn();
    assert_eq!(bed.book.reports, before + 3);
}

#[test]
fn the_status_tells_of_backup_and_connections() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.book.log = accept_record(5);
    bed.pass(100);
    let unexecuted = bed.book.log.len() as u64;
    let shown = Shown { is_attached: true, connections: 1, unexecuted, ..Shown::default() };
    assert_eq!(bed.book.shown, shown);
    let mut bed = Bed::in_doubt();
    bed.pass(3);
    while !bed.book.shown.is_in_doubt && !bed.book.has("drop peer") {
        bed.pass(1);
    }
    assert!(bed.book.shown.is_in_doubt, "{:?}", bed.book.lines);
    bed.book.is_silent = false;
    bed.pass(60);
    assert!(!bed.book.shown.is_in_doubt);
}

#[test]
fn the_status_tells_how_far_a_joiner_is_and_whether_something_is_kept() {
    let mut bed = Bed::alone();
    (bed.book.is_slow, bed.book.knocks) = (true, true);
    bed.turn();
    bed.pass(60);
    assert_eq!((bed.book.shown.joins, bed.book.shown.keeps), (Some(0), false));
    bed.book.is_slow = false;
    bed.pass(60);
    bed.book.peer.push(Message::ImageOk { bytes: 2 * IMAGE_BYTES as u64 });
    bed.pass(60);
    assert_eq!(bed.book.shown.joins, Some(66));
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(60);
    assert_eq!(bed.book.shown.joins, Some(100));
    bed.book.peer.push(Message::Joined);
    bed.pass(60);
    assert_eq!(bed.book.shown.joins, None);
    let mut bed = Bed::kept();
    bed.pass(60);
    assert_eq!((bed.book.shown.joins, bed.book.shown.keeps), (None, true));
}

/// The kernel may have given it up by itself, or may yet hear its client.
#[test]
fn a_handshake_that_cannot_be_ended_stays() {
    for (bad, ended) in [("destroy", 0), ("", 1)] {
        let mut bed = Bed::new();
        (bed.book.backlog, bed.book.state, bed.book.bad) = (Some(2), ConnState::SynReceived, bad);
        bed.connect(5);
        bed.connect(6);
        bed.pass(300);
        assert!(bed.book.has("destroy [5]"), "{:?}", bed.book.lines);
        assert_eq!(bed.book.has("send Gone"), ended == 1, "{:?}", bed.book.lines);
        assert_eq!(bed.book.shown.handshakes_ended, ended);
        assert_eq!(bed.machine.tables.conns.len(), 2 - ended as usize);
    }
}

/// Its heartbeats may be lost while the rest of what it says comes.
#[test]
fn every_word_of_the_backup_says_that_it_lives() {
    let mut bed = Bed::new();
    bed.pass(30);
    bed.book.is_silent = true;
    for _ in 0..200 {
        bed.book.peer.push(Message::Held { conns: Vec::new() });
        bed.pass(1);
    }
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

/// It would be waited for in every turn.
#[test]
fn an_ack_that_is_owed_no_more_is_forgotten() {
    for is_freed in [false, true] {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        bed.slot(conn).rcv_nxt = SeqNo(1100);
        bed.book.peer.push(Message::Held { conns: vec![(conn, SeqNo(1100))] });
        bed.turn();
        assert_eq!(bed.machine.tables.owed.len(), 1);
        match is_freed {
            true => drop(bed.book.slots.remove(&conn)),
            false => bed.slot(conn).last_ack = SeqNo(1100),
        }
        bed.turn();
        assert!(bed.machine.tables.owed.is_empty(), "{is_freed}");
    }
}

#[test]
fn heartbeats_are_no_messages_that_mean_nothing() {
    let mut bed = Bed::new();
    bed.pass(100);
    assert_eq!(bed.machine.log.counters().messages_ignored, 0);
}
