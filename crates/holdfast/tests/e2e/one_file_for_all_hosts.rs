//! The group's file must be the same on all its hosts: if the edge's copy differs from a member's,
//! every host names the key, and none calls the pair protected.

use crate::status_is_true_on_every_host::{
    HOSTS, edit_edge, expect_with_code, patient, remedy, rewrite_edge,
};
use crate::world;
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role};
use std::time::Duration;

#[test]
fn what_the_edge_has_otherwise_is_named() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        let edits = [
            (
                "\"10.9.0.100:6379\", \"[fd09::100]:6379\"]",
                "\"10.9.0.100:6379\"]",
                "service [fd09::100]:6379 (only on a)",
            ),
            (
                "heartbeat_ms = 200",
                "heartbeat_ms = 250",
                "heartbeat_ms = 200 (only on a), heartbeat_ms = 250 (only on edge)",
            ),
            ("\"10.9.0.3:7701\"", "\"10.9.0.4:7701\"", "address of b = 10.9.0.3:7701 (only on a)"),
        ];
        for (from, to, named) in edits {
            edit_edge(testbed, group, from, to);
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, "unprotected", named)), 1);
            for role in HOSTS {
                assert!(remedy(group, role).contains("to all hosts"), "{role:?}");
            }
            edit_edge(testbed, group, to, from);
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
        }
    });
}

/// The edge hears which member answers behind which port.
#[test]
fn ports_that_are_swapped_are_called_so() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        let swap = |text: &str| {
            let [a, b, between] = ["ep", "eb", "?"].map(|port| format!("edge_port = \"{port}\"\n"));
            text.replace(&a, &between).replace(&b, &a).replace(&between, &b)
        };
        rewrite_edge(testbed, group, swap);
        let swapped = "the ports of `a` and `b` are swapped in the file: eb leads to `b`";
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "waiting", swapped)), 1);
        assert!(remedy(group, Role::Edge).contains("exchange the edge_port of `a` and `b`"));
        rewrite_edge(testbed, group, swap);
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
    });
}
