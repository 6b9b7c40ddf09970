//! From a running process to its image: preparation, rounds, the freeze, and the
//! image that remains when the process runs again.

use super::bounds::{LOOK_MAX, Patience, Room};
use super::describe::areas::{Areas, Found, extents};
use super::describe::descriptors::{Descriptors, Look, Reader};
use super::describe::{Refusals, process, sockets};
use super::error::{Doing, Result, SnapshotError, refuse as refuse_one};
use super::insides::{Inside, Insides};
use super::maps::Mapping;
use super::memory::MemoryCopy;
use super::quiet::Quiescence;
use super::stand::{Stand, Still};
use super::state::collect::{APART, Collected};
use super::{Options, names, thread};
use holdfast_wire::snapshot::{self, Books, Description, Holds, PAGE, Thread, Writer};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
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
/// Bytes of a file that are copied at once.
const PIECE: u64 = 1 << 20;

/// A running process whose image is about to be taken.
pub struct Preparation<'a> {
    pid: u32,
    options: &'a Options,
    insides: Insides,
    areas: Areas<'a>,
    /// What it was allowed to do at the first look.
    rights: Vec<String>,
    memory: MemoryCopy,
    state: Collected,
}

/// A process that stands still and can be copied.
struct Seen {
    stand: Stand,
    until_quiet: Duration,
    patience: Patience,
    books: Option<Books>,
    insides: Vec<Inside>,
    found: Found,
    opened: Descriptors,
}

/// Contents of files: the file, the offset in it, and the bytes.
type Contents = Vec<(u32, u64, Vec<u8>)>;

/// The result of a freeze.
struct Taken {
    began: Instant,
    until_quiet: Duration,
    description: Description,
    files: Contents,
    objects: Contents,
    /// Connections that are still to be described.
    later: Vec<u32>,
}

/// A stopped process, all of its threads quiet. A [`Quiescence::reached`] that
/// gets one does what must happen at this point, and nothing slow.
pub struct Frozen {
    pub pid: u32,
}

/// The image of a process that goes on running.
pub struct Snapshot {
    description: Description,
    memory: MemoryCopy,
    state: Collected,
    /// Contents of pipes and unlinked files, by file; without the holes of the
    /// latter.
    files: Contents,
    objects: Contents,
    /// Time for which the process stood still.
    pub pause: Duration,
    /// Part of that time until its threads stood and were quiet.
    pub until_quiet: Duration,
    /// Pages that were copied while it stood.
    pub frozen_pages: u64,
}

impl<'a> Preparation<'a> {
    /// Looks at a process; touches nothing but its userfaultfd, if it has one.
    ///
    /// # Errors
    /// [`SnapshotError::Refused`] with everything that cannot be rebuilt.
    pub fn begin(pid: u32, options: &'a Options) -> Result<Self> {
        let mut refusals = Refusals::default();
        let status = process::Status::read(pid)?;
        process::refusals(pid, &status, &mut refusals);
        if status.own_pages() * PAGE > options.limits.memory_bytes {
            refusals.add("it has more memory than the limit of memory_bytes");
        }
        refuse(refusals)?;
        let mut insides = Insides::of(pid)?;
        let mut areas =
            Areas::new(pid, options.key, options.limits.memory_bytes, &options.external)?;
        let mut refusals = look(pid, options, &status, &mut areas)?;
        for further in 0..LOOKS - 1 {
            if !refusals.0.is_empty() {
                // The process runs: what it was in the middle of is gone the next
                // time.
                std::thread::sleep(BETWEEN_LOOKS * (1 << further));
                refusals.keep_those_of(&look(pid, options, &status, &mut areas)?);
            }
        }
        let alarm = insides.read()?.iter().any(|inside| inside.alarm_is_set);
        refusals.add_if(alarm, "it has set an alarm (alarm, setitimer)");
        refuse(refusals)?;
        let (resident, bytes_max) = (status.own_pages(), options.limits.memory_bytes);
        let memory = MemoryCopy::begin(pid, areas.mappings(), resident, bytes_max)?;
        let (ids, limits) = (status.all_ids(0)?, options.limits);
        let state = Collected::begin(&options.state_dirs, ids, limits, &areas.mounts)?;
        Ok(Self { pid, options, insides, areas, rights: status.rights(), memory, state })
    }

