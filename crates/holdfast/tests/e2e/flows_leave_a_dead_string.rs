//! A string swallows everything without a notice: its flows go on through another string, in both
//! directions, and every byte arrives.

use crate::{transit, world};
use holdfast_lab::load::{Group, Spec, Workload};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::strings::{Cut, Edge, Strings, interface};
use std::time::Duration;

/// Many connections over IPv4 or IPv6, small and large replies.
fn load(ipv6: bool, duration_ms: u64) -> Spec {
    let port = Program::Redis.port();
    let mut spec = world::counting(duration_ms, 0, None);
    if ipv6 {
        spec.address = holdfast_lab::testbed::addresses::SERVICE_V6.parse().expect("an address");
    }
    spec.groups = vec![
        Group::usual(Workload::Incr, 12, port),
        Group::usual(Workload::Download, 2, port),
        Group::usual(Workload::Upload, 2, port),
    ];
    spec
}

/// Number of flows that the near edge has moved off a dead string, by itself or because the far
/// edge was faster.
fn moved(strings: &Strings) -> u64 {
    ["transit.moved", "transit.followed"]
        .map(|name| transit::count(strings, Edge::Near, name))
        .iter()
        .sum()
}

/// Checks the timeline of a switch-over, which other events may interrupt.
fn has_timeline(strings: &Strings, edge: Edge) {
    let events = transit::events(strings, edge);
    let mut rest = events.iter();
    for wanted in ["suspect", "declare", "fence", "switch"] {
        assert!(rest.any(|event| event == wanted), "{wanted} in {events:?}");
    }
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn active_and_backup() {
    let _limit = world::limit(Duration::from_secs(90));
    transit::with_strings(&transit::plan(&[100, 100], ""), |strings| {
        for ipv6 in [false, true] {
            let run = transit::start(strings, &load(ipv6, 2500));
            transit::pause(800);
            let before = moved(strings);
            strings.cut(0, Cut::Both).expect("cut");
            for edge in Edge::BOTH {
                transit::wait_for_state(strings, edge, 0, "dead");
            }
            transit::finish(strings, run);
            assert!(moved(strings) >= before + 16);
            Edge::BOTH.iter().for_each(|edge| has_timeline(strings, *edge));
            strings.restore(0, Cut::Both).expect("restored");
            for edge in Edge::BOTH {
                transit::wait_for_state(strings, edge, 0, "alive");
            }
            if !ipv6 {
                // New flows go to the first string again.
                let before = transit::member(strings, Edge::Near, 0)["packets_into"].as_u64();
                transit::finish(strings, transit::counting(strings, 300));
                let after = transit::member(strings, Edge::Near, 0)["packets_into"].as_u64();
                assert!(after > before, "{before:?} {after:?}");
                assert_eq!(transit::count(strings, Edge::Near, "transit.returned"), 0);
                for edge in Edge::BOTH {
                    strings.kill_daemon(edge).expect("killed");
                    strings.start_daemon(edge).expect("started");
                }
                strings.wait_ready().expect("ready");
                assert!(moved(strings) >= 16);
            }
        }
    });
}

#[test]
fn active_and_active_with_unequal_capacities() {
    let _limit = world::limit(Duration::from_secs(90));
    let plan = transit::plan(&[300, 100, 100], "mode = \"active/active\"\nreturn = \"all\"");
    transit::with_strings(&plan, |strings| {
        let run = transit::start(strings, &load(false, 5000));
        transit::pause(800);
        let flows = |string| transit::member(strings, Edge::Near, string)["weight"].as_u64();
        let weights = [0, 1, 2].map(|string| flows(string).expect("a weight"));
        assert_eq!(weights.iter().sum::<u64>(), 256);
        assert!((150..=156).contains(&weights[0]), "{weights:?}");
        for string in [0, 1] {
            strings.cut(string, Cut::Both).expect("cut");
            for edge in Edge::BOTH {
                transit::wait_for_state(strings, edge, string, "dead");
            }
            transit::pause(500);
            strings.restore(string, Cut::Both).expect("restored");
            for edge in Edge::BOTH {
                transit::wait_for_state(strings, edge, string, "alive");
            }
        }
        transit::finish(strings, run);
        let (moved, returned) =
            (moved(strings), transit::count(strings, Edge::Near, "transit.returned"));
        assert!(moved > 0 && returned == moved, "{moved} moved, {returned} returned");
        assert_eq!(transit::count(strings, Edge::Far, "transit.new"), 0);
    });
}

#[test]
fn one_dead_direction_is_enough() {
    let _limit = world::limit(Duration::from_secs(90));
    transit::with_strings(&transit::plan(&[100, 100], ""), |strings| {
        for from in Edge::BOTH {
            let run = transit::counting(strings, 2000);
            transit::pause(500);
            strings.cut(0, Cut::From(from)).expect("cut");
            let other = if from == Edge::Near { Edge::Far } else { Edge::Near };
            transit::wait_for_state(strings, other, 0, "dead");
            transit::wait_for_state(strings, from, 0, "unheard");
            transit::finish(strings, run);
            strings.restore(0, Cut::From(from)).expect("restored");
            for edge in Edge::BOTH {
                transit::wait_for_state(strings, edge, 0, "alive");
            }
        }
        assert!(moved(strings) > 0);
    });
}

/// Uploads overflow the queue in front of a string all the time, and heartbeats are dropped like
/// other packets. Of many more uploads, one would lose so many segments in a row that TCP alone
/// lets it wait for longer than a load does. The strings are a program of the laboratory, which a
/// busy machine makes late, so heartbeats are slower than that.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_full_string_is_not_a_dead_one() {
    let _limit = world::limit(Duration::from_secs(60));
    let mut plan = transit::plan(&[20, 20], "heartbeat_ms = 50");
    for string in &mut plan.strings {
        (string.limited, string.queue_packets) = (true, 20);
    }
    transit::with_strings(&plan, |strings| {
        let mut spec = world::counting(4000, 0, None);
        spec.groups = vec![Group::usual(Workload::Upload, 6, Program::Redis.port())];
        transit::finish(strings, transit::start(strings, &spec));
        let mut dropped = 0;
        for string in [0, 1] {
            for exit in [interface::STRING_NEAR, interface::STRING_FAR] {
                dropped += strings.queue(string, exit).expect("a queue").dropped;
            }
        }
        assert!(dropped > 100, "{dropped} dropped");
        for edge in Edge::BOTH {
            let events = transit::events(strings, edge);
            assert!(!events.iter().any(|event| event == "declare"), "{events:?}");
        }
        // A string that is both full and dead is noticed, too.
        let run = transit::start(strings, &spec);
        transit::pause(1000);
        strings.cut(0, Cut::Both).expect("cut");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "dead");
        }
        transit::finish(strings, run);
    });
}
