//! Inverses in closed form: what a decoder multiplies with costs O(e²), and no
//! matrix is eliminated.

use crate::field::{EXP, LOG, ORDER};

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
    /// Of the rows `x` and as many columns `y`; all of them are different.
    #[inline]
    pub fn new(x: &'a [u8], y: &'a [u8]) -> Self {
        assert!(x.len() == y.len() && x.len() <= N);
        let log_factor = |own: u8, others: &[u8], equals: &[u8]| {
            let up: i32 = others.iter().map(|other| log(own ^ other)).sum();
            // `own` is among its equals: the logarithm of 0 counts as 0.
            let down: i32 = equals.iter().map(|equal| log(own ^ equal)).sum();
            (up - down).rem_euclid(ORDER as i32) as u16
        };
        let (mut log_a, mut log_b) = ([0; N], [0; N]);
        for k in 0..x.len() {
            log_a[k] = log_factor(x[k], y, x);
            log_b[k] = log_factor(y[k], x, y);
        }
        Self { x, y, log_a, log_b }
    }

    /// The divisors of row `b` of the inverse, for all rows x, into `out`.
    #[inline]
    pub fn divisors(&self, b: usize, out: &mut [u8]) {
        let spare = 2 * ORDER - usize::from(self.log_b[b]);
        for ((out, x), log_a) in out.iter_mut().zip(self.x).zip(&self.log_a) {
            let sum = usize::from(LOG[usize::from(x ^ self.y[b])]);
            *out = EXP[sum + spare - usize::from(*log_a)];
        }
    }
}

fn log(value: u8) -> i32 {
    i32::from(LOG[usize::from(value)])
}

/// The inverse of the Vandermonde matrix x[k]^j, row after row from the last to
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
    /// Rows that are left.
    left: usize,
}

impl<'a> VandermondeInverse<'a> {
    /// Of the points `x`, at most 256 and all different.
    pub fn new(x: &'a [u8]) -> Self {
        let mut master = [0; 256];
        for (known, point) in x.iter().enumerate() {
            // (X + point) · (X^known + …): every coefficient moves up by one.
            let mut below = 0;
            for coefficient in &mut master[..known] {
                let moved = below ^ crate::field::multiply(*coefficient, *point);
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

    /// The divisors of the next row, from the last one down; its number.
    pub fn next_row(&mut self, out: &mut [u8]) -> Option<u8> {
        let row = self.left.checked_sub(1)?;
        self.left = row;
        for (k, point) in self.x.iter().enumerate() {
            out[k] = match self.quotient[k] {
                0 => 0,
                value => {
                    let down = usize::from(LOG[usize::from(value)]);
                    EXP[usize::from(self.log_denominator[k]) + ORDER - down]
                }
            };
            self.quotient[k] = self.master[row] ^ crate::field::multiply(self.quotient[k], *point);
        }
        Some(row as u8)
    }
}
