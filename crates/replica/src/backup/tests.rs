mod contradicted;
mod direct;
mod joins;
mod limited;
mod refused;
mod unread;
mod written;

use super::*;
use crate::LAG_MAX;
use crate::limits::Share;
use crate::promotion::{Discarded, Diverged, ManifestConn, Probe, PromotionOutput, Restore, Why};
use holdfast_wire::hash::hash;
use holdfast_wire::log::{AcceptInfo, HEADER_LEN, Op, PEEKED, TAPPED, record_len};
use holdfast_wire::message::{ConnProgress, ConnRecord};
use holdfast_wire::packet::{Flags, TcpOptions};
use holdfast_wire::seq::SeqNo;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const KEY: HashKey = [1, 2, 3, 4, 5, 6, 7, 8];
const ID: ConnId = ConnId(1 << 32 | 5);

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    FrameOk(u64),
    ConnOk(ConnId),
    Held(Vec<(ConnId, SeqNo)>),
    LogHeld(u64),
    Need(u64, u32),
    NeedUnread(u64, u64),
    Replay(u8, Vec<u8>),
    Acked(u32, u64),
    Gone(u32),
    Died,
    Ended,
    Broken(Broken),
}

#[derive(Default)]
struct Notes {
    effects: Vec<Effect>,
    full: bool,
}

impl BackupOutput for Notes {
    fn send(&mut self, message: &Message<'_>) {
        self.effects.push(match message {
            Message::FrameOk { number } => Effect::FrameOk(*number),
            Message::ConnOk { conn } => Effect::ConnOk(*conn),
            Message::Held { conns } => Effect::Held(conns.clone()),
            Message::LogHeld { position } => Effect::LogHeld(*position),
            Message::Need { frame, index } => Effect::Need(*frame, *index),
            Message::NeedUnread { conn: ID, from, until } => Effect::NeedUnread(*from, *until),
            other => panic!("a backup does not say {other:?}"),
        });
    }
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        if !self.full {
            self.effects.push(Effect::Replay(header.op, payload.concat()));
        }
        !self.full
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        self.effects.push(Effect::Acked(accept, bytes));
    }
    fn gone(&mut self, accept: u32) {
        self.effects.push(Effect::Gone(accept));
    }
    fn server_died(&mut self) {
        self.effects.push(Effect::Died);
    }
    fn log_ended(&mut self) {
        self.effects.push(Effect::Ended);
    }
    fn broken(&mut self, reason: &Broken) {
        self.effects.push(Effect::Broken(reason.clone()));
    }
}

fn conn_record() -> ConnRecord {
    ConnRecord {
        key: ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: 5000 },
        iss: SeqNo(u32::MAX - 3),
        irs: SeqNo(999),
        mss: 1460,
        peer_mss: 0,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: None,
        window: 60000,
    }
}

fn segment(offset: u32, payload: &[u8]) -> TcpPacket<'_> {
    TcpPacket {
        source: conn_record().key.client,
        destination: conn_record().key.server,
        source_port: conn_record().key.client_port,
        destination_port: conn_record().key.server_port,
        seq: SeqNo(1000 + offset),
        ack: conn_record().iss.plus(1),
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload,
        raw: b"raw packet",
    }
}

fn syn() -> TcpPacket<'static> {
    TcpPacket {
        seq: SeqNo(999),
        flags: Flags::SYN,
        options: TcpOptions { mss: Some(1400), ..TcpOptions::default() },
        raw: b"raw syn",
        ..segment(0, b"")
    }
}

fn record(op: Op, conn: u32, flags: u8, ret: i64, hash: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_len: payload.len() as u32,
        op: op as u8,
        flags,
        conn,
        ret,
        hash,
        ..Header::default()
    };
    let mut bytes = [header.as_bytes(), payload].concat();
    bytes.resize(record_len(payload.len()), 0);
    bytes
}

