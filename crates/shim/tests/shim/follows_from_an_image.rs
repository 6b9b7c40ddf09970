//! A running server is copied under load: it is frozen, its image is rebuilt elsewhere,
//! it goes on as a primary, and the copy follows its log. What the copy writes is what
//! clients have read, byte for byte; and the copy takes the server's place, and is
//! copied itself. Needs root.

use crate::harness::copy::{
    Image, Log, copy_beside, copying, image_of, options, promote_copy, try_image_of,
};
use crate::harness::count::{Counter, Counts, Killed, Load};
use crate::harness::{eventually, scratch};
use holdfast_linux::process;
use holdfast_linux::snapshot::quiet::{Bare, Quiescence, Resume, Standing};
use holdfast_linux::snapshot::{External, Frozen, Preparation, SnapshotError};
use holdfast_linux::spawn::{Server, StandStill};
use holdfast_wire::shm::{conn_state, mode};
use holdfast_wire::snapshot::Books;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PORT: u16 = 16_600;
/// Clients that are there when the image is taken, and that come when there is a copy.
const CLIENTS: [usize; 2] = [6, 2];
/// Requests that the copy follows behind, and at once.
const REQUESTS: usize = 6000;
/// Images that are taken of a server whose log is on, and the requests between two of them.
const RENEWALS: usize = 10;
const RENEWALS_APART: usize = 300;

/// When the log comes to the copy.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The copy is there while the primary works.
    AtOnce,
    /// The primary has worked for long when the copy begins.
    Behind,
    /// From the image on one thread runs at a time.
    InTurns,
    /// The primary has a log and a replica already, which goes on; the copy begins in the middle
    /// of that log.
    Renewed,
}

/// Bytes written of each connection that is open.
type Written = BTreeMap<u32, u64>;

/// A copy that follows.
struct Followed {
    copy: Killed,
    /// When the image was taken.
    before: Written,
    log: Log,
}

/// Takes the image of a server under load, makes the copy, and has it follow while the
/// load goes on; in the end the clients rest.
fn follow(server: &Server, order: Order, load: &Load, dir: &Path) -> Followed {
    let (image, mut log) = match order {
        Order::Renewed => renewed(server, load, dir),
        Order::AtOnce | Order::Behind => {
            let image = image_of(server);
            let log = Log::from(image.books.log_from);
            (image, log)
        }
        Order::InTurns => {
            let image = try_image_of(server, &mut server.stand_still(&server.processes(), true))
                .expect("an image");
            assert!(image.books.takes_turns);
            let log = Log::from(image.books.log_from);
            (image, log)
        }
    };
    if let Order::Behind = order {
        let enough = load.answers.load(SeqCst) + REQUESTS;
        while load.answers.load(SeqCst) < enough {
            log.take(server);
            std::thread::yield_now();
        }
    }
    let began = Instant::now();
    let copy = Killed(copy_beside(&image, load.port, dir, || log.take(server)));
    let restored = began.elapsed();
    load.more.store(true, SeqCst);
    let (enough, mut caught_up) = (load.answers.load(SeqCst) + REQUESTS, None);
    while load.answers.load(SeqCst) < enough || caught_up.is_none() {
        log.pass(server, &copy.0);
        if caught_up.is_none() && log.is_followed(&copy.0) {
            caught_up = Some(began.elapsed() - restored);
        }
        std::thread::yield_now();
    }
    load.end(|| log.pass(server, &copy.0));
    // A client may have an answer before its server has logged that it was sent.
    eventually("the copy has written as much", || {
        log.catch_up(server, &copy.0);
        written(server) == written(&copy.0)
    });
    tell(order, &image, restored, caught_up, log.records, load.answers.load(SeqCst));
    let before = image.books.open().map(|(_, it)| (it.conn, it.out_bytes)).collect();
    Followed { copy, before, log }
}

