//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), the field of
//! ISA-L and of most Reed-Solomon libraries. All tables are made by the compiler.
//!
//! Everything in this crate *divides*: a coefficient 1/d is named by its divisor
//! d, because the entries of a Cauchy matrix are 1/(x + y) and x + y costs one
//! exclusive or. The divisor 0 stands for the coefficient 0.

/// x^8 + x^4 + x^3 + x^2 + 1.
const POLYNOMIAL: u16 = 0x11d;
/// Number of nonzero elements, after which exponents repeat.
pub(crate) const ORDER: usize = 255;

/// Powers 2^i, as far as the sum of four logarithms is an index.
pub(crate) const EXP: [u8; 4 * ORDER] = powers();
/// The logarithm to the base 2. That of 0, which has none, is 0: sums over all
/// pairs may then include a pair of equals.
pub(crate) const LOG: [u8; 256] = logarithms();
/// Multiplication by 1/d as an 8×8 bit matrix, in the order that GF2P8AFFINEQB reads.
#[cfg(target_arch = "x86_64")]
pub(crate) static DIVIDE_BITS: [u64; 256] = bit_matrices();
/// (n / d) for the 16 low nibbles n, then (n·16 / d) for the 16 high ones.
#[cfg(all(feature = "shuffle", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) static DIVIDE_NIBBLES: [[u8; 32]; 256] = nibble_tables();
/// Quotients 2^b / d for the bits b.
pub(crate) static DIVIDE_BIT: [[u8; 8]; 256] = bit_quotients();

const fn powers() -> [u8; 4 * ORDER] {
    let mut table = [0; 4 * ORDER];
    let (mut value, mut i) = (1u16, 0);
    while i < table.len() {
        table[i] = value as u8;
        value <<= 1;
        if value > 255 {
            value ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// The quotient a/d; 0 if either is 0.
pub(crate) const fn divide(a: u8, d: u8) -> u8 {
    if a == 0 || d == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + ORDER - LOG[d as usize] as usize]
}

/// The product.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

const fn bit_quotients() -> [[u8; 8]; 256] {
    let mut table = [[0; 8]; 256];
    let mut d = 0;
    while d < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[d][bit] = divide(1 << bit, d as u8);
            bit += 1;
        }
        d += 1;
    }
    table
}

/// Bit i of the product is the parity of the input and byte 7-i of the matrix.
#[cfg(target_arch = "x86_64")]
const fn bit_matrices() -> [u64; 256] {
    let quotients = bit_quotients();
    let mut table = [0; 256];
    let mut d = 0;
    while d < 256 {
        let (mut matrix, mut i) = (0u64, 0);
        while i < 8 {
            let mut bit = 0;
            while bit < 8 {
                let set = quotients[d][bit] >> i & 1;
                matrix |= (set as u64) << (8 * (7 - i) + bit);
                bit += 1;
            }
            i += 1;
        }
        table[d] = matrix;
        d += 1;
    }
    table
}

#[cfg(all(feature = "shuffle", any(target_arch = "x86_64", target_arch = "aarch64")))]
const fn nibble_tables() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut d = 0;
    while d < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[d][nibble] = divide(nibble as u8, d as u8);
            table[d][16 + nibble] = divide((nibble as u8) << 4, d as u8);
            nibble += 1;
        }
        d += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schoolbook: shift, add, reduce.
    fn slow_product(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= POLYNOMIAL << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_and_quotients_are_those_of_the_schoolbook() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(multiply(a, b), slow_product(a, b));
                let quotient = divide(a, b);
                assert_eq!(slow_product(quotient, b), if b == 0 { 0 } else { a });
            }
        }
    }
}
