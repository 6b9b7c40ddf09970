use super::*;
use crate::frame::ROW_MIN;
use holdfast_chance::Rng;
use proptest::prelude::*;

const LIMITS: DecoderLimits = DecoderLimits { symbols: 512, bytes: 1 << 20, rows: 64 };

fn symbols(count: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    let symbol = |rng: &mut Rng| {
        let len = 1 + rng.below(200);
        (0..len).map(|_| rng.draw() as u8).collect()
    };
    (0..count).map(|_| symbol(rng)).collect()
}

fn coded(symbols: &[Vec<u8>], first: u64, count: u64, row: u8) -> Vec<u8> {
    let mut sum = Vec::new();
    for seq in first..first + count {
        add_symbol(&mut sum, &symbols[seq as usize], divisor(row, seq), Kernel::best());
    }
    sum
}

/// All that became known, checked byte by byte.
fn check_all(decoder: &mut Decoder, symbols: &[Vec<u8>]) -> Vec<u64> {
    let mut known = Vec::new();
    while let Some((seq, _)) = decoder.poll_learned() {
        if let Some(symbol) = decoder.symbol(seq) {
            assert_eq!(symbol, symbols[seq as usize], "symbol {seq}");
        }
        known.push(seq);
    }
    known.sort_unstable();
    decoder.prune();
    known
}

#[test]
fn any_rows_of_one_window_restore_as_many_symbols() {
    let mut rng = Rng::new(1, 0);
    for missing in 1..=40u64 {
        let symbols = symbols(100, &mut rng);
        let mut decoder = Decoder::new(LIMITS);
        let lost: Vec<u64> = (0..missing).map(|i| 7 + 2 * i).collect();
        for seq in (0..100).filter(|seq| !lost.contains(seq)) {
            assert!(decoder.symbol_arrives(seq, &symbols[seq as usize]));
        }
        check_all(&mut decoder, &symbols);
        for i in 0..missing {
            assert_eq!(decoder.rows_waiting() as u64, i);
            let row = ROW_MIN + (i * 3 % 128) as u8;
            assert!(decoder.row_arrives(0, 100, row, &coded(&symbols, 0, 100, row)));
        }
        assert_eq!(check_all(&mut decoder, &symbols), lost);
        assert_eq!((decoder.cumulative(), decoder.rows_waiting()), (100, 0));
    }
}

/// Symbols and rows of different windows in any order, with losses and repeats.
fn shuffled_run(seed: u64, loss: f64, row_share: f64) -> usize {
    let mut rng = Rng::new(seed, 7);
    let symbols = symbols(600, &mut rng);
    let mut decoder = Decoder::new(LIMITS);
    let mut known = Vec::new();
    for seq in 0..600u64 {
        if !rng.chance(loss) {
            decoder.symbol_arrives(seq, &symbols[seq as usize]);
        }
        if rng.chance(row_share) {
            let count = 1 + rng.below(60.min(seq + 1));
            let first = seq + 1 - count;
            let row = ROW_MIN + rng.below(128) as u8;
            let coded = coded(&symbols, first, count, row);
            decoder.row_arrives(first, count as u8, row, &coded);
            if rng.one_in(5) {
                assert!(!decoder.row_arrives(first, count as u8, row, &coded));
            }
        }
        if rng.one_in(50) {
            decoder.give_up_before(seq.saturating_sub(100));
        }
        known.extend(check_all(&mut decoder, &symbols));
        assert_eq!(decoder.counts.contradictory, 0);
        let kept: usize = (0..600).filter_map(|seq| decoder.symbol(seq)).map(<[u8]>::len).sum();
        let rows: usize = decoder.rows.iter().map(|row| row.coded.len()).sum();
        assert_eq!(decoder.bytes(), kept + rows);
    }
    let before = known.len();
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), before, "a symbol was told twice");
    known.len()
}

proptest! {
    #[test]
    fn rows_of_different_windows_never_give_a_wrong_byte(seed: u64, loss in 0.0..0.6, rows in 0.0..1.0) {
        shuffled_run(seed, loss, rows);
    }

    #[test]
    fn garbage_keeps_to_the_limits(
        input in prop::collection::vec(
            (0u64..2000, 1u8..=128, ROW_MIN..=255, prop::collection::vec(any::<u8>(), 3..40), 0u8..4),
            1..200,
        )
    ) {
        let limits = DecoderLimits { symbols: 50, bytes: 500, rows: 5 };
        let mut decoder = Decoder::new(limits);
        for (seq, count, row, bytes, what) in input {
            match what {
                0 => { decoder.symbol_arrives(seq, &bytes); }
                1 => decoder.give_up_before(seq),
                _ => { decoder.row_arrives(seq, count, row, &bytes); }
            }
            while decoder.poll_learned().is_some() {}
            decoder.prune();
            prop_assert!(decoder.slots.len() <= 50 && decoder.rows.len() <= 5);
            prop_assert!(decoder.bytes() <= 500);
        }
    }
}

#[test]
fn a_third_more_rows_make_good_for_a_tenth_lost() {
    let known: usize = (0..20).map(|seed| shuffled_run(seed, 0.1, 0.33)).sum();
    assert!(known as f64 > 0.995 * 12_000.0, "{known}");
}

#[test]
fn what_is_solvable_is_solved_before_all_is() {
    let symbols = symbols(10, &mut Rng::new(3, 0));
    let mut decoder = Decoder::new(LIMITS);
    // 0 and 1 and 2 are missing; rows over 0..3 and over 1..3 give 0 without 1 and 2 only if the
    // second is the same combination of them.
    let (row, other) = (200, 201);
    assert!(decoder.row_arrives(0, 3, row, &coded(&symbols, 0, 3, row)));
    assert!(decoder.row_arrives(1, 2, row, &coded(&symbols, 1, 2, row)));
    assert_eq!(check_all(&mut decoder, &symbols), [0]);
    assert!(decoder.row_arrives(1, 2, other, &coded(&symbols, 1, 2, other)));
    assert_eq!(check_all(&mut decoder, &symbols), [1, 2]);
}

#[test]
fn a_row_that_contradicts_is_counted_and_tells_nothing() {
    let symbols = symbols(4, &mut Rng::new(4, 0));
    let mut decoder = Decoder::new(LIMITS);
    for seq in 0..4 {
        decoder.symbol_arrives(seq, &symbols[seq as usize]);
    }
    check_all(&mut decoder, &symbols);
    let mut wrong = coded(&symbols, 0, 4, 130);
    wrong[5] ^= 1;
    assert!(!decoder.row_arrives(0, 4, 130, &wrong));
    assert_eq!(decoder.counts.contradictory, 1);
    assert_eq!(decoder.poll_learned(), None);
}

#[test]
fn a_leap_of_the_sender_leaves_the_past_behind() {
    let mut decoder = Decoder::new(LIMITS);
    decoder.symbol_arrives(0, b"a");
    decoder.symbol_arrives(5_000_000, b"b");
    assert_eq!(decoder.top(), 5_000_001);
    assert!(decoder.cumulative() > 5_000_000 - 513);
}

#[test]
fn a_hole_that_is_filled_late_is_told_of() {
    let mut decoder = Decoder::new(LIMITS);
    for seq in 1..400 {
        decoder.symbol_arrives(seq, b"x");
        while decoder.poll_learned().is_some() {}
        decoder.prune();
    }
    decoder.symbol_arrives(0, b"first");
    assert_eq!(
        (decoder.poll_learned(), decoder.symbol(0)),
        (Some((0, How::Plain)), Some(&b"first"[..]))
    );
}
