//! Secrets: 32 random bytes each, in a file that only its owner can read.
//!
//! Either all hosts of a group have the same file, or each has its own, whose public keys
//! are in the group's file (`pair`). What a host shares with which other one is its
//! [`Keyring`]. A file has up to two secrets, so that one can take the other's place while
//! the group runs: the first is the one that this host speaks with, both are accepted. One
//! that all hosts have can be marked as such, beside one that only this host has: so a group
//! goes from the first way to the second, or back.
//!
//! Keys are derived from a secret that two hosts share (BLAKE2s keyed with the secret, one
//! label each): one opens the encrypted channel, one keys the hashes that compare what the
//! members read and wrote, one those that compare their fingerprints, and one authenticates
//! heartbeats; in transit groups, one authenticates theirs and one keys the hash of flows.

mod line;
mod pair;
mod ring;

pub use line::KeyLine;
pub use pair::PublicKey;
pub use ring::{Candidate, Keyring, Proven, Secrets};

use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Update};
use holdfast_wire::hash::HashKey;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const KEY_BYTES: usize = 32;
/// Largest key file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// Most secrets of a key file, and most public keys of a host: the one that is used, and the
/// one before or after it.
pub const KEYS_MAX: usize = 2;

/// A secret that hosts of a group share; in a key file of a group with public keys, one that
/// only its own host has.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupKey([u8; KEY_BYTES]);

/// Why a key could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("{0}")]
    Unreadable(io::Error),
    #[error("others than its owner can read it (mode {mode:04o})")]
    TooOpen { mode: u32 },
    #[error("it belongs to user {owner}, who can read and change it")]
    OtherOwner { owner: u32 },
    #[error("it does not hold a key: {0}")]
    Malformed(&'static str),
    #[error(
        "it holds no key that `{host}`, this host, has alone: all of its lines are marked `shared`"
    )]
    NoneOfItsOwn { host: String },
    #[error(
        "its public key is not in the public_keys of `{host}`, this host: others would refuse it"
    )]
    NotListed { host: String, ours: PublicKey },
    #[error(
        "others speak to `{host}`, this host, with {listed}, the first of its public_keys, and it \
         holds another key"
    )]
    NotHeld { host: String, listed: PublicKey, ours: PublicKey },
    #[error(
        "the key that is marked `shared` is among the public_keys: whoever has it could be that \
         host for ever"
    )]
    ListedOfAll,
}

/// What to do with a file that no keys can be read from: it may hold the only copy of one.
const MEND: &str = "mend the line that is wrong: 64 hexadecimal digits, two lines at most, and \
    `shared ` before one that all hosts have";

impl KeyError {
    /// The remedy.
    #[must_use]
    pub fn remedy(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Unreadable(e) if e.kind() == io::ErrorKind::NotFound => {
                format!(
                    "make one and copy it to all hosts of the group: (umask 077; holdfast key gen > {path})"
                )
            }
            Self::Unreadable(_) => {
                "run as the owner of the file; it is a plain file of one or two lines".to_owned()
            }
            Self::TooOpen { .. } => {
                format!("chmod 600 {path}, and make a new key if a stranger may have read it")
            }
            Self::OtherOwner { .. } => {
                format!("chown root: {path}, and make a new key if a stranger may have read it")
            }
            Self::Malformed(_) => format!(
                "{MEND}. Only if it is lost, make a new one for all hosts of the group: (umask 077; \
                 holdfast key gen > {path})"
            ),
            Self::NoneOfItsOwn { host } => format!(
                "add one as its second line: holdfast key gen >> {path}, and write what `holdfast key \
                 pub {path}` prints as public_keys of `{host}` into the file of every host; or take all \
                 public_keys out of the file first, if all hosts shall have one key again"
            ),
            Self::NotListed { host, ours } | Self::NotHeld { host, ours, .. } => format!(
                "if that is the key of all hosts, write `shared ` before it in {path}, and add one of \
                 this host's own below. If it is this host's own: public_keys = [\"{ours}\"] for \
                 `{host}` in the file of every host, which is what `holdfast key pub {path}` prints, and \
                 `holdfast reload` there; or put the key file back that belongs to this host"
            ),
            Self::ListedOfAll => format!(
                "make a key of its own on each host (holdfast key gen >> {path}), and write what \
                 `holdfast key pub {path}` prints there into the file of every host"
            ),
        }
    }
}

