//! Processes made from an image: stubs with the right numbers in a pid namespace of
//! their own, turned into the server by system calls that they are told to make, from
//! pages that the image does not use; then released.
//!
//! If the image's first process is not the first one of its namespace, the loader adds one that
//! only waits for the server and ends with it; and the server ends with that process. All calls
//! must come from one thread, which traces the stubs.

mod files;
mod layout;
mod locks;
mod mapped;
mod program;
mod remote;
mod shared;
mod sockets;
mod state;
mod stub;
mod timers;

pub use layout::own_vdso;
pub use sockets::{bind, bound, placeholder};

use super::error::{Doing, Result, SnapshotError, refuse};
use super::guise::Guise;
use super::names::Mounts;
use super::state::place::Placing;
use crate::process;
use files::Made;
use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::{
    Description, Holds, Limits, Member, Object, OpenFile, Reader, Socket,
};
use mapped::{Compared, Mapped};
use remote::Remote;
use shared::Ipc;
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
    /// `numbers` are the descriptors that name it, in the first process that has it.
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

    /// Whether threads whose system calls are watched may not read the time stamp counter.
    fn traps_tsc(&self) -> bool {
        false
    }

    /// Everything is in place and nothing runs yet: the last chance to change the memory of a
    /// process. Called for each.
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
    member: usize,
}

impl Stopped {
    /// Which of the image's processes it is.
    #[must_use]
    pub const fn member(&self) -> usize {
        self.member
    }

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

/// A restored server. It is killed when this is dropped, unless it was released.
pub struct Restored {
    pid: u32,
    pidfd: OwnedFd,
    root: stub::Root,
}

impl Restored {
    /// Process id of its first process, in the caller's numbering.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when that process has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Asks that the server outlives its restorer, even when this is dropped. Returns
    /// whether that holds by now; otherwise ask again. A server without a keeper that dies
    /// with its restorer cannot be asked.
    #[must_use]
    pub fn let_loose(&self) -> bool {
        self.root.let_loose()
    }

    /// Pidfd of the first process of its namespace, a child of the caller: readable when
    /// everything that the server has started has ended, too.
    #[must_use]
    pub fn namespace(&self) -> BorrowedFd<'_> {
        self.root.pidfd()
    }

    /// Whether that process is not of the image, and ends as the server does: with the same
    /// status, or one of 128 and the signal.
    #[must_use]
    pub const fn has_keeper(&self) -> bool {
        self.root.is_keeper
    }
}

/// Restores the processes of an image while the image arrives, and lets them run.
///
/// # Errors
/// [`SnapshotError`]; nothing of them is left then.
pub fn restore(
    input: impl Read,
    loading: &Loading,
    surroundings: &mut dyn Surroundings,
) -> Result<Restored> {
    let mut image = Reader::begin(input, &loading.key, loading.limits)?;
    let description = image.description().clone();
    layout::same_kernel(&description)?;
    surroundings.begin(&description)?;
    place_state(&mut image, &description, loading)?;
    let place = layout::free_place(&description)?;
    let ipc = Ipc::of(&description)?;
    let (mut made, mapped) = files_of(&description, loading, surroundings)?;
    let stubs = stub::start(&description, &made, place, loading.dies_with_parent)?;
    let mut family = Family::seize(&stubs.pids, place)?;
    program::start(&mut family.0, &description)?;
    state::groups(&mut family.0, &description.members)?;
    for ((stub, member), mapped) in family.0.iter_mut().zip(&description.members).zip(&mapped) {
        layout::map(stub, member, &made, mapped)?;
    }
    ipc.remove(&description)?;
    drop(ipc);
    fill(&mut image, &stubs.pids, &mut made)?;
    made.finish(&description)?;
    made.signal(&description, &stubs.pids)?;
    for ((stub, member), mapped) in family.0.iter_mut().zip(&description.members).zip(&mapped) {
        layout::protect(stub, member, mapped)?;
        locks::take(stub, member, &description.files)?;
        state::threads(stub, member, &description.files)?;
        timers::make(stub, member)?;
    }
    if description.is_namespace() && description.last_pid != 0 {
        state::number_on(&mut family.0[0], description.last_pid)?;
    }
    for (member, pid) in stubs.pids.iter().copied().enumerate() {
        let what = "what the caller does before it runs";
        surroundings.before_it_runs(&Stopped { pid, member }).doing(what)?;
    }
    let first_dies = loading.dies_with_parent && !stubs.root.is_keeper;
    let mut dies_by = if first_dies { libc::SIGKILL } else { 0 };
    for (stub, member) in family.0.iter_mut().zip(&description.members) {
        state::finish(stub, member, std::mem::take(&mut dies_by), surroundings.traps_tsc())?;
    }
    drop(mapped);
    made.keep();
    family.let_go()?;
    let pid = stubs.pids[0];
    let pidfd = process::pidfd_open(pid).doing("opening the restored process")?;
    Ok(Restored { pid, pidfd, root: stubs.root })
}

