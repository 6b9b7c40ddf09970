//! The processes that become the server, and the one that keeps their pid namespace if none of
//! them is its first.

use super::super::describe::process::layout;
use super::super::error::{Doing, Result};
use super::files::Made;
use super::remote::{CODE, PLACE_USED};
use super::{REAP_MAX_MS, STEP_MAX, failed};
use crate::process;
use crate::sockopt::{checked, checked_fd};
use holdfast_wire::snapshot::{Description, Member, Watch};
use libc::{c_int, c_long};
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicPtr};
use std::time::{Duration, Instant};

/// Time between looks at a process that is to become ready.
const LOOK: Duration = Duration::from_micros(50);

/// The keeper's command line.
const TITLE: &[u8] = b"keeper of a server\0";
/// The keeper's name, of 15 bytes at most.
const NAME: &CStr = c"keeper";

/// What a stub that is ready says.
const READY: i32 = 1;

/// Signal that asks the keeper to outlive the restoring process.
const LET_LOOSE: c_int = libc::SIGUSR1;

/// In the keeper: the place where it says that it does.
static LOOSE: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());

extern "C" fn loosen(_: c_int) {
    // SAFETY: a plain call; the pointer is null, or one to memory that is never unmapped
    // there.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
        if let Some(loose) = LOOSE.load(SeqCst).as_ref() {
            loose.store(1, SeqCst);
        }
    }
}

/// The first process of the server's namespace.
pub(super) struct Root {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    shared: Shared,
    /// Whether it only keeps the namespace.
    pub is_keeper: bool,
}

impl Root {
    /// Removes it from the list of processes if it has ended; true if so.
    fn reap(&self) -> bool {
        // SAFETY: without a place for the status nothing is written.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), libc::WNOHANG) == self.pid }
    }

    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Asks it to outlive us; true if it does by now.
    pub fn let_loose(&self) -> bool {
        if self.is_loose() || !self.is_keeper {
            return self.is_loose();
        }
        let _ = process::signal(self.pidfd.as_fd(), LET_LOOSE);
        self.is_loose()
    }

    fn is_loose(&self) -> bool {
        self.shared.get().loose.load(SeqCst) != 0
    }
}

/// Kills it and with it all of its namespace, unless it was released.
impl Drop for Root {
    fn drop(&mut self) {
        if !self.reap() && !self.is_loose() {
            let _ = process::signal(self.pidfd.as_fd(), libc::SIGKILL);
            let _ = process::poll_in(self.pidfd.as_fd(), REAP_MAX_MS);
            self.reap();
        }
    }
}

pub(super) struct Stubs {
    /// In the caller's numbering, in the order of the image's processes.
    pub pids: Vec<u32>,
    pub root: Root,
}

/// Most stubs.
const STUBS_MAX: usize = 256;

/// What the new processes say, in memory that they share with us.
#[repr(C)]
struct Progress {
    /// Of each stub. 1: it is ready; negative: its error.
    ready: [AtomicI32; STUBS_MAX],
    /// 1: the first process of the namespace outlives its parent.
    loose: AtomicI32,
}

struct Shared(*mut Progress);

// SAFETY: the memory belongs to whoever has this, and what is in it is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> io::Result<Self> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory; the result is checked.
        let at = unsafe { libc::mmap(ptr::null_mut(), 4096, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at.cast())) }
    }

    fn get(&self) -> &Progress {
        // SAFETY: a page of zeros makes one; it is mapped until this is dropped.
        unsafe { &*self.0 }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody refers to any more.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// Everything that the new processes need: nothing is allocated after the fork.
struct Plan<'a> {
    progress: &'a Progress,
    place: u64,
    stubs: Vec<StubPlan<'a>>,
    dies_with_parent: bool,
    is_namespace: bool,
    /// Where this process's arguments are, which are its command line.
    arguments: Range<u64>,
}

/// What one stub needs.
struct StubPlan<'a> {
    pid: libc::pid_t,
    parent: usize,
    /// For each move, our number and the server's.
    moves: Vec<(RawFd, RawFd)>,
    /// For each move, the number that its file has now.
    at: Vec<i32>,
    watches: &'a [Watch],
    leads_session: bool,
}

/// The used part of `struct clone_args`.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
}

fn clone3(args: &CloneArgs) -> c_long {
    // SAFETY: as fork(): memory is copied, and the child makes system calls only.
    unsafe { libc::syscall(libc::SYS_clone3, ptr::from_ref(args), size_of::<CloneArgs>()) }
}

