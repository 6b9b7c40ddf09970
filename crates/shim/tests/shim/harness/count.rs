//! Servers that count, and clients that ask them to.

use super::{StopAtEnd, eventually, installed, scratch, start, wait_for};
use holdfast_linux::spawn::Server;
use holdfast_wire::shm::mode;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// A server that counts, and how it is spoken to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// With several threads.
    Memcached,
    Redis,
}

/// A server that does not outlive its test, although it speaks alone.
pub struct Killed(pub Server);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Counts {
    /// Starts it; it speaks alone.
    pub fn start(self, port: u16, dir: &Path) -> Killed {
        let text = port.to_string();
        let argv = match self {
            Self::Memcached => {
                let program = installed("/usr/bin/memcached");
                vec![program, "-u", "root", "-t", "4", "-p", &text, "-l", "127.0.0.1"]
            }
            Self::Redis => {
                let program = installed("/usr/bin/redis-server");
                vec![program, "--save", "", "--port", &text, "--enable-debug-command", "yes"]
            }
        };
        let server = Killed(start(&argv, port, 0, mode::SOLO, dir));
        wait_for(port);
        server
    }
}

/// A client that counts on a connection, and the bytes of it.
pub struct Counter {
    of: Counts,
    stream: BufReader<TcpStream>,
    key: String,
    count: u64,
    pub sent: u64,
    pub received: Vec<u8>,
}

impl Counter {
    pub fn new(of: Counts, port: u16, key: String) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        let stream = BufReader::new(stream);
        Self { of, stream, key, count: 0, sent: 0, received: Vec::new() }
    }

    /// Its own port.
    pub fn port(&self) -> u16 {
        self.stream.get_ref().local_addr().expect("connected").port()
    }

    pub fn ask(&mut self, text: &str) -> String {
        self.stream.get_mut().write_all(text.as_bytes()).expect("sent");
        self.sent += text.len() as u64;
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        self.received.extend_from_slice(line.as_bytes());
        line.trim_end().to_owned()
    }

    pub fn step(&mut self) {
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

/// Clients that count without a pause.
pub struct Load {
    pub of: Counts,
    pub port: u16,
    pub answers: AtomicUsize,
    pub stop: AtomicBool,
    /// Those who come later may come.
    pub more: AtomicBool,
    working: AtomicUsize,
}

impl Load {
    pub fn new(of: Counts, port: u16) -> Self {
        let (answers, working) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (stop, more) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { of, port, answers, stop, more, working }
    }

    /// A client, until the load is stopped.
    pub fn client(&self, key: String) -> Counter {
        let mut counter = Counter::new(self.of, self.port, key);
        loop {
            counter.step();
            self.answers.fetch_add(1, SeqCst);
            if self.stop.load(SeqCst) {
                break;
            }
        }
        self.working.fetch_sub(1, SeqCst);
        counter
    }

    /// Stops it, and does what clients may wait for until they have stopped.
    pub fn end(&self, mut serve: impl FnMut()) {
        self.stop.store(true, SeqCst);
        while self.working.load(SeqCst) > 0 {
            serve();
        }
    }

    /// Runs with this many clients at once, and later, until `run` is over; all of them.
    pub fn run(&self, [at_once, later]: [usize; 2], key: &str, run: impl FnOnce()) -> Vec<Counter> {
        let client = |n: usize| {
            while n >= at_once && !self.more.load(SeqCst) && !self.stop.load(SeqCst) {
                std::thread::yield_now();
            }
            self.client(format!("{key}{n}"))
        };
        self.working.store(at_once + later, SeqCst);
        std::thread::scope(|s| {
            let client = |n| s.spawn(move || client(n));
            let clients: Vec<_> = (0..at_once + later).map(client).collect();
            let end = StopAtEnd(&self.stop);
            let before = self.answers.load(SeqCst);
            eventually("load", || self.answers.load(SeqCst) > before + 100);
            run();
            drop(end);
            clients.into_iter().map(|it| it.join().expect("a client")).collect()
        })
    }
}

/// A server, alone, while clients count without a pause until `run` is over; what is
/// true of both afterwards.
pub fn counting(
    of: Counts,
    port: u16,
    name: &str,
    run: impl FnOnce(&Server, &AtomicUsize),
    after: impl FnOnce(&Server, &[Counter]),
) {
    const CLIENTS: usize = 8;
    let dir = scratch(name);
    let server = &of.start(port, &dir).0;
    let load = Load::new(of, port);
    let counters = load.run([CLIENTS, 0], "key", || run(server, &load.answers));
    after(server, &counters);
    let _ = std::fs::remove_dir_all(dir);
}
