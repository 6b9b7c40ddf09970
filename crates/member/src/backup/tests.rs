use super::*;
use crate::bench::{self, Bench, EPOCH, name, on_bench};
use crate::host::{ConnState, MemberHost};
use holdfast_replica::promotion::{Discarded, ManifestConn, Restore};
use holdfast_wire::log::{AcceptInfo, Op, record_len};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, FlowBounds};
use holdfast_wire::packet::{Flags, TcpOptions, TcpPacket, TcpSegment};
use holdfast_wire::seq::SeqNo;
use zerocopy::IntoBytes;

mod cold;
mod joins;
mod outages;
mod probes;
mod renewal;
mod takeovers;

/// Notes what the machine does.
struct Book {
    bench: Bench,
    beats: Option<u64>,
    is_lost: bool,
    /// What the primary was told last that has become of this member.
    said_state: String,
    replica: Replica,
    tap: Vec<TcpPacket<'static>>,
    /// What the tap brings once clients' packets reach this host.
    tap_later: Vec<TcpPacket<'static>>,
    progress: (u64, u64),
    /// What clients have of the replica's output, by the number of their accept.
    acked: Vec<(u32, u64)>,
    is_replica_busy: bool,
    nudges: bool,
    /// Whether the replica has accepted its first connection.
    manifest: bool,
    /// The part of a copy that fails.
    bad: &'static str,
    /// Whether the copy has no room yet for what was kept.
    keeps: bool,
    /// Whether the image that came is complete; the server built from it takes
    /// its time.
    is_whole: bool,
    is_slow: bool,
    /// Bytes of the image that came, and how many of them have no room yet.
    image: u64,
    unwritten: u64,
    kept: Option<Kept>,
    /// Whether all that has come of a new image is on the disk.
    is_renewed: bool,
    /// Why the backup gave up.
    reason: String,
}

impl Book {
    fn good(&self, what: &str) -> Result<(), String> {
        if what == self.bad { Err(format!("cannot {what}")) } else { Ok(()) }
    }
}

on_bench!(Book, Bed);

impl MemberHost for Book {
    fn has_server_ended(&mut self) -> bool {
        false
    }
    fn kill_server(&mut self) {
        self.note("kill");
    }
    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        Some(vec![ConnState::Living; keys.len()])
    }
    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        self.note(format!("segment {}", segment.ack.0));
    }
    fn stand_by(&mut self) {}
    fn show(&mut self, news: MemberEvent<'_>) {
        let words = match news {
            MemberEvent::GaveUp { fault, reason, .. } => {
                self.reason = reason.to_owned();
                format!("gave up: {fault:?}")
            }
            MemberEvent::Promotes { cause, .. } => format!("promotes: {cause:?}"),
            other => name(&other),
        };
        if words != "TakesOver" {
            self.note(words);
        }
    }
}

impl FollowHost for Book {
    fn drain_tap(&mut self, _: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool {
        let all = std::mem::take(&mut self.tap);
        all.iter().for_each(|segment| each(self, segment));
        !all.is_empty()
    }
    fn watch_tap(&mut self, _: bool) {}
    fn close_tap(&mut self) {
        self.note("close tap");
    }
    fn replica(&self) -> Replica {
        self.replica.clone()
    }
    fn is_replica_busy(&self) -> bool {
        self.is_replica_busy
    }
    fn replay(&mut self, _: &Header, _: &[&[u8]]) -> bool {
        true
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        self.acked.push((accept, bytes));
    }
    fn gone(&mut self, _: u32) {}
    fn progress(&self) -> (u64, u64) {
        self.progress
    }
    fn has_room(&self) -> bool {
        true
    }
    fn wake_replica(&mut self) {}
    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.note(format!("copy of {image_bytes} from {log_from}"));
        self.good("begin")
    }
    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.note(format!("takes {}", bytes.len()));
        self.image += bytes.len() as u64;
        self.good("take")
    }
    fn image_kept(&self) -> u64 {
        self.image - self.unwritten
    }
    fn feed_copy(&mut self) -> bool {
        !self.keeps
    }
    fn end_image(&mut self) {
        self.note("whole");
        self.is_whole = true;
    }
    fn copy_made(&mut self) -> Option<Result<(), String>> {
        if !self.is_whole || self.is_slow {
            return None;
        }
        self.note("makes");
        Some(self.good("make"))
    }
    fn is_peer_ready(&self) -> bool {
        true
    }
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        if let Some(number) = &mut self.beats {
            *number += 1;
            let number = *number;
            each(self, &Message::Beat { number, echo: 0, executed: 0 });
        }
        for message in std::mem::take(&mut self.peer) {
            each(self, &message);
        }
        std::mem::take(&mut self.is_lost)
    }
    fn send(&mut self, message: &Message<'_>) {
        if let Message::GaveUp { state, .. } = message {
            self.said_state = (*state).to_owned();
        }
        if !matches!(message, Message::Beat { .. } | Message::ConnOk { .. }) {
            self.note(format!("send {}", name(message)));
        }
    }
    fn flush(&mut self) {}
    fn close_peer(&mut self) {
        self.note("close peer");
    }
    fn report(&mut self, _: &Report<'_>) {}
}

