//! A server that speaks alone, and who joins it.

mod clients;
mod failures;
mod steps;

use super::*;
use crate::timing::primary::{CLIENTS_MAX, IN_STEP_LASTS, JOINER_SILENT, REJOIN_PAUSE};
use holdfast_wire::message::IMAGE_BYTES_MAX;

/// Image of the tests' server, in three pieces.
pub(super) const IMAGE: Image = Image { log_from: 0, bytes: 3 * IMAGE_BYTES as u64 };

impl Bed {
    /// A primary whose server speaks alone and has one connection.
    pub(super) fn alone() -> Self {
        let mut bed = Self::new();
        let conn = bed.connect(5);
        bed.slot(conn).snd_una = SeqNo(101);
        bed.pass(5);
        bed.book.peer.push(Message::GaveUp { state: "ended", reason: "it was stopped" });
        bed.turn();
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        bed.turn();
        bed.turn();
        assert!(bed.book.has("alone") && bed.book.has("shows Alone"), "{:?}", bed.book.lines);
        bed.book.image = Some(IMAGE);
        bed.book.books = vec![book(5, 0)];
        bed.book.take();
        bed
    }

    /// A primary that has sent part of an image to a joiner.
    pub(super) fn joining() -> Self {
        let mut bed = Self::alone();
        bed.book.knocks = true;
        bed.turn();
        assert!(bed.book.has("shows Joins"), "{:?}", bed.book.lines);
        bed.book.take();
        bed
    }

    /// A primary in the last step of a join, in which output waits.
    fn closing() -> Self {
        let mut bed = Self::joining();
        bed.book.peer.push(Message::CaughtUp);
        bed.turn();
        assert!(bed.book.has("send Closing"), "{:?}", bed.book.lines);
        bed.book.take();
        bed
    }

    /// The joiner that has just come is in step for `in_step_ms` and then lost, and the edge lets
    /// the server speak alone.
    pub(super) fn joins_for(&mut self, in_step_ms: u64) {
        self.book.peer.push(Message::CaughtUp);
        self.pass(3);
        self.book.peer.push(Message::Joined);
        self.pass(in_step_ms);
        assert!(self.book.has("shows Joined"), "{:?}", self.book.lines);
        self.book.peer.push(Message::GaveUp { state: "diverged", reason: "it differs" });
        self.turn();
        let epoch = self.book.member.epoch + 1;
        self.book.edge.push(Message::Granted { epoch });
        self.turn();
        self.book.books = vec![book(5, 0)];
        assert!(self.book.has("shows Alone"), "{:?}", self.book.lines);
        self.book.take();
    }

    /// Whether a member that knocks is let in after `pause_ms`, and not before.
    fn may_join_after(&mut self, pause_ms: u64) -> bool {
        if pause_ms > 0 {
            self.pass(pause_ms - 1);
            self.book.knocks = true;
            self.turn();
            assert_eq!(self.book.take(), ["turn away"]);
            self.pass(1);
        }
        self.book.knocks = true;
        self.turn();
        let joins = self.book.has("shows Joins");
        self.book.take();
        joins
    }

    /// Asserts that the attempt to join has failed, and that the next one may only be made after
    /// `pause_ms`.
    fn has_failed(&mut self, ends_log: bool, pause_ms: u64) {
        let lines = self.book.take();
        assert!(lines.contains(&"shows JoinFailed".to_owned()), "{lines:?}");
        assert_eq!(lines.contains(&"end log".to_owned()), ends_log, "{lines:?}");
        for line in ["drop image", "send Refused", "drop peer"] {
            assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
        }
        assert!(!lines.contains(&"commit 0".to_owned()) && !lines.contains(&"kill".to_owned()));
        let (waits, joins) = (self.machine.tables.is_committing, self.machine.joins);
        assert_eq!((waits, joins), (true, None), "nothing of the join is left");
        assert_eq!(self.book.may_come_again, Some(true));
        self.book.is_lost = false;
        self.book.books = vec![book(5, 0)];
        self.pass(pause_ms - 1);
        self.book.knocks = true;
        self.turn();
        assert_eq!(self.book.take(), ["turn away"]);
        self.pass(1);
        self.book.knocks = true;
        self.turn();
        assert!(self.book.has("hello, runs: true"), "{:?}", self.book.lines);
        self.book.take();
    }
}

