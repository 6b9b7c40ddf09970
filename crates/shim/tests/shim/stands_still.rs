//! A server is stopped at a moment at which it could be copied: soon, under load,
//! and without its clients noticing. What each thread does then in a copy is tried. And a
//! server that speaks alone keeps its books, so that a
//! log may begin at such a moment.

use crate::harness::copy::{copy_of, image_of, promote_copy};
use crate::harness::count::{Counts, Killed, counting};
use crate::harness::freeze::{Frozen, Still, freeze, freeze_while, told};
use crate::harness::{
    StopAtEnd, ask_at, compiled, eventually, headers, record, scratch, start, wait_for,
};
use holdfast_linux::spawn::Server;
use holdfast_wire::log::{NO_CONN, Op};
use holdfast_wire::quiet::{Resume, state};
use holdfast_wire::shm::{ConnEntry, conn_state, mode};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const PORT: u16 = 16_500;
/// Threads of `waits.c` besides the main one, and of one that is copied.
const WAITING: usize = 22;
const COPIED: usize = 20;

/// `waits.c`, alone, with a thread in each way to wait, so many; its program and folder.
fn started(port: u16, name: &str, count: usize) -> Option<(Killed, PathBuf, PathBuf)> {
    let program = compiled("waits.c")?;
    let (dir, port_text) = (scratch(name), port.to_string());
    let argv = [program.to_str().expect("a path"), &port_text, "copied"];
    let argv = if count == COPIED { &argv } else { &argv[..2] };
    let server = Killed(start(argv, port, 0, mode::SOLO, &dir));
    wait_for(port);
    all_wait(&server.0, count);
    Some((server, program, dir))
}

fn waiting(port: u16, name: &str, run: impl FnOnce(&Server)) {
    let Some((server, program, dir)) = started(port, name, WAITING) else { return };
    run(&server.0);
    let _ = std::fs::remove_file(program);
    let _ = std::fs::remove_dir_all(dir);
}

fn all_wait(server: &Server, count: usize) {
    let waits = |s| matches!(s, state::SLEEPS | state::TIMED | state::WAITS);
    let waiting = || told(server).list().iter().filter(|it| waits(it.state)).count();
    eventually("all threads wait", || waiting() == count + 1);
}

/// Every thread waits where it was, and goes on in a copy as its name says.
fn assert_all_wait(frozen: &Frozen<'_>) {
    for Still { name, is_parked, how, .. } in &frozen.threads {
        let right = match &name[..2] {
            _ if *is_parked => continue,
            "A-" => Resume::AsIs,
            "T-" => Resume::TimeOut,
            _ => Resume::StartOver,
        };
        assert_eq!(*how, right, "{name}");
    }
    let named = frozen.threads.iter().filter(|it| it.name.as_bytes()[1] == b'-').count();
    assert_eq!((named, frozen.threads.len()), (WAITING, WAITING + 1));
}

/// A write whose log has begun while it stood has its intent in it all the same.
fn assert_intents(log: &[u8]) {
    let (mut intents, mut writes) = (BTreeMap::new(), 0);
    for (_, header) in headers(log) {
        match Op::from_u8(header.op) {
            Some(Op::Intent) => *intents.entry(header.fd).or_insert(0) += 1,
            Some(Op::Written) => {
                writes += 1;
                *intents.entry(header.fd).or_insert(0) -= 1;
                assert_eq!(intents[&header.fd], 0, "a write without an intent");
            }
            _ => {}
        }
    }
    assert!(writes > 5, "only {writes} writes");
}

#[test]
fn every_way_to_wait_can_be_copied_and_goes_on() {
    waiting(PORT, "quiet", |server| {
        for begins in [false, true] {
            all_wait(server, WAITING);
            let (frozen, _) = freeze(server);
            assert_all_wait(&frozen);
            if begins {
                assert_eq!(server.memory.begin_log(), Some(0));
            }
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let going = s.spawn(|| {
                let _stop = StopAtEnd(&stop);
                assert_eq!(ask_at(PORT, "go\n"), "21 back, 0 wrong\n");
            });
            assert_intents(&record(server, &stop));
            assert!(going.join().is_ok());
        });
    });
}

#[test]
fn the_memory_of_a_server_can_be_watched() {
    waiting(PORT + 6, "told", |server| {
        let fd = server.memory.header().userfault.load(SeqCst);
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", server.pid()));
        assert!(fd == 0 || link.is_ok_and(|it| it.ends_with("anon_inode:[userfaultfd]")), "{fd}");
    });
}

/// A copy follows a log without a record, up to its end, and takes the server's place.
fn copy_and_promote(mut server: Killed, port: u16, dir: &Path) -> Killed {
    let image = image_of(&server.0);
    let copy = Killed(copy_of(&image, port, dir));
    eventually("all come to the log", || {
        told(&copy.0).list().iter().all(|it| !matches!(it.state, state::SLEEPS | state::TIMED))
    });
    server.0.kill();
    promote_copy(&copy.0);
    copy
}

