use super::*;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

#[test]
fn a_log_is_never_another_file_than_the_one_that_is_named() {
    let folder = std::env::temp_dir().join(format!("holdfast-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let at = |name: &str| folder.join(name);
    open_log(&at("own")).unwrap();
    open_log(&at("own")).expect("appended to");
    open_log(Path::new("/dev/null")).unwrap();
    symlink(at("own"), at("link")).unwrap();
    symlink(&folder, at("folder")).unwrap();
    std::fs::hard_link(at("own"), at("second")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for name in ["link", "folder/own", "second", "own", "pipe"] {
        let error = open_log(&at(name)).expect_err(name).to_string();
        assert!(error.contains("the server's log"), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_log_is_tried_without_a_trace() {
    let folder = std::env::temp_dir().join(format!("holdfast-try-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.canonicalize().unwrap().join("log");
    try_log(&log).unwrap();
    assert!(!log.exists());
    std::fs::write(&log, "words").unwrap();
    try_log(&log).unwrap();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "words");
    assert!(try_log(log.parent().unwrap()).is_err(), "it is a folder");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A server that starts while its log is tried keeps it.
#[test]
fn a_log_that_is_made_meanwhile_stays() {
    let folder = std::env::temp_dir().join(format!("holdfast-race-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.canonicalize().unwrap().join("log");
    for _ in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| try_log(&log).unwrap());
            std::fs::write(&log, "words").unwrap();
        });
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "words");
        std::fs::remove_file(&log).unwrap();
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_that_has_ended_by_itself_leaves_no_zombie() {
    let settings = Settings {
        ring_bytes: 1 << 20,
        hash_key: [1; 8],
        ports: vec![80],
        options: 0,
        mode: mode::RECORD,
        name: "reaped".to_owned(),
    };
    let pid = Command::new("true").spawn().map(|child| child.id()).unwrap();
    let pidfd = process::pidfd_open(pid).unwrap();
    assert!(process::poll_in(pidfd.as_fd(), 10_000).unwrap());
    let memory = SharedMemory::create(&settings).unwrap();
    let wake = EventFd::new().unwrap();
    drop(Server::new(memory, (Process::Child(pid), pidfd), wake, own_standard()));
    let place = format!("/proc/{pid}");
    let begun = Instant::now();
    while Path::new(&place).exists() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is a zombie");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A mounted file system that goes, whatever becomes of the test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_library_on_a_disk_for_data_is_not_loaded() {
    let place = std::env::temp_dir().join(format!("holdfast-noexec-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&place).status();
        assert!(done.unwrap().success(), "run the tests as root");
    };
    let mounted = Mounted(place.clone());
    mount("noexec");
    let library = place.join("library");
    let load = || try_use(None, &library, Use::Load).map_err(|error| error.raw_os_error());
    std::fs::write(&library, "\x7fELF").unwrap();
    assert_eq!(load(), Err(Some(libc::EPERM)));
    mount("remount,exec");
    assert_eq!(load(), Ok(()));
    drop(mounted);
    assert_eq!(load(), Err(Some(libc::ENOENT)));
}

#[test]
fn a_folder_is_filled_by_its_user() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = std::env::temp_dir().join(format!("holdfast-fill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let nobody = User { uid: 65534, gid: 65534, groups: vec![65534] };
    let may = |user| try_use(user, &folder, Use::Fill).map_err(|error| error.kind());
    let set = |mode| {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(0o755);
    assert_eq!(may(Some(&nobody)), Err(io::ErrorKind::PermissionDenied));
    assert_eq!(may(None), Ok(()), "run the tests as root");
    set(0o777);
    assert_eq!(may(Some(&nobody)), Ok(()));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_user_may_use_what_it_reaches() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = std::env::temp_dir().join(format!("holdfast-use-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let program = folder.join("program");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let nobody = User { uid: 65534, gid: 65534, groups: vec![65534] };
    let may = |user, wanted| try_use(user, &program, wanted).map_err(|error| error.kind());
    let denied = Err(io::ErrorKind::PermissionDenied);
    set(&folder, 0o755);
    set(&program, 0o700);
    assert_eq!(may(None, Use::Run), Ok(()), "run the tests as root");
    assert_eq!([Use::Run, Use::Load].map(|wanted| may(Some(&nobody), wanted)), [denied, denied]);
    set(&program, 0o755);
    assert_eq!([Use::Run, Use::Load].map(|wanted| may(Some(&nobody), wanted)), [Ok(()), Ok(())]);
    set(&folder, 0o700);
    assert_eq!(may(Some(&nobody), Use::Run), denied, "it does not come there");
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(may(None, Use::Run), Err(io::ErrorKind::NotFound));
}
