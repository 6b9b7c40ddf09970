//! What the edge keeps on disk: the epoch, its current member, and whether the
//! operator has closed the edge.
//!
//! A block of text of six lines, the last a checksum over the others, so that a
//! torn or edited file is refused instead of believed. Blocks of version 1 (of
//! four lines, without the fence and the number) are understood.

use std::fmt;

/// Longest member name, in bytes.
pub const MEMBER_NAME_MAX: usize = 64;
/// Largest block that is looked at, in bytes.
pub const STATE_BYTES_MAX: usize = 1024;

/// Beginning of every block, whatever its version.
pub const MAGIC: &str = "holdfast-edge-state ";
const FIRST_LINE: &str = "holdfast-edge-state 2";
const FIRST_LINE_1: &str = "holdfast-edge-state 1";

/// The epoch and its member. Epoch 0 is before the very first start.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EdgeState {
    pub epoch: u64,
    /// The current member; `None` in an epoch above 0 if it is not known any
    /// more who spoke in it.
    pub current: Option<String>,
    /// Whether the operator has closed the edge, until he opens it.
    pub fenced: bool,
}

/// A state as it was written: the block with the highest number counts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StateBlock {
    /// Number of the write; 0 in blocks of version 1.
    pub number: u64,
    pub state: EdgeState,
}

/// Why a state file is not trusted.
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

/// Whether the file can hold this name.
#[must_use]
pub fn is_member_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MEMBER_NAME_MAX && name != "-" && name.chars().all(allowed)
}

impl fmt::Display for StateBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgeState { epoch, current, fenced } = &self.state;
        let current = current.as_deref().unwrap_or("-");
        let fenced = if *fenced { "yes" } else { "no" };
        checked(
            f,
            &format!(
                "{FIRST_LINE}\nepoch {epoch}\ncurrent {current}\nfenced {fenced}\nnumber {}\n",
                self.number
            ),
        )
    }
}

impl StateBlock {
    /// Reads a block's content; never panics, whatever it is.
    ///
    /// # Errors
    /// [`StateError`] for anything but exactly what `Display` writes, or what the
    /// release before wrote.
    pub fn parse(bytes: &[u8]) -> Result<Self, StateError> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= STATE_BYTES_MAX);
        let text = text.ok_or(StateError::NotText)?;
        let mut lines = text.split('\n');
        let is_first_version = match lines.next() {
            Some(FIRST_LINE) => false,
            Some(FIRST_LINE_1) => true,
            _ => return Err(StateError::Version),
        };
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
        if is_first_version {
            field(4, "check")?;
            let block = Self { number: 0, state: EdgeState { epoch, current, fenced: false } };
            return if Version1(&block.state).to_string() == text {
                Ok(block)
            } else {
                Err(StateError::Checksum)
            };
        }
        let fenced = match field(4, "fenced")? {
            "yes" => true,
            "no" => false,
            _ => return Err(StateError::Line(4)),
        };
        let number = field(5, "number")?.parse().map_err(|_| StateError::Line(5))?;
        field(6, "check")?;
        let block = Self { number, state: EdgeState { epoch, current, fenced } };
        if block.to_string() == text { Ok(block) } else { Err(StateError::Checksum) }
    }

    /// Order by which one of two whole blocks is chosen.
    #[must_use]
    pub fn age(&self) -> (u64, u64) {
        (self.number, self.state.epoch)
    }
}

/// Number of blocks in the file.
pub const BLOCKS: usize = 2;

/// Which block counts, and which one the next write goes to: a crash in the middle
/// of a write damages the one that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBlocks {
    spare: usize,
    newest: StateBlock,
}

/// A state, and where it is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Number of the block in the file.
    pub block: usize,
    newest: StateBlock,
}

impl StateWrite {
    /// The block's text, filled up with line ends.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.newest.to_string().into_bytes();
        bytes.resize(STATE_BYTES_MAX, b'\n');
        bytes
    }
}

impl StateBlocks {
    /// Reads the blocks of a file, as far as they can be read; `None` if none is
    /// whole.
    #[must_use]
    pub fn read(blocks: [Option<&[u8]>; BLOCKS]) -> Option<Self> {
        let parse =
            |bytes: &[u8]| StateBlock::parse(&[bytes.trim_ascii_end(), b"\n"].concat()).ok();
        let blocks = blocks.into_iter().enumerate();
        let whole = blocks.filter_map(|(number, bytes)| Some((number, parse(bytes?)?)));
        let (block, newest) = whole.max_by_key(|(_, block)| block.age())?;
        Some(Self { spare: (block + 1) % BLOCKS, newest })
    }

    /// The state that counts.
    #[must_use]
    pub fn state(&self) -> &EdgeState {
        &self.newest.state
    }

    /// The write that keeps `state`.
    #[must_use]
    pub fn next(&self, state: EdgeState) -> StateWrite {
        let number = self.newest.number.saturating_add(1);
        StateWrite { block: self.spare, newest: StateBlock { number, state } }
    }

    /// Notes that the write is on disk. A failed write is not reported: the next one
    /// goes to the same place.
    pub fn handle_written(&mut self, write: StateWrite) {
        self.spare = (write.block + 1) % BLOCKS;
        self.newest = write.newest;
    }
}

/// A block as the release before wrote it.
struct Version1<'a>(&'a EdgeState);

