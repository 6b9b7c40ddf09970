//! Four members share flows by weight, and one of them leaves: its flows are shared by the others,
//! whose own hardly move.

use holdfast_edge::maglev::{ENTRIES, Share, table};

const MEMBERS: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];

fn main() {
    let shares: Vec<Share<'_>> = (0..)
        .zip(MEMBERS)
        .map(|(number, (name, weight))| Share { number, name: name.as_bytes(), weight })
        .collect();
    let before = table(&shares);
    let after = table(&shares[..3]);
    for (number, (name, weight)) in (0_u8..).zip(MEMBERS) {
        let of = |table: &[u8]| table.iter().filter(|&&it| it == number).count() * 100 / ENTRIES;
        println!(
            "{name}, weight {weight}: {:>2} % of flows, then {:>2} %",
            of(&before),
            of(&after)
        );
    }
    let moved = before.iter().zip(&after).filter(|(was, is)| **was != 3 && was != is).count();
    println!("of flows that were not d's, {} in 1000 have moved", moved * 1000 / ENTRIES);
    assert!(moved * 50 < ENTRIES);
}
