//! A server is busy while its client sends, and many of the copies to the backup are lost. What the
//! server has not read is fetched from its kernel: the client gets its ACKs long before it would
//! repeat anything, and a takeover in the middle loses nothing.

use crate::client::{Redis, on_client, tcp_counter};
use crate::world;
use holdfast_lab::emu::EmuSpec;
use holdfast_lab::load::{Group as LoadGroup, Workload, pattern};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Number of times that the server is busy.
const ROUNDS: u64 = 4;
const BUSY: Duration = Duration::from_secs(1);
/// Bytes that the client sends each time.
const SIZE: u64 = 100_000;

/// Bytes of the connection from `port` that the other end has not acknowledged.
fn unacknowledged(port: u16) -> u64 {
    let own = format!(":{port:04X}");
    let tables = ["tcp", "tcp6"].map(|table| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).expect("a table")
    });
    let lines = tables.iter().flat_map(|table| table.lines());
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = words.into_iter().find(|row| row[1].ends_with(&own)).expect("the connection");
    let (waiting, _) = row[4].split_once(':').expect("two queues");
    u64::from_str_radix(waiting, 16).expect("a number")
}

fn value(round: u64) -> Vec<u8> {
    let mut out = Vec::new();
    pattern::append(&mut out, round, 0, SIZE);
    out
}

fn key(round: u64) -> Vec<u8> {
    format!("key{round}").into_bytes()
}

/// One client keeps the server busy, another one sends.
struct Clients {
    busy: Redis,
    sender: Redis,
    sender_port: u16,
}

impl Clients {
    fn connect(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).expect("a connection");
        let sender_port = stream.local_addr().expect("a port").port();
        let sender = Redis::of(stream).expect("a stream");
        let mut this = Self { busy: Redis::connect(at), sender, sender_port };
        this.sender.ping();
        this
    }

    /// Sends while the server is busy; returns the time until the last ACK.
    fn send(&mut self, round: u64) -> Duration {
        let seconds = BUSY.as_secs().to_string();
        self.busy.send(&[b"DEBUG", b"SLEEP", seconds.as_bytes()]);
        let begun = Instant::now();
        std::thread::sleep(BUSY / 10);
        self.sender.send(&[b"SET", &key(round), &value(round)]);
        let sent = Instant::now();
        while unacknowledged(self.sender_port) > 0 {
            assert!(begun.elapsed() < BUSY, "no ACK before the server reads");
            std::thread::sleep(Duration::from_millis(1));
        }
        sent.elapsed()
    }

    fn answers(&mut self) {
        assert_eq!(self.sender.line(), "+OK");
        assert_eq!(self.busy.line(), "+OK");
    }
}

fn acknowledged_at_once(service: &str) {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let only_to: IpAddr = service.parse().expect("an address");
    let lossy = EmuSpec { loss: 0.2, only_to: Some(only_to), ..EmuSpec::default() };
    let testbed = Testbed::build(&Plan { tap_path: Some(lossy), ..Plan::default() });
    let testbed = testbed.expect("the testbed stands");
    let mut recipes = [Role::Primary, Role::Backup]
        .map(|role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a directory"));
    recipes[0].command.extend(["--enable-debug-command", "yes"].map(str::to_owned));
    let group = Group::start(&testbed, &recipes[0], &GroupOptions::default());
    let group = group.expect("the group protects");
    let fetched = || {
        let status = group.status(Role::Backup).expect("the backup answers");
        status["counters"]["tap.unread_filled"].as_u64().expect("a counter")
    };

    let at = SocketAddr::new(only_to, Program::Redis.port());
    let mut clients = on_client(&testbed, || Clients::connect(at));
    let before = tcp_counter(&testbed, "TCPTimeouts");
    let mut waited = Vec::new();
    for round in 0..ROUNDS {
        waited.push(on_client(&testbed, || clients.send(round)));
        clients.answers();
    }
    waited.push(on_client(&testbed, || clients.send(ROUNDS)));
    println!("{service}: {waited:?}, {} gaps", fetched());
    assert_eq!(tcp_counter(&testbed, "TCPTimeouts"), before, "a client has waited: {waited:?}");
    assert!(fetched() >= ROUNDS, "only {} gaps were filled", fetched());

    // Only the kernel and the backup have what was acknowledged last.
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
    clients.answers();
    let status = group.status(Role::Backup).expect("the survivor answers");
    assert!(status["last_takeover"].is_object(), "no takeover took place: {status}");
    for round in 0..=ROUNDS {
        clients.sender.send(&[b"GET", &key(round)]);
        assert!(clients.sender.value() == value(round), "another value than was set");
    }
}

/// Each request for bytes costs the primary some calls: a pair whose copies all arrive makes hardly
/// any.
#[test]
fn a_healthy_pair_asks_for_next_to_nothing() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let port = Program::Redis.port();
        let mut load = world::counting(2000, 0, None);
        load.groups.push(LoadGroup::usual(Workload::Upload, 4, port));
        world::finish(world::start(testbed, &load), group);
        let status = group.status(Role::Backup).expect("the backup answers");
        let count = |name| status["counters"][name].as_u64().expect("a counter");
        let (segments, asked) = (count("tap.segments"), count("tap.unread_asked"));
        assert!(asked * 1000 <= segments, "{asked} questions in {segments} segments");
    });
}

#[test]
fn unread_bytes_do_not_wait_for_the_client() {
    acknowledged_at_once(addresses::SERVICE_V4);
}

#[test]
fn unread_bytes_do_not_wait_for_the_client_over_ipv6() {
    acknowledged_at_once(addresses::SERVICE_V6);
}
