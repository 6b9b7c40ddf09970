//! A TCP port here leads to a server there; what is lost is never called an end.

use crate::bed::{A, B, Bed, OUTSIDE, PORT, SOON, at, wait};
use crate::traffic::pattern;
use rustix::process::Signal;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

const HERE: &str = "127.0.0.1:5400";
const THERE: &str = "127.0.0.1:5401";
const LIMIT: Duration = Duration::from_secs(60);

fn begin(bed: &mut Bed) {
    write(bed);
    bed.start_both();
}

fn write(bed: &Bed) {
    let listen = |end: usize| format!("mode = \"forward\"\nlisten = \"{}:{PORT}\"\n", OUTSIDE[end]);
    let peer = |end: usize| format!("address = \"{}\"", at(OUTSIDE[1 - end]));
    let near = format!(
        "forward = [\"tcp {HERE} -> {THERE}\", \"tcp 127.0.0.1:5500 -> 127.0.0.1:5501\"]\n"
    );
    bed.write(A, &(listen(A) + &near), &peer(A));
    bed.write(B, &(listen(B) + &format!("allow = [\"tcp {THERE}\"]\n")), &peer(B));
}

/// A server that reads to the end and sends the same back, for so many connections.
fn server(bed: &Bed, connections: usize) -> JoinHandle<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(THERE).expect("a port");
        ready.send(()).expect("somebody waits");
        let each: Vec<JoinHandle<()>> = (0..connections)
            .map(|_| {
                let (mut stream, _) = listener.accept().expect("a connection");
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(LIMIT)).expect("a time");
                    let mut came = Vec::new();
                    stream.read_to_end(&mut came).expect("all of it");
                    stream.write_all(&came).expect("to answer");
                })
            })
            .collect();
        each.into_iter().for_each(|it| it.join().expect("a connection that went well"));
    });
    is_ready.recv().expect("a server");
    server
}

#[test]
fn bytes_and_ends_go_through_both_ways() {
    let Some(mut bed) = Bed::new() else { return };
    begin(&mut bed);
    let sizes = [0usize, 1, 100_000, 16 << 20, 3 << 20];
    let server = server(&bed, sizes.len());
    let clients: Vec<JoinHandle<()>> = sizes
        .into_iter()
        .map(|size| {
            bed.inside(A, move || {
                let mut stream = TcpStream::connect(HERE).expect("a connection");
                stream.set_read_timeout(Some(LIMIT)).expect("a time");
                let sent = pattern(size, size as u64 + 1);
                stream.write_all(&sent).expect("to send");
                stream.shutdown(Shutdown::Write).expect("to end");
                let mut came = Vec::new();
                stream.read_to_end(&mut came).expect("an answer");
                assert!(came == sent, "{size} bytes come back as they were");
            })
        })
        .collect();
    clients.into_iter().for_each(|it| it.join().expect("a client"));
    server.join().expect("a server");
    let flows = |end: usize| bed.status(end).expect("an answer")["inside"]["flows"].clone();
    wait("no connections", SOON, || flows(A) == 0 && flows(B) == 0);
    for end in [A, B] {
        assert_eq!(bed.status(end).expect("an answer")["inside"]["resets"], 0);
    }
}

/// Connects here, and waits for how that ends.
fn ends(bed: &Bed, port: &'static str) -> JoinHandle<Option<ErrorKind>> {
    bed.inside(A, move || {
        let mut stream = TcpStream::connect(port).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        // The kernel tells of a reset once, to whoever comes first.
        let asked = stream.write_all(b"a question");
        asked.and_then(|()| stream.read(&mut [0; 10])).err().map(|error| error.kind())
    })
}

#[test]
fn what_cannot_be_reached_is_reset_and_not_closed() {
    let Some(mut bed) = Bed::new() else { return };
    begin(&mut bed);
    // Nobody listens there; and what nobody allowed.
    assert_eq!(ends(&bed, HERE).join().expect("a client"), Some(ErrorKind::ConnectionReset));
    let other = ends(&bed, "127.0.0.1:5500");
    assert_eq!(other.join().expect("a client"), Some(ErrorKind::ConnectionReset));
    assert_eq!(bed.status(B).expect("an answer")["inside"]["not_allowed"], 1);
}

