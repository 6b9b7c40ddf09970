//! A server is stopped at a moment at which it could be copied: soon, under load,
//! and without its clients noticing. What each thread does then in a copy is tried in
//! the server's own place. And a server that speaks alone keeps its books, so that a
//! log may begin at such a moment.

mod shim_harness;

use holdfast_linux::spawn::Server;
use holdfast_wire::log::{NO_CONN, Op, read_header, record_len};
use holdfast_wire::quiet::{Resume, state};
use holdfast_wire::shm::{ConnEntry, conn_state, mode};
use shim_harness::freeze::{Frozen, Still, freeze, freeze_while, told};
use shim_harness::{StopAtEnd, ask_at, compiled, installed, record, scratch, start, wait_for};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PORT: u16 = 16_500;
/// Threads of `waits.c` besides the main one.
const WAITING: usize = 22;

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A server that does not outlive its test, although it speaks alone.
struct Killed(Server);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// `waits.c`, alone, with a thread in each way to wait.
fn waiting(port: u16, name: &str, run: impl FnOnce(&Server)) {
    let Some(program) = compiled("waits.c") else { return };
    let (dir, port_text) = (scratch(name), port.to_string());
    let argv = [program.to_str().expect("a path"), &port_text];
    let server = &Killed(start(&argv, port, 0, mode::SOLO, &dir)).0;
    wait_for(port);
    all_wait(server);
    run(server);
    let _ = std::fs::remove_file(program);
    let _ = std::fs::remove_dir_all(dir);
}

