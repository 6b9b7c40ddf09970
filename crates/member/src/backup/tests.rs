use super::*;
use crate::bench::{self, Bench, EPOCH, name, on_bench};
use holdfast_wire::hash::hash;
use holdfast_wire::log::{AcceptInfo, Op, TAPPED, record_len};
use holdfast_wire::message::{ConnId, ConnRecord, FlowBounds};
use holdfast_wire::packet::{Flags, TcpOptions, TcpPacket};
use holdfast_wire::seq::SeqNo;
use zerocopy::IntoBytes;

mod book;
mod cold;
mod ends;
mod follows;
mod joins;
mod outages;
mod probes;
mod rebuilds;
mod renewal;
mod takeovers;

use book::Book;

on_bench!(Book, Bed);

/// Key of the group's hashes.
const KEY: HashKey = [1; 8];

struct Bed {
    machine: BackupMachine,
    book: Book,
}

impl Bed {
    /// A backup that follows a primary that does not serve yet.
    fn new() -> Self {
        let mut book = Book::new();
        let machine = BackupMachine::new(KEY, &mut book);
        assert_eq!(book.take(), [in_step(true)]);
        Self { machine, book }
    }

    /// A backup whose primary has served for a while.
    fn served() -> Self {
        let mut bed = Self::new();
        bed.book.beats = Some(0);
        bed.pass(500);
        assert_eq!(bed.book.take(), Vec::<String>::new());
        bed
    }

    /// A backup that takes over, and waits for the edge.
    fn taking_over() -> Self {
        let mut bed = Self::served();
        bed.book.is_lost = true;
        bed.turn();
        let begin = ["promotes: ChannelLost", &in_step(true), &promote(), "end log"];
        assert_eq!(bed.book.take(), begin);
        bed
    }

    fn connect(&mut self) {
        self.book.peer.push(Message::Conn { conn: ConnId(5), record: record() });
        self.turn();
        self.book.take();
    }

    fn grant(&mut self) {
        self.book.edge.push(Message::Granted { epoch: EPOCH + 1 });
        self.book.edge.push(Message::Bounds { flows: Vec::new(), last: true });
    }

    /// A turn that ends at this time.
    fn turn_at(&mut self, now: Nanos) -> Turn {
        self.book.now = now;
        self.turn()
    }

    /// Why it will not be promoted, if it has just given up.
    fn gave_up(&mut self) -> Option<String> {
        let lines = self.book.take();
        let at = lines.iter().position(|line| line == "close peer")?;
        assert!(!self.book.has_ended, "it rests, and may join again");
        assert!(lines[..at].contains(&in_step(false)), "the edge hears it first: {lines:?}");
        assert!(lines[..at].contains(&"send GaveUp".to_owned()), "{lines:?}");
        assert_eq!(lines[at + 1..at + 3], ["kill", "close tap"]);
        lines.get(at + 3).cloned()
    }
}

fn in_step(yes: bool) -> String {
    format!("to the edge: InStep {{ epoch: {EPOCH}, yes: {yes} }}")
}

fn promote() -> String {
    format!("to the edge: Promote {{ epoch: {} }}", EPOCH + 1)
}

fn record() -> ConnRecord {
    bench::record(5000)
}

/// A record of a call on the first accepted connection, with what is sent of its bytes.
fn framed(header: Header, sent: &[u8]) -> &'static [u8] {
    let header = Header { conn: 1, ..header };
    let mut record = [header.as_bytes(), sent].concat();
    record.resize(record_len(sent.len()), 0);
    record.leak()
}

/// A record that says that the server has accepted its first connection.
fn accept_record() -> &'static [u8] {
    let info = AcceptInfo { conn_id: 5, ..AcceptInfo::default() };
    let payload_len = info.as_bytes().len() as u32;
    let header = Header { payload_len, op: Op::Accept as u8, ret: 7, ..Header::default() };
    framed(header, info.as_bytes())
}

/// A record that says that the server has read these bytes of it, which only the tap has.
fn read_record(bytes: &[u8]) -> &'static [u8] {
    let header = Header {
        payload_len: bytes.len() as u32,
        op: Op::Read as u8,
        flags: TAPPED,
        ret: bytes.len() as i64,
        hash: hash(&KEY, bytes),
        ..Header::default()
    };
    framed(header, &[])
}

fn segment(offset: u32, raw: &'static [u8]) -> TcpPacket<'static> {
    TcpPacket {
        source: record().key.client,
        destination: record().key.server,
        source_port: record().key.client_port,
        destination_port: record().key.server_port,
        seq: SeqNo(1000 + offset),
        ack: SeqNo(101),
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload: b"",
        raw,
    }
}

/// A new client's SYN.
fn syn() -> TcpPacket<'static> {
    TcpPacket { source_port: 6000, seq: SeqNo(7), flags: Flags::SYN, ..segment(0, b"SYN") }
}

