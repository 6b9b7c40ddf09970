//! A replica stands still while its daemon lives: the pair ends, the clients keep their
//! connections, every host reports what happened, and the member joins again.

use crate::world;
use holdfast_lab::testbed::Role;
use std::time::Duration;

#[test]
fn a_hung_replica_is_given_up() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let state = |role: Role| {
            let status = group.status(role).expect("the daemon answers");
            status["state"].as_str().expect("a state").to_owned()
        };
        let load = world::start(testbed, &world::counting(4000, 0, None));
        std::thread::sleep(Duration::from_millis(500));
        let replica = group.server_pid(Role::Backup).expect("a replica");
        world::signal(replica, "STOP");
        world::wait_until("the replica to be given up", || state(Role::Backup) == "hung");
        world::wait_until("the primary to go on", || state(Role::Primary) == "unprotected");
        let report = world::finish(load, group);
        assert!(report.total(|it| it.replies) > 0);
        world::finish(world::start(testbed, &world::counting(300, 0, None)), group);
        world::wait_until("it to join again", || state(Role::Primary) == "protected");
    });
}