/// The image of a server whose log is on and whose output waits for that, and the log from there.
/// A replica that follows the log from its beginning notices nothing.
fn renewed(server: &Server, load: &Load, dir: &Path) -> (Image, Log) {
    let first = image_of(server);
    let mut log = Log::from(first.books.log_from);
    let replica = Killed(copy_beside(&first, load.port, dir, || log.take(server)));
    let go_on = |log: &mut Log| {
        let enough = load.answers.load(SeqCst) + RENEWALS_APART;
        while load.answers.load(SeqCst) < enough {
            log.pass(server, &replica.0);
            std::thread::yield_now();
        }
    };
    let mut last = None;
    for _ in 0..RENEWALS {
        go_on(&mut log);
        let mut second = Log::from(log.at);
        let image = std::thread::scope(|s| {
            let takes = s.spawn(|| image_of(server));
            while !takes.is_finished() {
                log.pass(server, &replica.0);
                second.take(server);
            }
            takes.join().expect("an image")
        });
        // The log is taken up to the image before anything of it is left out.
        log.pass(server, &replica.0);
        second.take(server);
        second.begin_at(image.books.log_from);
        last = Some((image, second));
    }
    let (image, mut second) = last.expect("an image");
    go_on_with_both(server, load, (&mut log, &replica.0), &mut second);
    (image, second)
}

/// The replica follows on, and the log is taken a second time.
fn go_on_with_both(
    server: &Server,
    load: &Load,
    (log, replica): (&mut Log, &Server),
    second: &mut Log,
) {
    let enough = load.answers.load(SeqCst) + RENEWALS_APART;
    while load.answers.load(SeqCst) < enough {
        log.pass(server, replica);
        second.take(server);
        std::thread::yield_now();
    }
}

fn tell(
    order: Order,
    image: &Image,
    restored: Duration,
    caught_up: Option<Duration>,
    records: usize,
    answers: usize,
) {
    println!(
        "{order:?}: pause {:.2?} of which {:.2?} until quiet, {} pages; image {} KB, restored in \
         {restored:.1?}, caught up {:.1?} later; {records} records followed, {answers} answers",
        image.pause,
        image.until_quiet,
        image.frozen_pages,
        image.bytes.len() >> 10,
        caught_up.unwrap_or_default(),
    );
}

fn written(server: &Server) -> Written {
    let entries = (1..1000).map(|accept| server.memory.entry(accept));
    let open = entries.filter(|it| it.state.load(SeqCst) == conn_state::OPEN);
    open.map(|it| (it.conn.load(SeqCst), it.out_bytes.load(SeqCst))).collect()
}

/// The output that a copy keeps of a connection: from where on, and the bytes.
fn kept(copy: &Server, conn: u32) -> (u64, Vec<u8>) {
    let entry = copy.memory.entry(conn);
    let word = |it: &AtomicU64| it.load(SeqCst);
    let (from, end) = (word(&entry.keep_from), word(&entry.out_bytes));
    let mut ring = vec![0; word(&entry.keep_cap) as usize];
    if from < end {
        let read = process::read_memory(copy.pid(), word(&entry.keep_addr), &mut ring);
        assert_eq!(read.expect("the copy's memory"), ring.len());
    }
    (from, (from..end).map(|offset| ring[offset as usize % ring.len()]).collect())
}

/// A server's end of a connection.
fn stream(server: &Server, conn: u32) -> TcpStream {
    let fd = server.memory.entry(conn).fd.load(SeqCst);
    TcpStream::from(server.take_fd(fd).expect("the connection"))
}

/// The client at the other end of a connection.
fn client_of<'a>(server: &Server, conn: u32, clients: &'a [Counter]) -> &'a Counter {
    let port = stream(server, conn).peer_addr().expect("connected").port();
    clients.iter().find(|it| it.port() == port).expect("its client")
}

fn keep_alive(stream: &TcpStream) -> i32 {
    let (mut value, mut len) = (0, size_of::<i32>() as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    let at = (&raw mut value).cast();
    // SAFETY: the kernel writes one int.
    let r = unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, at, &raw mut len) };
    assert_eq!(r, 0);
    value
}

