//! Flows share the strings in proportion, and a server's replies come back through the string of
//! the request.

use crate::{transit, world};
use holdfast_lab::load::{Group, Workload};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::strings::{Edge, Strings};
use std::time::Duration;

/// Packets of a string from near to far, as each edge counts them, and back.
fn packets(strings: &Strings, string: usize) -> [u64; 4] {
    let (near, far) =
        (transit::member(strings, Edge::Near, string), transit::member(strings, Edge::Far, string));
    let read = |value: &serde_json::Value| value.as_u64().expect("a number");
    [&near["packets_into"], &far["packets_out"], &far["packets_into"], &near["packets_out"]]
        .map(read)
}

#[test]
fn in_active_active() {
    let _limit = world::limit(Duration::from_secs(60));
    let plan = transit::plan(&[100, 50, 50], "mode = \"active/active\"");
    transit::with_strings(&plan, |strings| {
        let mut spec = world::counting(1000, 0, None);
        spec.groups = vec![Group::usual(Workload::Incr, 64, Program::Redis.port())];
        transit::finish(strings, transit::start(strings, &spec));
        let [near, far] = Edge::BOTH;
        let new = transit::count(strings, near, "transit.new");
        assert!(new >= 64);
        // One edge put every flow on its string, and the other one learned it.
        assert_eq!(transit::count(strings, far, "transit.learned"), new);
        for (edge, name) in [(far, "new"), (far, "followed"), (near, "learned"), (near, "followed")]
        {
            assert_eq!(transit::count(strings, edge, &format!("transit.{name}")), 0, "{name}");
        }
        // Both programs choose the same string for a flow that does not exist yet.
        for port in 5000..5010 {
            let ask = |edge, flow: String| {
                let answer = strings.trace(edge, &flow).expect("an answer");
                assert_eq!(answer["verdict"], "redirected", "{answer}");
                answer["member"].clone()
            };
            let there = ask(near, format!("10.8.0.2:{port}>10.9.0.100:80"));
            let back = ask(far, format!("10.9.0.100:80>10.8.0.2:{port}"));
            assert_eq!(there, back);
        }
        for string in 0..3 {
            let [there, arrived, back, returned] = packets(strings, string);
            assert!(there > 0 && back > 0, "string {string} carries nothing");
            assert_eq!((there, back), (arrived, returned), "string {string}");
        }
    });
}
