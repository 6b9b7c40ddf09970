//! Memory that the processes of a server share by a name: SysV segments and files of shm_open(3).
//! The copy has the same segments, with their numbers, attached at the same places as often as in
//! the original; in an IPC namespace of its own. Needs root.

use crate::world::{KEY, Server, ask, beside, compile, options, revive, wait_for};
use holdfast_linux::process;
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::{Preparation, SnapshotError};
use holdfast_wire::snapshot::{Limits, ObjectKind, Reader};
use std::path::{Path, PathBuf};

struct Segments {
    server: Server,
    program: PathBuf,
    /// The file of shm_open.
    named: PathBuf,
}

impl Segments {
    /// `namespaces` are those that it gets of its own, as unshare(1) has them.
    fn start(port: u16, namespaces: &str, more: &str) -> Self {
        let name = format!("hfsegments{}x{port}", std::process::id());
        let program = std::env::temp_dir().join(&name);
        compile("segments.c", &program);
        let run = format!("{} {port} /{name} {more}", program.display());
        let command = format!("unshare {namespaces} --fork --kill-child {run}");
        let server = Server::start(&command, "/dev/null");
        wait_for("its listener", || server.listens(port));
        Self { server, program, named: Path::new("/dev/shm").join(name) }
    }

    /// Its processes, the first one first.
    fn pids(&self) -> Vec<u32> {
        process::family(self.server.pid()).split_off(1)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        let _gone = [&self.program, &self.named].map(std::fs::remove_file);
    }
}

/// The kernel tells of sockets in its own network namespace only.
fn image(pids: &[u32]) -> Result<Vec<u8>, SnapshotError> {
    let options = options();
    beside(pids[0], || {
        let taken = Preparation::begin(pids, &options)?.freeze(&mut Bare)?;
        taken.write(Vec::new(), &options)
    })
}

/// Where segments are attached in a process.
fn places(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let named = maps.lines().filter(|line| line.contains("/SYSV") || line.contains("/dev/shm"));
    let place = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    named.map(place).collect()
}

#[test]
fn segments_have_their_numbers_places_content_and_attaches_again() {
    let segments = Segments::start(7331, "-p -i", "");
    let originals = segments.pids();
    let said = |count| {
        format!(
            "65534 keeps 1: keyed {count}, removed end -1, named at {{}}; 5: 2 attaches, mode 640; \
             6: 2 attaches, mode 1600; found by key\n"
        )
    };
    let told = |pid| {
        let answer = ask(pid, 7331, "", "\n");
        let (before, rest) = answer.split_once("0x").unwrap();
        let (_, behind) = rest.split_once(';').unwrap();
        format!("{before}{{}};{behind}")
    };
    assert_eq!(told(originals[0]), said(1));
    let image = image(&originals).unwrap();
    let reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    let kinds: Vec<bool> = reader
        .description()
        .objects
        .iter()
        .filter_map(|it| match &it.kind {
            ObjectKind::Segment(it) => Some(it.is_removed),
            _ => None,
        })
        .collect();
    assert_eq!(
        {
            let mut kinds = kinds;
            kinds.sort_unstable();
            kinds
        },
        [false, true]
    );
    let there: Vec<_> = originals.iter().map(|pid| places(*pid)).collect();
    assert_eq!(there.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    let own = || std::fs::read_link("/proc/thread-self/ns/ipc").unwrap();
    let before = own();
    let first = revive(&image).unwrap();
    assert_eq!(own(), before, "whoever restores is where it was");
    let pids = process::family(first.pid());
    let here: Vec<_> = pids.iter().map(|pid| places(*pid)).collect();
    assert_eq!(here, there);
    assert_eq!(told(first.pid()), said(2));
    // Each has memory of its own.
    assert_eq!(told(originals[0]), said(2));
    assert_eq!(told(first.pid()), said(3));
    let again = self::image(&pids).unwrap();
    drop(first);
    let second = revive(&again).unwrap();
    assert_eq!(told(second.pid()), said(4), "of the second generation");
}

#[test]
fn what_cannot_be_made_again_is_refused_by_name() {
    for (more, words) in [
        ("semaphores", "it has SysV semaphores (semget)"),
        ("queue", "it has SysV message queues (msgget)"),
        ("idle", "it has SysV shared memory that no process has attached (number 7)"),
        ("locked", "it has locked SysV shared memory (SHM_LOCK)"),
        ("part", "it has parts of SysV shared memory mapped (munmap, mprotect)"),
    ] {
        let segments = Segments::start(7332, "-p -i", more);
        let found = image(&segments.pids()).expect_err(more).to_string();
        assert_eq!(found, format!("it cannot be copied: {words}"));
    }
}

/// In the namespace of the host: what is attached by nobody else is the server's, whatever others
/// have there.
#[test]
fn segments_that_others_have_attached_too_are_refused() {
    const KEYED: i32 = 0xbeef;
    let segments = Segments::start(7333, "-p", "");
    // SAFETY: plain numbers, of a segment that the server has made.
    let id = unsafe { libc::shmget(KEYED, 1, 0) };
    assert!(id >= 0);
    let image = image(&segments.pids()).unwrap();
    // SAFETY: nobody reads or writes it here.
    let here = unsafe { libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) };
    let found = self::image(&segments.pids()).err().map(|error| error.to_string());
    // SAFETY: as above; it lasts as long as the server has it attached.
    unsafe {
        libc::shmdt(here);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
    }
    assert!(found.unwrap().contains("others have its SysV shared memory attached, too"));
    let copy = revive(&image).unwrap();
    let answer = ask(copy.pid(), 7333, "", "\n");
    assert!(answer.contains("2 attaches, mode 640") && answer.contains("2 attaches, mode 1600"));
}
