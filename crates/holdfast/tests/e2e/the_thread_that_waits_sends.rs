//! The server's thread sends its log to the backup itself, and hears what it holds. What is lost on
//! that way, and a way that is closed, cost time and nothing else.

use crate::world;
use holdfast_lab::emu::EmuSpec;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{LogLink, Plan, Role};
use std::time::Duration;

fn direct() -> GroupOptions {
    GroupOptions { direct: true, ..GroupOptions::default() }
}

/// A count of `direct.…`.
fn count(group: &Group<'_>, role: Role, what: &str) -> u64 {
    world::counter(group, role, &format!("direct.{what}"))
}

#[test]
fn commits_need_no_daemon_of_the_primary() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &direct(), |testbed, group| {
        world::finish(world::start(testbed, &world::counting(1500, 0, None)), group);
        let confirmed = || count(group, Role::Primary, "confirmed");
        world::wait_until("commits by the short way", || confirmed() > 100);
        let (before, lost) = (confirmed(), count(group, Role::Primary, "lost"));
        assert!(lost < before / 4, "{lost} of {before} were lost");
        assert_eq!(count(group, Role::Backup, "refused"), 0);
        // The one that takes over has a backup again, which its server reaches, too.
        world::each_dies_and_joins(group);
        let load = world::start(testbed, &world::counting(1500, 0, None));
        world::finish(load, group);
        let survivor = group.wait_primary().expect("a primary");
        world::wait_until("commits by the next short way", || {
            count(group, survivor, "confirmed") > 100
        });
    });
}

#[test]
fn a_way_that_loses_datagrams_costs_time() {
    let _limit = world::limit(Duration::from_secs(60));
    let lossy = EmuSpec { loss: 0.1, ..EmuSpec::default() };
    let plan = Plan { log: LogLink::Emulated(lossy), ..Plan::default() };
    world::with_redis_on(&plan, &direct(), |testbed, group| {
        let load = world::start(testbed, &world::counting(3000, 0, None));
        world::finish(load, group);
        world::wait_until("lost commits", || count(group, Role::Primary, "lost") > 0);
        assert!(count(group, Role::Primary, "confirmed") > 10);
    });
}

#[test]
fn a_primary_whose_daemon_is_killed_loses_nothing_that_was_confirmed() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &direct(), |testbed, group| {
        let load = world::start(testbed, &world::counting(2000, 0, None));
        std::thread::sleep(Duration::from_millis(700));
        assert!(count(group, Role::Primary, "confirmed") > 0);
        group.stop_daemon(Role::Primary, Signal::KILL).expect("a daemon");
        world::finish(load, group);
    });
}
