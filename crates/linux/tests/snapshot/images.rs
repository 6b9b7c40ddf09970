//! Running servers, rebuilt elsewhere while the original goes on. Needs root.

use crate::world::{
    Elsewhere, KEY, Server, ask, beside, compile, image, options, revive, wait_for,
};
use holdfast_linux::snapshot::quiet::{Bare, Quiescence, Resume, Standing};
use holdfast_linux::snapshot::restore::{Loading, restore};
use holdfast_linux::snapshot::{Frozen, Preparation, SnapshotError};
use holdfast_wire::snapshot::{Backing, Books, Description, Holds, Limits, Reader};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn redis(command: &str, pid: u32) -> String {
    ask(pid, 7301, &format!("{command}\r\n"), "\r\n")
}

fn start_redis(prefix: &str) -> Server {
    let options = "--port 7301 --save '' --appendonly no --io-threads 2 --bind 127.0.0.1";
    let server = Server::start(
        &format!("{prefix}redis-server {options} --enable-debug-command yes"),
        "/dev/null",
    );
    assert_eq!(redis("PING", server.pid()), "+PONG\r\n");
    server
}

#[test]
fn redis_answers_from_its_image_and_from_the_image_of_that_five_times() {
    let server = start_redis("");
    assert_eq!(redis("DEBUG POPULATE 20000 key 100", server.pid()), "+OK\r\n");
    let digest = redis("DEBUG DIGEST", server.pid());
    let mut image_of = server.pid();
    let mut generations = Vec::new();
    for generation in 1..=5 {
        let restored = revive(&image(image_of)).unwrap();
        image_of = restored.pid();
        // What was asked before the image is in it; what is asked after it is in the next one.
        assert_eq!(redis("INCR generation", image_of), format!(":{generation}\r\n"));
        generations.push(restored);
    }
    assert_eq!(redis("DEL generation", image_of), ":1\r\n");
    assert_eq!(redis("DEBUG DIGEST", image_of), digest);
    assert_eq!(redis("DEBUG DIGEST", server.pid()), digest, "the original runs on");
}

#[test]
fn memcached_answers_through_all_workers() {
    let server = Server::start("memcached -u root -t 4 -l 127.0.0.1 -p 7302", "/dev/null");
    let ask = |pid, request: &str, end: &str| ask(pid, 7302, request, end);
    for key in 0..500 {
        ask(server.pid(), &format!("set k{key} 0 0 4\r\n{key:04}\r\n"), "STORED\r\n");
    }
    let restored = revive(&image(server.pid())).unwrap();
    for key in 0..500 {
        let expected = format!("{}\r\n", key + 1);
        assert_eq!(
            ask(restored.pid(), &format!("incr k{key} 1\r\n"), "\r\n").trim_end(),
            expected.trim_end()
        );
    }
    let original = ask(server.pid(), "get k7\r\n", "END\r\n");
    assert!(original.contains("0007"), "{original}");
}

const PYTHON: &str = r#"
import os, socket, tempfile, threading, time, signal, select
unlinked = tempfile.TemporaryFile()
unlinked.write(b"of the unlinked file"); unlinked.flush()
r, w = os.pipe()
os.write(w, b"of the pipe")
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
ticks = [0]
event = threading.Event()
queue = threading.Condition()
def tick():
    while True:
        time.sleep(0.01); ticks[0] += 1
def waits():
    with queue: queue.wait()
    event.set()
for target in (tick, waits): threading.Thread(target=target, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 7303))
while True:
    c, _ = listener.accept()
    before = ticks[0]; time.sleep(0.1)
    with queue: queue.notify_all()
    os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.01)
    unlinked.seek(0)
    content = unlinked.read().decode() 
    ready = select.select([r], [], [], 0)[0]
    pipe = os.read(r, 100).decode() if ready else "-"
    c.sendall(f"{ticks[0] > before} {event.wait(5)} {len(handled)} {content}, {pipe}\n".encode()); c.close()
"#;

#[test]
fn threads_timers_pipes_handlers_and_unlinked_files_of_python_go_on() {
    let script = std::env::temp_dir().join(format!("hfsnap{}.py", std::process::id()));
    std::fs::write(&script, PYTHON).unwrap();
    let server = Server::start(&format!("/usr/bin/python3 {}", script.display()), "/dev/null");
    wait_for("its listener", || {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", server.pid()));
        sockets.is_ok_and(|sockets| sockets.contains("0100007F:1C87"))
    });
    let restored = revive(&image(server.pid())).unwrap();
    let expected = "True True 1 of the unlinked file, of the pipe\n";
    assert_eq!(ask(restored.pid(), 7303, "", "\n"), expected);
    assert_eq!(ask(server.pid(), 7303, "", "\n"), expected, "the original has its own");
    std::fs::remove_file(script).unwrap();
}

