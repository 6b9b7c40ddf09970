mod adopt;
mod direct;
mod unlogged;

use super::*;
use crate::CONNS_MAX;
use holdfast_wire::log::{AcceptInfo, HEADER_LEN, Header, Op, TAPPED, record_len};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Frame(u64, Vec<u8>),
    FrameAt(u64, u64, Vec<u8>),
    Payload(u64, u32, Vec<u8>),
    Unread(u64, Vec<u8>, bool),
    Other(Vec<u8>),
    Open(u64),
    Refuse(u64),
    Advance(u64, SeqNo),
    Stable(u64),
    AllowFin(u64),
    Broken,
}

#[derive(Default)]
struct Notes {
    log: Vec<u8>,
    /// The kernel's answer to any question about unread bytes.
    unread: Option<(Vec<u8>, Peeked)>,
    wanted: Vec<Wanted>,
    effects: Vec<Effect>,
}

impl PrimaryOutput for Notes {
    fn send(&mut self, message: &Message<'_>) {
        self.effects.push(match message {
            Message::Frame { number, records } => Effect::Frame(*number, records.to_vec()),
            Message::FrameAt { number, position, records } => {
                Effect::FrameAt(*number, *position, records.to_vec())
            }
            Message::Payload { frame, index, bytes } => {
                Effect::Payload(*frame, *index, bytes.to_vec())
            }
            Message::Unread { offset, bytes, last, .. } => {
                Effect::Unread(*offset, bytes.to_vec(), *last)
            }
            other => {
                let mut bytes = Vec::new();
                other.encode(&mut bytes);
                Effect::Other(bytes)
            }
        });
    }
    fn open(&mut self, conn: ConnId) {
        self.effects.push(Effect::Open(conn.0));
    }
    fn refuse(&mut self, conn: ConnId) {
        self.effects.push(Effect::Refuse(conn.0));
    }
    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.effects.push(Effect::Advance(conn.0, stable));
    }
    fn stable(&mut self, pos: u64) {
        self.effects.push(Effect::Stable(pos));
    }
    fn allow_fin(&mut self, conn: ConnId) {
        self.effects.push(Effect::AllowFin(conn.0));
    }
    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        into.clear();
        let bytes = self.log.get(pos as usize..(pos as usize).saturating_add(len));
        into.extend_from_slice(bytes.unwrap_or_default());
        bytes.is_some()
    }
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        self.wanted.push(*wanted);
        let Some((bytes, peeked)) = &self.unread else { return Peeked::Nothing };
        into.extend(bytes);
        *peeked
    }
    fn broken(&mut self, _: &Broken) {
        self.effects.push(Effect::Broken);
    }
}

impl Notes {
    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn append(&mut self, op: Op, conn: u32, flags: u8, ret: i64, payload: &[u8]) {
        let header = Header {
            payload_len: payload.len() as u32,
            op: op as u8,
            flags,
            conn,
            ret,
            ..Header::default()
        };
        let at = self.log.len();
        self.log.extend_from_slice(header.as_bytes());
        self.log.extend_from_slice(payload);
        self.log.resize(at + record_len(payload.len()), 0);
    }

    /// Hands the machine everything from `from` on.
    fn feed(&mut self, primary: &mut Primary, from: usize) {
        let bytes = self.log[from..].to_vec();
        primary.handle_log(Nanos(0), from as u64, &bytes, self);
    }
}

fn key(port: u16) -> ConnKey {
    ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: port }
}

fn record(port: u16) -> ConnRecord {
    ConnRecord {
        key: key(port),
        iss: SeqNo(1),
        irs: SeqNo(u32::MAX),
        mss: 1460,
        peer_mss: 0,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: None,
        window: 1,
    }
}

fn info(port: u16, socket: u64) -> AcceptInfo {
    AcceptInfo {
        conn_id: socket,
        local: [1; 16],
        peer: [2; 16],
        local_port: 80,
        peer_port: port,
        ..AcceptInfo::default()
    }
}

