//! The sliding decoder: symbols and rows that are true, and those that fit nothing.

use super::Draw;
use crate::decoder::{Decoder, DecoderLimits, add_symbol, divisor};
use crate::frame::{REPAIR_COUNT_MAX, ROW_MIN};
use holdfast_code::Kernel;

const LIMITS: DecoderLimits = DecoderLimits { symbols: 96, bytes: 6000, rows: 8 };
/// Longest symbol, and longest coded bytes.
const SYMBOL_BYTES_MAX: usize = 300;

/// A symbol as an honest sender has it.
fn truth(seq: u64) -> Vec<u8> {
    let len = 1 + seq.wrapping_mul(2_654_435_761) % 90;
    (0..len).map(|at| (seq.wrapping_mul(31).wrapping_add(at * at)) as u8).collect()
}

/// Symbols, rows and floors, in any order and at any place. As long as all of them are true, what
/// becomes known is; whatever they are, no limit is passed. Whether a row was solved.
///
/// # Panics
/// If a wrong byte is given out, or more is kept than may be.
pub fn decoder(bytes: &[u8]) -> bool {
    let mut draw = Draw(bytes);
    let mut decoder = Decoder::new(LIMITS);
    let (mut is_honest, mut has_solved) = (true, false);
    while let Some(deed) = draw.deed() {
        let seq = draw.near(decoder.top()) & (u64::MAX >> 2);
        match deed % 16 {
            0..=5 => drop(decoder.symbol_arrives(seq, &truth(seq))),
            6..=11 => {
                let count = 1 + draw.byte() % REPAIR_COUNT_MAX as u8;
                let (count, row) = (count.min(1 + deed / 4), draw.byte() | ROW_MIN);
                let mut coded = Vec::new();
                for at in seq..seq + u64::from(count) {
                    add_symbol(&mut coded, &truth(at), divisor(row, at), Kernel::best());
                }
                decoder.row_arrives(seq, count, row, &coded);
            }
            12 => decoder.give_up_before(seq),
            13 => {
                is_honest = false;
                let (count, row) =
                    (1 + draw.byte() % REPAIR_COUNT_MAX as u8, draw.byte() | ROW_MIN);
                let mut coded = draw.body();
                coded.truncate(SYMBOL_BYTES_MAX);
                coded.resize(coded.len().max(3), 7);
                decoder.row_arrives(seq, count, row, &coded);
            }
            14 => {
                is_honest = false;
                let mut symbol = draw.body();
                symbol.truncate(SYMBOL_BYTES_MAX);
                symbol.push(1);
                decoder.symbol_arrives(seq, &symbol);
            }
            _ => {}
        }
        while let Some((seq, how)) = decoder.poll_learned() {
            has_solved |= how == crate::decoder::How::Decoded;
            if let Some(symbol) = decoder.symbol(seq).filter(|_| is_honest) {
                assert_eq!(symbol, truth(seq), "symbol {seq}");
            }
        }
        decoder.prune();
        assert!(decoder.rows_waiting() <= LIMITS.rows);
        assert!(decoder.top() - decoder.cumulative() <= LIMITS.symbols as u64);
        assert!(decoder.bytes() <= LIMITS.bytes, "{} bytes", decoder.bytes());
    }
    has_solved
}
