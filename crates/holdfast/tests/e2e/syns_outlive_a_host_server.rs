//! Clients connect while a host server dies: their SYNs are lost with it, and the edge sends them
//! to another host server before the clients repeat them.

use crate::client::tcp_counter;
use crate::spread_world::{Client, Server, service};
use crate::world::{binary, limit};
use holdfast_lab::testbed::spread::{SpreadGroup, SpreadOptions};
use holdfast_lab::testbed::{Plan, Role, Testbed, interface};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PORT: u16 = 8080;
const CLIENTS: usize = 32;
/// Between two connections of a client.
const PAUSE: Duration = Duration::from_millis(10);

/// Number of SYNs that the client's kernel has repeated.
fn repeated(testbed: &Testbed) -> u64 {
    tcp_counter(testbed, "TCPSynRetrans")
}

#[test]
fn nobody_repeats_a_syn() {
    let _limit = limit(Duration::from_secs(60));
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let hosts = [Role::Primary, Role::Backup];
    let mut group =
        SpreadGroup::start(&testbed, &hosts, &SpreadOptions::default()).expect("a group");
    let _servers = [(Role::Primary, b'a'), (Role::Backup, b'b')]
        .map(|(role, name)| Server::start(&testbed, role, name, PORT));
    for v6 in [false, true] {
        let name = service(v6, PORT).to_string();
        group.wait_members(&name, &["a", "b"]).expect("the binds are noticed");
    }
    let before = repeated(&testbed);
    let flags = testbed.host(Role::Backup).interface_flags(interface::BACKUP);
    let (testbed, is_down) = (&testbed, &AtomicBool::new(false));
    // The command that takes the interface down may return long after it has.
    let knock = |i: usize| loop {
        let is_last = is_down.load(Ordering::Relaxed);
        let mut client = Client::connect(testbed, service(i % 2 == 1, PORT)).expect("it connects");
        if is_last {
            return client.ask(1000).expect("an answer");
        }
        std::thread::sleep(PAUSE);
    };
    let knock = &knock;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|i| scope.spawn(move || knock(i))).collect();
        std::thread::sleep(10 * PAUSE);
        std::fs::write(flags, "0x1002").expect("the interface goes down");
        is_down.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().expect("no panic"), b'a');
        }
    });
    assert_eq!(repeated(testbed), before, "{}", group.logs());
    let shown = group.ask(&["edge", "show"]).expect("an answer");
    assert!(shown["cache"]["resent"].as_u64() >= Some(1), "{}", shown["cache"]);
    let events = group.cli(&["events"]).expect("the verb runs").stdout;
    let events = String::from_utf8_lossy(&events);
    assert!(events.contains("resend"), "{events}");
    // SYNs whose handshakes are complete are not kept.
    crate::world::wait_until("the cache is empty", || {
        let shown = group.ask(&["edge", "show"]).expect("an answer");
        shown["cache"]["flows"] == 0
    });
}
