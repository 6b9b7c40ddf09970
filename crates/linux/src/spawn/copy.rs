//! A server made from the image of another, which follows the other's log.

use super::{FIRST_OWN, Process, Server, open_log, own_standard, socket_pair};
use crate::priority;
use crate::process::{self, Ending, EventFd};
use crate::shm::{Settings, SharedMemory};
use crate::snapshot::SnapshotError;
use crate::snapshot::error::{Doing, refuse};
use crate::snapshot::restore::{Loading, Stopped, Surroundings, bind, placeholder, restore};
use crate::spawn::books;
use holdfast_wire::quiet::{ShimState, shim_mode};
use holdfast_wire::shm::{POOL_BYTES, RING_OFFSET, mode, option};
use holdfast_wire::snapshot::{Books, Description, FileKind, Object, OpenFile, Socket};
use std::fs::File;
use std::io::{self, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// How a copy is made.
#[derive(Clone, Debug)]
pub struct Copying {
    pub loading: Loading,
    /// The original's settings, except for the name; the mode is [`mode::REPLAY`].
    pub settings: Settings,
    /// File for its standard output and error; the original's file of the same name
    /// if absent.
    pub log: Option<PathBuf>,
}

impl Server {
    /// Makes the server from an image while that arrives: it wants the log from
    /// [`SharedMemory::head`] on.
    ///
    /// # Errors
    /// [`SnapshotError`]; nothing of it is left then.
    pub fn copy(image: impl Read, copying: &Copying) -> Result<Self, SnapshotError> {
        let (control, theirs) = socket_pair().doing("a socket to the copy")?;
        let wake = EventFd::new().doing("a wake-up of the copy's")?;
        let log = copying.log.as_deref().map(open_log).transpose().doing("the copy's log")?;
        let mut place = Place {
            copying,
            theirs,
            wake: &wake,
            log,
            books: None,
            numbers: Vec::new(),
            memory: None,
        };
        let restored = restore(image, &copying.loading, &mut place)?;
        let Some(memory) = place.memory.take() else { return refuse(NO_SHIM) };
        let pidfd = process::pidfd_open(restored.pid()).doing("opening the copy")?;
        let mut this = Self::new(memory, (Process::Copy(restored), pidfd), wake, own_standard());
        this.control = Some(control);
        Ok(this)
    }
}

/// A copy that is being made while its image arrives or is read, in a thread of its own,
/// because its daemon has other things to do. Nothing is left of it when this is dropped too
/// early.
pub struct Making {
    /// Sender of the image's pieces; `None` when the image is complete, or is
    /// read elsewhere.
    image: Option<Sender<Vec<u8>>>,
    made: Receiver<Result<Server, SnapshotError>>,
}

impl Making {
    /// # Errors
    /// If there can be no thread.
    pub fn begin(copying: Copying) -> io::Result<Self> {
        let (image, pieces) = channel();
        let making = Self::of(copying, Pieces { pieces, now: Vec::new(), at: 0 }, None)?;
        Ok(Self { image: Some(image), ..making })
    }

    /// Makes a copy from an image that is read, with a real-time priority if
    /// somebody waits for it.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn of(
        copying: Copying,
        image: impl Read + Send + 'static,
        urgency: Option<i32>,
    ) -> io::Result<Self> {
        let (to, made) = channel();
        let work = move || {
            let (maker, until_dropped) = channel();
            let server = priority::urgently(urgency, || Server::copy(image, &copying));
            let server = server.map(|mut server| {
                server._maker = Some(maker);
                server
            });
            if to.send(server).is_ok() {
                // The copy is this thread's child: it would end with it.
                let _dropped = until_dropped.recv();
            }
        };
        std::thread::Builder::new().name("copy".to_owned()).spawn(work)?;
        Ok(Self { image: None, made })
    }

    /// Takes the next bytes of the image.
    pub fn take(&self, piece: Vec<u8>) {
        if let Some(image) = &self.image {
            // A maker that has failed says so itself.
            let _failed = image.send(piece);
        }
    }

    /// The image is complete.
    pub fn end(&mut self) {
        self.image = None;
    }

    /// The server, or why there is none. `None`: it is still being made.
    pub fn made(&self) -> Option<Result<Server, SnapshotError>> {
        match self.made.try_recv() {
            Ok(made) => Some(made),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(refuse("whoever made it is gone")),
        }
    }
}

