use super::*;
use crate::bench::{Bench, EPOCH, key, name, on_bench, record};
use crate::host::{ConnState, End, Fall, MemberEvent, MemberHost};
use crate::pairing::PairingHost;
use holdfast_replica::CONNS_MAX;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::gate::SlotView;
use holdfast_wire::hash::{HashKey, hash};
use holdfast_wire::log::{AcceptInfo, HEADER_LEN, Header, Op, TAPPED, record_len};
use holdfast_wire::message::{Adopted, ConnKey, ConnRecord};
use holdfast_wire::packet::TcpSegment;
use zerocopy::IntoBytes;

mod book;
mod closing;
mod direct;
mod joins;
mod keeper;
mod kept;
mod leaves;
mod renewal;
mod turns;

use book::{Book, IMAGE_BYTES};

/// Key of what is kept.
const HASH_KEY: HashKey = [0; 8];

struct Bed {
    machine: PrimaryMachine,
    book: Book,
}

on_bench!(Book, Bed);

impl Bed {
    /// The server runs with the shim in it, and the backup follows.
    fn new() -> Self {
        let mut book = Book::new();
        let machine = PrimaryMachine::new(100, &mut book);
        Self { machine, book }
    }

    /// Connects a client, whose SYN-ACK has gone out.
    fn connect(&mut self, id: u64) -> ConnId {
        self.hold(id);
        self.turn();
        self.book.peer.push(Message::ConnOk { conn: ConnId(id) });
        self.turn();
        self.book.slots.get_mut(&ConnId(id)).expect("a slot").held_synack = false;
        ConnId(id)
    }

    fn hold(&mut self, id: u64) {
        self.book.slots.insert(ConnId(id), slot(id));
        self.book.held.push(held(id));
    }

    fn slot(&mut self, conn: ConnId) -> &mut SlotView {
        self.book.slots.get_mut(&conn).expect("a slot")
    }
}

fn held(id: u64) -> Held {
    Held { conn: ConnId(id), socket: id, record: record(id as u16) }
}

fn slot(id: u64) -> SlotView {
    SlotView {
        key: key(id as u16),
        iss: SeqNo(100),
        irs: SeqNo(999),
        snd_una: SeqNo(101),
        snd_nxt: SeqNo(101),
        stable: SeqNo(1000),
        right_edge: SeqNo(70_000),
        rcv_nxt: SeqNo(1000),
        last_ack: SeqNo(1000),
        last_edge: SeqNo(61_000),
        rcv_wscale: 7,
        tsval: 0,
        tsecr: 0,
        has_ts: false,
        held_synack: true,
    }
}

/// One record of the log.
fn log_record() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes.resize(record_len(0), 0);
    bytes
}

/// A record that says how much the server has written to a connection.
fn written_record(accept: u32, bytes: i64) -> Vec<u8> {
    let header = Header { op: Op::Written as u8, conn: accept, ret: bytes, ..Header::default() };
    let mut record = header.as_bytes().to_vec();
    record.resize(record_len(0), 0);
    record
}

/// A record that says that the server has accepted the connection.
fn accept_record(id: u64) -> Vec<u8> {
    let ConnKey { server, client, server_port, client_port } = key(id as u16);
    let info = AcceptInfo {
        conn_id: id,
        local: server,
        peer: client,
        local_port: server_port,
        peer_port: client_port,
        ..AcceptInfo::default()
    };
    let payload = info.as_bytes();
    let header = Header {
        payload_len: payload.len() as u32,
        op: Op::Accept as u8,
        conn: 1,
        ret: 10,
        ..Header::default()
    };
    let mut bytes = [header.as_bytes(), payload].concat();
    bytes.resize(record_len(payload.len()), 0);
    bytes
}

/// A record that says that the server has closed the first accepted connection.
fn close_record() -> Vec<u8> {
    let header = Header { op: Op::Close as u8, conn: 1, ..Header::default() };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(record_len(0), 0);
    bytes
}

/// A record that says that the server has read these bytes of the first accepted client.
fn read_record(bytes: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_len: bytes.len() as u32,
        op: Op::Read as u8,
        flags: TAPPED,
        conn: 1,
        ret: bytes.len() as i64,
        hash: hash(&HASH_KEY, bytes),
        ..Header::default()
    };
    let mut record = [header.as_bytes(), bytes].concat();
    record.resize(record_len(bytes.len()), 0);
    record
}

