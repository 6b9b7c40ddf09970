use super::*;
use crate::Decoder;
use crate::decoder::Progress;
use proptest::prelude::*;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| draw()).collect()
}

/// A code for `m` cells, with its segment and the cells of the first `n` rows.
fn dispersed(dispersal: Dispersal, m: usize, n: usize, len: usize) -> (Code, Vec<u8>, Vec<u8>) {
    let code = Code::new(m, len).expect("a shape").with_dispersal(dispersal);
    let segment = noise((m * 1000 + len) as u64, m * len);
    let mut cells = vec![0; n * len];
    code.encode(&segment, &EVERY[..n], &mut cells).expect("it fits");
    (code, segment, cells)
}

fn decodes(code: Code, segment: &[u8], cells: &[u8], rows: impl IntoIterator<Item = u8>) -> bool {
    let mut decoder = Decoder::new(code);
    for row in rows {
        let start = usize::from(row) * code.cell_len();
        decoder.insert(row, &cells[start..start + code.cell_len()]).expect("it fits");
    }
    decoder.segment() == Some(segment)
}

#[test]
fn any_m_of_n_cells_make_the_segment_for_every_subset_up_to_14() {
    for dispersal in [Dispersal::Systematic, Dispersal::Rabin] {
        for n in 1..=14usize {
            for subset in 1u32..1 << n {
                let m = subset.count_ones() as usize;
                let (code, segment, cells) = dispersed(dispersal, m, n, 3);
                let rows = (0..n as u8).filter(|row| subset >> row & 1 == 1);
                assert!(decodes(code, &segment, &cells, rows), "{dispersal:?} {m} {subset:b}");
            }
        }
    }
}

#[test]
fn the_rows_furthest_apart_work_too() {
    for m in [1, 2, 64, 127, 128, 129, 255, 256] {
        for dispersal in [Dispersal::Systematic, Dispersal::Rabin] {
            let (code, segment, cells) = dispersed(dispersal, m, ROWS, 17);
            let last = (0..=255u8).rev().take(m);
            assert!(decodes(code, &segment, &cells, last), "{m}");
        }
    }
}

#[test]
fn rows_are_those_of_isa_l() {
    // As in gf_gen_cauchy1_matrix, row i ≥ m has the inverse of i ^ j in column j.
    let (_, segment, cells) = dispersed(Dispersal::Systematic, 5, 256, 1);
    for row in 5..=255u8 {
        let sum = (0..5u8).fold(0, |sum, j| {
            let inverse = (1..=255).find(|inverse| crate::field::multiply(*inverse, row ^ j) == 1);
            sum ^ crate::field::multiply(segment[usize::from(j)], inverse.expect("not 0"))
        });
        assert_eq!(cells[usize::from(row)], sum);
    }
}

