//! Scripts for traffic shaping and container networks clear `clsact` of interfaces, and Holdfast's
//! programs with it; others remove addresses, or files in `/run`. All of that is restored and
//! reported.

use crate::spread_world::{Client, Server, service};
use crate::{transit, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::strings::{Edge, Strings};
use holdfast_lab::testbed::{Host, Plan, Role, Testbed};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

fn mended(group: &Group<'_>, role: Role) -> usize {
    group.events(role).iter().filter(|(_, what)| what == "mended").count()
}

/// Puts another program in the place of the edge's, under a name that might be its own.
fn another_program_takes_its_place(testbed: &Testbed, group: &Group<'_>) {
    let edge = testbed.host(Role::Edge);
    let pin = edge.inside().join("run/bpf-edge/edge/edge_client");
    let mut tc = edge.command("tc");
    tc.args(["filter", "replace", "dev", "ep", "ingress", "protocol", "all", "prio", "102"]);
    tc.args(["handle", "1", "bpf", "da", "pinned"]).arg(pin);
    assert!(tc.status().expect("tc runs").success());
    world::wait_until("its return", || mended(group, Role::Edge) == 4);
    let events = group.verb(Role::Edge, &["events"]).expect("it runs").stdout;
    let events = String::from_utf8_lossy(&events);
    let told = "edge_member at ep (ingress) had been replaced by another program";
    assert!(events.contains(told), "{events}");
}

#[test]
fn what_was_removed_comes_back() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        // These are both places of the primary, that of the backup, whose gate is attached already,
        // and all of the edge.
        let places = [
            (Role::Primary, "p0", 2),
            (Role::Backup, "b0", 3),
            (Role::Edge, "ep", 1),
            (Role::Edge, "eb", 2),
            (Role::Edge, "ec", 3),
        ];
        for (role, interface, count) in places {
            let host = testbed.host(role);
            remove_clsact(host, interface);
            world::wait_for_group(group, "its return", || mended(group, role) == count);
            let mut tc = host.command("tc");
            let shown = tc.args(["filter", "show", "dev", interface, "ingress"]).output();
            let shown = String::from_utf8_lossy(&shown.expect("tc runs").stdout).into_owned();
            assert!(shown.contains("direct-action"), "{shown}");
        }
        another_program_takes_its_place(testbed, group);
        let primary = testbed.host(Role::Primary);
        for (count, address) in [(3, "10.9.0.100/32"), (4, "fd09::100/128")] {
            primary.ip(&format!("address del {address} dev p0\n")).expect("ip runs");
            world::wait_for_group(group, "its return", || mended(group, Role::Primary) == count);
        }
        for (role, count) in [(Role::Primary, 5), (Role::Backup, 4), (Role::Edge, 5)] {
            let folder = testbed.host(role).outside().join("run");
            for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
                // The mounts of the pins cannot be removed, and stay.
                let _ = std::fs::remove_file(entry.path());
            }
            world::wait_for_group(group, "its return", || mended(group, role) == count);
            let down = group.verb(role, &["down"]).expect("it runs");
            let said = String::from_utf8_lossy(&down.stderr).into_owned();
            assert!(!down.status.success() && said.contains("runs on this host"), "{said}");
        }
        let load = world::start(testbed, &world::counting(3000, 4, None));
        std::thread::sleep(Duration::from_millis(500));
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        world::finish(load, group);
        assert_eq!(group.status(Role::Backup).expect("an answer")["role"], "primary");
        testbed.host(Role::Backup).ip("address del 10.9.0.100/32 dev b0\n").expect("ip runs");
        world::wait_for_group(group, "its return", || mended(group, Role::Backup) == 5);
    });
}

/// Removes everything in the `run_dir`, including what is mounted there, as far as that is
/// possible.
fn empty(host: &Host) {
    let mut rm = host.command("rm");
    let gone = rm.arg("-rf").arg(host.inside().join("run")).output();
    gone.expect("rm runs");
}

fn has_clsact(host: &Host, interface: &str) -> bool {
    let mut tc = host.command("tc");
    let shown = tc.args(["qdisc", "show", "dev", interface]).output().expect("tc runs").stdout;
    String::from_utf8_lossy(&shown).contains("clsact")
}