fn accepted(port: u16) -> (Primary, Notes) {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    primary.handle_synack(Nanos(0), ConnId(9), 900, record(port), &mut notes);
    primary.handle_message(Nanos(0), &Message::ConnOk { conn: ConnId(9) }, &mut notes);
    primary.handle_message(Nanos(0), &Message::ConnOk { conn: ConnId(9) }, &mut notes);
    assert_eq!(notes.take().iter().filter(|effect| **effect == Effect::Open(9)).count(), 1);
    notes.append(Op::Accept, 1, 0, 5, info(port, 900).as_bytes());
    (primary, notes)
}

#[test]
fn frames_name_the_connection_and_leave_tapped_payload_out() {
    let (mut primary, mut notes) = accepted(1000);
    notes.append(Op::Pad, 0, 0, 0, &[0; 16]);
    notes.append(Op::Read, 1, TAPPED, 5, b"hello");
    notes.feed(&mut primary, 0);
    let effects = notes.take();
    let [Effect::Frame(1, records)] = &effects[..] else { panic!("{effects:?}") };
    let (info, _) = AcceptInfo::read_from_prefix(&records[HEADER_LEN..]).expect("an address");
    assert_eq!(info.conn_id, 9);
    assert_eq!(records.len(), record_len(size_of::<AcceptInfo>()) + HEADER_LEN);
    primary.handle_message(Nanos(0), &Message::Need { frame: 1, index: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::Payload(1, 1, b"hello".to_vec())]);
    // The padding is no record of the frame.
    primary.handle_message(Nanos(0), &Message::Need { frame: 1, index: 2 }, &mut notes);
    assert_eq!((notes.take().len(), primary.counters().needs_ignored), (0, 1));
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::Stable(notes.log.len() as u64)]);
    for (frame, index) in [(1, 1), (2, 0)] {
        primary.handle_message(Nanos(0), &Message::Need { frame, index }, &mut notes);
    }
    assert_eq!((notes.take().len(), primary.counters().needs_ignored), (0, 3));
}

#[test]
fn what_is_no_answer_to_the_log_is_counted() {
    let (mut primary, mut notes) = accepted(1000);
    primary.handle_message(Nanos(0), &Message::CaughtUp, &mut notes);
    assert_eq!((notes.take().len(), primary.counters().messages_ignored), (0, 1));
}

#[test]
fn every_question_for_unread_bytes_is_answered() {
    let (mut primary, mut notes) = accepted(1000);
    let ask = |id, until| Message::NeedUnread { conn: ConnId(id), from: 40, until };
    let asked = |primary: &mut Primary, notes: &mut Notes, id, until| {
        primary.handle_message(Nanos(0), &ask(id, until), notes);
        notes.take()
    };
    let nothing = || [Effect::Unread(40, vec![], false)];
    // The connection is not accepted yet, or unknown.
    assert_eq!(asked(&mut primary, &mut notes, 9, 50), nothing());
    assert_eq!(asked(&mut primary, &mut notes, 8, 50), nothing());
    assert_eq!(notes.wanted, []);
    notes.feed(&mut primary, 0);
    notes.take();
    assert_eq!(asked(&mut primary, &mut notes, 9, 50), nothing());
    notes.unread = Some((b"hello".to_vec(), Peeked::Bytes));
    let found = |last| [Effect::Unread(40, b"hello".to_vec(), last)];
    assert_eq!(asked(&mut primary, &mut notes, 9, 50), found(false));
    notes.unread = Some((b"hello".to_vec(), Peeked::Last));
    assert_eq!(asked(&mut primary, &mut notes, 9, u64::MAX), found(true));
    let wanted =
        |until| Wanted { conn: ConnId(9), accept: 1, socket: 900, from: 40, until: 40 + until };
    assert_eq!(notes.wanted, [wanted(10), wanted(10), wanted(UNREAD_BYTES_MAX as u64)]);
    assert_eq!(primary.counters().peeked, 10);
    primary.handle_server_died(Nanos(0), &mut notes);
    notes.take();
    assert_eq!(asked(&mut primary, &mut notes, 9, 50), [], "nobody holds the descriptor any more");
}