impl fmt::Display for Version1<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.0.current.as_deref().unwrap_or("-");
        checked(f, &format!("{FIRST_LINE_1}\nepoch {}\ncurrent {current}\n", self.0.epoch))
    }
}

pub(crate) fn checked(f: &mut fmt::Formatter<'_>, body: &str) -> fmt::Result {
    writeln!(f, "{body}check {:016x}", fnv1a(body.as_bytes()))
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

    fn block(epoch: u64, name: &str) -> StateBlock {
        let state = EdgeState { epoch, current: Some(name.to_owned()), fenced: false };
        StateBlock { number: 3, state }
    }

    #[test]
    fn the_file_reads_as_it_is_written() {
        let block = block(7, "alpha");
        let start = "holdfast-edge-state 2\nepoch 7\ncurrent alpha\nfenced no\nnumber 3\ncheck ";
        assert!(block.to_string().starts_with(start));
        assert_eq!(StateBlock::parse(block.to_string().as_bytes()), Ok(block.clone()));
        for (from, to) in [("epoch 7", "epoch 8"), ("fenced no", "fenced yes"), ("r 3", "r 4")] {
            let edited = block.to_string().replace(from, to);
            assert_eq!(StateBlock::parse(edited.as_bytes()), Err(StateError::Checksum));
        }
        assert_eq!(StateBlock::parse(b""), Err(StateError::Version));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let text = block(7, "alpha").to_string();
        for (from, to, line) in [
            ("epoch 7", "epoch x", 2),
            ("epoch 7", "epoch7", 2),
            ("current alpha", "current al pha", 3),
            ("current alpha", "current ", 3),
            ("fenced no", "fenced maybe", 4),
            ("number 3", "number -3", 5),
            ("check ", "cheque ", 6),
        ] {
            let edited = text.replace(from, to);
            assert_eq!(StateBlock::parse(edited.as_bytes()), Err(StateError::Line(line)), "{to}");
        }
    }

    #[test]
    fn a_file_of_the_release_before_is_understood() {
        let body = "holdfast-edge-state 1\nepoch 7\ncurrent alpha\n";
        let text = format!("{body}check {:016x}\n", fnv1a(body.as_bytes()));
        let read = StateBlock::parse(text.as_bytes()).unwrap();
        assert_eq!(read, StateBlock { number: 0, ..block(7, "alpha") });
        assert!(block(6, "beta").age() > read.age(), "whatever is written now is newer");
        let edited = text.replace("epoch 7", "epoch 8");
        assert_eq!(StateBlock::parse(edited.as_bytes()), Err(StateError::Checksum));
    }

    proptest! {
        #[test]
        fn any_state_survives(
            epoch: u64, number: u64, fenced: bool, name in "[a-zA-Z0-9._]{1,64}"
        ) {
            let state = EdgeState { epoch, current: Some(name), fenced };
            let block = StateBlock { number, state };
            prop_assert_eq!(StateBlock::parse(block.to_string().as_bytes()), Ok(block));
        }

        #[test]
        fn a_torn_file_is_refused(epoch: u64, cut in 0_usize..120) {
            let text = block(epoch, "member").to_string();
            prop_assert!(StateBlock::parse(&text.as_bytes()[..cut.min(text.len() - 1)]).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(StateBlock::parse(&bytes).is_err());
        }
    }

    /// A torn write destroys the older block, never the one that counts.
    #[test]
    fn blocks_are_written_in_turn() {
        let empty = StateBlock::default().to_string().into_bytes();
        let mut disk: [Vec<u8>; BLOCKS] = [empty.clone(), empty];
        let read = |disk: &[Vec<u8>; BLOCKS]| {
            StateBlocks::read(disk.each_ref().map(|block| Some(block.as_slice())))
        };
        let mut blocks = read(&disk).unwrap();
        for epoch in 1..6 {
            let write = blocks.next(EdgeState { epoch, ..EdgeState::default() });
            disk[write.block] = b"torn".to_vec();
            assert_eq!(read(&disk).unwrap().state().epoch, epoch - 1);
            assert_eq!(blocks.next(EdgeState::default()).block, write.block, "it is tried again");
            disk[write.block] = write.bytes();
            assert_eq!(read(&disk).unwrap().state().epoch, epoch);
            blocks.handle_written(write);
            assert_eq!(blocks.state().epoch, epoch);
        }
    }

    /// A hand closes and opens the edge in one epoch.
    #[test]
    fn the_last_of_two_states_of_an_epoch_counts() {
        let empty = StateBlock::default().to_string().into_bytes();
        let mut disk: [Vec<u8>; BLOCKS] = [empty.clone(), empty];
        let read = |disk: &[Vec<u8>; BLOCKS]| {
            StateBlocks::read(disk.each_ref().map(|block| Some(block.as_slice()))).unwrap()
        };
        let mut blocks = read(&disk);
        for fenced in [true, false, true, false] {
            let write = blocks.next(EdgeState { epoch: 5, fenced, ..EdgeState::default() });
            assert_eq!(write.bytes().len(), STATE_BYTES_MAX, "nothing of an older one stays");
            disk[write.block] = write.bytes();
            blocks.handle_written(write);
            assert_eq!(read(&disk).state().fenced, fenced);
        }
    }
}
