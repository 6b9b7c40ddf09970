//! Starting a server under the shim: memory, control socket and wake-up are handed
//! over as descriptors, and the server dies with its daemon. Or making one from the
//! image of another.

mod books;
mod control;
mod copy;
mod deaths;
mod family;
mod log;
mod original;
mod plain;
mod user;

pub use copy::{Copying, Making};
pub use log::try_log;
pub use original::{StandStill, Unacked};
pub use plain::{kill_group, without_ours};
pub use user::{Use, User, gains_capabilities, try_use};

use crate::limits::{self, OpenFiles};
use crate::process::{self, Ending, EventFd};
use crate::shm::{Settings, SharedMemory};
use crate::snapshot::restore::Restored;
use crate::{sockopt, unread};
use control::{send_fd, socket_pair};
use deaths::Deaths;
use family::Members;
use holdfast_wire::shm::{ConnEntry, DIRECT, FDS_MAX, HANDED, SHIM_FDS, conn_state, leash, mode};
use log::open_log;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerCommand {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Variables added to the inherited environment.
    pub env: Vec<(OsString, OsString)>,
    /// Inherited variables that it does not get.
    pub without: Vec<OsString>,
    pub directory: Option<PathBuf>,
    /// Whom it runs as.
    pub user: Option<User>,
    /// File for standard output and error; inherited if absent.
    pub log: Option<PathBuf>,
    /// The shim's shared object.
    pub shim: PathBuf,
    /// Limit of its descriptors; as many as its daemon if absent.
    pub open_files: Option<OpenFiles>,
    /// Whether the kernel may place it at random addresses.
    pub aslr: bool,
    /// Whether its processes are in a pid namespace of their own, as those are that are all in one
    /// log: whatever it starts ends with it.
    pub family: bool,
    /// Most bytes of a file that it may write; as many as its daemon if absent.
    pub file_bytes_max: Option<u64>,
}

/// Highest number of a signal.
const SIGNAL_MAX: i32 = 64;

/// Steps to take in the child before it becomes the server.
#[derive(Clone)]
struct Preparation {
    handed: [RawFd; HANDED],
    /// Numbers that the handed descriptors get.
    places: [RawFd; HANDED],
    /// Its daemon as it sees that: 0 from another pid namespace.
    daemon: u32,
    open_files: Option<OpenFiles>,
    file_bytes_max: Option<u64>,
    aslr: bool,
    /// Another user than the daemon's.
    user: Option<User>,
}

/// A server that runs under the shim.
pub struct Server {
    pub memory: SharedMemory,
    process: Process,
    pidfd: OwnedFd,
    /// How it ended, once it has.
    ending: Option<Ending>,
    is_reaped: bool,
    /// The daemon's end of the control socket; nobody has that of an earlier
    /// daemon.
    control: Option<OwnedFd>,
    wake: EventFd,
    started: Instant,
    /// Standard input, output and error of its daemon when it was made.
    standard: Standard,
    /// Processes of a family, by their own numbers, and which of them have ended.
    members: Members,
    deaths: Deaths,
    /// For a copy, and for a family: keeps the thread alive whose child it is; the thread
    /// ends when this is dropped.
    _maker: Option<Sender<()>>,
}

enum Process {
    /// A child of this process, by its number.
    Child(u32),
    Copy(Restored),
    /// A child of an earlier daemon, and nobody's now.
    Found(u32),
}

/// Files as /proc names them; `None` where there is none.
pub type Standard = [Option<PathBuf>; FIRST_OWN as usize];

/// Most messages on its control socket that a server may have sent unread.
const WORDS_MAX: usize = 64;
/// Longest time until a killed server is gone, in ms. Only a disk that does not answer,
/// or a tracer, delays it for longer; it runs no instruction of its own any more.
const KILLED_MAX_MS: i32 = 2000;

/// First descriptor that is not standard input, output or error.
const FIRST_OWN: RawFd = 3;

/// Longest time in which a server goes into the background.
const BACKGROUND_MAX: Duration = Duration::from_secs(5);