/// A record of a call that is about to write at most `len` bytes to the first accepted client.
fn intent_record(len: i64) -> Vec<u8> {
    let header = Header { op: Op::Intent as u8, conn: 1, ret: len, ..Header::default() };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(record_len(0), 0);
    bytes
}

/// An intent is in the log before its call, but no output waits for its own intent.
#[test]
fn what_leaves_while_connections_are_looked_at_is_known_by_then() {
    for is_logged in [true, false] {
        let mut bed = Bed::new();
        let conn = bed.connect(5);
        bed.book.log = accept_record(5);
        bed.turn();
        bed.slot(conn).snd_nxt = SeqNo(101 + 50);
        bed.book.slots_read.set(false);
        bed.book.late_log = if is_logged { intent_record(50) } else { Vec::new() };
        bed.book.take();
        bed.pass(5);
        assert_eq!(bed.book.has("shows Asks"), !is_logged, "{:?}", bed.book.lines);
    }
}

/// Its SYN-ACK left on two processors at once.
#[test]
fn of_two_slots_of_one_handshake_the_one_that_the_gate_knows_counts() {
    let mut bed = Bed::new();
    for id in [5, 6] {
        bed.book.slots.insert(ConnId(id), slot(5));
        bed.book.held.push(Held { conn: ConnId(id), ..held(5) });
    }
    bed.turn();
    assert!(bed.book.take().contains(&"free 5".to_owned()));
    assert_eq!(bed.machine.tables.conns.keys().collect::<Vec<_>>(), [&ConnId(6)]);
}

/// Nothing tells that the kernel has received something: it is looked at.
#[test]
fn connections_are_looked_at_within_a_tick() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.pass(1);
    let Turn::Until(due) = bed.turn() else { panic!("it waits") };
    assert!(due <= bed.book.now.plus(nanos(TICK)), "{due:?}");
}

#[test]
fn nobody_is_let_in_before_the_shim_is_there() {
    let mut bed = Bed::new();
    bed.book.attached = false;
    bed.hold(5);
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.book.attached = true;
    bed.turn();
    assert_eq!(bed.book.take(), ["send Conn"]);
    bed.book.peer.push(Message::ConnOk { conn: ConnId(5) });
    bed.turn();
    assert_eq!(bed.book.take(), ["open 5"]);
}

#[test]
fn a_connection_beyond_the_limit_gives_its_slot_back() {
    let mut bed = Bed::new();
    bed.book.held = (0..=CONNS_MAX as u64).map(held).collect();
    bed.turn();
    let others = bed.book.take().into_iter().filter(|line| line != "send Conn");
    assert_eq!(others.collect::<Vec<_>>(), [format!("free {CONNS_MAX}")]);
    assert_eq!(bed.machine.tables.conns.len(), CONNS_MAX);
}

/// The client may send up to what the wire has shown, whatever the stack wanted.
#[test]
fn the_backup_hears_of_progress_once_the_client_could_hear_of_it() {
    let mut bed = Bed::new();
    bed.hold(5);
    bed.pass(50);
    assert_eq!(bed.book.take(), ["send Conn"]);
    bed.slot(ConnId(5)).held_synack = false;
    bed.pass(50);
    assert_eq!(bed.book.take(), ["progress 5 edge 61000"], "once");
}

#[test]
fn an_ack_that_the_gate_owes_is_paid() {
    let mut bed = Bed::new();
    let conn = bed.connect(5);
    bed.pass(50);
    bed.book.take();
    bed.slot(conn).rcv_nxt = SeqNo(1100);
    bed.book.peer.push(Message::Held { conns: vec![(conn, SeqNo(1100))] });
    bed.turn();
    assert!(bed.book.has("stable 5 1100"), "{:?}", bed.book.lines);
    bed.pass(4);
    assert!(!bed.book.has("ack 1100"), "a reply may carry it");
    bed.pass(1);
    assert!(bed.book.has("ack 1100"), "{:?}", bed.book.lines);
    bed.book.take();
    // An ACK for two segments does not wait.
    bed.slot(conn).last_ack = SeqNo(1100);
    bed.slot(conn).rcv_nxt = SeqNo(1100 + 2 * 1448);
    bed.book.peer.push(Message::Held { conns: vec![(conn, SeqNo(1100 + 2 * 1448))] });
    bed.turn();
    assert!(bed.book.has("ack 3996"), "{:?}", bed.book.lines);
}

