//! From running processes to their image: preparation, rounds, the freeze, and the
//! image that remains when the processes run again.

use super::bounds::{Patience, Room};
use super::contents::Contents;
use super::describe::areas::Found;
use super::describe::descriptors::Held;
use super::describe::{process, sockets};
use super::error::{Doing, Result, SnapshotError, refuse};
use super::family::{Family, Looked};
use super::insides::{Inside, Insides};
use super::maps::Mapping;
use super::memory::MemoryCopy;
use super::quiet::Quiescence;
use super::stand::{Stand, Still};
use super::state::collect::{APART, Collected};
use super::{Options, thread};
use holdfast_wire::snapshot::{self, Books, Description, Holds, Member, PAGE, Thread, Writer};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Number of looks at a running process; it is refused only for what every look
/// finds.
const LOOKS: u32 = 7;
/// Time before the second look, doubled each time: on a busy machine the process is in the
/// middle of something for as long as it waits for a processor.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Number of times that it is stopped before it is refused: each is a pause for its clients.
const STOPS: u32 = 3;

/// Running processes whose image is about to be taken.
pub struct Preparation<'a> {
    options: &'a Options,
    insides: Insides,
    family: Family<'a>,
    /// The memory of each process.
    memory: Vec<MemoryCopy>,
    state: Collected,
    /// Room for the contents of shared memory.
    shared: Contents,
}

/// Processes that stand still and can be copied.
struct Seen {
    stand: Stand,
    until_quiet: Duration,
    patience: Patience,
    books: Option<Books>,
    insides: Vec<Inside>,
    looked: Looked,
}

/// The result of a freeze.
struct Taken {
    began: Instant,
    until_quiet: Duration,
    description: Description,
    files: Contents,
    objects: Contents,
    /// Connections that are still to be described: a process's index, and its descriptor.
    later: Vec<(u32, u32)>,
}

/// Stopped processes, all of their threads quiet. A [`Quiescence::reached`] that
/// gets one does what must happen at this point, and nothing slow.
pub struct Frozen {
    /// The server's first process.
    pub pid: u32,
}

/// The image of processes that go on running.
pub struct Snapshot {
    description: Description,
    memory: Vec<MemoryCopy>,
    state: Collected,
    /// Contents of pipes and unlinked files, by file; without the holes of the
    /// latter.
    files: Contents,
    objects: Contents,
    /// Time for which the processes stood still.
    pub pause: Duration,
    /// Part of that time until their threads stood and were quiet.
    pub until_quiet: Duration,
    /// Pages that were copied while it stood.
    pub frozen_pages: u64,
}

impl<'a> Preparation<'a> {
    /// Looks at a server's first process and at the other processes of its family, in any order;
    /// touches nothing but the userfaultfd of one that has one.
    ///
    /// # Errors
    /// [`SnapshotError::Refused`] with everything that cannot be rebuilt.
    pub fn begin(pids: &[u32], options: &'a Options) -> Result<Self> {
        let mut family = Family::of(pids, options)?;
        let mut insides = Insides::of(&family.pids)?;
        let statuses = family.statuses()?;
        let mut refusals = family.look_at_running(&statuses)?;
        for further in 0..LOOKS - 1 {
            if !refusals.0.is_empty() {
                // The processes run: what one was in the middle of is gone the next
                // time.
                std::thread::sleep(BETWEEN_LOOKS * (1 << further));
                refusals.keep_those_of(&family.look_at_running(&statuses)?);
            }
        }
        let alarm = insides.read()?.iter().any(|inside| inside.alarm_is_set);
        let refused = alarm && !options.external.alarms;
        refusals.add_if(refused, "it has set an alarm (alarm, setitimer)");
        refusals.refuse()?;
        let mut memory = Vec::new();
        for (index, (pid, status)) in family.pids.iter().zip(&statuses).enumerate() {
            let (earlier, mappings) = (&family.pids[..index], family.mappings(index));
            let bytes = (status.own_pages(), options.limits.memory_bytes);
            memory.push(MemoryCopy::begin(*pid, earlier, mappings, bytes)?);
        }
        let (ids, limits) = (statuses[0].all_ids(0)?, options.limits);
        let state = Collected::begin(&options.state_dirs, ids, limits, &family.common.mounts)?;
        let shared = Contents::with_room(family.shared_bytes.min(options.limits.memory_bytes));
        Ok(Self { options, insides, family, memory, state, shared })
    }