const PAIRS: &str = r#"
import ctypes, fcntl, select, signal, socket, struct, sys, time
def pair(kind=socket.SOCK_STREAM): return socket.socketpair(socket.AF_UNIX, kind)
a, b = pair()
a.send(b"to b"); a.send(b", twice"); b.send(b"to a")
left, gone = pair()
gone.send(b"last words"); gone.close()
silent, hearer = pair()
silent.shutdown(socket.SHUT_WR); hearer.send(b"back")
one, other = pair(socket.SOCK_DGRAM)
full, tiny = pair()
tiny.setblocking(False)
written = 0
try:
    while True: written += tiny.send(b"0123456789")
except BlockingIOError: pass
poll = select.epoll()
poll.register(b, select.EPOLLIN)
locks = [open(sys.argv[1] + str(i), "w+") for i in range(3)]
fcntl.flock(locks[0], fcntl.LOCK_EX)
fcntl.lockf(locks[1], fcntl.LOCK_EX, 10, 5)
fcntl.fcntl(locks[2], 37, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 7, 0, 0))
libc, fired = ctypes.CDLL(None), []
def timer(number, clock):
    event = ctypes.create_string_buffer(struct.pack("qii48x", 0, number, 0))
    made = ctypes.c_void_p()
    assert libc.timer_create(clock, event, ctypes.byref(made)) == 0
    return made
