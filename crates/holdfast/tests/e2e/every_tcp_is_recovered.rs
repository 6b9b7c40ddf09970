//! Variants of Linux's TCP across an outage of all strings, behind a path that delays, loses and
//! reorders: what was lost is resent, and every byte arrives.

use crate::{transit, world};
use holdfast_lab::emu::EmuSpec;
use holdfast_lab::load::{Group, Workload};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::strings::{Edge, Strings};
use std::time::Duration;

/// Congestion controls and settings of the client.
const VARIANTS: [(&str, &[&str]); 5] = [
    ("cubic", &[]),
    ("bbr", &[]),
    ("cubic", &["net.ipv4.tcp_sack=0"]),
    ("bbr", &["net.ipv4.tcp_timestamps=0"]),
    (
        "cubic",
        &["net.ipv4.tcp_sack=0", "net.ipv4.tcp_timestamps=0", "net.ipv4.tcp_window_scaling=0"],
    ),
];

/// Number of packets that an edge has resent.
fn resent(strings: &Strings, edge: Edge) -> u64 {
    let shown = strings.show(edge).expect("the edge answers");
    shown["cache"]["resent"].as_u64().expect("a count")
}

#[test]
fn with_and_without_its_options() {
    let _limit = world::limit(Duration::from_secs(150));
    for (congestion, settings) in world::sample(&VARIANTS) {
        let mut plan = transit::plan(&[100, 100], "");
        plan.tables = "[recover]\nstart = \"always\"\n".to_owned();
        let path = ["delay", "10ms", "loss", "0.5%", "reorder", "1%"];
        plan.client_path = Some(EmuSpec::parse(&path).expect("a path"));
        transit::with_strings(&plan, |strings| {
            if !settings.is_empty() {
                strings.client().sysctl(settings).expect("set");
            }
            let mut spec = world::counting(4000, 0, None);
            spec.congestion = Some((*congestion).to_owned());
            let group = |workload, count| Group::usual(workload, count, Program::Redis.port());
            spec.groups = vec![
                group(Workload::Incr, 8),
                group(Workload::Upload, 2),
                group(Workload::Download, 2),
            ];
            let run = transit::start(strings, &spec);
            transit::pause(1200);
            strings.cut_all().expect("cut");
            transit::pause(400);
            strings.restore_all().expect("restored");
            transit::finish(strings, run);
            let resent: u64 = Edge::BOTH.iter().map(|edge| resent(strings, *edge)).sum();
            assert!(resent > 0, "{congestion} {settings:?}");
        });
    }
}