/// The stubs, parents first.
struct Family(Vec<Remote>);

impl Family {
    fn seize(pids: &[u32], place: u64) -> Result<Self> {
        let mut family = Self(Vec::new());
        for pid in pids {
            family.0.push(Remote::seize(*pid, place)?);
        }
        Ok(family)
    }

    /// Lets all of them run, the first one last.
    fn let_go(mut self) -> Result<()> {
        while let Some(stub) = self.0.pop() {
            stub.let_go()?;
        }
        Ok(())
    }
}

impl Drop for Family {
    /// The first process of a namespace ends when all others are gone, which are gone when their
    /// tracer has looked.
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// Fills memory and files with what arrives.
fn fill(image: &mut Reader<impl Read>, pids: &[u32], made: &mut Made) -> Result<()> {
    loop {
        let (holds, bytes) = image.chunk()?;
        match holds {
            Holds::Pages { member, address } => remote::poke(pids[member as usize], address, bytes)
                .doing(format!("filling its memory at {address:#x}"))?,
            Holds::File { file, offset } => made.fill_file(file, offset, bytes)?,
            Holds::Object { object, offset } => made.fill_object(object, offset, bytes)?,
            Holds::State { .. } => return refuse("there is more state than was said"),
            Holds::End => return Ok(()),
        }
    }
}

/// Puts the files in which the process keeps its state in place of those here.
fn place_state(
    image: &mut Reader<impl Read>,
    description: &Description,
    loading: &Loading,
) -> Result<()> {
    let mounts = Mounts::read().doing("what is mounted")?;
    let _guise =
        Guise::of(&description.members[0].process.ids).doing("the server's rights to files")?;
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

/// All files of an image, each opened and made with the rights of the first process that has it;
/// and those that each process maps.
fn files_of(
    description: &Description,
    loading: &Loading,
    surroundings: &mut dyn Surroundings,
) -> Result<(Made, Vec<Mapped>)> {
    let mounts = Mounts::read().doing("what is mounted")?;
    let guise =
        |member: &Member| Guise::of(&member.process.ids).doing("the server's rights to files");
    let (mut compared, mut mapped) = (Compared::new(loading), Vec::new());
    let segments = shared::segments(description)?;
    let first = guise(&description.members[0])?;
    let mut made = files::begin(description, segments, &mounts, surroundings)?;
    drop(first);
    for (index, member) in description.members.iter().enumerate() {
        let _guise = guise(member)?;
        mapped.push(Mapped::open(member, &mounts, &mut compared)?);
        made.add(index, description, &mounts, surroundings)?;
    }
    let _guise = guise(&description.members[0])?;
    made.add_ends(description)?;
    Ok((made, mapped))
}

/// Path where another process finds what this one has open.
fn within(file: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// A step of the stub's failed.
fn failed<T>(what: impl Into<String>, errno: i32) -> Result<T> {
    Err(SnapshotError::Step { what: what.into(), error: io::Error::from_raw_os_error(errno) })
}
