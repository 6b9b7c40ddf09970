//! The edge's memory on disk: the epoch, its current member, and whether the
//! operator has closed the edge (decision 21).
//!
//! Two blocks of one file are written in turn; the one with the higher number counts. A crash
//! in the middle of a write damages only the older block. A promotion waits for one write in
//! place and one `fdatasync`, never for the creation of a file.

use super::record::{self, beside};
use crate::lock::{self, Lock};
use crate::spool;
use holdfast_cluster::state::{
    BLOCKS, EdgeState, MAGIC, STATE_BYTES_MAX, StateBlock, StateBlocks, StateWrite,
};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size of a block in bytes, the most that a torn write may destroy: no disk has larger physical
/// sectors.
const BLOCK_BYTES: u64 = 4096;

/// Size of the file.
const FILE_BYTES: u64 = BLOCKS as u64 * BLOCK_BYTES;

/// The open file. Nobody else opens it meanwhile.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    /// Held for as long as this lives.
    lock: Lock,
    path: PathBuf,
    blocks: StateBlocks,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("{path}: {error}; its folder must be writable and survive a reboot")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is used by another edge's daemon; stop that one, or give each its own file")]
    InUse { path: PathBuf },
    #[error(
        "{path} is damaged, so the epoch is unknown and nobody could take over; remove the file and start the edge again: while its host and the members run, it takes the epoch from its fence and from them, and no connection is lost; only if it stays closed then, for nobody is left who knows, stop both members and start them anew"
    )]
    Damaged { path: PathBuf },
    #[error(
        "{path} is there, and is no state of an edge; choose another edge.state_file, or remove it if nobody needs it"
    )]
    Foreign { path: PathBuf },
}

impl StateFile {
    /// Opens the file, or makes it if there is none.
    ///
    /// # Errors
    /// [`StateFileError::Damaged`] if the file is there but no block is whole,
    /// [`StateFileError::Foreign`] if it cannot be one, [`StateFileError::InUse`] if another
    /// process has it open.
    pub fn open(path: &Path) -> Result<Self, StateFileError> {
        let failed = |error| StateFileError::Io { path: path.to_owned(), error };
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = take_lock(path)?;
        let file = if path.try_exists().map_err(failed)? {
            refuse_foreign(path)?;
            OpenOptions::new().read(true).write(true).open(path)
        } else {
            create(path, StateBlock::default().to_string().as_bytes())
        };
        let file = file.map_err(failed)?;
        let damaged = || StateFileError::Damaged { path: path.to_owned() };
        let blocks = read(&file).ok_or_else(damaged)?;
        Ok(Self { file, lock, path: path.to_owned(), blocks })
    }

    /// Whether the edge could use this file, and write beside it; nothing of that is left.
    ///
    /// # Errors
    /// As [`StateFile::open`], but for [`StateFileError::InUse`].
    pub fn try_out(path: &Path) -> Result<(), StateFileError> {
        let failed = |error| StateFileError::Io { path: path.to_owned(), error };
        if path.try_exists().map_err(failed)? {
            refuse_foreign(path)?;
            let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
            let damaged = || StateFileError::Damaged { path: path.to_owned() };
            read(&file).ok_or_else(damaged)?;
        }
        // Missing folders are made, and so are the lock and, where one was removed, another file.
        let there = path.ancestors().skip(1).find(|folder| folder.exists());
        match there.filter(|folder| folder.is_dir()) {
            Some(folder) => spool::try_out(folder).map_err(failed),
            None => Err(failed(ErrorKind::NotADirectory.into())),
        }
    }

    /// The state on disk.
    #[must_use]
    pub fn state(&self) -> &EdgeState {
        self.blocks.state()
    }

    /// Writes a state and waits until the disk has it.
    ///
    /// # Errors
    /// [`StateFileError::Io`], or [`StateFileError::InUse`] if somebody has removed the
    /// lock and another process has it now; the state before still counts, once
    /// anything has been written after it.
    pub fn keep(&mut self, state: EdgeState) -> Result<(), StateFileError> {
        if !self.lock.is_at(&lock_path(&self.path)) {
            self.lock = take_lock(&self.path)?;
            tracing::warn!("the lock of {} had been removed: it is made anew", self.path.display());
        }
        let write = self.blocks.next(state);
        if !lock::is_at(&self.file, &self.path) {
            return self.start_anew(write);
        }
        let block = self.file.write_all_at(&write.bytes(), write.block as u64 * BLOCK_BYTES);
        let synced = block.and_then(|()| self.file.sync_data());
        synced.map_err(|error| StateFileError::Io { path: self.path.clone(), error })?;
        self.blocks.handle_written(write);
        Ok(())
    }

