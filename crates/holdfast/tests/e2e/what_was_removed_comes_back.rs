//! Scripts for traffic shaping and container networks clear `clsact` of interfaces,
//! and with it our programs; others remove addresses, or what lies in `/run`. All
//! that is put back, and it is said.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed};
use std::time::Duration;

fn mended(group: &Group<'_>, role: Role) -> usize {
    group.events(role).iter().filter(|(_, what)| what == "mended").count()
}

/// In the place of the edge's, under a name that might be its own.
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
        // Both of the primary's, the backup's, whose gate waits for it to be one, and all of
        // the edge's.
        let places = [
            (Role::Primary, "p0", 2),
            (Role::Backup, "b0", 3),
            (Role::Edge, "ep", 1),
            (Role::Edge, "eb", 2),
            (Role::Edge, "ec", 3),
        ];
        for (role, interface, count) in places {
            let host = testbed.host(role);
            let mut tc = host.command("tc");
            let removed = tc.args(["qdisc", "del", "dev", interface, "clsact"]).status();
            assert!(removed.expect("tc runs").success(), "{interface}");
            world::wait_until("its return", || mended(group, role) == count);
            let mut tc = host.command("tc");
            let shown = tc.args(["filter", "show", "dev", interface, "ingress"]).output();
            let shown = String::from_utf8_lossy(&shown.expect("tc runs").stdout).into_owned();
            assert!(shown.contains("direct-action"), "{shown}");
        }
        another_program_takes_its_place(testbed, group);
        let primary = testbed.host(Role::Primary);
        for (count, address) in [(3, "10.9.0.100/32"), (4, "fd09::100/128")] {
            primary.ip(&format!("address del {address} dev p0\n")).expect("ip runs");
            world::wait_until("its return", || mended(group, Role::Primary) == count);
        }
        for (role, count) in [(Role::Primary, 5), (Role::Backup, 4), (Role::Edge, 5)] {
            let folder = testbed.host(role).outside().join("run");
            for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
                // All but the mounts of the pins.
                let _ = std::fs::remove_file(entry.path());
            }
            world::wait_until("its return", || mended(group, role) == count);
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
        world::wait_until("its return", || mended(group, Role::Backup) == 5);
    });
}
