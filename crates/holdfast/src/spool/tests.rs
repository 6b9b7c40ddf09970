use super::*;
use holdfast_wire::log::Op;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("holdfast-spool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).stderr(std::process::Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn settings(dir: &Path, bytes_max: u64) -> Settings {
    Settings { dir: dir.to_owned(), bytes_max, sync: Sync::None }
}

fn header(number: u64) -> Header {
    Header { op: Op::Read as u8, conn: 7, hash: number, ..Header::default() }
}

/// Payload of a record; every length occurs.
fn payload(number: u64) -> Vec<u8> {
    let len = number * 977 % 70_000;
    (0..len).map(|at| (at + number) as u8).collect()
}

fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the next record; returns the number in its header, and its payload.
fn next(reading: &mut Reading) -> Result<Option<(u64, Vec<u8>)>, String> {
    let begun = Instant::now();
    loop {
        if let Some((header, payload)) = reading.record()? {
            let found = (header.hash, payload.to_vec());
            reading.advance(found.1.len());
            return Ok(Some(found));
        }
        if reading.is_over() {
            return Ok(None);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_kept_is_read_as_it_came() {
    let folder = Folder::new("round");
    let mut spool = Spool::begin(settings(&folder.0.join("made"), 1 << 30)).expect("a thread");
    let image: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    for (number, piece) in image.chunks(256 << 10).enumerate() {
        spool.take_image(piece.to_vec());
        // Log arrives meanwhile.
        let payload = payload(number as u64);
        let (one, other) = payload.split_at(payload.len() / 2);
        assert!(spool.take_record(&header(number as u64), &[one, other]));
    }
    let pieces = image.chunks(256 << 10).count() as u64;
    for number in pieces..500 {
        assert!(spool.take_record(&header(number), &[&payload(number)]));
    }
    wait("all of the image is written", || spool.image_written() == image.len() as u64);
    assert_eq!(spool.trouble(Instant::now()), None);
    let log_bytes = spool.log_bytes();
    let lens = (0..500).map(|number| record_len(payload(number).len()) as u64);
    assert_eq!((spool.image_bytes(), log_bytes), (image.len() as u64, lens.sum()));
    let mut reading = spool.read(0, None).expect("a thread");
    let mut read = Vec::new();
    reading.image().expect("the image").read_to_end(&mut read).expect("all of it");
    assert!(read == image);
    for number in 0..500 {
        assert_eq!(next(&mut reading), Ok(Some((number, payload(number)))), "record {number}");
    }
    assert_eq!(next(&mut reading), Ok(None));
    assert_eq!(
        (reading.log_left(), reading.done()),
        (0, (3_000_000 + log_bytes, 3_000_000 + log_bytes))
    );
    let left = std::fs::read_dir(folder.0.join("made")).expect("a folder").count();
    assert_eq!(left, 0, "its files have no names");
}

#[test]
fn a_spool_without_log_is_over_at_once() {
    let folder = Folder::new("none");
    let mut spool = Spool::begin(settings(&folder.0, 1 << 20)).expect("a thread");
    spool.take_image(vec![1, 2, 3]);
    let mut reading = spool.read(0, None).expect("a thread");
    let mut read = Vec::new();
    reading.image().expect("the image").read_to_end(&mut read).expect("all of it");
    assert_eq!((read, next(&mut reading)), (vec![1, 2, 3], Ok(None)));
}

#[test]
fn it_keeps_no_more_than_it_may() {
    let folder = Folder::new("bound");
    let mut spool = Spool::begin(settings(&folder.0, 1 << 20)).expect("a thread");
    assert!(spool.has_room_for((1 << 20) + 1, 0).is_err_and(|why| why.contains("spool_max_mb")));
    assert_eq!(spool.has_room_for(1 << 20, u64::MAX), Ok(()));
    spool.take_image(vec![0; 600 << 10]);
    assert_eq!(spool.trouble(Instant::now()), None);
    assert!(spool.take_record(&header(0), &[&vec![0; 500 << 10]]));
    let why = spool.trouble(Instant::now()).expect("trouble");
    assert!(why.ends_with("is full: spool_max_mb = 1"), "{why}");
}

#[test]
fn a_full_disk_is_told() {
    let folder = Folder::new("disk");
    let mount = ["-t", "tmpfs", "-o", "size=1m", "disk"];
    let mounted = Command::new("mount").args(mount).arg(&folder.0).status().expect("mount runs");
    assert!(mounted.success(), "run the tests as root");
    let mut spool = Spool::begin(settings(&folder.0, 1 << 30)).expect("a thread");
    assert_eq!(spool.has_room_for(1 << 20, 0), Ok(()));
    for (image, log) in [((1 << 20) + 1, 0), (1 << 20, 1)] {
        let why = spool.has_room_for(image, log).expect_err("no room");
        assert!(
            why.ends_with(
                "needs 2 MB for the server's image and its log, and its file system has 1 MB free"
            ),
            "{why}"
        );
    }
    for _ in 0..8 {
        spool.take_image(vec![0; 256 << 10]);
    }
    wait("trouble", || spool.trouble(Instant::now()).is_some());
    let why = spool.trouble(Instant::now()).expect("trouble");
    assert!(why.contains("No space left on device"), "{why}");
    // A takeover at this moment gets it, too.
    let mut reading = spool.read(0, None).expect("a thread");
    let read = reading.image().expect("the image").read_to_end(&mut Vec::new());
    assert!(read.is_err_and(|error| error.to_string().contains("No space left")));
}

/// Who waits for a server does not wait for the disk as well.
#[test]
fn the_logs_end_needs_no_disk() {
    let folder = Folder::new("end");
    let mount = ["-t", "tmpfs", "-o", "size=1m", "disk"];
    let mounted = Command::new("mount").args(mount).arg(&folder.0).status().expect("mount runs");
    assert!(mounted.success(), "run the tests as root");
    let mut spool = Spool::begin(settings(&folder.0, 1 << 30)).expect("a thread");
    let take = |spool: &mut Spool, numbers: std::ops::Range<u64>| {
        for number in numbers {
            assert!(spool.take_record(&header(number), &[&payload(number)]));
        }
    };
    spool.take_image(vec![0; 100 << 10]);
    take(&mut spool, 0..20);
    let all: u64 = (0..20).map(|number| payload(number).len() as u64).sum();
    assert!(all < CHUNK_BYTES as u64, "none of it was handed on");
    wait("the image is written", || spool.image_written() == 100 << 10);
    let filled = std::fs::write(folder.0.join("full"), vec![0; 2 << 20]);
    assert!(filled.is_err(), "the disk is full");
    let mut reading = spool.read(0, None).expect("a thread");
    let mut read = Vec::new();
    reading.image().expect("the image").read_to_end(&mut read).expect("all of it");
    for number in 0..20 {
        assert_eq!(next(&mut reading), Ok(Some((number, payload(number)))), "record {number}");
    }
    assert_eq!(next(&mut reading), Ok(None));
}

/// What waits for a disk when somebody begins to read stays in memory, in its order.
#[test]
fn what_waits_for_the_disk_is_read_from_memory() {
    let shared = std::sync::Arc::new(Shared::default());
    shared.close();
    let folder = Folder::new("waits");
    let (to, chunks) = channel();
    to.send(Chunk::Image(vec![1])).expect("it is there");
    to.send(Chunk::Records(vec![2])).expect("it is there");
    to.send(Chunk::Records(vec![3])).expect("it is there");
    drop(to);
    let writer = writer::begin(settings(&folder.0, 1 << 20), chunks, shared).expect("a thread");
    let files = writer.join().expect("no panic").expect("room");
    let image: Vec<_> = files.image.chunks().collect();
    assert_eq!((image, files.log.chunks().count()), (vec![Ok(vec![1])], 0));
    assert_eq!(files.unwritten, [vec![2], vec![3]]);
}

#[test]
fn a_folder_that_cannot_be_is_told() {
    let mut spool = Spool::begin(settings(Path::new("/proc/none"), 1 << 20)).expect("a thread");
    wait("trouble", || spool.trouble(Instant::now()).is_some());
    let why = spool.trouble(Instant::now()).expect("trouble");
    assert!(why.starts_with("the spool in /proc/none: "), "{why}");
}

/// A disk that is slow for a while is waited for, and one that does not answer is not.
#[test]
fn a_disk_that_takes_nothing_is_told() {
    let folder = Folder::new("stuck");
    let mut spool = Spool::begin(settings(&folder.0, 1 << 40)).expect("a thread");
    // This is as if a chunk waited for ever.
    spool.shared.waits(1);
    let now = Instant::now();
    assert_eq!(spool.trouble(now), None);
    assert_eq!(spool.trouble(now + STUCK_MAX), None);
    let why = spool.trouble(now + STUCK_MAX + Duration::from_millis(1)).expect("trouble");
    assert!(why.ends_with("does not answer"), "{why}");
    spool.shared.waits(QUEUE_BYTES_MAX);
    assert!(!spool.take_record(&header(0), &[b"x"]) && !spool.has_room());
    assert_eq!(spool.trouble(now), None);
    let why = spool.trouble(now + FULL_MAX + Duration::from_millis(1)).expect("trouble");
    assert!(why.ends_with("is slower than the log"), "{why}");
}

fn three(folder: &Folder) -> sealed::Sealed {
    let mut file = sealed::Sealed::make(&folder.0).expect("a file");
    for chunk in [b"one".to_vec(), b"another".to_vec(), b"third".to_vec()] {
        file.add(chunk, true).expect("room");
    }
    file
}

#[test]
fn what_was_changed_on_the_disk_is_refused() {
    let folder = Folder::new("sealed");
    let changed = |at: u64| {
        let file = three(&folder);
        let mut byte = [0];
        file.file().read_exact_at(&mut byte, at).expect("a byte");
        file.file().write_all_at(&[byte[0] ^ 1], at).expect("room");
        file.chunks().map(|chunk| chunk.is_ok()).collect::<Vec<_>>()
    };
    let len = 3 + SEAL_BYTES as u64;
    assert_eq!(changed(0), [false, true, true]);
    assert_eq!(changed(len - 1), [false, true, true], "its seal");
    assert_eq!(changed(len), [true, false, true]);
    let bytes = |file: &sealed::Sealed| {
        let mut bytes = vec![0; file.file().metadata().expect("a file").len() as usize];
        file.file().read_exact_at(&mut bytes, 0).expect("all");
        bytes
    };
    let (one, other) = (three(&folder), three(&folder));
    assert!(!bytes(&one).windows(3).any(|part| part == b"one"), "it is noise");
    one.file().write_all_at(&bytes(&other), 0).expect("room");
    let foreign: Vec<_> = one.chunks().collect();
    let refused = || Err("it is not what was written".to_owned());
    assert_eq!(foreign, [refused(), refused(), refused()], "another spool's");
}

#[test]
fn what_was_cut_off_is_refused() {
    let folder = Folder::new("cut");
    let file = three(&folder);
    file.file().set_len(30).expect("a shorter file");
    let read: Vec<_> = file.chunks().collect();
    let cut = || Err("it was cut off".to_owned());
    assert_eq!(read, [Ok(b"one".to_vec()), cut(), cut()]);
}
