//! A member whose earlier life has left something in its kernel, in its `run_dir` or among its
//! processes starts as if it were new; and one that is no longer needed may start again and again.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::Duration;

/// Time between two heartbeats in ms, so long that a busy machine causes no takeover.
const HEARTBEAT_MS: u64 = 300;

/// Number of starts of a member that was replaced.
const STARTS: usize = 8;

fn options() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() }
}

#[test]
fn a_run_dir_of_an_older_release_is_no_obstacle() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    // Pins at a place where members once had them, a file in the place of a socket, and a server
    // that has outlived its daemon; on the other member a note that names nobody.
    let primary = testbed.host(Role::Primary);
    let run = primary.inside().join("run").display().to_string();
    let script = format!(
        "mkdir -p {run}/bpf/a && mount -t bpf bpf {run}/bpf/a && mkdir {run}/bpf/a/gate && \
         echo old > {run}/a.sock && {{ sleep 600 >/dev/null 2>&1 & p=$!; }} && \
         echo $p $(cut -d' ' -f22 /proc/$p/stat) > {run}/a.server && echo $p"
    );
    let made = primary.command("sh").args(["-eu", "-c", &script]).output().expect("sh starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let orphan = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let other = testbed.host(Role::Backup).outside().join("run");
    std::fs::create_dir_all(&other).expect("a folder");
    std::fs::write(other.join("b.server"), "7 years ago\n").expect("a file");

    let group = Group::start(&testbed, &recipe, &options()).expect("the group protects");
    let look = format!("grep -c {run}/bpf/a /proc/mounts; grep State /proc/{orphan}/status");
    let left = primary.command("sh").args(["-c", &look]).output().expect("sh starts");
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(left.starts_with("0\n"), "the old pins are gone: {left}");
    // This host has no init that would reap the old server.
    assert!(left.contains("zombie"), "the old server is gone: {left}");
    world::finish(world::start(&testbed, &world::counting(200, 0, None)), &group);
}

#[test]
fn a_replaced_member_may_start_again_and_again() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_server(Program::Redis, 0, &Plan::default(), &options(), |testbed, group| {
        let load = world::start(testbed, &world::counting(12_000, 0, None));
        std::thread::sleep(Duration::from_millis(200));
        group.stop_daemon(Role::Primary, Signal::KILL).expect("a daemon");
        for _ in 0..STARTS {
            group.start_daemon(Role::Primary).expect("it starts");
            group.wait_protected().expect("it joins");
            group.stop_daemon(Role::Primary, Signal::KILL).expect("a daemon");
        }
        world::finish(load, group);
        world::speaks(group, Role::Backup);
        world::finish(world::start(testbed, &world::counting(200, 0, None)), group);
    });
}
