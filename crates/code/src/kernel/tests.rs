use super::{Cauchy, Explicit, Kernel, OUTPUTS_MAX, Task};
use crate::field::divide;

/// Random bytes by SplitMix64 (Steele, Lea, Flood 2014), so that the tests need no crate for them.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u8
    };
    (0..len).map(|_| draw()).collect()
}

/// Lengths in bytes: all up to a few vectors, and then the neighbours of multiples.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=200).chain([255, 256, 257, 319, 383, 384, 385, 1400, 4095, 4097])
}

#[test]
fn sums_are_those_of_the_formula_on_every_kernel() {
    let columns = [0, 3, 7, 1, 11];
    let rows = [12, 200, 255, 31, 64, 65, 66, 67];
    for len in [1, 8, 15, 16, 17, 48, 50, 63, 64, 65, 130] {
        let source = noise(len as u64, 12 * len);
        for outputs in 1..=OUTPUTS_MAX {
            let mut expected = vec![0; outputs * len];
            for (o, out) in expected.chunks_mut(len).enumerate() {
                for (at, byte) in out.iter_mut().enumerate() {
                    *byte = columns.iter().fold(0, |sum, column| {
                        sum ^ divide(source[usize::from(*column) * len + at], rows[o] ^ column)
                    });
                }
            }
            for kernel in Kernel::available() {
                let mut out = vec![0xaa; outputs * len];
                let rows = Cauchy::new(&rows);
                kernel.run(&Task::disperse(len, &source, &columns, rows, &mut out, outputs));
                assert_eq!(out, expected, "{} with {len} bytes", kernel.name());
            }
        }
    }
}

/// The result of every kind of task on one kernel; the segment begins `from` bytes after the start
/// of the memory.
fn everything(kernel: Kernel, len: usize, outputs: usize, from: usize) -> Vec<u8> {
    let mut room = noise(len as u64, from + 20 * len);
    let segment = &mut room[from..];
    let mut sums = noise(7 + len as u64, outputs * len);
    let columns = [0, 2, 4, 6, 8, 10, 12];
    let rows = [20, 99, 21, 254, 77, 128, 22, 250];
    kernel.run(&Task::accumulate(len, segment, &columns, Cauchy::new(&rows), &mut sums, outputs));
    let matrix = noise(3, OUTPUTS_MAX * OUTPUTS_MAX);
    let matrix: [[u8; OUTPUTS_MAX]; OUTPUTS_MAX] =
        core::array::from_fn(|k| core::array::from_fn(|o| matrix[OUTPUTS_MAX * k + o]));
    let explicit = Explicit(&matrix);
    let places = &[1, 19, 3, 17, 5, 15, 7, 13][..outputs];
    kernel.run(&Task::repair(len, segment, &columns, places, explicit, &sums, &matrix));
    let mut target = vec![0; 20 * len];
    kernel.run(&Task::place(len, segment, &columns, Cauchy::new(&rows), &mut target, places));
    [&*segment, &sums, &target].concat()
}

#[test]
fn every_kernel_gives_the_bytes_of_the_portable_one() {
    let portable = Kernel::available().last().expect("there is always one");
    assert_eq!(portable.name(), "portable");
    for len in lengths() {
        for outputs in 1..=OUTPUTS_MAX {
            let expected = everything(portable, len, outputs, 0);
            for kernel in Kernel::available() {
                let name = kernel.name();
                let found = everything(kernel, len, outputs, 0);
                assert!(found == expected, "{name}, {len}, {outputs}");
            }
        }
    }
}

/// Long cells that begin alike are read by cache lines, wherever they begin.
#[test]
fn long_cells_may_begin_anywhere() {
    let portable = Kernel::available().last().expect("there is always one");
    for len in [512, 576, 640, 768, 1024] {
        for from in (0..64).step_by(7).chain([1, 48, 62, 64]) {
            let expected = everything(portable, len, 4, from);
            for kernel in Kernel::available() {
                let found = everything(kernel, len, 4, from);
                assert!(found == expected, "{}, {len}, {from}", kernel.name());
            }
        }
    }
}

#[test]
fn nothing_outside_of_the_cells_is_touched() {
    for kernel in Kernel::available() {
        for len in (1..=130).chain([640, 1400]) {
            let source = noise(1, 3 * len);
            let mut room = vec![0x5a; 2 * len + 64];
            let rows = Cauchy::new(&[3, 4]);
            kernel.run(&Task::disperse(len, &source, &[0, 1, 2], rows, &mut room, 2));
            assert!(room[2 * len..].iter().all(|byte| *byte == 0x5a), "{}", kernel.name());
        }
    }
}