/// What a server has set of a connection.
fn settings_of(server: &Server, conn: u32) -> (bool, i32, i32) {
    let stream = stream(server, conn);
    // SAFETY: plain numbers.
    let flags = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_GETFL) };
    (stream.nodelay().expect("a socket of TCP"), flags, keep_alive(&stream))
}

/// What the copy would have sent is what clients have got since the image was taken.
fn assert_same(primary: &Server, followed: &Followed, clients: &[Counter]) {
    let Followed { copy, before, .. } = followed;
    let theirs = written(primary);
    assert_eq!(theirs, written(&copy.0));
    assert_eq!((before.len(), theirs.len()), (CLIENTS[0], clients.len()));
    let mut compared = 0;
    for (conn, end) in theirs {
        assert_eq!(settings_of(primary, conn), settings_of(&copy.0, conn));
        let (from, bytes) = kept(&copy.0, conn);
        assert_eq!(from, before.get(&conn).copied().unwrap_or(0));
        let got = &client_of(primary, conn, clients).received;
        assert_eq!(got.len() as u64, end);
        assert!(got[from as usize..] == bytes[..], "connection {conn} differs");
        compared += bytes.len();
    }
    assert!(compared > REQUESTS, "only {compared} bytes");
}

/// All that a server knows.
fn content(of: Counts, port: u16, keys: &[String]) -> Vec<String> {
    let mut client = Counter::new(of, port, String::new());
    if of == Counts::Redis {
        return vec![client.ask("DEBUG DIGEST\r\n")];
    }
    // An answer has three lines: what is asked next reads on.
    let mut get = |key| [client.ask(&format!("get {key}\r\n")), client.ask(""), client.ask("")];
    keys.iter().map(|key| get(key).join(" ")).collect()
}

/// One generation: the server, alone, is copied under load; the copy follows and takes
/// its place.
fn generation(mut server: Killed, of: Counts, port: u16, order: Order, dir: &Path) -> Killed {
    let name = format!("{}-{port}-", server.0.pid());
    let (load, mut followed) = (Load::new(of, port), None);
    let clients = load.run(CLIENTS, &name, || {
        followed = Some(follow(&server.0, order, &load, dir));
    });
    let mut followed = followed.expect("a copy");
    let got = clients.iter().map(|client| client.received.len() as u64).sum();
    eventually("what clients have read is in the books of both", || {
        followed.log.catch_up(&server.0, &followed.copy.0);
        [&server.0, &followed.copy.0].iter().all(|it| written(it).into_values().sum::<u64>() == got)
    });
    assert_same(&server.0, &followed, &clients);
    drop(clients);
    let keys: Vec<String> = (0..CLIENTS[0] + CLIENTS[1]).map(|n| format!("{name}{n}")).collect();
    let (log, copy) = (&mut followed.log, &followed.copy.0);
    let known = std::thread::scope(|s| {
        let asks = s.spawn(|| content(of, port, &keys));
        while !asks.is_finished() {
            log.pass(&server.0, copy);
        }
        log.catch_up(&server.0, copy);
        asks.join().expect("its content")
    });
    server.0.kill();
    promote_copy(copy);
    eventually("its daemon's death is not its own", || followed.copy.0.let_loose());
    assert_eq!(content(of, port, &keys), known);
    followed.copy
}

fn generations(of: Counts, port: u16, name: &str, orders: &[Order]) {
    let dir = scratch(name);
    let mut server = of.start(port, &dir);
    for order in orders {
        server = generation(server, of, port, *order, &dir);
    }
    drop(server);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn redis_is_followed_from_an_image_three_times_in_a_row() {
    generations(Counts::Redis, PORT, "image", &[Order::AtOnce, Order::Behind, Order::AtOnce]);
}

#[test]
fn memcached_is_followed_from_an_image_three_times_in_a_row() {
    let orders = [Order::Behind, Order::AtOnce, Order::Behind];
    generations(Counts::Memcached, PORT + 1, "image-threads", &orders);
}

/// Whoever is copied later takes turns still.
#[test]
fn threads_take_turns_from_an_image_on() {
    generations(Counts::Memcached, PORT + 9, "image-turns", &[Order::InTurns, Order::AtOnce]);
}

#[test]
fn redis_is_followed_from_an_image_in_the_middle_of_its_log() {
    generations(Counts::Redis, PORT + 7, "image-renewed", &[Order::Renewed, Order::Renewed]);
}

#[test]
fn memcached_is_followed_from_an_image_in_the_middle_of_its_log() {
    let orders = [Order::Renewed, Order::Renewed];
    generations(Counts::Memcached, PORT + 8, "image-renewed-threads", &orders);
}

/// An image that fails when the log has begun already.
struct Fails<'a>(StandStill<'a>);