/// What the server's books say of a connection to which it has written `out_bytes`.
pub(super) fn book(id: u64, out_bytes: u64) -> join::Book {
    let (eof, shut, closed) = (false, false, false);
    join::Book { accept: id as u32, socket: id, in_bytes: 0, out_bytes, eof, shut, closed }
}

fn at(lines: &[String], line: &str) -> usize {
    let at = lines.iter().position(|known| known == line);
    at.unwrap_or_else(|| panic!("no `{line}` in {lines:?}"))
}

#[test]
fn a_joiner_gets_the_image_and_output_waits_before_it_may_be_in_step() {
    let mut bed = Bed::alone();
    bed.book.knocks = true;
    bed.turn();
    assert_eq!(bed.book.lines.iter().filter(|line| *line == "send Image").count(), 1, "at leisure");
    bed.pass(6);
    let lines = bed.book.take();
    let order =
        ["hello, runs: true", "take image", "image true", "send Join", "send Adopt", "shows Joins"];
    assert!(order.windows(2).all(|two| at(&lines, two[0]) < at(&lines, two[1])), "{lines:?}");
    // Three pieces of the image, and an empty one that ends it.
    assert_eq!(lines.iter().filter(|line| *line == "send Image").count(), 4);
    assert!(lines.contains(&"drop image".to_owned()), "{lines:?}");
    bed.pass(20);
    assert!(!bed.book.take().contains(&"send Image".to_owned()), "that is said once");
    // What is logged is framed, and what the joiner holds makes room; nothing waits for the joiner.
    bed.book.log = log_record();
    bed.turn();
    bed.book.peer.push(Message::FrameOk { number: 1 });
    bed.turn();
    assert_eq!(bed.book.take(), ["send Frame", &format!("free log {HEADER_LEN}")]);
    assert_eq!(bed.book.stable, 0);
    // The joiner has caught up: first output and ACKs wait, and then the joiner is told.
    bed.book.peer.push(Message::CaughtUp);
    bed.slot(ConnId(5)).rcv_nxt = SeqNo(1010);
    bed.turn();
    let lines = bed.book.take();
    let progress = "progress 5 edge 61000";
    let order = [&format!("commit {HEADER_LEN}"), "clamp", progress, "send Closing"];
    assert!(order.windows(2).all(|two| at(&lines, two[0]) < at(&lines, two[1])), "{lines:?}");
    bed.pass(3);
    assert!(!bed.book.has("shows Joined"));
    bed.book.peer.push(Message::Joined);
    bed.turn();
    assert!(bed.book.has("shows Joined"));
    // From here on the joiner is a backup like any other.
    bed.book.log.extend(log_record());
    bed.turn();
    bed.book.peer.push(Message::FrameOk { number: 2 });
    bed.turn();
    assert_eq!(bed.book.stable, bed.book.log.len() as u64);
}

#[test]
fn the_joiner_is_told_where_it_has_all_only_when_all_was_sent() {
    let mut bed = Bed::joining();
    bed.book.behind = 64;
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(bed.book.has("clamp") && !bed.book.has("send Closing"), "{:?}", bed.book.lines);
    bed.book.peer.push(Message::Joined);
    bed.turn();
    assert!(!bed.book.has("shows Joined"), "it cannot be in step before it was told");
    bed.book.behind = 0;
    bed.book.log = [log_record(), log_record()].concat();
    bed.turn();
    assert!(bed.book.has("send Closing"), "{:?}", bed.book.lines);
}

#[test]
fn who_would_cut_off_connections_does_not_let_anybody_join() {
    let mut bed = Bed::alone();
    (bed.book.strangers, bed.book.knocks) = (1, true);
    bed.turn();
    assert!(!bed.book.has("take image"));
    bed.book.strangers = 0;
    bed.has_failed(false, REJOIN_PAUSE.as_millis() as u64);
    bed.book.strangers = 1;
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(!bed.book.has("clamp"), "{:?}", bed.book.lines);
    bed.has_failed(true, 2 * REJOIN_PAUSE.as_millis() as u64);
}

