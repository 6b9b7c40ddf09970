//! Inverses in closed form: computing what a decoder multiplies with costs
//! O(e²), and no matrix is eliminated.

use crate::field::{EXP, LOG, ORDER, multiply};

/// The inverse of a square part of the Cauchy matrix 1/(x + y), at most `N`×`N`
/// (S. Schechter, "On the inversion of certain matrices", 1959). With rows x and
/// columns y, in a field where minus is plus:
///
/// ```text
/// inverse[b, a] = A[a] · B[b] / (x[a] + y[b])
/// A[a] = Π over k of (x[a] + y[k])  /  Π over k ≠ a of (x[a] + x[k])
/// B[b] = Π over k of (x[k] + y[b])  /  Π over k ≠ b of (y[b] + y[k])
/// ```
pub(crate) struct CauchyInverse<'a, const N: usize> {
    x: &'a [u8],
    y: &'a [u8],
    /// Logarithms of A and B, 0 to 254.
    log_a: [u16; N],
    log_b: [u16; N],
}

impl<'a, const N: usize> CauchyInverse<'a, N> {
    /// The inverse for the rows `x` and as many columns `y`; all of them are
    /// different.
    #[inline(always)]
    pub fn new(x: &'a [u8], y: &'a [u8]) -> Self {
        assert!(x.len() == y.len() && x.len() <= N);
        // Every pair is looked up once and counts for both of its members.
        let (mut a, mut b) = ([0i32; N], [0i32; N]);
        for i in 0..x.len() {
            for k in 0..y.len() {
                let sum = log(x[i] ^ y[k]);
                a[i] += sum;
                b[k] += sum;
            }
            for k in 0..i {
                let (rows, columns) = (log(x[i] ^ x[k]), log(y[i] ^ y[k]));
                a[i] -= rows;
                a[k] -= rows;
                b[i] -= columns;
                b[k] -= columns;
            }
        }
        let reduced = |log: i32| log.rem_euclid(ORDER as i32) as u16;
        Self { x, y, log_a: a.map(reduced), log_b: b.map(reduced) }
    }

    /// The divisor of row `b` of the inverse and row `a` of the matrix.
    #[inline(always)]
    pub fn divisor(&self, b: usize, a: usize) -> u8 {
        let sum = usize::from(LOG[usize::from(self.x[a] ^ self.y[b])]) + 2 * ORDER;
        EXP[sum - usize::from(self.log_a[a]) - usize::from(self.log_b[b])]
    }
}

fn log(value: u8) -> i32 {
    i32::from(LOG[usize::from(value)])
}

/// The inverse of the Vandermonde matrix x\[k\]^j, row after row from the last to
/// the first: row j holds the j-th coefficients of the Lagrange polynomials of
/// all points, which synthetic division makes one after the other.
pub(crate) struct VandermondeInverse<'a> {
    x: &'a [u8],
    /// Coefficients of Π (X + x[k]) without the leading 1, lowest first.
    master: [u8; 256],
    /// Logarithms of Π over j ≠ k of (x[k] + x[j]).
    log_denominator: [u8; 256],
    /// The next coefficient of Π over j ≠ k of (X + x[j]), for every k.
    quotient: [u8; 256],
    /// Number of rows that are left.
    left: usize,
}

impl<'a> VandermondeInverse<'a> {
    /// The inverse for the points `x`, at most 256 and all different.
    pub fn new(x: &'a [u8]) -> Self {
        let mut master = [0; 256];
        for (known, point) in x.iter().enumerate() {
            // (X + point) · (X^known + …): every coefficient moves up by one.
            let mut below = 0;
            for coefficient in &mut master[..known] {
                let moved = below ^ multiply(*coefficient, *point);
                below = core::mem::replace(coefficient, moved);
            }
            master[known] = below ^ *point;
        }
        let mut log_denominator = [0; 256];
        for (own, log_out) in x.iter().zip(&mut log_denominator) {
            let sum: i32 = x.iter().map(|other| log(own ^ other)).sum();
            *log_out = (sum % ORDER as i32) as u8;
        }
        Self { x, master, log_denominator, quotient: [1; 256], left: x.len() }
    }

    /// Begins the next row, from the last one down; returns its number.
    pub fn next_row(&mut self) -> Option<u8> {
        self.left = self.left.checked_sub(1)?;
        Some(self.left as u8)
    }

    /// The divisor of the row that was begun last and point `k`; call it once
    /// for every point.
    pub fn divisor(&mut self, k: usize) -> u8 {
        let value = self.quotient[k];
        self.quotient[k] = self.master[self.left] ^ multiply(value, self.x[k]);
        match value {
            0 => 0,
            _ => {
                let down = usize::from(LOG[usize::from(value)]);
                EXP[usize::from(self.log_denominator[k]) + ORDER - down]
            }
        }
    }
}
