//! Closed windows, half-closed connections, silence, narrow paths, floods and crowds: a protected
//! connection endures what plain TCP endures, and a takeover in the middle changes nothing. With
//! `HOLDFAST_MATRIX=full` everything takes a minute, or four gibibytes, or a million.

use crate::client::{Redis, ask_and_shut, body, in_namespace, on_client, service};
use crate::wire::{Forger, Worker};
use crate::world;
use holdfast_lab::load::{Action, pattern};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Host, Plan, Role, Testbed, interface};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use socket2::{Domain, Socket, Type};
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Half of the time for which a client does what is tested.
fn a_while() -> Duration {
    Duration::from_millis(if world::is_full() { 30_000 } else { 1_000 })
}

fn limit() -> world::Limit {
    world::limit(Duration::from_secs(90))
}

fn redis_port() -> SocketAddr {
    service(Program::Redis.port())
}

fn bytes(salt: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    pattern::append(&mut out, salt, 0, len);
    out
}

/// Kills the server and waits until the backup serves.
fn take_over(group: &Group<'_>) {
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
    world::wait_until("a takeover", || {
        group.status(Role::Backup).unwrap_or_default()["last_takeover"].is_object()
    });
}

/// With segments and a window as small as that a few bytes take a whole send buffer.
#[test]
fn who_takes_little_at_a_time_keeps_nobody_waiting() {
    let _limit = limit();
    world::with_redis(|testbed, group| {
        on_client(testbed, || {
            let mut other = Redis::connect(redis_port());
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.set_tcp_mss(88).expect("small segments");
            socket.set_recv_buffer_size(1).expect("a small window");
            socket.connect(&redis_port().into()).expect("a connection");
            let mut small = as_redis(socket);
            for _ in 0..4 {
                small.send(&[b"INFO"]);
                std::thread::sleep(a_while() / 4);
                other.ping();
            }
            take_over(group);
            other.ping();
        });
    });
}

#[test]
fn a_window_may_stay_closed() {
    const SIZE: u64 = 24 << 20;
    let _limit = limit();
    world::with_redis(|testbed, group| {
        on_client(testbed, || {
            let value = bytes(1, SIZE);
            let mut other = Redis::connect(redis_port());
            assert_eq!(other.ask(&[b"SET", b"large", &value]), "+OK");
            let mut patient = Redis::connect(redis_port());
            patient.send(&[b"GET", b"large"]);
            std::thread::sleep(a_while());
            take_over(group);
            other.ping();
            std::thread::sleep(a_while());
            assert!(patient.value() == value, "another value than was set");
            patient.ping();
        });
    });
}

#[test]
fn half_of_a_connection_may_be_closed_early() {
    let _limit = limit();
    let plan = Plan::default();
    world::with_server(Program::Python, 64 << 20, &plan, &GroupOptions::default(), |bed, group| {
        let www = bed.host(Role::Primary).outside().join("server/www");
        let mut files: Vec<_> = std::fs::read_dir(www)
            .expect("documents")
            .map(|entry| entry.expect("a document").path())
            .collect();
        files.sort_by_key(|path| path.metadata().map(|data| data.len()).unwrap_or_default());
        let name = |path: &std::path::Path| {
            path.file_name().expect("a name").to_string_lossy().into_owned()
        };
        let (small, large) = (&files[0], &files[files.len() - 1]);
        on_client(bed, || {
            let at = service(Program::Python.port());
            // The client has closed its half, and the server still sends.
            let mut slow = ask_and_shut(at, &name(large));
            let mut got = vec![0; 1 << 20];
            slow.read_exact(&mut got).expect("the beginning");
            // Both have closed their halves, and one has not closed its socket.
            let mut done = ask_and_shut(at, &name(small));
            let mut whole = Vec::new();
            done.read_to_end(&mut whole).expect("all of it");
            assert!(body(&whole) == std::fs::read(small).expect("a document"));
            std::thread::sleep(a_while());
            take_over(group);
            std::thread::sleep(a_while());
            slow.read_to_end(&mut got).expect("the rest");
            assert!(body(&got) == std::fs::read(large).expect("a document"), "another document");
            assert_eq!(done.read(&mut [0]).expect("no reset"), 0);
        });
    });
}

