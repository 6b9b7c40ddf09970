//! A pair behind two edges with strings: the same connections live through the death of one member,
//! an outage and the loss of a string in front of the survivor, the return of the dead member, and
//! the death of the other one.

use crate::{transit, world};
use holdfast_lab::load::Run;
use holdfast_lab::testbed::Role;
use holdfast_lab::testbed::journey::Journey;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::strings::{Cut, Edge, StringsPlan};
use std::time::Duration;

#[test]
fn connections_live_through_all_of_it() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let plan = StringsPlan {
        tables: "[recover]\npolicy = \"head+tail\"\nstart = \"always\"\n".to_owned(),
        ..transit::plan(&[100, 100], "mode = \"active/active\"")
    };
    let mut journey = Journey::build(&plan).expect("the testbed stands");
    journey.strings.start_daemons().expect("the edges hear each other");
    let Journey { strings, pair } = &journey;
    let prepare = |role| Recipe::prepare(Program::Redis, pair.host(role), 0).expect("a directory");
    let [recipe, _same] = [Role::Primary, Role::Backup].map(prepare);
    let mut group = Group::start(pair, &recipe, &GroupOptions::default()).expect("a pair");
    let run = Run::start(journey.client(), &world::counting(0, 0, None)).expect("the load starts");
    transit::pause(1000);
    dies(&mut group, Role::Primary);
    strings.cut_all().expect("cut");
    transit::pause(700);
    strings.restore_all().expect("restored");
    transit::pause(500);
    strings.cut(1, Cut::Both).expect("cut");
    for edge in Edge::BOTH {
        transit::wait_for_state(strings, edge, 1, "dead");
    }
    transit::pause(500);
    strings.restore(1, Cut::Both).expect("restored");
    for edge in Edge::BOTH {
        transit::wait_for_state(strings, edge, 1, "alive");
    }
    group.start_daemon(Role::Primary).expect("it starts");
    group.wait_protected().expect("both are protected again");
    dies(&mut group, Role::Backup);
    let report = transit::finish(strings, run);
    let again = report.connections.iter().filter(|it| it.connects != 1).count();
    assert_eq!(again, 0, "connections that were made again");
    let resent = |edge| strings.show(edge).expect("it answers")["cache"]["resent"].as_u64();
    let resent = Edge::BOTH.map(resent);
    assert!(resent.iter().flatten().sum::<u64>() > 0, "nothing was resent: {resent:?}");
}

/// A member's death, until the other one serves, and a moment of that.
fn dies(group: &mut Group<'_>, victim: Role) {
    group.kill_member(victim).expect("it ran");
    world::wait_until("the other member serves", || group.primary() == Some(victim.other()));
    transit::pause(500);
}
