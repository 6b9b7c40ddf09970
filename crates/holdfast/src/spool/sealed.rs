//! A file without a name, of chunks that only the process which has written them can read.
//! Their lengths are kept in memory: what the disk says cannot change what is read.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

/// What a chunk takes besides its bytes.
pub const SEAL_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// See the module.
pub struct Sealed {
    file: File,
    key: LessSafeKey,
    /// Lengths of its chunks, as they lie there.
    lens: Vec<u32>,
    end: u64,
}

impl Sealed {
    /// An empty one below `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// As open(2) and mkdir(2).
    pub fn make(dir: &Path) -> io::Result<Self> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(io::Error::other)?;
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { file: nameless(dir)?, key: LessSafeKey::new(key), lens: Vec::new(), end: 0 })
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// As pwrite(2) and fdatasync(2). The file is as before then.
    pub fn add(&mut self, mut chunk: Vec<u8>, is_synced: bool) -> io::Result<()> {
        let nonce = nonce(self.lens.len());
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut chunk)
            .map_err(io::Error::other)?;
        self.file.write_all_at(&chunk, self.end)?;
        if is_synced {
            self.file.sync_data()?;
        }
        self.lens.push(chunk.len() as u32);
        self.end += chunk.len() as u64;
        Ok(())
    }

    /// Its chunks, in the order in which they were added.
    pub fn chunks(&self) -> impl Iterator<Item = Result<Vec<u8>, String>> + '_ {
        let mut at = 0;
        self.lens.iter().enumerate().map(move |(number, len)| {
            let from = at;
            at += u64::from(*len);
            self.chunk(number, from, *len)
        })
    }

    fn chunk(&self, number: usize, at: u64, len: u32) -> Result<Vec<u8>, String> {
        let mut chunk = vec![0; len as usize];
        self.file.read_exact_at(&mut chunk, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it was cut off".to_owned(),
            _ => error.to_string(),
        })?;
        let opened = self.key.open_in_place(nonce(number), Aad::empty(), &mut chunk);
        let len = opened.map_err(|_| "it is not what was written".to_owned())?.len();
        chunk.truncate(len);
        Ok(chunk)
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// Never used twice with a key: each file has its own, and each chunk another number.
fn nonce(number: usize) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// A file that is gone when nobody has it open any more.
fn nameless(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(dir) {
        // A file system, or a kernel, that has no such files.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            named(dir, options.create_new(true))
        }
        file => file,
    }
}

fn named(dir: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    let path = dir.join(format!(".holdfast-{:016x}", u64::from_le_bytes(number)));
    let file = options.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_nameless_files_leaves_no_name_behind() {
        let dir = std::env::temp_dir().join(format!("holdfast-named-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).create_new(true);
        let file = named(&dir, &options).expect("a file");
        file.write_all_at(b"x", 0).expect("room");
        assert_eq!(std::fs::read_dir(&dir).expect("a folder").count(), 0);
        std::fs::remove_dir(&dir).expect("an empty folder");
    }
}