#[test]
fn a_fin_is_allowed_before_the_close_is_stable() {
    let (mut primary, mut notes) = accepted(1000);
    notes.append(Op::Shutdown, 1, 0, 0, b"");
    notes.append(Op::Close, 1, 0, 0, b"");
    notes.feed(&mut primary, 0);
    let sent = notes.take();
    assert!(matches!(sent[..], [Effect::Frame(1, _)]), "nothing leaves before that: {sent:?}");
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::AllowFin(9), Effect::Stable(notes.log.len() as u64)]);
}

#[test]
fn held_only_moves_forward() {
    let (mut primary, mut notes) = accepted(1000);
    for seq in [5, 3, 5, 0x9000_0000, 8] {
        primary.handle_message(
            Nanos(0),
            &Message::Held { conns: vec![(ConnId(9), SeqNo(seq))] },
            &mut notes,
        );
    }
    assert_eq!(notes.take(), [Effect::Advance(9, SeqNo(5)), Effect::Advance(9, SeqNo(8))]);
    assert_eq!(primary.counters().held_ignored, 3);
}

#[test]
fn at_the_limit_the_log_waits_in_the_ring() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for _ in 0..FRAMES_UNCONFIRMED_MAX + 10 {
        let from = notes.log.len();
        notes.append(Op::Result, 0, 0, 1, b"");
        notes.feed(&mut primary, from);
    }
    assert_eq!(notes.take().len(), FRAMES_UNCONFIRMED_MAX);
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    let effects = notes.take();
    let [Effect::Stable(32), Effect::Frame(_, waited)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(waited.len(), 10 * HEADER_LEN);
    notes.append(Op::Exit, 0, 0, 1, b"");
    notes.feed(&mut primary, notes.log.len() - HEADER_LEN);
    assert!(notes.take().is_empty());
    primary.handle_server_died(Nanos(0), &mut notes);
    let effects = notes.take();
    assert!(
        matches!(&effects[..], [Effect::Frame(last, _), Effect::Other(_)] if *last == FRAMES_UNCONFIRMED_MAX as u64 + 2)
    );
}

/// A backup that is left behind must get nothing that it would confirm, or execute twice.
#[test]
fn nothing_is_sent_to_a_backup_that_is_lost() {
    let (mut primary, mut notes) = accepted(1000);
    primary.handle_backup_lost();
    notes.feed(&mut primary, 0);
    assert_eq!(notes.take(), []);
}

/// Records have any length, and the ring is read in pieces.
#[test]
fn a_record_that_does_not_fit_into_what_is_read_at_a_time_is_read_with_the_next() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for _ in 0..FRAMES_UNCONFIRMED_MAX {
        let from = notes.log.len();
        notes.append(Op::Result, 0, 0, 1, b"");
        notes.feed(&mut primary, from);
    }
    notes.take();
    let (count, bytes) = (60, 50_000);
    for _ in 0..count {
        let from = notes.log.len();
        notes.append(Op::Data, 0, 0, 0, &vec![1; bytes]);
        notes.feed(&mut primary, from);
    }
    let number = FRAMES_UNCONFIRMED_MAX as u64;
    primary.handle_message(Nanos(0), &Message::FrameOk { number }, &mut notes);
    let framed = notes.take().into_iter().map(|effect| match effect {
        Effect::Frame(_, records) => records.len(),
        Effect::Broken => panic!("the rest is there"),
        _ => 0,
    });
    assert_eq!(framed.sum::<usize>(), count * record_len(bytes));
}

/// Otherwise the backup would execute what it has, and take over without the rest.
#[test]
fn a_log_whose_rest_makes_no_sense_has_no_end_that_could_be_told() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for _ in 0..FRAMES_UNCONFIRMED_MAX {
        let from = notes.log.len();
        notes.append(Op::Result, 0, 0, 1, b"");
        notes.feed(&mut primary, from);
    }
    let from = notes.log.len();
    notes.append(Op::Read, 1, TAPPED, 5, b"hi");
    notes.feed(&mut primary, from);
    assert_eq!(notes.take().len(), FRAMES_UNCONFIRMED_MAX, "it waits in the ring");
    primary.handle_server_died(Nanos(0), &mut notes);
    assert_eq!(notes.take(), [Effect::Broken]);
}