fn all_wait(server: &Server) {
    let waits = |s| matches!(s, state::SLEEPS | state::TIMED | state::WAITS);
    let waiting = || told(server).list().iter().filter(|it| waits(it.state)).count();
    eventually("all threads wait", || waiting() == WAITING + 1);
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
    let (mut at, mut intents, mut writes) = (0, BTreeMap::new(), 0);
    while at < log.len() {
        let (header, _) = read_header(&log[at..]).expect("a log");
        at += record_len(header.payload_len as usize);
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
            all_wait(server);
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

/// The signals of a mask in `/proc/PID/status`.
fn signals_of(server: &Server, mask: &str) -> Vec<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("status");
    let line = status.lines().find_map(|it| it.strip_prefix(mask)).expect("a mask");
    let mask = u64::from_str_radix(line.trim_start_matches(':').trim(), 16).expect("a number");
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[test]
fn what_a_copy_needs_besides_is_told() {
    waiting(PORT + 6, "told", |server| {
        let said = told(server);
        let main = said.list().iter().find(|it| it.tid as u32 == server.pid()).expect("main");
        assert_eq!((main.stack.0 != 0, main.stack.1, main.stack.2), (true, 65536, 0));
        let those = |of: &dyn Fn(u64) -> bool| -> Vec<usize> {
            (1..=64).filter(|signal| of(said.actions()[*signal].handler)).collect()
        };
        // The shim's own and libc's among them.
        assert_eq!(those(&|handler| handler > 1), signals_of(server, "SigCgt"));
        assert_eq!(those(&|handler| handler == 1), signals_of(server, "SigIgn"));
        let own = said.actions()[libc::SIGUSR1 as usize];
        assert!(own.flags & libc::SA_ONSTACK as u64 != 0 && own.restorer != 0, "{own:x?}");
        let fd = server.memory.header().userfault.load(SeqCst);
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", server.pid()));
        assert!(fd == 0 || link.is_ok_and(|it| it.ends_with("anon_inode:[userfaultfd]")), "{fd}");
    });
}

/// A copy in the server's place follows a log without a record, up to its end.
fn copy_and_promote(server: &Server) {
    freeze(server).0.become_copy();
    eventually("all come to the log", || {
        told(server).list().iter().all(|it| !matches!(it.state, state::SLEEPS | state::TIMED))
    });
    server.memory.end_log();
    eventually("parked", || server.memory.mode() == mode::PARKED);
    server.memory.set_mode(mode::LIVE);
    eventually("alone", || server.memory.mode() == mode::SOLO);
}

#[test]
fn a_copy_starts_over_what_has_not_happened() {
    waiting(PORT + 1, "copies", |server| {
        copy_and_promote(server);
        // Copies of the survivor, and of that one's.
        copy_and_promote(server);
        assert_eq!(ask_at(PORT + 1, "go\n"), "21 back, 0 wrong\n");
        copy_and_promote(server);
        assert_eq!(ask_at(PORT + 1, "?\n"), "21 back, 0 wrong\n");
    });
}

/// A server that counts, and how it is spoken to.
#[derive(Clone, Copy)]
enum Counts {
    /// With several threads.
    Memcached,
    Redis,
}

/// A client that counts on a connection, and the bytes of it.
struct Counter {
    of: Counts,
    stream: BufReader<TcpStream>,
    key: String,
    count: u64,
    sent: u64,
    received: u64,
}

impl Counter {
    fn new(of: Counts, port: u16, n: usize) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let (stream, key) = (BufReader::new(stream), format!("key{n}"));
        Self { of, stream, key, count: 0, sent: 0, received: 0 }
    }

    fn ask(&mut self, text: &str) -> String {
        self.stream.get_mut().write_all(text.as_bytes()).expect("sent");
        self.sent += text.len() as u64;
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        self.received += line.len() as u64;
        line.trim_end().to_owned()
    }

    fn step(&mut self) {
        self.count += 1;
        let (key, count) = (self.key.clone(), self.count);
        match self.of {
            Counts::Redis => assert_eq!(self.ask(&format!("INCR {key}\r\n")), format!(":{count}")),
            Counts::Memcached if count == 1 => {
                assert_eq!(self.ask(&format!("set {key} 0 0 1\r\n1\r\n")), "STORED");
            }
            Counts::Memcached => {
                assert_eq!(self.ask(&format!("incr {key} 1\r\n")), count.to_string());
            }
        }
    }
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

/// A server, alone, while clients count without a pause until `run` is over. In the end
/// its books say what they have sent and received.
fn counting(of: Counts, port: u16, name: &str, run: impl FnOnce(&Server, &AtomicUsize)) {
    const CLIENTS: usize = 8;
    let (dir, text) = (scratch(name), port.to_string());
    let argv = match of {
        Counts::Memcached => {
            let program = installed("/usr/bin/memcached");
            vec![program, "-u", "root", "-t", "4", "-p", &text, "-l", "127.0.0.1"]
        }
        Counts::Redis => vec![installed("/usr/bin/redis-server"), "--save", "", "--port", &text],
    };
    let server = &Killed(start(&argv, port, 0, mode::SOLO, &dir)).0;
    wait_for(port);
    let (stop, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counters: Vec<Counter> = std::thread::scope(|s| {
        let client = |n| {
            let (stop, answers) = (&stop, &answers);
            s.spawn(move || {
                let mut counter = Counter::new(of, port, n);
                while !stop.load(SeqCst) {
                    counter.step();
                    answers.fetch_add(1, SeqCst);
                }
                counter
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let end = StopAtEnd(&stop);
        eventually("load", || answers.load(SeqCst) > 100);
        run(server, &answers);
        drop(end);
        clients.into_iter().map(|it| it.join().expect("a client")).collect()
    });
    let mut theirs: Vec<_> = counters.iter().map(|it| (it.sent, it.received)).collect();
    theirs.sort_unstable();
    eventually("the books are right", || {
        let mut ours: Vec<_> = books(server).into_values().collect();
        ours.sort_unstable();
        ours == theirs
    });
    let _ = std::fs::remove_dir_all(dir);
}

fn stand_still_soon(of: Counts, port: u16, name: &str) {
    const TRIES: usize = 200;
    counting(of, port, name, |server, answers| {
        let (mut took, mut looks) = (Vec::new(), 0);
        for _ in 0..TRIES {
            let before = answers.load(SeqCst);
            let (frozen, time) = freeze(server);
            looks += frozen.looks;
            drop(frozen);
            took.push(time);
            eventually("the load goes on", || answers.load(SeqCst) > before + 8);
        }
        took.sort_unstable();
        let at = |percent: usize| took[TRIES * percent / 100 - 1];
        println!(
            "{name}: {} threads, {TRIES} times: median {:?}, p90 {:?}, p99 {:?}, longest {:?}; \
             {looks} looks",
            told(server).list().len(),
            at(50),
            at(90),
            at(99),
            took[TRIES - 1],
        );
        assert!(at(90) < Duration::from_millis(5), "{took:?}");
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
    counting(of, port, name, |server, answers| {
        for _ in 0..5 {
            let (frozen, _) = freeze(server);
            let (before, from) = (books(server), server.memory.begin_log().expect("a log"));
            drop(frozen);
            let (mut log, mut at) = (Vec::new(), from);
            let mut confirm = || {
                let tail = server.memory.take_tail(at).expect("a log that grows");
                log.extend_from_slice(server.memory.bytes(at, (tail - at) as usize));
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
    let mut at = 0;
    while at < log.len() {
        let (header, _) = read_header(&log[at..]).expect("a log");
        at += record_len(header.payload_len as usize);
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