impl Quiescence for Fails<'_> {
    fn ask(&mut self, deadline: Instant) {
        self.0.ask(deadline);
    }

    fn stopped(&mut self) -> Result<(), SnapshotError> {
        self.0.stopped()
    }

    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume> {
        self.0.look(thread)
    }

    fn reached(&mut self, frozen: &Frozen) -> Result<Option<Books>, SnapshotError> {
        self.0.reached(frozen)?;
        Err(SnapshotError::NeverQuiet)
    }

    fn end(&mut self) {
        self.0.end();
    }

    fn failed(&mut self) {
        self.0.failed();
    }
}

#[test]
fn a_server_whose_image_fails_speaks_alone_again() {
    let (port, dir) = (PORT + 2, scratch("image-fails"));
    let server = &Counts::Redis.start(port, &dir).0;
    let load = Load::new(Counts::Redis, port);
    load.run([4, 0], "k", || {
        for _ in 0..20 {
            assert!(
                try_image_of(server, &mut Fails(server.stand_still(&server.processes(), false)))
                    .is_err()
            );
            assert_eq!(server.memory.mode(), mode::SOLO);
            let enough = load.answers.load(SeqCst) + 50;
            eventually("the load goes on", || load.answers.load(SeqCst) > enough);
        }
    });
    let _ = std::fs::remove_dir_all(dir);
}

/// The image of a program without the shim.
fn bare_image() -> Vec<u8> {
    let mut sleeper = Command::new("sleep");
    sleeper.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut sleeper = sleeper.spawn().expect("sleep");
    let options = options(External::default());
    let taken = Preparation::begin(&[sleeper.id()], &options).and_then(|it| it.freeze(&mut Bare));
    let _ = sleeper.kill().and_then(|()| sleeper.wait());
    taken.and_then(|taken| taken.write(Vec::new(), &options)).expect("an image")
}

#[test]
fn a_copy_has_the_memory_that_the_original_has_or_there_is_none() {
    let (port, dir) = (PORT + 5, scratch("image-other"));
    let server = &Counts::Redis.start(port, &dir).0;
    let image = image_of(server);
    let mut other = copying(port, &dir);
    other.settings.ring_bytes *= 2;
    let refused = Server::copy(&image.bytes[..], &other).err().expect("no copy").to_string();
    assert!(refused.contains("its log's memory has another size than here"), "{refused}");
    let mut other = copying(port, &dir);
    other.loading.key[0] ^= 1;
    assert!(Server::copy(&image.bytes[..], &other).is_err(), "another group's");
    let refused = Server::copy(&bare_image()[..], &copying(port, &dir));
    let refused = refused.err().expect("no copy").to_string();
    assert!(refused.contains("without the shim"), "{refused}");
    let _ = std::fs::remove_dir_all(dir);
}

