//! A driver that is loaded again, a VLAN or a bond that is made anew gives a member another
//! interface of the same name. Sockets and programs hang at the old one.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{LogLink, Plan, Role, Testbed, remake_interface};
use serde_json::Value;
use std::time::Duration;

/// Heartbeats at which nobody is declared dead while `ip` works.
fn slow() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(1000), ..GroupOptions::default() }
}

/// The members' own wire keeps their channel up, and the edge's once it leads there.
fn with_log_wire(work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    let plan = Plan { log: LogLink::Separate, ..Plan::default() };
    world::with_server(Program::Redis, 0, &plan, &slow(), work);
}

fn remake(testbed: &Testbed, role: Role) {
    remake_interface(role, testbed.host(Role::Edge), testbed.host(role)).expect("ip runs");
}

/// Waits until the member has noticed, so that nothing that it said before counts.
fn notices(group: &Group<'_>, role: Role) {
    world::wait_until("it notices", || {
        group.details(role, "mended").iter().any(|detail| detail.contains("was made anew"))
    });
}

fn all_say(group: &Group<'_>, state: &str) {
    world::wait_until(state, || {
        Role::ALL
            .into_iter()
            .filter(|role| *role != Role::Client)
            .all(|role| group.status(role).is_ok_and(|status| status["state"] == state))
    });
}

/// Kills the primary's server under load. Then everybody says what is true of the survivor, and
/// the other member joins.
fn takes_over(testbed: &Testbed, group: &mut Group<'_>) {
    let primary = group.wait_primary().expect("a primary");
    let load = world::start(testbed, &world::counting(3000, 4, None));
    std::thread::sleep(Duration::from_millis(500));
    world::signal(group.server_pid(primary).expect("a server"), "KILL");
    world::finish(load, group);
    world::heals(group, "the other one joins");
    world::speaks(group, primary.other());
    all_say(group, "protected");
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn on_a_backup_that_takes_over_then() {
    let _limit = world::limit(Duration::from_secs(120));
    with_log_wire(|testbed, group| {
        remake(testbed, Role::Backup);
        notices(group, Role::Backup);
        all_say(group, "protected");
        takes_over(testbed, group);
    });
}

#[test]
fn on_a_primary_whose_clients_stay() {
    let _limit = world::limit(Duration::from_secs(120));
    with_log_wire(|testbed, group| {
        let load = world::start(testbed, &world::counting(6000, 4, None));
        std::thread::sleep(Duration::from_millis(500));
        let server = group.server_pid(Role::Primary).expect("a server");
        remake(testbed, Role::Primary);
        notices(group, Role::Primary);
        world::finish(load, group);
        world::heals(group, "it is whole again");
        all_say(group, "protected");
        assert_eq!(group.server_pid(Role::Primary).ok(), Some(server), "nobody took over");
        takes_over(testbed, group);
    });
}

/// Leads the edge's way to the backup past the interface that is to go.
fn lead_past(testbed: &Testbed) {
    let [edge, backup] = [Role::Edge, Role::Backup].map(|role| testbed.host(role));
    edge.ip(&format!("link add em type veth peer name bm netns {}\n", backup.namespace()))
        .expect("ip runs");
    backup.ip("link set bm up\nroute add 10.9.0.1/32 dev bm src 10.10.0.2\n").expect("ip runs");
    edge.ip("link set em up\nroute replace 10.10.0.2/32 dev em src 10.9.0.1\n").expect("ip runs");
}

#[test]
fn a_backup_without_one_does_not_ask_for_the_service() {
    let _limit = world::limit(Duration::from_secs(90));
    with_log_wire(|testbed, group| {
        lead_past(testbed);
        all_say(group, "protected");
        let epoch = || group.status(Role::Edge).map(|status| status["epoch"].clone()).ok();
        let before = epoch();
        assert!(before.as_ref().is_some_and(Value::is_u64), "{before:?}");
        testbed.host(Role::Backup).ip("link del b0\n").expect("ip runs");
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        let why = "could not take over from a: no interface named \"b0\"";
        world::wait_until("the reason", || {
            let status = group.status(Role::Backup).unwrap_or_default();
            status["reason"].as_str().is_some_and(|reason| reason.starts_with(why))
        });
        assert_eq!(epoch(), before, "nothing was granted");
    });
}

fn reason_has(group: &Group<'_>, role: Role, words: &str) -> bool {
    let status = group.status(role).unwrap_or_default();
    status["reason"].as_str().is_some_and(|reason| reason.contains(words))
}

/// Nobody could take over there: the service address would be given to an interface of the old name.
#[test]
fn with_another_name_is_called_so_on_every_host() {
    let _limit = world::limit(Duration::from_secs(90));
    with_log_wire(|testbed, group| {
        testbed.host(Role::Backup).ip("link set b0 name new0\n").expect("ip runs");
        for role in [Role::Backup, Role::Primary, Role::Edge] {
            world::wait_until("its new name", || {
                reason_has(group, role, "the interface b0 is called new0 now")
            });
        }
        // Its signs still arrive, so nobody doubts its hardware address after a while.
        std::thread::sleep(Duration::from_secs(5));
        for role in [Role::Backup, Role::Primary, Role::Edge] {
            let status = group.status(role).unwrap_or_default();
            assert_eq!(status["state"], "unprotected", "{status}");
            assert!(reason_has(group, role, "the interface b0 is called new0 now"), "{status}");
        }
        testbed.host(Role::Backup).ip("link set new0 name b0\n").expect("ip runs");
        all_say(group, "protected");
    });
}

/// Its members cannot reach it, and clients are served.
#[test]
fn an_edge_that_has_lost_its_address_says_so() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_server(Program::Redis, 0, &Plan::default(), &slow(), |testbed, group| {
        let own = "10.9.0.1/24 dev br0";
        let lost = "this host has lost its address 10.9.0.1 (edge.listen)";
        testbed.host(Role::Edge).ip(&format!("address del {own}\n")).expect("ip runs");
        world::wait_until(lost, || reason_has(group, Role::Edge, lost));
        let remedy = group.status(Role::Edge).expect("it answers")["remedy"].to_string();
        assert!(remedy.contains("give this host the address 10.9.0.1 again"), "{remedy}");
        testbed.host(Role::Edge).ip(&format!("address add {own}\n")).expect("ip runs");
        world::wait_for_group(group, "protection", || group.ensure_protected().is_ok());
    });
}

