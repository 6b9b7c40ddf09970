//! A spread group: two host servers behind one address.

use crate::client::on_client;
use crate::spread_world::{Client, Server, ask_datagram, service};
use crate::world::{OF_PACKETS, binary, limit, signal};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::{Plan, Role, Testbed, interface};
use serde_json::json;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PORT: u16 = 8080;
const HOSTS: [Role; 2] = [Role::Primary, Role::Backup];
const BOTH: [&str; 2] = ["a", "b"];

fn connect(testbed: &Testbed, v6: bool) -> (Client, u8) {
    let mut client = Client::connect(testbed, service(v6, PORT)).expect("a connection");
    let by = client.ask(100).expect("an answer");
    (client, by)
}

fn check(clients: &mut [(Client, u8)], when: &str) {
    for (client, by) in clients {
        assert_eq!(client.ask(5000).expect(when), *by, "{when}");
    }
}

#[test]
fn host_servers_share_new_connections_and_keep_their_own() {
    let _limit = limit(Duration::from_secs(90));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &HOSTS[..1], &SpreadOptions::default()).expect("a group");
    let name = service(false, PORT).to_string();
    let first = Server::start(&testbed, Role::Primary, b'a', PORT);
    group.wait_members(&name, &["a"]).expect("the bind is noticed");
    let mut clients: Vec<(Client, u8)> = (0..8).map(|i| connect(&testbed, i % 2 == 1)).collect();
    assert!(clients.iter().all(|(_, by)| *by == b'a'));

    // Both daemons have given up what they do not need.
    for role in [Role::Edge, Role::Primary] {
        let rights = group.status(role).expect("an answer")["rights"].clone();
        let listed = rights["capabilities"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = listed.iter().filter_map(|name| name.as_str()).collect();
        assert!(names.iter().all(|name| OF_PACKETS.contains(name)), "{role:?}: {names:?}");
        assert!(names.contains(&"CAP_NET_ADMIN"), "{role:?}: {names:?}");
        assert_eq!(
            (&rights["filtered"], &rights["no_new_privileges"]),
            (&true.into(), &true.into())
        );
    }

    // Adding a host server moves nobody, and it gets its share.
    group.launch(Role::Backup).expect("a daemon");
    group.wait_hosts(2).expect("it joins");
    let second = Server::start(&testbed, Role::Backup, b'b', PORT);
    group.wait_members(&name, &BOTH).expect("the second joins");
    group.wait_members(&service(true, PORT).to_string(), &BOTH).expect("the second joins");
    check(&mut clients, "after one was added");
    clients.extend((0..40).map(|i| connect(&testbed, i % 2 == 1)));
    let of_b = clients.iter().filter(|(_, by)| *by == b'b').count();
    assert!((8..=32).contains(&of_b), "{of_b} of 40");

    // Draining one moves nobody either.
    assert!(group.cli(&["edge", "drain", "b"]).expect("the verb runs").status.success());
    group.wait_members(&name, &["a"]).expect("it is drained");
    check(&mut clients, "after one was drained");
    assert!((0..10).all(|_| connect(&testbed, false).1 == b'a'), "new ones go elsewhere");
    group.cli(&["edge", "drain", "b", "--end"]).expect("the verb runs");
    group.wait_members(&name, &BOTH).expect("it is back");

    // A server that stops listening is withdrawn; its connections stay.
    first.stop();
    group.wait_members(&name, &["b"]).expect("leaving is noticed");
    check(&mut clients, "after a server stopped listening");
    let first = Server::start(&testbed, Role::Primary, b'a', PORT);
    group.wait_members(&name, &BOTH).expect("it is back");

    // The data path does not need the edge's daemon, and a new daemon finds everything.
    group.kill(Role::Edge).expect("killed");
    check(&mut clients, "without the edge's daemon");
    assert!([b'a', b'b'].contains(&connect(&testbed, false).1));
    group.launch(Role::Edge).expect("a daemon");
    group.wait_members(&name, &BOTH).expect("it is as it was");
    check(&mut clients, "after the edge's daemon came back");

    // A host server that dies is noticed by its silence.
    let flags = testbed.host(Role::Backup).interface_flags(interface::BACKUP);
    std::fs::write(flags, "0x1002").expect("the interface goes down");
    group.wait_members(&name, &["a"]).expect("its death is noticed");
    clients.retain(|(_, by)| *by == b'a');
    check(&mut clients, "after the other host died");
    assert!((0..10).all(|_| connect(&testbed, true).1 == b'a'));
    let _ = (first, second);
}

