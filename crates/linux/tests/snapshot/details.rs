//! What a copy has of its original besides memory, threads and files: where new memory lies, what
//! sockets and signals are set to; and what is compared before a host is changed. Needs root.

use crate::world::{Elsewhere, KEY, Server, ask, beside, image, options, revive, wait_for};
use holdfast_linux::priority;
use holdfast_linux::snapshot::Preparation;
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::restore::{Loading, Restored, restore};
use holdfast_wire::snapshot::{Holds, Limits, Reader, Writer};
use std::path::PathBuf;

const SETTINGS: &str = r#"
import ctypes, mmap, resource, socket, struct, sys
for limit in sys.argv[1:]: resource.setrlimit(resource.RLIMIT_STACK, (int(limit), -1))
libc = ctypes.CDLL(None)
def action(number, new=None):
    old, number, size = ctypes.create_string_buffer(32), ctypes.c_long(number), ctypes.c_long(8)
    assert libc.syscall(ctypes.c_long(13), number, new, old, size) == 0
    return struct.unpack("4Q", old.raw)[1]
action(17, struct.pack("4Q", 0, 2, 0, 0))
time = struct.pack("qq", 3, 500000)
IP, V6, TCP, ALL = 0, 41, 6, socket.SOL_SOCKET
number = lambda it: struct.pack("i", it)
COMMON = [(ALL, 20, time), (ALL, 21, time), (ALL, 12, number(5)), (ALL, 36, number(7))]
PAIR = COMMON + [(ALL, 16, number(1))]
INET = COMMON + [(ALL, 25, b"lo\0"), (IP, 2, number(33)), (IP, 21, number(11)), (IP, 15, number(1)),
    (IP, 19, number(1)), (TCP, 13, b"reno")]
INET6 = [(V6, 16, number(44)), (V6, 73, number(9)), (V6, 75, number(1)), (V6, 78, number(1))]
a, b = socket.socketpair()
made = [(a, PAIR), (socket.socket(), INET), (socket.socket(socket.AF_INET6), INET6)]
for it, options in made:
    for level, name, value in options: it.setsockopt(level, name, value)
def said():
    got = [it.getsockopt(level, name, 16) for it, options in made for level, name, _ in options]
    same = [b"".join(got).count(value) for value in (b"reno", b"lo", time, number(44))]
    area = mmap.mmap(-1, 64 << 20)
    at = ctypes.addressof(ctypes.c_char.from_buffer(area))
    other = [b.getsockopt(ALL, name, 16) for name in (16, 20)]
    return f"{same} {action(17)} {[it.hex() for it in got + other]} at {at:x}"
listener = socket.create_server(("127.0.0.1", 7321))
while True:
    c, _ = listener.accept()
    c.sendall(said().encode() + b"\n"); c.close()
