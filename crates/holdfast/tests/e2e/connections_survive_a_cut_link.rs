//! The primary's link is cut. The primary lives on without answering anybody, and must not be heard
//! again.

use crate::world;
use holdfast_lab::testbed::{Role, addresses, interface};
use std::time::Duration;

#[test]
fn connections_survive_a_cut_link() {
    let _limit = world::limit(Duration::from_secs(240));
    world::all_survive(
        &[
            "--fault link-cut --workload incr",
            "--fault link-cut --workload shared --connections 8",
            "--fault link-cut --workload echo --ipv6",
            "--fault link-cut --workload upload",
        ],
        1,
    );
}

/// A primary that comes back after it was cut off does not know yet that it was replaced.
#[test]
fn who_was_cut_off_does_not_say_that_it_serves() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let port = |state: &str| {
            let line = format!("link set {} {state}\n", interface::EDGE_PRIMARY);
            testbed.host(Role::Edge).ip(&line).expect("the primary's port");
        };
        port("down");
        std::thread::sleep(Duration::from_millis(500));
        port("up");
        world::wait_until("the primary is told", || {
            let status = group.status(Role::Primary).unwrap_or_default();
            status["state"] == "fenced" || status["role"] != "primary"
        });
        let states = group.details(Role::Primary, "state");
        let cut = states.iter().position(|state| state.contains("the service waits"));
        let fenced = states.iter().position(|state| state.contains("fenced"));
        let (Some(cut), Some(fenced)) = (cut, fenced) else { panic!("{states:?}") };
        let between = states.get(cut..fenced).expect("it was fenced later");
        let serves = |state: &String| state.to_lowercase().contains("protected");
        assert!(!between.iter().any(serves), "{between:?}");
    });
}

/// An interface that goes down takes addresses with it. Who hears nobody does not know who serves.
#[test]
fn who_is_cut_off_waits_although_its_address_is_gone() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let (port, address) = (interface::PRIMARY, addresses::SERVICE_V4);
        let lines = format!("link set {port} down\naddress del {address}/32 dev {port}\n");
        testbed.host(Role::Primary).ip(&lines).expect("ip runs");
        let told = || group.status(Role::Primary).unwrap_or_default();
        world::wait_until("the primary misses its address", || {
            told()["reason"].as_str().is_some_and(|it| it.contains("the service address is gone"))
        });
        let status = told();
        let waits = status["reason"].as_str().is_some_and(|it| it.contains("the service waits"));
        assert!(status["state"] == "waiting" && waits, "{status}");
    });
}
