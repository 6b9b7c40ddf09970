//! A process made from an image: a stub with the right number in a pid namespace of
//! its own, turned into the server by system calls that it is told to make, from one
//! page that the image does not use; then released.
//!
//! The namespace's first process only waits for the server and ends with it, and the
//! server ends with that process. All calls must come from one thread, which traces
//! the stub.

mod files;
mod layout;
mod locks;
mod mapped;
mod remote;
mod sockets;
mod state;
mod stub;
mod timers;

pub use sockets::{bind, bound, placeholder};

use super::error::{Doing, Result, SnapshotError, refuse};
use super::guise::Guise;
use super::names::Mounts;
use super::state::place::Placing;
use crate::process;
use files::Made;
use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::{Description, Holds, Limits, Object, OpenFile, Reader, Socket};
use mapped::Mapped;
use remote::Remote;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Longest time until a killed process is gone, in ms.
const REAP_MAX_MS: i32 = 5000;
/// Longest time for one step of the stub.
const STEP_MAX: Duration = Duration::from_secs(10);

/// What connects a restored process with its host. Files and sockets are made with
/// the process's own rights to files, and no others.
pub trait Surroundings {
    /// Called with what is about to be restored.
    ///
    /// # Errors
    /// Nothing is restored then.
    fn begin(&mut self, _description: &Description) -> std::result::Result<(), SnapshotError> {
        Ok(())
    }

    /// An open file that is not made anew; `None` leaves it to the loader.
    /// `numbers` are the descriptors that name it.
    ///
    /// # Errors
    /// Nothing is restored then.
    fn file(&mut self, _numbers: &[u32], _file: &OpenFile) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// The socket that takes the place of one in the image.
    ///
    /// # Errors
    /// Nothing is restored then.
    fn socket(&mut self, socket: &Socket) -> io::Result<OwnedFd>;

    /// Shared memory that is not in the image.
    ///
    /// # Errors
    /// Nothing is restored then.
    fn memory(&mut self, object: &Object) -> io::Result<OwnedFd>;

    /// Everything is in place and nothing runs yet: the last chance to change its
    /// memory.
    ///
    /// # Errors
    /// Nothing is restored then.
    fn before_it_runs(&mut self, _stopped: &Stopped) -> io::Result<()> {
        Ok(())
    }
}

/// A restored process that does not run yet.
pub struct Stopped {
    pid: u32,
}

impl Stopped {
    /// Writes into its memory.
    ///
    /// # Errors
    /// `EFAULT` where it has no writable memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        remote::poke(self.pid, address, bytes)
    }
}

/// How a process is restored.
#[derive(Clone, Debug)]
pub struct Loading {
    pub key: HashKey,
    pub limits: Limits,
    /// Folders whose content the image replaces: exactly these, or it is
    /// refused.
    pub state_dirs: Vec<PathBuf>,
    /// What is there before that is set aside, until [`super::settle`] puts it back or
    /// [`super::forget`] gives it up.
    pub keeps_old: bool,
    /// Whether it is killed when the thread that restored it ends.
    pub dies_with_parent: bool,
}

/// A restored process. It is killed when this is dropped, unless it was released.
pub struct Restored {
    pid: u32,
    pidfd: OwnedFd,
    /// The first process of its namespace.
    keeper: stub::Keeper,
}

impl Restored {
    /// Process id, in the caller's numbering.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when it has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Asks that the process outlives its restorer, even when this is dropped. Returns
    /// whether that holds by now; otherwise ask again.
    #[must_use]
    pub fn let_loose(&self) -> bool {
        self.keeper.let_loose()
    }

    /// Pidfd of the process that keeps its namespace, a child of the caller that ends as
    /// the server does: readable when everything that the server has started has ended,
    /// too.
    #[must_use]
    pub fn namespace(&self) -> BorrowedFd<'_> {
        self.keeper.pidfd()
    }
}

/// Restores the process of an image while the image arrives, and lets it run.
///
/// # Errors
/// [`SnapshotError`]; nothing of the process is left then.
pub fn restore(
    input: impl Read,
    loading: &Loading,
    surroundings: &mut dyn Surroundings,
) -> Result<Restored> {
    let mut image = Reader::begin(input, &loading.key, loading.limits)?;
    let description = image.description().clone();
    surroundings.begin(&description)?;
    place_state(&mut image, &description, loading)?;
    let place = layout::free_place(&description)?;
    let (mut made, mapped) = files_of(&description, loading, surroundings)?;
    let stub = stub::start(&description, &made, place, loading.dies_with_parent)?;
    let mut leader = Remote::seize(stub.pid, place)?;
    layout::map(&mut leader, &description, &made, &mapped)?;
    loop {
        let (holds, bytes) = image.chunk()?;
        match holds {
            Holds::Pages { address } => remote::poke(stub.pid, address, bytes)
                .doing(format!("filling its memory at {address:#x}"))?,
            Holds::File { file, offset } => made.fill_file(file, offset, bytes)?,
            Holds::Object { object, offset } => made.fill_object(object, offset, bytes)?,
            Holds::State { .. } => return refuse("there is more state than was said"),
            Holds::End => break,
        }
    }
    made.finish(&description)?;
    layout::protect(&mut leader, &description, &mapped)?;
    locks::take(&mut leader, &description)?;
    state::threads(&mut leader, &description)?;
    timers::make(&mut leader, &description)?;
    let what = "what the caller does before it runs";
    surroundings.before_it_runs(&Stopped { pid: stub.pid }).doing(what)?;
    state::finish(&mut leader, &description)?;
    drop((made, mapped));
    leader.let_go()?;
    let pidfd = process::pidfd_open(stub.pid).doing("opening the restored process")?;
    Ok(Restored { pid: stub.pid, pidfd, keeper: stub.keeper })
}

/// Puts the files in which the process keeps its state in place of those here.
fn place_state(
    image: &mut Reader<impl Read>,
    description: &Description,
    loading: &Loading,
) -> Result<()> {
    let mounts = Mounts::read().doing("what is mounted")?;
    let _guise = Guise::of(&description.process.ids).doing("the server's rights to files")?;
    let mut placing =
        Placing::begin(&description.state, &loading.state_dirs, loading.keeps_old, &mounts)?;
    while !image.has_state() {
        let (Holds::State { entry, offset }, bytes) = image.chunk()? else {
            return refuse("there is less state than was said");
        };
        placing.fill(entry, offset, bytes)?;
    }
    placing.finish()
}

/// All files of an image, opened and made with the process's rights.
fn files_of(
    description: &Description,
    loading: &Loading,
    surroundings: &mut dyn Surroundings,
) -> Result<(Made, Mapped)> {
    let mounts = Mounts::read().doing("what is mounted")?;
    let _guise = Guise::of(&description.process.ids).doing("the server's rights to files")?;
    let mapped = Mapped::open(description, &mounts, loading)?;
    Ok((files::make(description, &mounts, surroundings)?, mapped))
}

/// Path where another process finds what this one has open.
fn within(file: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// A step of the stub's failed.
fn failed<T>(what: impl Into<String>, errno: i32) -> Result<T> {
    Err(SnapshotError::Step { what: what.into(), error: io::Error::from_raw_os_error(errno) })
}
