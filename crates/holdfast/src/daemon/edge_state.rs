//! The edge's memory on disk: the epoch and who is current in it (decision 21).
//!
//! Two blocks of one file are written in turn; the one with the higher epoch
//! counts. A crash in the middle of a write damages the older one only, and a
//! promotion waits for one write in place and one `fdatasync`, never for the
//! making of a file.

use holdfast_cluster::state::{EdgeState, STATE_BYTES_MAX};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a torn write may take with it: no disk has larger physical sectors.
const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 2;

/// The open file.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    /// The block that does not count.
    spare: u64,
    state: EdgeState,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("{path}: {error}; its folder must be writable and survive a reboot")]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "{path} is damaged, so the epoch is unknown and the edge stays closed; stop both members, remove the file and start the edge again"
    )]
    Damaged { path: PathBuf },
}

impl StateFile {
    /// Opens the file, or makes it if there is none.
    ///
    /// # Errors
    /// [`StateFileError::Damaged`] if the file is there but no block is whole.
    pub fn open(path: &Path) -> Result<Self, StateFileError> {
        let failed = |error| StateFileError::Io { path: path.to_owned(), error };
        if !path.try_exists().map_err(failed)? {
            create(path).map_err(failed)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let blocks = (0..BLOCKS).filter_map(|block| Some((block, read_block(&file, block)?)));
        let newest = blocks.max_by_key(|(_, state)| state.epoch);
        let damaged = || StateFileError::Damaged { path: path.to_owned() };
        let (block, state) = newest.ok_or_else(damaged)?;
        Ok(Self { file, path: path.to_owned(), spare: (block + 1) % BLOCKS, state })
    }

    /// What is on disk.
    #[must_use]
    pub fn state(&self) -> &EdgeState {
        &self.state
    }

    /// Writes a state of a higher epoch and waits until the disk has it.
    ///
    /// # Errors
    /// [`StateFileError::Io`]; the state before still counts.
    pub fn keep(&mut self, state: EdgeState) -> Result<(), StateFileError> {
        let block = self.file.write_all_at(&block_of(&state), self.spare * BLOCK_BYTES);
        let synced = block.and_then(|()| self.file.sync_data());
        synced.map_err(|error| StateFileError::Io { path: self.path.clone(), error })?;
        self.spare = (self.spare + 1) % BLOCKS;
        self.state = state;
        Ok(())
    }
}

/// All blocks appear together or not at all.
fn create(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    for _ in 0..BLOCKS {
        let mut block = block_of(&EdgeState::default());
        block.resize(BLOCK_BYTES as usize, b'\n');
        file.write_all(&block)?;
    }
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    File::open(folder)?.sync_all()
}

/// The state's text, filled up with line ends.
fn block_of(state: &EdgeState) -> Vec<u8> {
    let mut block = state.to_string().into_bytes();
    block.resize(STATE_BYTES_MAX, b'\n');
    block
}

fn read_block(file: &File, block: u64) -> Option<EdgeState> {
    let mut bytes = vec![0; STATE_BYTES_MAX];
    loop {
        match file.read_exact_at(&mut bytes, block * BLOCK_BYTES) {
            Ok(()) => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let text = bytes.trim_ascii_end();
    EdgeState::parse(&[text, b"\n"].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(epoch: u64, current: &str) -> EdgeState {
        EdgeState { epoch, current: Some(current.to_owned()) }
    }

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let path = path("state");
        for epoch in 1..5 {
            let mut file = StateFile::open(&path).unwrap();
            assert_eq!(file.state().epoch, epoch - 1);
            file.keep(state(epoch, "a")).unwrap();
        }
        assert_eq!(StateFile::open(&path).unwrap().state(), &state(4, "a"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_torn_write_leaves_the_one_before() {
        let path = path("torn");
        let mut file = StateFile::open(&path).unwrap();
        file.keep(state(1, "a")).unwrap();
        file.keep(state(2, "b")).unwrap();
        let newest = (file.spare + 1) % BLOCKS * BLOCK_BYTES;
        let length = state(2, "b").to_string().len() as u64;
        for at in 0..length - 1 {
            let mut byte = [0];
            file.file.read_exact_at(&mut byte, newest + at).unwrap();
            file.file.write_all_at(&[byte[0] ^ 0x10], newest + at).unwrap();
            assert_eq!(StateFile::open(&path).unwrap().state(), &state(1, "a"), "byte {at}");
            file.file.write_all_at(&byte, newest + at).unwrap();
        }
        assert_eq!(StateFile::open(&path).unwrap().state(), &state(2, "b"));
        file.file.write_all_at(&[0; 2 * BLOCK_BYTES as usize], 0).unwrap();
        assert!(matches!(StateFile::open(&path), Err(StateFileError::Damaged { .. })));
        std::fs::remove_file(path).unwrap();
    }
}
