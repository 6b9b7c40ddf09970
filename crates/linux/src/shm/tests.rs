use super::*;
use holdfast_wire::shm::{CONNS_MAX, conn_state};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use zerocopy::FromBytes;

fn settings() -> Settings {
    let (hash_key, ports) = ([1; 8], vec![80]);
    let (name, mode) = (String::new(), mode::RECORD);
    Settings { ring_bytes: 1 << 20, hash_key, ports, options: 0, mode, name }
}

fn memory() -> SharedMemory {
    SharedMemory::create(&settings()).expect("memory")
}

#[test]
fn only_memory_that_a_daemon_would_have_made_is_adopted() {
    let made = memory();
    let again = |settings: &Settings| {
        let fd = made.fd().try_clone_to_owned().expect("a descriptor");
        SharedMemory::adopt(fd, settings).map_err(|error| error.to_string())
    };
    append(&made, b"said before");
    let adopted = again(&settings()).expect("its own");
    assert_eq!((adopted.tail(), adopted.mode()), (made.tail(), mode::RECORD));
    // The key in the key file may have changed since.
    let adopted = again(&Settings { hash_key: [2; 8], ..settings() }).expect("its own");
    assert_eq!(adopted.hash_key(), [1; 8]);
    for other in [
        Settings { ports: vec![81], ..settings() },
        Settings { ports: vec![80, 81], ..settings() },
        Settings { options: 1, ..settings() },
        Settings { ring_bytes: 1 << 21, ..settings() },
    ] {
        assert!(again(&other).is_err(), "{other:?}");
    }
    // Shortening the memory could kill its reader.
    // SAFETY: the kernel reads a C string; the descriptor is nobody else's.
    let open =
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    let file = std::fs::File::from(open.try_clone().expect("a descriptor"));
    file.set_len((RING_OFFSET + (1 << 20)) as u64).expect("a size");
    let refused = SharedMemory::adopt(open, &settings()).err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("its memory is not sealed"));
}

fn append(memory: &SharedMemory, payload: &[u8]) -> u64 {
    assert!(memory.append(&Record::default(), &[payload]));
    memory.tail()
}

fn payload_len(memory: &SharedMemory, position: u64) -> u32 {
    Record::read_from_prefix(&memory.copy(position, HEADER_LEN)).expect("a record").0.payload_len
}

#[test]
fn taking_an_open_record_ends_it() {
    let memory = memory();
    let start = append(&memory, b"before");
    let end = append(&memory, &[7; 24]);
    let h = memory.header();
    h.open_at.0.store(start, Relaxed);
    h.tail.0.store((end + 16) | OPEN, Release);
    assert_eq!((memory.tail(), memory.take_tail(end)), (end + 16, Some(end + 16)));
    assert_eq!(h.tail.0.load(Relaxed) & OPEN, 0);
    assert_eq!(payload_len(&memory, start), 24 + 16);
    assert_eq!(memory.take_tail(0), Some(end + 16));
}

#[test]
fn a_nonsensical_open_record_is_left_alone() {
    for (open_at, tail) in [(u64::MAX, 40), (1 << 40, 40), (0, 8)] {
        let memory = memory();
        let end = append(&memory, b"whole");
        memory.header().open_at.0.store(open_at, Relaxed);
        memory.header().tail.0.store(tail | OPEN, Release);
        assert_eq!(memory.take_tail(0), Some(tail));
        memory.header().tail.0.store(end, Release);
        assert_eq!(payload_len(&memory, 0), 5);
    }
}