#[test]
fn a_member_that_has_lost_its_address_says_so() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_server(Program::Redis, 0, &Plan::default(), &slow(), |testbed, group| {
        let own = "10.9.0.3/24 dev b0";
        let lost = "this host has lost its address 10.9.0.3 (address)";
        testbed.host(Role::Backup).ip(&format!("address del {own}\n")).expect("ip runs");
        world::wait_until(lost, || reason_has(group, Role::Backup, lost));
        testbed.host(Role::Backup).ip(&format!("address add {own}\n")).expect("ip runs");
        // The kernel has taken the routes with it.
        let no_way = "answers find no way to clients: there is no IPv4 route to them";
        world::wait_for_group(group, no_way, || reason_has(group, Role::Backup, no_way));
        let route = "route add default via 10.9.0.1\n";
        testbed.host(Role::Backup).ip(route).expect("ip runs");
        world::wait_for_group(group, "protection", || group.ensure_protected().is_ok());
    });
}

/// What this host knows of a neighbour.
fn neighbour(testbed: &Testbed, role: Role, address: &str) -> String {
    let mut ip = testbed.host(role).network_command("ip");
    let shown = ip.args(["neigh", "show", address]).output().expect("ip runs");
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// The edge's host is replaced, or its bridge is made anew: members and clients learn its new
/// hardware address from itself, for their kernels would go on with the old one.
#[test]
fn of_the_edge_is_told_to_all_who_know_the_old_one() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &slow(), |testbed, group| {
        let neighbours = [
            (Role::Primary, "p0", "10.9.0.1", "02:00:00:00:09:11", "br0"),
            (Role::Backup, "b0", "fd09::1", "02:00:00:00:09:11", "br0"),
            (Role::Client, "c0", "10.8.0.1", "02:00:00:00:08:11", "ec"),
        ];
        for (role, device, address, _, _) in neighbours {
            let old = neighbour(testbed, role, address);
            let mac = old.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
            let mac = mac.expect("the testbed has made it");
            // As it is without a testbed: learned, and fresh.
            let fresh =
                format!("neigh replace {address} lladdr {mac} dev {device} nud reachable\n");
            testbed.host(role).ip(&fresh).expect("ip runs");
        }
        let edge = testbed.host(Role::Edge);
        for (_, _, _, mac, device) in &neighbours[1..] {
            edge.ip(&format!("link set {device} address {mac}\n")).expect("ip runs");
        }
        for (role, _, address, mac, _) in neighbours {
            world::wait_until("the new address", || {
                neighbour(testbed, role, address).contains(mac)
            });
        }
        let load = world::start(testbed, &world::counting(1000, 0, None));
        world::finish(load, group);
    });
}