    /// Copies what has changed in the state folders while the processes run; returns the
    /// number of bytes.
    ///
    /// # Errors
    /// If something in them cannot be copied, or the image is not wanted any more.
    pub fn state_round(&mut self) -> Result<u64> {
        if !self.options.state_dirs.is_empty() {
            std::thread::sleep(APART);
        }
        self.family.refresh()?;
        let (pids, family) = (&self.family.pids, &self.family);
        let all = (0..pids.len()).flat_map(|index| family.mappings(index));
        let written = all.filter(|it| it.is_shared && it.is_writable());
        let paths = written.filter_map(|it| Some(OsStr::from_bytes(it.path()?).into()));
        let mapped: BTreeSet<PathBuf> = paths.collect();
        let copied = self.state.round(pids, &mapped, &self.options.is_off)?;
        let ((state, _), most) = (self.state.size(), self.options.limits.memory_bytes);
        let pages: u64 = self.family.statuses()?.iter().map(process::Status::own_pages).sum();
        let memory = pages * PAGE;
        if state.saturating_add(memory) > most {
            return refuse(format!(
                "its memory has {} MB and its state_dirs {} MB: together more than the limit of \
                 {} MB",
                memory >> 20,
                state >> 20,
                most >> 20
            ));
        }
        Ok(copied)
    }

    /// Copies what has changed since the last round while the processes run; returns
    /// the number of pages. `None`: all memory is copied in the freeze.
    ///
    /// # Errors
    /// If a process is gone, or the image is not wanted any more.
    pub fn round(&mut self) -> Result<Option<u64>> {
        self.family.refresh()?;
        let mut copied = None;
        for (index, memory) in self.memory.iter_mut().enumerate() {
            let pages = memory.round(self.family.mappings(index), &self.options.is_off)?;
            copied = pages.map(|pages| pages + copied.unwrap_or(0)).or(copied);
        }
        Ok(copied)
    }

    /// Stops the processes, copies what is left, and lets them run on.
    ///
    /// # Errors
    /// [`SnapshotError`]; the processes run on in any case.
    pub fn freeze(mut self, quiet: &mut dyn Quiescence) -> Result<Snapshot> {
        let taken = self.image(quiet);
        quiet.end();
        let mut taken = taken.inspect_err(|_| quiet.failed())?;
        let pause = taken.began.elapsed();
        self.memory.iter_mut().for_each(MemoryCopy::let_go);
        sockets::complete(&self.family.pids, &taken.later, &mut taken.description, quiet);
        let frozen_pages = self.memory.iter().map(|it| it.frozen_pages).sum();
        let Taken { until_quiet, description, files, objects, .. } = taken;
        let (memory, state) = (self.memory, self.state);
        Ok(Snapshot {
            description,
            memory,
            state,
            files,
            objects,
            pause,
            until_quiet,
            frozen_pages,
        })
    }

    fn image(&mut self, quiet: &mut dyn Quiescence) -> Result<Taken> {
        let seen = self.stand_in_a_good_moment(quiet)?;
        let Seen { stand, until_quiet, patience, books, insides, looked } = seen;
        let Looked { found, held, objects, opened } = looked;
        let mut room = Room(self.options.limits.memory_bytes);
        for (memory, found) in self.memory.iter_mut().zip(&found) {
            memory.freeze(&found.areas, &found.whole, &mut room, patience)?;
        }
        let (mut files, mut contents) = (Contents::default(), std::mem::take(&mut self.shared));
        for (file, bytes) in opened.contents {
            room.take(bytes.len() as u64)?;
            files.push(file, 0, &bytes);
        }
        for unlinked in &opened.unlinked {
            let from = unlinked.open().doing("an unlinked file")?;
            files.copy(&from, unlinked.file, (&mut room, patience))?;
        }
        contents.copy_all(&objects, (&mut room, patience))?;
        let state = self.state.freeze(&opened.writing, &opened.mapped, patience)?;
        let mut members = Vec::new();
        for (index, (found, held)) in found.into_iter().zip(held).enumerate() {
            members.push(self.member(index, (&stand, &insides), found, held)?);
        }
        let description = Description {
            members,
            objects: objects.objects,
            files: opened.files,
            last_pid: self.family.last_pid()?,
            books,
            state,
        };
        refuse_misplaced(&description)?;
        let (began, later, objects) = (stand.began, opened.later, contents);
        Ok(Taken { began, until_quiet, description, files, objects, later })
    }

    /// Describes one process.
    fn member(
        &self,
        index: usize,
        (stand, insides): (&Stand, &[Inside]),
        found: Found,
        held: Held,
    ) -> Result<Member> {
        let pid = self.family.pids[index];
        let (vdso, in_family) = (self.vdso(index)?, self.family.is_namespace());
        Ok(Member {
            parent: self.family.parent(index)?,
            process: process::read(pid, insides, vdso, in_family)?,
            threads: threads(pid, stand, insides)?,
            areas: found.areas,
            descriptors: held.descriptors,
            watches: held.watches,
            locks: held.locks,
        })
    }