    /// Copies what has changed in its state folders while the process runs; returns the
    /// number of bytes.
    ///
    /// # Errors
    /// If something in them cannot be copied, or the image is not wanted any more.
    pub fn state_round(&mut self) -> Result<u64> {
        if !self.options.state_dirs.is_empty() {
            std::thread::sleep(APART);
        }
        self.areas.refresh()?;
        let written = self.areas.mappings().iter().filter(|it| it.is_shared && it.is_writable());
        let paths = written.filter_map(|it| Some(OsStr::from_bytes(it.path()?).into()));
        let mapped: BTreeSet<PathBuf> = paths.collect();
        let copied = self.state.round(self.pid, &mapped, &self.options.is_off)?;
        let ((state, _), most) = (self.state.size(), self.options.limits.memory_bytes);
        let memory = process::Status::read(self.pid)?.own_pages() * PAGE;
        if state.saturating_add(memory) > most {
            return refuse_one(format!(
                "its memory has {} MB and its state_dirs {} MB: together more than the limit of \
                 {} MB",
                memory >> 20,
                state >> 20,
                most >> 20
            ));
        }
        Ok(copied)
    }

    /// Copies what has changed since the last round while the process runs; returns
    /// the number of pages. `None`: all memory is copied in the freeze.
    ///
    /// # Errors
    /// If the process is gone, or the image is not wanted any more.
    pub fn round(&mut self) -> Result<Option<u64>> {
        self.areas.refresh()?;
        self.memory.round(self.areas.mappings(), &self.options.is_off)
    }

    /// Stops the process, copies what is left, and lets it run on.
    ///
    /// # Errors
    /// [`SnapshotError`]; the process runs on in any case.
    pub fn freeze(mut self, quiet: &mut dyn Quiescence) -> Result<Snapshot> {
        let taken = self.image(quiet);
        quiet.end();
        let mut taken = taken.inspect_err(|_| quiet.failed())?;
        let pause = taken.began.elapsed();
        self.memory.let_go();
        sockets::complete(self.pid, &taken.later, &mut taken.description, quiet);
        let frozen_pages = self.memory.frozen_pages;
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
        let Seen { stand, until_quiet, patience, books, insides, found, opened } = seen;
        let mut room = Room(self.options.limits.memory_bytes);
        self.memory.freeze(&found.areas, &found.whole, &mut room, patience)?;
        let mut files = Contents::new();
        for (file, bytes) in opened.contents {
            room.take(bytes.len() as u64)?;
            files.push((file, 0, bytes));
        }
        for unlinked in &opened.unlinked {
            let from = unlinked.open().doing("an unlinked file")?;
            copy_file(&from, unlinked.file, (&mut room, patience), &mut files)?;
        }
        let objects = shared_memory(&found, &mut room, patience)?;
        let vdso = self.vdso()?;
        let state = self.state.freeze(&opened.writing, &opened.mapped, patience)?;
        let description = Description {
            process: process::read(self.pid, &insides, vdso)?,
            threads: self.threads(&stand, &insides)?,
            areas: found.areas,
            objects: found.objects,
            files: opened.files,
            descriptors: opened.descriptors,
            watches: opened.watches,
            locks: opened.locks,
            books,
            state,
        };
        let (began, later) = (stand.began, opened.later);
        Ok(Taken { began, until_quiet, description, files, objects, later })
    }

