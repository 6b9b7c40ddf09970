//! `status` on a primary whose log takes long to reach its backup: there is lag while clients work,
//! and none when they have gone.

use crate::world;
use holdfast_lab::emu::EmuSpec;
use holdfast_lab::testbed::ours::GroupOptions;
use holdfast_lab::testbed::{LogLink, Plan, Role};
use serde_json::Value;
use std::time::Duration;

#[test]
fn status_counts_the_lag() {
    let _limit = world::limit(Duration::from_secs(60));
    let slow = EmuSpec { delay: Duration::from_millis(20), ..EmuSpec::default() };
    let plan = Plan { log: LogLink::Emulated(slow), ..Plan::default() };
    world::with_redis_on(&plan, &GroupOptions::default(), |testbed, group| {
        let lag = |role: Role, field: &str| {
            let status = group.status(role).unwrap_or(Value::Null);
            status["lag"][field].as_u64().expect("a number")
        };
        let load = world::start(testbed, &world::counting(3000, 0, None));
        for field in ["frames", "bytes", "executed"] {
            world::wait_until("a lag", || lag(Role::Primary, field) > 0);
        }
        world::finish(load, group);
        for role in [Role::Primary, Role::Backup] {
            for field in ["frames", "bytes", "executed"] {
                world::wait_until("no lag", || lag(role, field) == 0);
            }
        }
    });
}
