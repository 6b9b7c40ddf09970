//! Connections, from what clients have of them to their takeover.

use super::*;
use crate::timing::backup::{LOOK_AFTER, TAP_BATCH};
use crate::timing::takeover::TAP_BATCHES;
use holdfast_replica::promotion::Why;
use holdfast_wire::message::ConnProgress;

impl Bed {
    /// A connection that the server has accepted as its first.
    pub(super) fn accepted() -> Self {
        let mut bed = Self::served();
        bed.connect();
        bed.book.peer.push(Message::Frame { number: 1, records: accept_record() });
        bed.turn();
        bed
    }

    /// One whose client waits for an answer, so that a takeover asks it.
    pub(super) fn requested() -> Self {
        let mut bed = Self::accepted();
        bed.book.tap.push(TcpPacket { payload: b"x", ..segment(0, b"request") });
        bed.turn();
        bed
    }
}

/// Else it would keep all output for ever, for a client that might lack it.
#[test]
fn the_replica_hears_what_clients_have() {
    let mut bed = Bed::accepted();
    let has = record().iss.plus(1 + 500);
    let progress = ConnProgress {
        conn: ConnId(5),
        snd_una: has,
        snd_nxt: has,
        right_edge: record().irs.plus(60_000),
        tsval: 0,
        rcv_nxt: record().irs.plus(1),
    };
    bed.book.peer.push(Message::Progress { conns: vec![progress] });
    bed.turn();
    assert_eq!(bed.book.acked, [(1, 500)]);
}

/// The primary waits for it, and nothing wakes this member when the replica moves.
#[test]
fn who_owes_a_confirmation_looks_again_soon() {
    for owes in [false, true] {
        let mut bed = Bed::served();
        bed.book.progress = if owes { (100, 0) } else { (100, 100) };
        bed.pass(200);
        bed.book.peer.push(Message::Frame { number: 1, records: &[] });
        let Turn::Until(at) = bed.turn() else { panic!("{:?}", bed.book.lines) };
        assert_eq!(bed.book.has("send FrameOk"), !owes, "{:?}", bed.book.lines);
        assert_eq!(at <= bed.book.now.plus(nanos(LOOK_AFTER)), owes, "{at:?}");
    }
}

/// It reads them flow by flow, while clients are asked already.
#[test]
fn what_the_edge_has_seen_may_come_after_its_grant() {
    let mut bed = Bed::accepted();
    (bed.book.replica, bed.book.manifest) = (Replica::Parked, true);
    bed.book.is_lost = true;
    bed.turn();
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    bed.book.tap = vec![segment(0, b"")];
    bed.pass(2);
    assert!(!bed.book.has("live"), "{:?}", bed.book.lines);
    bed.book.edge.push(Message::Bounds { flows: Vec::new(), last: true });
    bed.pass(1);
    assert!(bed.book.has("live"), "{:?}", bed.book.lines);
}

/// A client that the edge has seen acknowledge more than the replica wrote knows that
/// the replica is no copy.
#[test]
fn a_client_that_holds_more_than_the_replica_wrote_ends_a_takeover() {
    let mut bed = Bed::accepted();
    bed.book.is_lost = true;
    bed.turn();
    bed.book.take();
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    let bounds = FlowBounds {
        key: record().key,
        iss: Some(SeqNo(100)),
        seq_end: SeqNo(201),
        right_edge: SeqNo(61_000),
        tsval: 0,
        client_ack: SeqNo(201),
    };
    bed.book.edge.push(Message::Bounds { flows: vec![bounds], last: true });
    bed.book.replica = Replica::Parked;
    bed.book.manifest = true;
    bed.book.tap = vec![TcpPacket { ack: SeqNo(201), ..segment(0, b"") }];
    bed.turn();
    bed.book.tap = vec![TcpPacket { ack: SeqNo(201), ..segment(0, b"") }];
    bed.pass(1);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Diverged"));
}

impl Bed {
    /// A takeover of an accepted connection whose replica has come to its log's end; the edge has
    /// granted it, and the clients are asked.
    fn asked(records: &[&[u8]]) -> Self {
        let mut bed = Self::accepted();
        for (number, records) in (2..).zip(records) {
            let records: &'static [u8] = records.to_vec().leak();
            bed.book.peer.push(Message::Frame { number, records });
        }
        bed.turn();
        bed.book.is_lost = true;
        bed.turn();
        bed.book.take();
        bed.grant();
        bed.turn();
        bed
    }
}

/// Its client hears that it is over, once somebody answers what it then says.
#[test]
fn a_client_whose_connection_is_lost_is_asked_once_the_server_lives() {
    let closed = framed(Header { op: Op::Close as u8, ..Header::default() }, &[]);
    for (records, loss) in [(&[][..], Some(Why::NotInManifest)), (&[closed][..], None)] {
        let mut bed = Bed::asked(records);
        bed.book.take();
        (bed.book.replica, bed.book.tap) = (Replica::Parked, vec![segment(0, b"")]);
        assert_eq!(bed.turn(), Turn::Busy, "{loss:?}");
        assert_eq!(bed.book.losses, loss.into_iter().collect::<Vec<_>>());
        let lines = bed.book.take();
        let farewell = lines.iter().position(|line| line == "segment 1000");
        assert_eq!(farewell.is_some(), loss.is_some(), "{lines:?}");
        let at = |word: &str| lines.iter().position(|line| line == word);
        assert!(farewell.is_none_or(|it| at("live") < Some(it) && Some(it) < at("kick")));
    }
}