    /// Stops the processes. One that is in the middle of something, like a look into /proc, runs
    /// on for a moment first.
    fn stand_in_a_good_moment(&mut self, quiet: &mut dyn Quiescence) -> Result<Seen> {
        let mut stops = 0;
        loop {
            let stand = Stand::of(&self.family.pids, quiet, self.options.freeze_max)?;
            let until_quiet = stand.began.elapsed();
            self.family.check()?;
            let books = quiet.reached(&Frozen { pid: self.family.pids[0] })?;
            let patience = Patience::until(stand.began + self.options.freeze_max);
            let insides = self.insides.read()?;
            stops += 1;
            match self.family.look_again(&insides, books.as_ref(), patience) {
                Ok(looked) => {
                    return Ok(Seen { stand, until_quiet, patience, books, insides, looked });
                }
                Err(SnapshotError::Refused(_)) if stops < STOPS => {}
                Err(error) => return Err(error),
            }
            drop(stand);
            quiet.end();
            quiet.failed();
            std::thread::sleep(BETWEEN_LOOKS * stops);
        }
    }

    fn vdso(&self, index: usize) -> Result<Vec<u8>> {
        let is_vdso = |mapping: &&Mapping| mapping.name == b"[vdso]";
        let Some(mapping) = self.family.mappings(index).iter().find(is_vdso) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        let memory = &self.memory[index].memory;
        memory.read(mapping.start, &mut bytes).doing("reading its vDSO")?;
        Ok(bytes)
    }
}

fn refuse_misplaced(description: &Description) -> Result<()> {
    let Some(index) = description.misplaced() else { return Ok(()) };
    let pid = description.members[index].process.pid;
    refuse(format!("its process {pid} is in a session or a group that it could not enter again"))
}

/// The threads of one process.
fn threads(pid: u32, stand: &Stand, insides: &[Inside]) -> Result<Vec<Thread>> {
    let first = insides.iter().find(|inside| inside.tid == pid);
    let secure_bits = first.map_or(0, |inside| inside.secure_bits);
    let thread = |still: &Still| {
        let inside = insides.iter().find(|inside| inside.tid == still.tid);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let inside = inside.ok_or_else(missing).doing("a thread in the kernel's list")?;
        if inside.secure_bits != secure_bits {
            return refuse("its threads differ: one has secure bits of its own");
        }
        thread::read(still, inside)
    };
    stand.threads().iter().filter(|still| still.pid == pid).map(thread).collect()
}

impl Snapshot {
    #[must_use]
    pub const fn description(&self) -> &Description {
        &self.description
    }

    /// The most bytes that [`write`](Self::write) writes; it leaves out pages of zeros.
    ///
    /// # Errors
    /// If what it describes cannot be encoded.
    pub fn bytes_max(&self) -> Result<u64> {
        let sizes = [self.files.size(), self.objects.size(), self.state.size()];
        let [contents, pieces] = [sizes.map(|it| it.0), sizes.map(|it| it.1)];
        let pages: u64 = self.memory.iter().map(MemoryCopy::image_bytes).sum();
        let bytes = pages + contents.iter().sum::<u64>();
        Ok(snapshot::bytes_max(&self.description, bytes, pieces.iter().sum())?)
    }

    /// Bytes of memory that the image keeps until it is dropped.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(MemoryCopy::bytes).sum()
    }

    /// Writes the image.
    ///
    /// # Errors
    /// If `out` fails, or the image exceeds a limit.
    pub fn write<W: Write>(&self, out: W, options: &Options) -> Result<W> {
        let mut writer = Writer::begin(out, &options.key, options.limits, &self.description)?;
        self.state.write(&mut |entry, offset, bytes| {
            Ok(writer.chunk(Holds::State { entry, offset }, bytes)?)
        })?;
        for (file, offset, bytes) in self.files.iter().filter(|(.., bytes)| !bytes.is_empty()) {
            writer.chunk(Holds::File { file, offset }, bytes)?;
        }
        for (object, offset, bytes) in self.objects.iter() {
            writer.chunk(Holds::Object { object, offset }, bytes)?;
        }
        for (number, (member, memory)) in
            (0..).zip(self.description.members.iter().zip(&self.memory))
        {
            memory.write((number, member), &mut writer)?;
        }
        Ok(writer.end()?)
    }
}