    /// Starts a new file when somebody has removed the old one, or put another
    /// one in its place: what is written into the old one would be lost with it.
    fn start_anew(&mut self, write: StateWrite) -> Result<(), StateFileError> {
        let failed = |error| StateFileError::Io { path: self.path.clone(), error };
        self.file = create(&self.path, &write.bytes()).map_err(failed)?;
        tracing::warn!("{} had been removed or replaced: it is written anew", self.path.display());
        self.blocks.handle_written(write);
        Ok(())
    }
}

/// Refuses a path that is not a regular file, and a file that this program cannot have written,
/// even in part: one that has another size and another beginning.
fn refuse_foreign(path: &Path) -> Result<(), StateFileError> {
    let failed = |error| StateFileError::Io { path: path.to_owned(), error };
    let found = std::fs::metadata(path).map_err(failed)?;
    let is_ours = found.is_file()
        && (matches!(found.len(), 0 | FILE_BYTES) || {
            let mut begin = [0; MAGIC.len()];
            let read = File::open(path).and_then(|file| file.read_at(&mut begin, 0));
            let read = read.map_err(failed)?;
            MAGIC.as_bytes().starts_with(&begin[..read])
        });
    if is_ours { Ok(()) } else { Err(StateFileError::Foreign { path: path.to_owned() }) }
}

fn lock_path(path: &Path) -> PathBuf {
    beside(path, ".lock")
}

fn take_lock(path: &Path) -> Result<Lock, StateFileError> {
    let failed = |error| StateFileError::Io { path: path.to_owned(), error };
    let lock = lock::exclusive(&lock_path(path)).map_err(failed)?;
    lock.ok_or_else(|| StateFileError::InUse { path: path.to_owned() })
}

/// Creates the file with `text` in every block: all blocks appear together or not at all.
fn create(path: &Path, text: &[u8]) -> io::Result<File> {
    let mut block = text.to_vec();
    block.resize(BLOCK_BYTES as usize, b'\n');
    record::replace(path, &block.repeat(BLOCKS))
}

fn read(file: &File) -> Option<StateBlocks> {
    let blocks: [Option<Vec<u8>>; BLOCKS] = std::array::from_fn(|block| read_block(file, block));
    StateBlocks::read(blocks.each_ref().map(Option::as_deref))
}

