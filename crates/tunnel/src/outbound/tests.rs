use super::*;
use crate::decoder::{Decoder, DecoderLimits};
use crate::wire::truncated;
use holdfast_chance::Rng;

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Patience = Patience {
    answer: Duration::from_millis(21),
    give_up: Duration::from_millis(100),
    quiet_at: Duration::from_millis(61),
};
const AT_ONCE: Slack = Slack::Asked(Duration::ZERO);

/// A lane that has sent these many symbols, a datagram each.
fn sent(count: u64) -> Outbound {
    let mut lane = Outbound::new();
    for number in 0..count {
        lane.push(vec![number as u8; 20], Vec::new(), number, AT_ONCE, Duration::ZERO);
        lane.expect_answer(PATIENCE, AT_ONCE, Duration::ZERO);
    }
    lane
}

fn ack(cumulative: u64, rows: u8, bitmap: &[u8]) -> LaneAck<'_> {
    LaneAck { cumulative: truncated(cumulative), rows, bitmap }
}

#[test]
fn what_was_overtaken_and_is_not_known_is_lost() {
    let mut lane = sent(8);
    // 0, 1, 3 and 5 are known; datagrams 6 and 7 may still come.
    let verdict = lane.acknowledged(&ack(2, 0, &[0b101]), 6, true, PATIENCE, 20 * MS);
    assert_eq!(verdict.lost, [2, 4]);
    lane.queue(&[2, 4]);
    let again = lane.acknowledged(&ack(2, 0, &[0b101]), 6, true, PATIENCE, 20 * MS);
    assert_eq!(again.lost, [], "what is queued is not lost twice");
    lane.carried(2, 1, 8, 20 * MS);
    lane.carried(4, 1, 9, 20 * MS);
    let later = lane.acknowledged(&ack(8, 0, &[]), 10, true, PATIENCE, 40 * MS);
    assert_eq!((later.lost.len(), lane.span(), lane.check_at()), (0, 0, None));
}

#[test]
fn rows_for_symbols_on_their_way_again_help_no_others() {
    let mut lane = sent(8);
    lane.acknowledged(&ack(2, 0, &[]), 3, true, PATIENCE, 20 * MS);
    lane.queue(&[2]);
    lane.carried(2, 1, 8, 20 * MS);
    // The receiver holds a row over 2; 3 was lost after it.
    let verdict = lane.acknowledged(&ack(2, 1, &[]), 4, true, PATIENCE, 21 * MS);
    assert_eq!((verdict.lost, verdict.rows), (vec![3], 0));
}

#[test]
fn a_liar_cannot_make_it_send_what_it_never_had() {
    let mut rng = Rng::new(7, 0);
    let mut lane = sent(50);
    for _ in 0..2000 {
        let bitmap: Vec<u8> = (0..rng.below(256)).map(|_| rng.draw() as u8).collect();
        let is_new = rng.one_in(2);
        let lie = ack(rng.below(200), rng.draw() as u8, &bitmap);
        let verdict = lane.acknowledged(&lie, rng.below(1 << 30), is_new, PATIENCE, 20 * MS);
        assert!(verdict.lost.iter().all(|seq| lane.symbol(*seq).is_some()));
        lane.queue(&verdict.lost);
    }
    assert!(lane.next() == 50 && lane.span() <= 50);
}

#[test]
fn without_news_few_are_sent_again_less_and_less_often_and_then_none() {
    let mut lane = sent(20);
    assert_eq!(lane.check(PATIENCE, 20 * MS), []);
    let (mut sent_again, mut now) = (0, Duration::ZERO);
    while let Some(at) = lane.check_at() {
        assert!(at > now, "looks again at once");
        now = at;
        let overdue = lane.check(PATIENCE, now);
        assert!(overdue.len() <= RESENT_PER_TIMEOUT);
        lane.queue(&overdue);
        for seq in overdue {
            lane.carried(seq, 1, 100, now);
            lane.expect_answer(PATIENCE, AT_ONCE, now);
            sent_again += 1;
        }
    }
    assert!((1..=20).contains(&sent_again), "{sent_again}");
    assert_eq!((lane.span(), lane.given_up, lane.floor()), (0, 20, Some(20)));
}

#[test]
fn rows_are_what_the_decoder_understands() {
    let mut lane = sent(10);
    let limits = DecoderLimits { symbols: 100, bytes: 10_000, rows: 10 };
    let mut decoder = Decoder::new(limits);
    for seq in (0..10).filter(|seq| ![3, 7].contains(seq)) {
        decoder.symbol_arrives(seq, &[seq as u8; 20]);
    }
    for _ in 0..2 {
        let (row, coded) = lane.encode(2, 8).unwrap();
        assert!(decoder.row_arrives(2, 8, row, &coded));
    }
    assert_eq!((decoder.symbol(3), decoder.symbol(7)), (Some(&[3; 20][..]), Some(&[7; 20][..])));
    assert_eq!(lane.encode(5, 6), None);
}
