//! A spread group between hosts whose wires all carry 1500 bytes: a packet that no longer fits the
//! path to a host server after encapsulation is cut by the edge or by its sender, and no byte is
//! lost.

use crate::client::{in_namespace, on_client};
use crate::spread_world::{Client, Server, service};
use crate::world::{binary, limit};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::{Plan, Role, Testbed, interface};
use holdfast_linux::link::complete_checksums;
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, scope};
use std::time::Duration;

const PORT: u16 = 8080;
const HOSTS: [Role; 2] = [Role::Primary, Role::Backup];
/// Sizes of the payload in bytes: around what fits an encapsulated packet (1452 of IPv4, 1412 of
/// IPv6), around what fits the client's wire (1472, 1452), the same for the last of several
/// fragments, and up to the largest possible.
const SIZES: [usize; 30] = [
    0, 1, 7, 512, 1411, 1412, 1413, 1451, 1452, 1453, 1454, 1460, 1471, 1472, 1473, 1480, 1481,
    2000, 2932, 2933, 2951, 2952, 2953, 4096, 8972, 9000, 16_384, 32_768, 65_000, 65_507,
];
/// Time after which a datagram that has not come back counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most attempts for a datagram: the first may teach the client the path's MTU.
const ATTEMPTS: u32 = 3;

/// How the client's datagrams reach the edge.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Whether the wire needs complete checksums, as every wire between machines.
    wire: bool,
    /// Whether the client discovers the path's MTU: it sets DF, as Linux does by default.
    discovery: bool,
}

impl Way {
    fn testbed(self) -> Testbed {
        let off = u8::from(!self.discovery);
        let client_sysctls = vec![format!("net.ipv4.ip_no_pmtu_disc={off}")];
        let plan = Plan { client_sysctls, ..Plan::default() };
        let testbed = Testbed::build(&plan).expect("the testbed stands");
        if self.wire {
            let completed = on_client(&testbed, || complete_checksums(interface::CLIENT));
            completed.expect("checksums are completed");
        }
        testbed
    }
}

/// Stops the echoes when it is dropped, even if a check fails: otherwise the test would wait for
/// them for ever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Echoes datagrams on a host until it is told to stop.
fn echo<'s>(scope: &'s Scope<'s, '_>, testbed: &Testbed, role: Role, stop: &'s AtomicBool) {
    for v6 in [false, true] {
        let socket = in_namespace(testbed.host(role).namespace(), || {
            UdpSocket::bind(service(v6, PORT)).expect("the service address is there")
        });
        socket.set_read_timeout(Some(LOOK_EVERY)).expect("a socket");
        scope.spawn(move || {
            let mut buffer = vec![0; 65_536];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                socket.send_to(&buffer[..length], from).expect("an answer leaves");
            }
        });
    }
}

/// Sends one datagram of a new flow, again if necessary; returns the attempt in which exactly it
/// came back.
fn exchange(testbed: &Testbed, to: SocketAddr, bytes: usize) -> Option<u32> {
    let message: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251 + bytes) as u8).collect();
    on_client(testbed, || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.connect(to).expect("a route");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut answer = vec![0; 65_536];
        (1..=ATTEMPTS).find(|_| {
            // What the kernel has learnt of the path is reported as an error.
            if socket.send(&message).is_err() {
                return false;
            }
            let Ok(length) = socket.recv(&mut answer) else { return false };
            assert!(answer[..length] == message, "{bytes} bytes came back as {length} others");
            true
        })
    })
}

fn exchange_all(testbed: &Testbed, group: &SpreadGroup<'_>, attempts: impl Fn(bool) -> u32) {
    for v6 in [false, true] {
        let sizes = SIZES.into_iter().filter(|bytes| !v6 || *bytes < 65_500);
        for bytes in sizes {
            let attempt = exchange(testbed, service(v6, PORT), bytes);
            assert!(
                attempt.is_some_and(|attempt| attempt <= attempts(v6)),
                "{bytes} bytes, IPv6 {v6}: {attempt:?}, {}\n{}",
                counters(group),
                group.logs()
            );
        }
    }
}

fn counters(group: &SpreadGroup<'_>) -> Value {
    group.ask(&["edge", "show"]).expect("an answer")["counters"].clone()
}

#[test]
fn datagrams_of_any_size_come_back_as_they_were() {
    let _limit = limit(Duration::from_secs(180));
    binary();
    for (wire, discovery) in [(true, false), (true, true), (false, false), (false, true)] {
        let way = Way { wire, discovery };
        let testbed = way.testbed();
        let mut group =
            SpreadGroup::start(&testbed, &HOSTS, &SpreadOptions::default()).expect("a group");
        let cuts = wire && !discovery;
        let stop = AtomicBool::new(false);
        scope(|scope| {
            let _stop = Stop(&stop);
            for role in HOSTS {
                echo(scope, &testbed, role, &stop);
            }
            for v6 in [false, true] {
                let name = format!("{}/udp", service(v6, PORT));
                group.wait_members(&name, &["a", "b"]).expect("both serve");
            }
            // A datagram that the edge cuts needs no second attempt.
            exchange_all(&testbed, &group, |v6| if cuts && !v6 { 1 } else { ATTEMPTS });
        });
        let counters = counters(&group);
        assert_eq!(counters["cut"] != 0, cuts, "{way:?}: {counters}");
        assert_ne!(counters["fragments_followed"], 0, "{way:?}: {counters}");
        assert_eq!(counters["odd"], 0, "{way:?}: {counters}");
        for role in HOSTS {
            let counters = group.status(role).expect("an answer")["counters"].clone();
            assert_ne!(counters["host.decapsulated"], 0, "{way:?}: {counters}");
            assert_eq!(counters["host.odd"], 0, "{way:?}: {counters}");
        }
    }
}

#[test]
fn segments_fit_although_nobody_has_clamped_them() {
    let _limit = limit(Duration::from_secs(120));
    binary();
    for discovery in [true, false] {
        let testbed = Way { wire: true, discovery }.testbed();
        let mut group =
            SpreadGroup::start(&testbed, &HOSTS[..1], &SpreadOptions::default()).expect("a group");
        let _server = Server::start(&testbed, Role::Primary, b'a', PORT);
        let mut tc = testbed.host(Role::Primary).command("tc");
        let clamp = ["filter", "del", "dev", interface::PRIMARY, "egress", "pref", "104"];
        assert!(tc.args(clamp).status().expect("tc runs").success(), "the clamp was there");
        for v6 in [false, true] {
            group.wait_members(&service(v6, PORT).to_string(), &["a"]).expect("served");
            let mut client = Client::connect(&testbed, service(v6, PORT)).expect("a connection");
            for bytes in [1, 1400, 1460, 3000, 65_000, 1_000_000] {
                let by = client.ask(bytes);
                assert!(by.is_ok(), "{bytes} bytes, IPv6 {v6}, discovery {discovery}: {by:?}");
            }
        }
        let counters = counters(&group);
        assert_ne!(counters["too_big"], 0, "{counters}");
        assert_eq!((&counters["cut"], &counters["odd"]), (&0.into(), &0.into()), "{counters}");
    }
}