fn read_block(file: &File, block: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; STATE_BYTES_MAX];
    loop {
        match file.read_exact_at(&mut bytes, block as u64 * BLOCK_BYTES) {
            Ok(()) => return Some(bytes),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn state(epoch: u64, current: &str) -> EdgeState {
        EdgeState { epoch, current: Some(current.to_owned()), fenced: epoch == 3 }
    }

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// What a file that was closed a moment ago answers. What another test of this process forks
    /// has all its descriptors, and so its locks, until that becomes another program.
    fn afterwards<T>(
        mut attempt: impl FnMut() -> Result<T, StateFileError>,
    ) -> Result<T, StateFileError> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match attempt() {
                Err(StateFileError::InUse { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn opened_again(path: &Path) -> StateFile {
        afterwards(|| StateFile::open(path)).unwrap()
    }

    fn remove(path: &Path) {
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(lock_path(path)).unwrap();
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let path = path("state");
        for epoch in 1..5 {
            let mut file = opened_again(&path);
            assert_eq!(file.state().epoch, epoch - 1);
            file.keep(state(epoch, "a")).unwrap();
        }
        assert_eq!(opened_again(&path).state(), &state(4, "a"));
        remove(&path);
    }

    #[test]
    fn only_one_may_have_it_open() {
        let path = path("twice");
        let file = StateFile::open(&path).unwrap();
        assert!(matches!(StateFile::open(&path), Err(StateFileError::InUse { .. })));
        drop(file);
        opened_again(&path);
        remove(&path);
    }

    #[test]
    fn files_that_differ_in_their_endings_are_two() {
        let stem = path("endings");
        let paths = [".a", ".b", ".lock", ".new"].map(|ending| beside(&stem, ending));
        let mut files = paths.each_ref().map(|path| StateFile::open(path).unwrap());
        for (epoch, file) in (1..).zip(&mut files) {
            file.keep(state(epoch, "a")).unwrap();
        }
        drop(files);
        for (epoch, path) in (1..).zip(&paths) {
            assert_eq!(opened_again(path).state().epoch, epoch);
            remove(path);
        }
    }

    #[test]
    fn a_link_of_somebody_else_is_not_followed() {
        let path = path("linked");
        let target = beside(&path, ".target");
        std::fs::write(&target, "theirs").unwrap();
        std::os::unix::fs::symlink(&target, beside(&path, ".new")).unwrap();
        drop(StateFile::open(&path).unwrap());
        assert_eq!(std::fs::read(&target).unwrap(), b"theirs");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        std::fs::remove_file(&target).unwrap();
        remove(&path);
    }

    /// `/dev/null` accepts every write and cannot be synced.
    #[test]
    fn what_is_not_synced_is_not_kept() {
        let path = path("unsynced");
        let mut file = StateFile::open(&path).unwrap();
        remove(&path);
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        file.file = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(matches!(file.keep(state(1, "a")), Err(StateFileError::Io { .. })));
        assert_eq!(file.state().epoch, 0);
        remove(&path);
    }

    #[test]
    fn a_file_of_somebody_else_is_not_called_damaged() {
        let path = path("foreign");
        let mut whole = StateBlock::default().to_string().into_bytes();
        whole.resize(BLOCK_BYTES as usize, b'\n');
        for (bytes, is_ours) in [
            (&b"tcp 6 TCP\n"[..], false),
            (&whole[..100], true),
            (b"", true),
            (&[7; FILE_BYTES as usize], true),
        ] {
            std::fs::write(&path, bytes).unwrap();
            for error in [StateFile::try_out(&path), StateFile::open(&path).map(drop)] {
                let error = error.expect_err("it says nothing");
                let foreign = matches!(error, StateFileError::Foreign { .. });
                assert_eq!(foreign, !is_ours, "{error}");
            }
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is as it was");
        }
        remove(&path);
        assert!(StateFile::try_out(&path).is_ok(), "it will be made");
        // In /proc no file can be made, as on a disk that is mounted read-only.
        for bad in ["/dev/null", "/tmp", "/etc/passwd/state", "/proc/state"] {
            assert!(StateFile::try_out(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lock_that_was_removed_is_made_anew_unless_another_has_it() {
        let path = path("relocked");
        let mut file = StateFile::open(&path).unwrap();
        std::fs::remove_file(lock_path(&path)).unwrap();
        file.keep(state(1, "a")).unwrap();
        assert!(matches!(StateFile::open(&path), Err(StateFileError::InUse { .. })));
        std::fs::remove_file(lock_path(&path)).unwrap();
        let other = StateFile::open(&path).unwrap();
        assert!(matches!(file.keep(state(2, "a")), Err(StateFileError::InUse { .. })));
        drop(other);
        afterwards(|| file.keep(state(2, "a"))).unwrap();
        drop(file);
        remove(&path);
    }

    fn block(file: &StateFile, block: usize) -> StateBlock {
        let bytes = read_block(&file.file, block).unwrap();
        StateBlock::parse(&[bytes.trim_ascii_end(), b"\n"].concat()).unwrap()
    }

    #[test]
    fn writes_take_turns_and_the_last_one_counts() {
        let path = path("turns");
        let mut file = StateFile::open(&path).unwrap();
        let kept = [state(3, "a"), EdgeState { fenced: false, ..state(3, "a") }, state(4, "b")];
        for pair in kept.windows(2) {
            file.keep(pair[0].clone()).unwrap();
            file.keep(pair[1].clone()).unwrap();
            let spare = file.blocks.next(EdgeState::default()).block;
            let (newer, older) = (block(&file, 1 - spare), block(&file, spare));
            assert_eq!([&older.state, &newer.state], [&pair[0], &pair[1]]);
            assert_eq!(older.number + 1, newer.number);
        }
        remove(&path);
    }

    #[test]
    fn a_torn_write_leaves_the_one_before() {
        let path = path("torn");
        let mut file = StateFile::open(&path).unwrap();
        file.keep(state(1, "a")).unwrap();
        file.keep(state(2, "b")).unwrap();
        let newest = 1 - file.blocks.next(EdgeState::default()).block;
        let start = newest as u64 * BLOCK_BYTES;
        let length = block(&file, newest).to_string().len() as u64;
        let now = |file: &StateFile| read(&file.file).unwrap().state().clone();
        for at in 0..length - 1 {
            let mut byte = [0];
            file.file.read_exact_at(&mut byte, start + at).unwrap();
            file.file.write_all_at(&[byte[0] ^ 0x10], start + at).unwrap();
            assert_eq!(now(&file), state(1, "a"), "byte {at}");
            file.file.write_all_at(&byte, start + at).unwrap();
        }
        assert_eq!(now(&file), state(2, "b"));
        file.file.write_all_at(&[0; 2 * BLOCK_BYTES as usize], 0).unwrap();
        drop(file);
        let opened = afterwards(|| StateFile::open(&path));
        assert!(matches!(opened, Err(StateFileError::Damaged { .. })));
        remove(&path);
    }
}