impl KeyError {
    /// The remedy where each host has a key of its own, which no other one may get.
    #[must_use]
    pub fn remedy_in_pairs(&self, path: &Path) -> String {
        let is_missing = matches!(self, Self::Unreadable(e) if e.kind() == io::ErrorKind::NotFound);
        let is_malformed = matches!(self, Self::Malformed(_));
        if !is_missing && !is_malformed {
            return self.remedy(path);
        }
        let path = path.display();
        let mend =
            if is_malformed { format!("{MEND}. Only if it is lost, ") } else { String::new() };
        format!(
            "{mend}make one on this host: (umask 077; holdfast key gen > {path}), and write what \
             `holdfast key pub {path}` prints as its public_keys into the file of every host, with \
             `holdfast reload` there"
        )
    }
}

impl GroupKey {
    /// A new random key.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// Reads a key file: the secret that this host speaks with, and the other one that it
    /// accepts, if there is one.
    ///
    /// # Errors
    /// As [`KeyError`] tells.
    pub fn load(path: &Path) -> Result<Vec<KeyLine>, KeyError> {
        // Opening a pipe would wait for its writer.
        let mut options = std::fs::File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(KeyError::Unreadable)?;
        let metadata = file.metadata().map_err(KeyError::Unreadable)?;
        if !metadata.is_file() {
            return Err(KeyError::Malformed("it is no plain file"));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::TooOpen { mode });
        }
        if ![0, own_user()].contains(&metadata.uid()) {
            return Err(KeyError::OtherOwner { owner: metadata.uid() });
        }
        Self::read(file)
    }

    /// Reads what a key file holds; see [`Self::load`].
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], or [`KeyError::Malformed`] if it holds anything else.
    pub fn read(from: impl Read) -> Result<Vec<KeyLine>, KeyError> {
        let mut text = String::new();
        from.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(KeyError::Unreadable)?;
        KeyLine::parse_all(&text)
    }

    /// Like [`KeyLine::parse_all`], of a text with one secret.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] for anything else.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        match <[KeyLine; 1]>::try_from(KeyLine::parse_all(text)?) {
            Ok([line]) => Ok(line.key),
            Err(_) => Err(KeyError::Malformed("it has more than one line")),
        }
    }

    fn digits(line: &str) -> Result<Self, KeyError> {
        if line.len() != 2 * KEY_BYTES || !line.is_ascii() {
            return Err(KeyError::Malformed("a key has 64 hexadecimal digits"));
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(line.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            // `from_str_radix` accepts a sign, which is no digit.
            *byte = (!digits.starts_with('+'))
                .then(|| u8::from_str_radix(digits, 16).ok())
                .flatten()
                .ok_or(KeyError::Malformed("a key has 64 hexadecimal digits"))?;
        }
        if bytes == [0; KEY_BYTES] {
            return Err(KeyError::Malformed("it is all zero"));
        }
        Ok(Self(bytes))
    }

    /// The file's text: a comment and the digits. Whose key it is, the group's file says.
    #[must_use]
    pub fn to_text(&self) -> String {
        let digits: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        format!(
            "# a secret of holdfast, for root alone: of this host, or the same on all hosts of a group\n{digits}\n"
        )
    }

    /// Opens the encrypted channel (Noise's pre-shared key).
    #[must_use]
    pub fn channel_key(&self) -> [u8; KEY_BYTES] {
        self.derive(b"holdfast channel 1")
    }

    /// Authenticates what members without an edge say to each other and to their witness.
    #[must_use]
    pub fn arbiter_key(&self) -> [u8; KEY_BYTES] {
        self.derive(b"holdfast arbiter 1")
    }

    /// Keys the hashes in log records (decision 3).
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        let mut words = [0; 8];
        let bytes = [self.derive(b"holdfast hash 1"), self.derive(b"holdfast hash 2")].concat();
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        words
    }

    /// Keys the hashes of what both members must have in common (decision 25).
    #[must_use]
    pub fn fingerprint_key(&self) -> [u8; KEY_BYTES] {
        self.derive(b"holdfast world 1")
    }

    /// Authenticates the heartbeats between members and edge.
    #[must_use]
    pub fn pulse_key(&self) -> [u8; KEY_BYTES] {
        self.derive(b"holdfast pulse 1")
    }

    /// What the host `name` proves itself with to the other one that shares this, at its end of a
    /// tunnel between them (decision 37).
    #[must_use]
    pub fn tunnel_key(&self, name: &str) -> Self {
        Self(self.derive(&[b"holdfast tunnel 1 ", name.as_bytes()].concat()))
    }

    /// Authenticates heartbeats through strings.
    #[must_use]
    pub fn strings_key(&self) -> [u8; KEY_BYTES] {
        self.derive(b"holdfast strings 1")
    }

    /// Keys the hash that spreads flows over strings; a stranger who knew it
    /// could put all his flows on one of them.
    #[must_use]
    pub fn flows_seed(&self) -> u32 {
        let [a, b, c, d, ..] = self.derive(b"holdfast flows 1");
        u32::from_le_bytes([a, b, c, d])
    }

    /// Keys the hash by which a spread group's edges choose host servers: the same
    /// on all of them, and unknown to clients.
    #[must_use]
    pub fn spread_seed(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.derive(b"holdfast spread 1");
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn derive(&self, label: &[u8]) -> [u8; KEY_BYTES] {
        let mut mac = blake2::Blake2sMac::<U32>::new((&self.0).into());
        mac.update(label);
        mac.finalize_fixed().into()
    }
}

