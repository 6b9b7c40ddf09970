//! What the tests of the shim share: a server is recorded under load with every
//! event confirmed at once, then a second copy is fed the log.

pub mod copy;
pub mod count;
pub mod freeze;
mod limit;

use holdfast_linux::epoll::{Epoll, Interest};
use holdfast_linux::listener::revive;
use holdfast_linux::shm::Settings;
use holdfast_linux::spawn::{Server, ServerCommand};
use holdfast_wire::log::{Header, read_header, record_len};
use holdfast_wire::shm::{mode, option};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};
use zerocopy::FromBytes;

/// The line that a server answers to `question`, on a connection of its own.
pub fn ask_at(port: u16, question: &str) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    client.write_all(question.as_bytes()).expect("asked");
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).expect("answered");
    line
}

pub const KEY: [u64; 8] = include!("../../../../wire/src/snapshot/test_key.in");

/// The shim that cargo built beside this test. No test links it, so a test program
/// may be newer: then it is built first.
fn shim() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let exe = std::env::current_exe().expect("own path");
        let profile = exe.ancestors().nth(2).expect("target directory");
        let path = profile.join("libholdfast_shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        if changed(&path).is_none_or(|built| built < newest(&source)) {
            let name = profile.file_name().filter(|name| *name != "debug");
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--locked", "-p", "holdfast-shim", "--profile"]);
            build.arg(name.unwrap_or("dev".as_ref()));
            assert!(build.status().expect("cargo").success());
        }
        path
    })
    .clone()
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|it| it.modified()).ok()
}

/// When the newest file below `folder` was changed.
fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).expect("sources").map(|it| it.expect("entry").path());
    let times = entries
        .map(|path| if path.is_dir() { newest(&path) } else { changed(&path).expect("a time") });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

pub fn start(argv: &[&str], port: u16, options: u32, as_mode: u32, dir: &Path) -> Server {
    let command = ServerCommand {
        argv: argv.iter().map(Into::into).collect(),
        directory: Some(dir.to_owned()),
        log: Some(dir.join(format!("log-{as_mode}"))),
        shim: shim(),
        family: options & option::FAMILY != 0,
        ..ServerCommand::default()
    };
    // What the test runner has open is no affair of the server's.
    // SAFETY: plain numbers; what Rust opens is closed on exec anyway.
    unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    let server = Server::start(&command, &settings(port, options, as_mode)).expect("server starts");
    limit::note(server.pid());
    server
}

pub fn settings(port: u16, options: u32, mode: u32) -> Settings {
    let (ports, name) = (vec![port], String::new());
    Settings { ring_bytes: 32 << 20, hash_key: KEY, ports, options, mode, name }
}

/// Waits for what must happen soon.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Confirms at once and keeps the log, until told to stop.
pub fn record(server: &Server, stop: &AtomicBool) -> Vec<u8> {
    let epoll = Epoll::new().expect("epoll");
    epoll.add(&server.wake(), 0, Interest::Rung).expect("watching the shim");
    let (mut log, mut at) = (Vec::new(), 0);
    loop {
        let done = stop.load(SeqCst);
        server.note_deaths();
        let tail = server.memory.take_tail(at).expect("a log that grows");
        if tail > at {
            log.extend(server.memory.copy(at, (tail - at) as usize));
            server.memory.set_stable(tail);
            at = tail;
        } else if done {
            return log;
        } else if server.memory.may_sleep(tail) {
            let _ = epoll.wait(&mut Vec::new(), Some(Duration::from_millis(5)));
            server.memory.awake();
        }
    }
}