#[test]
fn frames_are_cut_between_records() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for len in [40_000, 40_000, 200_000, 10] {
        notes.append(Op::Data, 0, 0, 0, &vec![1; len]);
    }
    notes.feed(&mut primary, 0);
    let sizes: Vec<usize> = notes
        .take()
        .iter()
        .map(|effect| if let Effect::Frame(_, records) = effect { records.len() } else { 0 })
        .collect();
    assert_eq!(
        sizes,
        [record_len(40_000), record_len(40_000), record_len(200_000), record_len(10)]
    );
}

#[test]
fn a_frame_may_be_full_to_its_last_byte() {
    for (frame_bytes_max, frames) in [(2 * record_len(40), 1), (2 * record_len(40) - 1, 2)] {
        let limits = PrimaryLimits { frame_bytes_max, ..PrimaryLimits::DEFAULT };
        let (mut primary, mut notes) = (Primary::with_limits(0, limits), Notes::default());
        notes.append(Op::Data, 0, 0, 0, &[1; 40]);
        notes.append(Op::Data, 0, 0, 0, &[2; 40]);
        notes.feed(&mut primary, 0);
        assert_eq!(notes.take().len(), frames);
    }
}

#[test]
fn after_the_servers_death_nothing_is_confirmed_but_the_log_is_repaired() {
    let (mut primary, mut notes) = accepted(1000);
    notes.append(Op::Read, 1, TAPPED, 2, b"hi");
    notes.feed(&mut primary, 0);
    primary.handle_server_died(Nanos(0), &mut notes);
    notes.take();
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    primary.handle_message(
        Nanos(0),
        &Message::Held { conns: vec![(ConnId(9), SeqNo(5))] },
        &mut notes,
    );
    assert!(notes.take().is_empty());
    primary.handle_message(Nanos(0), &Message::Need { frame: 1, index: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::Payload(1, 1, b"hi".to_vec())]);
}

#[test]
fn an_accepted_socket_is_found_among_all_lives_of_its_tuple() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    // Connection 2 was begun by an old SYN, and is never accepted.
    for id in [2, 3, 4] {
        primary.handle_synack(Nanos(0), ConnId(id), 100 * id, record(1000), &mut notes);
    }
    notes.take();
    for (accept, socket) in [(1, 300), (2, 400)] {
        notes.append(Op::Accept, accept, 0, 5, info(1000, socket).as_bytes());
    }
    notes.append(Op::Accept, 3, 0, 5, info(1001, 500).as_bytes());
    notes.feed(&mut primary, 0);
    let effects = notes.take();
    let [Effect::Frame(1, records)] = &effects[..] else { panic!("{effects:?}") };
    let ids: Vec<u64> = records
        .chunks(record_len(size_of::<AcceptInfo>()))
        .map(|record| {
            AcceptInfo::read_from_prefix(&record[HEADER_LEN..]).map_or(99, |(info, _)| info.conn_id)
        })
        .collect();
    assert_eq!(ids, [3, 4, 0]);
    assert_eq!(primary.counters().accepts_unknown, 1);
}

#[test]
fn of_two_connections_of_one_socket_the_newer_one_is_accepted() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for id in [2, 3] {
        primary.handle_synack(Nanos(0), ConnId(id), 300, record(1000), &mut notes);
    }
    notes.take();
    notes.append(Op::Accept, 1, 0, 5, info(1000, 300).as_bytes());
    notes.feed(&mut primary, 0);
    let effects = notes.take();
    let [Effect::Frame(1, records)] = &effects[..] else { panic!("{effects:?}") };
    let told = AcceptInfo::read_from_prefix(&records[HEADER_LEN..]);
    assert_eq!(told.map_or(0, |(info, _)| info.conn_id), 3);
}

#[test]
fn a_full_table_refuses_the_new_connection() {
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for n in 0..=CONNS_MAX as u64 {
        let key = ConnKey { client_port: n as u16, ..key(0) };
        primary.handle_synack(Nanos(0), ConnId(n), n, ConnRecord { key, ..record(0) }, &mut notes);
    }
    assert_eq!(notes.take().last(), Some(&Effect::Refuse(CONNS_MAX as u64)));
}