/// Starts all stubs, and waits until each has its descriptors.
pub(super) fn start(
    description: &Description,
    made: &Made,
    place: u64,
    dies_with_parent: bool,
) -> Result<Stubs> {
    if description.members.len() > STUBS_MAX {
        return failed("starting so many processes", libc::E2BIG);
    }
    let shared = Shared::new().doing("memory for the stubs")?;
    let mut plan = Plan::new(description, made, place, dies_with_parent, shared.get());
    plan.arguments = own_arguments().doing("this process's arguments")?;
    let is_keeper = !plan.is_namespace;
    let mut pidfd: c_int = -1;
    let args = CloneArgs {
        flags: (libc::CLONE_NEWPID | libc::CLONE_PIDFD) as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    let pid = match clone3(&args) {
        0 if is_keeper => plan.keep(),
        0 => plan.be_first(),
        pid => checked(pid as c_int).doing("a pid namespace for the server")?,
    };
    let pidfd = checked_fd(c_long::from(pidfd)).doing("the first process of its namespace")?;
    let root = Root { pid, pidfd, shared, is_keeper };
    wait(&root, description.members.len())?;
    let found = process::family(pid.cast_unsigned());
    let number = |pid: &u32| process::innermost_tid(*pid, *pid).ok();
    let of = |member: &Member| {
        let own = Some(member.process.pid);
        found.iter().copied().find(|pid| number(pid) == own)
    };
    let pids: Option<Vec<u32>> = description.members.iter().map(of).collect();
    let pids = pids.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    Ok(Stubs { pids: pids.doing("finding the stubs")?, root })
}

/// Where this process's arguments are.
fn own_arguments() -> io::Result<Range<u64>> {
    let layout = layout(&std::fs::read_to_string("/proc/self/stat")?, 0)?;
    Ok(layout.arg_start..layout.arg_end.max(layout.arg_start))
}

fn wait(root: &Root, stubs: usize) -> Result<()> {
    let deadline = Instant::now() + STEP_MAX;
    let ready = &root.shared.get().ready[..stubs];
    loop {
        let all = || ready.iter().map(|it| it.load(SeqCst));
        if let Some(error) = all().find(|it| *it < 0) {
            return failed("preparing the stub", -error);
        }
        if all().all(|it| it == READY) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return failed("waiting for the stub to start", libc::ETIMEDOUT);
        }
        std::thread::sleep(LOOK);
    }
}

impl<'a> StubPlan<'a> {
    fn new(member: &'a Member, made: &Made) -> Self {
        let moves: Vec<(RawFd, RawFd)> = member
            .descriptors
            .iter()
            .filter_map(|d| Some((made.raw(d.file)?, d.number as RawFd)))
            .collect();
        let end = moves.iter().map(|(ours, theirs)| ours.max(theirs) + 1).max().unwrap_or(0);
        Self {
            pid: member.process.pid as libc::pid_t,
            parent: member.parent as usize,
            at: vec![-1; end as usize],
            moves,
            watches: &member.watches,
            leads_session: member.process.session == member.process.pid,
        }
    }
}

impl<'a> Plan<'a> {
    fn new(
        description: &'a Description,
        made: &Made,
        place: u64,
        dies_with_parent: bool,
        progress: &'a Progress,
    ) -> Self {
        Self {
            progress,
            place,
            stubs: description.members.iter().map(|it| StubPlan::new(it, made)).collect(),
            dies_with_parent,
            is_namespace: description.is_namespace(),
            arguments: 0..0,
        }
    }

    /// Calls the keeper what it is: whoever ends all that is called as the daemon is means
    /// the daemon, and not the server, which ends with its keeper.
    fn rename(&self) {
        let Range { start, end } = self.arguments;
        let len = (end.saturating_sub(start) as usize).min(TITLE.len());
        // SAFETY: the kernel has put the arguments there, and this copy of the process reads
        // them no more; the name is a string that ends.
        unsafe {
            ptr::write_bytes(start as *mut u8, 0, (end - start) as usize);
            ptr::copy_nonoverlapping(TITLE.as_ptr(), start as *mut u8, len.saturating_sub(1));
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        }
    }

