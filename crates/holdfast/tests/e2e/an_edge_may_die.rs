//! A spread group with two edges: whichever of them dies, no connection does.

use crate::client::{Redis, in_namespace};
use crate::spread_world::{Client, Server, service};
use crate::world::{binary, first_seed, limit, wait_until};
use holdfast_lab::load::{Group, Run, Spec, Workload};
use holdfast_lab::testbed::addresses;
use holdfast_lab::testbed::edges::{EdgeFault, Edges, EdgesOptions, Node, Way};
use holdfast_lab::testbed::server::{Program, Recipe};
use std::time::Duration;

const PORT: u16 = 8080;
const CONNECTIONS: usize = 50;
/// Time between two requests of a connection, in µs.
const PACE_US: u64 = 20_000;
/// Connections that are begun after each change.
const NEW: usize = 10;
/// How long the load goes on after the last fault.
const AFTERMATH: Duration = Duration::from_secs(2);
const BOTH: [&str; 2] = ["a", "b"];

#[test]
fn keepalived_leads_connections_to_the_other_edge() {
    each_edge_dies(Way::Keepalived);
}

#[test]
fn bgp_leads_connections_to_the_other_edge() {
    each_edge_dies(Way::Bgp);
}

#[test]
fn a_shared_hardware_address_leads_connections_to_the_other_edge() {
    each_edge_dies(Way::Mac);
}

/// One edge dies, comes back, and then the other one dies, under a load whose every byte is
/// checked.
fn each_edge_dies(way: Way) {
    let _limit = limit(Duration::from_secs(120));
    let mut bed = group(way, &Node::HOSTS);
    let port = Program::Redis.port();
    let _servers = Node::HOSTS.map(|host| {
        let recipe = Recipe::prepare(Program::Redis, bed.host(host), 0).expect("a folder");
        recipe.start_plain(bed.host(host)).expect("redis runs")
    });
    serves(&mut bed, port, &BOTH);
    let first = bed.wait_carried().expect("an edge carries");
    let second = first.other_edge();
    let load = Run::start(bed.host(Node::Client), &steady(port)).expect("the load starts");
    new_connections(&bed, port);

    bed.breaks(EdgeFault::Kill, first).expect("it dies");
    bed.wait_only(second).expect("the other one carries");
    new_connections(&bed, port);

    bed.boot(first).expect("it boots");
    bed.wait_hosts(BOTH.len()).expect("it hears the host servers");
    serves(&mut bed, port, &BOTH);
    wait_until("a healthy edge", || bed.is_healthy(first).expect("an answer"));
    bed.wait_carried().expect("an edge carries");
    new_connections(&bed, port);

    bed.breaks(EdgeFault::Kill, second).expect("it dies");
    bed.wait_only(first).expect("the other one carries");
    new_connections(&bed, port);
    if way == Way::Mac {
        // Nobody sends anything from the shared address, or one port would get all that goes to it.
        assert!(!bed.has_learnt_gateway().expect("an answer"), "the switch floods");
    }

    std::thread::sleep(AFTERMATH);
    let report = load.finish().unwrap_or_else(|error| panic!("{error:#}\n{}", bed.logs()));
    let errors: Vec<_> = report.connections.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(report.all_survived(), "{errors:?}\n{}", bed.logs());
    assert!(report.connections.iter().all(|it| it.replies > 20), "all of them talked");
}