    /// Stops the process. One that is in the middle of something, like a look into /proc, runs
    /// on for a moment first.
    fn stand_in_a_good_moment(&mut self, quiet: &mut dyn Quiescence) -> Result<Seen> {
        let mut stops = 0;
        loop {
            let stand = Stand::of(self.pid, quiet, self.options.freeze_max)?;
            let until_quiet = stand.began.elapsed();
            let books = quiet.reached(&Frozen { pid: self.pid })?;
            let patience = Patience::until(stand.began + self.options.freeze_max);
            let insides = self.insides.read()?;
            stops += 1;
            match self.look_again(&insides, books.as_ref(), patience) {
                Ok((found, opened)) => {
                    return Ok(Seen {
                        stand,
                        until_quiet,
                        patience,
                        books,
                        insides,
                        found,
                        opened,
                    });
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

    fn threads(&self, stand: &Stand, insides: &[Inside]) -> Result<Vec<Thread>> {
        let thread = |still: &Still| {
            let inside = insides.iter().find(|inside| inside.tid == still.tid);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let inside = inside.ok_or_else(missing).doing("a thread in the kernel's list")?;
            thread::read(self.pid, still, inside)
        };
        stand.threads().iter().map(thread).collect()
    }

    /// Like [`look`], for a stopped process: what it has become since then.
    fn look_again(
        &mut self,
        insides: &[Inside],
        books: Option<&Books>,
        patience: Patience,
    ) -> Result<(Found, Descriptors)> {
        let mut refusals = Refusals::default();
        let status = process::Status::read(self.pid)?;
        process::lasting(self.pid, &status, &mut refusals);
        let changed = status.rights() != self.rights;
        refusals.add_if(changed, "its rights changed while it was looked at");
        refuse(std::mem::take(&mut refusals))?;
        let mut found = self.areas.look(patience, &mut refusals)?;
        let open = books.iter().flat_map(|it| it.open()).map(|(number, _)| number).collect();
        let (pid, user) = (self.pid, status.file_user()?);
        let Options { external, shares_files, state_dirs, .. } = self.options;
        let (mounts, shares_files) = (&self.areas.mounts, *shares_files);
        let look = Look { pid, external, mounts, user, shares_files, state_dirs, patience };
        let opened = Reader::new(look, open, &mut refusals)?.read(&mut found)?;
        refusals.add_if(insides.iter().any(|i| i.alarm_is_set), "it has set an alarm");
        refuse(refusals)?;
        Ok((found, opened))
    }

    fn vdso(&self) -> Result<Vec<u8>> {
        let is_vdso = |mapping: &&Mapping| mapping.name == b"[vdso]";
        let Some(mapping) = self.areas.mappings().iter().find(is_vdso) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        self.memory.memory.read(mapping.start, &mut bytes).doing("reading its vDSO")?;
        Ok(bytes)
    }
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
        let contents = self.files.iter().chain(&self.objects).map(|(.., bytes)| bytes.len() as u64);
        let pieces = self.files.len() + self.objects.len();
        let (state_bytes, state_pieces) = self.state.size();
        let bytes = self.memory.image_bytes() + contents.sum::<u64>() + state_bytes;
        Ok(snapshot::bytes_max(&self.description, bytes, pieces as u64 + state_pieces)?)
    }

    /// Bytes of memory that the image keeps until it is dropped.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
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
            writer.chunk(Holds::File { file: *file, offset: *offset }, bytes)?;
        }
        for (object, offset, bytes) in &self.objects {
            writer.chunk(Holds::Object { object: *object, offset: *offset }, bytes)?;
        }
        self.memory.write(&self.description, &mut writer)?;
        Ok(writer.end()?)
    }
}

/// Looks at the memory and the descriptors of a process that runs. The freeze looks again.
fn look(
    pid: u32,
    options: &Options,
    status: &process::Status,
    areas: &mut Areas<'_>,
) -> Result<Refusals> {
    let (mut refusals, patience) = (Refusals::default(), Patience::of(LOOK_MAX));
    let mut found = areas.look(patience, &mut refusals)?;
    let open: BTreeSet<u32> = options.external.connections.iter().copied().collect();
    let Options { external, shares_files, state_dirs, .. } = options;
    let (mounts, user, shares_files) = (&areas.mounts, status.file_user()?, *shares_files);
    let look = Look { pid, external, mounts, user, shares_files, state_dirs, patience };
    let opened = Reader::new(look, open, &mut refusals)?.read(&mut found)?;
    let whole: u64 = found.whole.values().flatten().map(|(start, end)| end - start).sum();
    let contents = found.object_bytes.saturating_add(opened.unlinked_bytes).saturating_add(whole);
    let bytes = contents.saturating_add(status.own_pages() * PAGE);
    let too_much = bytes > options.limits.memory_bytes;
    refusals.add_if(too_much, "it has more memory and files than the limit of memory_bytes");
    Ok(refusals)
}

fn refuse(refusals: Refusals) -> Result<()> {
    if refusals.0.is_empty() { Ok(()) } else { Err(SnapshotError::Refused(refusals.0)) }
}

fn shared_memory(found: &Found, room: &mut Room, patience: Patience) -> Result<Contents> {
    let mut objects = Contents::new();
    let each = (0..).zip(found.objects.iter().zip(&found.object_files));
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
        copy_file(&from, number, (room, patience), &mut objects)?;
    }
    Ok(objects)
}

/// The content of a file, without its holes.
fn copy_file(
    file: &File,
    number: u32,
    (room, patience): (&mut Room, Patience),
    into: &mut Contents,
) -> Result<()> {
    let what = "copying a file";
    let size = file.metadata().doing(what)?.len();
    for extent in extents(file, 0, size) {
        let (mut at, end) = extent.doing(what)?;
        while at < end {
            patience.check()?;
            let len = PIECE.min(end - at);
            room.take(len)?;
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, at).doing(what)?;
            into.push((number, at, bytes));
            at += len;
        }
    }
    Ok(())
}