#[test]
fn a_log_that_makes_no_sense_ends_protection() {
    let tapped = |flags, ret, payload: &[u8]| {
        let (mut primary, mut notes) = (Primary::new(0), Notes::default());
        notes.append(Op::Read, 1, flags, ret, payload);
        notes.feed(&mut primary, 0);
        notes.take().pop()
    };
    assert_eq!(tapped(TAPPED, 4, b"abc"), Some(Effect::Broken));
    assert!(matches!(tapped(TAPPED, -11, b""), Some(Effect::Frame(..))));
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    primary.handle_log(Nanos(0), 8, &[0; 32], &mut notes);
    assert_eq!(notes.take(), [Effect::Broken]);
}

/// The ring may have been overwritten, or its memory be gone.
#[test]
fn a_log_that_cannot_be_read_any_more_ends_protection() {
    let asked = |keep: usize| {
        let (mut primary, mut notes) = (Primary::new(0), Notes::default());
        notes.append(Op::Read, 1, TAPPED, 2, b"hi");
        notes.feed(&mut primary, 0);
        notes.take();
        notes.log.truncate(keep);
        let need = Message::Need { frame: 1, index: 0 };
        primary.handle_message(Nanos(0), &need, &mut notes);
        (notes.take(), primary.counters().repairs)
    };
    let payload = Effect::Payload(1, 0, b"hi".to_vec());
    assert_eq!(asked(HEADER_LEN + 2), (vec![payload], 1));
    assert_eq!(asked(HEADER_LEN + 1), (vec![Effect::Broken], 0));
    assert_eq!(asked(HEADER_LEN - 1), (vec![Effect::Broken], 0));
    let (mut primary, mut notes) = (Primary::new(0), Notes::default());
    for _ in 0..=FRAMES_UNCONFIRMED_MAX {
        let from = notes.log.len();
        notes.append(Op::Result, 0, 0, 1, b"");
        notes.feed(&mut primary, from);
    }
    notes.take();
    notes.log.truncate(HEADER_LEN * FRAMES_UNCONFIRMED_MAX);
    primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
    assert_eq!(notes.take(), [Effect::Stable(32), Effect::Broken]);
}

#[test]
fn who_ends_its_sending_side_may_say_so_once_that_is_stable() {
    for (how, may) in [(0, false), (1, true), (2, true), (3, false)] {
        let (mut primary, mut notes) = accepted(1000);
        notes.append(Op::Shutdown, 1, 0, how, b"");
        notes.feed(&mut primary, 0);
        assert!(!notes.take().contains(&Effect::AllowFin(9)), "not before");
        primary.handle_message(Nanos(0), &Message::FrameOk { number: 1 }, &mut notes);
        assert_eq!(notes.take().contains(&Effect::AllowFin(9)), may, "{how}");
    }
}

#[test]
fn a_new_life_of_a_tuple_ends_the_one_that_was_accepted() {
    for accepts in [true, false] {
        let (mut primary, mut notes) = accepted(1000);
        if accepts {
            notes.feed(&mut primary, 0);
        }
        primary.handle_synack(Nanos(0), ConnId(10), 901, record(1000), &mut notes);
        let known = [9, 10].map(|id| primary.conns.contains_key(&ConnId(id)));
        assert_eq!(known, [!accepts, true]);
    }
}

proptest! {
    #[test]
    fn arbitrary_logs_and_messages_never_panic(
        log in proptest::collection::vec(0_u8..20, 0..400),
        needs in proptest::collection::vec((0_u64..4, 0_u32..9), 0..6),
        ok: u64,
    ) {
        let mut primary = Primary::new(0);
        let mut notes = Notes { log, ..Notes::default() };
        primary.handle_synack(Nanos(0), ConnId(1), 100, record(1), &mut notes);
        notes.feed(&mut primary, 0);
        for (frame, index) in needs {
            primary.handle_message(Nanos(0), &Message::Need { frame, index }, &mut notes);
        }
        primary.handle_message(Nanos(0), &Message::Held { conns: vec![(ConnId(1), SeqNo(ok as u32))] }, &mut notes);
        primary.handle_message(Nanos(0), &Message::FrameOk { number: ok }, &mut notes);
        primary.handle_server_died(Nanos(0), &mut notes);
    }
}
