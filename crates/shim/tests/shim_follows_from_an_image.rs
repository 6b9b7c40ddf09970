//! A running server is copied under load: it is frozen, its image is rebuilt elsewhere,
//! it goes on as a primary, and the copy follows its log. What the copy writes is what
//! clients have read, byte for byte; and the copy takes the server's place, and is
//! copied itself. Needs root.

mod shim_harness;

use holdfast_linux::process;
use holdfast_linux::snapshot::quiet::{Quiescence, Resume, Standing};
use holdfast_linux::snapshot::{Frozen, SnapshotError};
use holdfast_linux::spawn::{Server, StandStill};
use holdfast_wire::shm::{conn_state, mode};
use holdfast_wire::snapshot::Books;
use shim_harness::copy::{Follow, copy_of, image_of, promote_copy, try_image_of};
use shim_harness::count::{Counter, Counts, Killed, Load};
use shim_harness::{eventually, scratch};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

const PORT: u16 = 16_600;
/// Clients that are there when the image is taken, and that come later.
const CLIENTS: usize = 6;
const LATER: usize = 2;
/// Requests that the copy follows.
const REQUESTS: usize = 6000;

/// When the log comes to the copy.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The copy is there while the primary works.
    AtOnce,
    /// The primary has worked for long when the copy begins.
    Behind,
}

/// Bytes written of each connection that is open.
fn written(server: &Server) -> BTreeMap<u32, u64> {
    let entries = (1..1000).map(|accept| server.memory.entry(accept));
    let open = entries.filter(|it| it.state.load(SeqCst) == conn_state::OPEN);
    open.map(|it| (it.conn.load(SeqCst), it.out_bytes.load(SeqCst))).collect()
}

/// The output that a copy keeps of a connection: from where on, and the bytes.
fn kept(copy: &Server, conn: u32) -> (u64, Vec<u8>) {
    let entry = copy.memory.entry(conn);
    let word = |it: &std::sync::atomic::AtomicU64| it.load(SeqCst);
    let (from, end) = (word(&entry.keep_from), word(&entry.out_bytes));
    let (at, cap) = (word(&entry.keep_addr), word(&entry.keep_cap));
    let mut bytes = vec![0; (end - from) as usize];
    for (offset, byte) in (from..end).zip(&mut bytes) {
        let read = process::read_memory(copy.pid(), at + offset % cap, std::slice::from_mut(byte));
        assert_eq!(read.expect("the copy's memory"), 1);
    }
    (from, bytes)
}

/// The client at the other end of a connection.
fn client_of<'a>(server: &Server, conn: u32, clients: &'a [Counter]) -> &'a Counter {
    let fd = server.memory.entry(conn).fd.load(SeqCst);
    let stream = TcpStream::from(server.take_fd(fd).expect("the connection"));
    let port = stream.peer_addr().expect("connected").port();
    clients.iter().find(|it| it.port() == port).expect("its client")
}

/// What the copy would have sent is what clients have got since the image was taken.
fn assert_same(primary: &Server, copy: &Server, before: &BTreeMap<u32, u64>, clients: &[Counter]) {
    let (theirs, ours) = (written(primary), written(copy));
    assert_eq!(theirs, ours);
    assert_eq!(theirs.len(), clients.len());
    let mut compared = 0;
    for (conn, end) in theirs {
        let (from, bytes) = kept(copy, conn);
        assert_eq!(from, before.get(&conn).copied().unwrap_or(0));
        let got = &client_of(primary, conn, clients).received;
        assert_eq!(got.len() as u64, end);
        assert!(got[from as usize..] == bytes[..], "connection {conn} differs");
        compared += bytes.len();
    }
    assert!(compared > REQUESTS, "{compared} bytes");
}