#[test]
fn a_service_is_announced_because_it_was_bound() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &HOSTS, &SpreadOptions::default()).expect("a group");
    let counters = |group: &SpreadGroup<'_>, role: Role| {
        let status = group.status(role).expect("an answer");
        ["host.binds", "host.announced_at_bind"].map(|name| status["counters"][name].clone())
    };
    assert_eq!(counters(&group, Role::Primary), [0, 0], "{}", group.logs());
    // TCP and UDP of both families.
    let server = Server::start(&testbed, Role::Primary, b'a', PORT);
    for v6 in [false, true] {
        let service = service(v6, PORT).to_string();
        for name in [service.clone(), format!("{service}/udp")] {
            group.wait_members(&name, &["a"]).expect("the bind is noticed");
        }
    }
    assert_eq!(counters(&group, Role::Primary), [4, 4], "{}", group.logs());
    assert_eq!(counters(&group, Role::Backup), [0, 0], "another host of the same kernel");
    // A server that stops listening is still noticed by looking.
    server.stop();
    group.wait_members(&service(false, PORT).to_string(), &[]).expect("leaving is noticed");
    assert_eq!(counters(&group, Role::Primary), [4, 4]);
}

#[test]
fn a_full_table_moves_nobody_while_a_host_server_is_drained() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let options = SpreadOptions { flows_max: 16, ..SpreadOptions::default() };
    let mut group = SpreadGroup::start(&testbed, &HOSTS, &options).expect("a group");
    let name = service(false, PORT).to_string();
    let _servers = [
        Server::start(&testbed, Role::Primary, b'a', PORT),
        Server::start(&testbed, Role::Backup, b'b', PORT),
    ];
    group.wait_members(&name, &BOTH).expect("both serve");
    let mut clients: Vec<(Client, u8)> = (0..16).map(|_| connect(&testbed, false)).collect();
    group.cli(&["edge", "drain", "a"]).expect("the verb runs");
    group.wait_members(&name, &["b"]).expect("it is drained");
    // Other threads bind on other processors, more sockets than there is room for.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (at, limit) = (service(false, PORT), Duration::from_millis(300));
                // It depends on the order whether a connection is established.
                let _ = on_client(&testbed, || TcpStream::connect_timeout(&at, limit));
            });
        }
        for _ in 0..3 {
            check(&mut clients, "while the table is full");
        }
    });
    // Each family has a table of its own, so that of IPv6 has room.
    check(&mut [connect(&testbed, true)], "while the other family's table is full");
    let flows = |max: u32, count: [u32; 2]| {
        let [ipv4, ipv6] = count.map(|count| json!({ "count": count, "max": max }));
        json!({ "count": count[0] + count[1], "max": 2 * max, "ipv4": ipv4, "ipv6": ipv6 })
    };
    let show = group.ask(&["edge", "show"]).expect("an answer");
    assert_eq!(show["flows"], flows(16, [16, 1]), "{show}");
    assert_ne!(show["counters"]["refused_flows"], 0, "{show}");
}

#[test]
fn what_outlives_a_boot_of_the_edge_is_not_moved_by_a_drain() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &HOSTS, &SpreadOptions::default()).expect("a group");
    let names = [false, true].map(|v6| service(v6, PORT).to_string());
    let _servers = [
        Server::start(&testbed, Role::Primary, b'a', PORT),
        Server::start(&testbed, Role::Backup, b'b', PORT),
    ];
    let wait = |group: &mut SpreadGroup<'_>, members: &[&str]| {
        for name in &names {
            group.wait_members(name, members).expect("they serve");
        }
    };
    wait(&mut group, &BOTH);
    let mut clients: Vec<(Client, u8)> = (0..16).map(|i| connect(&testbed, i % 2 == 1)).collect();
    // As after a boot of the edge's host, nothing is left of what its kernel knew.
    group.kill(Role::Edge).expect("killed");
    assert!(group.verb(Role::Edge, &["down"]).expect("the verb runs").status.success());
    group.launch(Role::Edge).expect("a daemon");
    wait(&mut group, &BOTH);
    for _ in 0..2 {
        check(&mut clients, "after the edge's boot");
    }
    let show = group.ask(&["edge", "show"]).expect("an answer");
    assert_eq!(show["flows"]["count"], 16, "{show}");
    group.cli(&["edge", "drain", "b"]).expect("the verb runs");
    wait(&mut group, &["a"]);
    check(&mut clients, "after a host server was drained");
}

