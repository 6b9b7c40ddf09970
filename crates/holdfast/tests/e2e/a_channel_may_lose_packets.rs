//! A pair whose members reach each other over a path that loses a tenth of all packets stays
//! protected where its channel is coded, and takes over; its tunnel goes with its daemon, however
//! that ends, and comes back when it is killed.

use crate::world;
use holdfast_lab::emu::EmuSpec;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{LogLink, Plan, Role, Testbed};
use std::time::Duration;

fn lossy() -> (Plan, GroupOptions) {
    let spec = EmuSpec { loss: 0.1, delay: Duration::from_millis(10), ..EmuSpec::default() };
    let plan = Plan { log: LogLink::Emulated(spec), ..Plan::default() };
    let options = GroupOptions { coded: true, heartbeat_ms: Some(20), ..GroupOptions::default() };
    (plan, options)
}

/// A count of `channel.…`.
fn count(group: &Group<'_>, role: Role, what: &str) -> u64 {
    world::counter(group, role, &format!("channel.{what}"))
}

/// The processes of this host that are tunnels, without those that have ended.
fn tunnels(testbed: &Testbed, role: Role) -> Vec<u32> {
    let all = testbed.host(role).processes().expect("processes");
    let line = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_tunnel = |pid: &u32| String::from_utf8_lossy(&line(pid)).contains("holdfast-tunnel");
    all.into_iter().filter(is_tunnel).collect()
}

#[test]
fn a_tenth_lost_costs_no_protection_and_a_takeover_loses_nothing() {
    let _limit = world::limit(Duration::from_secs(120));
    let (plan, options) = lossy();
    world::with_server(Program::Redis, 0, &plan, &options, |testbed, group| {
        let load = world::start(testbed, &world::counting(8000, 0, None));
        for _ in 0..16 {
            std::thread::sleep(Duration::from_millis(400));
            group.ensure_protected().expect("the pair is protected throughout");
        }
        world::finish(load, group);
        let has_seen = || count(group, Role::Primary, "receiving_loss_permille") > 30;
        world::wait_until("the loss of the path", has_seen);
        assert_eq!(count(group, Role::Primary, "up"), 1);
        world::each_dies_and_joins(group);
    });
}

#[test]
fn the_tunnel_lives_and_dies_with_its_daemon() {
    let _limit = world::limit(Duration::from_secs(120));
    let (plan, options) = lossy();
    world::with_server(Program::Redis, 0, &plan, &options, |testbed, group| {
        let tunnel = |role| tunnels(testbed, role);
        let before = tunnel(Role::Backup);
        assert_eq!(before.len(), 1, "one for each daemon");
        world::signal(before[0], "KILL");
        world::wait_until("another tunnel", || {
            let now = tunnel(Role::Backup);
            now.len() == 1 && now != before
        });
        group.wait_protected().expect("the pair is one again");
        group.kill_member(Role::Backup).expect("it is there");
        world::wait_until("no tunnel without its daemon", || tunnel(Role::Backup).is_empty());
    });
}
