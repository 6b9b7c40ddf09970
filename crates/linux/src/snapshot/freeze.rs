//! From a running process to its image: preparation, rounds, the freeze, and the
//! image that is left when the process runs again.

use super::describe::areas::{Areas, Found};
use super::describe::{Refusals, descriptors, process, sockets};
use super::error::{Doing, Result, SnapshotError};
use super::insides::{Inside, Insides};
use super::maps::Mapping;
use super::memory::MemoryCopy;
use super::quiet::Quiescence;
use super::stand::{Stand, Still};
use super::{Options, thread};
use holdfast_wire::snapshot::{Books, Description, Holds, ImageError, PAGE, Thread, Writer};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Looks at a process that runs, each of which must find what it is refused for.
const LOOKS: usize = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A process that an image is about to be taken of; it runs.
pub struct Preparation<'a> {
    pid: u32,
    options: &'a Options,
    insides: Insides,
    areas: Areas<'a>,
    memory: MemoryCopy,
}

/// What files hold: which file, where in it, which bytes.
type Contents = Vec<(u32, u64, Vec<u8>)>;

/// What a freeze has brought.
struct Taken {
    began: Instant,
    until_quiet: Duration,
    description: Description,
    files: Contents,
    objects: Contents,
    /// Connections that have to be described yet.
    later: Vec<u32>,
}

/// A process that stands, all of its threads quiet. Whoever gets one in
/// [`Quiescence::reached`] does what must happen at this point, and nothing slow.
pub struct Frozen {
    pub pid: u32,
}

/// The image of a process that runs on.
pub struct Snapshot {
    description: Description,
    memory: MemoryCopy,
    /// What pipes and unlinked files hold, by file; holes of the latter are left out.
    files: Contents,
    objects: Contents,
    /// How long the process stood still.
    pub pause: Duration,
    /// Of that, until its threads stood and were quiet.
    pub until_quiet: Duration,
    /// Pages that were copied while it stood.
    pub frozen_pages: u64,
}

impl<'a> Preparation<'a> {
    /// Looks at a process, and touches nothing but, if it has one, its userfaultfd.
    ///
    /// # Errors
    /// [`SnapshotError::Refused`] with all that cannot be rebuilt of it.
    pub fn begin(pid: u32, options: &'a Options) -> Result<Self> {
        let mut refusals = Refusals::default();
        let status = process::Status::read(pid)?;
        process::refusals(pid, &status, &mut refusals);
        if status.own_pages() * PAGE > options.limits.memory_bytes {
            refusals.add("it has more memory than the limit of memory_bytes");
        }
        refuse(refusals)?;
        let mut insides = Insides::of(pid)?;
        let mut areas = Areas::new(pid, options.key, &options.external);
        let mut refusals = look(pid, options, &mut areas)?;
        for _ in 1..LOOKS {
            if !refusals.0.is_empty() {
                // It runs: what it was in the middle of is not there the next time.
                std::thread::sleep(BETWEEN_LOOKS);
                refusals.keep_those_of(&look(pid, options, &mut areas)?);
            }
        }
        let alarm = insides.read()?.iter().any(|inside| inside.alarm_is_set);
        refusals.add_if(alarm, "it has set an alarm (alarm, setitimer)");
        refuse(refusals)?;
        let memory = MemoryCopy::begin(pid, areas.mappings(), status.own_pages())?;
        Ok(Self { pid, options, insides, areas, memory })
    }

