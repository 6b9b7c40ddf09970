//! Servers in network namespaces of their own, their images, and what is restored from these in
//! other namespaces. Needs root.

use holdfast_linux::netns;
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::restore::{
    Loading, Restored, Surroundings, bound, placeholder, restore,
};
use holdfast_linux::snapshot::{External, Options, Preparation, Snapshot, SnapshotError};
use holdfast_wire::snapshot::{Limits, Object, Socket};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Key of the images, as good as random.
pub const KEY: [u64; 8] = include!("../../../../wire/src/snapshot/test_key.in");
const WAIT_MAX: Duration = Duration::from_secs(20);

pub fn options() -> Options {
    let (limits, freeze_max) = (Limits::default(), Duration::from_secs(5));
    let external = External::default();
    let is_off = Arc::default();
    let state_dirs = Vec::new();
    Options { key: KEY, limits, freeze_max, shares_files: true, state_dirs, is_off, external }
}

/// Makes one of these tests' programs.
pub fn compile(name: &str, to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let mut compile = Command::new("clang");
    compile.args(["-O1", "-w", "-pthread"]).arg(source).arg("-o").arg(to);
    assert!(compile.status().unwrap().success());
}

/// A program that runs until this is dropped.
pub struct Server(Child);

impl Server {
    /// Starts a server in a network namespace of its own, with its output in `log`.
    pub fn start(command: &str, log: &str) -> Self {
        let log = File::create(log).unwrap();
        let script = format!("ip link set lo up && exec {command}");
        let mut shell = Command::new("unshare");
        // What the test runner has open is no affair of the server's.
        // SAFETY: one system call with plain numbers.
        unsafe {
            shell.pre_exec(|| {
                libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                Ok(())
            })
        };
        let child = shell
            .args(["-n", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Whether somebody listens at a port of its network namespace.
    pub fn listens(&self, port: u16) -> bool {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.pid()));
        sockets.is_ok_and(|sockets| sockets.contains(&format!(":{port:04X} ")))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `act` in the network namespace of a process.
pub fn beside<T: Send>(pid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            netns::enter(Path::new(&format!("/proc/{pid}/ns/net"))).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// Sends a request to a server on this port, and reads until `end` arrives.
pub fn ask(pid: u32, port: u16, request: &str, end: &str) -> String {
    let connect = || beside(pid, || TcpStream::connect(("127.0.0.1", port)));
    let mut stream = None;
    wait_for("the server", || {
        stream = connect().ok();
        stream.is_some()
    });
    let mut stream = stream.unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).ends_with(end) {
        let mut piece = [0; 65536];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the server hung up after {answer:?}");
        answer.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(answer).unwrap()
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn snapshot(pid: u32) -> Result<Snapshot, SnapshotError> {
    let options = options();
    Preparation::begin(&[pid], &options)?.freeze(&mut Bare)
}

pub fn image(pid: u32) -> Vec<u8> {
    snapshot(pid).unwrap().write(Vec::new(), &options()).unwrap()
}

/// A host for restored servers, where listeners listen and other sockets exist without a peer.
pub struct Elsewhere;

impl Surroundings for Elsewhere {
    fn socket(&mut self, socket: &Socket) -> io::Result<OwnedFd> {
        if socket.is_listening { bound(socket) } else { placeholder(socket) }
    }

    fn memory(&mut self, object: &Object) -> io::Result<OwnedFd> {
        panic!("{object:?}")
    }
}

/// Restores an image in a new network namespace.
pub fn revive(image: &[u8]) -> Result<Restored, SnapshotError> {
    // SAFETY: the thread's own namespace, which ends with it and the server.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let (limits, state_dirs) = (Limits::default(), Vec::new());
    let loading =
        Loading { key: KEY, limits, state_dirs, keeps_old: false, dies_with_parent: true };
    restore(image, &loading, &mut Elsewhere)
}