#[test]
fn shapes_at_the_limits_are_refused_and_the_others_are_not() {
    assert_eq!(Code::new(0, 1), Err(CodeError::Cells(0)));
    assert_eq!(Code::new(257, 1), Err(CodeError::Cells(257)));
    assert_eq!(Code::new(1, 0), Err(CodeError::CellLen(0)));
    assert_eq!(Code::new(1, CELL_LEN_MAX + 1), Err(CodeError::CellLen(CELL_LEN_MAX + 1)));
    let (code, segment, cells) = dispersed(Dispersal::Systematic, 2, 4, CELL_LEN_MAX);
    assert!(decodes(code, &segment, &cells, [3, 2]));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (code, segment, cells) = dispersed(Dispersal::Systematic, 4, 8, 2);
    let mut room = [0; 2];
    assert_eq!(
        code.encode(&segment[1..], &[4], &mut room),
        Err(EncodeError::SegmentLen { expected: 8, actual: 7 })
    );
    assert_eq!(
        code.encode(&segment, &[4, 5], &mut room),
        Err(EncodeError::RoomLen { expected: 4, actual: 2 })
    );
    let decode = |missing: &[u8], rows: &[u8], len: usize| {
        let (mut copy, mut used) = (segment.clone(), cells[..len].to_vec());
        let result = code.decode(&mut copy, missing, rows, &mut used);
        assert!(result.is_ok() || copy == segment && used == cells[..len]);
        result
    };
    assert_eq!(decode(&[0], &[4, 5], 4), Err(DecodeError::Count { missing: 1, rows: 2 }));
    assert_eq!(decode(&[0], &[4], 4), Err(DecodeError::CellsLen { expected: 2, actual: 4 }));
    assert_eq!(decode(&[4], &[4], 2), Err(DecodeError::Missing(4)));
    assert_eq!(decode(&[1, 1], &[4, 5], 4), Err(DecodeError::Missing(1)));
    assert_eq!(decode(&[1, 2], &[5, 5], 4), Err(DecodeError::Row(5)));
    assert_eq!(decode(&[1], &[2], 2), Err(DecodeError::Row(2)));
    assert_eq!(decode(&[], &[], 0), Ok(()));
    let rabin = code.with_dispersal(Dispersal::Rabin);
    assert_eq!(
        rabin.decode(&mut [0; 8], &[1], &[5], &mut [0; 2]),
        Err(DecodeError::NothingIsPlain(4))
    );
}

#[test]
fn too_few_cells_say_so_and_give_nothing() {
    let (code, segment, cells) = dispersed(Dispersal::Systematic, 6, 10, 5);
    let mut decoder = Decoder::new(code);
    for (sent, row) in [9u8, 9, 0, 7, 0, 3].into_iter().enumerate() {
        let start = usize::from(row) * 5;
        decoder.insert(row, &cells[start..start + 5]).expect("it fits");
        assert_eq!(decoder.segment(), None, "after {sent}");
    }
    assert_eq!(decoder.progress(), Progress::Pending(2));
    assert!(decoder.insert(8, &cells[..4]).is_err());
    assert!(!decoder.has(8));
    assert!(decoder.insert(8, &cells[40..45]).is_ok());
    assert_eq!(decoder.insert(1, &cells[5..10]), Ok(Progress::Complete));
    // A cell that comes too late is ignored.
    assert_eq!(decoder.insert(2, &[0; 5]), Ok(Progress::Complete));
    assert_eq!(decoder.segment(), Some(&segment[..]));
    decoder.clear();
    assert_eq!((decoder.progress(), decoder.segment()), (Progress::Pending(6), None));
}

/// Some different rows in any order.
fn rows(n: usize) -> impl Strategy<Value = Vec<u8>> {
    Just((0..n).map(|row| row as u8).collect::<Vec<_>>()).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_m_of_256_cells_in_any_order_on_any_kernel(
        order in rows(ROWS),
        m in 1..=ROWS,
        len in 1..200usize,
        is_rabin: bool,
    ) {
        let dispersal = if is_rabin { Dispersal::Rabin } else { Dispersal::Systematic };
        let (code, segment, cells) = dispersed(dispersal, m, ROWS, len);
        for kernel in Kernel::available() {
            let mut again = vec![0; ROWS * len];
            let code = code.with_kernel(kernel);
            code.encode(&segment, &EVERY, &mut again).expect("it fits");
            prop_assert!(again == cells, "{}", kernel.name());
            prop_assert!(decodes(code, &segment, &cells, order[..m].iter().copied()));
        }
    }

    #[test]
    fn rows_asked_for_out_of_order_are_the_same_rows(order in rows(60), m in 1..=60usize) {
        let (code, segment, cells) = dispersed(Dispersal::Systematic, m, 60, 9);
        let mut out = vec![0; 60 * 9];
        code.encode(&segment, &order, &mut out).expect("it fits");
        for (row, cell) in order.iter().zip(out.chunks(9)) {
            prop_assert_eq!(cell, &cells[usize::from(*row) * 9..][..9]);
        }
    }
}
