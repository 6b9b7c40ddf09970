//! What no image can contain is refused by its name before anything is touched: the process goes on
//! as before. Needs root.

use crate::world::{Server, beside, compile, options, snapshot, wait_for};
use holdfast_linux::snapshot::quiet::{Bare, Quiescence, Resume, Standing};
use holdfast_linux::snapshot::{Frozen, Preparation, SnapshotError};
use holdfast_wire::snapshot::{Books, Limits};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What a process has, with the words by which it is refused.
const REFUSED: [(&str, &str); 35] = [
    ("alone", "its first thread has ended"),
    ("stopped", "it is stopped by a signal"),
    ("traced", "somebody else traces it"),
    ("seccomp", "it has seccomp filters"),
    ("mlock", "it has locked memory (mlock)"),
    ("sigtrap", "it ignores SIGTRAP"),
    ("child", "it has child processes"),
    ("chroot", "its root folder is not the daemon's (chroot)"),
    ("mount", "it has a mount namespace of its own"),
    ("user", "it has a user namespace of its own"),
    ("mseal", "it has sealed memory (mseal)"),
    ("droppable", "it has memory that may be dropped (MAP_DROPPABLE)"),
    ("sysv", "it has parts of SysV shared memory mapped (munmap, mprotect)"),
    ("ring", "it uses io_uring"),
    ("deleted", "it shares a mapping of /tmp/hfrefused"),
    ("async", "it has descriptors that send signals to others (O_ASYNC, F_SETOWN)"),
    ("lease", "it has a lease on a file (F_SETLEASE)"),
    ("pidfd", "descriptor 3 is "),
    ("half", "it has one end of a pipe alone (pipe:["),
    ("packets", "a pipe holds packets (O_DIRECT)"),
    ("unread", "inotify has events that were not read"),
    ("closed", "epoll set 3 watches a descriptor that was closed ("),
    ("pair", "descriptor 3 is a connected UNIX socket"),
    ("messages", "descriptor 4 is a UNIX socket that holds messages"),
    ("raw", "descriptor 3 is a raw socket"),
    ("packet", "descriptor 3 is a packet socket"),
    ("vsock", "descriptor 3 is a socket of an unknown family"),
    ("alarm", "it has set an alarm (alarm, setitimer)"),
    ("groups", "it is in more than 1024 groups"),
    ("itimer", "it has set an alarm (alarm, setitimer)"),
    ("own-ids", "its threads differ: one has users, groups or capabilities of its own"),
    ("own-folder", "its threads differ: one has a working folder of its own"),
    ("own-umask", "its threads differ: one has a umask of its own"),
    ("own-seccomp", "its threads differ: one has a filter of system calls (seccomp) of its own"),
    ("own-bits", "its threads differ: one has secure bits of its own"),
];

fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let program = std::env::temp_dir().join(format!("hfrefused{}", std::process::id()));
        compile("refused.c", &program);
        program
    })
}

/// Starts a process that has it; `None`: this kernel does not support it.
fn start(what: &str) -> Option<Server> {
    let log = std::env::temp_dir().join(format!("hfrefused{}-{what}", std::process::id()));
    let log = log.to_str().unwrap();
    let server = Server::start(&format!("{} {what}", program().display()), log);
    let said = || std::fs::read_to_string(log).unwrap_or_default();
    wait_for(what, || !said().is_empty());
    let here = said() == "ready\n";
    std::fs::remove_file(log).unwrap();
    here.then_some(server)
}

fn status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
}