/// An image as it arrives.
struct Pieces {
    pieces: Receiver<Vec<u8>>,
    now: Vec<u8>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.now.len() {
            let Ok(piece) = self.pieces.recv() else { return Ok(0) };
            (self.now, self.at) = (piece, 0);
        }
        let len = into.len().min(self.now.len() - self.at);
        into[..len].copy_from_slice(&self.now[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// The server's own ending, told by that of the process that keeps a copy's namespace, which
/// ends as a shell does.
pub(super) fn as_the_server(ending: Ending) -> Ending {
    match ending {
        Ending::Exited(status @ 129..=192) => Ending::Killed(status - 128),
        other => other,
    }
}

/// Descriptors that are standard input, output and error.
const STANDARD: u32 = FIRST_OWN.cast_unsigned();

/// A duplicate of one of the daemon's own descriptors.
fn own(number: u32) -> io::Result<OwnedFd> {
    match number {
        0 => io::stdin().as_fd().try_clone_to_owned(),
        1 => io::stdout().as_fd().try_clone_to_owned(),
        _ => io::stderr().as_fd().try_clone_to_owned(),
    }
}

const NO_SHIM: &str = "the image is of a server without the shim";

/// What the copy finds on its new host.
struct Place<'a> {
    copying: &'a Copying,
    /// The copy's end of its socket to the daemon.
    theirs: OwnedFd,
    wake: &'a EventFd,
    log: Option<File>,
    books: Option<Books>,
    /// The own numbers of its processes, as they are in the image.
    numbers: Vec<u32>,
    memory: Option<SharedMemory>,
}

impl Place<'_> {
    /// Where the shim of a process has its state.
    fn control(&self, member: usize) -> Option<u64> {
        let books = self.books.as_ref()?;
        let Some(family) = &books.family else { return Some(books.control) };
        let number = self.numbers.get(member)?.cast_signed();
        family.processes.iter().find(|it| it.pid == number).map(|it| it.control)
    }
}

impl Surroundings for Place<'_> {
    fn begin(&mut self, description: &Description) -> Result<(), SnapshotError> {
        let mut external = description.objects.iter().filter(|object| object.is_external);
        let (memory, more) = (external.next(), external.next());
        let (Some(memory), None, Some(books)) = (memory, more, &description.books) else {
            return refuse(NO_SHIM);
        };
        let settings = Settings { mode: mode::REPLAY, ..self.copying.settings.clone() };
        let made = SharedMemory::create(&settings);
        let made = made.doing("memory for the copy's log")?;
        let pool_bytes = if made.is_family() { POOL_BYTES as u64 } else { 0 };
        if memory.size != RING_OFFSET as u64 + made.ring_bytes() + pool_bytes
            || books.family.is_some() != made.is_family()
        {
            return refuse("its log's memory has another size than here");
        }
        books::write(&made, books);
        made.header().pid.store(description.members[0].process.pid.cast_signed(), SeqCst);
        self.memory = Some(made);
        self.books = Some(books.clone());
        self.numbers = description.members.iter().map(|it| it.process.pid).collect();
        Ok(())
    }

    fn file(&mut self, numbers: &[u32], file: &OpenFile) -> io::Result<Option<OwnedFd>> {
        let is = |fd: i32| numbers.contains(&fd.cast_unsigned());
        let [control, _, wake] = self.books.as_ref().map_or([-1; 3], |books| books.handed);
        match &file.kind {
            FileKind::Given if is(control) => self.theirs.try_clone().map(Some),
            FileKind::Given if is(wake) => self.wake.as_fd().try_clone_to_owned().map(Some),
            FileKind::Given => match (&self.log, numbers.iter().find(|number| **number < STANDARD))
            {
                (Some(log), Some(1 | 2)) => log.try_clone().map(|log| Some(log.into())),
                (_, Some(number)) => own(*number).map(Some),
                // The way to the backup of where it was copied: its shim closes that.
                (_, None) => self.wake.as_fd().try_clone_to_owned().map(Some),
            },
            FileKind::Path { .. } if is(libc::STDOUT_FILENO) || is(libc::STDERR_FILENO) => {
                self.log.as_ref().map(|log| Ok(log.try_clone()?.into())).transpose()
            }
            _ => Ok(None),
        }
    }

    /// A socket as a replica's shim has it (decision 13); a UNIX socket has its name
    /// here, too.
    fn socket(&mut self, socket: &Socket) -> io::Result<OwnedFd> {
        let fd = placeholder(socket)?;
        if socket.family == libc::AF_UNIX && socket.local.len() > size_of::<libc::sa_family_t>() {
            bind(&fd, socket)?;
        }
        Ok(fd)
    }

    fn memory(&mut self, _: &Object) -> io::Result<OwnedFd> {
        let memory = self.memory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        memory.fd().try_clone_to_owned()
    }

    fn traps_tsc(&self) -> bool {
        self.copying.settings.options & option::TRAP_TSC != 0
    }

    fn before_it_runs(&mut self, stopped: &Stopped) -> io::Result<()> {
        let unknown = || io::Error::other("a process that the log does not know");
        let control = self.control(stopped.member()).ok_or_else(unknown)?;
        let place = control.wrapping_add(offset_of!(ShimState, mode) as u64);
        stopped.write(place, &shim_mode::REPLAY.to_ne_bytes())
    }
}