timers = [timer(number, clock) for number, clock in ((10, 1), (10, 1), (12, 3))]
libc.timer_delete(timers[0])
for number in (10, 12): signal.signal(number, lambda number, _: fired.append(number))
def run(timer): libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 0, 0, 1000000), None)
listener = socket.create_server(("127.0.0.1", 7305))
while True:
    c, _ = listener.accept()
    c.settimeout(5)
    run(timers[1]); time.sleep(0.05); run(timers[2])
    until = time.monotonic() + 5
    while len(fired) < 2 and time.monotonic() < until: pass
    polled = len(poll.poll(0)) 
    said = [b.recv(99), a.recv(99), left.recv(99), left.recv(99), hearer.recv(99), silent.recv(99)]
    one.send(b"a message"); said.append(other.recv(99))
    full.setblocking(False)
    read = b""
    try:
        while True: read += full.recv(65536)
    except BlockingIOError: pass
    good = read == b"0123456789" * (written // 10)
    text = "|".join(part.decode() for part in said)
    c.sendall(f"{polled} {text} {good} {tiny.getblocking()} {fired}\n".encode()); c.close()
"#;

#[test]
fn pairs_of_sockets_locks_and_timers_go_on_as_they_were() {
    let folder = std::env::temp_dir().join(format!("hfpairs{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("pairs.py");
    std::fs::write(&script, PAIRS).unwrap();
    let command = format!("/usr/bin/python3 {} {}/locked", script.display(), folder.display());
    let server = Server::start(&command, "/dev/null");
    wait_for("its listener", || {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", server.pid()));
        sockets.is_ok_and(|sockets| sockets.contains("0100007F:1C89"))
    });
    // The kernel tells of sockets in its own network namespace only.
    let image = beside(server.pid(), || image(server.pid()));
    let held = locks_of(server.pid());
    assert_eq!(held.len(), 3, "{held:?}");
    let refused = revive(&image).err().expect("the original has the locks").to_string();
    assert!(refused.contains("locked0 is locked here by another process"), "{refused}");
    drop(server);
    let restored = revive(&image).unwrap();
    assert_eq!(locks_of(restored.pid()), held);
    let expected = "1 to b, twice|to a|last words|||back|a message True False [10, 12]\n";
    assert_eq!(ask(restored.pid(), 7305, "", "\n"), expected);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The locks that a process has, without its number.
fn locks_of(pid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in info.lines().filter(|line| line.starts_with("lock:")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            found.push([&words[2..5], &words[6..]].concat().join(" "));
        }
    }
    found.sort();
    found
}

/// Starts the odd program, with a folder for its files.
fn start_odd(port: u16) -> (Server, PathBuf) {
    let folder = std::env::temp_dir().join(format!("hfodd{}x{port}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("odd");
    compile("odd.c", &program);
    let command = format!("{} {port} {}", program.display(), folder.display());
    let server = Server::start(&command, "/dev/null");
    wait_for("its listener", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid()));
        server.listens(port) && threads.is_ok_and(|t| t.count() == 7)
    });
    (server, folder)
}

const ODD: &str = "barrier 1 semaphore 1 joined 1 timed 110 handled 10 on its stack 1 shared 11 \
                   memfd 22 22 guarded timer 1 event 1 signal 12 notified 1 mode 640 file 4 5 \
                   epoll 1 abcdef core 4096\n";

#[test]
fn locks_timers_watches_and_shared_memory_go_on_as_they_were() {
    let (server, folder) = start_odd(7304);
    let restored = revive(&image(server.pid())).unwrap();
    let second = revive(&image(restored.pid())).unwrap();
    assert_eq!(ask(second.pid(), 7304, "", "\n"), ODD, "of the second generation");
    assert_eq!(ask(restored.pid(), 7304, "", "\n"), ODD);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// After rounds that left things behind, the image has what the process has in the freeze.
#[test]
fn rounds_before_the_freeze_give_what_the_process_has() {
    let (server, folder) = start_odd(7305);
    let options = options();
    let mut preparation = Preparation::begin(&[server.pid()], &options).unwrap();
    for _ in 0..3 {
        assert!(preparation.round().unwrap().is_some(), "it has a userfaultfd");
    }
    let rounds = preparation.freeze(&mut Bare).unwrap();
    assert!(rounds.frozen_pages < 100, "{} pages", rounds.frozen_pages);
    let restored = revive(&rounds.write(Vec::new(), &options).unwrap()).unwrap();
    assert_eq!(ask(restored.pid(), 7305, "", "\n"), ODD);
    assert_eq!(ask(server.pid(), 7305, "", "\n"), ODD, "the original runs on");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A freeze whose tracer dies during it.
struct Dies;

impl Quiescence for Dies {
    fn look(&mut self, _: &Standing<'_>) -> Option<Resume> {
        Some(Resume::AsIs)
    }

    fn reached(&mut self, _: &Frozen) -> Result<Option<Books>, SnapshotError> {
        std::process::abort()
    }
}

#[test]
fn a_daemon_that_dies_in_the_freeze_leaves_the_server_running() {
    if let Ok(pid) = std::env::var("HOLDFAST_TEST_DIES") {
        let options = options();
        let preparation = Preparation::begin(&[pid.parse().unwrap()], &options).unwrap();
        let _ = preparation.freeze(&mut Dies);
        unreachable!("it should have died");
    }
    let (server, folder) = start_odd(7306);
    let name = "images::a_daemon_that_dies_in_the_freeze_leaves_the_server_running";
    let died = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("HOLDFAST_TEST_DIES", server.pid().to_string())
        .status()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&died), Some(libc::SIGABRT));
    assert_eq!(ask(server.pid(), 7306, "", "\n"), ODD);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_restored_server_that_was_let_loose_outlives_who_restored_it() {
    let name = "images::a_restored_server_that_was_let_loose_outlives_who_restored_it";
    if let Ok(original) = std::env::var("HOLDFAST_TEST_LOOSE") {
        let restored = revive(&image(original.parse().unwrap())).unwrap();
        let is_loose = std::env::var("HOLDFAST_TEST_HELD").is_err();
        if is_loose {
            wait_for("its keeper", || restored.let_loose());
        }
        eprintln!("restored={}.", restored.pid());
        std::process::abort();
    }
    let (server, folder) = start_odd(7310);
    for is_loose in [false, true] {
        let mut dies = Command::new(std::env::current_exe().unwrap());
        dies.args(["--exact", "--nocapture", name]);
        dies.env("HOLDFAST_TEST_LOOSE", server.pid().to_string());
        if !is_loose {
            dies.env("HOLDFAST_TEST_HELD", "1");
        }
        let said = String::from_utf8(dies.output().unwrap().stderr).unwrap();
        let (_, pid) = said.split_once("restored=").expect(&said);
        let pid: u32 = pid.split_once('.').unwrap().0.parse().unwrap();
        if !is_loose {
            wait_for("its end", || std::fs::read(format!("/proc/{pid}/status")).is_err());
            continue;
        }
        assert_eq!(ask(pid, 7310, "", "\n"), ODD);
        // Whoever kills by the restoring program's name must not hit the restored server.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let keeper = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim();
        let called = std::fs::read(format!("/proc/{keeper}/cmdline")).unwrap();
        assert!(called.starts_with(b"keeper of a server\0"), "{called:?}");
        // SAFETY: plain numbers; it has just answered.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The process' own memory while it stood still, read byte by byte.
struct Witness(BTreeMap<u64, Vec<u8>>);

impl Quiescence for Witness {
    fn look(&mut self, _: &Standing<'_>) -> Option<Resume> {
        Some(Resume::AsIs)
    }

    fn reached(&mut self, frozen: &Frozen) -> Result<Option<Books>, SnapshotError> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", frozen.pid)).unwrap();
        let memory = File::open(format!("/proc/{}/mem", frozen.pid)).unwrap();
        for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            self.0.insert(start, bytes);
        }
        Ok(None)
    }
}

/// In both ways, with clients that write meanwhile, every page that the process had is in the
/// image, and pages that are missing were zero.
#[test]
fn an_image_has_what_the_process_had_in_its_memory() {
    let (prefix, library) = preload();
    for prefix in ["", &prefix] {
        let server = start_redis(prefix);
        let pid = server.pid();
        let (done, began) = (AtomicBool::new(false), std::time::Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(30) {
                    redis("DEBUG POPULATE 3000 k 100", pid);
                    redis("FLUSHALL", pid);
                }
            });
            let options = options();
            let mut preparation = Preparation::begin(&[pid], &options).unwrap();
            for _ in 0..4 {
                assert_eq!(preparation.round().unwrap().is_some(), !prefix.is_empty());
            }
            let mut witness = Witness(BTreeMap::new());
            let taken = preparation.freeze(&mut witness).unwrap();
            done.store(true, Ordering::Relaxed);
            let image = taken.write(Vec::new(), &options).unwrap();
            compare(&image, witness.0, taken.description());
        });
    }
    std::fs::remove_file(library).unwrap();
}

