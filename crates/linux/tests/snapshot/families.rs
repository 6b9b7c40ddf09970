//! Servers of several processes: one image of all of them, and all of them made from it. Needs
//! root.

use crate::world::{KEY, Server, ask, beside, compile, options, revive, wait_for};
use holdfast_linux::process;
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::{Preparation, SnapshotError};
use holdfast_wire::snapshot::{Limits, Reader};
use std::path::PathBuf;

/// Longest time for the end of a namespace, in ms.
const END_MAX_MS: i32 = 20_000;

/// A server of four processes, the first of which is number 1 of a pid namespace.
struct Family {
    server: Server,
    folder: PathBuf,
}

impl Family {
    fn start(port: u16) -> Self {
        let folder = std::env::temp_dir().join(format!("hffamily{}x{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("family");
        compile("family.c", &program);
        let (program, at) = (program.display(), folder.display());
        let command = format!("unshare -p --fork --kill-child {program} {port} {at}/numbered");
        let server = Server::start(&command, "/dev/null");
        wait_for("its listener", || server.listens(port));
        Self { server, folder }
    }

    /// Its processes, the first one first; the server that was started only waits for that one.
    fn pids(&self) -> Vec<u32> {
        process::family(self.server.pid()).split_off(1)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers, of a process that ends with this one's child.
        unsafe { libc::kill(self.pids()[0] as libc::pid_t, signal) };
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// The kernel tells of sockets in its own network namespace only.
fn image(pids: &[u32]) -> Vec<u8> {
    let options = options();
    beside(pids[0], || {
        let taken = Preparation::begin(pids, &options).unwrap().freeze(&mut Bare).unwrap();
        taken.write(Vec::new(), &options).unwrap()
    })
}

/// What the processes say, when this number is the next one.
fn said(next: u32) -> String {
    format!(
        "1: ticks 1 of 3 4 5; 2 of 1 session 2 heard its parent, read bcd; 6 of 1 group 6 user \
         65534 heard of a sibling, ready 1; 5 of 2 session 2; read efg, count 41, locked by 2, \
         next {next} ended 3, 6 ended 7\n"
    )
}

fn is_gone(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/status")).is_err()
}

#[test]
fn all_processes_go_on_with_what_they_share() {
    let family = Family::start(7321);
    let originals = family.pids();
    assert_eq!(originals.len(), 4);
    let image = image(&originals);
    let reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    let description = reader.description();
    let parents: Vec<u32> = description.members.iter().map(|member| member.parent).collect();
    assert_eq!((parents, description.last_pid), (vec![0, 0, 0, 1], 7));
    let children = || std::fs::read_to_string("/proc/thread-self/children").unwrap();
    let before = children();
    let said_no = revive(&image).err().expect("the original has a lock").to_string();
    assert!(said_no.contains("numbered is locked here by another process"), "{said_no}");
    assert_eq!(children(), before, "nothing is left of any of them");
    // SAFETY: plain numbers, of a process that has a parent which waits for it.
    unsafe { libc::kill(originals[0] as libc::pid_t, libc::SIGKILL) };
    wait_for("its end", || originals.iter().all(|pid| is_gone(*pid)));
    let first = revive(&image).unwrap();
    assert!(!first.has_keeper() && !first.let_loose());
    let again = self::image(&process::family(first.pid()));
    assert_eq!(ask(first.pid(), 7321, "", "\n"), said(9), "numbers go on behind an image's");
    let pids = process::family(first.pid());
    assert_eq!(pids.len(), 3, "one has ended");
    // SAFETY: plain numbers; nobody has waited for it.
    unsafe { libc::kill(first.pid() as libc::pid_t, libc::SIGKILL) };
    assert!(process::poll_in(first.namespace(), END_MAX_MS).unwrap());
    assert!(pids[1..].iter().all(|pid| is_gone(*pid)), "all end with the first");
    drop(first);
    let second = revive(&again).unwrap();
    assert_eq!(ask(second.pid(), 7321, "", "\n"), said(9), "of the second generation");
    let pids = process::family(second.pid());
    drop(second);
    assert!(pids.iter().all(|pid| is_gone(*pid)));
}

#[test]
fn a_family_runs_on_after_its_image_was_taken() {
    let family = Family::start(7322);
    let pid = family.pids()[0];
    image(&family.pids());
    assert_eq!(ask(pid, 7322, "", "\n"), said(8));
}

fn reasons<T>(result: Result<T, SnapshotError>) -> String {
    match result.err() {
        Some(SnapshotError::Refused(reasons)) => reasons.join("; "),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_family_that_is_not_whole_is_refused_by_name() {
    let family = Family::start(7323);
    let (pids, options) = (family.pids(), options());
    let begin = |pids: &[u32]| beside(pids[0], || Preparation::begin(pids, &options));
    for given in [&pids[..1], &pids[..3]] {
        let found = reasons(begin(given));
        assert!(found.contains("it has child processes"), "{found}");
    }
    let found = reasons(begin(&pids[1..]));
    assert!(found.contains("its processes have changed meanwhile"), "{found}");
    let late = beside(pids[0], || {
        let preparation = Preparation::begin(&pids, &options).unwrap();
        family.signal(libc::SIGUSR1);
        wait_for("another process", || family.pids().len() == 5);
        preparation.freeze(&mut Bare)
    });
    assert_eq!(reasons(late), "its processes have changed meanwhile");
    assert!(begin(&family.pids()).is_ok());
    family.signal(libc::SIGUSR2);
    wait_for("its end", || family.pids().len() == 6);
    let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    wait_for("its end", || family.pids().iter().any(|pid| stat(pid).contains(") Z ")));
    let found = reasons(begin(&family.pids()));
    assert!(found.contains("has ended, and nobody has waited for it"), "{found}");
    let found = reasons(begin(&pids));
    assert!(found.contains("it has child processes"), "{found}");
    // Who has ended is left out.
    let living = process::living_family(pids[0]);
    assert_eq!(living.len(), 5);
    let image = image(&living);
    family.signal(libc::SIGKILL);
    wait_for("its end", || living.iter().all(|pid| is_gone(*pid)));
    let copy = revive(&image).unwrap();
    assert_eq!(process::family(copy.pid()).len(), 5);
}
