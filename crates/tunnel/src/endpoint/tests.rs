//! A peer that has the keys, and lies.

use super::*;
use crate::frame::{Ack, Frame, LaneAck, LossCounts, ROW_MIN};
use crate::item::Item;
use crate::wire::truncated;
use crate::{Config, Ecn, Limits};
use allocation_counter::measure;
use holdfast_chance::Rng;

const MS: Duration = Duration::from_millis(1);
/// What holds a byte that a limit counts: the vectors around it grow by doubling.
const AROUND: usize = 3;

struct Liar {
    end: Endpoint,
    now: Duration,
    number: u64,
    /// Datagrams of the end, and bytes of plaintext in them.
    sent: u64,
    sent_bytes: u64,
}

impl Liar {
    fn new(limits: Limits) -> Self {
        let config = Config { limits, ..Config::default() };
        let end = Endpoint::new(config, 1, Duration::ZERO);
        Self { end, now: Duration::ZERO, number: 0, sent: 0, sent_bytes: 0 }
    }

    fn says(&mut self, frames: &[Frame<'_>]) -> Result<(), Malformed> {
        let mut plaintext = Vec::new();
        for frame in frames {
            frame.put(&mut plaintext, false);
        }
        self.number += 1;
        self.end.handle_datagram(self.number - 1, &plaintext, Ecn::NotCapable, self.now)
    }

    fn says_items(&mut self, seq: u64, items: &[Item<'_>]) {
        let mut symbol = Vec::new();
        for item in items {
            item.put(&mut symbol, false);
        }
        let seq = truncated(seq);
        let frame = Frame::Data { lane: 2, patient: true, seq, symbol: &symbol };
        self.says(&[frame]).expect("it is understood");
    }

    /// Lets time pass; what the end has to say goes nowhere.
    fn wait(&mut self, time: Duration) {
        self.now += time;
        let mut out = Vec::new();
        while self.end.poll_datagram(self.now, &mut out).is_some() {
            self.sent += 1;
            self.sent_bytes += out.len() as u64;
        }
        while self.end.poll_inside(self.now).is_some() {}
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_refused_and_changes_nothing() {
    let mut liar = Liar::new(Limits::default());
    let stream = liar.end.stream_open(Class::Bulk).expect("a stream");
    liar.end.stream_write(stream, &[7; 5000]).expect("room");
    liar.wait(MS);
    let (before, sent) = (liar.end.report().sending, liar.sent);
    assert!(sent > 0);
    for beyond in [0, 1, 1000, 1 << 22] {
        let ack = Ack { highest: truncated(sent + beyond), bytes: Some(1 << 30), ..Ack::default() };
        assert_eq!(liar.says(&[Frame::Ack(ack)]), Err(Malformed::AckOfUnsent(sent + beyond)));
    }
    assert_eq!(liar.end.report().sending, before);
    // A real number, symbols that are not there yet, and bytes that were not sent.
    let beyond = LaneAck { cumulative: truncated(5000), rows: u8::MAX, bitmap: &[u8::MAX; 255] };
    let lanes = [Some(beyond); LANES];
    let highest = truncated(sent - 1);
    liar.wait(MS * 10);
    let ack = Ack { highest, bytes: Some(u32::MAX / 2), lanes, ..Ack::default() };
    liar.says(&[Frame::Ack(ack)]).expect("it is understood");
    // A window of the least size in a round trip of 10 ms, as for who says nothing of bytes.
    let rate = liar.end.report().sending.rate_bytes_per_s;
    assert!((2.3e6..2.5e6).contains(&rate), "{rate}");
    // Nothing of it is taken for delivered: all is sent once more.
    (0..2000).for_each(|_| liar.wait(MS));
    assert!(liar.sent_bytes > 2 * 5000, "{} bytes", liar.sent_bytes);
}

#[test]
fn a_peer_that_says_all_is_lost_gets_no_more_redundancy_than_the_cap() {
    let mut liar = Liar::new(Limits::default());
    for count in 0..4000u64 {
        let _ = liar.end.handle_message(1, Class::ALL[count as usize % 3], &[7; 300], liar.now);
        liar.wait(MS);
        let all = truncated(liar.sent);
        let loss = LossCounts { settled: all, lost: all, runs: 1, burst_100us: u64::MAX >> 1 };
        let highest = truncated(liar.sent.saturating_sub(1));
        let ack = Ack { highest, loss: Some(loss), ..Ack::default() };
        liar.says(&[Frame::Ack(ack)]).expect("it is understood");
    }
    let sending = liar.end.report().sending;
    assert!(sending.loss > 0.9, "it is believed: {sending:?}");
    // Beside what may be saved up, which is 64 KiB.
    let allowed = 0.35 * (sending.data_bytes + 52 * sending.datagrams) as f64 + 65_536.0;
    assert!(sending.redundant_bytes as f64 <= allowed, "{sending:?}");
}

/// What counts as lost again and again is sent again as often as the peer asks, which is its own path's
/// affair, but nothing piles up: one question brings each symbol once.
#[test]
fn a_peer_that_asks_for_the_same_without_end_gets_each_symbol_once_for_each_time() {
    let mut liar = Liar::new(Limits { window_symbols: 64, ..Limits::default() });
    let stream = liar.end.stream_open(Class::Bulk).expect("a stream");
    liar.end.stream_write(stream, &[7; 1 << 20]).expect("room");
    liar.wait(MS);
    for _ in 0..2000 {
        let before = liar.sent;
        let lane = LaneAck { cumulative: 0, rows: 0, bitmap: &[] };
        let lanes = [Some(lane); LANES];
        let ack = Ack { highest: truncated(liar.sent - 1), lanes, ..Ack::default() };
        // Ten times the same says no more than once.
        for _ in 0..10 {
            liar.says(&[Frame::Ack(ack.clone())]).expect("it is understood");
        }
        assert!(liar.end.sender.lanes[2].due_count() <= 2 * 64);
        liar.wait(MS);
        // The window, and acknowledgements.
        assert!(liar.sent - before <= 64 + 4, "{} datagrams", liar.sent - before);
    }
}

/// Rows over windows that nothing else fits, most of them contradictions. What an honest sender says
/// afterwards comes through.
#[test]
fn a_window_full_of_rows_that_fit_nothing_is_bounded_and_passes() {
    let limits = Limits { window_bytes: 1 << 20, ..Limits::default() };
    let mut liar = Liar::new(limits);
    let mut rng = Rng::new(9, 0);
    let junk: Vec<u8> = (0..1400).map(|_| rng.draw() as u8).collect();
    let found = measure(|| {
        for count in 0..20_000u64 {
            let first = truncated(count / 8 + rng.below(3000));
            let (span, row) = (1 + rng.below(128) as u8, ROW_MIN + rng.below(128) as u8);
            let coded = &junk[rng.below(700) as usize..];
            let lane = count as usize % LANES;
            let frame = Frame::Repair { lane, patient: true, first, count: span, row, coded };
            liar.says(&[frame]).expect("it is understood");
            liar.wait(MS / 20);
        }
    });
    let bound = AROUND * (LANES * (1 << 20) + limits.inside_bytes + (2 << 20));
    assert!(found.bytes_max < bound as u64, "{} of {bound} bytes", found.bytes_max);
    let next = liar.end.decoders[2].top() + 10;
    liar.says(&[Frame::Floor { lane: 2, seq: truncated(next) }]).expect("it is understood");
    let message = Item::Message { flow: 5, bytes: b"honest" };
    liar.says_items(next, &[message]);
    let mut given = std::iter::from_fn(|| liar.end.poll_inside(liar.now));
    assert!(given.any(|it| it == Inside::Message { flow: 5, bytes: b"honest".to_vec() }));
}

/// Streams that are opened and broken, or filled with pieces behind a hole, by a peer that never
/// acknowledges anything.
#[test]
fn streams_without_end_are_bounded() {
    let limits =
        Limits { streams: 8, stream_bytes: 1 << 20, streams_bytes: 4 << 20, ..Limits::default() };
    let mut liar = Liar::new(limits);
    let found = measure(|| {
        for count in 0..60_000u64 {
            // Opened, and then the peer writes where it may not.
            let stream = 2 * count;
            let beyond =
                Item::Data { stream: stream ^ 1, offset: 1 << 40, end: false, bytes: b"x" };
            liar.says_items(count, &[beyond]);
            liar.wait(MS / 10);
        }
    });
    assert!(found.bytes_max < 4 << 20, "{} bytes of streams that were broken", found.bytes_max);

    let mut liar = Liar::new(limits);
    let found = measure(|| {
        for count in 0..200_000u64 {
            let (stream, offset) = (1 + 2 * (count % 8), 1 + count / 8 * 2);
            liar.says_items(count, &[Item::Data { stream, offset, end: false, bytes: b"x" }]);
            liar.wait(MS / 10);
        }
    });
    // What is promised to all of them, held twice at most, and what the decoder keeps.
    let bound = AROUND * (2 * (limits.streams_bytes + 8 * (256 << 10)) + (8 << 20));
    assert!(found.bytes_max < bound as u64, "{} of {bound} bytes", found.bytes_max);
}