#[test]
fn a_copy_starts_over_what_has_not_happened() {
    let Some((server, program, dir)) = started(PORT + 1, "copies", COPIED) else { return };
    let copy = copy_and_promote(server, PORT + 1, &dir);
    // Copies of the survivor, and of that one's.
    let copy = copy_and_promote(copy, PORT + 1, &dir);
    assert_eq!(ask_at(PORT + 1, "go\n"), "19 back, 0 wrong\n");
    let _copy = copy_and_promote(copy, PORT + 1, &dir);
    assert_eq!(ask_at(PORT + 1, "?\n"), "19 back, 0 wrong\n");
    let _ = std::fs::remove_file(program);
    let _ = std::fs::remove_dir_all(dir);
}

/// The books of every connection that is open: its number, and bytes in and out.
type Books = BTreeMap<u32, (u64, u64)>;

fn books(server: &Server) -> Books {
    let entries = (1..100).map(|accept| server.memory.entry(accept));
    let open = entries.filter(|it| it.state.load(SeqCst) == conn_state::OPEN);
    let book = |it: &ConnEntry| {
        (it.conn.load(SeqCst), (it.in_bytes.load(SeqCst), it.out_bytes.load(SeqCst)))
    };
    open.map(book).collect()
}

/// Like [`counting`]; in the end the server's books tell what clients have sent and
/// received.
fn booked(of: Counts, port: u16, name: &str, run: impl FnOnce(&Server, &AtomicUsize)) {
    counting(of, port, name, run, |server, counters| {
        let mut theirs: Vec<_> =
            counters.iter().map(|it| (it.sent, it.received.len() as u64)).collect();
        theirs.sort_unstable();
        eventually("the books are right", || {
            let mut ours: Vec<_> = books(server).into_values().collect();
            ours.sort_unstable();
            ours == theirs
        });
    });
}

/// How long the server takes to stand still, so many times, sorted.
fn times_to_stand_still<const TRIES: usize>(
    server: &Server,
    answers: &AtomicUsize,
) -> [Duration; TRIES] {
    let mut took = std::array::from_fn(|_| {
        let before = answers.load(SeqCst);
        let (frozen, time) = freeze(server);
        drop(frozen);
        eventually("the load goes on", || answers.load(SeqCst) > before + 8);
        time
    });
    took.sort_unstable();
    took
}

/// Nine of ten times it takes less than 5 ms. Who else wants the processors can make any of
/// them late, so one of some rounds has to show it.
fn stand_still_soon(of: Counts, port: u16, name: &str) {
    const TRIES: usize = 100;
    booked(of, port, name, |server, answers| {
        let soon = (0..20).any(|_| {
            let took = times_to_stand_still::<TRIES>(server, answers);
            let at = |percent: usize| took[TRIES * percent / 100 - 1];
            println!(
                "{name}: {} threads, {TRIES} times: median {:?}, p90 {:?}, longest {:?}",
                told(server).list().len(),
                at(50),
                at(90),
                took[TRIES - 1],
            );
            at(90) < Duration::from_millis(5)
        });
        assert!(soon, "{name} never stood still soon");
    });
}

#[test]
fn threads_stand_still_soon_under_load() {
    stand_still_soon(Counts::Memcached, PORT + 2, "memcached");
}

#[test]
fn an_event_loop_stands_still_soon_under_load() {
    stand_still_soon(Counts::Redis, PORT + 3, "redis");
}

/// Logs that begin and end under load have of each connection what its books have.
fn logs_of_books(of: Counts, port: u16, name: &str) {
    booked(of, port, name, |server, answers| {
        for _ in 0..5 {
            let (frozen, _) = freeze(server);
            let (before, from) = (books(server), server.memory.begin_log().expect("a log"));
            drop(frozen);
            let (mut log, mut at) = (Vec::new(), from);
            let mut confirm = || {
                let tail = server.memory.take_tail(at).expect("a log that grows");
                log.extend(server.memory.copy(at, (tail - at) as usize));
                server.memory.set_stable(tail);
                at = tail;
            };
            let enough = answers.load(SeqCst) + 500;
            while answers.load(SeqCst) < enough {
                confirm();
            }
            let (frozen, _) = freeze_while(server, &mut confirm);
            confirm();
            server.memory.go_solo();
            assert_eq!(books(server), with_log(before, &log));
            drop(frozen);
            let enough = answers.load(SeqCst) + 100;
            eventually("the load goes on", || answers.load(SeqCst) > enough);
        }
    });
}

fn with_log(mut books: Books, log: &[u8]) -> Books {
    for (_, header) in headers(log) {
        let bytes = header.ret.max(0) as u64;
        if (header.op, header.conn != NO_CONN) == (Op::Accept as u8, true) {
            books.insert(header.conn, (0, 0));
        }
        if let Some(book) = books.get_mut(&header.conn) {
            match Op::from_u8(header.op) {
                Some(Op::Read) => book.0 += bytes,
                Some(Op::Written) => book.1 += bytes,
                _ => {}
            }
        }
    }
    books
}

#[test]
fn logs_begin_and_end_with_true_books() {
    logs_of_books(Counts::Redis, PORT + 4, "books");
    logs_of_books(Counts::Memcached, PORT + 5, "books-of-threads");
}
