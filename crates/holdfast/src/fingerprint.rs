//! What must be the same on both members because the replica would otherwise
//! compute something else (decision 25): the server's program and libraries,
//! its command line and the files named there, its environment, the settings of
//! the group's file that reach it, and the processor's features.
//!
//! A fingerprint is a list of named hashes, keyed with the group's secret. The members
//! exchange them when they meet, so that a refusal names what differs.

mod compare;
mod file;
mod gather;
mod lacks;
mod libraries;
mod path;
#[cfg(test)]
mod tests;

pub use compare::Difference;
pub use file::{of_file, other_file};
pub(crate) use gather::environment_of;
pub use gather::{find_program, in_directory, inherited_but_not_passed, shim_path};
pub use lacks::{lacks, user_ids, user_of};
pub(crate) use libraries::of as libraries_of;

use crate::config::Config;
use crate::key::GroupKey;
use blake2::digest::consts::U8;
use blake2::digest::{FixedOutput, KeyInit, Update};
use holdfast_wire::message::{
    FINGERPRINT_NAME_BYTES_MAX, FINGERPRINT_PARTS_MAX, FingerprintKind as Kind, FingerprintPart,
};
use path::PATH;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Kinds in the order in which they are told.
const KINDS: [Kind; 7] = [
    Kind::Program,
    Kind::Library,
    Kind::File,
    Kind::Argument,
    Kind::Variable,
    Kind::Setting,
    Kind::CpuFeature,
];

/// One thing that must be the same on both members; see [`FingerprintPart`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub kind: Kind,
    pub name: String,
    pub hash: u64,
}

/// Everything that must be the same, as this host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Parts, sorted; at most [`FINGERPRINT_PARTS_MAX`].
    parts: Vec<Part>,
    /// The folders of the server's `PATH`, which explain a difference and are none.
    path: Vec<Part>,
    hasher: Hasher,
}

/// Why this host cannot tell its fingerprint: the server could not start either.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    #[error("`{0}` is no program of this host")]
    NoProgram(String),
    #[error("libholdfast_shim.so is neither beside {0} nor in {1}")]
    NoShim(PathBuf, PathBuf),
    #[error("{path} cannot be read: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{program} needs the library {library}, which this host lacks")]
    NoLibrary { program: PathBuf, library: String },
    #[error("the loader {loader} cannot list the libraries of {program}: {said}")]
    Loader { loader: &'static str, program: PathBuf, said: String },
    #[error("the server has {0} libraries, arguments, files and variables to compare")]
    TooMany(usize),
}

impl FingerprintError {
    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoProgram(_) => "install the same package on both members".to_owned(),
            Self::NoShim(..) => {
                "build it with `cargo build --release -p holdfast-shim`, and install it beside the program"
                    .to_owned()
            }
            Self::Unreadable { .. } => {
                "let the user who runs the daemon read it, or name another file in `command`"
                    .to_owned()
            }
            Self::NoLibrary { .. } => {
                "install the package that has it, in the same version on both members".to_owned()
            }
            Self::Loader { .. } => "the server must be a program for x86_64 and glibc".to_owned(),
            Self::TooMany(_) => format!(
                "at most {FINGERPRINT_PARTS_MAX} are possible: start the daemon with a smaller environment"
            ),
        }
    }
}

impl Fingerprint {
    /// Looks at this host. Reads the server's files, and has the system's
    /// loader list its libraries; nothing of the server is executed.
    ///
    /// # Errors
    /// As [`FingerprintError`] tells.
    pub fn gather(config: &Config, key: &GroupKey) -> Result<Self, FingerprintError> {
        Self::gather_with(config, key, &shim_path()?)
    }

    /// Like [`Self::gather`], with the shim at this path.
    pub(crate) fn gather_with(
        config: &Config,
        key: &GroupKey,
        shim: &Path,
    ) -> Result<Self, FingerprintError> {
        let hasher = Hasher(key.fingerprint_key());
        let environment = environment_of(&config.server);
        let path = environment.get(OsStr::new(PATH)).map(|it| it.to_string_lossy());
        let path = path.as_deref().map(path::explaining).unwrap_or_default();
        let gathered = Self::new(gather::parts(config, &hasher, shim)?, hasher)?;
        Ok(Self { path, ..gathered })
    }