fn reasons(what: &str, error: Option<SnapshotError>) -> Vec<String> {
    match error {
        Some(SnapshotError::Refused(reasons)) => reasons,
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn what_cannot_be_rebuilt_is_refused_by_name_and_not_touched() {
    let mut missing = Vec::new();
    for (what, words) in REFUSED {
        let Some(server) = start(what) else {
            missing.push(what);
            continue;
        };
        let pid = server.pid();
        if what == "stopped" {
            // SAFETY: plain numbers, of a child that nobody has waited for.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGSTOP) };
            wait_for("a stop", || status(pid, "State").starts_with('T'));
        }
        wait_for("what it does then", || !status(pid, "State").starts_with(['R', 'D']));
        let looks = || ["State", "TracerPid", "SigPnd", "ShdPnd"].map(|name| status(pid, name));
        let before = looks();
        let refused = || snapshot(pid).err();
        // The kernel tells of sockets in its own network namespace only.
        let is_there = ["pair", "messages"].contains(&what);
        let found = if is_there { beside(pid, refused) } else { refused() };
        let found = reasons(what, found);
        assert!(found.iter().any(|reason| reason.starts_with(words)), "{what}: {found:?}");
        // A tracer is a child process, a ring has its own descriptor, another pair holds the other
        // end of a pair, and who has a lease is told by a signal.
        let only = if ["traced", "ring", "pair", "lease"].contains(&what) { 2 } else { 1 };
        assert!(found.len() <= only, "{what}: {found:?}");
        // Who was stopped to be looked at sleeps again a moment later.
        wait_for(&format!("{what} to be as it was"), || looks() == before);
    }
    // A kernel may be built without these.
    let may_miss = ["vsock", "ring", "mseal", "droppable"];
    assert!(missing.iter().all(|what| may_miss.contains(what)), "{missing:?}");
    assert!(snapshot(start("nothing").unwrap().pid()).is_ok());
}

#[test]
fn what_was_closed_in_the_middle_of_a_look_is_no_reason() {
    let server = start("churn").unwrap();
    let options = options();
    for _ in 0..20 {
        let looked = Preparation::begin(&[server.pid()], &options);
        assert_eq!(looked.err().map(|error| error.to_string()), None);
    }
}

#[test]
fn a_file_that_it_writes_is_refused_where_whoever_restores_it_has_another() {
    let (here, mut elsewhere) = (options(), options());
    elsewhere.shares_files = false;
    let server = start("writes").unwrap();
    let found = reasons("writes", Preparation::begin(&[server.pid()], &elsewhere).err());
    assert!(found.iter().any(|reason| reason.contains(": /tmp/hfwrites; ")), "{found:?}");
    assert!(Preparation::begin(&[server.pid()], &here).is_ok());
    elsewhere.state_dirs = vec!["/tmp".into()];
    assert!(Preparation::begin(&[server.pid()], &elsewhere).is_ok());
    elsewhere.state_dirs.clear();
    drop(server);
    let server = start("maps").unwrap();
    let found = reasons("maps", Preparation::begin(&[server.pid()], &elsewhere).err());
    assert!(found.iter().any(|reason| reason.contains(": /tmp/hfwrites; ")), "{found:?}");
    drop(server);
    std::fs::remove_file("/tmp/hfwrites").unwrap();
    // The output of this server is a file, too.
    assert!(Preparation::begin(&[start("nothing").unwrap().pid()], &elsewhere).is_ok());
}

#[test]
fn more_memory_than_the_limit_is_refused_before_any_of_it_is_copied() {
    let server = start("nothing").unwrap();
    let mut options = options();
    options.limits = Limits { memory_bytes: 4096, ..options.limits };
    let found = reasons("memory", Preparation::begin(&[server.pid()], &options).err());
    assert_eq!(found, ["it has more memory than the limit of memory_bytes"]);
}

/// Reports what it is told at the end.
#[derive(Default)]
struct Refuses {
    stood: bool,
    ended: bool,
    failed: bool,
}

impl Quiescence for Refuses {
    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume> {
        self.stood = true;
        Bare.look(thread)
    }

    fn reached(&mut self, _: &Frozen) -> Result<Option<Books>, SnapshotError> {
        Err(SnapshotError::Refused(vec!["too late".to_owned()]))
    }

    fn end(&mut self) {
        self.ended = true;
    }

    fn failed(&mut self) {
        self.failed = true;
    }
}

#[test]
fn what_is_refused_in_the_freeze_runs_on() {
    let server = start("nothing").unwrap();
    let (options, mut quiet) = (options(), Refuses::default());
    let preparation = Preparation::begin(&[server.pid()], &options).unwrap();
    assert_eq!(reasons("late", preparation.freeze(&mut quiet).err()), ["too late"]);
    assert!(quiet.stood && quiet.ended && quiet.failed);
    wait_for("it sleeps", || status(server.pid(), "State").starts_with('S'));
    assert_eq!(status(server.pid(), "TracerPid"), "0");
}

/// Has the server look into /proc, in the first `moments` of the freezes that it is asked for.
struct Looks {
    server: Server,
    moments: u32,
    stops: u32,
}

impl Looks {
    fn turn(&mut self, is_open: bool) {
        let pid = self.server.pid();
        // SAFETY: plain numbers, of a child that nobody has waited for.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGUSR1) };
        let path = format!("/proc/{pid}/fd/3");
        wait_for("its look", || std::fs::read_link(&path).is_ok() == is_open);
    }
}

impl Quiescence for Looks {
    fn stopped(&mut self) -> Result<(), SnapshotError> {
        self.stops += 1;
        Ok(())
    }

    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume> {
        Bare.look(thread)
    }

    fn failed(&mut self) {
        self.turn(false);
        if self.stops < self.moments {
            self.turn(true);
        }
    }
}

#[test]
fn who_is_stopped_in_the_middle_of_a_look_into_proc_is_stopped_again() {
    for (moments, is_refused) in [(1, false), (2, false), (3, true)] {
        let server = start("looks").unwrap();
        let pid = server.pid();
        let (options, mut quiet) = (options(), Looks { server, moments, stops: 0 });
        let preparation = Preparation::begin(&[pid], &options).unwrap();
        quiet.turn(true);
        let frozen = preparation.freeze(&mut quiet);
        assert_eq!(quiet.stops, (moments + 1).min(3));
        match is_refused {
            false => assert!(frozen.is_ok(), "{:?}", frozen.err()),
            true => {
                let found = reasons("proc", frozen.err());
                assert!(found[0].ends_with("/stat, in a file system like proc"), "{found:?}");
            }
        }
    }
}