impl Server {
    /// Starts the server. It is killed when the calling thread ends.
    ///
    /// # Errors
    /// If memory or descriptors cannot be made, or the program cannot be run.
    pub fn start(command: &ServerCommand, settings: &Settings) -> io::Result<Self> {
        let memory = SharedMemory::create(settings)?;
        let (control, theirs) = socket_pair()?;
        let wake = EventFd::new()?;
        let handed = [theirs.as_raw_fd(), memory.fd().as_raw_fd(), wake.as_fd().as_raw_fd()];
        let made = build(command, handed)?;
        let (mut child, maker) = family::spawn(made, command.family)?;
        let pidfd = process::pidfd_open(child.id()).inspect_err(|_| {
            // Nobody would watch it.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let process = Process::Child(child.id());
        let mut this = Self::new(memory, (process, pidfd), wake, own_standard());
        (this.control, this._maker) = (Some(control), maker);
        Ok(this)
    }

    /// Takes over a server that an earlier daemon has started and that speaks alone: found
    /// by the named memory that both share, which is as `settings` say except for the
    /// mode.
    ///
    /// # Errors
    /// If it has no such memory, or lacks what a shim was handed.
    pub fn found(
        (pid, process): (u32, BorrowedFd<'_>),
        settings: &Settings,
        standard: Standard,
    ) -> io::Result<Self> {
        let memory = process::memory_of(pid, &settings.name)?;
        let memory = SharedMemory::adopt(process::take_descriptor(process, memory)?, settings)?;
        let wake = memory.header().handed[2].load(Relaxed);
        let wake = EventFd::of(process::take_descriptor(process, wake)?)?;
        let pidfd = process.try_clone_to_owned()?;
        Ok(Self::new(memory, (Process::Found(pid), pidfd), wake, standard))
    }

    /// A server that runs from now on, with no socket to it and nobody who holds its namespace.
    fn new(
        memory: SharedMemory,
        (process, pidfd): (Process, OwnedFd),
        wake: EventFd,
        standard: Standard,
    ) -> Self {
        Self {
            memory,
            process,
            pidfd,
            ending: None,
            is_reaped: false,
            control: None,
            wake,
            started: Instant::now(),
            standard,
            members: Members::default(),
            deaths: Deaths::default(),
            _maker: None,
        }
    }

    /// Standard input, output and error of its daemon when it was made.
    #[must_use]
    pub const fn standard(&self) -> &Standard {
        &self.standard
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        match &self.process {
            Process::Child(pid) | Process::Found(pid) => *pid,
            Process::Copy(copy) => copy.pid(),
        }
    }

    /// Readable when the process has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Hangs up as soon as the process closes its descriptors, a little before
    /// [`Self::pidfd`] reports; `None` for a server that an earlier daemon has
    /// started.
    #[must_use]
    pub fn control(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(AsFd::as_fd)
    }

    /// Whether the control socket has hung up, or the server has sent something there
    /// that it never should: if it still runs, it is to be ended then.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.word().is_some()
    }

    /// Whether the server still has its end of the control socket. Messages sent there
    /// until now, as by the shim at its promotion, are discarded.
    #[must_use]
    pub fn has_control(&self) -> bool {
        if self.control.is_none() {
            let theirs = self.memory.header().handed[0].load(Relaxed);
            return self.take_fd(theirs).is_ok_and(|fd| unread::cookie(fd.as_fd()).is_ok());
        }
        let last = (0..WORDS_MAX).map(|_| self.word()).find(|word| *word != Some(true));
        last == Some(None)
    }

    /// The next word on the control socket: `true` if there is one, `false` if it has hung
    /// up.
    fn word(&self) -> Option<bool> {
        let mut word = [0; 64];
        match sockopt::receive(self.control()?, &mut word, libc::MSG_DONTWAIT) {
            Ok(len) => Some(len > 0),
            Err(error) => (error.kind() != io::ErrorKind::WouldBlock).then_some(false),
        }
    }

    /// An event counter that the shim rings when it has something for the daemon.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// A duplicate of one of the server's descriptors: the very same socket.
    ///
    /// # Errors
    /// If the descriptor is not open, is a file with a name, or without `CAP_SYS_PTRACE`.
    pub fn take_fd(&self, fd: RawFd) -> io::Result<OwnedFd> {
        process::take_descriptor(self.pidfd.as_fd(), fd)
    }

    /// Borrows a connection that the server has accepted and not closed: `None`
    /// if it is not there, or is not the socket with this cookie.
    #[must_use]
    pub fn borrow(&self, accept: u32, socket: u64) -> Option<Borrowed<'_>> {
        let borrowed = self.borrow_any(accept)?;
        let same = unread::cookie(borrowed.as_fd()).is_ok_and(|cookie| cookie == socket);
        same.then_some(borrowed)
    }

    /// Like [`Self::borrow`], for any socket.
    fn borrow_any(&self, accept: u32) -> Option<Borrowed<'_>> {
        let entry = self.memory.entry(accept);
        let mark = Mark(entry);
        // A closing server says so first, and then looks at the mark.
        entry.borrowed.store(1, SeqCst);
        let open = entry.state.load(SeqCst) == conn_state::OPEN;
        if !open || entry.conn.load(Relaxed) != accept {
            return None;
        }
        let fd = self.take_connection(accept, entry.fd.load(Relaxed)).ok()?;
        Some(Borrowed { fd, _mark: mark })
    }

