//! The daemon reads its own signals from a descriptor and ignores others; the server is started
//! with neither.

use crate::world;
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

/// The signals that a process blocks and ignores.
fn masks(pid: u32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let wanted = |line: &&str| line.starts_with("SigBlk") || line.starts_with("SigIgn");
    status.lines().filter(wanted).map(str::to_owned).collect()
}

#[test]
fn the_server_blocks_and_ignores_what_it_does_without_holdfast() {
    let _limit = world::limit(Duration::from_secs(60));
    let plain = {
        let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
        let host = testbed.host(Role::Client);
        let mut recipe = Recipe::prepare(Program::Redis, host, 0).expect("a directory");
        // The service's addresses belong to another host.
        let end = recipe.command.iter().position(|word| word == "--bind").expect("addresses");
        recipe.command.drain(end..end + 3);
        // A daemon starts the server with the defaults, whatever the starter of the tests ignores.
        recipe.command.splice(0..0, ["/usr/bin/env", "--default-signal"].map(str::to_owned));
        let server = recipe.start_plain(host).expect("a server");
        // It listens before it has set all of its own signals.
        let mut last = Vec::new();
        world::wait_until("its signals to stay", || {
            std::thread::sleep(Duration::from_millis(300));
            let now = masks(server.pid());
            std::mem::replace(&mut last, now.clone()) == now
        });
        last
    };
    world::with_redis(|_, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        world::wait_until(&format!("the signals {plain:?}"), || masks(server) == plain);
        world::signal(server, "TERM");
        world::wait_until("the server's end", || world::has_ended(server));
    });
}
