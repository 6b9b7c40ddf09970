//! A sender and a receiver with a path between them that loses every fifth cell:
//! the receiver says how many cells it misses, never which, and the sender
//! answers with as many rows that it has not sent before.

use holdfast_code::{Code, Decoder, Progress, ROWS};

const CELLS: usize = 20;
const CELL_LEN: usize = 48;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let code = Code::new(CELLS, CELL_LEN)?;
    let segment: Vec<u8> = (0..code.segment_len()).map(|i| (i * 7) as u8).collect();
    let mut path = Path { sent: 0 };
    let mut decoder = Decoder::new(code);
    let (mut next_row, mut round) = (0, 0);

    while let Progress::Pending(missing) = decoder.progress() {
        round += 1;
        // A code has 256 rows. After the last one the sender begins again: a row
        // that did not arrive the first time is as good as a fresh one.
        let rows: Vec<u8> = (next_row..next_row + missing).map(|row| (row % ROWS) as u8).collect();
        next_row += missing;
        // The rows below CELLS are the segment's own bytes; encoding copies them.
        let mut cells = vec![0; rows.len() * CELL_LEN];
        code.encode(&segment, &rows, &mut cells)?;
        for (&row, cell) in rows.iter().zip(cells.chunks(CELL_LEN)) {
            if path.delivers() {
                decoder.insert(row, cell)?;
            }
        }
        println!("round {round}: {} cells sent, then {:?}", rows.len(), decoder.progress());
    }
    assert_eq!(decoder.segment(), Some(&segment[..]));
    println!("{} bytes arrived in {} cells", segment.len(), path.sent);
    Ok(())
}

/// Stands for a network.
struct Path {
    sent: u32,
}

impl Path {
    fn delivers(&mut self) -> bool {
        self.sent += 1;
        !self.sent.is_multiple_of(5)
    }
}