/// A joiner that is in step while ACKs leave unasked would lack what clients were told.
#[test]
fn a_gate_that_cannot_hold_back_ends_the_join_and_not_the_service() {
    let mut bed = Bed::joining();
    bed.book.cannot_clamp = true;
    bed.book.peer.push(Message::CaughtUp);
    bed.turn();
    assert!(bed.book.has("clamp") && !bed.book.has("send Closing"), "{:?}", bed.book.lines);
    let lines = bed.book.take();
    let order = ["clamp", "end log", "send Refused", "drop peer", "shows JoinFailed"];
    assert!(order.windows(2).all(|two| at(&lines, two[0]) < at(&lines, two[1])), "{lines:?}");
}

/// A switchover to a backup that is just joining would end the service, since that could not take
/// over.
#[test]
fn a_switchover_that_was_asked_for_before_means_nothing_to_who_has_joined_since() {
    let mut bed = Bed::joining();
    bed.book.member.hands_over = true;
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(3);
    bed.book.peer.push(Message::Joined);
    bed.pass(3);
    assert!(bed.book.has("shows Joined"), "{:?}", bed.book.lines);
    assert!(!bed.book.has("shows HandsOver"));
}

/// The joiner may be in step for all that this member knows, so only the edge can decide.
#[test]
fn once_output_waits_only_the_edge_takes_that_back() {
    let mut bed = Bed::closing();
    bed.book.is_lost = true;
    bed.turn();
    bed.book.is_lost = false;
    assert!(bed.book.has("shows Asks") && !bed.book.has("alone"), "{:?}", bed.book.lines);
    bed.book.take();
    bed.pass(100);
    assert!(!bed.book.has("alone"));
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 2 });
    bed.turn();
    assert!(bed.book.has("alone"));
    bed.book.take();
    // Then another member may join at once.
    assert!(bed.may_join_after(0));
}

/// Each attempt costs the server a freeze, and one that fails late no less than others.
#[test]
fn a_backup_that_gives_up_soon_after_it_has_joined_is_a_failed_attempt() {
    let pause = REJOIN_PAUSE.as_millis() as u64;
    let lasts = IN_STEP_LASTS.as_millis() as u64;
    let mut bed = Bed::alone();
    bed.book.knocks = true;
    bed.turn();
    let rounds = [(9, pause), (lasts, 2 * pause), (9, 4 * pause), (lasts + 1, 0)];
    for (in_step, expected) in rounds {
        bed.joins_for(in_step);
        assert!(bed.may_join_after(expected), "{in_step} ms, {expected} ms");
    }
    // A backup that was in step for long enough clears the record of earlier attempts.
    bed.joins_for(9);
    assert!(bed.may_join_after(pause));
}

