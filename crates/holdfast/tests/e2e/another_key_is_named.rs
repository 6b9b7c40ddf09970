//! A host of a spread or transit group that has another key is called so, wherever one asks; and an
//! edge of strings that does not hear the other one is not protected, whatever packets pass.

use crate::spread_world::{Server, service};
use crate::{transit, world};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::strings::{Edge, Strings};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::path::Path;
use std::time::Duration;

const PORT: u16 = 8080;

/// Gives the host with this folder a key of its own.
fn change_key(folder: &Path) {
    let path = folder.join("group.key");
    let key = std::fs::read_to_string(&path).expect("a key");
    let (rest, last) = key.trim_end().split_at(key.trim_end().len() - 1);
    let other = if last == "0" { '1' } else { '0' };
    std::fs::write(&path, format!("{rest}{other}\n")).expect("another key");
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn strings_that_carry_flows_are_not_protected_without_the_other_edge() {
    let _limit = world::limit(Duration::from_secs(90));
    let plan = transit::plan(&[100, 100], "mode = \"active/active\"");
    transit::with_strings(&plan, |strings| {
        let says = |strings: &Strings, edge: Edge, reason: &str| {
            let ask = ["status", "--json", "--wait", "waiting", "--timeout", "1"];
            strings.ask(edge, &ask).is_ok_and(|status| status.contains(reason))
        };
        let run = transit::counting(strings, 8000);
        strings.kill_daemon(Edge::Far).expect("killed");
        let silent = "nothing is heard from the far edge";
        world::wait_until("waiting", || says(strings, Edge::Near, silent));
        change_key(strings.edge(Edge::Far).outside());
        strings.start_daemon(Edge::Far).expect("started");
        for edge in Edge::BOTH {
            world::wait_until("the key", || says(strings, edge, "its key differs"));
            assert!(transit::events(strings, edge).contains(&"refused".to_owned()));
        }
        transit::finish(strings, run);
    });
}

#[test]
fn by_the_edge_of_a_spread_group_and_by_the_host_server() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group =
        SpreadGroup::start(&testbed, &[Role::Primary], &SpreadOptions::default()).expect("a group");
    let _server = Server::start(&testbed, Role::Primary, b'a', PORT);
    group.wait_members(&service(false, PORT).to_string(), &["a"]).expect("it serves");
    change_key(testbed.host(Role::Backup).outside());
    group.launch(Role::Backup).expect("a daemon");
    for (role, peer) in [(Role::Edge, "`b`"), (Role::Backup, "`edge`")] {
        let why = format!("the key of {peer} differs");
        let says = |status: serde_json::Value| {
            let it = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
            it("reason").contains(&why) && it("remedy").contains("copy key_file")
        };
        world::wait_until("the key", || group.status(role).is_ok_and(says));
        let events = group.verb(role, &["events"]).expect("it answers");
        let events = String::from_utf8_lossy(&events.stdout).into_owned();
        // Its state is told as well, some moments later.
        let told = events.lines().filter(|it| it.contains(&why) && !it.contains("  state  "));
        assert_eq!(told.count(), 1, "{events}");
    }
}
