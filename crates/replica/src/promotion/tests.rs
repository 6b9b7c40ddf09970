mod rest;

use super::*;
use crate::limits::Limits;
use holdfast_wire::message::ConnProgress;
use holdfast_wire::packet::{Flags, TcpOptions};
use proptest::prelude::*;

const ID: ConnId = ConnId(5);
const IRS: SeqNo = SeqNo(999);
const ISS: SeqNo = SeqNo(u32::MAX - 3);

fn record() -> ConnRecord {
    ConnRecord {
        key: ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: 5000 },
        iss: ISS,
        irs: IRS,
        mss: 1460,
        peer_mss: 1400,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: Some(100),
        window: 60000,
    }
}

fn segment(offset: u64, ack: u64, payload: &[u8]) -> TcpPacket<'_> {
    TcpPacket {
        source: record().key.client,
        destination: record().key.server,
        source_port: record().key.client_port,
        destination_port: record().key.server_port,
        seq: IRS.plus(1 + offset),
        ack: ISS.plus(1 + ack),
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload,
        raw: payload,
    }
}

fn planned(accept: Option<u32>) -> Planned {
    Planned {
        id: ID,
        record: record(),
        accept,
        replaced: false,
        in_bytes: 0,
        out_bytes: 100,
        closed: false,
        snd_una: 0,
        told: 0,
        earlier: Earlier::default(),
        tsval: Some((100, Nanos(0))),
        tap: Tap::new(&record(), Limits::default()),
    }
}

fn replica() -> ManifestConn {
    ManifestConn {
        accept: 1,
        open: true,
        fd: 7,
        in_bytes: 0,
        out_bytes: 100,
        keep_from: 0,
        shut: 0,
        eof: false,
    }
}

fn bounds(sent: u64, acked: u64) -> FlowBounds {
    FlowBounds {
        key: record().key,
        iss: Some(ISS),
        seq_end: ISS.plus(1 + sent),
        right_edge: IRS.plus(70_001),
        tsval: 5001,
        client_ack: ISS.plus(1 + acked),
    }
}

/// The part of a verdict that differs between cases.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    Restore {
        accept: Option<u32>,
        fd: Option<i32>,
        unread: Vec<u8>,
        acked: u64,
        in_flight_end: u64,
        out_end: u64,
        closing: Closing,
        half_open: bool,
    },
    Discard(Option<u32>, Why),
    Reset(u32),
    Diverged(Diverged),
}

#[derive(Default)]
struct Notes {
    notes: Vec<Note>,
    rcv_nxt: SeqNo,
    receive_window: u32,
    tsval: Option<u32>,
    peer_window: u32,
    rtt_ms: Option<u32>,
    tell: Option<Tell>,
    reinject: Vec<Vec<u8>>,
}

impl PromotionOutput for Notes {
    fn restore(&mut self, r: &Restore<'_>) {
        self.notes.push(Note::Restore {
            accept: r.accept,
            fd: r.fd,
            unread: r.unread.concat(),
            acked: r.snd_una_offset,
            in_flight_end: r.in_flight_end,
            out_end: r.out_end,
            closing: r.closing,
            half_open: r.half_open.is_some_and(|probe| probe.syn),
        });
        assert!(r.earlier.is_empty() || r.snd_una_offset + r.earlier.len() as u64 == 50);
        self.rcv_nxt = r.rcv_nxt;
        self.receive_window = r.receive_window_bytes;
        self.tsval = r.tsval;
        self.peer_window = r.peer_window_bytes;
        self.rtt_ms = Some(r.rtt_ms);
        self.tell = Some(r.tell);
        self.reinject = r.reinject.iter().map(|raw| raw.to_vec()).collect();
    }
    fn discard(&mut self, lost: &Discarded, _: Option<Probe>) {
        assert_eq!(lost.conn, ID);
        self.notes.push(Note::Discard(lost.accept, lost.why));
    }
    fn reset(&mut self, _: ConnId, accept: u32) {
        self.notes.push(Note::Reset(accept));
    }
    fn diverged(&mut self, reason: &Diverged) {
        self.notes.push(Note::Diverged(*reason));
    }
}

