//! To its users an emulated wire is hardware: on a busy machine it must not stand still for longer
//! than a heartbeat may be late, or healthy members lose each other. Needs root.

use holdfast_lab::emu::{EmuSpec, End, Link};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::{Duration, Instant};

/// `SCHED_RR` of linux/sched.h.
const ROUND_ROBIN: &str = "2";

/// Index of a thread's scheduling policy in its `stat` (proc(5), field 41), counted from after its
/// name.
const POLICY: usize = 38;

/// Number of a process's threads that have a real-time policy.
fn realtime_threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let stats =
        tasks.flatten().filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
    let policy = |stat: String| {
        let (_, rest) = stat.rsplit_once(") ")?;
        Some(rest.split_whitespace().nth(POLICY)? == ROUND_ROBIN)
    };
    stats.filter_map(policy).filter(|is_realtime| *is_realtime).count()
}

#[test]
fn both_directions_are_ahead_of_ordinary_processes() {
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let end = |role, interface: &str| End {
        namespace: format!("/proc/{}/ns/net", testbed.host(role).holder()).into(),
        interface: interface.to_owned(),
    };
    let spec = EmuSpec::parse(&["delay", "1ms"]).expect("a wire");
    let wire = Link::between(end(Role::Client, "w0"), end(Role::Edge, "w1"), &spec);
    let wire = wire.expect("the wire stands");
    let until = Instant::now() + Duration::from_secs(10);
    while realtime_threads(wire.pid()) < 2 {
        assert!(Instant::now() < until, "a direction takes its turn among all processes");
        std::thread::sleep(Duration::from_millis(10));
    }
}