fn compare(image: &[u8], mut witness: BTreeMap<u64, Vec<u8>>, description: &Description) {
    let mut reader = Reader::begin(image, &KEY, Limits::default()).unwrap();
    let mut pages = 0;
    loop {
        let (holds, bytes) = reader.chunk().unwrap();
        match holds {
            Holds::End => break,
            Holds::Pages { address, .. } => {
                let Some((start, area)) = witness.range_mut(..=address).next_back() else {
                    continue;
                };
                let at = (address - start) as usize;
                let Some(seen) = area.get_mut(at..at + bytes.len()) else { continue };
                assert!(*seen == *bytes, "pages at {address:#x} differ");
                seen.fill(0);
                pages += bytes.len() / 4096;
            }
            _ => {}
        }
    }
    assert!(pages > 300, "{pages} pages");
    // Pages of a private file that were never written come from the file.
    let of_file = |start: &u64| {
        let area = description.members[0].areas.iter().find(|area| area.start == *start);
        area.is_some_and(|area| matches!(area.backing, Backing::Private { .. }))
    };
    for (start, left) in witness.iter().filter(|(start, _)| !of_file(start)) {
        let at = left.iter().position(|byte| *byte != 0);
        assert_eq!(at, None, "of the area at {start:#x} something is missing");
    }
}

/// Nothing is left of a process whose image was incomplete, or belonged to another group.
#[test]
fn a_bad_image_leaves_nothing_behind() {
    // The test runs in a process of its own, since it counts all children.
    if std::env::var("HOLDFAST_TEST_ALONE").is_err() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "images::a_bad_image_leaves_nothing_behind"]);
        let said = alone.env("HOLDFAST_TEST_ALONE", "1").output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout);
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let (server, folder) = start_odd(7309);
    let image = image(server.pid());
    // The keepers of namespaces are children of the loader.
    let count = || holdfast_linux::process::family(std::process::id()).len();
    let own = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let counted = || (count(), own("fd"), own("task"));
    let before = counted();
    let mut seed = 7u64;
    for round in 0..40 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 20) as usize % image.len();
        let mut bad = image.clone();
        if round % 2 == 0 {
            bad.truncate(at);
        } else {
            bad[at] ^= 1 << (seed % 8);
        }
        assert!(revive(&bad).is_err(), "byte {at}");
    }
    let (state_dirs, defaults) = (Vec::new(), Limits::default());
    let loading = Loading {
        key: [3; 8],
        limits: defaults,
        state_dirs,
        keeps_old: false,
        dies_with_parent: true,
    };
    let foreign = restore(&image[..], &loading, &mut Elsewhere).err().unwrap().to_string();
    assert!(foreign.contains("of another group"), "{foreign}");
    let limits = Limits { memory_bytes: 1 << 16, ..Limits::default() };
    let state_dirs = Vec::new();
    let loading =
        Loading { key: KEY, limits, state_dirs, keeps_old: false, dies_with_parent: true };
    let large = restore(&image[..], &loading, &mut Elsewhere).err().unwrap().to_string();
    assert!(large.contains("memory_bytes"), "{large}");
    assert_eq!(counted(), before);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A server that is not root has its rights afterwards, and no more.
