//! Contents of files and of shared memory, copied while the processes stand still.

use super::bounds::{Patience, Room};
use super::describe::areas::extents;
use super::describe::shared::Objects;
use super::error::{Doing, Result};
use super::names;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// The contents, without holes.
#[derive(Default)]
pub(super) struct Contents {
    /// Room, of which the first `used` bytes are taken.
    bytes: Vec<u8>,
    used: usize,
    pieces: Vec<Piece>,
}

/// Bytes of one file: its number, the offset in it, and where the bytes are.
struct Piece {
    number: u32,
    offset: u64,
    from: usize,
    len: usize,
}

impl Contents {
    /// With room for so many bytes. All of it is written once: fresh memory would cost the freeze
    /// as much time as copying into it.
    pub fn with_room(bytes: u64) -> Self {
        Self { bytes: vec![1; bytes as usize], ..Self::default() }
    }

    pub fn push(&mut self, number: u32, offset: u64, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
        self.take(number, offset, bytes.len());
    }

    /// Adds the content of a file.
    pub fn copy(
        &mut self,
        file: &File,
        number: u32,
        (room, patience): (&mut Room, Patience),
    ) -> Result<()> {
        let what = "copying a file";
        let size = file.metadata().doing(what)?.len();
        for extent in extents(file, 0, size) {
            let (mut offset, end) = extent.doing(what)?;
            while offset < end {
                patience.check()?;
                let len = PIECE.min(end - offset);
                room.take(len)?;
                file.read_exact_at(self.next(len as usize), offset).doing(what)?;
                self.take(number, offset, len as usize);
                offset += len;
            }
        }
        Ok(())
    }

    /// Adds the content of shared memory.
    pub fn copy_all(
        &mut self,
        found: &Objects,
        (room, patience): (&mut Room, Patience),
    ) -> Result<()> {
        let each = (0..).zip(found.objects.iter().zip(&found.files));
        for (number, (object, (id, link))) in each {
            if object.is_external {
                continue;
            }
            let what = "copying shared memory";
            let from = names::read_link(link).doing(what)?;
            let metadata = from.metadata().doing(what)?;
            if (metadata.dev(), metadata.ino()) != *id {
                return Err(io::Error::other("it is another one by now")).doing(what);
            }
            self.copy(&from, number, (room, patience))?;
        }
        Ok(())
    }

    /// The next `len` bytes of the room.
    fn next(&mut self, len: usize) -> &mut [u8] {
        let end = self.used + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.used..end]
    }

    /// Makes the next `len` bytes a piece.
    fn take(&mut self, number: u32, offset: u64, len: usize) {
        self.pieces.push(Piece { number, offset, from: self.used, len });
        self.used += len;
    }

    /// Each piece: the number of its file, the offset in that, and the bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, &[u8])> {
        self.pieces.iter().map(|it| (it.number, it.offset, &self.bytes[it.from..][..it.len]))
    }

    /// Bytes, and pieces.
    pub fn size(&self) -> (u64, u64) {
        (self.used as u64, self.pieces.len() as u64)
    }
}