"#;

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hf{name}{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A server of [`SETTINGS`], a copy of it, and a copy of that.
fn with_copies(command: &str) -> (Server, Restored, Restored) {
    let server = Server::start(command, "/dev/null");
    wait_for("its listener", || server.listens(7321));
    // The kernel tells of sockets in its own network namespace only.
    let of = |pid| beside(pid, || image(pid));
    let restored = revive(&of(server.pid())).unwrap();
    let second = revive(&of(restored.pid())).unwrap();
    (server, restored, second)
}

/// Addresses are not random here: what is mapped from the image on lies at the same ones. That
/// holds for a copy of a copy, and with a stack that may be larger than a loader's.
#[test]
fn settings_go_over_and_new_memory_lies_where_it_would() {
    let folder = scratch("settings");
    let script = folder.join("settings.py");
    std::fs::write(&script, SETTINGS).unwrap();
    let python = format!("setarch -R /usr/bin/python3 {}", script.display());
    let (server, restored, second) = with_copies(&format!("prlimit --stack=1073741824 {python}"));
    let said = |pid| ask(pid, 7321, "", "\n");
    let expected = said(server.pid());
    assert!(expected.starts_with("[1, 1, 4, 1] 2 "), "{expected}");
    assert_eq!(said(second.pid()), expected, "of the second generation");
    assert_eq!(said(restored.pid()), expected);
    std::fs::remove_dir_all(folder).unwrap();
}

/// What decides is the stack's limit at its start.
#[test]
fn new_memory_lies_where_it_would_whatever_limit_the_server_has_set_itself() {
    let folder = scratch("limit");
    let script = folder.join("settings.py");
    std::fs::write(&script, SETTINGS).unwrap();
    let lies_where_it_would = |before: i64, own: i64| {
        let python = format!("setarch -R /usr/bin/python3 {} {own}", script.display());
        let (server, restored, second) =
            with_copies(&format!("prlimit --stack={before}: {python}"));
        let said = |pid| ask(pid, 7321, "", "\n");
        let expected = said(server.pid());
        assert_eq!(said(restored.pid()), expected, "{before} {own}");
        assert_eq!(said(second.pid()), expected, "of the second generation: {before} {own}");
        let limits = |pid| std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        assert_eq!(limits(restored.pid()), limits(server.pid()));
    };
    for (before, own) in [(8 << 20, 1 << 30), (1 << 30, 8 << 20), (8 << 20, -1), (1 << 30, -1)] {
        // Each has a network namespace of its own in the end.
        let case = || lies_where_it_would(before, own);
        std::thread::scope(|scope| scope.spawn(case).join()).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

const NOEXEC: &str = "/proc/sys/vm/memfd_noexec";

/// Where a host runs no memory files a copy's stub cannot start a program of its own: the copy is
/// made all the same. Each pid namespace has this setting for itself.
#[test]
fn a_host_that_runs_no_memory_files_makes_copies_too() {
    const NAME: &str = "a_host_that_runs_no_memory_files_makes_copies_too";
    const INSIDE: &str = "HOLDFAST_TEST_NOEXEC";
    if !std::path::Path::new(NOEXEC).exists() {
        return;
    }
    if std::env::var_os(INSIDE).is_none() {
        let exe = std::env::current_exe().unwrap();
        let script = format!("echo 2 > {NOEXEC} && \"$0\" --exact {NAME}");
        let mut inside = std::process::Command::new("unshare");
        inside.args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script]).arg(exe);
        assert!(inside.env(INSIDE, "1").status().unwrap().success());
        return;
    }
    assert_eq!(std::fs::read_to_string(NOEXEC).unwrap(), "2\n");
    let folder = scratch("noexec");
    let script = folder.join("settings.py");
    std::fs::write(&script, SETTINGS).unwrap();
    let python = format!("setarch -R /usr/bin/python3 {}", script.display());
    let server = Server::start(&python, "/dev/null");
    wait_for("its listener", || server.listens(7321));
    let image = beside(server.pid(), || image(server.pid()));
    let restored = revive(&image).unwrap();
    let settings = |pid| ask(pid, 7321, "", "\n").split(" at ").next().unwrap().to_owned();
    assert_eq!(settings(restored.pid()), settings(server.pid()));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Whoever makes a copy in a hurry shares its priority with it, until it runs.
#[test]
fn a_copy_that_was_made_urgently_has_its_originals_priority() {
    let server = Server::start("sleep 600", "/dev/null");
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", server.pid()));
    wait_for("its program", || name().is_ok_and(|name| name == "sleep\n"));
    let image = image(server.pid());
    let restored = priority::urgently(Some(1), || {
        assert_eq!(priority::realtime(), Some(1), "this needs root");
        revive(&image).unwrap()
    });
    // SAFETY: plain numbers.
    let policy = |pid: u32| unsafe { libc::sched_getscheduler(pid.cast_signed()) };
    assert_eq!((policy(restored.pid()), policy(server.pid())), (0, 0));
}

/// An image as another kernel would have made it: with another vDSO.
fn of_another_kernel(image: &[u8]) -> Vec<u8> {
    let mut reader = Reader::begin(image, &KEY, Limits::default()).unwrap();
    let mut description = reader.description().clone();
    description.members[0].process.vdso[100] ^= 1;
    let mut writer = Writer::begin(Vec::new(), &KEY, Limits::default(), &description).unwrap();
    loop {
        match reader.chunk().unwrap() {
            (Holds::End, _) => return writer.end().unwrap(),
            (holds, bytes) => writer.chunk(holds, bytes).unwrap(),
        }
    }
}

#[test]
fn a_host_with_another_kernel_keeps_its_state_folders() {
    let folder = scratch("kernel");
    let file = folder.join("state");
    std::fs::write(&file, "the primary's").unwrap();
    let server = Server::start("sleep 600", "/dev/null");
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", server.pid()));
    wait_for("its program", || name().is_ok_and(|name| name == "sleep\n"));
    let options = || {
        let mut options = options();
        options.state_dirs.push(folder.clone());
        options
    };
    let image = {
        let options = options();
        let mut preparation = Preparation::begin(&[server.pid()], &options).unwrap();
        preparation.state_round().unwrap();
        preparation.freeze(&mut Bare).unwrap().write(Vec::new(), &options).unwrap()
    };
    std::fs::write(&file, "the joiner's").unwrap();
    let (limits, state_dirs) = (Limits::default(), vec![folder.clone()]);
    let loading =
        Loading { key: KEY, limits, state_dirs, keeps_old: false, dies_with_parent: true };
    let refused = restore(&of_another_kernel(&image)[..], &loading, &mut Elsewhere).err().unwrap();
    assert!(refused.to_string().contains("its vDSO differs"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the joiner's");
    restore(&image[..], &loading, &mut Elsewhere).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the primary's");
    std::fs::remove_dir_all(folder).unwrap();
}