#[test]
fn what_was_said_before_it_was_paired_is_forgotten() {
    let mut bed = Bed::new();
    bed.book.member.standing.handle_message(&Message::Alone { member: "a" }, EPOCH);
    bed.machine = BackupMachine::new(KEY, &mut bed.book);
    bed.book.take();
    bed.book.beats = Some(0);
    bed.pass(500);
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

#[test]
fn a_primary_that_the_edge_or_its_own_word_calls_lost_is_taken_over() {
    for (message, cause) in [
        (Message::Alone { member: "a" }, "Alone"),
        (Message::Reach { member: "a", yes: false }, "Unheard"),
    ] {
        let mut bed = Bed::new();
        let pass = |bed: &mut Bed, ms| {
            for _ in 0..ms {
                bed.book.edge.push(message.clone());
                bed.pass(1);
            }
        };
        pass(&mut bed, 99);
        assert_eq!(bed.book.take(), Vec::<String>::new(), "it does not serve yet");
        bed.book.beats = Some(0);
        pass(&mut bed, 101);
        assert_eq!(bed.book.take(), Vec::<String>::new(), "it is busy with its start");
        pass(&mut bed, 1);
        assert_eq!(bed.book.take()[0], format!("promotes: {cause}"));
    }
}

/// The primary may have missed this member for a moment.
#[test]
fn a_primary_that_asks_no_more_to_run_alone_is_not_taken_over() {
    let mut bed = Bed::served();
    for _ in 0..2 {
        bed.book.edge.push(Message::Alone { member: "a" });
        bed.pass(10);
    }
    bed.pass(200);
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

/// Only the other member can be called alone.
#[test]
fn what_the_edge_says_of_others_says_nothing_of_the_primary() {
    let mut bed = Bed::served();
    bed.book.edge.push(Message::Alone { member: "c" });
    bed.pass(10);
    assert_eq!(bed.book.take(), Vec::<String>::new());
}

#[test]
fn a_primary_that_never_served_is_not_taken_over() {
    let mut bed = Bed::new();
    bed.pass(3_000);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "its silence means nothing");
    bed.book.is_lost = true;
    assert_eq!(bed.turn(), Turn::End(End::Again));
    assert_eq!(bed.book.take(), ["kill", "close tap"]);
}

#[test]
fn silence_is_taken_over() {
    let mut bed = Bed::served();
    bed.book.beats = None;
    bed.pass(100);
    assert_eq!(bed.book.take()[0], "promotes: Silent");
}

#[test]
fn a_replica_that_is_no_copy_any_more_gives_up() {
    for (replica, fault) in [
        (Replica::Diverged("it wrote something else".to_owned()), "gave up: Diverged"),
        (Replica::Ended, "gave up: Ended"),
    ] {
        let mut bed = Bed::served();
        bed.book.replica = replica.clone();
        bed.turn();
        assert_eq!(bed.gave_up().as_deref(), Some(fault));
        // This holds in a takeover as well.
        let mut bed = Bed::served();
        bed.connect();
        bed.book.is_lost = true;
        bed.turn();
        bed.grant();
        bed.turn();
        assert_eq!(bed.gave_up(), None);
        bed.book.replica = replica;
        bed.turn();
        assert_eq!(bed.gave_up().as_deref(), Some(fault));
    }
}

#[test]
fn a_replica_that_stands_still_gives_up() {
    let mut bed = Bed::served();
    bed.book.progress = (200, 100);
    bed.pass(900);
    assert_eq!(bed.gave_up(), None);
    bed.pass(200);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
    assert_eq!(bed.book.reason, "the replica has not moved for a second");
}

#[test]
fn a_replica_that_somebody_stopped_is_named() {
    let mut bed = Bed::served();
    (bed.book.progress, bed.book.stopped_by_hand) = ((200, 100), Some(77));
    bed.pass(1100);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
    let reason = &bed.book.reason;
    assert!(reason.starts_with("the replica's process 77 is stopped (SIGSTOP"), "{reason}");
}

#[test]
fn a_replica_that_starves_is_no_hung_one() {
    let mut bed = Bed::served();
    (bed.book.progress, bed.book.is_replica_busy) = ((200, 100), true);
    bed.pass(9500);
    assert_eq!(bed.gave_up(), None);
    bed.pass(700);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
    assert!(bed.book.reason.starts_with("the replica has not moved for ten"), "it was busy");
}

#[test]
fn a_primary_that_goes_on_alone_is_believed_until_the_edge_is_asked() {
    let refused = Message::Refused { reason: "it was slow", again: false };
    let mut bed = Bed::served();
    bed.book.peer.push(refused.clone());
    bed.turn();
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Fenced"));
    let mut bed = Bed::served();
    bed.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "a" });
    bed.turn();
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Fenced"));
    assert_eq!(bed.book.reason, format!("a went on alone in epoch {}", EPOCH + 1));
    let mut bed = Bed::taking_over();
    bed.book.peer.push(refused);
    bed.grant();
    bed.turn();
    bed.book.replica = Replica::Parked;
    assert_eq!(bed.turn(), Turn::Busy, "the edge has decided");
}

