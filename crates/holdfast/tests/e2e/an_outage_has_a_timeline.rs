//! What an edge of strings does about an outage is told step by step: first the
//! death of the string in use, then silence on all.

use crate::{transit, world};
use holdfast_lab::load::{Group, Workload};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::strings::{Cut, Edge, Strings};
use std::time::Duration;

/// The steps, in order; others may come between them.
fn in_order(strings: &Strings, edge: Edge, steps: &[&str]) {
    let events = transit::events(strings, edge);
    let mut rest = events.iter();
    for step in steps {
        assert!(rest.any(|event| event == step), "{} at {}: {events:?}", step, edge.name());
    }
}

#[test]
fn of_one_string_and_of_all() {
    let _limit = world::limit(Duration::from_secs(90));
    // Slow heartbeats, so that between suspicion and certainty there is time to
    // see packets, and a backup with less capacity.
    let plan = transit::plan(&[100, 50], "heartbeat_ms = 100");
    transit::with_strings(&plan, |strings| {
        let mut spec = world::counting(6000, 0, None);
        spec.groups = vec![Group::usual(Workload::Incr, 32, Program::Redis.port())];
        let run = transit::start(strings, &spec);
        transit::pause(1000);
        strings.cut(0, Cut::Both).expect("cut");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "dead");
        }
        transit::pause(500);
        let steps = ["suspect", "cache", "declare", "fence", "switch", "resend", "regulate"];
        in_order(strings, Edge::Near, &steps);
        in_order(strings, Edge::Far, &["suspect", "cache", "declare", "fence", "switch"]);
        strings.restore(0, Cut::Both).expect("restored");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "alive");
        }
        strings.cut_all().expect("cut");
        for edge in Edge::BOTH {
            world::wait_until("silence", || {
                transit::events(strings, edge).contains(&"silent".to_owned())
            });
        }
        transit::pause(500);
        strings.restore_all().expect("restored");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 1, "alive");
            in_order(strings, edge, &["return", "suspect", "cache", "silent"]);
        }
        in_order(strings, Edge::Near, &["return", "silent", "resend"]);
        transit::finish(strings, run);
        assert_eq!(transit::count(strings, Edge::Near, "transit.no_string"), 0);
    });
}