fn accept(conn: u32, id: u64) -> Vec<u8> {
    record(
        Op::Accept,
        conn,
        0,
        7,
        0,
        AcceptInfo { conn_id: id, ..AcceptInfo::default() }.as_bytes(),
    )
}

/// A tapped read as it is in a frame: without its payload.
fn read(flags: u8, bytes: &[u8]) -> Vec<u8> {
    record(Op::Read, 1, TAPPED | flags, bytes.len() as i64, hash(&KEY, bytes), bytes)[..HEADER_LEN]
        .to_vec()
}

/// Limits so small that a few segments reach them.
const TINY: Limits = Limits {
    stream_bytes_max: 1000,
    beyond_pieces_max: 4,
    beyond_bytes_max: 60,
    raws_bytes_max: 500,
    held: Share { each: 30, common: 100 },
    aside: Share { each: 20, common: 200 },
    ..Limits::DEFAULT
};

struct Case {
    backup: Backup,
    notes: Notes,
    frames: u64,
}

impl Case {
    /// A connection that the server has accepted as number 1.
    fn accepted() -> Self {
        Self::accepted_within(Limits::default())
    }

    fn accepted_within(limits: Limits) -> Self {
        let backup = Backup::with_limits(KEY, limits);
        let mut case = Self { backup, notes: Notes::default(), frames: 0 };
        case.message(&Message::Conn { conn: ID, record: conn_record() });
        assert_eq!(case.take(), [Effect::ConnOk(ID)]);
        case.frame(&accept(1, ID.0));
        case.flush();
        assert!(matches!(case.take()[..], [Effect::Replay(..), Effect::FrameOk(1)]));
        case
    }

    fn message(&mut self, message: &Message<'_>) {
        self.backup.handle_message(Nanos(0), message, &mut self.notes);
    }

    fn frame(&mut self, records: &[u8]) {
        self.frames += 1;
        let number = self.frames;
        self.message(&Message::Frame { number, records });
    }

    fn tap(&mut self, offset: u32, payload: &[u8]) {
        self.backup.handle_segment(Nanos(0), &segment(offset, payload), &mut self.notes);
    }

    fn flush(&mut self) {
        self.backup.flush(Nanos(0), &mut self.notes);
    }

    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.notes.effects)
    }
}

fn replayed(bytes: &[u8]) -> Effect {
    Effect::Replay(Op::Read as u8, bytes.to_vec())
}

fn held(offset: u32) -> Effect {
    Effect::Held(vec![(ID, SeqNo(1000 + offset))])
}

#[test]
fn what_the_replica_cannot_follow_is_confirmed_late() {
    let mut case = Case::accepted();
    case.backup.handle_executed(Nanos(0), 500, 400);
    case.tap(0, b"hello");
    case.frame(&read(0, b"hello"));
    let late = Nanos(LAG_MAX.0 + 1);
    assert!(case.backup.owes_confirmation() && case.backup.is_behind(late));
    case.backup.flush(late, &mut case.notes);
    assert_eq!(case.take(), [replayed(b"hello"), held(5)]);
    case.backup.handle_executed(late, 500, 500);
    assert!(case.backup.owes_confirmation() && !case.backup.is_behind(late));
    case.backup.flush(late, &mut case.notes);
    assert_eq!(case.take(), [Effect::FrameOk(2)]);
    assert!(!case.backup.owes_confirmation());
}

#[test]
fn a_read_is_confirmed_when_the_tap_has_its_bytes() {
    let mut case = Case::accepted();
    case.frame(&[read(PEEKED, b"he"), read(0, b"hello")].concat());
    case.tap(3, b"lo wo");
    case.flush();
    assert_eq!(case.take(), []);
    case.tap(0, b"hel");
    case.flush();
    assert_eq!(case.take(), [replayed(b"he"), replayed(b"hello"), Effect::FrameOk(2), held(8)]);
    case.flush();
    assert_eq!(case.take(), []);
}