/// Runs a promotion of one connection to its verdict.
fn verdict(
    planned: Planned,
    bounds: Option<FlowBounds>,
    answer: Option<u64>,
    replica: ManifestConn,
) -> Note {
    verdict_after(Buffering::Commit, planned, bounds, answer, replica)
}

fn verdict_after(
    buffering: Buffering,
    planned: Planned,
    bounds: Option<FlowBounds>,
    answer: Option<u64>,
    replica: ManifestConn,
) -> Note {
    let seq = planned.tap.held();
    let promotion = Promotion::new(vec![planned], VecDeque::new(), Limits::DEFAULT);
    let mut promotion = promotion.after(buffering);
    let mut out = Notes::default();
    promotion.probes(Nanos(0));
    promotion.handle_manifest(Nanos(0), &[replica], &mut out);
    promotion.handle_bounds(Nanos(0), bounds.as_slice(), true, &mut out);
    if let Some(ack) = answer {
        promotion.handle_segment(Nanos(0), &TcpPacket { seq, ..segment(0, ack, b"") }, &mut out);
    }
    promotion.handle_timeout(PROBE_WAIT, &mut out);
    assert_eq!(out.notes.len(), 1, "{:?}", out.notes);
    out.notes.remove(0)
}

fn restored(acked: u64, in_flight_end: u64, closing: Closing) -> Note {
    let fd = (!closing.orphan).then_some(7);
    Note::Restore {
        accept: Some(1),
        fd,
        unread: vec![],
        acked,
        in_flight_end,
        out_end: 100,
        closing,
        half_open: false,
    }
}

#[test]
fn the_answer_says_what_the_client_lacks_and_the_edge_what_is_on_its_way() {
    let open = Closing::default();
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(80, 10)), Some(40), replica()),
        restored(40, 80, open)
    );
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(80, 10)), None, replica()),
        restored(10, 80, open)
    );
    assert_eq!(verdict(planned(Some(1)), None, Some(40), replica()), restored(40, 100, open));
    let known = Planned { snd_una: 30, ..planned(Some(1)) };
    assert_eq!(verdict(known, None, None, replica()), restored(30, 100, open));
}

/// Rounded up, since nothing comes in no time.
#[test]
fn how_long_a_client_takes_to_answer_is_its_round_trip() {
    for (answers_after, rtt_ms) in
        [(Some(Nanos(900_000)), 1), (Some(Nanos(3_900_000)), 4), (None, RTT_UNKNOWN_MS)]
    {
        let mut promotion =
            Promotion::new(vec![planned(Some(1))], VecDeque::new(), Limits::DEFAULT);
        let (begun, mut out) = (Nanos::from_ms(70), Notes::default());
        promotion.probes(begun);
        promotion.handle_manifest(begun, &[replica()], &mut out);
        promotion.handle_bounds(begun, &[bounds(80, 10)], true, &mut out);
        if let Some(after) = answers_after {
            promotion.handle_segment(begun.plus(after), &segment(0, 40, b""), &mut out);
        }
        promotion.handle_timeout(begun.plus(PROBE_WAIT), &mut out);
        assert_eq!(out.rtt_ms, Some(rtt_ms), "{answers_after:?}");
    }
}

#[test]
fn a_connection_that_had_ended_is_not_waited_for() {
    let at_once = |replica| {
        let mut ended = Planned { snd_una: 101, ..planned(Some(1)) };
        ended
            .tap
            .accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(0, 0, b"") });
        let mut promotion = Promotion::new(vec![ended], VecDeque::new(), Limits::DEFAULT);
        let mut out = Notes::default();
        promotion.probes(Nanos(0));
        promotion.handle_manifest(Nanos(0), &[replica], &mut out);
        (out.notes, promotion.is_done())
    };
    let closed = ManifestConn { open: false, ..replica() };
    assert_eq!(at_once(closed), (vec![Note::Discard(Some(1), Why::Finished)], true));
    // The server has yet to read the end of the client's stream.
    let shut = ManifestConn { shut: 1, ..replica() };
    let closing = Closing {
        client_fin: true,
        server_fin: true,
        server_fin_acked: true,
        ..Closing::default()
    };
    assert_eq!(at_once(shut), (vec![restored(100, 100, closing)], true));
    assert_eq!(at_once(replica()), (vec![], false));
}