impl BackupHost for Book {
    fn begin_renewal(&mut self) -> Result<(), String> {
        self.note("keeps twice");
        self.good("renew")
    }
    fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.image = 0;
        self.note(format!("image of {image_bytes} at {log_from}"));
        self.good("begin")
    }
    fn is_renewal_kept(&mut self) -> Result<bool, String> {
        self.good("keep").map(|()| self.is_renewed)
    }
    fn end_renewal(&mut self, replaces: bool) {
        self.note(format!("replaces: {replaces}"));
    }
    fn end_log(&mut self) {
        self.note("end log");
    }
    fn kept(&self) -> Option<Kept> {
        self.kept
    }
    fn begin_takeover(&mut self) {}
    fn find_interface(&mut self) -> Result<(), String> {
        self.good("interface")
    }
    fn manifest(&mut self, accepts: &[u32]) -> Vec<ManifestConn> {
        // The server has accepted one connection, and neither read nor written.
        let conn = ManifestConn {
            accept: 1,
            open: true,
            fd: 7,
            in_bytes: 0,
            out_bytes: 0,
            keep_from: 0,
            shut: 0,
            eof: false,
        };
        if self.manifest && accepts.contains(&conn.accept) { vec![conn] } else { Vec::new() }
    }
    fn restore(&mut self, restore: &Restore<'_>) {
        self.note(format!("restore {}", restore.record.key.client_port));
    }
    fn lost(&mut self, _: &Discarded) {
        self.note("lost");
    }
    fn revive_listeners(&mut self) {
        self.note("listeners");
    }
    fn take_address(&mut self) -> Result<(), String> {
        self.note("address");
        Ok(())
    }
    fn show_clocks(&mut self) {
        self.note("clocks");
    }
    fn hear_clients(&mut self) -> Result<(), String> {
        self.note("hear");
        self.tap = std::mem::take(&mut self.tap_later);
        Ok(())
    }
    fn send_retained(&mut self) {
        self.note("retained");
    }
    fn set_live(&mut self) {
        self.note("live");
    }
    fn kick(&mut self) {
        self.note("kick");
    }
    fn inject(&mut self, raw: Vec<u8>) {
        self.note(format!("inject {}", String::from_utf8_lossy(&raw)));
    }
    fn end_takeover(&mut self) {}
    fn has_nudges(&self) -> bool {
        self.nudges
    }
    fn nudge(&mut self, _: &ConnKey, ack: SeqNo) {
        self.note(format!("nudge {}", ack.0));
    }
    fn repeat_syn_ack(&mut self, _: &ConnKey) {
        self.note("SYN-ACK");
    }
    fn nudge_again(&mut self) {}
    fn end_unanswered(&mut self) {
        self.note("end unanswered");
    }
}

struct Bed {
    machine: BackupMachine,
    book: Book,
}

impl Bed {
    /// A backup that follows a primary that does not serve yet.
    fn new() -> Self {
        let mut book = Book {
            bench: Bench::new("b", "a"),
            beats: None,
            is_lost: false,
            said_state: String::new(),
            replica: Replica::Replays,
            tap: Vec::new(),
            tap_later: Vec::new(),
            progress: (0, 0),
            acked: Vec::new(),
            is_replica_busy: false,
            nudges: false,
            manifest: false,
            bad: "",
            keeps: false,
            is_whole: false,
            is_slow: false,
            image: 0,
            unwritten: 0,
            kept: None,
            is_renewed: false,
            reason: String::new(),
        };
        let machine = BackupMachine::new([1; 8], &mut book);
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

    /// Why it will not be promoted, if it has just given up.
    fn gave_up(&mut self) -> Option<String> {
        let lines = self.book.take();
        let at = lines.iter().position(|line| line == "close peer")?;
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
    bed.machine = BackupMachine::new([1; 8], &mut bed.book);
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
        pass(&mut bed, 100);
        assert_eq!(bed.book.take(), Vec::<String>::new(), "it is busy with its start");
        pass(&mut bed, 2);
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
}

#[test]
fn a_replica_that_starves_is_no_hung_one() {
    let mut bed = Bed::served();
    (bed.book.progress, bed.book.is_replica_busy) = ((200, 100), true);
    bed.pass(9500);
    assert_eq!(bed.gave_up(), None);
    bed.pass(700);
    assert_eq!(bed.gave_up().as_deref(), Some("gave up: Hung"));
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
    assert_eq!(bed.turn(), Turn::Busy);
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
        bed.pass(2);
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
    bed.pass(crate::timing::takeover::NUDGE_MAX.as_millis() as u64 - 2);
    assert_eq!(bed.book.take(), Vec::<String>::new(), "clients have their time");
    bed.pass(50);
    assert_eq!(bed.book.take(), ["end unanswered", "close tap"]);
}