/// Feeds the whole log; returns what is left unconsumed after a while.
fn replay(server: &Server, log: &[u8]) -> usize {
    let (mut at, mut waited) = (0, Instant::now());
    while at < log.len() {
        let (bytes, _) = feed(server, &log[at..]);
        at += bytes;
        if bytes > 0 {
            waited = Instant::now();
        } else if waited.elapsed() > Duration::from_secs(5)
            || server.memory.mode() == mode::DIVERGED
        {
            break;
        }
        acknowledge(server);
    }
    let (mut head, mut moved) = (0, Instant::now());
    while server.memory.head() < server.memory.tail()
        && moved.elapsed() < Duration::from_secs(5)
        && server.memory.mode() != mode::DIVERGED
    {
        if server.memory.head() != head {
            (head, moved) = (server.memory.head(), Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
        acknowledge(server);
    }
    (server.memory.tail() - server.memory.head()) as usize + (log.len() - at)
}

/// Feeds what there is room for of a log; how many bytes and records that was.
fn feed(server: &Server, log: &[u8]) -> (usize, usize) {
    let (mut at, mut records) = (0, 0);
    while at < log.len() {
        let (header, _) = read_header(&log[at..]).expect("own log");
        let payload = &log[at + size_of::<Header>()..][..header.payload_len as usize];
        let header = Header::read_from_prefix(&log[at..]).expect("own log").0;
        if !server.memory.append(&header, &[payload]) {
            break;
        }
        at += record_len(payload.len());
        records += 1;
    }
    server.memory.wake_shim();
    (at, records)
}

/// Where each record of a log begins, and its header.
pub fn headers(log: &[u8]) -> impl Iterator<Item = (usize, Header)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let at = next;
        let (header, _) =
            log.get(at..).filter(|rest| !rest.is_empty()).map(read_header)?.expect("a log");
        next = at + record_len(header.payload_len as usize);
        Some((at, header))
    })
}

/// Plays the client's kernel: all output has arrived.
fn acknowledge(server: &Server) {
    for accept in 0..256 {
        let entry = server.memory.entry(accept);
        entry.acked_bytes.store(entry.out_bytes.load(SeqCst), SeqCst);
    }
}

/// What came of recording a server and feeding a copy its log.
pub struct Outcome {
    pub log_len: usize,
    /// Mode and reason of the primary's shim at the end of the load.
    pub primary: (u32, String),
    /// The same of the replica's when it had consumed what it would.
    pub replica: (u32, String),
    /// Bytes of log that it left.
    pub left: usize,
    /// What both wrote to standard error.
    pub said: String,
}

/// Records `argv` under `load`, then replays it.
pub fn observe(
    argv: &[&str],
    port: u16,
    options: u32,
    name: &str,
    load: impl FnOnce() + Send,
) -> Outcome {
    observe_promoted(argv, port, options, name, load, |_| {}, |_| {})
}

/// As [`observe`]; `edit` may change the log before it is replayed.
pub fn observe_edited(
    argv: &[&str],
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    edit: impl FnOnce(&mut [u8]),
) -> Outcome {
    observe_promoted(argv, port, 0, name, load, edit, |_| {})
}

/// The working directories of the two members, which are removed in the end.
pub fn directories(name: &str) -> [PathBuf; 2] {
    ["p", "b"].map(|member| {
        let own = format!("hf-shim-{name}-{member}-{}", std::process::id());
        let dir = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&dir).expect("directory");
        dir
    })
}

/// Like [`observe_edited`]; `after` gets the replica when it has consumed what
/// it would.
fn observe_promoted(
    argv: &[&str],
    port: u16,
    options: u32,
    name: &str,
    load: impl FnOnce() + Send,
    edit: impl FnOnce(&mut [u8]),
    after: impl FnOnce(&Server),
) -> Outcome {
    observe_members(argv, port, options, name, load, |_, log| edit(log), after)
}

/// Like [`observe_promoted`]; `edit` gets the killed primary, too.
fn observe_members(
    argv: &[&str],
    port: u16,
    options: u32,
    name: &str,
    load: impl FnOnce() + Send,
    edit: impl FnOnce(&Server, &mut [u8]),
    after: impl FnOnce(&Server),
) -> Outcome {
    let _limit = limit::limit(name);
    let dirs = directories(name);
    let (mut primary, mut log) = recorded(argv, port, options, &dirs[0], load);
    let of_primary = (primary.memory.mode(), primary.memory.reason());
    primary.kill();
    edit(&primary, &mut log);
    let mut replica = Ended(start(argv, port, options, mode::REPLAY, &dirs[1]));
    let left = replay(&replica, &log);
    let of_replica = (replica.memory.mode(), replica.memory.reason());
    if left == 0 && of_replica.0 == mode::REPLAY {
        after(&replica);
    }
    replica.kill();
    let said = said(&dirs[0], mode::RECORD) + "replica:\n" + &said(&dirs[1], mode::REPLAY);
    for d in &dirs {
        let _ = std::fs::remove_dir_all(d);
    }
    Outcome { log_len: log.len(), primary: of_primary, replica: of_replica, left, said }
}

