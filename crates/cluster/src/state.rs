//! What the edge keeps on disk: the epoch and who is current in it.
//!
//! A text file of four lines, the last a checksum over the others, so that a
//! torn or edited file is refused instead of believed.

use std::fmt;

/// Longest member name, in bytes.
pub const MEMBER_NAME_MAX: usize = 64;
/// Largest file that is looked at.
pub const STATE_BYTES_MAX: usize = 1024;

const FIRST_LINE: &str = "holdfast-edge-state 1";

/// The epoch and its member. Epoch 0 is before the very first start.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EdgeState {
    pub epoch: u64,
    pub current: Option<String>,
}

/// Why a state file is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("the file is longer than {STATE_BYTES_MAX} bytes or is not text")]
    NotText,
    #[error("the file does not start with `{FIRST_LINE}`")]
    Version,
    #[error("line {0} is missing or malformed")]
    Line(usize),
    #[error("the checksum does not match: the file is torn or was edited")]
    Checksum,
}

/// Is this a name that the file can hold?
#[must_use]
pub fn is_member_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MEMBER_NAME_MAX && name != "-" && name.chars().all(allowed)
}

impl fmt::Display for EdgeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current.as_deref().unwrap_or("-");
        let body = format!("{FIRST_LINE}\nepoch {}\ncurrent {current}\n", self.epoch);
        writeln!(f, "{body}check {:016x}", fnv1a(body.as_bytes()))
    }
}

impl EdgeState {
    /// Reads the file's content; never panics, whatever it is.
    ///
    /// # Errors
    /// [`StateError`] for anything but exactly what `Display` writes.
    pub fn parse(bytes: &[u8]) -> Result<Self, StateError> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= STATE_BYTES_MAX);
        let text = text.ok_or(StateError::NotText)?;
        let mut lines = text.split('\n');
        if lines.next() != Some(FIRST_LINE) {
            return Err(StateError::Version);
        }
        let mut field = |number, name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or(StateError::Line(number))
        };
        let epoch = field(2, "epoch")?.parse().map_err(|_| StateError::Line(2))?;
        let current = match field(3, "current")? {
            "-" => None,
            name if is_member_name(name) => Some(name.to_owned()),
            _ => return Err(StateError::Line(3)),
        };
        field(4, "check")?;
        let state = Self { epoch, current };
        if state.to_string() == text { Ok(state) } else { Err(StateError::Checksum) }
    }
}

/// FNV-1a, 64 bit: finds torn writes; it is not meant against an attacker, who
/// could write the file anyway.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_file_reads_as_it_is_written() {
        let state = EdgeState { epoch: 7, current: Some("alpha".to_owned()) };
        assert!(
            state.to_string().starts_with("holdfast-edge-state 1\nepoch 7\ncurrent alpha\ncheck ")
        );
        assert_eq!(EdgeState::parse(state.to_string().as_bytes()), Ok(state.clone()));
        let edited = state.to_string().replace("epoch 7", "epoch 8");
        assert_eq!(EdgeState::parse(edited.as_bytes()), Err(StateError::Checksum));
        assert_eq!(EdgeState::parse(b""), Err(StateError::Version));
    }

    proptest! {
        #[test]
        fn any_state_survives(epoch: u64, name in "[a-zA-Z0-9._]{1,64}") {
            let state = EdgeState { epoch, current: Some(name) };
            prop_assert_eq!(EdgeState::parse(state.to_string().as_bytes()), Ok(state));
        }

        #[test]
        fn a_torn_file_is_refused(epoch: u64, cut in 0_usize..70) {
            let text = EdgeState { epoch, current: Some("member".to_owned()) }.to_string();
            prop_assert!(EdgeState::parse(&text.as_bytes()[..cut.min(text.len() - 1)]).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(EdgeState::parse(&bytes).is_err());
        }
    }
}
