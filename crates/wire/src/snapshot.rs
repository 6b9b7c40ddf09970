//! The image of a server's processes, as a stream: their [`Description`], the
//! contents of their files and shared memory, and their pages.
//!
//! A preamble, then chunks, each with a keyed hash of its place in the stream, its
//! header and its bytes: an image that is cut off, damaged, spliced, or made with
//! another key is refused where this shows. The hash is no signature (see
//! [`crate::hash`]); the channel decides who may send an image at all. Pages that
//! are not in the stream are zero, or those of the mapped file.

mod check;
mod description;
mod memory;
#[cfg(test)]
mod tests;

pub use check::STATE_FOLDERS_MAX;
pub use description::*;
pub use memory::*;

use crate::hash::{HashKey, Secrets, StreamHash};
use std::io::{self, Read, Write};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Version of the stream; another one is refused.
pub const VERSION: u32 = 10;
/// Size of a page, bytes.
pub const PAGE: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"HOLDSNAP");

/// Upper limits of an image.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one chunk.
    pub chunk_bytes: usize,
    /// Bytes of the encoded description.
    pub description_bytes: usize,
    /// Bytes of pages and contents together.
    pub memory_bytes: u64,
    /// Processes.
    pub members: usize,
    /// Threads, areas and descriptors of one process.
    pub threads: usize,
    pub areas: usize,
    pub descriptors: usize,
    /// Highest descriptor number, plus one.
    pub descriptor_end: u32,
    /// Bytes of one path or name.
    pub name_bytes: usize,
    /// Files, folders and links in the state folders.
    pub state_entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chunk_bytes: 1 << 20,
            description_bytes: 64 << 20,
            memory_bytes: 1 << 40,
            members: 256,
            threads: 4096,
            areas: 65536,
            descriptors: 1 << 20,
            descriptor_end: 1 << 20,
            name_bytes: 4096,
            state_entries: 10_000,
        }
    }
}

/// Why an image is refused.
#[derive(Debug)]
pub enum ImageError {
    /// The stream failed, or ended early (`UnexpectedEof`).
    Io(io::Error),
    /// It does not begin like an image.
    Foreign,
    /// It has another version.
    Version(u32),
    /// A chunk was damaged, moved to another place, or made with another key.
    Damaged { chunk: u64 },
    /// It exceeds the limit of this name.
    TooMuch(&'static str),
    /// It is inconsistent; names the first rule that it breaks.
    Malformed(&'static str),
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "the image ends early")
            }
            Self::Io(error) => write!(f, "the image's stream: {error}"),
            Self::Foreign => write!(f, "this is no image of a process"),
            Self::Version(found) => {
                write!(f, "the image is of version {found}, this build reads {VERSION}")
            }
            Self::Damaged { chunk } => write!(
                f,
                "chunk {chunk} of the image is damaged, out of place, or of another group"
            ),
            Self::TooMuch(what) => write!(f, "the image has more than the limit of {what}"),
            Self::Malformed(what) => write!(f, "the image makes no sense: {what}"),
        }
    }
}