#[test]
fn a_client_that_acknowledges_what_was_never_sent_harms_only_itself() {
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(80, 10)), Some(90_000), replica()),
        restored(10, 80, Closing::default())
    );
}

/// The replica may have written over its own books.
#[test]
fn a_replica_that_says_what_cannot_be_ends_no_daemon() {
    let ended = ManifestConn { out_bytes: u64::MAX, shut: 1, ..replica() };
    for bounds in [None, Some(bounds(80, 10))] {
        let note = verdict(planned(Some(1)), bounds, Some(10), ended);
        assert!(matches!(note, Note::Restore { acked: 10, .. }), "{note:?}");
    }
}

#[test]
fn a_client_that_holds_more_than_the_replica_wrote_shows_divergence() {
    let diverged = |held| Note::Diverged(Diverged::Output { conn: ID, held, written: 100 });
    assert_eq!(verdict(planned(Some(1)), Some(bounds(101, 10)), None, replica()), diverged(101));
    let known = Planned { snd_una: 102, ..planned(Some(1)) };
    assert_eq!(verdict(known, None, None, replica()), diverged(102));
    let other = ManifestConn { in_bytes: 3, ..replica() };
    let expected = Diverged::Input { conn: ID, logged: 0, read: 3 };
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(80, 10)), Some(40), other),
        Note::Diverged(expected)
    );
}

/// Of a connection that waits to be accepted no member holds anything; what is seen belongs to a
/// connection that the server closed before its log began.
#[test]
fn who_is_in_no_queue_ends_nobody_elses_takeover() {
    let dropped = Note::Discard(None, Why::NotInManifest);
    assert_eq!(verdict(planned(None), Some(bounds(8, 0)), None, replica()), dropped);
}

/// Numbers that neither edge nor gate has seen must not end the takeover of all connections.
#[test]
fn the_word_of_a_client_never_shows_divergence() {
    let dropped = Note::Discard(Some(1), Why::NeverWritten);
    assert_eq!(verdict(planned(Some(1)), None, Some(102), replica()), dropped);
    let learnt = FlowBounds { iss: None, ..bounds(80, 10) };
    assert_eq!(verdict(planned(Some(1)), Some(learnt), Some(102), replica()), dropped);
    let beyond = FlowBounds { iss: None, ..bounds(101, 10) };
    assert_eq!(verdict(planned(Some(1)), Some(beyond), Some(90), replica()), dropped);
    // Bounds that are not known from the beginning set no limit, and those of another connection
    // mean nothing.
    let other = FlowBounds { iss: Some(SeqNo(5)), ..bounds(5000, 10) };
    for bounds in [learnt, other] {
        let verdict = verdict(planned(Some(1)), Some(bounds), Some(90), replica());
        assert_eq!(verdict, restored(90, 100, Closing::default()));
    }
}

#[test]
fn the_end_of_a_connection_continues_where_it_was() {
    let shut = ManifestConn { shut: 1, ..replica() };
    let closed = ManifestConn { open: false, ..replica() };
    let fin_wait_1 = Closing { server_fin: true, ..Closing::default() };
    let fin_wait_2 = Closing { server_fin_acked: true, ..fin_wait_1 };
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(101, 50)), Some(60), shut),
        restored(60, 100, fin_wait_1)
    );
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(101, 50)), Some(101), shut),
        restored(100, 100, fin_wait_2)
    );
    let orphan = Closing { orphan: true, ..fin_wait_2 };
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(101, 50)), Some(101), closed),
        restored(100, 100, orphan)
    );
    let ended = || {
        let mut planned = planned(Some(1));
        planned
            .tap
            .accept(Nanos(0), &TcpPacket { flags: Flags::ACK | Flags::FIN, ..segment(0, 0, b"") });
        planned
    };
    let close_wait = Closing { client_fin: true, ..Closing::default() };
    assert_eq!(
        verdict(ended(), Some(bounds(80, 50)), Some(60), replica()),
        restored(60, 80, close_wait)
    );
    assert_eq!(
        verdict(ended(), Some(bounds(101, 50)), Some(101), closed),
        Note::Discard(Some(1), Why::Finished)
    );
}

