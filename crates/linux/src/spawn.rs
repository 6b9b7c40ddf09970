//! Starting a server under the shim: memory, control socket and wake-up are
//! handed over as descriptors, and the server dies with its daemon.

use crate::shm::{Settings, SharedMemory};
use crate::{process, unread};
use holdfast_wire::shm::{ConnEntry, conn_state};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct ServerCommand {
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Added to the environment that is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Inherited variables that it does not get.
    pub without: Vec<OsString>,
    pub directory: Option<PathBuf>,
    /// User and group to run as.
    pub ids: Option<(u32, u32)>,
    /// File for standard output and error; inherited if absent.
    pub log: Option<PathBuf>,
    /// The shim's shared object.
    pub shim: PathBuf,
}

/// A server that runs under the shim.
pub struct Server {
    pub memory: SharedMemory,
    child: Child,
    pidfd: OwnedFd,
    control: OwnedFd,
    wake: OwnedFd,
}

impl Server {
    /// Starts the server. It is killed when the calling thread ends.
    ///
    /// # Errors
    /// If memory or descriptors cannot be made, or the program cannot be run.
    pub fn start(command: &ServerCommand, settings: &Settings) -> io::Result<Self> {
        let memory = SharedMemory::create(settings)?;
        let (control, theirs) = socket_pair()?;
        let wake = event()?;
        let handed = [theirs.as_raw_fd(), memory.fd().as_raw_fd(), wake.as_raw_fd()];
        let child = build(command, handed)?.spawn()?;
        let pidfd = process::pidfd_open(child.id())?;
        Ok(Self { memory, child, pidfd, control, wake })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Readable when the process has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Hung up as soon as the process closes its descriptors, a little before
    /// [`Self::pidfd`] reports.
    #[must_use]
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// An event counter that the shim rings when it has something for the daemon.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// A duplicate of one of the server's descriptors: the very same socket.
    ///
    /// # Errors
    /// If the descriptor is not open, or without `CAP_SYS_PTRACE`.
    pub fn take_fd(&self, fd: RawFd) -> io::Result<OwnedFd> {
        process::pidfd_getfd(self.pidfd.as_fd(), fd)
    }

    /// Holds a connection that the server has accepted and not closed: `None` if
    /// it is not there, or is not the socket with this cookie.
    #[must_use]
    pub fn borrow(&self, accept: u32, socket: u64) -> Option<Borrowed<'_>> {
        let entry = self.memory.entry(accept);
        let mark = Mark(entry);
        // The server that closes says so first, and looks at the mark then.
        entry.borrowed.store(1, SeqCst);
        let open = entry.state.load(SeqCst) == conn_state::OPEN;
        if !open || entry.conn.load(Relaxed) != accept {
            return None;
        }
        let fd = self.take_fd(entry.fd.load(Relaxed)).ok()?;
        let same = unread::cookie(fd.as_fd()).is_ok_and(|cookie| cookie == socket);
        same.then_some(Borrowed { fd, _mark: mark })
    }

    /// Hands a connection of the dead primary's accept queue to the replica.
    ///
    /// # Errors
    /// If the control socket is full or gone.
    pub fn give_connection(&self, listener: RawFd, connection: BorrowedFd<'_>) -> io::Result<()> {
        let number = listener.to_ne_bytes();
        send_fd(self.control.as_raw_fd(), &number, connection.as_raw_fd())
    }

    /// Kills the server at once and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How the server ended, if it has.
    pub fn exit_status(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// One of the server's connections. Its last close waits until this is dropped:
/// that must be soon.
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

/// Says as long as it lives that the daemon holds the descriptor.
struct Mark<'a>(&'a ConnEntry);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.borrowed.store(0, Release);
    }
}

fn build(command: &ServerCommand, handed: [RawFd; 3]) -> io::Result<Command> {
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
    c.env("HOLDFAST_SHIM", handed.map(|fd| fd.to_string()).join(","));
    c.stdin(Stdio::null());
    if let Some(directory) = &command.directory {
        c.current_dir(directory);
    }
    if let Some(path) = &command.log {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        c.stdout(file.try_clone()?).stderr(file);
    }
    if let Some((uid, gid)) = command.ids {
        c.uid(uid).gid(gid);
    }
    let daemon = std::process::id();
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe { c.pre_exec(move || prepare(handed, daemon)) };
    Ok(c)
}

/// In the child: keep the three descriptors over exec, and die with the daemon.
fn prepare(handed: [RawFd; 3], daemon: u32) -> io::Result<()> {
    for fd in handed {
        // SAFETY: plain calls on inherited descriptors.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    process::die_with_parent(libc::SIGKILL)?;
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } as u32 != daemon {
        return Err(io::Error::other("the daemon died while starting the server"));
    }
    // The daemon's real-time priority is not the server's.
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel only reads `parameters`.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
    Ok(())
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors, owned by us on success.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

fn event() -> io::Result<OwnedFd> {
    // SAFETY: a fresh descriptor, checked.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// One message with one descriptor.
fn send_fd(socket: RawFd, bytes: &[u8], fd: RawFd) -> io::Result<()> {
    let slice = IoSlice::new(bytes);
    let mut control = [0u64; 3];
    // SAFETY: a message built from buffers that outlive the call; CMSG macros
    // stay inside `control`, which holds one descriptor's worth.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = (&raw const slice).cast_mut().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