#[test]
fn only_a_refusal_for_good_ends_a_takeover() {
    let mut bed = Bed::taking_over();
    bed.book.edge.push(Message::Refused { reason: "disk", again: true });
    bed.pass(10);
    assert_eq!(bed.book.take(), ["Waits"]);
    bed.book.edge.push(Message::Refused { reason: "another one speaks", again: false });
    bed.pass(1);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Fenced"));
}

/// Once the edge has granted the service, nobody else may speak.
#[test]
fn a_backup_whose_clients_could_not_reach_it_asks_for_nothing() {
    let mut bed = Bed::served();
    bed.book.bad = "interface";
    let turn = bed.machine.promote(Cause::ServerDied, &mut bed.book);
    assert!(matches!(turn, Turn::Until(_)), "{turn:?}");
    let told = bed.book.take();
    assert!(!told.contains(&promote()), "{told:?}");
    assert!(told.contains(&"gave up: Unreachable".to_owned()), "{told:?}");
}

/// Sockets come before the address, retained output before the server can write more,
/// and new clients once there is a listener.
#[test]
fn everybody_may_speak_once_the_edge_has_said_so_in_this_order() {
    let mut bed = Bed::taking_over();
    bed.book.replica = Replica::Parked;
    bed.pass(5);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "nobody speaks unasked");
    bed.book.tap_later = vec![syn()];
    bed.grant();
    assert!(bed.book.takes_over);
    assert_eq!(bed.turn(), Turn::Busy);
    assert!(!bed.book.takes_over, "its process is like any other");
    let order = ["listeners", "address", "clocks", "hear", "retained", "live", "kick"];
    let after = ["inject SYN", "TookOver", "close peer", "close tap"];
    assert_eq!(bed.book.take(), [&order[..], &after].concat());
    assert_eq!((bed.book.member.epoch, bed.book.member.speaks), (EPOCH + 1, true));
}

#[test]
fn clients_are_asked_how_far_they_are() {
    let mut bed = Bed::served();
    bed.connect();
    bed.book.is_lost = true;
    bed.turn();
    bed.book.take();
    bed.grant();
    bed.turn();
    assert!(bed.book.has("segment 1000"), "{:?}", bed.book.lines);
    assert!(!bed.book.has("live"), "nobody has answered");
}

/// The messages that a primary still sends when its server is dead are waited for,
/// unless nothing more can come.
#[test]
fn a_dead_servers_log_is_drained_while_its_daemon_lives() {
    for is_lost in [false, true] {
        let mut bed = Bed::served();
        bed.book.peer.push(Message::ServerDied { last: 9 });
        bed.turn();
        assert_eq!(bed.book.take()[0], "promotes: ServerDied");
        assert!(!bed.book.has("end log"));
        bed.pass(1);
        assert!(!bed.book.has("end log"), "frames are missing");
        bed.book.is_lost = is_lost;
        bed.pass(1);
        assert_eq!(bed.book.has("end log"), is_lost);
    }
}

#[test]
fn clients_acks_drive_what_was_in_flight() {
    let mut bed = Bed::taking_over();
    bed.book.replica = Replica::Parked;
    bed.book.nudges = true;
    bed.grant();
    bed.turn();
    assert!(!bed.book.has("close tap"), "it still hears clients");
    bed.book.take();
    bed.book.tap = vec![segment(0, b""), syn()];
    bed.turn();
    assert_eq!(bed.book.take(), ["nudge 101", "SYN-ACK"]);
    assert_eq!(bed.book.looks_at_nudges, 1, "some clients make no progress");
    bed.pass(crate::timing::takeover::NUDGE_MAX.as_millis() as u64 - 2);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "clients have their time");
    bed.pass(50);
    assert_eq!(bed.book.take(), ["end unanswered", "close tap"]);
}
