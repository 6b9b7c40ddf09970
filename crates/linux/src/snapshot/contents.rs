//! Contents of files and of shared memory, copied while the processes stand still.

use super::bounds::{Patience, Room};
use super::describe::areas::extents;
use super::describe::shared::Objects;
use super::error::{Doing, Result};
use super::names;
use crate::sockopt::checked_len;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// The contents, without holes.
#[derive(Default)]
pub(super) struct Contents {
    bytes: Vec<u8>,
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
        let mut room = vec![1; bytes as usize];
        room.clear();
        Self { bytes: room, pieces: Vec::new() }
    }

    pub fn push(&mut self, number: u32, offset: u64, bytes: &[u8]) {
        let (from, len) = (self.bytes.len(), bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.pieces.push(Piece { number, offset, from, len });
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
                self.read(file, number, (offset, len as usize)).doing(what)?;
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

    /// Adds a part of a file, which is as long as that.
    fn read(&mut self, file: &File, number: u32, (offset, len): (u64, usize)) -> io::Result<()> {
        let from = self.bytes.len();
        self.bytes.reserve(len);
        while self.bytes.len() < from + len {
            let read = self.bytes.len() - from;
            let room = &mut self.bytes.spare_capacity_mut()[..len - read];
            let at = (offset + read as u64).cast_signed();
            // SAFETY: the kernel writes at most as many bytes as there is room for.
            let got = checked_len(unsafe {
                libc::pread(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), at)
            })?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: the kernel has written so many.
            unsafe { self.bytes.set_len(from + read + got) };
        }
        self.pieces.push(Piece { number, offset, from, len });
        Ok(())
    }

    /// Each piece: the number of its file, the offset in that, and the bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, &[u8])> {
        self.pieces.iter().map(|it| (it.number, it.offset, &self.bytes[it.from..][..it.len]))
    }

    /// Bytes, and pieces.
    pub fn size(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.pieces.len() as u64)
    }
}