/// A server in the directory `dir`, and what it has logged under `load`.
fn recorded(
    argv: &[&str],
    port: u16,
    options: u32,
    dir: &Path,
    load: impl FnOnce() + Send,
) -> (Ended, Vec<u8>) {
    let stop = AtomicBool::new(false);
    let primary = Ended(start(argv, port, options, mode::RECORD, dir));
    let log = std::thread::scope(|s| {
        let loading = s.spawn(|| {
            let _stop = StopAtEnd(&stop);
            load();
        });
        let log = record(&primary, &stop);
        assert!(loading.join().is_ok(), "{}", said(dir, mode::RECORD));
        log
    });
    (primary, log)
}

/// Records `argv` under `load`. Then a copy gets the whole log and its end at once, as that of a
/// cold backup does, and must come there without a difference.
pub fn run_in_a_takeover(argv: &[&str], port: u16, name: &str, load: impl FnOnce() + Send) {
    let _limit = limit::limit(name);
    let dirs = directories(name);
    let (mut primary, log) = recorded(argv, port, 0, &dirs[0], load);
    primary.kill();
    let replica = Ended(start(argv, port, 0, mode::REPLAY, &dirs[1]));
    let (fed, _) = feed(&replica, &log);
    assert_eq!(fed, log.len(), "there is room for all of the log");
    replica.memory.end_log();
    eventually("the replica comes to the log's end", || {
        acknowledge(&replica);
        replica.memory.mode() != mode::DRAIN
    });
    let end = (replica.memory.mode(), replica.memory.reason());
    assert_eq!(end, (mode::PARKED, String::new()), "{}", said(&dirs[1], mode::REPLAY));
    for dir in &dirs {
        let _ = std::fs::remove_dir_all(dir);
    }
}

pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn said(dir: &Path, as_mode: u32) -> String {
    std::fs::read_to_string(dir.join(format!("log-{as_mode}"))).unwrap_or_default()
}

/// Like [`observe`]; the replica must consume all of the log without a
/// difference.
pub fn run(argv: &[&str], port: u16, name: &str, load: impl FnOnce() + Send) {
    consumed(&observe(argv, port, 0, name, load));
}

/// Like [`run`]; then the replica goes live, and `after` is its clients' work.
pub fn run_and_promote(
    argv: &[&str],
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    after: impl FnOnce(),
) {
    run_and_promote_with((0, || ()), argv, port, name, load, after);
}

/// Like [`run_and_promote_family`]; `anew` makes what the members share as it was in the
/// beginning, before the copy starts.
pub fn run_and_promote_family_anew(
    argv: &[&str],
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    anew: impl FnOnce(),
    after: impl FnOnce(),
) {
    run_and_promote_with((option::FAMILY, anew), argv, port, name, load, after);
}

/// Like [`run_and_promote`], of a server whose processes are all in one log.
pub fn run_and_promote_family(
    argv: &[&str],
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    after: impl FnOnce(),
) {
    run_and_promote_with((option::FAMILY, || ()), argv, port, name, load, after);
}

/// Like [`observe`]; the replica must go live then, and `after` is its clients' work. Says
/// besides how often threads of either member ran beside one that had the token.
pub fn observe_live(
    argv: &[&str],
    port: u16,
    options: u32,
    name: &str,
    load: impl FnOnce() + Send,
    after: impl FnOnce(),
) -> (Outcome, [u64; 2]) {
    let mut overlaps = [0; 2];
    let [of_primary, of_replica] = &mut overlaps;
    let mut is_live = false;
    let outcome = observe_members(
        argv,
        port,
        options,
        name,
        load,
        |primary, _| *of_primary = primary.memory.overlaps(),
        |replica| {
            *of_replica = replica.memory.overlaps();
            promote(replica);
            after();
            is_live = true;
        },
    );
    consumed(&outcome);
    assert!(is_live, "{}", outcome.said);
    (outcome, overlaps)
}