/// A grant because of an earlier backup means nothing for the one that has joined since.
#[test]
fn a_grant_of_old_does_not_bar_who_has_joined() {
    let mut bed = Bed::new();
    bed.book.is_silent = true;
    while !bed.book.has("shows Doubts") {
        bed.pass(1);
    }
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    bed.book.is_silent = false;
    bed.book.image = Some(IMAGE);
    bed.pass(1);
    bed.book.knocks = true;
    bed.turn();
    bed.book.peer.push(Message::CaughtUp);
    bed.pass(3);
    bed.book.peer.push(Message::Joined);
    bed.pass(3);
    assert!(bed.book.has("shows Joined"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.member.epoch, EPOCH + 1);
}

#[test]
fn a_server_that_ends_or_is_replaced_or_stopped_takes_the_joiner_with_it() {
    let mut bed = Bed::joining();
    bed.book.ended = true;
    bed.turn();
    for line in ["shows EndedAlone", "drop peer", "drop image"] {
        assert!(bed.book.has(line), "{line}: {:?}", bed.book.lines);
    }
    let mut bed = Bed::joining();
    assert_eq!(bed.machine.turn(true, &mut bed.book), Turn::End(End::Stopped));
    assert!(bed.book.has("kill"));
}

/// A FIN that waits behind data has no record any more that could let it go.
#[test]
fn ends_of_before_the_image_may_leave() {
    for (shut, closed) in [(true, false), (false, true), (false, false)] {
        let mut bed = Bed::alone();
        (bed.book.books[0].shut, bed.book.books[0].closed) = (shut, closed);
        bed.book.knocks = true;
        bed.turn();
        assert_eq!(bed.book.has("fin 5"), shut || closed, "{:?}", bed.book.lines);
    }
}

/// A connection that is over is not one that the server has yet to accept.
#[test]
fn what_is_over_is_not_taken_up() {
    let mut bed = Bed::alone();
    (bed.book.state, bed.book.knocks) = (ConnState::Over, true);
    bed.book.books.clear();
    bed.turn();
    assert!(bed.book.has("send Join") && !bed.book.has("send Adopt"), "{:?}", bed.book.lines);
}

/// The server has closed it and dropped it from its books, or has accepted it since the image.
#[test]
fn what_has_spoken_and_is_in_no_book_may_be_new() {
    for is_new in [false, true] {
        let mut bed = Bed::alone();
        bed.book.books.clear();
        bed.slot(ConnId(5)).snd_nxt = SeqNo(9000);
        bed.book.sockets.extend(is_new.then_some(book(5, 0).socket));
        bed.book.knocks = true;
        bed.turn();
        let seen = (bed.book.has("send Adopt"), bed.book.has("fin 5"));
        assert_eq!(seen, (is_new, !is_new), "{:?}", bed.book.lines);
    }
}

/// Nobody is sent away because of a joiner.
#[test]
fn a_connection_too_many_ends_the_join_and_not_the_connection() {
    let mut bed = Bed::joining();
    let limit = PrimaryLimits::DEFAULT.conns_max as u64;
    (6..=limit + 6).for_each(|id| bed.hold(id));
    bed.turn();
    assert!(bed.book.has("shows JoinFailed"), "too many");
    assert!(!bed.book.lines.iter().any(|line| line.starts_with("free ")), "nobody was freed");
}

#[test]
fn who_has_taken_over_speaks_alone_with_its_connections() {
    let mut book = Bed::new().book;
    book.take();
    (book.image, book.knocks) = (Some(IMAGE), true);
    book.slots.insert(ConnId(5), slot(5));
    book.books = vec![super::joins::book(5, 0)];
    let machine = PrimaryMachine::alone(100, PrimaryLimits::DEFAULT, [held(5)], &mut book);
    let mut bed = Bed { machine, book };
    assert!(bed.book.member.speaks);
    bed.turn();
    assert!(bed.book.has("send Adopt"), "{:?}", bed.book.lines);
    assert!(bed.book.shown.is_attached, "the shim has run in its server all the time");
}

/// Who was current before it took over is not another member that speaks: a server that is
/// started anew would be empty.
#[test]
fn a_survivor_whose_server_ends_starts_none_by_itself() {
    for (epoch, begins_again) in [(EPOCH - 1, false), (EPOCH, true)] {
        let mut book = Bed::new().book;
        let machine = PrimaryMachine::alone(100, PrimaryLimits::DEFAULT, [held(5)], &mut book);
        let mut bed = Bed { machine, book };
        bed.book.edge.push(Message::Epoch { epoch, current: "b" });
        bed.turn();
        bed.book.ended = true;
        bed.book.take();
        let ends = (0..3000).any(|_| {
            bed.pass(1);
            bed.machine.turn(false, &mut bed.book) == Turn::End(End::Again)
        });
        assert!(bed.book.has("shows EndedAlone"), "{:?}", bed.book.lines);
        assert_eq!(ends, begins_again, "the edge's last word was of epoch {epoch}");
    }
}

/// Copies that only an earlier backup held were lost with it.
#[test]
fn what_an_earlier_backup_held_is_not_acknowledged_for_this_one() {
    let mut bed = Bed::alone();
    bed.slot(ConnId(5)).stable = SeqNo(9000);
    bed.book.books[0].in_bytes = 20;
    bed.book.knocks = true;
    bed.turn();
    assert_eq!(bed.slot(ConnId(5)).stable, SeqNo(1020));
}

/// The SYN-ACK was held back while the edge was asked, and no backup is left to hold its record.
#[test]
fn a_handshake_that_was_held_back_just_before_goes_on() {
    let mut bed = Bed::alone();
    bed.hold(6);
    bed.hold(7);
    bed.slot(ConnId(7)).held_synack = false;
    bed.turn();
    assert_eq!(bed.book.take(), ["open 6"]);
}

/// While the server speaks alone no record says that it has ended the tuple's earlier connections.
#[test]
fn a_tuple_of_many_lives_holds_no_slots_of_a_server_that_speaks_alone() {
    let mut bed = Bed::alone();
    for id in 6..20 {
        bed.book.slots.insert(ConnId(id), slot(5));
        bed.book.held.push(Held { conn: ConnId(id), socket: id, record: record(5) });
        // ACKs that an earlier backup has allowed are owed no longer.
        bed.slot(ConnId(id - 1)).stable = SeqNo(9000);
        bed.slot(ConnId(id - 1)).rcv_nxt = SeqNo(9000);
        bed.turn();
    }
    bed.pass(5_000);
    assert_eq!(bed.machine.tables.conns.keys().collect::<Vec<_>>(), [&ConnId(19)]);
    bed.pass(60_100);
    let freed = bed.book.take().iter().filter(|line| line.starts_with("free ")).count();
    assert_eq!(freed, 14);
}

/// While the server speaks alone, the kernel's ACKs have gone out as they were.
#[test]
fn nobody_pays_what_is_owed_of_a_connection_that_is_over_while_the_server_speaks_alone() {
    let mut bed = Bed::alone();
    bed.slot(ConnId(5)).stable = SeqNo(1100);
    bed.slot(ConnId(5)).rcv_nxt = SeqNo(1100);
    bed.book.state = ConnState::Over;
    bed.pass(5_000);
    assert!(bed.machine.tables.conns.is_empty());
}

/// A connection's clock may be weeks old, and of one that is not in the gate's tables only the
/// server knows.
#[test]
fn a_joiner_hears_of_each_connection_as_it_is_by_then() {
    let mut book = Bed::new().book;
    (book.image, book.knocks) = (Some(IMAGE), true);
    let acked = SeqNo(101 + 30 + 1);
    let now = SlotView { held_synack: false, snd_una: acked, tsval: 77_000, ..slot(5) };
    book.slots.insert(ConnId(5), now);
    // This one has sent nothing for five seconds.
    book.slots.insert(ConnId(6), SlotView { held_synack: false, tsval: 77, ..slot(6) });
    let closed = join::Book { closed: true, ..super::joins::book(9, 0) };
    let living = [(5, 30), (6, 0), (8, 0)].map(|(id, out)| super::joins::book(id, out));
    book.books = [&living[..], &[closed]].concat();
    let began = [5, 6].map(held).map(|mut held| {
        held.record.tsval = Some(1);
        held
    });
    let machine = PrimaryMachine::alone(100, PrimaryLimits::DEFAULT, began, &mut book);
    let mut bed = Bed { machine, book };
    bed.book.now = bed.book.now.plus(Nanos::from_ms(5_000));
    bed.turn();
    let seen: Vec<_> =
        bed.book.adopted.iter().map(|it| (it.accept, it.conn, it.acked_bytes)).collect();
    let of =
        |id: u16, tsval| Some((ConnId(id.into()), ConnRecord { tsval: Some(tsval), ..record(id) }));
    // The client of the first has the server's FIN, too.
    let all = [(Some(5), of(5, 77_000), 31), (Some(6), of(6, 5_001), 0), (Some(8), None, 0)];
    assert_eq!(seen, all);
}

/// The client has vanished, and the kernel repeats the last bytes for a quarter of an hour. A
/// backup would take the connection for one that waits to be accepted.
#[test]
fn who_is_in_no_book_any_more_is_nobodys_to_adopt() {
    let mut book = Bed::new().book;
    (book.image, book.knocks) = (Some(IMAGE), true);
    for id in [5, 6] {
        book.slots.insert(ConnId(id), SlotView { held_synack: false, ..slot(id) });
    }
    book.slots.get_mut(&ConnId(6)).expect("a slot").snd_nxt = SeqNo(101 + 8);
    let conns = [held(5), held(6)];
    let machine = PrimaryMachine::alone(100, PrimaryLimits::DEFAULT, conns, &mut book);
    let mut bed = Bed { machine, book };
    bed.turn();
    let adopted: Vec<_> = bed.book.adopted.iter().map(|it| it.conn.map(|(id, _)| id)).collect();
    assert_eq!(adopted, [Some(ConnId(5))]);
    assert!(bed.book.has("fin 6") && !bed.book.has("fin 5"), "{:?}", bed.book.lines);
}

#[test]
fn a_joiner_is_told_where_streams_are_though_an_earlier_backup_was() {
    let mut bed = Bed::joining();
    bed.pass(5);
    assert!(bed.book.has("progress 5 edge 61000"), "{:?}", bed.book.lines);
}

/// Heartbeats and log wait behind the pieces of an image.
#[test]
fn no_more_of_an_image_is_under_way_than_a_few_pieces() {
    let mut bed = Bed::alone();
    let piece = IMAGE_BYTES_MAX as u64;
    bed.book.image = Some(Image { log_from: 0, bytes: 10 * piece });
    (bed.book.piece, bed.book.knocks) = (usize::MAX, true);
    let pieces = |bed: &mut Bed| {
        bed.pass(20);
        bed.book.take().iter().filter(|line| *line == "send Image").count()
    };
    assert_eq!((pieces(&mut bed), pieces(&mut bed)), (4, 0));
    bed.book.peer.push(Message::ImageOk { bytes: piece });
    assert_eq!((pieces(&mut bed), pieces(&mut bed)), (1, 0));
    // A joiner cannot confirm what was never sent: the five pieces count, and then four more may
    // go.
    bed.book.peer.push(Message::ImageOk { bytes: u64::MAX });
    assert_eq!((pieces(&mut bed), pieces(&mut bed)), (4, 0));
}

/// An image of a large server takes seconds.
#[test]
fn who_waits_for_the_image_is_served_and_heard() {
    let mut bed = Bed::alone();
    (bed.book.is_slow, bed.book.knocks) = (true, true);
    bed.turn();
    bed.pass(JOINER_SILENT.as_millis() as u64 + 1);
    assert!(bed.book.has("take image") && !bed.book.has("send Join"), "{:?}", bed.book.lines);
    assert!(!bed.book.has("shows JoinFailed"));
    bed.book.is_slow = false;
    bed.pass(12);
    assert!(bed.book.has("send Join") && bed.book.has("drop image"), "{:?}", bed.book.lines);
    // The image may take its time as long as the joiner is heard.
    bed.pass(JOINER_SILENT.as_millis() as u64 + 1);
    assert!(!bed.book.has("shows JoinFailed"));
}

/// Numbers that go on from an earlier backup's heartbeats would confirm ones that the new backup
/// never sent.
#[test]
fn heartbeats_begin_anew_with_who_joins() {
    let mut bed = Bed::alone();
    (bed.book.is_slow, bed.book.is_silent, bed.book.knocks) = (true, true, true);
    bed.turn();
    assert!(bed.book.has("take image"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.beat, Some((1, 0)));
}

#[test]
fn pieces_that_are_not_there_yet_hold_up_no_log() {
    let mut bed = Bed::alone();
    bed.book.knocks = true;
    bed.book.image = Some(Image { log_from: 0, bytes: 10 * IMAGE_BYTES_MAX as u64 });
    bed.book.piece = usize::MAX;
    bed.pass(10);
    bed.book.take();
    bed.book.is_slow = true;
    bed.book.peer.push(Message::ImageOk { bytes: 4 * IMAGE_BYTES_MAX as u64 });
    bed.book.log = log_record();
    bed.turn();
    assert_eq!(bed.book.take(), ["send Frame"]);
    bed.book.is_slow = false;
    bed.pass(3);
    assert!(bed.book.has("send Image"), "{:?}", bed.book.lines);
}

#[test]
fn a_joiner_that_is_lost_before_the_image_is_taken_leaves_no_log() {
    let mut bed = Bed::alone();
    (bed.book.is_slow, bed.book.knocks) = (true, true);
    bed.turn();
    bed.book.is_lost = true;
    bed.turn();
    let lines = &bed.book.lines;
    assert!(at(lines, "drop image") < at(lines, "end log"), "{lines:?}");
    bed.book.is_slow = false;
    bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
}

#[test]
fn an_image_that_is_never_whole_ends_the_join() {
    let mut bed = Bed::alone();
    (bed.book.is_torn, bed.book.knocks) = (true, true);
    bed.turn();
    bed.turn();
    bed.book.is_torn = false;
    bed.has_failed(true, REJOIN_PAUSE.as_millis() as u64);
}
