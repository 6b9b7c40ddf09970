//! A line of a key file: a secret, and whether all hosts of the group have it.

use super::{GroupKey, KEYS_MAX, KeyError};

/// The word before a secret that all hosts have. A file with public keys needs it: there a line
/// without it is this host's alone.
const OF_ALL: &str = "shared";

/// A secret of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLine {
    pub key: GroupKey,
    /// Whether it is marked as one that all hosts of the group have.
    pub of_all: bool,
}

impl KeyLine {
    /// Reads one or two secrets of 64 hexadecimal digits, a line each, with `shared` before one that
    /// all hosts have; lines that start with `#` are comments.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] for anything else.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, KeyError> {
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let mut found: Vec<Self> = Vec::new();
        for line in lines {
            if found.len() == KEYS_MAX {
                return Err(KeyError::Malformed("it has more than two lines"));
            }
            let line = Self::parse(line)?;
            if found.iter().any(|it| it.key == line.key) {
                return Err(KeyError::Malformed("both lines hold the same key"));
            }
            found.push(line);
        }
        if found.is_empty() {
            return Err(KeyError::Malformed("the file is empty"));
        }
        Ok(found)
    }

    fn parse(line: &str) -> Result<Self, KeyError> {
        let marked = line.strip_prefix(OF_ALL).filter(|rest| rest.starts_with([' ', '\t']));
        let key = GroupKey::digits(marked.unwrap_or(line).trim_start())?;
        Ok(Self { key, of_all: marked.is_some() })
    }

    /// What all hosts have, where the group's file has no public keys: what is marked so, or every
    /// line if none is. So a key file may be changed before the group's file is.
    #[must_use]
    pub fn of_all(lines: Vec<Self>) -> Vec<GroupKey> {
        let is_marked = lines.iter().any(|it| it.of_all);
        let counts = |it: &Self| it.of_all || !is_marked;
        lines.into_iter().filter(counts).map(|it| it.key).collect()
    }
}

impl From<GroupKey> for KeyLine {
    fn from(key: GroupKey) -> Self {
        Self { key, of_all: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_that_all_hosts_have_is_marked_so() {
        let (one, two) = ("ab".repeat(32), "cd".repeat(32));
        let [key, other] = [&one, &two].map(|it| GroupKey::parse(it).unwrap());
        let marked = KeyLine { key: key.clone(), of_all: true };
        for text in [format!("# x\nshared {one}\n{two}"), format!("  shared\t {one}  \n{two}\n")] {
            let lines = KeyLine::parse_all(&text).unwrap();
            assert_eq!(lines, [marked.clone(), other.clone().into()]);
            let shared = KeyLine::of_all(lines);
            assert_eq!(shared, std::slice::from_ref(&key), "what is this host's alone is not");
        }
        let plain = KeyLine::parse_all(&format!("{one}\n{two}")).unwrap();
        assert_eq!(KeyLine::of_all(plain), [key, other]);
        for wrong in [
            format!("shared{one}"),
            format!("Shared {one}"),
            format!("shared {one}\n{one}"),
            format!("shared shared {one}"),
            format!("{one} shared"),
            "shared".to_owned(),
        ] {
            assert!(KeyLine::parse_all(&wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(shared ?)?.{0,100}") {
            let _ = KeyLine::parse_all(&text);
        }
    }
}