/// A server that accepts one connection, and tells how that ends after the question.
fn witness(bed: &Bed) -> JoinHandle<Result<usize, ErrorKind>> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(THERE).expect("a port");
        ready.send(()).expect("somebody waits");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        let mut question = [0; 10];
        stream.read_exact(&mut question).expect("the question");
        stream.read(&mut question).map_err(|error| error.kind())
    });
    is_ready.recv().expect("a server");
    server
}

/// Either end's program is killed while nothing is on its way, which is when a kernel would close
/// its sockets politely: the host that it died on sees a reset at once, the other one when its peer is
/// heard to be a new one.
#[test]
fn a_program_that_is_killed_resets_both_sides() {
    for killed in [A, B] {
        let Some(mut bed) = Bed::new() else { return };
        begin(&mut bed);
        let (server, client) = (witness(&bed), ends(&bed, HERE));
        let given = |bed: &Bed| bed.status(B).expect("an answer")["inside"]["given_bytes"] == 10;
        wait("the question", SOON, || given(&bed));
        bed.stop(killed, Signal::KILL);
        bed.start(killed);
        bed.wait_up();
        assert_eq!(client.join().expect("a client"), Some(ErrorKind::ConnectionReset), "{killed}");
        assert_eq!(server.join().expect("a server"), Err(ErrorKind::ConnectionReset), "{killed}");
    }
}

/// The same of programs that are asked to end.
#[test]
fn a_program_that_ends_resets_both_sides() {
    for stopped in [A, B] {
        let Some(mut bed) = Bed::new() else { return };
        begin(&mut bed);
        let (server, client) = (witness(&bed), ends(&bed, HERE));
        let given = |bed: &Bed| bed.status(B).expect("an answer")["inside"]["given_bytes"] == 10;
        wait("the question", SOON, || given(&bed));
        bed.stop(stopped, Signal::TERM);
        assert_eq!(client.join().expect("a client"), Some(ErrorKind::ConnectionReset), "{stopped}");
        assert_eq!(server.join().expect("a server"), Err(ErrorKind::ConnectionReset), "{stopped}");
    }
}

/// What dies is the client's or the server's own process: the other of the two sees what it would
/// have seen without a tunnel.
#[test]
fn a_client_or_a_server_that_resets_is_seen_as_that() {
    let Some(mut bed) = Bed::new() else { return };
    begin(&mut bed);
    let server = witness(&bed);
    let client = bed.inside(A, move || {
        let mut stream = TcpStream::connect(HERE).expect("a connection");
        stream.write_all(b"a question").expect("to send");
        std::thread::sleep(Duration::from_millis(300));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("to be reset");
    });
    client.join().expect("a client");
    assert_eq!(server.join().expect("a server"), Err(ErrorKind::ConnectionReset));
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(THERE).expect("a port");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 10]).expect("the question");
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("to be reset");
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ends(&bed, HERE).join().expect("a client"), Some(ErrorKind::ConnectionReset));
    server.join().expect("a server");
}

/// A client for whom no descriptor is left hears so at once.
#[test]
fn nobody_waits_for_a_descriptor() {
    const CLIENTS: usize = 60;
    let Some(mut bed) = Bed::new() else { return };
    write(&bed);
    bed.start_as(A, &["prlimit", "--nofile=40:40"]);
    bed.start(B);
    let is_up = |bed: &Bed| bed.status(A).is_some_and(|it| it["state"] == "up");
    wait("a session", SOON, || is_up(&bed));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(THERE).expect("a port");
        listener.set_nonblocking(true).expect("a mode");
        ready.send(()).expect("somebody waits");
        let mut held = Vec::new();
        while is_over.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
            if let Ok((mut stream, _)) = listener.accept() {
                stream.write_all(b"x").expect("to send");
                held.push(stream);
            }
        }
    });
    is_ready.recv().expect("a server");
    let client = bed.inside(A, || {
        let clients: Vec<TcpStream> =
            (0..CLIENTS).map(|_| TcpStream::connect(HERE).expect("a connection")).collect();
        let is_served = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(SOON)).expect("a time");
            match stream.read(&mut [0]) {
                Ok(length) => length == 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                    false
                }
            }
        };
        clients.iter().filter(|it| is_served(it)).count()
    });
    let served = client.join().expect("the clients");
    assert_eq!(served, 40 - 24, "of {CLIENTS}");
    let inside = bed.status(A).expect("an answer")["inside"].clone();
    assert_eq!(inside["flows_refused"], CLIENTS - served, "{inside}");
    drop(over);
    server.join().expect("the server");
}