    /// Hands a connection of the dead primary's accept queue to the replica.
    ///
    /// # Errors
    /// If the control socket is full or gone.
    pub fn give_connection(&self, listener: RawFd, connection: BorrowedFd<'_>) -> io::Result<()> {
        let number = listener.to_ne_bytes();
        let control = self.control.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send_fd(control.as_raw_fd(), &number, connection.as_raw_fd())
    }

    /// Gives the shim its socket to the backup, by which it sends the log itself.
    ///
    /// # Errors
    /// If the control socket is full or gone.
    pub fn give_direct(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let control = self.control.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send_fd(control.as_raw_fd(), &DIRECT.to_ne_bytes(), socket.as_raw_fd())
    }

    /// Kills the server with everything that it has started, at once, and waits for
    /// its end. True if it is gone.
    pub fn kill(&mut self) -> bool {
        if !self.has_ended() {
            // A stopped server starts nothing in its children's place.
            let _ = process::signal(self.pidfd(), libc::SIGSTOP);
            process::kill_descendants(self.pid());
            let _ = process::signal(self.pidfd(), libc::SIGKILL);
        }
        // A traced process stays until its tracer looks: nobody waits for that.
        let mut is_gone = process::poll_in(self.pidfd(), KILLED_MAX_MS).unwrap_or(false);
        is_gone &= process::poll_in(self.child(), KILLED_MAX_MS).unwrap_or(false);
        let _ = self.has_ended();
        self.reap();
        is_gone
    }

    /// Without this the dead process stays in the list of processes until its daemon ends.
    fn reap(&mut self) {
        if !std::mem::replace(&mut self.is_reaped, true)
            && let Ok(child) = self.child().try_clone_to_owned()
        {
            process::reap_aside(child);
        }
    }

    /// Call once the server speaks alone: asks its first thread not to die with
    /// the daemon. True if it will not; otherwise ask again.
    #[must_use]
    pub fn let_loose(&mut self) -> bool {
        if let Process::Copy(copy) = &self.process
            && copy.has_keeper()
        {
            return mode::is_alone(self.memory.mode()) && copy.let_loose();
        }
        if let Process::Found(_) = &self.process {
            // Otherwise it would have ended.
            return true;
        }
        match self.memory.header().leash.load(SeqCst) {
            leash::LOOSE => true,
            leash::HELD if !self.has_ended() => {
                let _ = process::queue_signal(self.pid(), libc::SIGSYS);
                false
            }
            _ => false,
        }
    }

    /// Whether it ended at once, without an error and after forking a child, as
    /// servers do that go into the background.
    #[must_use]
    pub fn is_in_background(&mut self) -> bool {
        let soon = self.started.elapsed() < BACKGROUND_MAX;
        soon && self.memory.forks() > 0 && self.ending() == Some(Ending::Exited(0))
    }

    /// How the server has ended; `None` if it has not.
    #[must_use]
    pub fn ending(&mut self) -> Option<Ending> {
        // The ending is remembered: once the process is reaped nobody knows it.
        if self.ending.is_none() {
            let ending = || process::ending(self.child()).unwrap_or(Some(Ending::Unknown));
            self.ending = match self.process {
                Process::Copy(ref copy) if copy.has_keeper() => ending().map(copy::as_the_server),
                Process::Child(_) | Process::Copy(_) => ending(),
                // Only its parent is told how it ended.
                Process::Found(_) => {
                    let has_ended = process::poll_in(self.pidfd(), 0).unwrap_or(true);
                    has_ended.then_some(Ending::Unknown)
                }
            };
        }
        self.ending
    }

    /// How the server has ended, of one that just has: a copy's namespace ends after it.
    #[must_use]
    pub fn last_words(&mut self) -> Option<Ending> {
        let _timeout = process::poll_in(self.child(), KILLED_MAX_MS);
        self.ending()
    }

    fn has_ended(&mut self) -> bool {
        self.ending().is_some()
    }

    /// The server, or the process that keeps a copy's namespace and ends as the
    /// copy does.
    fn child(&self) -> BorrowedFd<'_> {
        match &self.process {
            Process::Child(_) | Process::Found(_) => self.pidfd.as_fd(),
            Process::Copy(copy) => copy.namespace(),
        }
    }
}

