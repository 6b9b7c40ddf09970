//! A byte that a client sends as urgent is part of the stream for both members: the edge passes it
//! on like any other. A kernel would take it out of what the server reads while the copy still has
//! it, and after a takeover every later byte would be read one place off.

use crate::client::{Redis, on_client};
use crate::world;
use holdfast_lab::testbed::addresses;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Role, Testbed};
use socket2::SockRef;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

fn connect(address: &str) -> TcpStream {
    let at = SocketAddr::new(address.parse().expect("an address"), Program::Redis.port());
    let stream = TcpStream::connect(at).expect("a connection");
    stream.set_read_timeout(Some(world::WAIT_LIMIT)).expect("a timeout");
    stream
}

fn ask(stream: &mut TcpStream, line: &str, answer: &str) {
    stream.write_all(line.as_bytes()).expect("the server takes it");
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

/// Sends ten commands, an empty line that is urgent or not, and half of a command.
fn begin(address: &str, key: &str, urgent: bool) -> TcpStream {
    let mut stream = connect(address);
    ask(&mut stream, "PING\r\n", "+PONG\r\n");
    if urgent {
        SockRef::from(&stream).send_out_of_band(b"\n").expect("the kernel takes it");
    } else {
        stream.write_all(b"\n").expect("the kernel takes it");
    }
    // Each command is a read that must be at the same place at the other member.
    for _ in 0..10 {
        ask(&mut stream, "PING\r\n", "+PONG\r\n");
    }
    stream.write_all(format!("SET {key} 12").as_bytes()).expect("the server takes it");
    stream
}

fn take_over(testbed: &Testbed, group: &Group<'_>) {
    on_client(testbed, || {
        let mut streams = Vec::new();
        for (name, address) in [("4", addresses::SERVICE_V4), ("6", addresses::SERVICE_V6)] {
            for (kind, urgent) in [("urgent", true), ("plain", false)] {
                let key = format!("{kind}{name}");
                streams.push((key.clone(), begin(address, &key, urgent)));
            }
        }
        // Waits until the server has read every half of a command before the fault.
        let at = SocketAddr::new(addresses::SERVICE_V4.parse().expect("v4"), Program::Redis.port());
        Redis::connect(at);
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        for (_, stream) in &mut streams {
            ask(stream, "34\r\n", "+OK\r\n");
        }
        for (key, stream) in &mut streams {
            ask(stream, &format!("GET {key}\r\n"), "$4\r\n1234\r\n");
        }
    });
}

#[test]
fn an_urgent_byte_is_a_byte_of_the_stream() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(300), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        take_over(testbed, group);
        let counters = group.status(Role::Backup).expect("a status")["counters"].clone();
        assert_eq!(counters["tap.conflicts"].as_u64().unwrap_or(0), 0, "{counters}");
    });
}
