//! The steps of an edge of strings in an outage are reported one by one: first at the death of the
//! string in use, then at silence on all strings.

use crate::{transit, world};
use holdfast_lab::load::{Group, Workload};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::strings::{Cut, Edge, Strings};
use std::time::{Duration, Instant};

/// Senders try again at 0.2, 0.4, 0.8 and 1.6 s, or, without an early probe, at 0.2, 0.6 and 1.4 s, and
/// then not before 3.0 s. What gets through by itself before the first heartbeat needs no resending.
const OUTAGES_MS: [u64; 4] = [2200, 1800, 2500, 2200];

/// Checks that the steps come in order; others may come between them.
fn in_order(strings: &Strings, edge: Edge, steps: &[&str]) {
    let events = transit::events(strings, edge);
    let mut rest = events.iter();
    for step in steps {
        assert!(rest.any(|event| event == step), "{} at {}: {events:?}", step, edge.name());
    }
}

#[test]
fn of_one_string_and_of_all() {
    let _limit = world::limit(Duration::from_secs(100));
    // Heartbeats are slow, so that a busy machine does not take both steps at once, and the second
    // string has less capacity.
    let plan = transit::plan(&[100, 50], "heartbeat_ms = 100");
    transit::with_strings(&plan, |strings| {
        let mut spec = world::counting(20_000, 0, None);
        spec.groups = vec![Group::usual(Workload::Incr, 32, Program::Redis.port())];
        let run = transit::start(strings, &spec);
        transit::pause(1000);
        strings.cut(0, Cut::Both).expect("cut");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "dead");
        }
        transit::pause(500);
        // It is chance whether packets passed between suspicion and certainty.
        let steps = ["suspect", "cache", "declare", "fence", "switch", "regulate"];
        in_order(strings, Edge::Near, &steps);
        in_order(strings, Edge::Far, &["suspect", "cache", "declare", "fence", "switch"]);
        strings.restore(0, Cut::Both).expect("restored");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "alive");
        }
        // It is chance whether senders try again just when a string is back: not after each of them.
        let resent = OUTAGES_MS.iter().any(|outage_ms| all_are_silent(strings, *outage_ms));
        assert!(resent, "nothing was resent: {:?}", transit::events(strings, Edge::Near));
        transit::finish(strings, run);
        assert_eq!(transit::count(strings, Edge::Near, "transit.no_string"), 0);
    });
}

/// An outage of all strings; returns whether the near edge had something to resend after it.
fn all_are_silent(strings: &Strings, outage_ms: u64) -> bool {
    let before = Edge::BOTH.map(|edge| transit::events(strings, edge).len());
    let since = |edge: Edge| transit::events(strings, edge).split_off(before[edge as usize]);
    let cut = Instant::now();
    strings.cut_all().expect("cut");
    for edge in Edge::BOTH {
        world::wait_until("silence", || since(edge).contains(&"silent".to_owned()));
    }
    std::thread::sleep(Duration::from_millis(outage_ms).saturating_sub(cut.elapsed()));
    // The flows have been on the second string since the first one died. It stays away, so what
    // went into it goes into the other one.
    strings.restore(0, Cut::Both).expect("restored");
    for edge in Edge::BOTH {
        transit::wait_for_state(strings, edge, 1, "dead");
        in_order(strings, edge, &["return", "suspect", "cache", "silent", "declare", "switch"]);
    }
    let resent = since(Edge::Near).contains(&"resend".to_owned());
    strings.restore(1, Cut::Both).expect("restored");
    for edge in Edge::BOTH {
        transit::wait_for_state(strings, edge, 1, "alive");
    }
    resent
}