/// The next daemon finds programs and maps by their names alone.
#[test]
fn the_names_of_a_members_programs_too() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    let role = Role::Primary;
    let plan = Plan::default();
    world::with_server(Program::Redis, 0, &plan, &options, |testbed, group| {
        group.stop_daemon(role.other(), Signal::KILL).expect("its end");
        world::wait_until("a member alone", || {
            group.status(role).unwrap_or_default()["state"] == "unprotected"
        });
        empty(testbed.host(role));
        world::wait_until("its return", || mended(group, role) == 1);
        // A lone server learns that it is alone within one of its turns.
        std::thread::sleep(Duration::from_secs(1));
        group.stop_daemon(role, Signal::KILL).expect("its end");
        group.start_daemon(role).expect("another");
        world::wait_until("the next daemon", || group.status(role).is_ok());
        group.start_daemon(role.other()).expect("a daemon");
        world::heals(group, "the other one joins");
        empty(testbed.host(role));
        world::wait_until("its return", || mended(group, role) == 1);
        let down = group.verb(role, &["down", "--stop"]).expect("it runs");
        assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
        assert!(!has_clsact(testbed.host(role), "p0"), "nothing is left");
    });
}

/// A spread group with two host servers, and the servers there.
fn spread_pair(testbed: &Testbed, at: SocketAddr) -> (SpreadGroup<'_>, [Server; 2]) {
    let hosts = [Role::Primary, Role::Backup];
    let mut group =
        SpreadGroup::start(testbed, &hosts, &SpreadOptions::default()).expect("the group stands");
    let servers = [(Role::Primary, b'a'), (Role::Backup, b'b')];
    let servers = servers.map(|(role, name)| Server::start(testbed, role, name, 8080));
    group.wait_members(&at.to_string(), &["a", "b"]).expect("both serve");
    (group, servers)
}

#[test]
fn the_names_of_a_redirectors_programs_too() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let at = service(false, 8080);
    let (mut group, _servers) = spread_pair(&testbed, at);
    let mut clients: Vec<(Client, u8)> = (0..8)
        .map(|_| {
            let mut client = Client::connect(&testbed, at).expect("a connection");
            let by = client.ask(100).expect("an answer");
            (client, by)
        })
        .collect();
    assert!(group.cli(&["edge", "drain", "b"]).expect("the verb runs").status.success());
    let edge = testbed.host(Role::Edge);
    for _ in 0..2 {
        empty(edge);
        world::wait_until("its return", || group.ask(&["edge", "show"]).is_ok());
        group.kill(Role::Edge).expect("killed");
        group.launch(Role::Edge).expect("another");
        let show = group.wait_members(&at.to_string(), &["a"]).expect("b is drained still");
        assert_eq!(show["flows"]["count"], 8, "{show}");
        for (client, by) in &mut clients {
            assert_eq!(client.ask(100).expect("an answer"), *by);
        }
    }
    empty(edge);
    world::wait_until("its return", || group.ask(&["edge", "show"]).is_ok());
    let down = group.verb(Role::Edge, &["down", "--stop"]).expect("it runs");
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(!has_clsact(edge, "ec"), "nothing is left");
}

fn mended_of(group: &SpreadGroup<'_>, role: Role) -> usize {
    let events = group.verb(role, &["events", "--json"]).expect("it runs").stdout;
    String::from_utf8_lossy(&events).matches("\"mended\"").count()
}

fn remove_clsact(host: &Host, interface: &str) {
    let mut tc = host.command("tc");
    let removed = tc.args(["qdisc", "del", "dev", interface, "clsact"]).status();
    assert!(removed.expect("tc runs").success(), "{interface}");
}

/// Waits until `status` has this state, and this in its reason.
fn wait_told(state: &str, reason: &str, status: impl Fn() -> Value) {
    world::wait_until(reason, || {
        let told = status();
        let why = told["reason"].as_str().unwrap_or_default();
        told["state"] == state && why.contains(reason)
    });
}

