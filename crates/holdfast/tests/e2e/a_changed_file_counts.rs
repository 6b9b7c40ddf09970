//! A daemon reads its changed file when it is asked to (`holdfast reload`, SIGHUP), and ends nothing.

use crate::spread_world::{Client, Server, service};
use crate::world::{self, limit};
use holdfast_lab::testbed::ours::{Group, Signal};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

/// Name of a pair's file in the testbed.
const PAIR: &str = "holdfast.toml";

/// Replaces or adds settings in a file.
fn change(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).expect("a file");
    assert!(text.contains(from), "{from} in {text}");
    std::fs::write(path, text.replacen(from, to, 1)).expect("it is written");
}

fn file_of(testbed: &Testbed, role: Role, name: &str) -> PathBuf {
    testbed.host(role).outside().join(name)
}

/// The names of what counts, and of what waits, by a verb's answer.
fn told(output: &Output) -> [Vec<String>; 2] {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
    let named = |key: &str| {
        let changes = answer[key].as_array().into_iter().flatten();
        changes.map(|it| it["setting"].as_str().unwrap_or("?").to_owned()).collect()
    };
    [named("applied"), named("pending")]
}

fn reload(group: &Group<'_>, role: Role) -> [Vec<String>; 2] {
    told(&group.verb(role, &["reload", "--json"]).expect("the verb runs"))
}

#[test]
fn an_edge_and_members_take_over_what_they_can_under_load() {
    let _limit = limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        let load = world::start(testbed, &world::counting(2500, 0, None));
        // The edge begins anew, and nobody takes over.
        let path = file_of(testbed, Role::Edge, PAIR);
        change(&path, "[edge]", "[recover]\npolicy = \"head+tail\"\n\n[edge]");
        let daemon = group.daemon_pid(Role::Edge).expect("a daemon");
        let none: [String; 0] = [];
        let [counts, waits] = reload(group, Role::Edge);
        assert!(counts.contains(&"recover.policy".to_owned()), "{counts:?}");
        assert_eq!(waits, none);
        world::wait_until("the edge to begin anew", || {
            let shown = group.verb(Role::Edge, &["edge", "show", "--json"]);
            shown.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("head+tail"))
        });
        assert_eq!(
            group.daemon_pid(Role::Edge).expect("a daemon"),
            daemon,
            "it is the same process"
        );
        world::keeps_only(daemon, &world::OF_PACKETS);
        world::heals(group, "all hear each other again");

        // Members: one setting counts, one waits, and a file that is wrong changes nothing.
        let path = file_of(testbed, Role::Primary, PAIR);
        change(&path, "[group]", "[group]\nrejoin_max = 3\nconnections_max = 999");
        let [counts, waits] = reload(group, Role::Primary);
        assert_eq!(
            (counts, waits),
            (vec!["group.rejoin_max".to_owned()], vec!["group.connections_max".to_owned()])
        );
        let again = reload(group, Role::Primary);
        assert_eq!(
            again,
            [Vec::new(), vec!["group.connections_max".to_owned()]],
            "it counts already"
        );
        change(&path, "rejoin_max = 3", "rejoin_max = \"x\"");
        group.signal_daemon(Role::Primary, Signal::HUP).expect("a signal");
        let log = file_of(testbed, Role::Primary, "daemon.log");
        world::wait_until("the refusal", || {
            let said = std::fs::read_to_string(&log).expect("a log");
            said.contains("goes on as before") && said.contains("rejoin_max")
        });
        change(&path, "rejoin_max = \"x\"\nconnections_max = 999\n", "");
        let status = group.status(Role::Primary).expect("it answers");
        assert_eq!(status["epoch"], 1, "nobody has taken over: {status}");
        world::finish(load, group);

        // And the next takeover finds all in order.
        let server = group.server_pid(Role::Primary).expect("a server");
        let fault = Some(vec![(0, holdfast_lab::load::Action::Kill(server))]);
        world::finish(world::start(testbed, &world::counting(500, 300, fault)), group);
    });
}

#[test]
fn host_servers_come_and_weights_change_without_a_lost_connection() {
    const PORT: u16 = 8080;
    let _limit = limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let hosts = [Role::Primary, Role::Backup];
    let mut group =
        SpreadGroup::start(&testbed, &hosts, &SpreadOptions::default()).expect("a group");
    let servers = hosts.map(|role| {
        Server::start(&testbed, role, if role == Role::Primary { b'a' } else { b'b' }, PORT)
    });
    let name = service(false, PORT).to_string();
    group.wait_members(&name, &["a", "b"]).expect("both serve");
    let connect = || Client::connect(&testbed, service(false, PORT)).expect("a connection");
    let mut clients: Vec<Client> = (0..8).map(|_| connect()).collect();
    let by: Vec<u8> = clients.iter_mut().map(|it| it.ask(100).expect("an answer")).collect();

    for role in [Role::Edge, Role::Primary] {
        let path = file_of(&testbed, role, "spread.toml");
        change(&path, "heartbeat_ms = 100", "heartbeat_ms = 50");
        change(&path, "name = \"a\"\n", "name = \"a\"\nweight = 900\n");
        let [counts, waits] = told(&group.verb(role, &["reload", "--json"]).expect("it runs"));
        assert_eq!(
            (counts, waits),
            (vec!["host.a.weight".to_owned()], vec!["group.heartbeat_ms".to_owned()])
        );
    }
    group.wait_hosts(2).expect("both come back");
    group.wait_members(&name, &["a", "b"]).expect("both serve");
    for (client, by) in clients.iter_mut().zip(by) {
        assert_eq!(client.ask(5000).expect("an answer"), by, "it stays where it is");
    }
    let of_a = (0..40).filter(|_| connect().ask(10).expect("an answer") == b'a').count();
    assert!(of_a >= 30, "{of_a} of 40 at nine tenths of the weight");
    servers.into_iter().for_each(Server::stop);
}
