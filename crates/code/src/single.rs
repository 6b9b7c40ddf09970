//! Sums over single cells, for codes whose cells do not lie side by side or whose rows reach over
//! different cells: sliding windows.
//!
//! As everywhere in this crate, a coefficient is named by its divisor: 1/d, and the divisor 0
//! stands for the coefficient 0.

use crate::field;
use crate::kernel::{Explicit, Kernel, OUTPUTS_MAX, Task};

/// The quotient a/d in GF(2^8); 0 if either is 0.
#[must_use]
pub const fn quotient(a: u8, d: u8) -> u8 {
    field::divide(a, d)
}

/// The product of two elements of GF(2^8).
#[must_use]
pub const fn product(a: u8, b: u8) -> u8 {
    field::multiply(a, b)
}

impl Kernel {
    /// Adds `cell` / `divisor` to the first bytes of `sum`: a cell that is shorter than the sum
    /// counts as one with zeros behind it. What of a cell is longer than the sum is left out.
    pub fn add_quotient(self, sum: &mut [u8], cell: &[u8], divisor: u8) {
        let len = sum.len().min(cell.len());
        if len == 0 || divisor == 0 {
            return;
        }
        let mut divisors = [[0; OUTPUTS_MAX]];
        divisors[0][0] = divisor;
        let (sum, cell) = (&mut sum[..len], &cell[..len]);
        self.run(&Task::accumulate(len, cell, &[0], Explicit(&divisors), sum, 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn sums_of_single_cells_are_the_rows_of_the_code_in_every_kernel() {
        const CELL_LEN: usize = 77;
        let cells: Vec<u8> = (0..5 * CELL_LEN).map(|i| (i * i + 3 * i) as u8).collect();
        let mut expected = vec![0; CELL_LEN];
        Code::new(5, CELL_LEN).unwrap().encode(&cells, &[200], &mut expected).unwrap();
        for kernel in Kernel::available() {
            let mut sum = vec![0; CELL_LEN];
            for (column, cell) in cells.chunks(CELL_LEN).enumerate() {
                kernel.add_quotient(&mut sum, cell, 200 ^ column as u8);
            }
            assert_eq!(sum, expected, "{}", kernel.name());
        }
    }

    #[test]
    fn lengths_that_differ_and_the_coefficient_zero_are_allowed() {
        let kernel = Kernel::best();
        let mut sum = [1, 2, 3];
        kernel.add_quotient(&mut sum, &[7], 1);
        kernel.add_quotient(&mut sum, &[9; 8], 0);
        kernel.add_quotient(&mut sum, &[], 1);
        assert_eq!(sum, [6, 2, 3]);
        kernel.add_quotient(&mut sum, &[0, 0, 0, 5], 1);
        assert_eq!(sum, [6, 2, 3]);
        assert_eq!(product(quotient(77, 13), 13), 77);
    }
}