#[test]
fn a_lost_tap_is_repaired_after_a_short_wait() {
    let mut case = Case::accepted();
    case.tap(2, b"llo world");
    case.frame(&[record(Op::Clock, 0, 0, 0, 0, b"now"), read(0, b"hello")].concat());
    case.frame(&record(Op::Result, 0, 0, 1, 0, b""));
    assert_eq!(case.take().len(), 1);
    assert_eq!(case.backup.unresolved(), (2, HEADER_LEN + record_len(0)));
    assert_eq!(case.backup.next_deadline(), Some(NEED_AFTER));
    case.backup.handle_timeout(Nanos(1), &mut case.notes);
    assert_eq!(case.take(), []);
    case.backup.handle_timeout(NEED_AFTER, &mut case.notes);
    assert_eq!(case.take(), [Effect::Need(2, 1)]);
    assert_eq!(case.backup.next_deadline(), Some(UNREAD_AFTER), "should the bytes be unread");
    case.message(&Message::Payload { frame: 2, index: 1, bytes: b"hello" });
    case.flush();
    let result = Effect::Replay(Op::Result as u8, vec![]);
    assert_eq!(case.take(), [replayed(b"hello"), result, Effect::FrameOk(3), held(11)]);
    assert_eq!(case.backup.unresolved(), (0, 0));
    case.message(&Message::Payload { frame: 2, index: 1, bytes: b"hello" });
    assert_eq!(case.backup.counters().payloads_late, 1);
}

#[test]
fn conflicting_content_is_asked_for_at_once_and_corrected() {
    let mut case = Case::accepted();
    case.tap(0, b"evil ");
    case.frame(&read(0, b"hel"));
    assert_eq!(case.take(), [Effect::Need(2, 0)]);
    case.message(&Message::Payload { frame: 2, index: 0, bytes: b"hel" });
    assert_eq!(case.take(), [replayed(b"hel")]);
    assert_eq!(case.backup.counters().conflicts, 1);
    case.frame(&read(PEEKED, b"lo"));
    assert_eq!(case.take(), [Effect::Need(3, 0)]);
    case.message(&Message::Payload { frame: 3, index: 0, bytes: b"lo" });
    case.frame(&read(0, b"lo"));
    assert_eq!(
        case.take(),
        [replayed(b"lo"), replayed(b"lo")],
        "a corrected peek needs no second repair"
    );
}

/// Sixteen bits of the hash may agree by chance, or because a client searched for them.
#[test]
fn all_of_a_hash_counts() {
    let truth = b"hel";
    for lane in 0..4 {
        let bits = |bytes: &[u8]| (hash(&KEY, bytes) >> (16 * lane)) as u16;
        let mut others = (0..u32::MAX).map(|n| n.to_le_bytes()).map(|[a, b, c, _]| [a, b, c]);
        let other = others.find(|other| other != truth && bits(other) == bits(truth));
        let other = other.expect("one in 65,536");
        let mut case = Case::accepted();
        case.tap(0, &other);
        case.frame(&read(0, truth));
        assert_eq!(case.take(), [Effect::Need(2, 0)], "lane {lane}: {other:?} is not {truth:?}");
        case.message(&Message::Payload { frame: 2, index: 0, bytes: &other });
        assert_eq!(case.take(), [Effect::Broken(Broken::PayloadHash { frame: 2, index: 0 })]);
    }
}

#[test]
fn what_overlaps_the_read_brings_only_what_is_new() {
    let mut case = Case::accepted();
    case.tap(0, b"first");
    case.frame(&read(0, b"first"));
    // The tap has other bytes for what was read, followed by the next ones; and then for all of it.
    case.tap(0, b"OTHERnext");
    case.tap(0, b"OTHEROTHE");
    case.tap(3, b"OT");
    case.flush();
    case.frame(&read(0, b"next"));
    assert_eq!(case.take(), [replayed(b"first"), Effect::FrameOk(2), held(9), replayed(b"next")]);
    assert_eq!(case.backup.counters().conflicts, 0);
}