#[test]
fn nobody_can_shorten_the_memory() {
    let memory = memory();
    for bytes in [0, 1, 1 << 30] {
        // SAFETY: a plain system call on our descriptor.
        assert_eq!(unsafe { libc::ftruncate(memory.fd().as_raw_fd(), bytes) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    }
    assert_eq!(memory.tail(), 0);
}

#[test]
fn a_log_that_shrinks_or_leaps_is_refused() {
    let memory = memory();
    let end = append(&memory, b"whole");
    assert_eq!(memory.take_tail(end), Some(end));
    assert_eq!(memory.take_tail(end + 8), None);
    memory.header().tail.0.store(!7, Release);
    assert_eq!(memory.take_tail(end), None);
    assert!(!memory.append(&Record::default(), &[b"more"]));
}

#[test]
fn who_speaks_alone_already_goes_on_and_can_be_joined() {
    let memory = memory();
    for _ in 0..2 {
        memory.go_solo();
        assert_eq!(memory.mode(), mode::SOLO);
    }
    assert!(memory.begin_log().is_some());
    memory.go_solo();
    assert!(memory.begin_log().is_some(), "and again");
    memory.set_mode(mode::LIVE);
    memory.go_solo();
    assert_eq!(memory.mode(), mode::LIVE, "its shim is about to say so itself");
    memory.set_mode(mode::BROKEN);
    memory.go_solo();
    assert_eq!((memory.mode(), memory.begin_log()), (mode::OFF, None));
}

/// The tail is the server's to write.
#[test]
fn no_log_begins_at_a_position_that_cannot_be() {
    for (tail, begins) in [(64, true), (60, false), (POSITION_MAX, false), (u64::MAX - 63, false)] {
        let memory = memory();
        memory.go_solo();
        memory.header().tail.0.store(tail, SeqCst);
        assert_eq!(memory.begin_log(), begins.then_some(tail), "{tail}");
    }
}

/// The replica may park before the log's end is announced to those who wait.
#[test]
fn the_logs_end_takes_nothing_back() {
    let memory = memory();
    for (before, after) in [
        (mode::REPLAY, mode::DRAIN),
        (mode::PARKED, mode::PARKED),
        (mode::DIVERGED, mode::DIVERGED),
    ] {
        memory.set_mode(before);
        memory.end_log();
        assert_eq!(memory.mode(), after);
    }
}

/// Writes random words over everything that the server can write.
fn scribble(memory: &SharedMemory, seed: u64) {
    let mut state = seed | 1;
    let words = (RING_OFFSET + memory.ring_bytes) / 8;
    for at in 0..words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Small numbers and extreme values are those that break bounds.
        let word = match state % 5 {
            0 => state % 64,
            1 => u64::MAX - state % 64,
            _ => state,
        };
        // SAFETY: inside the mapping, which only this test uses.
        unsafe { memory.base.cast::<u64>().add(at).write_volatile(word) };
    }
}

#[test]
fn noise_in_the_memory_is_read_without_harm() {
    for seed in 1..40u64 {
        let memory = memory();
        scribble(&memory, seed);
        let tail = memory.tail();
        for position in [0, seed, tail, tail.wrapping_sub(seed), u64::MAX - 3] {
            assert!(memory.copy(position, usize::MAX).len() <= memory.ring_bytes);
            let _ = memory.take_tail(position);
        }
        assert!(memory.unconsumed() <= memory.ring_bytes());
        assert!(memory.listeners().len() <= 16);
        assert!(!memory.reason().contains(char::is_control));
        let _ = (memory.append(&Record::default(), &[&[7; 100]]), memory.mode());
        let _ = (memory.is_attached(), memory.may_sleep(tail), memory.forks());
        memory.end_log();
        memory.wake_shim();
        memory.park();
        let _ = memory.begin_log();
        memory.unpark();
        memory.go_solo();
    }
}

#[test]
fn only_places_that_somebody_has_written_to_are_looked_at() {
    let memory = memory();
    assert_eq!((memory.sockets(), memory.moved()), (BTreeSet::new(), Some(0)));
    let kept = |memory: &SharedMemory| {
        let metadata = std::fs::File::from(memory.fd().try_clone_to_owned().expect("a copy"));
        metadata.metadata().expect("its size").blocks()
    };
    let before = kept(&memory);
    for (accept, socket) in [(1, 11), (5_000, 12), (CONNS_MAX as u32 - 1, 13)] {
        let entry = memory.entry(accept);
        entry.conn.store(accept, Relaxed);
        entry.socket.store(socket, Relaxed);
        entry.state.store(conn_state::OPEN, Release);
    }
    assert_eq!(memory.sockets(), BTreeSet::from([11, 12, 13]));
    assert_eq!(memory.moved(), Some(1 + 5_000 + CONNS_MAX as u64 - 1));
    assert!(kept(&memory) - before <= 3 * 8, "three pages of 4 KiB, in blocks of 512 bytes");
}