/// That is no loss: the client wants it no more.
#[test]
fn a_client_that_gives_up_before_it_is_accepted_is_not_lost() {
    let mut bed = Bed::served();
    bed.connect();
    bed.book.is_lost = true;
    bed.turn();
    bed.grant();
    bed.turn();
    bed.book.replica = Replica::Parked;
    bed.book.tap = vec![TcpPacket { flags: Flags::RST, ..segment(0, b"") }];
    assert_eq!(bed.turn(), Turn::Busy, "{:?}", bed.book.lines);
    assert!(bed.book.losses.is_empty() && !bed.book.has("lost"), "{:?}", bed.book.lines);
}

/// The status shows where the time went.
#[test]
fn every_phase_of_a_takeover_has_its_time() {
    let ms = Nanos::from_ms;
    let mut bed = Bed::accepted();
    (bed.book.manifest, bed.book.step) = (true, ms(3));
    bed.book.beats = None;
    bed.pass(9);
    (bed.book.is_lost, bed.book.keeps) = (true, true);
    bed.pass(1);
    bed.pass(1);
    bed.book.keeps = false;
    bed.pass(6);
    bed.grant();
    bed.pass(1);
    // The time that goes to its socket is not that of its question.
    bed.pass(5);
    bed.book.replica = Replica::Parked;
    bed.book.tap = vec![segment(0, b"")];
    bed.pass(10);
    assert!(bed.book.has("TookOver") && bed.book.has("restore 5000"), "{:?}", bed.book.lines);
    let phases = Phases {
        detect: ms(10),
        fence: ms(8),
        drain: ms(2),
        repair: ms(3),
        probe: ms(6),
        address: ms(3),
        kick: ms(3),
        total: ms(8 + 6 + 3 + 3 + 3),
    };
    assert_eq!(bed.book.phases, phases);
}

/// Once the edge has granted the service, this host's kernel may still refuse.
#[test]
fn a_kernel_that_refuses_the_address_ends_the_takeover() {
    for (bad, comes_first) in [("address", "listeners"), ("hear", "clocks")] {
        let mut bed = Bed::taking_over();
        (bed.book.replica, bed.book.bad) = (Replica::Parked, bad);
        bed.grant();
        bed.turn();
        assert!(bed.book.has(comes_first) && !bed.book.has("live"), "{:?}", bed.book.lines);
        assert!(bed.book.has("gave up: Ended"), "{:?}", bed.book.lines);
        assert_eq!(bed.book.reason, format!("cannot {bad}"));
        assert!(!bed.book.member.speaks);
    }
}

#[test]
fn a_dead_servers_log_that_makes_no_sense_ends_the_takeover() {
    let mut bed = Bed::served();
    bed.book.peer.push(Message::ServerDied { last: 1 });
    bed.turn();
    bed.book.peer.push(Message::Frame { number: 1, records: &[1, 2, 3] });
    bed.turn();
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Diverged"));
}

/// What came from a client since its socket was rebuilt goes there, in order, however much it is.
#[test]
fn what_clients_send_meanwhile_is_not_lost() {
    let injected = |later: usize| {
        let mut bed = Bed::asked(&[]);
        (bed.book.replica, bed.book.manifest) = (Replica::Parked, true);
        bed.book.tap = vec![segment(0, b"")];
        bed.book.tap_later = vec![TcpPacket { payload: b"x", ..segment(0, b"late") }; later];
        bed.book.tap_later.push(syn());
        assert_eq!(bed.turn(), Turn::Busy);
        let mut lines = bed.book.take();
        lines.retain(|line| line.starts_with("inject"));
        (lines, bed.book.tap.len())
    };
    for later in [1, 2 * TAP_BATCH] {
        let expected = [vec!["inject late"; later], vec!["inject SYN"]].concat();
        assert_eq!(injected(later), (expected.iter().map(ToString::to_string).collect(), 0));
    }
    let most = TAP_BATCHES * TAP_BATCH;
    let (lines, left) = injected(most + 1);
    assert_eq!((lines.len(), left), (most, 2), "a flood does not hold up everybody else");
}

/// A grant may be lost with the channel that it was sent through.
#[test]
fn an_edge_that_does_not_answer_is_asked_again() {
    let mut bed = Bed::taking_over();
    bed.pass(1_000);
    assert!(bed.book.has(&promote()), "{:?}", bed.book.lines);
}

impl Bed {
    /// One that takes over, has come to its log's end, and asks its one client.
    fn asks_a_client() -> Self {
        let mut bed = Self::requested();
        (bed.book.replica, bed.book.manifest) = (Replica::Parked, true);
        bed.book.is_lost = true;
        bed.turn();
        bed.grant();
        bed
    }
}

/// The table is the one of the moment at which the replica came to its log's end.
#[test]
fn the_replicas_table_is_read_once_while_clients_are_asked() {
    let mut bed = Bed::asks_a_client();
    let feeds = bed.book.feeds;
    bed.pass(20);
    assert!(!bed.book.has("live"), "nobody has answered");
    assert_eq!(bed.book.manifests, 1);
    assert!(bed.book.feeds >= feeds + 19, "it may still need what clients have");
}

/// A client that has vanished must not keep the others.
#[test]
fn a_client_that_does_not_answer_is_not_waited_for_without_end() {
    let mut bed = Bed::asks_a_client();
    bed.pass(3000);
    assert!(bed.book.has("live"), "{:?}", bed.book.lines);
}