    /// Copies what has changed since the last round while the process runs: how many
    /// pages that were. `None`: all memory is copied in the freeze.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn round(&mut self) -> Result<Option<u64>> {
        self.memory.round()
    }

    /// Stops the process, copies what is left, and lets it run on.
    ///
    /// # Errors
    /// [`SnapshotError`]; the process runs on whatever happens.
    pub fn freeze(mut self, quiet: &mut dyn Quiescence) -> Result<Snapshot> {
        let taken = self.image(quiet);
        quiet.end();
        let mut taken = taken.inspect_err(|_| quiet.failed())?;
        let pause = taken.began.elapsed();
        self.memory.let_go();
        sockets::complete(self.pid, &taken.later, &mut taken.description, quiet);
        let frozen_pages = self.memory.frozen_pages;
        let Taken { until_quiet, description, files, objects, .. } = taken;
        let memory = self.memory;
        Ok(Snapshot { description, memory, files, objects, pause, until_quiet, frozen_pages })
    }

    fn image(&mut self, quiet: &mut dyn Quiescence) -> Result<Taken> {
        let stand = Stand::of(self.pid, quiet, self.options.freeze_max)?;
        let until_quiet = stand.began.elapsed();
        let books = quiet.reached(&Frozen { pid: self.pid })?;
        let insides = self.insides.read()?;
        let mut refusals = Refusals::default();
        let mut found = self.areas.look(&mut refusals)?;
        let open = books.iter().flat_map(Books::open).map(|(number, _)| number).collect();
        let external = &self.options.external;
        let reader = descriptors::Reader::new(self.pid, external, open, &mut refusals)?;
        let opened = reader.read(&mut found)?;
        refusals.add_if(insides.iter().any(|i| i.alarm_is_set), "it has set an alarm");
        refuse(refusals)?;
        self.memory.freeze(&found.areas, &found.whole)?;
        let mut files: Contents =
            opened.contents.into_iter().map(|(file, bytes)| (file, 0, bytes)).collect();
        for (file, from) in opened.unlinked {
            copy_file(&from, file, &mut files).doing("copying an unlinked file")?;
        }
        let objects = self.shared_memory(&found)?;
        let vdso = self.vdso()?;
        let description = Description {
            process: process::read(self.pid, &insides, vdso)?,
            threads: self.threads(&stand, &insides)?,
            areas: found.areas,
            objects: found.objects,
            files: opened.files,
            descriptors: opened.descriptors,
            watches: opened.watches,
            books,
        };
        let (began, later) = (stand.began, opened.later);
        Ok(Taken { began, until_quiet, description, files, objects, later })
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

    fn shared_memory(&self, found: &Found) -> Result<Contents> {
        let mut objects = Vec::new();
        let each = (0..).zip(found.objects.iter().zip(&found.object_files));
        for (number, (object, (_, from))) in each {
            if !object.is_external {
                copy_file(from, number, &mut objects).doing("copying shared memory")?;
            }
        }
        let bytes: u64 = objects.iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
        if bytes > self.options.limits.memory_bytes {
            return Err(ImageError::TooMuch("memory_bytes").into());
        }
        Ok(objects)
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
fn look(pid: u32, options: &Options, areas: &mut Areas<'_>) -> Result<Refusals> {
    let mut refusals = Refusals::default();
    let mut found = areas.look(&mut refusals)?;
    let open = options.external.connections.iter().copied().collect();
    let reader = descriptors::Reader::new(pid, &options.external, open, &mut refusals)?;
    reader.read(&mut found)?;
    Ok(refusals)
}

fn refuse(refusals: Refusals) -> Result<()> {
    if refusals.0.is_empty() { Ok(()) } else { Err(SnapshotError::Refused(refusals.0)) }
}

/// What a file holds, without its holes.
fn copy_file(from: &str, number: u32, into: &mut Contents) -> io::Result<()> {
    let file = File::open(from)?;
    let size = file.metadata()?.len();
    let seek = |offset: u64, whence| {
        // SAFETY: plain numbers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset.cast_signed(), whence) };
        u64::try_from(found).unwrap_or(size)
    };
    let mut at = 0;
    while at < size {
        let start = seek(at, libc::SEEK_DATA);
        if start >= size {
            break;
        }
        let end = seek(start, libc::SEEK_HOLE).min(size);
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        into.push((number, start, bytes));
        at = end;
    }
    Ok(())
}