#[test]
fn what_a_drain_left_behind_outlives_an_edge() {
    let _limit = limit(Duration::from_secs(90));
    let mut bed = group(Way::Keepalived, &Node::HOSTS);
    let _servers = [(Node::A, b'a'), (Node::B, b'b')]
        .map(|(host, name)| Server::on(bed.host(host), name, PORT));
    serves(&mut bed, PORT, &BOTH);
    let first = bed.wait_carried().expect("an edge carries");
    let mut clients: Vec<(Client, u8)> = (0..CONNECTIONS).map(|i| connect(&bed, i)).collect();
    let of_b = clients.iter().filter(|(_, by)| *by == b'b').count();
    assert!((5..=45).contains(&of_b), "{of_b} of {CONNECTIONS}");

    let done = bed.cli(first, &["edge", "drain", "b"]).expect("the verb runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serves(&mut bed, PORT, &["a"]);
    check(&mut clients, &bed, "after a host server was drained");

    bed.breaks(EdgeFault::Kill, first).expect("it dies");
    bed.wait_only(first.other_edge()).expect("the other one carries");
    check(&mut clients, &bed, "after the edge died");
    for i in 0..NEW {
        assert_eq!(connect(&bed, i).1, b'a', "the drain is known to the other edge");
    }

    // An edge that starts learns where they are from the one that lives.
    bed.boot(first).expect("it boots");
    serves(&mut bed, PORT, &["a"]);
    wait_until("a healthy edge", || bed.is_healthy(first).expect("an answer"));
    bed.breaks(EdgeFault::Kill, first.other_edge()).expect("it dies");
    bed.wait_only(first).expect("the booted one carries");
    check(&mut clients, &bed, "after the other edge died, too");
}

#[test]
fn who_joins_before_an_edge_dies_moves_nobody() {
    let _limit = limit(Duration::from_secs(90));
    let mut bed = group(Way::Keepalived, &[Node::A]);
    let _first = Server::on(bed.host(Node::A), b'a', PORT);
    serves(&mut bed, PORT, &["a"]);
    let edge = bed.wait_carried().expect("an edge carries");
    let mut clients: Vec<(Client, u8)> = (0..CONNECTIONS).map(|i| connect(&bed, i)).collect();

    bed.launch(Node::B).expect("a daemon");
    bed.wait_hosts(BOTH.len()).expect("it joins");
    let _second = Server::on(bed.host(Node::B), b'b', PORT);
    serves(&mut bed, PORT, &BOTH);
    bed.breaks(EdgeFault::Kill, edge).expect("it dies");
    bed.wait_only(edge.other_edge()).expect("the other one carries");
    check(&mut clients, &bed, "after a host server joined and the edge died");
    let new: Vec<u8> = (0..CONNECTIONS).map(|i| connect(&bed, i).1).collect();
    assert!(new.contains(&b'a') && new.contains(&b'b'), "{new:?}");
}

#[test]
fn an_edge_that_hears_no_host_server_is_not_healthy() {
    let _limit = limit(Duration::from_secs(60));
    let mut bed = group(Way::Keepalived, &[]);
    for edge in Node::EDGES {
        assert!(!bed.is_healthy(edge).expect("an answer"), "{}", edge.name());
    }
    bed.launch(Node::A).expect("a daemon");
    bed.wait_hosts(1).expect("it joins");
    let _server = Server::on(bed.host(Node::A), b'a', PORT);
    serves(&mut bed, PORT, &["a"]);
    for edge in Node::EDGES {
        wait_until("a healthy edge", || bed.is_healthy(edge).expect("an answer"));
    }
    let first = bed.wait_carried().expect("an edge carries");
    let mut clients = vec![connect(&bed, 0), connect(&bed, 1)];

    // An edge that clients reach and host servers do not is a hole.
    bed.breaks(EdgeFault::CutService, first).expect("it is unplugged");
    wait_until("an edge that is not healthy", || !bed.is_healthy(first).expect("an answer"));
    assert!(bed.is_healthy(first.other_edge()).expect("an answer"));
    bed.wait_only(first.other_edge()).expect("the other one carries");
    check(&mut clients, &bed, "at the other edge");
}

/// A group with two edges and these host servers.
fn group(way: Way, hosts: &[Node]) -> Edges {
    binary();
    let mut bed = Edges::build(way).expect("the testbed stands");
    bed.start(hosts, EdgesOptions::default()).expect("a group");
    bed
}

/// Waits until both families of the service are at these host servers.
fn serves(bed: &mut Edges, port: u16, members: &[&str]) {
    for v6 in [false, true] {
        bed.wait_members(&service(v6, port).to_string(), members).expect("they serve");
    }
}

/// Connections that talk until they are told to end.
fn steady(port: u16) -> Spec {
    Spec {
        address: addresses::SERVICE_V4.parse().expect("an address"),
        groups: vec![Group {
            interval_us: PACE_US,
            ..Group::usual(Workload::Pingpong, CONNECTIONS, port)
        }],
        duration_ms: 0,
        congestion: None,
        fault: None,
        seed: first_seed(),
        points: Vec::new(),
    }
}

/// New connections of both families are served.
fn new_connections(bed: &Edges, port: u16) {
    in_namespace(bed.host(Node::Client).namespace(), || {
        for i in 0..NEW {
            Redis::connect(service(i % 2 == 1, port)).ping();
        }
    });
}

/// A connection of one of the families, and who answers.
fn connect(bed: &Edges, i: usize) -> (Client, u8) {
    let to = service(i % 2 == 1, PORT);
    let client = Client::connect_from(bed.host(Node::Client), to);
    let mut client = client.unwrap_or_else(|error| panic!("{error}\n{}", bed.logs()));
    let by = client.ask(100).unwrap_or_else(|error| panic!("{error}\n{}", bed.logs()));
    (client, by)
}

fn check(clients: &mut [(Client, u8)], bed: &Edges, when: &str) {
    for (client, by) in clients {
        let answered = client.ask(5000);
        assert_eq!(answered.ok(), Some(*by), "{when}\n{}", bed.logs());
    }
}