fn run_and_promote_with(
    (options, anew): (u32, impl FnOnce()),
    argv: &[&str],
    port: u16,
    name: &str,
    load: impl FnOnce() + Send,
    after: impl FnOnce(),
) {
    let mut is_live = false;
    let o = observe_promoted(
        argv,
        port,
        options,
        name,
        load,
        |_| anew(),
        |replica| {
            promote(replica);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| attend(replica, &is_over));
                let _over = StopAtEnd(&is_over);
                after();
            });
            is_live = true;
        },
    );
    consumed(&o);
    assert!(is_live, "{}", o.said);
}

/// A server that ends with its test, even one that outlives its daemon.
struct Ended(Server);

impl Deref for Ended {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Ended {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// What a daemon does for a server that speaks alone.
fn attend(server: &Server, is_over: &AtomicBool) {
    while !is_over.load(SeqCst) {
        server.note_deaths();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a daemon does at promotion, but for the connections: they are dead.
fn promote(replica: &Server) {
    replica.memory.end_log();
    let deadline = Instant::now() + Duration::from_secs(20);
    while replica.memory.mode() != mode::PARKED {
        assert!(Instant::now() < deadline, "not parked: mode {}", replica.memory.mode());
        std::thread::sleep(Duration::from_millis(1));
    }
    for l in replica.memory.listeners() {
        let fd = replica.take_listener(&l).expect("the replica's listener");
        revive(fd.as_fd(), &l.addr[..l.addr_len as usize], l.backlog).expect("listening");
    }
    replica.memory.set_mode(mode::LIVE);
}

/// Asserts that a replica has consumed all of its log without a difference.
pub fn consumed(o: &Outcome) {
    assert_eq!(o.primary, (mode::RECORD, String::new()), "{}", o.said);
    let end = (o.replica.0, o.left);
    assert_eq!(end, (mode::REPLAY, 0), "{} bytes of log; {}\n{}", o.log_len, o.replica.1, o.said);
    assert!(o.log_len > 5_000, "only {} bytes of log\n{}", o.log_len, o.said);
}

/// Compiles one of the programs beside the tests; `None` without a compiler, where
/// tests may be left out (`HOLDFAST_MAY_SKIP=1`).
pub fn compiled(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let unique = std::thread::current().name().unwrap_or("main").replace(':', "-");
    let program = std::env::temp_dir().join(format!("hf-{unique}-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    match cc.status() {
        Ok(status) => {
            assert!(status.success(), "cc {name}");
            Some(program)
        }
        Err(error) => {
            let may_skip = std::env::var_os("HOLDFAST_MAY_SKIP").is_some_and(|it| it == "1");
            assert!(may_skip, "no C compiler: {error}; run scripts/setup");
            None
        }
    }
}

/// Asks on one connection; the lines that come before it ends.
pub fn ask(port: u16, questions: &str) -> Vec<String> {
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut lines = BufReader::new(client.try_clone().expect("a duplicate")).lines();
    let mut answers = Vec::new();
    for question in questions.bytes() {
        let asked = client.write_all(&[question]);
        match lines.next() {
            Some(Ok(line)) if asked.is_ok() => answers.push(line),
            _ => break,
        }
    }
    answers
}

/// A server that `scripts/setup` installs.
pub fn installed(program: &str) -> &str {
    assert!(Path::new(program).is_file(), "{program} is missing; run scripts/setup");
    program
}

pub fn sh(command: &str) {
    let status = Command::new("sh")
        .args(["-c", command])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .expect("sh");
    assert!(status.success(), "{command}");
}

pub fn wait_for(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "no server on port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("file written");
}

/// A directory of its own for a server's config and documents.
pub fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hf-shim-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    write(&dir.join("1k.bin"), &"x".repeat(1024));
    write(&dir.join("256k.bin"), &"0123456789abcdef".repeat(16384));
    dir
}