#[test]
fn a_payload_with_another_hash_breaks_the_pair() {
    let mut case = Case::accepted();
    case.tap(0, b"evil");
    case.frame(&read(0, b"hell"));
    case.message(&Message::Payload { frame: 2, index: 0, bytes: b"evil" });
    assert_eq!(
        case.take(),
        [Effect::Need(2, 0), Effect::Broken(Broken::PayloadHash { frame: 2, index: 0 })]
    );
    case.frame(&record(Op::Result, 0, 0, 1, 0, b""));
    case.flush();
    assert_eq!(case.take(), []);
}

#[test]
fn frames_are_numbered() {
    let mut case = Case::accepted();
    case.message(&Message::Frame { number: 1, records: &accept(1, ID.0) });
    assert_eq!(case.take(), []);
    assert_eq!(case.backup.counters().frames_repeated, 1);
    case.message(&Message::Frame { number: 3, records: b"" });
    assert_eq!(case.take(), [Effect::Broken(Broken::FrameGap { expected: 2, got: 3 })]);
}

#[test]
fn an_accept_must_name_an_announced_connection() {
    let mut case = Case::accepted();
    case.frame(&accept(2, 77));
    assert_eq!(case.take(), [Effect::Broken(Broken::AcceptUnknown { accept: 2 })]);
}

#[test]
fn a_connection_without_a_tap_is_fed_by_the_log() {
    let mut case = Case::accepted();
    case.frame(&accept(2, 0));
    let mut bytes = read(0, b"local");
    bytes[12..16].copy_from_slice(&2_u32.to_le_bytes());
    case.frame(&bytes);
    assert_eq!(case.take().pop(), Some(Effect::Need(3, 0)));
    case.message(&Message::Payload { frame: 3, index: 0, bytes: b"local" });
    assert_eq!(case.take(), [replayed(b"local")]);
}

#[test]
fn a_full_ring_delays_and_loses_nothing() {
    let mut case = Case::accepted();
    case.tap(0, b"hello");
    case.notes.full = true;
    case.frame(&read(0, b"hello"));
    case.flush();
    assert_eq!(case.take(), [held(5)]);
    case.backup.handle_peer_lost(Nanos(0), &mut case.notes);
    case.backup.begin_promotion(Nanos(0), &mut case.notes);
    assert_eq!(case.take(), [], "what is held must be replayed before the log ends");
    case.notes.full = false;
    case.backup.handle_room(Nanos(0), &mut case.notes);
    assert_eq!(case.take(), [replayed(b"hello"), Effect::Ended]);
}

#[test]
fn gone_waits_for_the_records_before_it() {
    let mut case = Case::accepted();
    case.frame(&read(0, b"ab"));
    case.message(&Message::Gone { conn: ID });
    assert_eq!(case.take(), []);
    case.tap(0, b"ab");
    assert_eq!(case.take(), [replayed(b"ab"), Effect::Gone(1)]);
    case.frame(&read(0, b"late"));
    assert_eq!(case.take(), [Effect::Need(3, 0)]);
}

#[test]
fn progress_never_goes_back() {
    let mut case = Case::accepted();
    let iss = conn_record().iss;
    for (una, expected) in [(10, 10), (4, 10), (11, 11)] {
        let progress = ConnProgress {
            conn: ID,
            snd_una: iss.plus(1 + una),
            snd_nxt: iss.plus(50),
            right_edge: SeqNo(5),
            tsval: 0,
            rcv_nxt: SeqNo(1000),
        };
        case.message(&Message::Progress { conns: vec![progress] });
        assert_eq!(case.take(), [Effect::Acked(1, expected)]);
    }
}

