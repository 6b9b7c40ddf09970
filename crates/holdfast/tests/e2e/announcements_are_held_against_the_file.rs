//! A host server whose own file grants it more than the edge's file gets nothing, and both are told
//! what to write where.

use crate::spread_world::{Server, service};
use crate::world::{binary, limit, wait_until};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

const PORT: u16 = 8080;

#[test]
fn a_host_server_gets_no_more_than_the_edges_file_gives_it() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &[Role::Primary], &SpreadOptions::default()).expect("a group");
    let _first = Server::start(&testbed, Role::Primary, b'a', PORT);
    let path = testbed.host(Role::Backup).outside().join("spread.toml");
    let honest = std::fs::read_to_string(&path).expect("a file");
    let greedy = honest.replace("name = \"b\"", "name = \"b\"\nweight = 1000");
    assert_ne!(greedy, honest);
    std::fs::write(&path, greedy).expect("another file");
    group.launch(Role::Backup).expect("a daemon");
    let events = |group: &SpreadGroup<'_>| {
        let done = group.cli(&["events", "--json"]).expect("the verb runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let why = "b: it announces the weight 1000, the edge's file gives it 1 to 100";
    wait_until("the refusal", || events(&group).contains(why));
    let _second = Server::start(&testbed, Role::Backup, b'b', PORT);
    let name = service(false, PORT).to_string();
    group.wait_members(&name, &["a"]).expect("nothing goes to it");

    group.kill(Role::Backup).expect("killed");
    std::fs::write(&path, honest).expect("the file of all");
    group.launch(Role::Backup).expect("a daemon");
    group.wait_members(&name, &["a", "b"]).expect("it has its share");
    assert_eq!(events(&group).matches(why).count(), 1, "told once");
}
