//! Stopping a server as its daemon does for a copy: threads are asked to stand still,
//! stopped, and looked at, until none is in the middle of a logged call.

use holdfast_linux::spawn::Server;
use holdfast_linux::threads::Threads;
use holdfast_wire::quiet::state::PARKED;
use holdfast_wire::quiet::{Resume, ShimState, Stopped, shim_mode};
use libc::{pid_t, user_regs_struct};
use std::fs::File;
use std::mem::{MaybeUninit, offset_of};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A server all of whose threads are stopped, and may be copied as they are.
pub struct Frozen<'a> {
    server: &'a Server,
    pub threads: Vec<Still>,
    /// How often threads were stopped for it.
    pub looks: u32,
}

/// One of its threads.
pub struct Still {
    tid: pid_t,
    pub name: String,
    /// It came to a logged call meanwhile.
    pub is_parked: bool,
    /// How it goes on in a copy.
    pub how: Resume,
}

/// Longer than this no server is looked for a quiet moment.
const FREEZE_MAX: Duration = Duration::from_secs(5);

/// Asks for the moment and takes it; how long that took. `serve` does meanwhile what
/// threads may wait for.
pub fn freeze_while(server: &Server, mut serve: impl FnMut()) -> (Frozen<'_>, Duration) {
    let pid = server.pid() as pid_t;
    let mut traced = Vec::new();
    let begin = Instant::now();
    server.memory.park();
    for looks in 1.. {
        while !told(server).look_quiet() {
            assert!(
                begin.elapsed() < FREEZE_MAX,
                "a thread stands never still: {:?}",
                told(server)
            );
            serve();
            std::thread::yield_now();
        }
        // Those that are made meanwhile too.
        let tids = tasks(pid);
        for tid in tids.iter().filter(|tid| !traced.contains(*tid)) {
            trace(libc::PTRACE_SEIZE, *tid, 0);
        }
        traced.clone_from(&tids);
        traced.iter().for_each(|tid| trace(libc::PTRACE_INTERRUPT, *tid, 0));
        traced.iter().for_each(|tid| stopped(*tid));
        let said = told(server);
        assert_eq!(said.lost, 0);
        let all: Option<Vec<_>> =
            traced.iter().map(|tid| Some((*tid, said.resume(*tid, &at(*tid))?))).collect();
        if let Some(all) = all.filter(|_| tasks(pid) == traced) {
            let took = begin.elapsed();
            let parked = |tid| said.list().iter().any(|it| (it.tid, it.state) == (tid, PARKED));
            let thread =
                |(tid, how)| Still { tid, name: name(pid, tid), is_parked: parked(tid), how };
            let threads = all.into_iter().map(thread).collect();
            return (Frozen { server, threads, looks }, took);
        }
        if begin.elapsed() > FREEZE_MAX {
            let busy = traced.iter().filter(|tid| said.resume(**tid, &at(**tid)).is_none());
            let busy: Vec<_> = busy.map(|tid| (name(pid, *tid), at(*tid))).collect();
            panic!("no quiet moment: {busy:x?} {said:x?}");
        }
        traced.iter().for_each(|tid| trace(libc::PTRACE_CONT, *tid, 0));
    }
    unreachable!()
}

/// As [`freeze_while`], of a server that speaks alone.
pub fn freeze(server: &Server) -> (Frozen<'_>, Duration) {
    freeze_while(server, || {})
}

/// Where the threads stand.
pub fn told(server: &Server) -> Threads {
    Threads::read(&server.memory, server.pid()).expect("what the shim says")
}

impl Frozen<'_> {
    /// Makes a copy of the server's in its place: what a loader does elsewhere. The
    /// threads go on as theirs do, and follow the log.
    pub fn become_copy(&self) {
        let memory = &self.server.memory;
        memory.begin_log().expect("a log");
        memory.header().mode.0.store(holdfast_wire::shm::mode::REPLAY, SeqCst);
        let control = memory.header().control.load(SeqCst);
        let path = format!("/proc/{}/mem", self.server.pid());
        let mem = File::options().write(true).open(path).expect("the server's memory");
        let place = control + offset_of!(ShimState, mode) as u64;
        mem.write_all_at(&shim_mode::REPLAY.to_ne_bytes(), place).expect("its mode");
        for Still { tid, how, .. } in &self.threads {
            let result = match how {
                Resume::AsIs => continue,
                Resume::StartOver => -libc::EINTR,
                Resume::TimeOut => -libc::ETIMEDOUT,
            };
            let mut regs = registers(*tid);
            regs.rax = i64::from(result) as u64;
            regs.orig_rax = u64::MAX;
            set_registers(*tid, &regs);
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.server.memory.unpark();
        self.threads.iter().for_each(|it| trace(libc::PTRACE_DETACH, it.tid, 0));
    }
}

fn tasks(pid: pid_t) -> Vec<pid_t> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let number = |it: std::fs::DirEntry| it.file_name().to_str().and_then(|it| it.parse().ok());
    let mut tids: Vec<pid_t> = tasks.filter_map(|it| number(it.ok()?)).collect();
    tids.sort_unstable();
    tids
}

fn name(pid: pid_t, tid: pid_t) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    comm.unwrap_or_default().trim_end().to_owned()
}

/// A thread that ends meanwhile is nobody's business.
fn trace(request: u32, tid: pid_t, data: usize) {
    // SAFETY: no pointers that the kernel would follow.
    unsafe { libc::ptrace(request, tid, 0usize, data) };
}

fn stopped(tid: pid_t) {
    let mut status = 0;
    // SAFETY: a status of ours.
    let r = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    assert!(r < 0 || libc::WIFSTOPPED(status) || libc::WIFEXITED(status), "{status:x}");
}

fn registers(tid: pid_t) -> user_regs_struct {
    let mut regs = MaybeUninit::<user_regs_struct>::zeroed();
    // SAFETY: the kernel fills what is ours; all-zero is valid too.
    unsafe {
        libc::ptrace(libc::PTRACE_GETREGS, tid, 0usize, regs.as_mut_ptr());
        regs.assume_init()
    }
}

fn set_registers(tid: pid_t, regs: &user_regs_struct) {
    // SAFETY: the kernel reads ours.
    let r = unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0usize, regs) };
    assert_eq!(r, 0);
}

fn at(tid: pid_t) -> Stopped {
    let r = registers(tid);
    Stopped { rip: r.rip, orig_rax: r.orig_rax as i64, rax: r.rax as i64, rdi: r.rdi, rsi: r.rsi }
}