    /// The namespace's first process where it is none of the server's: starts the stub, waits for
    /// it, ends as it does.
    fn keep(&mut self) -> ! {
        self.rename();
        // SAFETY: system calls without memory of ours, but for `status`.
        unsafe {
            LOOSE.store((&raw const self.progress.loose).cast_mut(), SeqCst);
            libc::signal(LET_LOOSE, loosen as *const () as libc::sighandler_t);
            let signal = 1u64 << (LET_LOOSE - 1);
            let (change, none) = (libc::SIG_UNBLOCK, ptr::null_mut::<u64>());
            libc::syscall(libc::SYS_rt_sigprocmask, change, &raw const signal, none, 8);
            self.tie();
            let stub = self.start(0);
            if stub < 0 {
                libc::_exit(1);
            }
            libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
            let mut status = 0;
            // Processes that its end leaves behind are waited for, too.
            loop {
                let ended = libc::waitpid(-1, &raw mut status, libc::__WALL);
                if ended == stub as libc::pid_t {
                    break;
                }
                if ended < 0 && last_error() != libc::EINTR {
                    break;
                }
            }
            let code = if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                128 + libc::WTERMSIG(status)
            };
            libc::_exit(code)
        }
    }

    /// The namespace's first process where it is the server's.
    fn be_first(&mut self) -> ! {
        self.tie();
        self.become_stub(0)
    }

    /// Ties the life of this process to its parent's, if that is wanted.
    fn tie(&self) {
        if self.dies_with_parent {
            // SAFETY: plain numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        } else {
            self.progress.loose.store(1, SeqCst);
        }
    }

    /// Starts a stub as a child of this process, with its number; negative: that failed.
    fn start(&mut self, index: usize) -> c_long {
        let args = CloneArgs {
            exit_signal: libc::SIGCHLD as u64,
            set_tid: (&raw const self.stubs[index].pid) as u64,
            set_tid_size: 1,
            ..CloneArgs::default()
        };
        let stub = clone3(&args);
        if stub == 0 {
            self.become_stub(index);
        }
        if stub < 0 {
            self.progress.ready[index].store(-last_error(), SeqCst);
        }
        stub
    }

    /// Becomes a stub: starts its children, takes its descriptors and waits for what is done to
    /// it.
    fn become_stub(&mut self, index: usize) -> ! {
        let ready = match self.prepare(index) {
            Ok(()) => READY,
            Err(errno) => -errno,
        };
        self.progress.ready[index].store(ready, SeqCst);
        loop {
            // SAFETY: a plain call.
            unsafe { libc::pause() };
        }
    }

    fn prepare(&mut self, index: usize) -> std::result::Result<(), c_int> {
        for signal in 1..=64 {
            // SAFETY: the default action runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        if self.stubs[index].leads_session {
            // SAFETY: a plain call.
            unsafe { libc::setsid() };
        }
        // They inherit the session, and all files while these have the numbers that they know.
        for child in index + 1..self.stubs.len() {
            if self.stubs[child].parent == index && self.start(child) < 0 {
                return Err(last_error());
            }
        }
        let stub = &mut self.stubs[index];
        stub.place_descriptors()?;
        stub.watch()?;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: new memory where nothing is, large enough for the code.
        unsafe {
            let at = self.place as *mut libc::c_void;
            if libc::mmap(at, PLACE_USED as usize, prot, anonymous, -1, 0) != at {
                return Err(last_error());
            }
            ptr::copy_nonoverlapping(CODE.as_ptr(), at.cast(), CODE.len());
        }
        Ok(())
    }
}

impl StubPlan<'_> {
    /// Moves every file to its number; one that stands in the way moves first. All stay open
    /// when the stub starts its program.
    fn place_descriptors(&mut self) -> std::result::Result<(), c_int> {
        // SAFETY: plain numbers; the lists are this process's own copies.
        unsafe {
            // Descriptors that share a file are made distinct: every move has its own.
            for index in 0..self.moves.len() {
                let (ours, theirs) = self.moves[index];
                let own = libc::fcntl(ours, libc::F_DUPFD, 0);
                if own < 0 {
                    return Err(last_error());
                }
                self.moves[index] = (own, theirs);
                self.note(own, index as i32);
            }
            for index in 0..self.moves.len() {
                let (own, theirs) = self.moves[index];
                if own == theirs {
                    continue;
                }
                let other = self.at.get(theirs as usize).copied().unwrap_or(-1);
                if other > index as i32 {
                    let moved = libc::fcntl(theirs, libc::F_DUPFD, 0);
                    if moved < 0 {
                        return Err(last_error());
                    }
                    self.moves[other as usize].0 = moved;
                    self.note(moved, other);
                }
                if libc::dup2(own, theirs) < 0 {
                    return Err(last_error());
                }
                self.note(own, -1);
                self.note(theirs, index as i32);
                libc::close(own);
            }
            let mut next = 0;
            for (_, theirs) in &self.moves {
                if *theirs > next {
                    libc::syscall(libc::SYS_close_range, next, theirs - 1, 0);
                }
                next = theirs + 1;
            }
            libc::syscall(libc::SYS_close_range, next, u32::MAX, 0);
        }
        Ok(())
    }

    fn note(&mut self, number: RawFd, index: i32) {
        if let Some(at) = self.at.get_mut(number as usize) {
            *at = index;
        }
    }

    /// Sets the watches: epoll sets know what they watch by its number, too.
    fn watch(&self) -> std::result::Result<(), c_int> {
        for watch in self.watches {
            let mut event = libc::epoll_event { events: watch.events, u64: watch.data };
            let (set, target) = (watch.set as c_int, watch.target as c_int);
            // SAFETY: the kernel only reads `event`.
            let done = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, target, &raw mut event) };
            if done < 0 {
                return Err(last_error());
            }
        }
        Ok(())
    }
}

fn last_error() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
