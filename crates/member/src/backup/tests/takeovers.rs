//! Connections, from what clients have of them to their takeover.

use super::*;
use crate::timing::backup::LOOK_AFTER;
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