#[test]
fn a_server_that_hangs_gets_no_new_connections_until_it_goes_on() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &HOSTS, &SpreadOptions::default()).expect("a group");
    let at = service(false, PORT);
    let name = at.to_string();
    let mut redis = testbed.host(Role::Primary).network_command("redis-server");
    redis.args(["--bind", &at.ip().to_string(), "--port", &PORT.to_string(), "--save", ""]);
    redis.args(["--protected-mode", "no", "--dir", "/tmp"]).stdout(std::process::Stdio::null());
    let mut redis = redis.spawn().expect("redis runs");
    let _other = Server::start(&testbed, Role::Backup, b'b', PORT);
    group.wait_members(&name, &BOTH).expect("both serve");
    signal(redis.id(), "STOP");
    let stopped = Instant::now();
    let withdrawn = group.wait_members(&name, &["b"]);
    let took = stopped.elapsed();
    signal(redis.id(), "CONT");
    let back = withdrawn.and_then(|_| group.wait_members(&name, &BOTH));
    redis.kill().expect("its end");
    redis.wait().expect("its end");
    back.expect("it is withdrawn, and comes back");
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn no_size_of_a_clients_packet_is_a_black_hole() {
    let _limit = limit(Duration::from_secs(180));
    binary();
    for (layer2, mtu) in [(false, None), (false, Some(1400)), (true, None)] {
        let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
        // The client's link has a larger MTU than those of the host servers.
        testbed.host(Role::Client).ip("link set c0 mtu 9000\n").expect("an MTU");
        testbed.host(Role::Edge).ip("link set ec mtu 9000\n").expect("an MTU");
        let options = SpreadOptions { layer2, mtu, ..SpreadOptions::default() };
        let mut group = SpreadGroup::start(&testbed, &HOSTS[..1], &options).expect("a group");
        let _server = Server::start(&testbed, Role::Primary, b'a', PORT);
        for v6 in [false, true] {
            group.wait_members(&service(v6, PORT).to_string(), &["a"]).expect("served");
            let mut client = Client::connect(&testbed, service(v6, PORT)).expect("a connection");
            for bytes in (40..9000).step_by(337).chain(1380..1392).chain(1430..1470).chain([65_000])
            {
                let by = client.ask(bytes);
                assert!(by.is_ok(), "{bytes} bytes, IPv6 {v6}: {by:?}\n{}", group.logs());
            }
        }
        // Datagrams that may be cut and such that may not (by default Linux discovers the path's
        // MTU, and cuts by itself from then on).
        for v6 in [false, true] {
            for bytes in (12..8900).step_by(811).chain([1352, 1353, 1452, 1453, 1472, 1473]) {
                let by = ask_datagram(&testbed, service(v6, PORT), bytes);
                assert_eq!(by, Some(b'a'), "{bytes} bytes, IPv6 {v6}\n{}", group.logs());
            }
        }
        let set = ["net.ipv4.ip_no_pmtu_disc=1"];
        testbed.host(Role::Client).sysctl(&set).expect("a setting");
        // With what the client has learnt, it would cut by itself.
        testbed.host(Role::Client).ip("route flush cache\n").expect("forgotten");
        for bytes in [1400, 1453, 1472, 3000, 8900] {
            let by = ask_datagram(&testbed, service(false, PORT), bytes);
            assert_eq!(by, Some(b'a'), "{bytes} bytes without DF\n{}", group.logs());
        }
        let counters = group.ask(&["edge", "show"]).expect("an answer")["counters"].clone();
        for way in ["too_big", "fragments_followed"] {
            assert_ne!(counters[way], 0, "{way} was tried: {counters}");
        }
    }
}

#[test]
fn a_trace_and_a_show_tell_what_is_so() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &HOSTS, &SpreadOptions::default()).expect("a group");
    let name = service(false, PORT).to_string();
    let _server = Server::start(&testbed, Role::Primary, b'a', PORT);
    group.wait_members(&name, &["a"]).expect("served");
    let flow = format!("10.8.0.2:4242>{name}");
    let traced = group.ask(&["edge", "trace", &flow, "--syn"]).expect("an answer");
    assert_eq!(traced["verdict"], "redirected", "{traced}");
    assert_eq!(traced["member"], "a");
    assert!(traced["rewritten"][0].as_str().is_some_and(|t| t.contains("> 10.9.0.2")), "{traced}");
    let traced = group.ask(&["edge", "trace", &flow, "--payload", "1460"]).expect("an answer");
    assert_eq!(traced["verdict"], "answered: it does not fit", "{traced}");
    let elsewhere =
        group.ask(&["edge", "trace", "10.8.0.2:4242>10.9.0.100:22"]).expect("an answer");
    assert_eq!(elsewhere["verdict"], "plain: the stack forwards it");
    let show = group.ask(&["edge", "show"]).expect("an answer");
    assert_eq!(show["schema"], "holdfast.edge/1");
    assert_eq!((&show["kind"], &show["flows"]["count"]), (&"spread".into(), &0.into()), "{show}");
    assert_eq!(show["counters"]["redirected"], 0, "a trace counts nothing: {show}");
    let text = group.cli(&["edge", "show"]).expect("the verb runs").stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(&format!("service {name} -> a")), "{text}");
}