/// Cut off, damaged, or without an end: no process, thread or descriptor is left.
#[test]
fn a_copy_of_a_bad_image_leaves_nothing_behind() {
    let name = "follows_from_an_image::a_copy_of_a_bad_image_leaves_nothing_behind";
    // In a process of its own: it counts all that there is.
    if std::env::var("HOLDFAST_TEST_ALONE").is_err() {
        let mut alone = Command::new(std::env::current_exe().expect("a test"));
        alone.args(["--exact", name]).env("HOLDFAST_TEST_ALONE", "1");
        let said = alone.output().expect("a test");
        let said = String::from_utf8_lossy(&said.stdout);
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let (port, dir) = (PORT + 6, scratch("image-bad"));
    let server = &Counts::Redis.start(port, &dir).0;
    let image = image_of(server).bytes;
    let own = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("proc").count();
    let count = || (process::family(std::process::id()).len(), own("fd"), own("task"));
    let before = count();
    let copying = copying(port, &dir);
    for part in 1..=8 {
        // The last one lacks a byte of its end.
        let cut = &image[..image.len() * part / 8 - 1];
        assert!(Server::copy(cut, &copying).is_err(), "{} bytes", cut.len());
        let endless = cut.chain(std::io::repeat(0));
        assert!(Server::copy(endless, &copying).is_err(), "{} bytes, and zeros", cut.len());
        let mut damaged = image.clone();
        damaged[cut.len()] ^= 4;
        assert!(Server::copy(&damaged[..], &copying).is_err(), "byte {}", cut.len());
    }
    assert_eq!(count(), before);
    drop(Server::copy(&image[..], &copying).expect("a copy"));
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn only_a_server_that_speaks_is_copied() {
    let (port, dir) = (PORT + 3, scratch("image-refused"));
    let server = &Counts::Redis.start(port, &dir).0;
    for (now, words) in [
        (mode::OFF, "it can never be copied"),
        (mode::BROKEN, "it can never be copied"),
        (mode::REPLAY, "it speaks for nobody yet"),
        (mode::PARKED, "it speaks for nobody yet"),
    ] {
        server.memory.header().mode.0.store(now, SeqCst);
        let refused = try_image_of(server, &mut server.stand_still(&server.processes(), false));
        let said = refused.err().expect("no image").to_string();
        assert!(said.contains(words), "{said}");
        assert_eq!(server.memory.header().park.0.load(SeqCst), 0, "nothing was touched");
    }
    let _ = std::fs::remove_dir_all(dir);
}

/// Prints how long a server under load stands still for its image: with little data and
/// few connections, with 100 MB, and with many connections that rest.
#[test]
#[ignore = "a measurement"]
fn pauses() {
    const IMAGES: usize = 100;
    for (of, megabytes, resting) in [
        (Counts::Redis, 0, 0),
        (Counts::Memcached, 0, 0),
        (Counts::Redis, 100, 0),
        (Counts::Redis, 0, 2000),
    ] {
        let (port, dir) = (PORT + 4, scratch("pauses"));
        let server = &of.start(port, &dir).0;
        if megabytes > 0 {
            let fill = format!("DEBUG POPULATE {} key 1000\r\n", megabytes * 1000);
            assert_eq!(Counter::new(of, port, String::new()).ask(&fill), "+OK");
        }
        let rests: Vec<Counter> =
            (0..resting).map(|n| Counter::new(of, port, format!("rests{n}"))).collect();
        let (load, mut images) = (Load::new(of, port), Vec::new());
        load.run([8, 0], "k", || {
            for _ in 0..IMAGES {
                let image = image_of(server);
                server.memory.go_solo();
                images.push((image.pause, image.until_quiet));
                let enough = load.answers.load(SeqCst) + 50;
                eventually("the load goes on", || load.answers.load(SeqCst) > enough);
            }
        });
        drop(rests);
        let resident = process::resident_bytes(server.pid()).unwrap_or(0) >> 20;
        let at = |mut all: Vec<Duration>| {
            all.sort_unstable();
            [all[IMAGES / 2], all[IMAGES * 9 / 10], all[IMAGES - 2], all[IMAGES - 1]]
        };
        let (pauses, quiet) = images.into_iter().unzip();
        println!(
            "{resident} MB, {resting} connections rest: pause p50, p90, p99, max {:.2?}, of which \
             until quiet {:.2?}",
            at(pauses),
            at(quiet),
        );
        let _ = std::fs::remove_dir_all(dir);
    }
}
