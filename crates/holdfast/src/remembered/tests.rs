use super::store::{PENDING_MAX, old_of};
use super::*;
use crate::admin::Event;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let own = format!("holdfast-events-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        file_of(&self.0, "g", "a")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn line(life: &str, number: u64) -> Vec<u8> {
    let event = Event { number, what: "state".to_owned(), ..Event::default() };
    let one = Remembered { life: life.to_owned(), event };
    let mut line = serde_json::to_vec(&one).unwrap();
    line.push(b'\n');
    line
}

fn numbers(path: &Path) -> Vec<u64> {
    read(path).unwrap().events.iter().map(|one| one.event.number).collect()
}

fn write(store: &mut Store) -> io::Result<()> {
    store.write(Instant::now(), Duration::ZERO)
}

#[test]
fn two_files_take_turns_and_never_take_more_than_they_may() {
    let folder = Folder::new("turns");
    let (path, bytes_max) = (folder.file(), 4096);
    let mut store = Store::new(path.clone(), bytes_max);
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |it| it.len());
    for number in 1..=500 {
        store.take(line("l", number));
        write(&mut store).unwrap();
        assert!(length(&path) + length(&old_of(&path)) <= bytes_max);
    }
    let kept = numbers(&path);
    assert_eq!(kept.last(), Some(&500));
    assert!(kept.len() > 15 && kept.windows(2).all(|two| two[1] == two[0] + 1), "{kept:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    // The next life goes on.
    let mut store = Store::new(path.clone(), bytes_max);
    store.take(line("m", 1));
    write(&mut store).unwrap();
    assert_eq!(numbers(&path).last(), Some(&1));
    assert!(length(&path) + length(&old_of(&path)) <= bytes_max);
}

#[test]
fn what_is_no_event_is_read_over() {
    let folder = Folder::new("torn");
    let path = folder.file();
    let mut bytes = line("l", 1);
    bytes.extend(b"{\"life\":\"l\",\"number\":");
    std::fs::write(&path, &bytes).unwrap();
    let found = read(&path).unwrap();
    assert_eq!((found.events.len(), found.unread), (1, 1), "a torn last line");
    // What follows it is whole.
    let mut store = Store::new(path.clone(), 4096);
    store.take(line("m", 1));
    write(&mut store).unwrap();
    assert_eq!(numbers(&path), [1, 1]);
    // Somebody else's file.
    let mut foreign = vec![0_u8, 159, 146, 150, b'\n', b'[', b'\n', b'\n'];
    foreign.extend(vec![b'['; 200_000]);
    foreign.push(b'\n');
    foreign.extend(line("l", 7));
    foreign.extend(vec![b'x'; 100_000]);
    std::fs::write(&path, &foreign).unwrap();
    let found = read(&path).unwrap();
    assert_eq!((found.events.len(), found.unread), (1, 4));
    assert_eq!(found.events[0].event.number, 7);
}

#[test]
fn the_end_of_a_huge_file_is_read() {
    let folder = Folder::new("huge");
    let path = folder.file();
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    drop(file);
    let mut bytes = b"\n".to_vec();
    bytes.extend(line("l", 9));
    io::Write::write_all(&mut OpenOptions::new().append(true).open(&path).unwrap(), &bytes)
        .unwrap();
    assert_eq!(numbers(&path), [9]);
}

#[test]
fn what_leads_elsewhere_is_neither_read_nor_written() {
    let folder = Folder::new("links");
    let (path, other) = (folder.file(), folder.0.join("other"));
    std::fs::write(&other, "precious").unwrap();
    let refused = |what: &str| {
        let mut store = Store::new(path.clone(), 4096);
        store.take(line("l", 1));
        assert!(write(&mut store).is_err(), "{what}");
        assert!(read(&path).is_err(), "{what}");
        std::fs::remove_file(&path).unwrap();
    };
    std::os::unix::fs::symlink(&other, &path).unwrap();
    refused("a symbolic link");
    std::fs::hard_link(&other, &path).unwrap();
    refused("a hard link");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    refused("a pipe");
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
}

#[test]
fn a_file_that_was_removed_is_made_again() {
    let folder = Folder::new("removed");
    let path = folder.file();
    let mut store = Store::new(path.clone(), 4096);
    store.take(line("l", 1));
    write(&mut store).unwrap();
    std::fs::remove_file(&path).unwrap();
    store.take(line("l", 2));
    write(&mut store).unwrap();
    assert_eq!(numbers(&path), [2]);
}

/// Whether the disk of the next test is full.
static IS_FULL: AtomicBool = AtomicBool::new(true);

fn open_on_full_disk(path: &Path) -> io::Result<File> {
    let path = if IS_FULL.load(Ordering::SeqCst) { Path::new("/dev/full") } else { path };
    OpenOptions::new().append(true).create(true).open(path)
}

#[test]
fn a_full_disk_is_told_once_and_tried_again() {
    let folder = Folder::new("full");
    let path = folder.file();
    let (tell, told) = channel();
    let store = Store::with(path.clone(), 1 << 20, open_on_full_disk);
    let keeper = Keeper::start_with(store, tell).unwrap();
    // What comes before the first failure waits; only then there is a limit to it.
    keeper.keep(line("l", 1));
    let report = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(report.level == Level::Warn && report.detail.contains("No space left"), "{report:?}");
    let begun = Instant::now();
    for number in 2..=3 * PENDING_MAX as u64 {
        keeper.keep(line("l", number));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "nobody waits for a disk");
    std::thread::sleep(2 * RETRY);
    IS_FULL.store(false, Ordering::SeqCst);
    let rest: Vec<Report> = std::iter::from_fn(|| told.recv_timeout(3 * RETRY).ok()).collect();
    let again = rest.iter().filter(|it| it.detail.starts_with("are kept")).count();
    let failed = rest.iter().filter(|it| it.detail.starts_with("cannot be kept")).count();
    assert_eq!((again, failed), (1, 0), "{rest:?}");
    let lost = |it: &&Report| it.detail.ends_with(&format!("were not kept in {}", path.display()));
    assert!(rest.iter().any(|it| lost(&it)), "{rest:?}");
    let kept = numbers(&path);
    assert_eq!(kept.last(), Some(&(3 * PENDING_MAX as u64)), "the newest are there");
    assert!(kept.len() >= PENDING_MAX);
}

#[test]
fn a_folder_that_cannot_be_written_ends_nothing() {
    let (tell, told) = channel();
    let path = file_of(Path::new("/proc/holdfast"), "g", "a");
    let keeper = Keeper::start(path, 1 << 20, tell).unwrap();
    keeper.keep(line("l", 1));
    let report = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(report.detail.contains("cannot be kept in /proc/holdfast/g.a.events"), "{report:?}");
    let begun = Instant::now();
    drop(keeper);
    assert!(begun.elapsed() < Duration::from_secs(2), "the end waits for no disk");
}

#[test]
fn the_last_words_are_kept() {
    let folder = Folder::new("last");
    let (tell, told) = channel();
    let keeper = Keeper::start(folder.file(), 1 << 20, tell).unwrap();
    (1..=100).for_each(|number| keeper.keep(line("l", number)));
    drop(keeper);
    assert_eq!(numbers(&folder.file()).len(), 100);
    assert!(told.try_recv().is_err());
}