/// All that a server knows.
fn content(of: Counts, port: u16, keys: &[String]) -> Vec<String> {
    let mut client = Counter::new(of, port, String::new());
    match of {
        Counts::Redis => vec![client.ask("DEBUG DIGEST\r\n")],
        // The answer has three lines: what is asked next reads on.
        Counts::Memcached => keys
            .iter()
            .map(|key| {
                let line = client.ask(&format!("get {key}\r\n"));
                format!("{line} {} {}", client.ask(""), client.ask(""))
            })
            .collect(),
    }
}

/// One generation: the server, alone, is copied under load; the copy follows and takes
/// its place.
fn generation(mut server: Killed, of: Counts, port: u16, order: Order, dir: &Path) -> Killed {
    let name = format!("{}-{}-", server.0.pid(), port);
    let load = Load::new(of, port);
    let (mut copy, mut before) = (None, BTreeMap::new());
    let (mut took, mut records, mut waits_then) = (String::new(), 0, Vec::new());
    let clients = load.run(CLIENTS, &name, || {
        let image = image_of(&server.0);
        let at = Instant::now();
        before = {
            let reader = holdfast_wire::snapshot::Reader::begin(
                &image.bytes[..],
                &shim_harness::KEY,
                holdfast_wire::snapshot::Limits::default(),
            );
            let books = reader.expect("an image").description().books.clone().expect("books");
            let open = books.connections.iter().filter(|it| it.state == conn_state::OPEN);
            open.map(|it| (it.conn, it.out_bytes)).collect()
        };
        let mut waits = Vec::new();
        let mut from = server.0.memory.head();
        if let Order::Behind = order {
            // Nobody follows yet.
            let enough = load.answers.load(SeqCst) + REQUESTS;
            while load.answers.load(SeqCst) < enough {
                let tail = server.0.memory.take_tail(from).expect("a log that grows");
                waits.extend_from_slice(server.0.memory.bytes(from, (tail - from) as usize));
                server.0.memory.set_stable(tail);
                from = tail;
                std::thread::yield_now();
            }
        }
        let began = Instant::now();
        let made = copy.insert(Killed(copy_of(&image, port, dir)));
        let restored = began.elapsed();
        let mut follow = Follow::new(&server.0, &made.0, from);
        follow.waits = waits;
        let enough = load.answers.load(SeqCst) + REQUESTS;
        let mut caught_up = None;
        while load.answers.load(SeqCst) < enough {
            follow.take();
            follow.give();
            if caught_up.is_none() && made.0.memory.unconsumed() < 10_000 && follow.waits.is_empty()
            {
                caught_up = Some(began.elapsed());
            }
            assert_eq!(made.0.memory.reason(), "");
            std::thread::yield_now();
        }
        load.end(|| {
            follow.take();
            follow.give();
        });
        records = follow.records;
        waits_then = follow.waits;
        took = format!(
            "pause {:.2?} of which {:.2?} until quiet, {} pages; image {} KB, restored in {:.1?}, \
             caught up {:.1?} after; {:.1?} in all",
            image.pause,
            image.until_quiet,
            image.frozen_pages,
            image.bytes.len() >> 10,
            restored,
            caught_up.unwrap_or_default(),
            at.elapsed(),
        );
    });
    let copy = copy.expect("a copy");
    println!("{order:?}: {took}; {records} records, {} answers", load.answers.load(SeqCst));
    let mut follow = Follow::new(&server.0, &copy.0, server.0.memory.head());
    follow.waits = waits_then;
    follow.catch_up();
    assert_same(&server.0, &copy.0, &before, &clients);
    drop(clients);
    let keys: Vec<String> = (0..CLIENTS).map(|n| format!("{name}{n}")).collect();
    let known = std::thread::scope(|s| {
        let asks = s.spawn(|| content(of, port, &keys));
        while !asks.is_finished() {
            follow.catch_up();
        }
        follow.catch_up();
        asks.join().expect("its content")
    });
    server.0.kill();
    promote_copy(&copy.0);
    assert_eq!(content(of, port, &keys), known);
    copy
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
    let orders = [Order::Behind, Order::AtOnce, Order::AtOnce];
    generations(Counts::Memcached, PORT + 1, "image-threads", &orders);
}