impl Drop for Server {
    /// One that has ended by itself was not killed, and its daemon may live for long.
    fn drop(&mut self) {
        if self.has_ended() {
            self.reap();
        }
    }
}

/// One of the server's connections. The server's last close of it waits until
/// this is dropped: that must be soon.
pub struct Borrowed<'a> {
    // Dropped in this order.
    fd: OwnedFd,
    _mark: Mark<'a>,
}

impl AsFd for Borrowed<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Marks the connection as held by the daemon for as long as this lives.
struct Mark<'a>(&'a ConnEntry);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.borrowed.store(0, Release);
    }
}

/// What this process has as standard input, output and error.
fn own_standard() -> Standard {
    std::array::from_fn(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok())
}

fn build(command: &ServerCommand, handed: [RawFd; HANDED]) -> io::Result<Command> {
    let (program, arguments) = command.argv.split_first().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the server's command is empty")
    })?;
    if !command.shim.is_file() {
        let message = format!(
            "the shim {} is missing; install it beside the holdfast binary",
            command.shim.display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let mut c = Command::new(program);
    c.args(arguments);
    for name in &command.without {
        c.env_remove(name);
    }
    c.envs(command.env.iter().cloned());
    c.env("LD_PRELOAD", &command.shim);
    let places = places()?;
    // The value always has the same length: what lies on the server's stack
    // decides its addresses.
    c.env("HOLDFAST_SHIM", places.map(|fd| format!("{fd:010}")).join(","));
    c.stdin(Stdio::null());
    // A Ctrl-C at the daemon's terminal is for the daemon, which hands over first.
    c.process_group(0);
    if let Some(directory) = &command.directory {
        c.current_dir(directory);
    }
    if let Some(path) = &command.log {
        let file = open_log(path)?;
        c.stdout(file.try_clone()?).stderr(file);
    }
    let preparation = Preparation {
        handed,
        places,
        daemon: if command.family { 0 } else { std::process::id() },
        open_files: command.open_files,
        file_bytes_max: command.file_bytes_max,
        aslr: command.aslr,
        user: command.user.clone(),
    };
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe { c.pre_exec(move || preparation.make()) };
    Ok(c)
}

/// Numbers at the upper end of what a server may have: all its other descriptors
/// have the numbers that they would have without a shim, and so do those of its
/// replica.
fn places() -> io::Result<[RawFd; HANDED]> {
    let end = limits::open_files()?.soft.min(FDS_MAX as u64);
    let first = end.saturating_sub(SHIM_FDS as u64) as RawFd;
    Ok([first, first + 1, first + 2])
}

impl Preparation {
    /// In the child: sets what the server is to have, and removes what it must
    /// not inherit.
    fn make(&self) -> io::Result<()> {
        self.user.as_ref().map_or(Ok(()), User::enter)?;
        // Descriptors that the daemon happens to have been started with differ between
        // hosts, and no copy of the server could have them.
        process::close_at_exec(FIRST_OWN)?;
        self.place_descriptors()?;
        if self.user.is_some() {
            // Otherwise a set-uid program in its place would be taken for the
            // server, whose memory and descriptors the daemon reads.
            process::gain_no_privileges()?;
        }
        self.open_files.map_or(Ok(()), limits::set_open_files)?;
        self.file_bytes_max.map_or(Ok(()), limits::set_file_bytes)?;
        if !self.aslr {
            process::fix_addresses()?;
        }
        process::die_with_parent(libc::SIGKILL)?;
        // A daemon that is not root has its rights by capabilities.
        process::give_up_ambient()?;
        // SAFETY: no arguments.
        if unsafe { libc::getppid() } as u32 != self.daemon {
            return Err(io::Error::other("the daemon died while starting the server"));
        }
        // The daemon's real-time priority is not the server's.
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel only reads `parameters`.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
        forget_signals()
    }

    /// Keeps the three descriptors over exec, out of the server's way.
    fn place_descriptors(&self) -> io::Result<()> {
        for (fd, place) in self.handed.into_iter().zip(self.places) {
            // SAFETY: plain calls on inherited descriptors; the copy survives exec.
            let done = unsafe {
                if fd == place { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, place) }
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Resets signals: the daemon blocks those that it reads from a descriptor, and
/// ignores others; neither is the server's business.
fn forget_signals() -> io::Result<()> {
    for signal in 1..=SIGNAL_MAX {
        // Those that cannot be handled, and libc's own, refuse.
        // SAFETY: the default action runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero sigset_t is valid memory for sigemptyset to fill.
    let error = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests;