#[test]
fn a_new_connection_replaces_the_older_one_of_its_tuple() {
    let mut case = Case::accepted();
    case.tap(0, b"old");
    let record = ConnRecord { irs: SeqNo(5999), ..conn_record() };
    case.message(&Message::Conn { conn: ConnId(6), record });
    assert_eq!(case.take(), [Effect::Gone(1), Effect::ConnOk(ConnId(6))]);
    case.tap(5000, b"new");
    case.flush();
    assert_eq!(case.take(), [Effect::Held(vec![(ConnId(6), SeqNo(6003))])]);
}

#[test]
fn early_data_waits_for_its_record() {
    let mut case = Case { backup: Backup::new(KEY), notes: Notes::default(), frames: 0 };
    case.tap(0, b"nobody knows me");
    case.backup.handle_segment(Nanos(0), &syn(), &mut case.notes);
    case.tap(0, b"early");
    case.message(&Message::Conn { conn: ID, record: conn_record() });
    case.flush();
    assert_eq!(case.take(), [Effect::ConnOk(ID), held(5)]);
    assert_eq!(case.backup.early.counts(), (0, 0));
}

#[test]
fn syns_are_bounded_and_age() {
    let mut backup = Backup::new(KEY);
    let mut notes = Notes::default();
    for port in 0..2 * SYNS_MAX as u16 {
        let syn = TcpPacket { source_port: port, ..syn() };
        backup.handle_segment(Nanos(u64::from(port)), &syn, &mut notes);
    }
    assert_eq!(backup.early.counts(), (0, SYNS_MAX));
    backup.begin_promotion(Nanos(0), &mut notes);
    let mut promotion =
        backup.plan(SYN_AGE_MAX.plus(Nanos(2 * SYNS_MAX as u64 - 3))).expect("the log has ended");
    assert_eq!(
        promotion.take_syns().collect::<Vec<_>>(),
        [b"raw syn".to_vec(), b"raw syn".to_vec()]
    );
}

#[test]
fn a_dead_server_drains_while_its_host_lives() {
    let mut case = Case::accepted();
    case.frame(&read(0, b"ab"));
    case.message(&Message::ServerDied { last: 3 });
    assert_eq!(case.take(), [Effect::Died]);
    assert!(case.backup.plan(Nanos(0)).is_none());
    case.tap(0, b"ab");
    case.frame(&record(Op::Result, 0, 0, 1, 0, b""));
    case.flush();
    assert_eq!(
        case.take(),
        [replayed(b"ab"), Effect::Replay(Op::Result as u8, vec![]), Effect::Ended]
    );
    assert_eq!(case.backup.next_deadline(), None);
}

#[test]
fn the_log_ends_before_the_first_read_that_is_not_here() {
    let mut case = Case::accepted();
    case.frame(
        &[
            record(Op::Clock, 0, 0, 0, 0, b"1"),
            read(0, b"missing"),
            record(Op::Clock, 0, 0, 0, 0, b"2"),
        ]
        .concat(),
    );
    case.message(&Message::ServerDied { last: 9 });
    case.backup.handle_timeout(PROMOTE_DRAIN_MAX, &mut case.notes);
    let clock = Effect::Replay(Op::Clock as u8, b"1".to_vec());
    assert_eq!(case.take(), [clock, Effect::Died, Effect::Ended]);
    assert!(case.backup.plan(Nanos(0)).is_some());
}

fn manifest(in_bytes: u64) -> ManifestConn {
    let (keep_from, shut, eof) = (0, 0, false);
    ManifestConn { accept: 1, open: true, fd: 7, in_bytes, out_bytes: 9, keep_from, shut, eof }
}

struct Nothing;

