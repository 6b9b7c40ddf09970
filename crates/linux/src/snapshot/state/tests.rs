use super::collect::Collected;
use super::place::Placing;
use super::*;
use crate::snapshot::bounds::Patience;
use crate::snapshot::describe::process::Status;
use holdfast_wire::snapshot::{Attribute, Ids, Limits, State, StateKind};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Two folders that are removed when this is dropped.
struct Folders(PathBuf);

impl Folders {
    fn new(name: &str) -> Self {
        let base = std::env::temp_dir().join(format!("hfstate-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(base.join("from")).unwrap();
        fs::create_dir_all(base.join("to")).unwrap();
        Self(fs::canonicalize(base).unwrap())
    }

    fn from(&self, name: &str) -> PathBuf {
        self.0.join("from").join(name)
    }

    fn to(&self, name: &str) -> PathBuf {
        self.0.join("to").join(name)
    }

    fn collect(&self) -> Collected {
        let mounts = Mounts::read().unwrap();
        let from = [self.0.join("from")];
        Collected::begin(&from, own(), Limits::default(), &mounts).unwrap()
    }

    /// Places what was collected, with a state that names another folder than the one it was
    /// collected in.
    fn place(&self, collected: &Collected, state: &State, cut: bool) -> Result<()> {
        self.place_beside(collected, state, false, cut)
    }

    /// The same; with `keeps_old` what is there is set aside.
    fn place_beside(
        &self,
        collected: &Collected,
        state: &State,
        keeps_old: bool,
        cut: bool,
    ) -> Result<()> {
        let to = self.0.join("to");
        let folders = vec![to.as_os_str().as_bytes().to_vec()];
        let state = State { folders, ..state.clone() };
        let mounts = Mounts::read().unwrap();
        let mut placing = Placing::begin(&state, &[to], keeps_old, &mounts)?;
        collected.write(&mut |entry, offset, bytes| placing.fill(entry, offset, bytes))?;
        if cut { Ok(()) } else { placing.finish() }
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn own() -> Ids {
    Status::read(std::process::id()).unwrap().all_ids(0).unwrap()
}

fn round(collected: &mut Collected) -> u64 {
    std::thread::sleep(super::collect::APART * 2);
    collected.round(&[std::process::id()], &BTreeSet::new(), &AtomicBool::new(false)).unwrap()
}

fn freeze(collected: &mut Collected, writing: &Writing) -> Result<State> {
    collected.freeze(writing, &BTreeSet::new(), Patience::of(Duration::from_secs(5)))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|found| found.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn all_that_a_folder_holds_takes_the_place_of_what_was_there() {
    let folders = Folders::new("all");
    fs::create_dir_all(folders.from("a/b")).unwrap();
    fs::write(folders.from("a/b/file"), vec![7; 9_000_000]).unwrap();
    fs::set_permissions(folders.from("a/b/file"), PermissionsExt::from_mode(0o4640)).unwrap();
    fs::write(folders.from("empty"), []).unwrap();
    symlink("/etc/passwd", folders.from("link")).unwrap();
    let mut holes = fs::File::create(folders.from("holes")).unwrap();
    holes.set_len(64 << 20).unwrap();
    holes.seek(std::io::SeekFrom::Start(32 << 20)).unwrap();
    holes.write_all(b"an island").unwrap();
    fs::write(folders.from(".holdfast-arriving"), "reserved").unwrap();
    fs::create_dir(folders.to("old")).unwrap();
    fs::write(folders.to("old/file"), "old").unwrap();
    fs::write(folders.to("empty"), "not so").unwrap();
    let mut collected = folders.collect();
    assert!(round(&mut collected) >= 9_000_000);
    let state = freeze(&mut collected, &Writing::new()).unwrap();
    assert!(state.bytes < 10_000_000, "holes are left out: {}", state.bytes);
    folders.place(&collected, &state, true).unwrap();
    assert_eq!(names(&folders.to("")), ["empty", "old"], "nothing changes before all has come");
    folders.place(&collected, &state, false).unwrap();
    assert_eq!(names(&folders.to("")), ["a", "empty", "holes", "link"]);
    for name in ["a/b/file", "empty", "holes"] {
        assert!(fs::read(folders.from(name)).unwrap() == fs::read(folders.to(name)).unwrap());
        let [from, to] = [folders.from(name), folders.to(name)].map(|it| it.metadata().unwrap());
        assert_eq!((from.mtime_nsec(), from.uid()), (to.mtime_nsec(), to.uid()), "{name}");
    }
    assert_eq!(folders.to("a/b/file").metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_link(folders.to("link")).unwrap(), Path::new("/etc/passwd"));
    assert!(folders.to("holes").metadata().unwrap().blocks() < 1000);
}

#[test]
fn what_changes_while_it_is_copied_is_copied_again() {
    let folders = Folders::new("changes");
    fs::write(folders.from("same"), vec![1; 1 << 20]).unwrap();
    fs::write(folders.from("grows"), vec![2; 30 << 20]).unwrap();
    fs::write(folders.from("goes"), "x").unwrap();
    fs::write(folders.from("changes"), "before").unwrap();
    let mut collected = folders.collect();
    let all = round(&mut collected);
    assert_eq!((round(&mut collected), all), (0, (31 << 20) + 7));
    // The file has the same length and the same time as before.
    let before = folders.from("changes").metadata().unwrap();
    fs::write(folders.from("changes"), "behind").unwrap();
    let times = fs::FileTimes::new().set_modified(before.modified().unwrap());
    fs::File::open(folders.from("changes")).unwrap().set_times(times).unwrap();
    fs::remove_file(folders.from("goes")).unwrap();
    let mut log = OpenOptions::new().append(true).open(folders.from("grows")).unwrap();
    log.write_all(&[3; 5000]).unwrap();
    assert_eq!(round(&mut collected), 5006, "of what is appended to only what is new");
    log.write_all(&[4; 10]).unwrap();
    let id = (log.metadata().unwrap().dev(), log.metadata().unwrap().ino());
    let state = freeze(&mut collected, &Writing::from([(id, true)])).unwrap();
    folders.place(&collected, &state, false).unwrap();
    assert_eq!(names(&folders.to("")), ["changes", "grows", "same"]);
    for name in ["changes", "grows", "same"] {
        assert!(fs::read(folders.from(name)).unwrap() == fs::read(folders.to(name)).unwrap());
    }
    // It is also written in another place, so that all of it would have to be copied.
    log.write_all(&[5]).unwrap();
    let refused = freeze(&mut collected, &Writing::from([(id, false)])).unwrap_err();
    assert!(refused.to_string().contains("grows changes faster"), "{refused}");
    // The file was truncated and written anew, and is longer than before.
    log.set_len(0).unwrap();
    log.write_all(&vec![6; 31 << 20]).unwrap();
    let refused = freeze(&mut collected, &Writing::from([(id, true)])).unwrap_err();
    assert!(refused.to_string().contains("grows changes faster"), "{refused}");
}

#[test]
fn a_life_that_ends_in_an_exchange_is_completed_by_the_next() {
    let begun = |name: &str| {
        let folders = Folders::new(name);
        fs::write(folders.to("old"), "old").unwrap();
        fs::create_dir(folders.to(".holdfast-arrived")).unwrap();
        fs::write(folders.to(".holdfast-arrived/new"), "new").unwrap();
        fs::write(folders.to(".holdfast-arrived/newer"), "newer").unwrap();
        folders
    };
    let complete = |folders: &Folders| {
        settle(&folders.to(""), None).unwrap();
        assert_eq!(names(&folders.to("")), ["new", "newer"]);
        settle(&folders.to(""), None).unwrap();
        assert_eq!(fs::read(folders.to("newer")).unwrap(), b"newer");
    };
    complete(&begun("exchange-begun"));
    let half = begun("exchange-half");
    fs::remove_file(half.to("old")).unwrap();
    fs::write(half.to(".holdfast-arrived/.holdfast-moving"), "").unwrap();
    fs::rename(half.to(".holdfast-arrived/new"), half.to("new")).unwrap();
    complete(&half);
    // Incomplete arrivals are removed, and nothing else.
    let early = Folders::new("exchange-early");
    fs::write(early.to("old"), "old").unwrap();
    fs::create_dir_all(early.to(".holdfast-arriving/x")).unwrap();
    settle(&early.to(""), None).unwrap();
    assert_eq!(names(&early.to("")), ["old"]);
    // A link of that name is not one of Holdfast's folders.
    symlink("/etc", early.to(".holdfast-arrived")).unwrap();
    settle(&early.to(""), None).unwrap();
    assert_eq!(names(&early.to("")), ["old"]);
    assert!(Path::new("/etc/passwd").exists());
    assert!(
        settle(Path::new("/nonexistent/x"), None).unwrap_err().to_string().contains("state_dirs")
    );
}

/// A folder with other content than the image's, which is in its place now.
fn exchanged(name: &str) -> Folders {
    let folders = Folders::new(name);
    fs::create_dir(folders.from("a")).unwrap();
    fs::write(folders.from("a/file"), "image").unwrap();
    fs::create_dir(folders.to("a")).unwrap();
    fs::write(folders.to("a/file"), "newest").unwrap();
    fs::write(folders.to("more"), "newest").unwrap();
    let mut collected = folders.collect();
    round(&mut collected);
    let state = freeze(&mut collected, &Writing::new()).unwrap();
    folders.place_beside(&collected, &state, true, false).unwrap();
    assert_eq!(fs::read(folders.to("a/file")).unwrap(), b"image");
    assert!(!folders.to("more").exists());
    folders
}

fn is_newest(folders: &Folders) {
    for _ in 0..2 {
        settle(&folders.to(""), None).unwrap();
        assert_eq!(names(&folders.to("")), ["a", "more"]);
        assert_eq!(fs::read(folders.to("a/file")).unwrap(), b"newest");
    }
}

#[test]
fn what_a_fallen_server_has_left_is_put_back_whenever_that_ends() {
    let folders = exchanged("aside");
    fs::write(folders.to("of the rebuilt"), "x").unwrap();
    is_newest(&folders);
    // It ended before all was aside.
    fs::create_dir(folders.to(".holdfast-going-aside")).unwrap();
    fs::create_dir(folders.to(".holdfast-arriving")).unwrap();
    fs::rename(folders.to("a"), folders.to(".holdfast-going-aside/a")).unwrap();
    is_newest(&folders);
    // It ended in the exchange.
    let half = exchanged("aside-half");
    fs::create_dir(half.to(".holdfast-arrived")).unwrap();
    fs::write(half.to(".holdfast-arrived/.holdfast-moving"), "").unwrap();
    fs::rename(half.to("a"), half.to(".holdfast-arrived/a")).unwrap();
    is_newest(&half);
    // Links of these names are no folders of ours.
    for name in [".holdfast-aside", ".holdfast-going-aside"] {
        symlink("/etc", half.to(name)).unwrap();
        is_newest(&half);
    }
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn it_is_forgotten_once_the_server_is_rebuilt() {
    let folders = exchanged("forgotten");
    super::forget(&folders.to(""), None).unwrap();
    assert_eq!(names(&folders.to("")), [".holdfast-removing", "a"]);
    let mounts = Mounts::read().unwrap();
    let collected = Collected::begin(&[folders.to("")], own(), Limits::default(), &mounts).unwrap();
    assert_eq!(names(&folders.to("")), ["a"], "whoever copies it next removes it");
    drop(collected);
    settle(&folders.to(""), None).unwrap();
    assert_eq!(fs::read(folders.to("a/file")).unwrap(), b"image");
}

#[test]
fn what_cannot_go_over_is_refused_by_name() {
    let folders = Folders::new("refused");
    fs::write(folders.from("one"), "x").unwrap();
    let mut collected = folders.collect();
    round(&mut collected);
    let mut state = freeze(&mut collected, &Writing::new()).unwrap();
    let mounts = Mounts::read().unwrap();
    let refused =
        Placing::begin(&state, &[folders.to("")], false, &mounts).err().unwrap().to_string();
    assert!(refused.contains("state_dirs are ["), "only this host's own folders: {refused}");
    // A link that arrives does not lead writes to another place.
    state.entries[0].kind = StateKind::Link { to: b"/etc".to_vec() };
    let mut through = state.entries[0].clone();
    through.path = b"one/hostname".to_vec();
    through.kind = StateKind::File { size: 1 };
    state.entries.push(through);
    assert!(folders.place(&collected, &state, true).is_err());
    assert_eq!(names(&folders.to("")), Vec::<String>::new());
    fs::hard_link(folders.from("one"), folders.from("two")).unwrap();
    let id = std::process::id();
    let refused =
        collected.round(&[id], &BTreeSet::new(), &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(refused.contains("hard link"), "{refused}");
    fs::remove_file(folders.from("two")).unwrap();
    round(&mut collected);
    fs::write(folders.from("three"), "x").unwrap();
    let refused =
        collected.round(&[id], &BTreeSet::new(), &AtomicBool::new(true)).unwrap_err().to_string();
    assert!(refused.contains("nobody wants"), "{refused}");
}

#[test]
fn what_may_have_changed_unseen_is_copied_again() {
    let folders = Folders::new("doubt");
    let mut collected = folders.collect();
    let round_at_once = |it: &mut Collected| {
        it.round(&[std::process::id()], &BTreeSet::new(), &AtomicBool::new(false)).unwrap()
    };
    // The file is written in the same tick in which it is copied.
    fs::write(folders.from("fresh"), "12345").unwrap();
    assert_eq!(round_at_once(&mut collected), 5);
    assert_eq!((round(&mut collected), round(&mut collected)), (5, 0));
    // Parts of it are mapped, so that writes to them are not seen.
    fs::write(folders.from("mapped"), vec![1; 25 << 20]).unwrap();
    assert_eq!(round(&mut collected), 25 << 20);
    assert!(freeze(&mut collected, &Writing::new()).is_ok(), "nothing has changed");
    let mapped = BTreeSet::from([folders.from("mapped")]);
    let patience = Patience::of(Duration::from_secs(5));
    let refused = collected.freeze(&Writing::new(), &mapped, patience).unwrap_err();
    assert!(refused.to_string().contains("mapped changes faster"), "{refused}");
    let (from, mounts) = ([folders.from("")], Mounts::read().unwrap());
    let limits = Limits { state_entries: 1, ..Limits::default() };
    let mut collected = Collected::begin(&from, own(), limits, &mounts).unwrap();
    let refused = collected
        .round(&[std::process::id()], &BTreeSet::new(), &AtomicBool::new(false))
        .unwrap_err();
    assert!(refused.to_string().contains("more files and folders"), "{refused}");
}

/// The owner of the folder may have put anything in the way of an exchange.
#[test]
fn what_somebody_left_in_the_way_is_removed_however_deep() {
    let folders = Folders::new("way");
    fs::create_dir_all(folders.to(".holdfast-arrived/x")).unwrap();
    fs::write(folders.to(".holdfast-arrived/.holdfast-moving"), "").unwrap();
    fs::write(folders.to(".holdfast-arrived/x/new"), "new").unwrap();
    fs::create_dir_all(folders.to("x/not/empty")).unwrap();
    settle(&folders.to(""), None).unwrap();
    assert_eq!(
        (names(&folders.to("")), names(&folders.to("x"))),
        (vec!["x".into()], vec!["new".into()])
    );
    // The folders are nested more deeply than any stack, path or number of descriptors allows.
    let deep = folders.to(".holdfast-arriving");
    fs::create_dir(&deep).unwrap();
    let script = "for i in range(3000):\n os.mkdir('d'); os.chdir('d')\n open('f', 'w').close()";
    let python = std::process::Command::new("/usr/bin/python3")
        .args(["-c", &format!("import os\nos.chdir('{}')\n{script}", deep.display())])
        .status();
    assert!(python.unwrap().success());
    fs::create_dir(folders.to(".holdfast-removing")).unwrap();
    fs::write(folders.to(".holdfast-removing/1"), "of an earlier life").unwrap();
    settle(&folders.to(""), None).unwrap();
    assert_eq!(names(&folders.to("")), ["x"]);
    // A FIFO in the place of a file that arrives does not block the exchange.
    fs::write(folders.from("file"), "x").unwrap();
    let mut collected = folders.collect();
    round(&mut collected);
    let state = freeze(&mut collected, &Writing::new()).unwrap();
    let to = folders.to("");
    let own: Vec<u8> = to.as_os_str().as_bytes().strip_suffix(b"/").unwrap().to_vec();
    let state = State { folders: vec![own.clone()], ..state };
    let allowed = [PathBuf::from(std::ffi::OsStr::from_bytes(&own))];
    let mut placing = Placing::begin(&state, &allowed, false, &Mounts::read().unwrap()).unwrap();
    fs::remove_file(folders.to(".holdfast-arriving/file")).unwrap();
    let fifo = folders.to(".holdfast-arriving/file");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    assert!(placing.fill(0, 0, b"x").is_err());
    drop(placing);
    assert_eq!(names(&folders.to("")), ["x"]);
}

#[test]
fn of_what_is_appended_to_all_is_compared_while_the_server_runs() {
    let folders = Folders::new("append");
    fs::write(folders.from("log"), vec![1; 1 << 20]).unwrap();
    let log = OpenOptions::new().append(true).open(folders.from("log")).unwrap();
    let mut collected = folders.collect();
    assert_eq!(round(&mut collected), 1 << 20);
    // The beginning was changed by a process that has closed the file again.
    let elsewhere = OpenOptions::new().write(true).open(folders.from("log")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&elsewhere, b"other", 0).unwrap();
    drop(elsewhere);
    (&log).write_all(b"more").unwrap();
    assert_eq!(round(&mut collected), (1 << 20) + 4, "all of it");
    // The file ended with a hole, was truncated there, and is longer again.
    log.set_len((1 << 20) + (1 << 16)).unwrap();
    round(&mut collected);
    log.set_len((1 << 20) + 4).unwrap();
    (&log).write_all(&[7; 1 << 17]).unwrap();
    let id = (log.metadata().unwrap().dev(), log.metadata().unwrap().ino());
    let state = freeze(&mut collected, &Writing::from([(id, true)])).unwrap();
    folders.place(&collected, &state, false).unwrap();
    assert!(fs::read(folders.from("log")).unwrap() == fs::read(folders.to("log")).unwrap());
}

/// A list of rights (acl(5)) that names user 7, as the kernel has it.
fn list_of_rights() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 6, 7), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
    let entry = |(tag, may, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
}

/// Needs root.
#[test]
fn extended_attributes_go_over_and_what_cannot_is_refused_by_name() {
    let folders = Folders::new("attributes");
    let with = |name: &str, value: &[u8]| {
        vec![Attribute { name: name.as_bytes().to_vec(), value: value.to_vec() }]
    };
    let set = |path: PathBuf, all: &[Attribute]| attributes::set(&path, all).unwrap();
    fs::create_dir(folders.from("folder")).unwrap();
    for name in ["file", "folder/plain", "shared"] {
        fs::write(folders.from(name), "x").unwrap();
    }
    symlink("file", folders.from("link")).unwrap();
    let mut of_file = with("user.DOSATTRIB", b"0x20\0\x03");
    of_file.extend(with("user.empty", b""));
    set(folders.from("file"), &of_file);
    set(folders.from("folder"), &with("security.NTACL", &[7; 900]));
    set(folders.from("link"), &with("trusted.of_link", b"not the file's"));
    set(folders.from("shared"), &with("system.posix_acl_access", &list_of_rights()));
    fs::set_permissions(folders.from("shared"), PermissionsExt::from_mode(0o660)).unwrap();
    // What is made in this folder inherits a list of rights.
    set(folders.to(""), &with("system.posix_acl_default", &list_of_rights()));
    let mut collected = folders.collect();
    round(&mut collected);
    // Nothing but the attribute changes.
    of_file[0].value[0] = b'1';
    set(folders.from("file"), &of_file);
    let state = freeze(&mut collected, &Writing::new()).unwrap();
    folders.place(&collected, &state, false).unwrap();
    assert_eq!(attributes::of(&folders.to("file")).unwrap(), of_file);
    for name in ["file", "folder", "folder/plain", "link", "shared"] {
        let [from, to] = [folders.from(name), folders.to(name)];
        assert_eq!(attributes::of(&from).unwrap(), attributes::of(&to).unwrap(), "{name}");
        let [from, to] = [from, to].map(|it| it.symlink_metadata().unwrap().mode());
        assert_eq!(from, to, "{name}");
    }
    let refused = |words: &str| {
        let refused = freeze(&mut folders.collect(), &Writing::new()).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    };
    let rights = [&0x0200_0000u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0; 12]].concat();
    set(folders.from("folder/plain"), &with("security.capability", &rights));
    refused("from/folder/plain has an extended attribute that cannot go over: security.capability");
    attributes::set(&folders.from("folder/plain"), &[]).unwrap();
    freeze(&mut folders.collect(), &Writing::new()).unwrap();
}