#[test]
fn a_backup_that_gives_up_is_barred_by_the_edge() {
    let mut bed = Bed::new();
    bed.pass(30);
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.book.peer.push(Message::GaveUp { state: "hung", reason: "it stood still" });
    bed.turn();
    // The member is in step with nobody, so nothing else is said.
    assert_eq!(bed.book.take(), ["send Refused", "drop peer", &asks(), "shows Asks"]);
    assert!(!bed.book.watches);
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.pass(10);
    assert!(bed.book.has("alone") && bed.book.has("shows Alone"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.member.epoch, EPOCH + 1);
}

fn asks() -> String {
    format!("to the edge: GoAlone {{ epoch: {} }}", EPOCH + 1)
}

impl Bed {
    fn fall_silent(&mut self) {
        self.book.is_silent = true;
        while !self.book.has("shows Doubts") {
            self.pass(1);
            assert!(!self.book.has("drop peer"), "{:?}", self.book.lines);
        }
        assert_eq!(self.book.take(), [&asks(), "shows Doubts"]);
    }

    /// The backup has not answered for so long that the edge is asked.
    fn in_doubt() -> Self {
        let mut bed = Self::new();
        bed.pass(30);
        bed.fall_silent();
        bed
    }
}

#[test]
fn a_backup_that_is_silent_is_served_until_the_edge_has_barred_it() {
    let mut bed = Bed::in_doubt();
    bed.hold(1);
    bed.turn();
    assert!(bed.book.has("send Conn"), "{:?}", bed.book.lines);
    bed.book.take();
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    let lines = bed.book.take();
    assert_eq!(lines, ["send Refused", "drop peer", "alone", "shows Alone"]);
    assert_eq!(bed.book.member.epoch, EPOCH + 1);
}

#[test]
fn a_backup_that_is_heard_again_in_time_is_not_barred() {
    let mut bed = Bed::in_doubt();
    bed.book.is_silent = false;
    bed.book.edge.push(Message::Refused { reason: "it is in step", again: false });
    bed.turn();
    bed.book.take();
    bed.pass(100);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "asked no more");
    // The backup is silent again, so the edge is asked again.
    bed.fall_silent();
}

#[test]
fn a_backup_that_stays_silent_is_left() {
    let mut bed = Bed::in_doubt();
    bed.pass(30);
    let lines = bed.book.take();
    let leaves = lines.iter().position(|line| line == "send Refused").expect("it leaves");
    assert_eq!(lines[leaves..][..4], ["send Refused", "drop peer", &asks(), "shows Asks"]);
}

#[test]
fn what_the_edge_has_granted_holds_although_the_backup_is_heard_again() {
    let mut bed = Bed::in_doubt();
    bed.book.is_silent = false;
    bed.pass(5);
    bed.book.take();
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    assert_eq!(bed.book.take(), ["send Refused", "drop peer", "alone", "shows Alone"]);
}

#[test]
fn who_asks_to_go_on_alone_sees_that_it_is_too_late() {
    let replaced = Message::Epoch { epoch: EPOCH + 1, current: "b" };
    for (is_replaced, expected) in [
        (true, ["kill", "shows Replaced", "drop peer"]),
        (false, ["dead", "strike", "shows ServerEnded, Backup"]),
    ] {
        let mut bed = Bed::new();
        bed.book.is_lost = true;
        bed.turn();
        bed.book.take();
        match is_replaced {
            true => bed.book.edge.push(replaced.clone()),
            false => bed.book.ended = true,
        }
        bed.turn();
        let lines = bed.book.take();
        let said = lines.iter().filter(|line| expected.contains(&line.as_str()));
        assert_eq!(said.collect::<Vec<_>>(), expected, "{lines:?}");
        assert!(!bed.book.member.speaks);
    }
}

