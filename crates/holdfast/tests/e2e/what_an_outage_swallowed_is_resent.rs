//! Connections that are opened while no string lets anything pass: their SYNs
//! wait at the edge, and no client waits for its timer.

use crate::client::in_namespace;
use crate::world;
use holdfast_lab::testbed::addresses;
use holdfast_lab::testbed::strings::{Edge, Strings, StringsPlan};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const CONNECTIONS: u64 = 10;
const PORT: u16 = 7000;
/// Shorter than the first timer of a SYN, which is a second.
const OUTAGE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(20);

/// SYNs that the kernel of this thread's network has sent again.
fn repeated_syns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split(' ').zip(values.split(' '));
    let found = both.find(|(name, _)| *name == "TCPSynRetrans").expect("a counter");
    found.1.parse().expect("a number")
}

fn testbed(recover: &str) -> Strings {
    world::binary();
    let plan = StringsPlan { tables: format!("[recover]\n{recover}\n"), ..StringsPlan::default() };
    let mut testbed = Strings::build(&plan).expect("the testbed stands");
    testbed.start_daemons().expect("the edges hear each other");
    testbed
}

/// Opens connections during an outage; how many SYNs were repeated for them.
fn connect_during_an_outage(testbed: &Strings) -> u64 {
    let address = SocketAddr::new(addresses::SERVICE_V4.parse().expect("address"), PORT);
    let server = in_namespace(testbed.server().namespace(), || TcpListener::bind(address));
    let _server = server.expect("a listener");
    let client = testbed.client().namespace();
    let before = in_namespace(client, repeated_syns);
    testbed.cut_all().expect("the strings are cut");
    thread::scope(|scope| {
        let connecting: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                scope.spawn(|| {
                    in_namespace(client, || TcpStream::connect_timeout(&address, PATIENCE))
                })
            })
            .collect();
        thread::sleep(OUTAGE);
        testbed.restore_all().expect("the strings are restored");
        for connection in connecting {
            connection.join().expect("a thread").expect("a connection");
        }
    });
    in_namespace(client, repeated_syns) - before
}

#[test]
fn connections_opened_during_an_outage_wait_for_no_timer() {
    let _limit = world::limit(Duration::from_secs(120));
    let off = testbed("policy = \"off\"");
    assert!(connect_during_an_outage(&off) >= CONNECTIONS, "alone, every SYN is repeated");
    drop(off);
    for policy in ["syn", "head", "head+tail", "all"] {
        let testbed = testbed(&format!("policy = \"{policy}\"\nstart = \"always\""));
        let repeated = connect_during_an_outage(&testbed);
        let cache = testbed.show(Edge::Near).expect("an answer")["cache"].clone();
        assert_eq!(repeated, 0, "{policy}: {cache}");
        assert!(cache["resent"].as_u64() >= Some(CONNECTIONS), "{policy}: {cache}");
    }
}