impl PromotionOutput for Nothing {
    fn restore(&mut self, _: &Restore<'_>) {}
    fn discard(&mut self, _: &Discarded, _: Option<Probe>) {}
    fn reset(&mut self, _: ConnId, _: u32) {}
    fn diverged(&mut self, _: &Diverged) {}
}

fn arbitrary_message(kind: u8, number: u64, bytes: &[u8]) -> Message<'_> {
    let seq = SeqNo(number as u32);
    let progress = ConnProgress {
        conn: ID,
        snd_una: seq,
        snd_nxt: seq,
        right_edge: seq,
        tsval: seq.0,
        rcv_nxt: seq,
    };
    match kind {
        0 | 1 => Message::Frame { number: number % 8, records: bytes },
        2 => Message::Payload { frame: number % 8, index: 0, bytes },
        3 => Message::Conn { conn: ConnId(number % 4), record: conn_record() },
        4 => Message::Gone { conn: ID },
        5 => Message::Progress { conns: vec![progress] },
        6 => Message::ServerDied { last: number },
        7 => Message::Unread {
            conn: ID,
            offset: number % 200,
            bytes,
            last: number.is_multiple_of(3),
        },
        _ => Message::FrameOk { number },
    }
}

proptest! {
    #[test]
    fn arbitrary_messages_and_segments_never_panic(
        inputs in proptest::collection::vec(
            (0_u8..11, any::<u64>(), proptest::collection::vec(0_u8..18, 0..120)), 0..60),
    ) {
        let mut case = Case::accepted();
        for (n, (kind, number, bytes)) in inputs.iter().enumerate() {
            let now = Nanos(n as u64 * 400_000);
            if *kind < 9 {
                case.backup.handle_message(now, &arbitrary_message(*kind, *number, bytes), &mut case.notes);
            } else {
                case.backup.handle_segment(now, &segment(*number as u32 % 200, bytes), &mut case.notes);
            }
            case.backup.handle_timeout(now, &mut case.notes);
            case.backup.flush(now, &mut case.notes);
        }
        case.backup.begin_promotion(Nanos(0), &mut case.notes);
        if let Some(mut promotion) = case.backup.plan(Nanos(0)) {
            promotion.probes(Nanos(0));
            promotion.handle_manifest(Nanos(0), &[manifest(0)], &mut Nothing);
            promotion.handle_timeout(Nanos(u64::MAX), &mut Nothing);
        }
    }

    /// The replica reads exactly what the primary's server read, whatever conflicting overlaps the
    /// tap shows.
    #[test]
    fn conflicting_overlaps_are_repaired(
        truth in proptest::collection::vec(any::<u8>(), 1..300),
        segments in proptest::collection::vec((0_usize..300, 1_usize..60, any::<bool>()), 0..40),
        reads in proptest::collection::vec(1_usize..60, 1..40),
    ) {
        let mut case = Case::accepted_within(TINY);
        let mut segments = segments.into_iter();
        let (mut at, mut got) = (0, Vec::new());
        for len in reads {
            for (from, len, forged) in segments.by_ref().take(2) {
                let mut bytes = truth[from.min(truth.len())..(from + len).min(truth.len())].to_vec();
                bytes.iter_mut().for_each(|byte| *byte ^= u8::from(forged));
                case.tap(from.min(truth.len()) as u32, &bytes);
            }
            let wanted = truth[at..(at + len).min(truth.len())].to_vec();
            if wanted.is_empty() {
                break;
            }
            case.frame(&read(0, &wanted));
            case.backup.handle_timeout(Nanos(u64::MAX), &mut case.notes);
            if case.notes.effects.iter().any(|effect| matches!(effect, Effect::Need(..))) {
                case.message(&Message::Payload { frame: case.frames, index: 0, bytes: &wanted });
            }
            at += wanted.len();
            for effect in case.take() {
                if let Effect::Replay(_, bytes) = effect {
                    got.extend(bytes);
                }
            }
            prop_assert_eq!(&got[..], &truth[..at]);
        }
        let used = |of: fn(Usage) -> usize, share: Share| -> usize {
            case.backup.conns.values().map(|c| of(c.tap.usage()).saturating_sub(share.each)).sum()
        };
        prop_assert_eq!(case.backup.pools.held.used(), used(|usage| usage.held, TINY.held));
        prop_assert_eq!(case.backup.pools.aside.used(), used(|usage| usage.aside, TINY.aside));
    }
}
