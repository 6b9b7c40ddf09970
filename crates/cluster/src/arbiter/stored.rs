//! What a witness keeps on its disk of one group: a block of text whose last line is a
//! checksum over the others, as the edge's state is ([`crate::state`]).
//!
//! A group is a file of its own: written beside, synced, and put in the old one's place, so
//! that a crash leaves one of the two whole.

use super::{Mode, Owner, Record};
use crate::state::{checked, is_member_name};
use std::fmt;

/// Largest file that is looked at, in bytes.
pub const GROUP_BYTES_MAX: usize = 1024;

const FIRST_LINE: &str = "holdfast-witness 1";

/// A group on a witness's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    pub group: String,
    /// Both members, in the order of their names.
    pub members: [String; 2],
    /// Lineage in which the record was last known to be the newest.
    pub lineage: u64,
    pub record: Option<Record>,
}

/// Why a group's file is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    #[error("the file is longer than {GROUP_BYTES_MAX} bytes or is not text")]
    NotText,
    #[error("the file does not start with `{FIRST_LINE}`")]
    Version,
    #[error("line {0} is missing or malformed")]
    Line(usize),
    #[error("the checksum does not match: the file is torn or was edited")]
    Checksum,
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, members: [one, other], lineage, record } = self;
        let record = record.as_ref().map_or("-".to_owned(), |record| {
            let Record { epoch, owner: Owner { name, life }, mode } = record;
            let mode = if *mode == Mode::Pair { "pair" } else { "solo" };
            format!("{epoch} {name} {life:016x} {mode}")
        });
        let body = format!(
            "{FIRST_LINE}\ngroup {group}\nmembers {one} {other}\nlineage {lineage:016x}\nrecord {record}\n"
        );
        checked(f, &body)
    }
}

impl GroupState {
    /// Reads a file's content; never panics, whatever it is.
    ///
    /// # Errors
    /// [`StoredError`] for anything but exactly what `Display` writes.
    pub fn parse(bytes: &[u8]) -> Result<Self, StoredError> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= GROUP_BYTES_MAX);
        let text = text.ok_or(StoredError::NotText)?;
        let mut lines = text.split('\n');
        if lines.next() != Some(FIRST_LINE) {
            return Err(StoredError::Version);
        }
        let mut field = |number, name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or(StoredError::Line(number))
        };
        let group = Some(field(2, "group")?).filter(|name| is_member_name(name));
        let group = group.ok_or(StoredError::Line(2))?.to_owned();
        let members = field(3, "members")?.split_once(' ');
        let members = members.filter(|(one, other)| is_pair(one, other));
        let (one, other) = members.ok_or(StoredError::Line(3))?;
        let lineage = u64::from_str_radix(field(4, "lineage")?, 16);
        let lineage = lineage.map_err(|_| StoredError::Line(4))?;
        let record = match field(5, "record")? {
            "-" => None,
            text => Some(parse_record(text, [one, other]).ok_or(StoredError::Line(5))?),
        };
        field(6, "check")?;
        let members = [one, other].map(str::to_owned);
        let state = Self { group, members, lineage, record };
        if state.to_string() == text { Ok(state) } else { Err(StoredError::Checksum) }
    }
}

/// Whether these are the names of two members, in order.
pub(super) fn is_pair(one: &str, other: &str) -> bool {
    is_member_name(one) && is_member_name(other) && one < other
}

fn parse_record(text: &str, members: [&str; 2]) -> Option<Record> {
    let mut words = text.split(' ');
    let epoch = words.next()?.parse().ok()?;
    let name = words.next().filter(|name| members.contains(name))?.to_owned();
    let life = u64::from_str_radix(words.next()?, 16).ok()?;
    let mode = match words.next()? {
        "pair" => Mode::Pair,
        "solo" => Mode::Solo,
        _ => return None,
    };
    Some(Record { epoch, owner: Owner { name, life }, mode }).filter(|_| words.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(epoch: u64, life: u64, mode: Mode) -> GroupState {
        GroupState {
            group: "web".to_owned(),
            members: ["alpha".to_owned(), "beta".to_owned()],
            lineage: 0x2a,
            record: Some(Record { epoch, owner: Owner { name: "beta".to_owned(), life }, mode }),
        }
    }

    #[test]
    fn the_file_reads_as_it_is_written() {
        let written = state(7, 255, Mode::Pair);
        let start = "holdfast-witness 1\ngroup web\nmembers alpha beta\nlineage 000000000000002a\n\
                     record 7 beta 00000000000000ff pair\ncheck ";
        assert!(written.to_string().starts_with(start), "{written}");
        for written in [written, GroupState { record: None, ..state(0, 0, Mode::Pair) }] {
            assert_eq!(GroupState::parse(written.to_string().as_bytes()), Ok(written));
        }
        assert_eq!(GroupState::parse(b""), Err(StoredError::Version));
        assert_eq!(GroupState::parse(&[b'x'; 2000]), Err(StoredError::NotText));
    }

    #[test]
    fn what_was_edited_or_makes_no_sense_is_named() {
        let text = state(7, 255, Mode::Solo).to_string();
        let read = |from: &str, to: &str| GroupState::parse(text.replace(from, to).as_bytes());
        for (from, to) in [("7 beta", "8 beta"), ("solo", "pair"), ("2a", "2b"), ("web", "wep")] {
            assert_eq!(read(from, to), Err(StoredError::Checksum), "{to}");
        }
        for (from, to, line) in [
            ("group web", "group w b", 2),
            ("members alpha", "members gamma", 3),
            ("alpha beta", "beta beta", 3),
            ("2a", "2g", 4),
            ("7 beta", "x beta", 5),
            ("7 beta", "7 gamma", 5),
            ("solo", "both", 5),
            ("solo", "solo ", 5),
            ("check ", "cheque ", 6),
        ] {
            assert_eq!(read(from, to), Err(StoredError::Line(line)), "{to}");
        }
    }

    proptest! {
        #[test]
        fn any_record_survives(epoch: u64, life: u64, solo: bool) {
            let state = state(epoch, life, if solo { Mode::Solo } else { Mode::Pair });
            prop_assert_eq!(GroupState::parse(state.to_string().as_bytes()), Ok(state));
        }

        #[test]
        fn a_torn_file_is_refused(epoch: u64, cut in 0_usize..200) {
            let text = state(epoch, 9, Mode::Pair).to_string();
            prop_assert!(GroupState::parse(&text.as_bytes()[..cut.min(text.len() - 1)]).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(GroupState::parse(&bytes).is_err());
        }
    }

    /// The longest names that there may be.
    #[test]
    fn every_group_fits() {
        let long = |c: &str| c.repeat(crate::state::MEMBER_NAME_MAX);
        let owner = Owner { name: long("b"), life: u64::MAX };
        let record = Some(Record { epoch: u64::MAX, owner, mode: Mode::Pair });
        let members = [long("a"), long("b")];
        let state = GroupState { group: long("g"), members, lineage: u64::MAX, record };
        assert_eq!(GroupState::parse(state.to_string().as_bytes()), Ok(state));
    }
}