/// The user of this process.
fn own_user() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |of| of.uid())
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_file() {
        let key = GroupKey::generate().unwrap();
        assert_eq!(GroupKey::parse(&key.to_text()).unwrap(), key);
        let text = key.to_text();
        assert!(!format!("{key:?}").contains(text.lines().last().unwrap()));
    }

    #[test]
    fn derived_keys_differ_from_each_other_and_between_groups() {
        let key = |last: char| GroupKey::parse(&format!("{}{last}", "1".repeat(63))).unwrap();
        let (a, b) = (key('1'), key('2'));
        assert_ne!(a.channel_key(), b.channel_key());
        assert_ne!(a.hash_key(), b.hash_key());
        assert_ne!(a.hash_key()[0].to_le_bytes(), a.channel_key()[..8]);
        assert_ne!(a.fingerprint_key(), a.channel_key());
        assert_ne!(a.fingerprint_key(), b.fingerprint_key());
        assert_ne!(a.strings_key(), b.strings_key());
        assert_ne!(a.flows_seed(), b.flows_seed());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("holdfast-key-{}", std::process::id()));
        std::fs::write(&path, GroupKey::generate().unwrap().to_text()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = GroupKey::load(&path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let taken = GroupKey::load(&path);
        // Only root can give a file away.
        let given =
            std::os::unix::fs::chown(&path, Some(12345), None).map(|()| GroupKey::load(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(refused, Err(KeyError::TooOpen { mode: 0o640 })));
        assert!(taken.is_ok());
        if let Ok(given) = given {
            assert!(matches!(given, Err(KeyError::OtherOwner { owner: 12345 })));
        }
    }

    #[test]
    fn no_host_is_told_to_copy_a_key_of_its_own() {
        let (path, error) = (Path::new("/k"), KeyError::Malformed("the file is empty"));
        assert!(error.remedy(path).contains("for all hosts"));
        let remedy = error.remedy_in_pairs(path);
        assert!(remedy.contains("key pub") && !remedy.contains("for all hosts"), "{remedy}");
        assert!(KeyError::TooOpen { mode: 0o644 }.remedy_in_pairs(path).contains("chmod"));
    }

    #[test]
    fn what_is_not_a_key_is_an_error() {
        let (zero, sign, twice) =
            ("0".repeat(64), "+1".repeat(32), format!("{0}\n{0}", "ab".repeat(32)));
        let three = ["ab", "cd", "ef"].map(|pair| pair.repeat(32)).join("\n");
        for text in ["", "# only a comment", "abc", &zero, &sign, &twice, &three] {
            assert!(GroupKey::parse(text).is_err(), "{text}");
            assert!(KeyLine::parse_all(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_has_up_to_two_keys_and_the_first_is_spoken_with() {
        let [one, two] = [(); 2].map(|()| GroupKey::generate().unwrap());
        let text = format!("{}\n  # the one before\n{}", one.to_text(), two.to_text());
        let lines = [one.clone(), two].map(KeyLine::from);
        assert_eq!(KeyLine::parse_all(&text).unwrap(), lines);
        assert!(GroupKey::parse(&text).is_err());
        assert_eq!(KeyLine::parse_all(&one.to_text()).unwrap(), [KeyLine::from(one)]);
    }
}