#[test]
fn a_server_without_rights_has_none_afterwards() {
    let command = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
                   --bounding-set -all memcached -t 2 -l 127.0.0.1 -p 7308";
    let server = Server::start(command, "/dev/null");
    ask(server.pid(), 7308, "set k 0 0 1\r\nx\r\n", "STORED\r\n");
    let restored = revive(&image(server.pid())).unwrap();
    assert!(ask(restored.pid(), 7308, "get k\r\n", "END\r\n").contains("x\r\n"));
    let rights = |pid| -> Vec<String> {
        let mut all = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let kept = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Umask", "SigCgt", "SigIgn"];
            let lines = status.lines().filter(|l| kept.iter().any(|name| l.starts_with(name)));
            all.push(lines.collect::<Vec<_>>().join("\n"));
        }
        all
    };
    assert_eq!(rights(restored.pid()), rights(server.pid()));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", restored.pid())).unwrap();
    assert!(!maps.contains(" rwxp "), "what made it can be written and run: {maps}");
}

/// Words at the start of a command that open a userfaultfd, as the shim does, and the library that
/// does it.
fn preload() -> (String, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let library = std::env::temp_dir().join(format!("hfuffd{}x{number}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/uffd.c");
    let mut compile = Command::new("clang");
    compile.args(["-O1", "-shared", "-fPIC", source, "-o"]).arg(&library);
    assert!(compile.status().unwrap().success());
    (format!("env LD_PRELOAD={} ", library.display()), library)
}

/// What a server maps while it is copied is copied before it stands still, too.
#[test]
fn what_is_mapped_between_rounds_is_not_left_to_the_freeze() {
    let (preload, library) = preload();
    let (server, options) = (start_redis(&preload), options());
    let mut preparation = Preparation::begin(&[server.pid()], &options).unwrap();
    preparation.round().unwrap();
    assert_eq!(redis("DEBUG POPULATE 200000 key 100", server.pid()), "+OK\r\n");
    let digest = redis("DEBUG DIGEST", server.pid());
    for _ in 0..2 {
        assert!(preparation.round().unwrap().is_some(), "it has a userfaultfd");
    }
    let grown = preparation.freeze(&mut Bare).unwrap();
    assert!(grown.frozen_pages < 500, "{} pages", grown.frozen_pages);
    let restored = revive(&grown.write(Vec::new(), &options).unwrap()).unwrap();
    assert_eq!(redis("DEBUG DIGEST", restored.pid()), digest);
    assert_eq!(redis("DEBUG DIGEST", server.pid()), digest, "the original runs on");
    std::fs::remove_file(library).unwrap();
}

/// Prints how long redis stands still for its image, in both ways: with a reader that changes
/// nothing, and after three rounds where there are rounds.
#[test]
#[ignore = "a measurement"]
fn pauses() {
    let (preload, library) = preload();
    for (way, prefix) in [("stop and copy", ""), ("after rounds", &preload[..])] {
        for keys in [100_000, 800_000] {
            let server = start_redis(prefix);
            redis(&format!("DEBUG POPULATE {keys} key 40"), server.pid());
            let resident = holdfast_linux::process::resident_bytes(server.pid()).unwrap() >> 20;
            let mut taken: Vec<_> = (0..20).map(|_| pause(server.pid())).collect();
            taken.sort_unstable();
            let ((median, _), (max, pages)) = (taken[10], taken[19]);
            eprintln!("{resident} MB, {way}: median {median:.1?}, max {max:.1?} ({pages} pages)");
        }
    }
    std::fs::remove_file(library).unwrap();
}

fn pause(pid: u32) -> (Duration, u64) {
    let options = options();
    let mut preparation = Preparation::begin(&[pid], &options).unwrap();
    for _ in 0..3 {
        preparation.round().unwrap();
    }
    let taken = preparation.freeze(&mut Bare).unwrap();
    (taken.pause, taken.frozen_pages)
}
