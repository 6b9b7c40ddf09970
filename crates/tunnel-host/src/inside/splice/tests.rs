//! Two ends whose machines hand each other their datagrams.

use super::*;
use holdfast_tunnel::secure::SecretKey;
use holdfast_tunnel::{Ecn, Inside};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

struct End {
    splice: Splice,
    machine: Endpoint,
}

impl End {
    fn new(ports: &str) -> Self {
        let peer = SecretKey::from_random([5; 32]).public();
        let text = format!(
            "[tunnel]\nkey = \"a\"\nrun_dir = \"/nowhere\"\nmode = \"forward\"\n{ports}\n\
             [peer]\nkey = \"{peer}\"\naddress = \"192.0.2.1:5\"\n"
        );
        let path = Path::new("/etc/holdfast/tunnel/x.toml");
        let config = Config::parse(path, &text).expect("a file");
        let splice = Splice::open(&config).expect("ports");
        Self { splice, machine: Endpoint::new(config.machine(), 1, Duration::ZERO) }
    }

    fn turn(&mut self, other: &mut Self, now: Duration) {
        self.splice.take(&mut self.machine, true).expect("sockets");
        let mut bytes = Vec::new();
        while let Some(outgoing) = self.machine.poll_datagram(now, &mut bytes) {
            let taken =
                other.machine.handle_datagram(outgoing.number, &bytes, Ecn::NotCapable, now);
            taken.expect("the other end understands it");
        }
        while let Some(Inside::Stream(id, event)) = other.machine.poll_inside(now) {
            other.splice.hear(id, event, &mut other.machine);
        }
    }
}

/// A port at which nobody listens any more.
fn free() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address")
}

/// Connects to `target` through two ends, of which the far one allows `allowed`, and turns them until
/// the near one has lost the connection; what both have counted.
fn counted(target: SocketAddr, allowed: SocketAddr) -> (Counters, Counters) {
    let here = free();
    let mut near = End::new(&format!("forward = [\"tcp {here} -> {target}\"]"));
    let mut far = End::new(&format!("allow = [\"tcp {allowed}\"]"));
    let mut client = TcpStream::connect(here).expect("a connection");
    client.write_all(b"a question").expect("to send");
    for turn in 0..3000 {
        let now = Duration::from_millis(turn);
        near.turn(&mut far, now);
        far.turn(&mut near, now);
        if near.splice.counters.resets > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    client.read_to_end(&mut Vec::new()).expect_err("it is reset");
    (near.splice.counters(), far.splice.counters())
}

#[test]
fn a_target_that_refuses_is_counted_at_both_ends_by_what_each_knows() {
    let target = free();
    let (near, far) = counted(target, target);
    assert_eq!((near.resets, near.resets_unanswered, near.targets_unreached), (1, 1, 0));
    assert_eq!((far.resets, far.resets_unanswered, far.targets_unreached), (1, 0, 1));
    assert_eq!((far.not_allowed, far.flows_refused), (0, 0));
}

#[test]
fn a_target_that_is_not_allowed_is_unanswered_at_the_near_end() {
    let (near, far) = counted(free(), "10.0.0.5:53".parse().expect("an address"));
    assert_eq!((near.resets, near.resets_unanswered), (1, 1));
    assert_eq!((far.not_allowed, far.targets_unreached), (1, 0));
}

#[test]
fn a_server_that_has_answered_and_resets_then_refused_nobody() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = server.local_addr().expect("an address");
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = server.accept().expect("a connection");
        socket.read_exact(&mut [0; 10]).expect("the question");
        socket.write_all(b"so far").expect("to answer");
        std::thread::sleep(Duration::from_millis(300));
        connection::refuse(&socket);
    });
    let (near, far) = counted(target, target);
    serving.join().expect("a server");
    assert_eq!((near.resets, near.resets_unanswered), (1, 0));
    assert_eq!((far.resets, far.targets_unreached), (1, 0));
}
