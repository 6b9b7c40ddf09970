//! A tenth of all datagrams is lost in the middle, and nobody inside misses anything.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, at, wait};
use crate::relay::{self, Switches};
use crate::traffic::{ping, tcp};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Where the relay listens: in the namespace of B.
const RELAY: &str = "10.77.0.9";

#[test]
fn connections_and_pings_come_through_a_tenth_of_loss() {
    let Some(mut bed) = Bed::new() else { return };
    bed.ip(B, &["address", "add", &format!("{RELAY}/24"), "dev", "w0"]);
    let switches = Switches::default();
    let used = switches.clone();
    let ends = OUTSIDE.map(|it| at(it).parse().expect("an address"));
    let listen = at(RELAY).parse().expect("an address");
    let delay = Duration::from_millis(5);
    let relay = bed.inside(B, move || relay::run(listen, ends, delay, &used));
    for end in [A, B] {
        let listen = bed.tun(end, "").replace("[::]", OUTSIDE[end]);
        bed.write(end, &listen, &format!("address = \"{}\"", at(RELAY)));
    }
    bed.start_both();
    // The path's size is found before anything is lost.
    let is_large = |bed: &Bed| bed.status(A).is_some_and(|it| it["udp_bytes_max"] == 1472);
    wait("the path's size", Duration::from_secs(20), || is_large(&bed));
    switches.lost_of_1000.store(100, Ordering::Relaxed);

    let answered = ping(&bed, INSIDE[B], 300, 56);
    assert!(answered >= 297, "{answered} of 300 pings were answered; without a tunnel it were 243");
    let begun = Instant::now();
    tcp(&bed, INSIDE[B], 4 << 20);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "8 MiB took {took:?}");

    let status = bed.status(A).expect("an answer");
    let loss = status["machine"]["sending"]["loss"].as_f64().expect("a number");
    assert!((0.05..0.2).contains(&loss), "a tenth is lost, and {loss} is shown");
    let dropped = switches.dropped.load(Ordering::Relaxed);
    assert!(dropped > 100, "the relay has lost {dropped}");
    switches.ends.store(true, Ordering::Relaxed);
    relay.join().expect("the relay");
}