#[test]
fn a_backup_that_the_edge_does_not_hear_is_not_promised() {
    let mut bed = Bed::new();
    bed.book.ended = true;
    bed.turn();
    for (yes, shown) in [(false, "shows ServerEnded, Unheard"), (true, "shows ServerEnded, Backup")]
    {
        bed.book.take();
        bed.book.edge.push(Message::Reach { member: "b", yes });
        bed.pass(10);
        assert_eq!(bed.book.lines.last().map(String::as_str), Some(shown));
    }
}

/// The backup was lost, or silent, just before: it is barred although nobody is left to serve.
#[test]
fn what_the_edge_grants_holds_although_the_server_has_ended() {
    let mut lost = Bed::new();
    lost.book.is_lost = true;
    lost.turn();
    for (mut bed, reason) in [(lost, LOST), (Bed::in_doubt(), SILENT)] {
        bed.book.ended = true;
        bed.turn();
        assert!(bed.book.has("shows ServerEnded, Backup"), "{:?}", bed.book.lines);
        let nobody = format!("shows ServerEnded, Nobody({reason:?})");
        bed.book.edge.push(Message::Granted { epoch: EPOCH });
        bed.book.edge.push(Message::Refused { reason: "the disk is full", again: true });
        bed.pass(10);
        assert!(!bed.book.has(&nobody), "{:?}", bed.book.lines);
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        bed.pass(10);
        assert!(bed.book.has(&nobody), "{:?}", bed.book.lines);
        assert_eq!((bed.book.member.epoch, bed.book.member.speaks), (EPOCH + 1, false));
        // Nothing that the backup says after it counts.
        assert!(!bed.book.has("alone") && bed.book.has("drop peer"), "{:?}", bed.book.lines);
    }
}

#[test]
fn who_is_replaced_ends_its_server() {
    let mut bed = Bed::new();
    let conn = bed.connect(5);
    bed.book.take();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
    bed.turn();
    assert_eq!(bed.book.take(), ["kill", "shows Replaced", "drop peer"]);
    assert!(!bed.book.member.speaks && !bed.book.watches);
    assert!(!bed.machine.log.follows(conn), "nobody is told of its connections");
    assert!(!bed.book.has_ended, "it rests");
}

/// The gate hears of the end first, so that what a dying server's kernel says stays behind it.
#[test]
fn when_its_server_ends_the_backup_goes_on() {
    let mut bed = Bed::new();
    bed.book.ended = true;
    bed.turn();
    assert_eq!(bed.book.take(), ["dead", "send ServerDied", "strike", "shows ServerEnded, Backup"]);
    bed.pass(20);
    assert!(!bed.book.has("drop peer") && !bed.book.watches);
    bed.book.is_lost = true;
    bed.pass(20);
    assert!(bed.book.has("drop peer"));
}

#[test]
fn a_hand_over_waits_until_the_backup_has_all_and_then_until_it_speaks() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.log = log_record();
    bed.machine.turn(true, &mut bed.book);
    assert_eq!(bed.book.take(), ["shows HandsOver", "send Stopping", "pause", "send Frame"]);
    bed.book.peer.push(Message::FrameOk { number: 1 });
    // The shim still writes log.
    bed.book.behind = 8;
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.book.behind = 0;
    assert!(matches!(bed.turn(), Turn::Until(_)));
    assert_eq!(bed.book.take(), ["dead", "send ServerDied", "shows Stopped"]);
    assert!(!bed.book.watches);
    bed.pass(5);
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
    assert_eq!(bed.turn(), Turn::End(End::Stopped));
    assert_eq!(bed.book.take(), ["kill", "shows HandedOver"]);
}

/// An edge that never answers is not waited for without end, and this kernel stays
/// silent.
#[test]
fn a_hand_over_that_nobody_answers_ends_in_silence() {
    let mut bed = Bed::new();
    bed.machine.turn(true, &mut bed.book);
    bed.book.take();
    bed.pass(2999);
    assert!(!bed.book.has("kill"));
    bed.book.now = bed.book.now.plus(Nanos::from_ms(2));
    assert_eq!(bed.turn(), Turn::End(End::Silent));
    assert!(bed.book.has("kill"));
}