/// Nobody answers the survivor's keepalives (RFC 9293 §3.8.4), so it must find out, although
/// another machine's kernel had set the timer.
#[test]
fn a_client_that_vanished_is_forgotten() {
    let _limit = limit();
    world::with_redis(|testbed, group| {
        let client = testbed.host(Role::Client);
        on_client(testbed, || {
            let mut first = Redis::connect(redis_port());
            assert_eq!(first.ask(&[b"CONFIG", b"SET", b"tcp-keepalive", b"3"]), "+OK");
            let _idle: Vec<Redis> = (0..4).map(|_| Redis::connect(redis_port())).collect();
            drop(first);
            client.ip("link set c0 down\n").expect("the client is cut off");
            take_over(group);
            let survivor = testbed.host(Role::Backup);
            world::wait_until("four connections", || established(survivor) == 4);
            let start = Instant::now();
            while established(survivor) > 0 {
                assert!(start.elapsed() < Duration::from_secs(25), "still remembered");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    });
}

/// Number of redis' connections in a host's kernel.
fn established(host: &Host) -> usize {
    let port = format!("sport = :{}", Program::Redis.port());
    let mut ss = Command::new("ss");
    ss.args(["-N", host.namespace(), "-Htn", "state", "established", &port]);
    let output = ss.output().expect("ss starts");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// A router on the path gets a smaller MTU, and reports it (RFC 1191 §4): to the primary, and after
/// the takeover to the backup, which had never heard of it.
#[test]
fn a_path_may_become_narrower() {
    const SIZE: u64 = 4 << 20;
    let _limit = limit();
    world::with_redis(|testbed, group| {
        let far = format!("{}-far", testbed.id());
        let ip = |words: &str| {
            let done = Command::new("ip").args(words.split(' ')).status().expect("ip starts");
            assert!(done.success(), "ip {words}");
        };
        let client = testbed.host(Role::Client);
        let router = client.namespace();
        ip(&format!("netns add {far}"));
        ip(&format!("-n {router} link add f0 type veth peer name f1 netns {far}"));
        ip(&format!("-n {router} addr add 10.7.0.1/24 dev f0"));
        ip(&format!("-n {router} link set f0 up"));
        ip(&format!("-n {far} addr add 10.7.0.2/24 dev f1"));
        ip(&format!("-n {far} link set f1 up"));
        ip(&format!("-n {far} route add default via 10.7.0.1"));
        ip(&format!(
            "-n {} route add 10.7.0.0/24 via 10.8.0.2",
            testbed.host(Role::Edge).namespace()
        ));
        client.sysctl(&["net.ipv4.ip_forward=1"]).expect("the client's host routes");
        in_namespace(&far, || {
            let value = bytes(2, SIZE);
            let mut redis = Redis::connect(redis_port());
            let mut round = || {
                assert_eq!(redis.ask(&[b"SET", b"large", &value]), "+OK");
                redis.send(&[b"GET", b"large"]);
                assert!(redis.value() == value, "another value than was set");
            };
            round();
            // The members' own links get the smaller MTU first.
            for (role, interface) in [
                (Role::Edge, interface::EDGE_PRIMARY),
                (Role::Edge, interface::EDGE_BACKUP),
                (Role::Primary, interface::PRIMARY),
                (Role::Backup, interface::BACKUP),
            ] {
                let host = testbed.host(role).namespace();
                ip(&format!("-n {host} link set {interface} mtu 1300"));
            }
            round();
            ip(&format!("-n {router} link set f0 mtu 1200"));
            ip(&format!("-n {far} link set f1 mtu 1200"));
            round();
            take_over(group);
            round();
            ip(&format!("-n {router} link set f0 mtu 900"));
            ip(&format!("-n {far} link set f1 mtu 900"));
            round();
        });
    });
}

/// A flood of SYNs from many addresses harms no existing connection, memory is bounded, the
/// counters show it, and new clients get in when it is over.
#[test]
fn a_flood_of_syns_harms_nobody() {
    let _limit = limit();
    let count: u32 = if world::is_full() { 1_000_000 } else { 50_000 };
    world::with_redis(|testbed, group| {
        let edge = testbed.host(Role::Edge);
        edge.ip("route add 10.6.0.0/16 via 10.8.0.2\n").expect("a route");
        let roles = [Role::Edge, Role::Primary, Role::Backup];
        let resident = || roles.map(|role| resident_kib(group.daemon_pid(role).expect("a daemon")));
        let before = resident();
        let server = group.server_pid(Role::Primary).expect("a server");
        let duration_ms = if world::is_full() { 20_000 } else { 3_000 };
        let load = world::counting(1_500, duration_ms, Some(vec![(0, Action::Kill(server))]));
        let run = world::start(testbed, &load);
        let dropped = || {
            [Role::Edge, Role::Primary]
                .map(|role| lost_on_arrival(testbed.host(role)))
                .iter()
                .sum::<u64>()
        };
        let dropped_before = dropped();
        let sent = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&sent);
        let flood = Worker::start(testbed.host(Role::Client), move |wire| {
            let forger = Forger::open(None);
            for number in (0..count).take_while(|_| wire.should_go_on()) {
                told.fetch_add(u64::from(forger.send(from_anywhere(number))), Relaxed);
            }
        });
        // A busy machine sends few SYNs in this time; those that it sends later go to the backup.
        let mut to_primary = 0;
        loop {
            let so_far = sent.load(Relaxed);
            if world::has_ended(server) {
                break;
            }
            to_primary = so_far;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(to_primary > FLOOD_MIN, "only {to_primary} were sent");
        // A kernel that gets no processor drops packets before any program of Holdfast sees them.
        let arrived = to_primary.saturating_sub(dropped() - dropped_before);
        let counters =
            group.status(Role::Primary).expect("the primary answers")["counters"].clone();
        assert!(
            counters["gate.syns"].as_u64() > Some(arrived / 2),
            "{arrived} of {to_primary} arrived: {counters}"
        );
        flood.stop();
        for ((role, before), after) in roles.into_iter().zip(before).zip(resident()) {
            let name = role.name();
            assert!(after < before + GROWTH_MAX_KIB, "{name} grew from {before} to {after} KiB");
        }
        world::finish(run, group);
        on_client(testbed, || {
            let start = Instant::now();
            while Redis::try_connect(redis_port(), Duration::from_secs(3)).is_err() {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody gets in any more");
            }
        });
    });
}

/// SYNs of strangers, few enough for a listener's queue.
const STRANGERS: u32 = 100;

/// Lets strangers begin handshakes with the primary, and ends its server.
fn take_over_handshakes(testbed: &Testbed, group: &Group<'_>) {
    testbed.host(Role::Edge).ip("route add 10.6.0.0/16 via 10.8.0.2\n").expect("a route");
    let sent = Worker::start(testbed.host(Role::Client), |_| {
        let forger = Forger::open(None);
        (0..STRANGERS).filter(|number| forger.send(from_anywhere(*number))).count()
    });
    assert_eq!(sent.stop(), STRANGERS as usize);
    // The records of the handshakes are on their way.
    std::thread::sleep(Duration::from_millis(200));
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
}

/// Number of strangers' connections that the backup's kernel takes for established.
fn strangers(testbed: &Testbed) -> usize {
    let mut ss = testbed.host(Role::Backup).command("ss");
    let shown = ss.args(["-Htn", "state", "established", "dst", "10.6.0.0/16"]).output();
    String::from_utf8_lossy(&shown.expect("ss runs").stdout).lines().count()
}

/// A handshake that the takeover has rebuilt counts as a connection, and nothing else would ever
/// end it: each takeover would leave a full queue of them at the listener.
#[test]
fn handshakes_that_nobody_answers_end_after_a_takeover() {
    let _limit = limit();
    world::with_redis(|testbed, group| {
        let mut steady = on_client(testbed, || Redis::connect(redis_port()));
        take_over_handshakes(testbed, group);
        steady.ping();
        assert!(strangers(testbed) > STRANGERS as usize / 2, "nothing was rebuilt");
        // Some are over before all of them are ended, and the kernel then finds the listener in
        // their place.
        let mut ss = testbed.host(Role::Backup).command("ss");
        assert!(ss.args(["-K", "dst", "10.6.0.0/26"]).output().expect("ss runs").status.success());
        world::wait_until("their end", || strangers(testbed) == 0);
        steady.ping();
        let ended = || group.details(Role::Backup, "handshakes").len();
        world::wait_until("the event", || ended() > 0);
        on_client(testbed, || Redis::connect(redis_port())).ping();
        assert_eq!(ended(), 1);
    });
}

/// The daemon that would end them is killed before; the next one knows which they are, and that
/// others, who have said nothing for as long, are clients.
#[test]
fn handshakes_that_nobody_answers_end_although_the_daemon_is_killed() {
    let _limit = limit();
    world::with_redis_mut(|testbed, group| {
        let mut steady = on_client(testbed, || Redis::connect(redis_port()));
        let mut silent = on_client(testbed, || Redis::connect(redis_port()));
        take_over_handshakes(testbed, group);
        steady.ping();
        assert!(strangers(testbed) > STRANGERS as usize / 2, "nothing was rebuilt");
        world::signal(group.daemon_pid(Role::Backup).expect("a daemon"), "KILL");
        std::thread::sleep(Duration::from_secs(1));
        steady.ping();
        assert!(strangers(testbed) > STRANGERS as usize / 2, "somebody else has ended them");
        group.restart(Role::Backup).expect("a member starts again");
        world::wait_until("their end", || strangers(testbed) == 0);
        assert_eq!(group.details(Role::Backup, "handshakes").len(), 1);
        silent.ping();
        steady.ping();
        on_client(testbed, || Redis::connect(redis_port())).ping();
    });
}

/// Least number of SYNs that make a flood: a few times redis' backlog.
const FLOOD_MIN: u64 = 1500;

/// Number of packets for which a host's kernel had no room when they arrived.
fn lost_on_arrival(host: &Host) -> u64 {
    /// Index of the field for dropped packets in a line of net/dev, after the interface's name.
    const DROPPED: usize = 3;
    let table = std::fs::read_to_string(format!("/proc/{}/net/dev", host.holder()));
    let of = |line: &str| -> Option<u64> {
        line.split_once(':')?.1.split_whitespace().nth(DROPPED)?.parse().ok()
    };
    table.expect("its interfaces").lines().filter_map(of).sum()
}

/// A few hundred unanswered SYNs each second would fill the queue of a listener without SYN cookies
/// within one second. New clients get in all the same.
#[test]
fn new_clients_get_in_among_strangers_syns() {
    const SYNS_PER_SECOND: u128 = 600;
    const CLIENTS: usize = 10;
    let _limit = limit();
    let options = GroupOptions { heartbeat_ms: Some(150), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        testbed.host(Role::Edge).ip("route add 10.6.0.0/16 via 10.8.0.2\n").expect("a route");
        let mut steady = on_client(testbed, || Redis::connect(redis_port()));
        let flood = Worker::start(testbed.host(Role::Client), |wire| {
            let (forger, start, mut sent) = (Forger::open(None), Instant::now(), 0);
            while wire.should_go_on() {
                while u128::from(sent) < start.elapsed().as_millis() * SYNS_PER_SECOND / 1000 {
                    forger.send(from_anywhere(sent));
                    sent += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            sent
        });
        std::thread::sleep(Duration::from_secs(3));
        let connects = |_: &usize| Redis::try_connect(redis_port(), Duration::from_secs(2)).is_ok();
        let connected = on_client(testbed, || (0..CLIENTS).filter(connects).count());
        steady.ping();
        assert!(flood.stop() > 1500, "this was no flood");
        assert_eq!(connected, CLIENTS);
        let counters = group.status(Role::Primary).expect("an answer")["counters"].clone();
        assert!(counters["log.handshakes_ended"].as_u64() > Some(500), "{counters}");
    });
}

/// Most growth of memory in KiB: two and a half KiB for each of the 32,768 connections of the
/// default limit.
const GROWTH_MAX_KIB: u64 = 80 << 10;

fn from_anywhere(number: u32) -> Vec<u8> {
    let [_, high, low, last] = number.to_be_bytes();
    let seq = SeqNo(number.wrapping_mul(2_654_435_761));
    a_syn([10, 6, low, last], 20_000 + u16::from(high), seq)
}

fn a_syn(client: [u8; 4], client_port: u16, seq: SeqNo) -> Vec<u8> {
    let mapped = |address: [u8; 4]| Ipv4Addr::from(address).to_ipv6_mapped().octets();
    let segment = TcpSegment {
        key: ConnKey {
            server: mapped([10, 9, 0, 100]),
            client: mapped(client),
            server_port: Program::Redis.port(),
            client_port,
        },
        to_client: false,
        seq,
        ack: SeqNo(0),
        flags: Flags::SYN,
        window: 64_240,
        options: TcpOptions { mss: Some(1460), ..TcpOptions::default() },
        payload: &[],
    };
    segment.build().expect("a packet")
}

/// An old SYN arrives late, and the client's kernel refuses the connection that it began. The next
/// connection of the same tuple is a new one (RFC 9293 §3.5 figure 9).
#[test]
fn an_old_syn_takes_nobodys_place() {
    const PORT: u16 = 21_000;
    let _limit = limit();
    world::with_redis(|testbed, group| {
        on_client(testbed, || {
            Redis::connect(redis_port());
            assert!(Forger::open(None).send(a_syn([10, 8, 0, 2], PORT, SeqNo(77))));
            std::thread::sleep(Duration::from_millis(200));
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            let own = SocketAddr::from(([10, 8, 0, 2], PORT));
            socket.bind(&own.into()).expect("the port is free");
            socket.connect(&redis_port().into()).expect("a connection");
            let mut redis = as_redis(socket);
            assert_eq!(redis.ask(&[b"INCR", b"n"]), ":1");
            take_over(group);
            assert_eq!(redis.ask(&[b"INCR", b"n"]), ":2");
        });
    });
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its size");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

/// Ten times as many connections as are allowed: the first ones live, the others wait unanswered,
/// and the survivor of a takeover has all that were served, keeps to the limit as well, and can be
/// joined.
#[test]
fn the_limit_of_connections_is_kept() {
    const MAX: u32 = 64;
    let _limit = limit();
    let options = GroupOptions { connections_max: Some(MAX), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        on_client(testbed, || {
            let sockets: Vec<Socket> = (0..10 * MAX).map(|_| try_to_connect()).collect();
            std::thread::sleep(Duration::from_millis(1500));
            let served = sockets.into_iter().filter(|socket| socket.peer_addr().is_ok());
            let mut served: Vec<Redis> = served.map(as_redis).collect();
            assert_eq!(served.len() as u32, MAX);
            served.iter_mut().for_each(Redis::ping);
            let counters = group.status(Role::Primary).expect("an answer")["counters"].clone();
            assert!(counters["gate.refused_slots"].as_u64() > Some(u64::from(MAX)), "{counters}");
            assert!(Redis::try_connect(redis_port(), Duration::from_millis(300)).is_err());
            group.kill_member(Role::Primary).expect("they die");
            served.iter_mut().for_each(Redis::ping);
            // The limit of a lone server is that of a pair, or no backup could join.
            assert!(Redis::try_connect(redis_port(), Duration::from_millis(300)).is_err());
            served.truncate(served.len() / 2);
            let mut late = Redis::connect(redis_port());
            group.start_daemon(Role::Primary).expect("a daemon");
            world::heals(group, "it joins");
            late.ping();
            served.iter_mut().for_each(Redis::ping);
        });
    });
}

/// A connection whose answer is not waited for.
fn try_to_connect() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_nonblocking(true).expect("it does not wait");
    let _ = socket.connect(&redis_port().into());
    socket
}

fn as_redis(socket: Socket) -> Redis {
    socket.set_nonblocking(false).expect("it waits again");
    Redis::of(TcpStream::from(socket)).expect("timeouts")
}

/// Sequence numbers wrap (RFC 9293 §3.4) in both directions of long-lived
/// connections, before a takeover and after it.
#[test]
fn sequence_numbers_wrap() {
    const SIZE: u64 = 16 << 20;
    let _limit = limit();
    let rounds = if world::is_full() { (5_u64 << 30) / SIZE } else { 4 };
    world::with_redis(|testbed, group| {
        on_client(testbed, || {
            let value = bytes(3, SIZE);
            let mut upload = Redis::connect(redis_port());
            let mut download = Redis::connect(redis_port());
            let mut round = || {
                assert_eq!(upload.ask(&[b"SET", b"large", &value]), "+OK");
                download.send(&[b"GET", b"large"]);
                assert!(download.value() == value, "another value than was set");
            };
            (0..rounds).for_each(|_| round());
            take_over(group);
            round();
        });
    });
}
