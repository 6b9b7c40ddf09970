use super::Range;
use crate::base::state::Mode;
use crate::testing::attach;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

const BYTES: usize = 700_000;

/// A file of [`BYTES`] bytes, which is removed in the end.
struct Document(PathBuf);

impl Document {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("holdfast-parts-{}-{name}", std::process::id()));
        let content: Vec<u8> = (0..BYTES).map(|at| (at * 7 / 3) as u8).collect();
        std::fs::write(&path, content).expect("a file");
        Self(path)
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.0).expect("it is there")
    }

    /// A descriptor whose file's bytes cannot be read by it.
    fn unreadable(&self) -> File {
        OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&self.0).expect("it is there")
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn hash(file: &File, from: i64, len: usize) -> Option<u64> {
    let range = Range::of(file.as_raw_fd(), from, len).expect("a range");
    range.hash(range.file_bytes())
}

#[test]
fn equal_ranges_of_equal_files_have_one_hash() {
    let _attached = attach(Mode::Record);
    let [one, other] = ["one", "other"].map(Document::new);
    let (one, other) = (one.open(), other.open());
    for (from, len) in [(0, BYTES), (0, 1), (262_143, 2), (300_000, 100_000), (BYTES as i64 - 1, 1)]
    {
        assert!(hash(&one, from, len).is_some());
        assert_eq!(hash(&one, from, len), hash(&other, from, len), "{from} {len}");
    }
    assert_ne!(hash(&one, 0, 1000), hash(&one, 1, 1000));
    assert_ne!(hash(&one, 0, 1000), hash(&one, 0, 1001));
    // Another byte anywhere in a part that the range touches, and nowhere else.
    other.write_all_at(b"!", 200_000).expect("a byte");
    assert_ne!(hash(&one, 0, 1000), hash(&other, 0, 1000));
    assert_eq!(hash(&one, 300_000, 1000), hash(&other, 300_000, 1000));
}

#[test]
fn what_one_member_has_appended_already_makes_no_difference() {
    let _attached = attach(Mode::Record);
    let [one, other] = ["short", "longer"].map(Document::new);
    let (one, other) = (one.open(), other.open());
    other.write_all_at(b"and more", BYTES as u64).expect("more");
    let longer = Range::of(other.as_raw_fd(), 600_000, 1000).expect("a range");
    assert_eq!(longer.hash(BYTES as u64), hash(&one, 600_000, 1000));
    assert_ne!(longer.hash(longer.file_bytes()), hash(&one, 600_000, 1000));
    // A file that is shorter than the other member's has no such part.
    let shorter = Range::of(one.as_raw_fd(), 600_000, 1000).expect("a range");
    assert_eq!(shorter.hash(longer.file_bytes()), None);
}

#[test]
fn a_file_is_read_once_and_again_after_each_change() {
    let _attached = attach(Mode::Record);
    let document = Document::new("once");
    let (file, unreadable) = (document.open(), document.unreadable());
    let first = hash(&file, 0, BYTES);
    assert_eq!(hash(&unreadable, 0, BYTES), None, "it may change again unnoticed");
    let is_settled = || Range::of(file.as_raw_fd(), 0, 1).expect("a range").is_settled();
    assert!(!is_settled());
    while !is_settled() {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(hash(&file, 0, BYTES), first);
    assert_eq!(hash(&unreadable, 0, BYTES), first, "known without a look at it");
    file.write_all_at(b"!", 100).expect("a byte");
    assert_eq!(hash(&unreadable, 0, BYTES), None);
    assert_ne!(hash(&file, 0, BYTES), first);
}

#[test]
fn what_is_no_regular_file_or_has_nothing_there_has_no_parts() {
    let document = Document::new("edges");
    let file = document.open();
    let of = |from, len| Range::of(file.as_raw_fd(), from, len);
    assert!(of(BYTES as i64, 1).is_none() && of(-1, 1).is_none() && of(i64::MAX, 1).is_none());
    assert!(of(i64::MIN, usize::MAX).is_none() && of(0, 0).is_none());
    assert_eq!(of(BYTES as i64 - 5, usize::MAX).map(|range| range.len()), Some(5));
    let zero = File::open("/dev/zero").expect("every system has it");
    assert!(Range::of(zero.as_raw_fd(), 0, 1).is_none());
    assert!(Range::of(-1, 0, 1).is_none());
}

#[test]
fn a_range_is_copied_to_where_it_is_asked() {
    let document = Document::new("copied");
    let file = document.open();
    let range = Range::of(file.as_raw_fd(), 100, 200_000).expect("a range");
    let mut bytes = vec![0; 1000];
    range.fill(150_000, bytes.as_mut_ptr(), bytes.len());
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == ((at + 150_100) * 7 / 3) as u8));
}