impl std::error::Error for ImageError {}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Whole pages of [`Description::members`]`[member]`, from this address on.
    Pages { member: u32, address: u64 },
    /// Bytes of [`Description::files`]`[file]`, which is a pipe or an unlinked
    /// file.
    File { file: u32, offset: u64 },
    /// Bytes of [`Description::objects`]`[object]`.
    Object { object: u32, offset: u64 },
    /// Bytes of the file [`State::entries`]`[entry]`.
    State { entry: u32, offset: u64 },
    /// Nothing: the image is complete.
    End,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Preamble {
    magic: u64,
    version: u32,
    description_bytes: u32,
    hash: u64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Header {
    kind: u32,
    len: u32,
    /// Index of the member, file, object or entry.
    index: u32,
    zero: u32,
    /// Address or offset of the content.
    at: u64,
    hash: u64,
}

const PAGES: u32 = 1;
const FILE: u32 = 2;
const OBJECT: u32 = 3;
const END: u32 = 4;
const STATE: u32 = 5;

fn hash_of(secrets: &Secrets, place: u64, header: &[u8], bytes: &[u8]) -> u64 {
    let mut hash = StreamHash::new(secrets);
    hash.update(&place.to_le_bytes());
    hash.update(header);
    hash.update(bytes);
    hash.finish()
}

/// The largest size of an image with this description, in bytes, with this many bytes
/// of contents in this many pieces.
///
/// # Errors
/// If the description cannot be encoded.
pub fn bytes_max(
    description: &Description,
    contents_bytes: u64,
    pieces: u64,
) -> Result<u64, ImageError> {
    let before = size_of::<Preamble>() + encoded(description)?.len();
    // Each chunk has at least a page, except the last of each piece and the one that
    // marks the end.
    let chunks = contents_bytes / PAGE + pieces + 1;
    Ok(before as u64 + contents_bytes + chunks * size_of::<Header>() as u64)
}

fn encoded(description: &Description) -> Result<Vec<u8>, ImageError> {
    postcard::to_allocvec(description)
        .map_err(|_| ImageError::Malformed("the description cannot be encoded"))
}

/// Writes an image.
pub struct Writer<W> {
    out: W,
    secrets: Secrets,
    limits: Limits,
    /// Number of chunks written.
    place: u64,
    /// Bytes of contents written.
    taken: u64,
}

impl<W: Write> Writer<W> {
    /// Begins the image of what `description` describes.
    ///
    /// # Errors
    /// If a reader with these limits would refuse it, or `out` fails.
    pub fn begin(
        mut out: W,
        key: &HashKey,
        limits: Limits,
        description: &Description,
    ) -> Result<Self, ImageError> {
        check::description(description, &limits)?;
        let bytes = encoded(description)?;
        if bytes.len() > limits.description_bytes.min(u32::MAX as usize) {
            return Err(ImageError::TooMuch("description_bytes"));
        }
        let secrets = Secrets::new(key);
        let mut preamble = Preamble {
            magic: MAGIC,
            version: VERSION,
            description_bytes: bytes.len() as u32,
            hash: 0,
        };
        preamble.hash = hash_of(&secrets, 0, preamble.as_bytes(), &bytes);
        out.write_all(preamble.as_bytes())?;
        out.write_all(&bytes)?;
        Ok(Self { out, secrets, limits, place: 0, taken: 0 })
    }

    /// Appends the bytes as one chunk or several; no bytes, no chunk.
    ///
    /// # Errors
    /// If `out` fails, or a reader with these limits would refuse it.
    pub fn chunk(&mut self, holds: Holds, bytes: &[u8]) -> Result<(), ImageError> {
        let step = self.limits.chunk_bytes.max(PAGE as usize) / PAGE as usize * PAGE as usize;
        self.taken = self.taken.saturating_add(bytes.len() as u64);
        if self.taken > self.limits.memory_bytes {
            return Err(ImageError::TooMuch("memory_bytes"));
        }
        for (index, piece) in bytes.chunks(step).enumerate() {
            let further = (index * step) as u64;
            let holds = match holds {
                Holds::Pages { member, address } => {
                    Holds::Pages { member, address: address + further }
                }
                Holds::File { file, offset } => Holds::File { file, offset: offset + further },
                Holds::Object { object, offset } => {
                    Holds::Object { object, offset: offset + further }
                }
                Holds::State { entry, offset } => Holds::State { entry, offset: offset + further },
                Holds::End => Holds::End,
            };
            self.one(holds, piece)?;
        }
        Ok(())
    }

    fn one(&mut self, holds: Holds, bytes: &[u8]) -> Result<(), ImageError> {
        let (kind, index, at) = match holds {
            Holds::Pages { member, address } => (PAGES, member, address),
            Holds::File { file, offset } => (FILE, file, offset),
            Holds::Object { object, offset } => (OBJECT, object, offset),
            Holds::State { entry, offset } => (STATE, entry, offset),
            Holds::End => (END, 0, 0),
        };
        self.place += 1;
        let mut header = Header { kind, len: bytes.len() as u32, index, zero: 0, at, hash: 0 };
        header.hash = hash_of(&self.secrets, self.place, header.as_bytes(), bytes);
        self.out.write_all(header.as_bytes())?;
        Ok(self.out.write_all(bytes)?)
    }

    /// Completes the image.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn end(mut self) -> Result<W, ImageError> {
        self.one(Holds::End, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads an image; whatever it is given, it answers with a chunk or an error.
pub struct Reader<R> {
    input: R,
    secrets: Secrets,
    limits: Limits,
    description: Description,
    /// Number of chunks read.
    place: u64,
    /// Bytes of contents read.
    taken: u64,
    ended: bool,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the image's description.
    ///
    /// # Errors
    /// [`ImageError`]; nothing has been allocated beyond the limits.
    pub fn begin(mut input: R, key: &HashKey, limits: Limits) -> Result<Self, ImageError> {
        let mut preamble = Preamble::new_zeroed();
        input.read_exact(preamble.as_mut_bytes())?;
        if preamble.magic != MAGIC {
            return Err(ImageError::Foreign);
        }
        if preamble.version != VERSION {
            return Err(ImageError::Version(preamble.version));
        }
        let len = preamble.description_bytes as usize;
        if len > limits.description_bytes {
            return Err(ImageError::TooMuch("description_bytes"));
        }
        let mut bytes = Vec::new();
        fill(&mut input, &mut bytes, len)?;
        let secrets = Secrets::new(key);
        let hash = std::mem::take(&mut preamble.hash);
        if hash_of(&secrets, 0, preamble.as_bytes(), &bytes) != hash {
            return Err(ImageError::Damaged { chunk: 0 });
        }
        let description = parse(&bytes, &limits)?;
        let (place, taken, ended, buffer) = (0, 0, false, Vec::new());
        Ok(Self { input, secrets, limits, description, place, taken, ended, buffer })
    }

    #[must_use]
    pub const fn description(&self) -> &Description {
        &self.description
    }

    /// Whether all files of its state folders have been read.
    #[must_use]
    pub const fn has_state(&self) -> bool {
        self.taken >= self.description.state.bytes
    }

    /// The next chunk; after [`Holds::End`] there is none.
    ///
    /// # Errors
    /// [`ImageError`]; the image is then of no use.
    pub fn chunk(&mut self) -> Result<(Holds, &[u8]), ImageError> {
        if self.ended {
            return Err(ImageError::Malformed("nothing follows the end"));
        }
        let mut header = Header::new_zeroed();
        self.input.read_exact(header.as_mut_bytes())?;
        self.place += 1;
        let len = header.len as usize;
        // A damaged length that is within the limits is found only by the hash
        // behind it.
        if len > self.limits.chunk_bytes.max(PAGE as usize) {
            return Err(ImageError::TooMuch("chunk_bytes"));
        }
        fill(&mut self.input, &mut self.buffer, len)?;
        let hash = std::mem::take(&mut header.hash);
        if hash_of(&self.secrets, self.place, header.as_bytes(), &self.buffer) != hash {
            return Err(ImageError::Damaged { chunk: self.place });
        }
        self.taken += u64::from(header.len);
        if self.taken > self.limits.memory_bytes {
            return Err(ImageError::TooMuch("memory_bytes"));
        }
        let holds = match header.kind {
            PAGES => Holds::Pages { member: header.index, address: header.at },
            FILE => Holds::File { file: header.index, offset: header.at },
            OBJECT => Holds::Object { object: header.index, offset: header.at },
            STATE => Holds::State { entry: header.index, offset: header.at },
            END => Holds::End,
            _ => return Err(ImageError::Malformed("a chunk is of no known kind")),
        };
        check::chunk(&self.description, holds, len as u64)?;
        check::turn(&self.description, holds, self.taken - len as u64, self.taken)?;
        self.ended = holds == Holds::End;
        Ok((holds, &self.buffer))
    }
}

/// Reads `len` bytes, and allocates only for what arrives.
fn fill(input: &mut impl Read, into: &mut Vec<u8>, len: usize) -> Result<(), ImageError> {
    into.clear();
    if input.take(len as u64).read_to_end(into)? < len {
        return Err(ImageError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}

/// Parses an encoded [`Description`]; defined for any bytes.
///
/// # Errors
/// [`ImageError::Malformed`], [`ImageError::TooMuch`].
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Description, ImageError> {
    let (description, rest) = postcard::take_from_bytes(bytes)
        .map_err(|_| ImageError::Malformed("the description cannot be decoded"))?;
    if !rest.is_empty() {
        return Err(ImageError::Malformed("bytes follow the description"));
    }
    check::description(&description, limits)?;
    Ok(description)
}