    fn new(mut parts: Vec<Part>, hasher: Hasher) -> Result<Self, FingerprintError> {
        parts.sort();
        parts.dedup();
        if parts.len() > FINGERPRINT_PARTS_MAX {
            return Err(FingerprintError::TooMany(parts.len()));
        }
        Ok(Self { parts, path: Vec::new(), hasher })
    }

    /// The parts, as [`Message::Hello`](holdfast_wire::message::Message::Hello)
    /// carries them. `explains`: with the folders of `PATH`, for a member that is known to have
    /// another one. A release that does not know them calls them a difference.
    #[must_use]
    pub fn wire(&self, explains: bool) -> Vec<FingerprintPart<'_>> {
        let path = self.path.iter().filter(|_| explains);
        self.parts.iter().chain(path).take(FINGERPRINT_PARTS_MAX).map(Part::wire).collect()
    }

    /// One number for everything: if it differs between members, they do not
    /// pair.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash_of(|_| true)
    }

    /// The hash, and the hashes of its kinds, for people who compare two hosts.
    #[must_use]
    pub fn summary(&self) -> String {
        let kinds: Vec<String> = KINDS
            .into_iter()
            .map(|kind| {
                let count = self.parts.iter().filter(|p| p.kind == kind).count();
                // Half of the digits tell two hosts apart as well.
                let short = self.hash_of(|k| k == kind) >> 32;
                format!("{count} {} {short:08x}", compare::noun(kind, count))
            })
            .collect();
        format!("{:016x} ({})", self.hash(), kinds.join(", "))
    }

    /// The differences between this member and another one; `None` if there are
    /// none. `us` and `them` are the members' names.
    #[must_use]
    pub fn difference(&self, theirs: &[Part], us: &str, them: &str) -> Option<Difference> {
        compare::difference((&self.parts, &self.path), theirs, us, them)
    }

    fn hash_of(&self, wanted: impl Fn(Kind) -> bool) -> u64 {
        let mut mac = self.hasher.start();
        for part in self.parts.iter().filter(|p| wanted(p.kind)) {
            mac.update(&[part.kind as u8]);
            mac.update(&(part.name.len() as u64).to_le_bytes());
            mac.update(part.name.as_bytes());
            mac.update(&part.hash.to_le_bytes());
        }
        Hasher::end(mac)
    }
}

impl Part {
    fn wire(&self) -> FingerprintPart<'_> {
        FingerprintPart { kind: self.kind, name: &self.name, hash: self.hash }
    }
}

impl From<&FingerprintPart<'_>> for Part {
    fn from(part: &FingerprintPart<'_>) -> Self {
        Self { kind: part.kind, name: part.name.to_owned(), hash: part.hash }
    }
}

type Mac = blake2::Blake2sMac<U8>;

/// BLAKE2s keyed for a group, cut to 64 bits.
#[derive(Clone, PartialEq, Eq)]
struct Hasher([u8; 32]);

impl Hasher {
    fn start(&self) -> Mac {
        <Mac as KeyInit>::new((&self.0).into())
    }

    fn end(mac: Mac) -> u64 {
        u64::from_le_bytes(mac.finalize_fixed().into())
    }

    /// A part whose content is `content`.
    fn part(&self, kind: Kind, name: &str, content: &[u8]) -> Part {
        let mut mac = self.start();
        mac.update(content);
        self.finish(kind, name, mac)
    }

    /// A part with what `mac` has seen. A name that is too long keeps its end,
    /// and all of it goes into the hash.
    fn finish(&self, kind: Kind, name: &str, mut mac: Mac) -> Part {
        mac.update(name.as_bytes());
        let mut from = name.len().saturating_sub(FINGERPRINT_NAME_BYTES_MAX);
        while !name.is_char_boundary(from) {
            from += 1;
        }
        Part { kind, name: name[from..].to_owned(), hash: Self::end(mac) }
    }

    /// A part with a file's content.
    fn file(&self, kind: Kind, name: &str, path: &Path) -> Result<Part, FingerprintError> {
        let mut mac = self.start();
        gather::feed_file(path, &mut |bytes| mac.update(bytes))
            .map_err(|error| FingerprintError::Unreadable { path: path.to_owned(), error })?;
        Ok(self.finish(kind, name, mac))
    }
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher(secret)")
    }
}
