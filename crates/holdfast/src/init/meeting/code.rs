//! The code that a person carries from one host to the two others: the secret of a meeting, in
//! letters that are easy to type.

use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Update};
use std::fmt;
use std::io;
use std::str::FromStr;

/// Crockford's alphabet: without I, L, O and U, which are mistaken for others.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Letters that are drawn, of 5 bits each: 135 bits.
const SECRET: usize = 27;
/// All of them, with the one that shows a typing mistake.
const LETTERS: usize = SECRET + 1;
/// Letters between two dashes.
const PART: usize = 4;

/// The secret of one meeting.
#[derive(Clone, PartialEq, Eq)]
pub struct Code([u8; LETTERS]);

/// Why a text is no code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error("`{0}` is in no code: one has the digits and the letters A to Z without I, L, O and U")]
    Letter(char),
    #[error("it has {0} letters and digits, and a code has {LETTERS}")]
    Length(usize),
    #[error("one of its letters is wrong, or two have changed places")]
    Typo,
}

impl Code {
    /// A new random code.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn generate() -> io::Result<Self> {
        let mut letters = [0; LETTERS];
        getrandom::fill(&mut letters[..SECRET]).map_err(io::Error::other)?;
        letters[..SECRET].iter_mut().for_each(|letter| *letter &= 31);
        letters[SECRET] = check(&letters[..SECRET]);
        Ok(Self(letters))
    }

    /// Opens the channel of the meeting (Noise's pre-shared key).
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        let mut secret = [0; 32];
        secret[..SECRET].copy_from_slice(&self.0[..SECRET]);
        let mut mac = blake2::Blake2sMac::<U32>::new((&secret).into());
        mac.update(b"holdfast meeting 1");
        mac.finalize_fixed().into()
    }
}

/// Damm's check digit over GF(32): a single wrong letter is noticed, and so are two neighbours that
/// have changed places.
fn check(letters: &[u8]) -> u8 {
    letters.iter().fold(0, |state, letter| double(state ^ letter))
}

/// Multiplication by x, modulo x^5 + x^2 + 1.
fn double(value: u8) -> u8 {
    let shifted = value << 1;
    if shifted & 32 == 0 { shifted } else { (shifted ^ 0b10_0101) & 31 }
}

impl FromStr for Code {
    type Err = CodeError;

    /// Reads what a person has typed: dashes and spaces mean nothing, nor does case; the letters
    /// that look like digits count as those.
    fn from_str(text: &str) -> Result<Self, CodeError> {
        let mut letters = [0; LETTERS];
        let mut count = 0;
        for typed in text.chars().filter(|it| !matches!(it, '-' | ' ')) {
            let meant = match typed.to_ascii_uppercase() {
                'O' => '0',
                'I' | 'L' => '1',
                other => other,
            };
            let value = ALPHABET.iter().position(|it| char::from(*it) == meant);
            let value = value.ok_or(CodeError::Letter(typed))?;
            if let Some(place) = letters.get_mut(count) {
                *place = value as u8;
            }
            count += 1;
        }
        if count != LETTERS {
            return Err(CodeError::Length(count));
        }
        match check(&letters[..SECRET]) == letters[SECRET] {
            true => Ok(Self(letters)),
            false => Err(CodeError::Typo),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, letter) in self.0.iter().enumerate() {
            if index > 0 && index.is_multiple_of(PART) {
                f.write_str("-")?;
            }
            write!(f, "{}", char::from(ALPHABET[usize::from(*letter & 31)]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_code_survives_being_typed() {
        let code = Code::generate().unwrap();
        let shown = code.to_string();
        assert_eq!(shown.len(), LETTERS + LETTERS / PART - 1, "{shown}");
        let typed = shown.to_lowercase().replace('-', " ").replace('0', "o").replace('1', "l");
        assert_eq!(typed.parse(), Ok(code.clone()));
        assert_ne!(Code::generate().unwrap(), code);
        assert_ne!(Code::generate().unwrap().key(), code.key());
        assert_eq!(format!("{code:?}"), "Code(secret)");
    }

    /// Whoever tries what a page shows is told that nobody waits, and not that it is no code.
    #[test]
    fn the_codes_that_pages_show_are_codes() {
        let pages = [
            include_str!("../../../../../README.md"),
            include_str!("../../../../../docs/INIT.md"),
            include_str!("../../../../../docs/OPERATE.md"),
        ];
        let shown = pages.iter().flat_map(|page| page.split_whitespace());
        let is_one =
            |it: &&str| it.len() == LETTERS + LETTERS / PART - 1 && it.matches('-').count() == 6;
        let codes: Vec<&str> = shown.filter(is_one).collect();
        assert!(codes.len() >= 3, "{codes:?}");
        for code in codes {
            assert_eq!(code.parse::<Code>().map(|it| it.to_string()).as_deref(), Ok(code));
        }
    }

    #[test]
    fn every_single_mistake_is_noticed() {
        let Code(letters) = Code::generate().unwrap();
        let text = |letters: [u8; LETTERS]| Code(letters).to_string();
        for at in 0..LETTERS {
            for other in (0..32).filter(|it| *it != letters[at]) {
                let mut typed = letters;
                typed[at] = other;
                assert_eq!(text(typed).parse::<Code>(), Err(CodeError::Typo), "{at} {other}");
            }
            if at + 1 < LETTERS && letters[at] != letters[at + 1] {
                let mut typed = letters;
                typed.swap(at, at + 1);
                assert_eq!(text(typed).parse::<Code>(), Err(CodeError::Typo), "{at}");
            }
        }
        assert_eq!("ABC".parse::<Code>(), Err(CodeError::Length(3)));
        assert_eq!("AB?C".parse::<Code>(), Err(CodeError::Letter('?')));
        assert_eq!("U".parse::<Code>(), Err(CodeError::Letter('U')));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,80}") {
            let _ = text.parse::<Code>();
        }
    }
}
