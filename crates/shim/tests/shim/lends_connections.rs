//! The daemon holds a connection of the server for a moment and looks at what it
//! has not read. Meanwhile the server cannot get rid of it: a socket that outlives
//! its descriptor would still be reported by the server's epoll sets.

use crate::harness::{installed, scratch, start, wait_for};
use holdfast_linux::spawn::Server;
use holdfast_linux::unread::{self, Unread};
use holdfast_wire::shm::{conn_state, mode};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const PORT: u16 = 16_390;

/// Confirms what the server logs, until then.
fn eventually(server: &Server, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        server.memory.set_stable(server.memory.tail());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn asked(server: &Server, client: &mut TcpStream, request: &str) -> String {
    client.write_all(request.as_bytes()).unwrap();
    let (mut answer, mut len) = ([0; 64], 0);
    eventually(server, "an answer", || {
        len = client.read(&mut answer).unwrap_or(0);
        len > 0
    });
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

/// The newest connection: its accept number, descriptor, and cookie.
fn newest(server: &Server) -> (u32, i32, u64) {
    let entry = |accept| server.memory.entry(accept);
    let accept = (1..100).take_while(|accept| entry(*accept).conn.load(SeqCst) == *accept).last();
    let accept = accept.expect("a connection");
    let fd = entry(accept).fd.load(SeqCst);
    let twin = server.take_fd(fd).expect("its descriptor");
    (accept, fd, unread::cookie(twin.as_fd()).unwrap())
}

#[test]
fn a_close_waits_for_the_daemons_look() {
    let port = PORT.to_string();
    let program = installed("/usr/bin/redis-server");
    let argv = [program, "--save", "", "--port", &port, "--bind", "127.0.0.1"];
    let dir = scratch("lends");
    let mut server = start(&argv, PORT, 0, mode::RECORD, &dir);
    wait_for(PORT);
    let mut client = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
    client.set_nonblocking(true).unwrap();
    assert_eq!(asked(&server, &mut client, "PING\r\n"), "+PONG\r\n");
    let (accept, fd, cookie) = newest(&server);
    assert!(server.borrow(accept, cookie + 1).is_none(), "another socket");
    assert!(server.borrow(accept + 1, cookie).is_none(), "nobody was accepted");

    let held = server.borrow(accept, cookie).expect("an open connection");
    let mut bytes = Vec::new();
    assert_eq!(unread::look(held.as_fd(), 0..6, &mut bytes).unwrap(), Unread::Nothing);
    assert_eq!(asked(&server, &mut client, "QUIT\r\n"), "+OK\r\n");
    let entry = server.memory.entry(accept);
    eventually(&server, "a close", || entry.state.load(SeqCst) == conn_state::CLOSED);
    let link = format!("/proc/{}/fd/{fd}", server.pid());
    std::thread::sleep(Duration::from_millis(20));
    assert!(std::fs::read_link(&link).is_ok(), "the close did not wait");
    drop(held);
    eventually(&server, "its end", || std::fs::read_link(&link).is_err());
    eventually(&server, "the stream's end", || client.read(&mut [0; 8]).is_ok_and(|n| n == 0));
    assert!(server.borrow(accept, cookie).is_none(), "a closed connection");
    server.kill();
    let _ = std::fs::remove_dir_all(dir);
}