/// The client's input was acknowledged, so the client will not send it again.
#[test]
fn input_that_was_told_and_never_came_ends_its_connection_alone() {
    for accept in [None, Some(1)] {
        let told = |told| {
            let mut planned = Planned { told, ..planned(accept) };
            planned.tap.accept(Nanos(0), &segment(0, 0, b"abc"));
            verdict(planned, Some(bounds(0, 0)), Some(0), replica())
        };
        assert!(matches!(told(3), Note::Restore { .. }), "it has come since");
        assert_eq!(told(4), Note::Discard(accept, Why::InputNotHeld));
    }
}

/// FT-TCP's modes let more output leave than the log has, and acknowledge more than has arrived.
#[test]
fn what_nobody_waited_for_ends_its_connection_alone() {
    for mode in Buffering::ALL {
        let mut ahead = planned(Some(1));
        ahead.tap.accept(Nanos(0), &segment(0, 0, b"abc"));
        let progress = ConnProgress {
            conn: ID,
            snd_una: ISS.plus(1),
            snd_nxt: ISS.plus(1),
            right_edge: IRS.plus(100),
            rcv_nxt: IRS.plus(1 + 4),
            tsval: 0,
        };
        ahead.tap.note_progress(&progress, 0);
        let verdict = verdict_after(mode, ahead, Some(bounds(0, 0)), Some(0), replica());
        let lost = verdict == Note::Discard(Some(1), Why::InputNotHeld);
        assert_eq!(lost, !mode.holds_acks(), "{mode:?}: a byte was acknowledged and is not here");
        let beyond = planned(Some(1));
        let verdict = verdict_after(mode, beyond, Some(bounds(101, 0)), Some(0), replica());
        let lost = verdict == Note::Discard(Some(1), Why::BeyondLog);
        assert_eq!(
            lost,
            mode.may_lose(),
            "{mode:?}: a byte was sent and is in no log: {verdict:?}"
        );
    }
}

#[test]
fn what_cannot_be_restored_says_why() {
    let gone = ManifestConn { keep_from: 50, ..replica() };
    assert_eq!(
        verdict(planned(Some(1)), Some(bounds(80, 40)), None, gone),
        Note::Discard(Some(1), Why::OutputNotRetained)
    );
    assert_eq!(
        verdict(planned(Some(2)), None, None, replica()),
        Note::Discard(Some(2), Why::NotInManifest)
    );
    let replaced = Planned { replaced: true, ..planned(Some(1)) };
    assert_eq!(verdict(replaced, None, None, replica()), Note::Reset(1));
}

#[test]
fn what_the_replica_never_kept_comes_from_before_it() {
    let replica = ManifestConn { keep_from: 50, ..replica() };
    for (from, len, is_here) in [(40, 10, true), (30, 20, true), (30, 19, false), (41, 9, false)] {
        let mut planned = planned(Some(1));
        assert!(planned.earlier.take(from, &vec![b'x'; len]));
        let verdict = verdict(planned, Some(bounds(80, 40)), None, replica);
        let lost = Note::Discard(Some(1), Why::OutputNotRetained);
        let whole = restored(40, 80, Closing::default());
        assert_eq!(verdict, if is_here { whole } else { lost }, "{from}, {len}");
    }
}

#[test]
fn the_accept_queue_is_rebuilt_also_for_clients_that_may_not_know_of_it() {
    let queued = |half_open| Note::Restore {
        accept: None,
        fd: None,
        unread: vec![],
        acked: 0,
        in_flight_end: 0,
        out_end: 0,
        closing: Closing::default(),
        half_open,
    };
    assert_eq!(verdict(planned(None), None, Some(0), replica()), queued(false));
    assert_eq!(verdict(planned(None), Some(bounds(0, 0)), None, replica()), queued(false));
    let silent = FlowBounds { client_ack: SeqNo(0), ..bounds(0, 0) };
    // The probe was a SYN-ACK, which the client may have by now.
    assert_eq!(verdict(planned(None), Some(silent), None, replica()), queued(true));
}