/// A backup that could not build its server leaves the service to a member that was to stay.
#[test]
fn a_hand_over_whose_backup_gives_up_is_taken_back() {
    for is_lost in [false, true] {
        let mut bed = Bed::new();
        bed.turn();
        bed.book.member.is_cold = true;
        bed.book.member.hands_over = true;
        bed.turn();
        bed.pass(10_000);
        bed.book.take();
        let gave_up = Message::GaveUp { state: "unkept", reason: "it is damaged" };
        bed.book.peer.extend((!is_lost).then_some(gave_up));
        bed.book.is_lost = is_lost;
        bed.turn();
        let lines = bed.book.take();
        assert!(!lines.contains(&"kill".to_owned()), "{lines:?}");
        for line in ["resume", "drop peer", &asks(), "shows Asks"] {
            assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
        }
        bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        bed.pass(20);
        assert!(bed.book.has("shows Alone") && bed.book.member.speaks, "{:?}", bed.book.lines);
    }
}

/// A hot backup whose channel closes may have been let to speak, or be gone: the edge knows.
#[test]
fn a_hand_over_whose_backup_is_lost_is_taken_back_when_the_edge_says_so() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.log = log_record();
    bed.book.member.hands_over = true;
    bed.pass(20);
    bed.book.take();
    bed.book.is_lost = true;
    bed.pass(10_000);
    let lines = bed.book.take();
    assert!(lines.contains(&asks()), "{lines:?}");
    let ends = |line: &String| ["kill", "resume"].contains(&line.as_str());
    assert!(!lines.iter().any(ends), "{lines:?}");
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    let lines = bed.book.take();
    assert!(lines.contains(&"resume".to_owned()) && bed.book.member.speaks, "{lines:?}");
    assert!(lines.contains(&"shows Alone".to_owned()), "{lines:?}");
    assert_eq!(bed.machine.log.frames_unconfirmed(), 0, "nobody is left to confirm them");
}

#[test]
fn a_hand_over_that_succeeds_while_its_channel_closes_is_one() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.member.hands_over = true;
    bed.pass(20);
    bed.book.is_lost = true;
    bed.pass(20);
    bed.book.take();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "b" });
    bed.turn();
    let lines = bed.book.take();
    assert!(lines.starts_with(&["kill".to_owned(), "shows HandedOver".to_owned()]), "{lines:?}");
    assert!(!bed.book.has_ended, "it is to stay");
    assert!(!lines.contains(&"resume".to_owned()), "{lines:?}");
}

#[test]
fn only_the_vanished_are_called_gone() {
    let mut bed = Bed::new();
    bed.connect(5);
    bed.pass(50);
    bed.book.take();
    let keys = vec![key(5), key(6)];
    bed.book.edge.push(Message::AreAlive { epoch: EPOCH, keys });
    bed.turn();
    let gone = Message::NotAlive { epoch: EPOCH, keys: vec![key(6)] };
    assert_eq!(bed.book.take(), [format!("to the edge: {gone:?}")]);
}

#[test]
fn a_server_that_speaks_alone_ends_when_another_speaks() {
    let mut bed = Bed::new();
    bed.book.is_lost = true;
    bed.turn();
    bed.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
    bed.turn();
    bed.book.take();
    bed.book.watches = true;
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 2, current: "b" });
    bed.turn();
    assert_eq!(bed.book.take(), ["kill", "shows Replaced", "send Refused", "drop peer"]);
    assert_eq!((bed.book.member.speaks, bed.book.member.epoch), (false, EPOCH + 2));
    assert!(!bed.book.watches, "nothing wakes it up any more");
}

/// Where ACKs do not wait, the gate lets pass more than any client can have sent; otherwise what
/// the backup holds.
#[test]
fn acknowledgements_wait_for_the_backup_or_for_nobody() {
    for mode in Buffering::ALL {
        let mut bed = Bed::new();
        bed.book.bench.member.buffering = mode;
        let conn = bed.connect(5);
        let ahead = if mode.holds_acks() { 0 } else { 1 << 30 };
        assert_eq!(bed.slot(conn).stable, SeqNo(1000).plus(ahead), "{mode:?}: it has begun");
        bed.book.peer.push(Message::Held { conns: vec![(conn, SeqNo(1100))] });
        bed.turn();
        assert_eq!(bed.slot(conn).stable, SeqNo(1100).plus(ahead), "{mode:?}: bytes are held");
    }
}
