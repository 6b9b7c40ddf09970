//! Encoding and decoding allocate nothing, whatever the shape; a decoder
//! allocates when it is made and never again.

use allocation_counter::measure;
use holdfast_code::{Code, Decoder, Dispersal, Kernel, Progress};

/// Shapes that take every path through the code: cells, spare rows, bytes of a cell.
const SHAPES: [(u8, u8, usize); 6] =
    [(30, 3, 48), (188, 19, 48), (10, 4, 1400), (20, 12, 640), (4, 8, 65_536), (128, 128, 7)];

#[test]
fn encoding_and_decoding_allocate_nothing() {
    for (cells, spare, len) in SHAPES {
        for kernel in Kernel::available() {
            let code = Code::new(cells.into(), len).unwrap().with_kernel(kernel);
            let mut segment = vec![7; code.segment_len()];
            let rows: Vec<u8> = (cells..=cells + (spare - 1)).collect();
            let mut out = vec![0; rows.len() * len];
            let count = rows.len().min(cells.into());
            let missing: Vec<u8> = (0..count as u8).collect();
            let found = measure(|| {
                code.encode(&segment, &rows, &mut out).unwrap();
                let rows = &rows[..count];
                code.decode(&mut segment, &missing, rows, &mut out[..count * len]).unwrap();
            });
            assert_eq!(found.count_total, 0, "{cells}+{spare} x {len}, {}", kernel.name());
            assert!(segment.iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn rabins_dispersal_allocates_nothing() {
    let code = Code::new(30, 48).unwrap().with_dispersal(Dispersal::Rabin);
    let mut segment = vec![9; code.segment_len()];
    let rows: Vec<u8> = (0..30).map(|it| it * 3).collect();
    let missing: Vec<u8> = (0..30).collect();
    let mut out = vec![0; rows.len() * 48];
    let found = measure(|| {
        code.encode(&segment, &rows, &mut out).unwrap();
        code.decode(&mut segment, &missing, &rows, &mut out).unwrap();
    });
    assert_eq!(found.count_total, 0);
    assert!(segment.iter().all(|byte| *byte == 9));
}

#[test]
fn a_decoder_allocates_when_it_is_made() {
    let code = Code::new(30, 48).unwrap();
    // All cells have the same content.
    let segment = vec![5; code.segment_len()];
    let mut extra = vec![0; 3 * 48];
    code.encode(&segment, &[30, 31, 32], &mut extra).unwrap();
    let mut decoder = Decoder::new(code);
    let found = measure(|| {
        let spare = (30..33).zip(extra.chunks(48));
        for (row, cell) in spare.chain((3..30).zip(segment.chunks(48))) {
            decoder.insert(row, cell).unwrap();
        }
        assert_eq!(decoder.progress(), Progress::Complete);
        assert_eq!(decoder.segment(), Some(&segment[..]));
    });
    assert_eq!(found.count_total, 0);
}
