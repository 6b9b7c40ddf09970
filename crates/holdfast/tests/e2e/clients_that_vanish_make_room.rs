//! Phones lose their network and send nothing more. Their connections must not stay in the edge's
//! flow table for ever, or no new client would be served.

use crate::client::{Redis, in_namespace, on_client, service};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Role, Testbed};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Number of flows for which the edge's table has room.
const FLOWS: u16 = 8;
const FULL: &str = "the flow table is full: new clients are refused";

/// Makes a server's kernel give up soon on a client that does not acknowledge its FIN.
fn give_up_soon(testbed: &Testbed) {
    for role in [Role::Primary, Role::Backup] {
        in_namespace(testbed.host(role).namespace(), || {
            std::fs::write("/proc/sys/net/ipv4/tcp_orphan_retries", "1").expect("it may be set");
        });
    }
}

/// Clients on ports from `first` on, so many that they fill the table.
fn crowd(first: u16) -> Vec<Redis> {
    let client = |port| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let own = SocketAddr::from(([10, 8, 0, 2], port));
        socket.bind(&own.into()).expect("the port is free");
        socket.connect(&service(Program::Redis.port()).into()).expect("a connection");
        let mut redis = Redis::of(TcpStream::from(socket)).expect("timeouts");
        redis.ping();
        redis
    };
    (first..first + FLOWS - 1).map(client).collect()
}

/// Discards everything that leaves the client's host from these ports from now on.
fn vanish(testbed: &Testbed, first: u16) {
    let ports = format!("{first}-{}", first + FLOWS);
    let words = ["rule", "add", "pref", "1", "ipproto", "tcp", "sport", &ports, "blackhole"];
    let mut ip = Command::new("ip");
    let status = ip.args(["-n", testbed.host(Role::Client).namespace()]).args(words).status();
    assert!(status.expect("ip starts").success());
}

fn edge(group: &Group<'_>) -> Value {
    group.status(Role::Edge).unwrap_or_default()
}

fn connects() -> bool {
    let at = service(Program::Redis.port());
    Redis::try_connect(at, Duration::from_millis(300)).is_ok()
}

/// Fills the table with clients that vanish, and checks that there is room for as many again.
fn come_and_go(testbed: &Testbed, group: &Group<'_>, steady: &mut Redis, first: u16) {
    let crowd = on_client(testbed, || crowd(first));
    world::wait_until("a full table", || edge(group)["connections"] == FLOWS);
    let status = edge(group);
    assert!(status["state"] != "protected" || status["reason"] == FULL, "{status}");
    let refused = edge(group)["counters"]["edge.refused_flows"].as_u64();
    assert!(!on_client(testbed, connects), "there was room");
    assert!(edge(group)["counters"]["edge.refused_flows"].as_u64() > refused);
    vanish(testbed, first);
    steady.ask(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    world::wait_until("room", || on_client(testbed, connects));
    steady.ping();
    drop(crowd);
}

#[test]
fn clients_that_vanish_make_room() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = GroupOptions {
        flows_max: Some(u32::from(FLOWS)),
        heartbeat_ms: Some(150),
        ..GroupOptions::default()
    };
    world::with_redis_and(&options, |testbed, group| {
        give_up_soon(testbed);
        let mut steady = on_client(testbed, || Redis::connect(service(Program::Redis.port())));
        come_and_go(testbed, group, &mut steady, 21_000);
        let vanished = edge(group)["counters"]["edge.vanished"].as_u64();
        assert!(vanished > Some(0), "{vanished:?}");
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "KILL");
        world::wait_until("a takeover", || {
            group.status(Role::Backup).unwrap_or_default()["last_takeover"].is_object()
        });
        steady.ping();
        come_and_go(testbed, group, &mut steady, 22_000);
        assert!(edge(group)["counters"]["edge.vanished"].as_u64() > vanished);
    });
}