#[test]
fn a_reset_as_answer_ends_the_connection() {
    let run = |accept| {
        let mut promotion = Promotion::new(vec![planned(accept)], VecDeque::new(), Limits::DEFAULT);
        let mut out = Notes::default();
        promotion.handle_manifest(Nanos(0), &[replica()], &mut out);
        promotion.handle_segment(
            Nanos(0),
            &TcpPacket { flags: Flags::RST, ..segment(0, 0, b"") },
            &mut out,
        );
        assert!(promotion.is_done());
        out.notes
    };
    assert_eq!(run(Some(1)), [Note::Reset(1)]);
    assert_eq!(run(None), [Note::Discard(None, Why::ClientReset)]);
}

#[test]
fn a_reset_heard_before_the_probe_must_be_said_again() {
    let rst = TcpPacket { flags: Flags::RST, ..segment(0, 0, b"") };
    let mut reset = planned(Some(1));
    assert_eq!(reset.tap.accept(Nanos(0), &rst), Verdict::Reset);
    let restored = verdict(reset, Some(bounds(80, 10)), Some(40), replica());
    assert_eq!(restored, self::restored(40, 80, Closing::default()));
}

#[test]
fn bytes_that_acknowledge_what_never_left_are_not_the_clients() {
    let mut promotion = Promotion::new(vec![planned(Some(1))], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    promotion.probes(Nanos(0));
    promotion.handle_bounds(Nanos(0), &[bounds(80, 10)], true, &mut out);
    promotion.handle_segment(Nanos(0), &segment(0, 81, b"forged"), &mut out);
    promotion.handle_segment(Nanos(0), &segment(0, 80, b"real"), &mut out);
    promotion.handle_manifest(Nanos(0), &[replica()], &mut out);
    let Some(Note::Restore { unread, acked, .. }) = out.notes.first() else {
        panic!("{:?}", out.notes);
    };
    assert_eq!((unread.as_slice(), *acked), (&b"real"[..], 80));
}

#[test]
fn probes_use_numbers_that_the_client_has_passed() {
    let mut active = planned(Some(1));
    active.snd_una = (5 << 30) + 7;
    active.tap.accept(Nanos(0), &segment(0, 0, b"abc"));
    let mut promotion = Promotion::new(vec![active], VecDeque::new(), Limits::DEFAULT);
    let probe = promotion.probes(Nanos::from_ms(10))[0];
    assert_eq!((probe.seq, probe.ack), (ISS.plus((5 << 30) + 7), IRS.plus(4)));
    assert_eq!((probe.syn, probe.payload, probe.tsval), (false, Some(0), Some(1110)));
    let mut promotion = Promotion::new(vec![planned(None)], VecDeque::new(), Limits::DEFAULT);
    let probe = promotion.probes(Nanos(0))[0];
    assert_eq!((probe.seq, probe.ack, probe.syn, probe.payload), (ISS, IRS.plus(1), true, None));
    assert_eq!(promotion.next_deadline(), Some(PROBE_WAIT));
}

/// An edge that was restarted has seen what its server sent since.
#[test]
fn a_clock_that_the_edge_has_seen_does_not_go_back() {
    let whole = bounds(80, 10);
    let learnt = FlowBounds { iss: None, ..whole };
    let behind = FlowBounds { tsval: 50, ..learnt };
    let other = FlowBounds { iss: Some(SeqNo(5)), ..whole };
    for (bounds, tsval) in [(whole, 6000), (learnt, 6000), (behind, 1100), (other, 1100)] {
        let mut promotion =
            Promotion::new(vec![planned(Some(1))], VecDeque::new(), Limits::DEFAULT);
        let mut out = Notes::default();
        promotion.handle_manifest(Nanos(0), &[replica()], &mut out);
        promotion.handle_bounds(Nanos(0), &[bounds], true, &mut out);
        promotion.handle_segment(Nanos(0), &segment(0, 40, b""), &mut out);
        assert_eq!(out.tsval, Some(tsval), "{bounds:?}");
    }
}

#[test]
fn input_that_came_in_between_is_neither_lost_nor_doubled() {
    let mut half_read = planned(Some(1));
    half_read.tap.accept(Nanos(0), &segment(0, 0, b"read unread"));
    half_read.tap.stream.consume_to(5);
    half_read.in_bytes = 5;
    let mut promotion = Promotion::new(vec![half_read], VecDeque::new(), Limits::DEFAULT);
    let mut out = Notes::default();
    promotion.handle_segment(Nanos(0), &segment(20, 0, b"beyond a hole"), &mut out);
    promotion.handle_segment(Nanos(0), &segment(11, 60, b" more"), &mut out);
    promotion.handle_manifest(Nanos(0), &[ManifestConn { in_bytes: 5, ..replica() }], &mut out);
    assert!(out.notes.is_empty(), "the edge's bounds may still come");
    promotion.handle_bounds(Nanos::from_ms(50), &[bounds(80, 0)], false, &mut out);
    let [Note::Restore { unread, acked: 60, in_flight_end: 80, .. }] = &out.notes[..] else {
        panic!("{:?}", out.notes)
    };
    assert_eq!(unread, b"unread more");
    assert_eq!((out.rcv_nxt, out.receive_window), (IRS.plus(17), 70_000 - 16));
    assert_eq!((out.tsval, out.peer_window), (Some(6000), 500 << 7));
    assert_eq!(out.reinject, [b"beyond a hole".to_vec()]);
    promotion.handle_segment(Nanos(0), &segment(16, 60, b"late"), &mut out);
    promotion.handle_segment(Nanos(0), &segment(20, 60, b""), &mut out);
    let syn = TcpPacket { flags: Flags::SYN, seq: SeqNo(1), raw: b"syn", ..segment(0, 0, b"") };
    promotion.handle_segment(Nanos(0), &syn, &mut out);
    assert_eq!(promotion.take_late().collect::<Vec<_>>(), [b"late".to_vec()]);
    assert_eq!(promotion.take_syns().collect::<Vec<_>>(), [b"syn".to_vec()]);
}

proptest! {
    /// The rebuilt socket never starts above what the client has, never claims more than the
    /// replica wrote, and honours the advertised window.
    #[test]
    fn a_restored_socket_is_consistent(
        una in 0_u64..100, acked in 0_u64..200, sent in 0_u64..140, answer in proptest::option::of(0_u64..200),
        keep_from in 0_u64..50, shut in 0_u32..2, with_bounds: bool,
    ) {
        let mut conn = planned(Some(1));
        let progress = ConnProgress { conn: ID, snd_una: ISS.plus(1 + una), snd_nxt: ISS.plus(1 + una), right_edge: IRS, tsval: 0, rcv_nxt: IRS };
        conn.tap.note_progress(&progress, una);
        conn.snd_una = una;
        let replica = ManifestConn { keep_from, shut, ..replica() };
        let bounds = with_bounds.then(|| bounds(sent.max(una), acked));
        match verdict(conn, bounds, answer, replica) {
            Note::Restore { acked: from, in_flight_end, out_end, .. } => {
                prop_assert!(keep_from <= from && from <= in_flight_end && in_flight_end <= out_end);
                prop_assert!(from >= una.min(100));
            }
            Note::Discard(_, Why::NeverWritten) => prop_assert!(!with_bounds && answer > Some(100)),
            Note::Discard(_, why) => prop_assert_eq!(why, Why::OutputNotRetained),
            Note::Diverged(Diverged::Output { held, written, .. }) => prop_assert!(held > written),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    /// The table is in memory that the replica can write.
    #[test]
    fn a_table_of_any_numbers_is_judged(
        numbers in any::<[u64; 3]>(), near in any::<[bool; 3]>(), open: bool, shut: u32, eof: bool, fd: i32,
        una in 0_u64..100, with_bounds: bool, answer in proptest::option::of(0_u64..200),
    ) {
        let number = |at: usize| if near[at] { numbers[at] % 200 } else { u64::MAX - numbers[at] % 5 };
        let mut conn = planned(Some(1));
        conn.snd_una = una;
        let [in_bytes, out_bytes, keep_from] = [number(0) % 2, number(1), number(2)];
        let replica = ManifestConn { in_bytes, out_bytes, keep_from, open, shut, eof, fd, ..replica() };
        let bounds = with_bounds.then(|| bounds(una, una));
        if let Note::Restore { acked, in_flight_end, out_end, .. } = verdict(conn, bounds, answer, replica) {
            prop_assert!(acked <= in_flight_end && in_flight_end <= out_end);
        }
    }
}
