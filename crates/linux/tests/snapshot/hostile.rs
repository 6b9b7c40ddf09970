//! A server that an attacker controls lies to whoever copies it: it gains no rights by its image,
//! reads nothing that it could not read before, and delays nobody. Needs root.

use crate::world::{KEY, Server, compile, image, options, revive, snapshot, wait_for};
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::{Preparation, SnapshotError};
use holdfast_wire::snapshot::{Description, Holds, Limits, Reader, Writer};
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;
/// Size that the program's sparse files seem to have, in bytes.
const HUGE: u64 = 1 << 42;
/// Shared memory of root's.
const SHM: &str = "/dev/shm/hfsecret";
/// Time longer than anything here takes, and shorter than a wait for a server would be.
const SOON: Duration = Duration::from_secs(8);

fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let program = std::env::temp_dir().join(format!("hfhostile{}", std::process::id()));
        compile("hostile.c", &program);
        program
    })
}

/// A server of the user nobody, whose folder is its own except for `secret` and `roots`.
struct Hostile {
    server: Server,
    folder: PathBuf,
}

impl Hostile {
    fn start(what: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("hfhostile{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for made in ["", "w", "roots"] {
            fs::create_dir_all(folder.join(made)).unwrap();
        }
        for own in ["", "w"] {
            std::os::unix::fs::chown(folder.join(own), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::write(folder.join("secret"), "root's alone").unwrap();
        for (roots, mode) in [("secret", 0o600), ("roots", 0o700)] {
            fs::set_permissions(folder.join(roots), Permissions::from_mode(mode)).unwrap();
        }
        let (log, program) = (folder.with_extension("log"), program().display());
        let rights = "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all";
        let at = folder.display();
        let command = format!("env -C {at} {rights} {program} {what} {at}");
        let server = Server::start(&command, log.to_str().unwrap());
        // The file is opened anew with the server's rights.
        fs::set_permissions(&log, Permissions::from_mode(0o666)).unwrap();
        let hostile = Self { server, folder };
        wait_for(what, || !hostile.said().is_empty());
        assert_eq!(hostile.said(), "ready\n", "{what}");
        hostile
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.with_extension("log")).unwrap()
    }

    fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Makes a name refer to another file.
    fn swap(&self, name: &str, other: &str) {
        let (path, is_folder) = (self.folder.join(name), name == "w");
        if is_folder {
            fs::remove_dir_all(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        let roots = self.folder.join(if is_folder { "roots" } else { "secret" });
        match other {
            "link" => symlink(roots, path).unwrap(),
            "roots" => fs::rename(roots, path).unwrap(),
            "fifo" => {
                let path = CString::new(path.as_os_str().as_bytes()).unwrap();
                // SAFETY: the kernel reads a C string.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
            }
            _ => unreachable!("{other}"),
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
        fs::remove_file(self.folder.with_extension("log")).unwrap();
    }
}

fn reasons<T>(what: &str, result: Result<T, SnapshotError>) -> Vec<String> {
    match result.err() {
        Some(SnapshotError::Refused(reasons)) => reasons,
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn files_that_are_powers_and_files_that_it_may_not_read_are_refused_by_name() {
    for (what, begins, ends) in [
        ("mem", "descriptor 3 is /proc/", "/mem, in a file system like proc"),
        ("status", "descriptor 3 is /proc/", "/status, in a file system like proc"),
        ("sys", "descriptor 3 is /sys/", "/enabled, in a file system like sysfs"),
        ("path", "descriptor 3 is /", "/secret (deleted), which it may not read"),
        ("shared", "it shares a mapping of ", "/f (deleted)"),
        ("shm", "descriptor 3 is /dev/shm", "/hfsecret, which it may not read"),
    ] {
        if what == "shm" {
            fs::write(SHM, "root's alone").unwrap();
            fs::set_permissions(SHM, Permissions::from_mode(0o600)).unwrap();
        }
        let server = Hostile::start(what);
        match what {
            "path" => fs::remove_file(server.folder.join("secret")).unwrap(),
            "shared" => fs::rename(server.folder.join("secret"), server.folder.join("f")).unwrap(),
            _ => {}
        }
        let found = reasons(what, snapshot(server.pid()));
        let [reason] = &found[..] else { panic!("{what}: {found:?}") };
        assert!(reason.starts_with(begins) && reason.ends_with(ends), "{what}: {reason}");
    }
    fs::remove_file(SHM).unwrap();
}

#[test]
fn what_a_name_means_when_it_is_restored_its_own_rights_decide_and_nobody_waits() {
    for (what, name) in
        [("shared", "f"), ("private", "f"), ("open", "f"), ("watch", "w"), ("folder", "w")]
    {
        for other in ["link", "roots", "fifo"] {
            // A watch opens nothing.
            if (what, other) == ("watch", "fifo") {
                continue;
            }
            let server = Hostile::start(what);
            let image = image(server.pid());
            drop(revive(&image).unwrap());
            server.swap(name, other);
            let began = Instant::now();
            let failed = revive(&image).err().map(|error| error.to_string());
            let said = failed.unwrap_or_else(|| panic!("{what} was restored with a {other}"));
            let why = match (other, name) {
                ("link", _) => "a symbolic link is in the way",
                ("roots", _) => "the server's user may not open",
                ("fifo", "f") => "it is neither a file nor a folder",
                _ => "",
            };
            assert!(said.contains(why), "{what} with a {other}: {said}");
            assert!(began.elapsed() < SOON, "{what} with a {other}: {:?}", began.elapsed());
        }
    }
}

/// When the socket is bound again, a link in its name leads to a folder of root's.
#[test]
fn a_sockets_name_is_bound_with_its_own_rights() {
    let server = Hostile::start("socket");
    let image = image(server.pid());
    // SAFETY: plain numbers, of a child that nobody has waited for.
    unsafe { libc::kill(server.pid() as libc::pid_t, libc::SIGKILL) };
    let stat = format!("/proc/{}/stat", server.pid());
    wait_for("its end", || fs::read_to_string(&stat).unwrap().contains(") Z "));
    drop(revive(&image).unwrap());
    server.swap("w", "link");
    let said = revive(&image).err().expect("it was bound in root's folder").to_string();
    assert!(said.contains("Permission denied"), "{said}");
    assert_eq!(fs::read_dir(server.folder.join("roots")).unwrap().count(), 0);
}

#[test]
fn an_unlinked_program_comes_back_as_its_users_and_sets_nobodys_id() {
    let server = Hostile::start("setuid");
    let restored = revive(&image(server.pid())).unwrap();
    let file = fs::metadata(format!("/proc/{}/fd/3", restored.pid())).unwrap();
    assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY));
    assert_eq!(file.mode() & 0o7777, 0o755);
    assert_eq!(fs::read(format!("/proc/{}/fd/3", restored.pid())).unwrap(), b"program");
}

/// Bytes of the process' memory at two places of its mapping of the sparse file.
fn of_sparse(pid: u32, description: &Description) -> (Vec<u8>, Vec<u8>) {
    let mut areas = description.members[0].areas.iter();
    let area = areas.find(|area| area.end - area.start == HUGE).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let at = |address| {
        let mut bytes = vec![0; 5];
        memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    };
    (at(area.start), at(area.end - 4096))
}

#[test]
fn a_sparse_file_costs_what_is_in_it() {
    let server = Hostile::start("gone");
    let began = Instant::now();
    let taken = snapshot(server.pid()).unwrap();
    assert!(taken.memory_bytes() < 64 << 20, "{} bytes", taken.memory_bytes());
    let image = taken.write(Vec::new(), &options()).unwrap();
    let restored = revive(&image).unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let found = of_sparse(restored.pid(), taken.description());
    assert_eq!(found, (b"first".to_vec(), b"last\0".to_vec()));
    let named = Hostile::start("sparse");
    let began = Instant::now();
    let found = reasons("sparse", snapshot(named.pid()));
    assert_eq!(found, ["it maps more of files than the limit of memory_bytes"]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn shared_memory_and_files_count_as_memory_does() {
    let server = Hostile::start("large");
    let mut options = options();
    options.limits = Limits { memory_bytes: 32 << 20, ..options.limits };
    let found = reasons("large", Preparation::begin(&[server.pid()], &options));
    assert_eq!(found, ["it has more memory and files than the limit of memory_bytes"]);
}

#[test]
fn very_many_descriptors_are_read_at_once_or_refused_in_time() {
    let server = Hostile::start("many");
    let mut options = options();
    let began = Instant::now();
    let taken = Preparation::begin(&[server.pid()], &options).unwrap().freeze(&mut Bare).unwrap();
    assert_eq!(
        taken.description().files.len(),
        taken.description().members[0].descriptors.len() - 1
    );
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    options.freeze_max = Duration::from_millis(20);
    let preparation = Preparation::begin(&[server.pid()], &options).unwrap();
    let began = Instant::now();
    let found = reasons("many", preparation.freeze(&mut Bare));
    assert!(found[0].contains("than can be looked at in time"), "{found:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// The server has its own rights when it is looked at first, and all rights in the freeze.
#[test]
fn rights_that_come_after_the_first_look_do_not_get_into_an_image() {
    let server = Hostile::start("user");
    let options = options();
    let preparation = Preparation::begin(&[server.pid()], &options).unwrap();
    // SAFETY: plain numbers, of a child that nobody has waited for.
    unsafe { libc::kill(server.pid() as libc::pid_t, libc::SIGUSR1) };
    wait_for("its namespace", || server.said().ends_with("late\n"));
    let found = reasons("user", preparation.freeze(&mut Bare));
    assert!(found.contains(&"it has a user namespace of its own".to_owned()), "{found:?}");
    assert!(found.contains(&"its rights changed while it was looked at".to_owned()), "{found:?}");
}

#[test]
fn content_that_comes_twice_is_refused_and_not_waited_for() {
    let server = Hostile::start("pipe");
    let image = image(server.pid());
    let mut reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    let description = reader.description().clone();
    let mut twice = Writer::begin(Vec::new(), &KEY, Limits::default(), &description).unwrap();
    loop {
        let (holds, bytes) = reader.chunk().unwrap();
        if holds == Holds::End {
            break;
        }
        for _ in 0..if matches!(holds, Holds::File { .. }) { 2 } else { 1 } {
            twice.chunk(holds, bytes).unwrap();
        }
    }
    let began = Instant::now();
    let said = revive(&twice.end().unwrap()).err().unwrap().to_string();
    assert!(said.contains("a stream's content is not in order"), "{said}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    revive(&image).unwrap();
}
