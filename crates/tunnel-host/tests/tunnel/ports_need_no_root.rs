//! A UDP port here leads to a service there, for several clients, without any rights.

use crate::bed::{A, B, Bed, OUTSIDE, PORT, SOON, at, wait};
use crate::traffic::{ask_from, echo};
use std::net::SocketAddr;
use std::time::Duration;

const HERE: &str = "127.0.0.1:5300";
const THERE: &str = "127.0.0.1:5301";
/// The user who owns nothing.
const NOBODY: [&str; 6] =
    ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];

fn begin(bed: &mut Bed, near: &str, far: &str) {
    let listen = |end: usize| format!("mode = \"udp\"\nlisten = \"{}:{PORT}\"\n", OUTSIDE[end]);
    let peer = |end: usize| format!("address = \"{}\"", at(OUTSIDE[1 - end]));
    bed.write(A, &(listen(A) + near), &peer(A));
    bed.write(B, &(listen(B) + far), &peer(B));
    let run = bed.folder.join("run");
    std::fs::create_dir_all(&run).expect("a folder");
    for path in [run.to_string_lossy().into_owned(), bed.path(A, "key"), bed.path(B, "key")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("to give it away");
    }
    for end in [A, B] {
        bed.start_as(end, &NOBODY);
        wait("an end that answers", SOON, || bed.status(end).is_some());
    }
    bed.wait_up();
}

#[test]
fn several_clients_have_a_flow_each() {
    let Some(mut bed) = Bed::new() else { return };
    begin(
        &mut bed,
        &format!("forward = [\"udp {HERE} -> {THERE}\"]\nidle_s = 3"),
        &format!("allow = [\"udp {THERE}\"]\nidle_s = 3"),
    );
    let (here, there): (SocketAddr, SocketAddr) =
        (HERE.parse().expect("an address"), THERE.parse().expect("an address"));
    let service = echo(&bed, B, there, Duration::from_secs(4));
    let sizes: Vec<usize> = (0..100).map(|number| number * 13 % 1400).collect();
    for client in 0..3u16 {
        let own = SocketAddr::from(([127, 0, 0, 1], 6000 + client));
        assert_eq!(ask_from(&bed, A, own, here, &sizes), 0, "client {client}");
    }
    // Longer than a datagram of the path.
    let own = SocketAddr::from(([127, 0, 0, 1], 6100));
    assert_eq!(ask_from(&bed, A, own, here, &[8000, 20_000, 3000]), 0);
    let flows =
        |bed: &Bed, end: usize| bed.status(end).expect("an answer")["inside"]["flows"].clone();
    assert!(flows(&bed, A).as_u64().expect("a number") >= 1);
    wait("idle flows to end", Duration::from_secs(10), || {
        flows(&bed, A) == 0 && flows(&bed, B) == 0
    });
    assert_eq!(service.join().expect("a service"), 303);
}

#[test]
fn what_is_not_allowed_is_not_reached_and_there_is_a_limit() {
    let Some(mut bed) = Bed::new() else { return };
    begin(
        &mut bed,
        &format!("forward = [\"udp {HERE} -> {THERE}\"]\nflows_max = 2"),
        "allow = [\"udp 127.0.0.1:9\"]",
    );
    let here: SocketAddr = HERE.parse().expect("an address");
    for client in 0..4u16 {
        let own = SocketAddr::from(([127, 0, 0, 1], 6000 + client));
        assert_eq!(ask_from(&bed, A, own, here, &[10]), 1, "nobody answers");
    }
    let [near, far] = [A, B].map(|end| bed.status(end).expect("an answer"));
    assert_eq!(near["inside"]["flows"], 2);
    assert_eq!(near["inside"]["flows_refused"], 2);
    assert_eq!(far["inside"]["not_allowed"], 2);
    assert_eq!(far["inside"]["flows"], 0);
}