#[test]
fn of_a_spread_group() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let at = service(false, 8080);
    let (group, _servers) = spread_pair(&testbed, at);
    let serves = || Client::connect(&testbed, at).expect("a connection").ask(100).is_ok();
    let places = [(Role::Edge, "ec", 1), (Role::Primary, "p0", 2), (Role::Backup, "b0", 2)];
    for (role, interface, count) in places {
        remove_clsact(testbed.host(role), interface);
        world::wait_until("its return", || mended_of(&group, role) == count);
        assert!(serves() && serves());
    }
    let primary = testbed.host(Role::Primary);
    for (count, address) in [(3, "10.9.0.100/32"), (4, "fd09::100/128")] {
        primary.ip(&format!("address del {address} dev lo\n")).expect("ip runs");
        world::wait_until("its return", || mended_of(&group, Role::Primary) == count);
    }
    assert!(serves() && serves());
    assert_eq!(group.status(Role::Edge).expect("an answer")["state"], "protected");
    let edge = testbed.host(Role::Edge);
    edge.ip("address del 10.9.0.1/24 dev br0\n").expect("ip runs");
    let lost = "this host has lost its address 10.9.0.1 (edge.listen)";
    world::wait_until("the reason", || {
        let told = group.status(Role::Edge).unwrap_or_default();
        told["state"] != "protected" && told["reason"].as_str().is_some_and(|it| it.contains(lost))
    });
    edge.ip("link set ec down\n").expect("ip runs");
    wait_told("waiting", "no clients' interface of the edge is up: ec", || {
        group.status(Role::Edge).unwrap_or_default()
    });
}

fn status_of(strings: &Strings, edge: Edge) -> Value {
    let host = strings.edge(edge);
    let mut status = host.command(world::binary());
    status.args(["status", "--json", "--role", edge.name(), "--config"]);
    status.arg(host.inside().join("holdfast.toml"));
    serde_json::from_slice(&status.output().expect("it runs").stdout).unwrap_or_default()
}

fn mended_at(strings: &Strings, edge: Edge) -> usize {
    transit::events(strings, edge).iter().filter(|what| *what == "mended").count()
}

/// Gives the near edge another interface to string 2.
fn remake_string(strings: &Strings) {
    let (near, string) = (strings.edge(Edge::Near), strings.string(1));
    near.ip("link del n2\n").expect("ip runs");
    wait_told("unprotected", "n2", || status_of(strings, Edge::Near));
    near.ip(&format!("link add n2 type veth peer name sn netns {}\n", string.namespace()))
        .expect("ip runs");
    let address = |last, device| format!("address add 10.11.2.{last}/24 dev {device}\n");
    string
        .ip(&format!("link set sn up\n{}route add 10.8.0.0/24 via 10.11.2.1\n", address(2, "sn")))
        .expect("ip runs");
    near.ip(&format!("link set n2 up\n{}route add 10.12.2.1/32 via 10.11.2.2\n", address(1, "n2")))
        .expect("ip runs");
}

#[test]
fn of_an_edge_of_strings() {
    let _limit = world::limit(Duration::from_secs(90));
    let plan = transit::plan(&[100, 100], "mode = \"active/active\"");
    transit::with_strings(&plan, |strings| {
        let near = strings.edge(Edge::Near);
        for (count, interface) in [(1, "nc"), (2, "n1")] {
            remove_clsact(near, interface);
            world::wait_until("its return", || mended_at(strings, Edge::Near) == count);
            assert!(has_clsact(near, interface));
        }
        transit::finish(strings, transit::counting(strings, 300));
        near.ip("address del 10.11.1.1/24 dev n1\n").expect("ip runs");
        let lost = "this host has lost its address 10.11.1.1";
        wait_told("unprotected", lost, || status_of(strings, Edge::Near));
        near.ip("address add 10.11.1.1/24 dev n1\nroute add 10.12.1.1/32 via 10.11.1.2\n\
             route add 10.9.0.0/24 via 10.11.1.2\n")
            .expect("ip runs");
        wait_told("protected", "", || status_of(strings, Edge::Near));
        remake_string(strings);
        transit::wait_for_state(strings, Edge::Near, 1, "alive");
        transit::wait_for_state(strings, Edge::Far, 1, "alive");
        wait_told("protected", "", || status_of(strings, Edge::Near));
        assert!(has_clsact(near, "n2"));
        near.ip("link set n1 down\nlink set n1 name nx\nlink set nx up\n").expect("ip runs");
        let renamed = "the interface n1 is called nx now";
        wait_told("unprotected", renamed, || status_of(strings, Edge::Near));
        near.ip("link set nx down\nlink set nx name n1\nlink set n1 up\nroute add 10.12.1.1/32 via 10.11.1.2\n\
             route add 10.9.0.0/24 via 10.11.1.2\n")
            .expect("ip runs");
        wait_told("protected", "", || status_of(strings, Edge::Near));
        transit::finish(strings, transit::counting(strings, 300));
        near.ip("link set nc down\n").expect("ip runs");
        let unreached = "no outside interface of the edge is up: nc";
        wait_told("waiting", unreached, || status_of(strings, Edge::Near));
    });
}
